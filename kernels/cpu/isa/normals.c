/* normals -- random initial values, drawn by ../../normals.c */
#include "work.h"

typedef struct { Device *d; Mat y; double mean, std; uint64_t key; int64_t first, step; } Job;

enum { DRAWN = 256 };          /* numbers drawn at a time */

static void normals_item(void *ctx, int64_t item, int thread)
{
    const Job *j = ctx;
    Work t = work_at(j->y, item);
    Mat ym = mat_cols(j->y, t.c0, t.cols);
    REAL *buf = FN(row_buf)(j->d, thread, 0);
    double x[DRAWN];
    for (int64_t r = t.r0; r < t.r1; r++) {
        REAL *y = row_out(ym, r, buf);
        for (int64_t c = 0; c < t.cols; c += DRAWN) {
            int64_t n = t.cols - c < DRAWN ? t.cols - c : DRAWN;
            rng_normals(j->key, 0, (uint64_t)(j->first + r * j->step + t.c0 + c), n, j->mean, j->std, x);
            for (int64_t i = 0; i < n; i++)
                y[c + i] = (REAL)x[i];
        }
        row_done(ym, r, y);
    }
}

void FN(cpu_normals)(Device *d, Mat y, double mean, double std, uint64_t key, int64_t first, int64_t step)
{
    if (y.ld == y.cols && step == y.cols)      /* one long row */
        y.cols = y.ld = y.rows * y.cols, y.rows = 1;
    Job j = {d, y, mean, std, key, first, step};
    pool_run(d->pool, normals_item, &j, work_items(y));
}
