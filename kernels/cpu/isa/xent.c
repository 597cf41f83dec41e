/* xent -- cross-entropy of rows of logits. Statistics and gradient are one pass over memory each: a
 * piece that fits L1 is read for its maximum and again for its sum (Milakov, Gimelshein 2018,
 * arXiv:1805.02867). */
#include "isa.h"

#define PIECE 2048             /* logits of a piece; a multiple of every VN */

typedef struct {
    Device *d;
    Mat stats, logits, loss, dlogits;
    const int32_t *label;
    const float *mask;
    RowMap rows;
    int64_t v0, valid;
    double scale;
} Job;

static REAL largest_of(const REAL *x, int64_t n)
{
    Vec m[4] = {vset(-INFINITY), vset(-INFINITY), vset(-INFINITY), vset(-INFINITY)};
    int64_t i = 0;
    for (; i + 4 * VN <= n; i += 4 * VN)
        for (int k = 0; k < 4; k++)
            m[k] = vmax(vload(x + i + k * VN), m[k]);
    for (; i + VN <= n; i += VN)
        m[0] = vmax(vload(x + i), m[0]);
    if (i < n)
        m[1] = vmax(vload_part(x + i, n - i, -INFINITY), m[1]);
    return vmaximum(vmax(vmax(m[0], m[1]), vmax(m[2], m[3])));
}

/* Returns the sum of exp(x - largest). It also prefetches the next piece, because the search for that
 * piece's maximum would only wait for memory. */
static REAL sum_exp(const REAL *x, int64_t n, REAL largest)
{
    Vec s[2] = {{0}};
    int64_t i = 0;
    for (; i + 2 * VN <= n; i += 2 * VN)
        for (int k = 0; k < 2; k++) {
            __builtin_prefetch(x + PIECE + i + k * VN);
            s[k] += vexp(vload(x + i + k * VN) - largest);
        }
    for (; i + VN <= n; i += VN)
        s[0] += vexp(vload(x + i) - largest);
    if (i < n)
        s[1] += vexp(vload_part(x + i, n - i, -INFINITY) - largest);
    return vsum(s[0] + s[1]);
}

/* Logits [c, c + n) of row r as reals: themselves, or converted in buf. */
static const REAL *piece(const Job *j, int64_t r, int64_t c, int64_t n, REAL buf[PIECE])
{
    const void *x = mat_at(j->logits, r, c);
    if (j->logits.type == REAL_TYPE)
        return x;
    FN(load_reals)(buf, x, n, j->logits.type);
    return buf;
}

static void stats_item(void *ctx, int64_t r, int thread)
{
    (void)thread;
    const Job *j = ctx;
    REAL buf[PIECE];
    REAL *stats = mat_at(j->stats, r, 0), largest = -INFINITY, sum = 0;
    for (int64_t c = 0; c < j->valid; c += PIECE) {
        int64_t n = j->valid - c < PIECE ? j->valid - c : PIECE;
        const REAL *x = piece(j, r, c, n, buf);
        REAL m = largest_of(x, n);
        if (m > largest) {
            sum *= (REAL)exp((double)(largest - m));
            largest = m;
        }
        /* while all logits are -inf the sum is 0; 0 in place of `largest` then avoids -inf + inf. A NaN
         * stays in the sum */
        sum += sum_exp(x, n, largest == -INFINITY ? 0 : largest);
    }
    int64_t v = j->label[mapped_row(j->rows, r)] - j->v0;
    stats[0] = largest;
    stats[1] = sum;
    stats[2] = v >= 0 && v < j->valid ? *piece(j, r, v, 1, buf) : -INFINITY;
}

static void check(const Job *j)
{
    BUG_ON(j->logits.type != REAL_TYPE && (REAL_TYPE != F32 || dtype_size(j->logits.type) != 2));
    BUG_ON(j->stats.type != REAL_TYPE || j->stats.cols != 3);
    BUG_ON(j->stats.rows != j->logits.rows || j->valid < 0 || j->valid > j->logits.cols);
}

void FN(cpu_xent_stats)(Device *d, Mat stats, Mat logits, const int32_t *label, RowMap rows, int64_t v0,
                        int64_t valid)
{
    Job j = {
        .d = d, .stats = stats, .logits = logits, .label = label, .rows = rows, .v0 = v0, .valid = valid};
    check(&j);
    pool_run(d->pool, stats_item, &j, logits.rows);
}

/* With one part the output has the bits of that part: its sum is added to 0 without a factor. */
static void combine_item(void *ctx, int64_t r, int thread)
{
    (void)thread;
    const Job *j = ctx;
    const int64_t rows = j->stats.rows, parts = j->logits.rows / rows;
    REAL *out = mat_at(j->stats, r, 0), largest = -INFINITY, label = -INFINITY, sum = 0;
    for (int64_t p = 0; p < parts; p++) {
        const REAL *x = mat_at(j->logits, p * rows + r, 0);
        largest = x[0] > largest ? x[0] : largest;
        label = x[2] > label || x[2] != x[2] ? x[2] : label;
    }
    for (int64_t p = 0; p < parts; p++) {
        const REAL *x = mat_at(j->logits, p * rows + r, 0);
        sum += x[0] == largest ? x[1] : x[1] * (REAL)exp((double)(x[0] - largest));
    }
    out[0] = largest, out[1] = sum, out[2] = label;
}

void FN(cpu_xent_combine)(Device *d, Mat stats, Mat parts)
{
    Job j = {.d = d, .stats = stats, .logits = parts};
    BUG_ON(stats.type != REAL_TYPE || parts.type != REAL_TYPE || stats.cols != 3 || parts.cols != 3);
    BUG_ON(stats.rows == 0 || parts.rows % stats.rows);
    pool_run(d->pool, combine_item, &j, stats.rows);
}

/* dlogits may start where the logits start: pieces go left to right, and an element of dlogits is at
 * most as wide as a real, so no logit is overwritten before it has been read. */
static void grad_item(void *ctx, int64_t r, int thread)
{
    const Job *j = ctx;
    const REAL *stats = mat_at(j->stats, r, 0);
    REAL wide[PIECE];
    int64_t row = mapped_row(j->rows, r), v = j->label[row] - j->v0;
    double mask = j->mask ? j->mask[row] : 1;
    /* a masked row gives zeros, even if its label or its logits are invalid */
    *(REAL *)mat_at(j->loss, row, 0) =
        mask == 0 ? 0 : (REAL)(mask * (log((double)stats[1]) + ((double)stats[0] - (double)stats[2])));
    if (!j->dlogits.p)
        return;
    REAL k = (REAL)(mask * j->scale), norm = k / stats[1], *buf = FN(row_buf)(j->d, thread, 0);
    for (int64_t c = 0; c < j->dlogits.cols; c += PIECE) {
        int64_t n = j->dlogits.cols - c < PIECE ? j->dlogits.cols - c : PIECE;
        int64_t in = mask == 0 || c >= j->valid ? 0 : j->valid - c < n ? j->valid - c : n;
        const REAL *x = piece(j, r, c, n, wide);
        Mat dm = mat_cols(j->dlogits, c, n);
        REAL *dx = row_out(dm, r, buf);
        for (int64_t i = 0; i < in; i += VN)
            vput(dx + i, vexp(vget(x + i, in - i) - stats[0]) * norm, in - i);
        for (int64_t i = in; i < n; i++)
            dx[i] = 0;
        if (v >= c && v < c + in)
            dx[v - c] -= k;
        row_done(dm, r, dx);
    }
}

static void check_grad(const Job *j)
{
    check(j);
    BUG_ON(j->loss.type != REAL_TYPE || j->loss.rows < j->logits.rows);
    BUG_ON(j->dlogits.p && (j->dlogits.rows != j->logits.rows || j->dlogits.cols != j->logits.cols));
}

void FN(cpu_xent_grad)(Device *d, Mat loss, Mat dlogits, Mat logits, Mat stats, const int32_t *label,
                       const float *mask, RowMap rows, int64_t v0, int64_t valid, double scale)
{
    Job j = {.d = d, .stats = stats, .logits = logits, .loss = loss, .dlogits = dlogits, .label = label,
             .mask = mask, .rows = rows, .v0 = v0, .valid = valid, .scale = scale};
    check_grad(&j);
    pool_run(d->pool, grad_item, &j, logits.rows);
}

static void both_item(void *ctx, int64_t r, int thread)
{
    stats_item(ctx, r, thread);
    grad_item(ctx, r, thread);
}

void FN(cpu_xent)(Device *d, Mat loss, Mat dlogits, Mat logits, Mat stats, const int32_t *label,
                  const float *mask, RowMap rows, int64_t valid, double scale)
{
    Job j = {.d = d, .stats = stats, .logits = logits, .loss = loss, .dlogits = dlogits, .label = label,
             .mask = mask, .rows = rows, .valid = valid, .scale = scale};
    check_grad(&j);
    pool_run(d->pool, both_item, &j, logits.rows);
}
