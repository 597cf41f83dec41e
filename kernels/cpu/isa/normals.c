/* normals -- random initial values, drawn by ../../normals.c */
#include "work.h"

typedef struct { Device *d; Mat y, rest; double mean, std; uint64_t key; int64_t first, step; } Job;

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
        if (!j->rest.p)
            row_done(ym, r, y);
        for (int64_t c = 0; c < t.cols && j->rest.p; c++) {
            *(uint16_t *)mat_at(ym, r, c) = master_weight((float)y[c]);
            *(int16_t *)mat_at(j->rest, r, t.c0 + c) = master_rest((float)y[c]);
        }
    }
}

void FN(cpu_normals)(Device *d, Mat y, Mat rest, double mean, double std, uint64_t key, int64_t first,
                     int64_t step)
{
    BUG_ON(rest.p && (y.type != BF16 || rest.type != I16 || rest.rows != y.rows || rest.cols != y.cols ||
                      rest.ld != y.ld || REAL_TYPE != F32));
    if (y.ld == y.cols && step == y.cols) {    /* one long row */
        y.cols = y.ld = y.rows * y.cols, y.rows = 1;
        rest.cols = rest.ld = y.cols, rest.rows = 1;
    }
    Job j = {d, y, rest, mean, std, key, first, step};
    pool_run(d->pool, normals_item, &j, work_items(y));
}
