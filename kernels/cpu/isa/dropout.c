/* dropout -- masks from Philox4x32-10 (isa.h), a vector of counters at a time. */
#include "work.h"

#define WN ((int)(VBYTES / 8))     /* counters at a time */

/* f[0..n) = 1/(1-p) or 0 for columns first .. first + n of one row. */
static void factors(REAL *f, int64_t n, const Dropout *s, int64_t first, int64_t position, int64_t sample)
{
    uint32_t words[WN * 4], limit = dropout_limit(s->p);
    REAL keep = (REAL)(1 / (1 - s->p));
    WVec step, zero = {0};
    for (int i = 0; i < WN; i++)
        step[i] = (uint64_t)i;
    /* the first counter may begin before `first` */
    for (int64_t i = -(first % 4); i < n; i += WN * 4) {
        WVec c[4] = {(uint64_t)(first + i) / 4 + step, (uint64_t)position - zero, (uint64_t)sample - zero,
                     ((uint64_t)sample >> 32) - zero};
        vphilox(c, s->key);
        for (int k = 0; k < WN; k++)
            for (int w = 0; w < 4; w++)
                words[4 * k + w] = (uint32_t)c[w][k];
        int64_t from = i < 0 ? 0 : i, to = i + WN * 4 < n ? i + WN * 4 : n;
        for (int64_t k = from; k < to; k++)
            f[k] = words[k - i] >= limit ? keep : 0;
    }
}

typedef struct { Device *d; Mat y, x, res; const Dropout *s; } Job;

static void item_fn(void *ctx, int64_t item, int thread)
{
    const Job *j = ctx;
    const Dropout *s = j->s;
    Work t = work_at(j->y, item);
    Mat ym = mat_cols(j->y, t.c0, t.cols), xm = mat_cols(j->x, t.c0, t.cols), rm = mat_cols(j->res, t.c0, t.cols);
    REAL *xbuf = FN(row_buf)(j->d, thread, 0), *rbuf = FN(row_buf)(j->d, thread, 1);
    REAL *f = FN(row_buf)(j->d, thread, 2);
    for (int64_t i = 0; i < t.cols && !(s->p > 0); i++)
        f[i] = 1;
    for (int64_t r = t.r0; r < t.r1; r++) {
        const REAL *x = row_in(xm, r, xbuf), *res = j->res.p ? row_in(rm, r, rbuf) : NULL;
        REAL *y = row_out(ym, r, xbuf);
        if (s->p > 0)
            factors(f, t.cols, s, s->col0 + t.c0, s->pos0 + r % s->seq, s->sample[r / s->seq]);
        for (int64_t i = 0; i < t.cols; i += VN) {
            Vec v = vget(x + i, t.cols - i) * vget(f + i, t.cols - i);
            vput(y + i, res ? v + vget(res + i, t.cols - i) : v, t.cols - i);
        }
        row_done(ym, r, y);
    }
}

void FN(cpu_dropout_fwd)(Device *d, Mat y, Mat x, Mat res, const Dropout *s)
{
    BUG_ON(!(s->p >= 0 && s->p < 1));
    BUG_ON(y.rows != x.rows || y.cols != x.cols || (res.p && (res.rows != x.rows || res.cols != x.cols)));
    Job j = {d, y, x, res, s};
    pool_run(d->pool, item_fn, &j, work_items(y));
}

/* The mask is symmetric: backward is forward without the residual. */
void FN(cpu_dropout_bwd)(Device *d, Mat dx, Mat dy, const Dropout *s)
{
    FN(cpu_dropout_fwd)(d, dx, dy, (Mat){0}, s);
}
