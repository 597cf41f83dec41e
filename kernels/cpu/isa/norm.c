/* norm -- LayerNorm and RMSNorm of groups of columns, forward and both halves of the backward pass.
 *
 * A group is read three times, for the mean, the spread and the result; after the first time it is in
 * L1. */
#include "work.h"

typedef struct {
    Device *d;
    Mat y, stats, x, gain, bias, dres, dy;
    double eps;
    NormKind kind;
    int groups;
} Job;

/* Four accumulators hide the latency of the addition; a tail shorter than a vector is padded with
 * zeros. */
static REAL sum_row(const REAL *x, int64_t n)
{
    Vec s[4] = {{0}};
    int64_t i = 0;
    for (; i + 4 * VN <= n; i += 4 * VN)
        for (int k = 0; k < 4; k++)
            s[k] += vload(x + i + k * VN);
    for (; i < n; i += VN)
        s[0] += vget(x + i, n - i);
    return vsum((s[0] + s[1]) + (s[2] + s[3]));
}

/* sum of (x - mean)^2 */
static REAL spread_row(const REAL *x, int64_t n, REAL mean)
{
    Vec s[4] = {{0}}, v;
    int64_t i = 0;
    for (; i + 4 * VN <= n; i += 4 * VN)
        for (int k = 0; k < 4; k++) {
            v = vload(x + i + k * VN) - mean;
            s[k] += v * v;
        }
    for (; i + VN <= n; i += VN) {
        v = vload(x + i) - mean;
        s[0] += v * v;
    }
    if (i < n) {
        v = vload_part(x + i, n - i, mean) - mean;
        s[1] += v * v;
    }
    return vsum((s[0] + s[1]) + (s[2] + s[3]));
}

void FN(norm_row)(REAL *y, const REAL *x, const REAL *gain, const REAL *bias, REAL mean, REAL rstd, int64_t n)
{
    for (int64_t i = 0; i < n; i += VN) {
        Vec v = (vget(x + i, n - i) - mean) * rstd * vget(gain + i, n - i);
        vput(y + i, bias ? v + vget(bias + i, n - i) : v, n - i);
    }
}

static void fwd_item(void *ctx, int64_t item, int thread)
{
    const Job *j = ctx;
    int64_t step = work_rows(j->x.cols), r0 = item * step, n = j->x.cols / j->groups;
    REAL *buf = FN(row_buf)(j->d, thread, 0);
    const REAL *gain = row_in(j->gain, 0, FN(row_buf)(j->d, thread, 1));
    const REAL *bias = j->bias.p ? row_in(j->bias, 0, FN(row_buf)(j->d, thread, 2)) : NULL;
    for (int64_t r = r0; r < r0 + step && r < j->x.rows; r++) {
        const REAL *xr = row_in(j->x, r, buf);
        REAL *yr = row_out(j->y, r, buf), *stats = mat_at(j->stats, r, 0);
        for (int g = 0; g < j->groups; g++) {
            const REAL *x = xr + g * n;
            REAL mean = j->kind == NORM_LAYER ? sum_row(x, n) / (REAL)n : 0;
            REAL rstd = 1 / (REAL)sqrt(spread_row(x, n, mean) / (REAL)n + (REAL)j->eps);
            if (j->y.p)
                FN(norm_row)(yr + g * n, x, gain, bias, mean, rstd, n);
            stats[2 * g] = mean;
            stats[2 * g + 1] = rstd;
        }
        if (j->y.p)
            row_done(j->y, r, yr);
    }
}

static void check(const Job *j)
{
    int64_t n = j->x.cols / j->groups;
    BUG_ON(j->x.cols % j->groups || j->x.cols > ROW_MAX || j->stats.type != REAL_TYPE);
    BUG_ON(j->stats.rows != j->x.rows || j->stats.cols != 2 * j->groups);
    BUG_ON(j->gain.p && j->gain.cols != n);
    BUG_ON(j->bias.p && j->bias.cols != n);
}

void FN(cpu_norm_fwd)(Device *d, Mat y, Mat stats, Mat x, Mat gain, Mat bias, double eps, NormKind kind,
                      int groups)
{
    Job j = {.d = d, .y = y, .stats = stats, .x = x, .gain = gain, .bias = bias, .eps = eps, .kind = kind,
             .groups = groups};
    check(&j);
    BUG_ON(y.rows != x.rows || y.cols != x.cols);
    pool_run(d->pool, fwd_item, &j, row_items(x));
}

void FN(norm_stats)(Device *d, Mat stats, Mat x, Mat gain, Mat bias, double eps, NormKind kind)
{
    Job j = {.d = d, .y = {.type = x.type}, .stats = stats, .x = x, .gain = gain, .bias = bias, .eps = eps,
             .kind = kind, .groups = 1};
    check(&j);
    pool_run(d->pool, fwd_item, &j, row_items(x));
}

/* With xh = (x - mean) rstd, e = dy gain: dx = rstd (e - avg(e) - xh avg(e xh)), RMSNorm without
 * avg(e). */
static void bwd_x_item(void *ctx, int64_t item, int thread)
{
    const Job *j = ctx;
    int64_t step = work_rows(j->x.cols), r0 = item * step, n = j->x.cols / j->groups;
    REAL *xbuf = FN(row_buf)(j->d, thread, 0), *dybuf = FN(row_buf)(j->d, thread, 1);
    REAL *resbuf = FN(row_buf)(j->d, thread, 2);
    const REAL *gain = row_in(j->gain, 0, FN(row_buf)(j->d, thread, 3));
    for (int64_t r = r0; r < r0 + step && r < j->x.rows; r++) {
        const REAL *xr = row_in(j->x, r, xbuf), *dyr = row_in(j->dy, r, dybuf);
        const REAL *res = j->dres.p ? row_in(j->dres, r, resbuf) : NULL, *stats = mat_at(j->stats, r, 0);
        REAL *dxr = row_out(j->y, r, dybuf);
        for (int g = 0; g < j->groups; g++) {
            const REAL *x = xr + g * n, *dy = dyr + g * n;
            REAL mean = stats[2 * g], rstd = stats[2 * g + 1], *dx = dxr + g * n;
            Vec s[2] = {{0}}, sx[2] = {{0}};
            for (int64_t i = 0, k = 0; i < n; i += VN, k ^= 1) {
                Vec e = vget(dy + i, n - i) * vget(gain + i, n - i);      /* 0 beyond the end */
                s[k] += e;
                sx[k] += e * ((vget(x + i, n - i) - mean) * rstd);
            }
            REAL avg = j->kind == NORM_LAYER ? vsum(s[0] + s[1]) / (REAL)n : 0;
            REAL avgx = vsum(sx[0] + sx[1]) / (REAL)n;
            for (int64_t i = 0; i < n; i += VN) {
                Vec e = vget(dy + i, n - i) * vget(gain + i, n - i);
                Vec xh = (vget(x + i, n - i) - mean) * rstd;
                Vec v = rstd * (e - avg - xh * avgx);
                vput(dx + i, res ? v + vget(res + g * n + i, n - i) : v, n - i);
            }
        }
        row_done(j->y, r, dxr);
    }
}

void FN(cpu_norm_bwd)(Device *d, Mat dx, Mat dgain, Mat dbias, Mat dres, Mat dy, Mat x, Mat stats, Mat gain,
                      NormKind kind, int groups)
{
    Job j = {.d = d, .y = dx, .stats = stats, .x = x, .gain = gain, .dres = dres, .dy = dy, .kind = kind,
             .groups = groups};
    check(&j);
    BUG_ON(dx.rows != x.rows || dx.cols != x.cols || dy.rows != x.rows || dy.cols != x.cols);
    BUG_ON(dres.p && (dres.rows != x.rows || dres.cols != x.cols));
    FN(norm_columns)(d, dgain, dbias, dy, x, stats, groups);       /* first: dx may lie over dy */
    pool_run(d->pool, bwd_x_item, &j, row_items(x));
}
