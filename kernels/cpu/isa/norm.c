/* norm -- LayerNorm and RMSNorm of groups of columns, forward and both halves of the backward pass.
 *
 * A group is read three times (mean, spread, result) but is in L1 after the first: memory sees one pass. */
#include "work.h"

typedef struct {
    Device *d;
    Mat y, stats, x, gain, bias, dres, dy;
    Mat dgain, dbias;
    double eps;
    NormKind kind;
    int groups;
} Job;

/* Four accumulators hide the latency of the addition; a tail shorter than a vector enters as zeros. */
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
            REAL *y = yr + g * n, mean = j->kind == NORM_LAYER ? sum_row(x, n) / (REAL)n : 0;
            REAL rstd = 1 / (REAL)sqrt(spread_row(x, n, mean) / (REAL)n + (REAL)j->eps);
            for (int64_t i = 0; i < n; i += VN) {
                Vec v = (vget(x + i, n - i) - mean) * rstd * vget(gain + i, n - i);
                vput(y + i, bias ? v + vget(bias + i, n - i) : v, n - i);
            }
            stats[2 * g] = mean;
            stats[2 * g + 1] = rstd;
        }
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

void FN(cpu_norm_fwd)(Device *d, Mat y, Mat stats, Mat x, Mat gain, Mat bias, double eps, NormKind kind, int groups)
{
    Job j = {.d = d, .y = y, .stats = stats, .x = x, .gain = gain, .bias = bias, .eps = eps, .kind = kind,
             .groups = groups};
    check(&j);
    BUG_ON(y.rows != x.rows || y.cols != x.cols);
    pool_run(d->pool, fwd_item, &j, row_items(x));
}

/* With xh = (x - mean) rstd and e = dy gain:  dx = rstd (e - avg(e) - xh avg(e xh)), RMSNorm without avg(e). */
static void bwd_x_item(void *ctx, int64_t item, int thread)
{
    const Job *j = ctx;
    int64_t step = work_rows(j->x.cols), r0 = item * step, n = j->x.cols / j->groups;
    REAL *xbuf = FN(row_buf)(j->d, thread, 0), *dybuf = FN(row_buf)(j->d, thread, 1);
    REAL *resbuf = FN(row_buf)(j->d, thread, 2);
    const REAL *gain = row_in(j->gain, 0, FN(row_buf)(j->d, thread, 3));
    for (int64_t r = r0; r < r0 + step && r < j->x.rows; r++) {
        const REAL *xr = row_in(j->x, r, xbuf), *dyr = row_in(j->dy, r, dybuf), *stats = mat_at(j->stats, r, 0);
        const REAL *res = j->dres.p ? row_in(j->dres, r, resbuf) : NULL;
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
            REAL avg = j->kind == NORM_LAYER ? vsum(s[0] + s[1]) / (REAL)n : 0, avgx = vsum(sx[0] + sx[1]) / (REAL)n;
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

void FN(cpu_norm_bwd_x)(Device *d, Mat dx, Mat dres, Mat dy, Mat x, Mat stats, Mat gain, NormKind kind, int groups)
{
    Job j = {.d = d, .y = dx, .stats = stats, .x = x, .gain = gain, .dres = dres, .dy = dy, .kind = kind,
             .groups = groups};
    check(&j);
    BUG_ON(dx.rows != x.rows || dx.cols != x.cols || dy.rows != x.rows || dy.cols != x.cols);
    BUG_ON(dres.p && (dres.rows != x.rows || dres.cols != x.cols));
    pool_run(d->pool, bwd_x_item, &j, row_items(x));
}

/* A column block of dgain and dbias: sums of BURST rows in order, then their sum in order, which keeps the error
 * of long F32 sums small. */
#define BURST 64

static int64_t block_cols(int64_t n) { return n >= 4 * COL_BLOCK ? COL_BLOCK : COL_BLOCK / 4; }

static void bwd_w_item(void *ctx, int64_t item, int thread)
{
    const Job *j = ctx;
    int64_t n = j->x.cols / j->groups, step = block_cols(n), c0 = item * step, w = n - c0 < step ? n - c0 : step;
    REAL *xbuf = FN(row_buf)(j->d, thread, 0), *dybuf = FN(row_buf)(j->d, thread, 1);
    REAL total[2][COL_BLOCK] = {{0}}, part[2][COL_BLOCK] = {{0}};
    int64_t count = 0, last = j->x.rows * j->groups;
    for (int64_t r = 0; r < j->x.rows; r++)
        for (int g = 0; g < j->groups; g++) {
            const REAL *x = row_in(mat_cols(j->x, g * n + c0, w), r, xbuf), *stats = mat_at(j->stats, r, 2 * g);
            const REAL *dy = row_in(mat_cols(j->dy, g * n + c0, w), r, dybuf);
            for (int64_t i = 0; i < w; i += VN) {
                Vec e = vget(dy + i, w - i);
                vstore(part[0] + i, vload(part[0] + i) + e * ((vget(x + i, w - i) - stats[0]) * stats[1]));
                vstore(part[1] + i, vload(part[1] + i) + e);
            }
            if (++count % BURST == 0 || count == last)
                for (int k = 0; k < 2; k++)
                    for (int64_t i = 0; i < step; i++) {
                        total[k][i] += part[k][i];
                        part[k][i] = 0;
                    }
        }
    Mat out[2] = {j->dgain, j->dbias};
    for (int k = 0; k < 2; k++) {
        REAL *o = mat_at(out[k], 0, c0);
        for (int64_t i = 0; o && i < w; i++)
            o[i] += total[k][i];
    }
}

void FN(cpu_norm_bwd_w)(Device *d, Mat dgain, Mat dbias, Mat dy, Mat x, Mat stats, NormKind kind, int groups)
{
    (void)kind;                 /* RMSNorm: stats hold a mean of 0 */
    Job j = {.d = d, .stats = stats, .x = x, .dy = dy, .dgain = dgain, .dbias = dbias, .groups = groups};
    int64_t n = x.cols / groups, step = block_cols(n);
    check(&j);
    BUG_ON(dy.rows != x.rows || dy.cols != x.cols || dgain.cols != n || dgain.type != REAL_TYPE);
    BUG_ON(dbias.p && (dbias.cols != n || dbias.type != REAL_TYPE));
    pool_run(d->pool, bwd_w_item, &j, (n + step - 1) / step);
}

static void bias_item(void *ctx, int64_t item, int thread)
{
    const Job *j = ctx;
    int64_t step = block_cols(j->dy.cols), c0 = item * step;
    Mat dy = mat_cols(j->dy, c0, j->dy.cols - c0 < step ? j->dy.cols - c0 : step);
    REAL *buf = FN(row_buf)(j->d, thread, 0), *out = mat_at(j->dbias, 0, c0);
    REAL total[COL_BLOCK] = {0}, part[COL_BLOCK] = {0};
    for (int64_t r = 0; r < dy.rows; r++) {
        const REAL *e = row_in(dy, r, buf);
        for (int64_t i = 0; i < dy.cols; i += VN)
            vstore(part + i, vload(part + i) + vget(e + i, dy.cols - i));
        if ((r + 1) % BURST == 0 || r + 1 == dy.rows)
            for (int64_t i = 0; i < step; i++) {
                total[i] += part[i];
                part[i] = 0;
            }
    }
    for (int64_t i = 0; i < dy.cols; i++)
        out[i] += total[i];
}

void FN(cpu_bias_bwd)(Device *d, Mat db, Mat dy)
{
    Job j = {.d = d, .dbias = db, .dy = dy};
    int64_t step = block_cols(dy.cols);
    BUG_ON(db.cols != dy.cols || db.type != REAL_TYPE);
    pool_run(d->pool, bias_item, &j, (dy.cols + step - 1) / step);
}
