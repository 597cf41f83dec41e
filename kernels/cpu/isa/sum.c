#include "isa.h"

void FN(cpu_sum)(Device *d, double *out, Mat x)
{
    REAL *buf = FN(row_buf)(d, 0, 0);
    double sum = 0;
    BUG_ON(x.cols > ROW_MAX);
    for (int64_t r = 0; r < x.rows; r++) {
        const REAL *row = row_in(x, r, buf);
        for (int64_t c = 0; c < x.cols; c++)
            sum += row[c];
    }
    *out += sum;
}
