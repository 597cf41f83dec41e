/* sum -- the sum of all elements of a matrix, row after row */
#include "isa.h"

void FN(cpu_sum)(Device *d, double *out, Mat x)
{
    REAL *buf = FN(row_buf)(d, 0, 0);
    double sum = 0;
    for (int64_t r = 0; r < x.rows; r++)
        for (int64_t at = 0; at < x.cols; at += ROW_MAX) {      /* a weight may be one long row */
            int64_t n = x.cols - at < ROW_MAX ? x.cols - at : ROW_MAX;
            const REAL *row = row_in(mat_cols(x, at, n), r, buf);
            for (int64_t c = 0; c < n; c++)
                sum += row[c];
        }
    *out += sum;
}
