/* fp8 -- casts to E4M3 and E5M2 and their scales, with the bits of cuda/fp8.cu; the ops fp8_cast, fp8_act,
 * fp8_norm, fp8_matmul and fp8_next */
#include "fp8.h"
#include "work.h"

enum { TILE_DOWN = 64, TILE_ACROSS = 256 };

/* What makes the numbers: they are stored, or of an activation, or of a norm. */
typedef enum { FROM_STORED, FROM_ACT, FROM_NORM } From;

/* A cast of x, or of what is made from x. For an activation x is h's gate, of which the result has the size,
 * `parts` times side by side. */
typedef struct {
    Device *d;
    uint8_t *y, *yt;
    Mat x, up, da;             /* up: h's factor, absent where the activation has none or there is none */
    Mat stats, gain, bias;     /* of a norm */
    From from;
    ActKind kind;
    int parts;                 /* 2: dh of a gated activation, else 1 */
    Fp8Scale *s;
    Fp8Format format;
    Fp8Scaling scaling;
    float scale;               /* without blocks */
} CastJob;

void FN(fp8_reals)(REAL *restrict dst, const uint8_t *restrict src, int64_t n, Fp8Format format)
{
    if (format == E4M3)
        for (int64_t i = 0; i < n; i++)
            dst[i] = (REAL)fp8_to_f32(src[i], E4M3);
    else
        for (int64_t i = 0; i < n; i++)
            dst[i] = (REAL)fp8_to_f32(src[i], E5M2);
}

/* Returns the larger of m and the bits of the largest magnitude of n elements. As integers these bits have
 * the order of the magnitudes. */
static uint32_t largest_bits(uint32_t m, const REAL *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float f = (float)x[i];
        uint32_t u;
        memcpy(&u, &f, 4);
        u &= 0x7fffffff;
        m = u > m ? u : m;
    }
    return m;
}

/* *at = the larger of *at and m; other threads may do the same. */
static void note_largest(uint32_t *at, uint32_t m)
{
    uint32_t was = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (m > was && !__atomic_compare_exchange_n(at, &was, m, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

/* Rounds a row to storage, as if it were stored. */
static void round_row(REAL *x, int64_t n, Dtype t)
{
    uint16_t stored[WORK_COLS];
    FN(store_reals)(stored, x, n, t);
    FN(load_reals)(x, stored, n, t);
}

/* Columns [c, c + n) of row r of each part; n is at most WORK_COLS. */
static void get_row(const CastJob *j, const REAL *part[2], int64_t r, int64_t c, int64_t n, int thread)
{
    REAL *x = FN(row_buf)(j->d, thread, 0), *up = FN(row_buf)(j->d, thread, 1),
         *da = FN(row_buf)(j->d, thread, 2);
    FN(load_reals)(x, mat_at(j->x, r, c), n, j->x.type);
    part[0] = x, part[1] = up;
    if (j->from == FROM_STORED)
        return;
    if (j->from == FROM_NORM) {
        const REAL *stats = mat_at(j->stats, r, 0);
        FN(load_reals)(up, mat_at(j->gain, 0, c), n, j->x.type);
        if (j->bias.p)
            FN(load_reals)(da, mat_at(j->bias, 0, c), n, j->x.type);
        FN(norm_row)(x, x, up, j->bias.p ? da : NULL, stats[0], stats[1], n);
        round_row(x, n, j->x.type);
        return;
    }
    if (j->up.rows)
        FN(load_reals)(up, mat_at(j->up, r, c), n, j->x.type);
    if (j->da.rows) {
        FN(load_reals)(da, mat_at(j->da, r, c), n, j->x.type);
        FN(act_bwd_row)(j->kind, x, up, da, x, up, n);
    } else {
        FN(act_row)(j->kind, x, x, up, n);
    }
    for (int p = 0; p < j->parts; p++)
        round_row(p ? up : x, n, j->x.type);
}

static void amax_item(void *ctx, int64_t item, int thread)
{
    const CastJob *j = ctx;
    Work t = work_at(j->x, item);
    uint32_t m = 0;
    for (int64_t r = t.r0; r < t.r1; r++) {
        const REAL *part[2];
        get_row(j, part, r, t.c0, t.cols, thread);
        for (int p = 0; p < j->parts; p++)
            m = largest_bits(m, part[p], t.cols);
    }
    note_largest(&j->s->amax, m);
}

static void to_fp8(uint8_t *restrict y, const REAL *restrict x, int64_t n, float scale, Fp8Format format)
{
    if (format == E4M3)
        for (int64_t i = 0; i < n; i++)
            y[i] = fp8_from_f32((float)x[i] * scale, E4M3);
    else
        for (int64_t i = 0; i < n; i++)
            y[i] = fp8_from_f32((float)x[i] * scale, E5M2);
}

/* One tile of each part: its rows to y, its columns to yt, whose rows are filled up with zeros. */
static void cast_item(void *ctx, int64_t item, int thread)
{
    const CastJob *j = ctx;
    int64_t width = j->x.cols, across = (width + TILE_ACROSS - 1) / TILE_ACROSS;
    int64_t r0 = item / across * TILE_DOWN, c0 = item % across * TILE_ACROSS;
    int64_t padded = fp8_padded(j->x.rows, j->scaling);
    int64_t down = padded - r0 < TILE_DOWN ? padded - r0 : TILE_DOWN;
    int64_t cols = width - c0 < TILE_ACROSS ? width - c0 : TILE_ACROSS;
    uint8_t tile[2][TILE_DOWN][TILE_ACROSS] = {{{0}}};
    uint32_t m = 0;
    for (int64_t r = 0; r < down && r0 + r < j->x.rows; r++) {
        const REAL *part[2];
        get_row(j, part, r0 + r, c0, cols, thread);
        for (int p = 0; p < j->parts; p++) {
            m = largest_bits(m, part[p], cols);
            to_fp8(tile[p][r], part[p], cols, j->scale, j->format);
            if (j->y)
                memcpy(j->y + ((r0 + r) * j->parts + p) * width + c0, tile[p][r], (size_t)cols);
        }
    }
    for (int p = 0; p < j->parts; p++)
        for (int64_t c = 0; j->yt && c < cols; c++)
            for (int64_t r = 0; r < down; r++)
                j->yt[(p * width + c0 + c) * padded + r0 + r] = tile[p][r][c];
    note_largest(&j->s->seen, m);
}

/* One block of 128 x 128 numbers, which is cast by rows, by columns, or as one. */
typedef struct { REAL x[FP8_BLOCK][FP8_BLOCK]; int64_t r0, c0, rows, cols; } Block;

/* Rows of a block, to y [high, wide] and the scales behind it. */
static void block_rows(const Block *b, uint8_t *y, int64_t high, int64_t wide, uint32_t most,
                       const CastJob *j)
{
    const int64_t pitch = fp8_pitch(high, wide, j->scaling), across = fp8_across(j->scaling);
    for (int64_t r = 0; r < b->rows; r++)
        for (int64_t c = 0; c < b->cols; c += across) {
            int64_t n = b->cols - c < across ? b->cols - c : across;
            uint32_t amax = j->scaling == FP8_SQUARES ? most : largest_bits(0, b->x[r] + c, n);
            int e = fp8_block_exponent(amax, j->format, j->scaling);
            fp8_block_put(y + high * wide, fp8_block_at(pitch, j->scaling, b->r0 + r, b->c0 + c), j->scaling,
                          e);
            to_fp8(y + (b->r0 + r) * wide + b->c0 + c, b->x[r] + c, n, fp8_block_scale(e), j->format);
        }
}

/* One block of each part, to y and, turned over, to yt. */
static void block_item(void *ctx, int64_t item, int thread)
{
    const CastJob *j = ctx;
    const int64_t width = j->x.cols, across = fp8_blocks(width), wide = j->parts * width;
    const int64_t r0 = item / across * FP8_BLOCK, c0 = item % across * FP8_BLOCK,
                  padded = fp8_padded(j->x.rows, j->scaling);
    const int64_t cols = width - c0 < FP8_BLOCK ? width - c0 : FP8_BLOCK;
    const int64_t rows = j->x.rows - r0 < FP8_BLOCK ? j->x.rows - r0 : FP8_BLOCK;
    const int64_t down = padded - r0 < FP8_BLOCK ? padded - r0 : FP8_BLOCK;
    for (int p = 0; p < j->parts; p++) {
        Block b = {.r0 = r0, .c0 = p * width + c0, .rows = rows, .cols = cols},
              t = {.r0 = p * width + c0, .c0 = r0, .rows = cols, .cols = down};
        uint32_t most = 0;
        for (int64_t r = 0; r < rows; r++) {
            const REAL *part[2];
            get_row(j, part, r0 + r, c0, cols, thread);
            memcpy(b.x[r], part[p], (size_t)cols * sizeof(REAL));
            most = largest_bits(most, part[p], cols);
            for (int64_t c = 0; c < cols; c++)
                t.x[c][r] = part[p][c];
        }
        if (j->y)
            block_rows(&b, j->y, j->x.rows, wide, most, j);
        if (j->yt)
            block_rows(&t, j->yt, wide, padded, most, j);
    }
}

/* Tiles of scales that reach over the matrix are zeros there. */
static void clear_tiles(const CastJob *j, uint8_t *y, int64_t high, int64_t wide)
{
    if (y && j->scaling == FP8_MX && (high % FP8_BLOCK || wide % FP8_BLOCK))
        memset(y + high * wide, 0, fp8_scale_bytes(high, wide, j->scaling));
}

static void run_blocks(CastJob *j, Fp8Scaling scaling)
{
    const int64_t wide = j->parts * j->x.cols;
    BUG_ON(j->parts > 1 && j->x.cols % fp8_across(scaling));
    j->scaling = scaling;
    clear_tiles(j, j->y, j->x.rows, wide);
    clear_tiles(j, j->yt, wide, fp8_padded(j->x.rows, scaling));
    pool_run(j->d->pool, block_item, j, fp8_blocks(j->x.rows) * fp8_blocks(j->x.cols));
}

static void run(CastJob j, Fp8Scaling scaling)
{
    Fp8Scale *s = j.s;
    int finite = 1;
    BUG_ON(j.x.cols % 16 || (j.x.type != BF16 && j.x.type != F16));
    if (!j.x.rows || !j.x.cols)
        return;
    if (fp8_blocked(scaling)) {
        run_blocks(&j, scaling);
        return;
    }
    j.scale = s->scale > 0 ? s->scale : 1;
    if (scaling == FP8_OWN) {
        float amax;
        s->amax = 0;
        pool_run(j.d->pool, amax_item, &j, work_items(j.x));
        memcpy(&amax, &s->amax, 4);
        finite = s->amax < 0x7f800000;
        j.scale = s->amax && finite ? fp8_scale(fp8_largest(j.format), amax) : 1;
    }
    s->largest = fp8_largest(j.format);
    s->inverse = finite ? 1 / j.scale : NAN;       /* E4M3 has no infinity */
    int64_t across = (j.x.cols + TILE_ACROSS - 1) / TILE_ACROSS,
            down = (j.x.rows + TILE_DOWN - 1) / TILE_DOWN;
    pool_run(j.d->pool, cast_item, &j, across * down);
}

void FN(cpu_fp8_cast)(Device *d, void *y, void *yt, Mat x, Fp8Scale *s, Fp8Format format, Fp8Scaling scaling)
{
    run((CastJob){.d = d, .y = y, .yt = yt, .x = x, .parts = 1, .s = s, .format = format}, scaling);
}

void FN(cpu_fp8_act)(Device *d, void *y, void *yt, Mat da, Mat h, ActKind kind, Fp8Scale *s, Fp8Format format,
                     Fp8Scaling scaling)
{
    int gated = act_gated(kind);
    int64_t f = h.cols / (gated ? 2 : 1);
    BUG_ON(da.rows && (da.rows != h.rows || da.cols != f));
    CastJob j = {.d = d, .y = y, .yt = yt, .x = mat_cols(h, 0, f), .da = da, .kind = kind,
                 .from = FROM_ACT, .parts = gated && da.rows ? 2 : 1, .s = s, .format = format};
    if (gated)
        j.up = mat_cols(h, f, f);
    run(j, scaling);
}

void FN(cpu_fp8_norm)(Device *d, void *y, void *yt, Mat sum, Mat stats, Mat x, Mat res,
                      const Dropout *drop, Mat gain, Mat bias, double eps, NormKind kind, Fp8Scale *s,
                      Fp8Scaling scaling)
{
    if (sum.p)
        FN(cpu_dropout_fwd)(d, sum, x, res, drop);
    Mat in = sum.p ? sum : x;
    FN(norm_stats)(d, stats, in, gain, bias, eps, kind);
    run((CastJob){.d = d, .y = y, .yt = yt, .x = in, .stats = stats, .gain = gain, .bias = bias,
                  .from = FROM_NORM, .parts = 1, .s = s, .format = E4M3}, scaling);
}

void FN(cpu_fp8_matmul)(Device *d, Mat c, Mat8 a, Mat8 b, Mat bias, int acc)
{
    gemm_fp8(d, c, a, b, bias, acc);
}

void FN(cpu_fp8_next)(Device *d, Fp8Scale *s, int64_t n, int64_t length, int most_recent)
{
    (void)d;
    BUG_ON(length < 1 || length > FP8_HISTORY);
    for (const Fp8Scale *end = s + n; s < end; s++) {
        uint32_t top = s->seen, bits;              /* as integers, so that a NaN is the largest */
        float largest;
        if (s->largest == 0)
            continue;
        for (int64_t i = 0; !most_recent && i + 1 < length; i++) {
            memcpy(&bits, &s->history[i], 4);
            top = bits > top ? bits : top;
        }
        memmove(s->history + 1, s->history, sizeof s->history - sizeof s->history[0]);
        memcpy(s->history, &s->seen, 4);
        s->seen = 0;
        memcpy(&largest, &top, 4);
        if (top > 0 && top < 0x7f800000)
            s->scale = fp8_scale(s->largest, largest);
    }
}
