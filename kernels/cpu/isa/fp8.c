/* fp8 -- casts to E4M3 and E5M2 and their scales, with the bits of cuda/fp8.cu; the ops fp8_cast, fp8_matmul
 * and fp8_next */
#include "fp8.h"
#include "work.h"

enum { TILE_DOWN = 64, TILE_ACROSS = 256 };

typedef struct {
    Device *d;
    uint8_t *y, *yt;
    Mat x;
    Fp8Scale *s;
    Fp8Format format;
    float scale;
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

static void amax_item(void *ctx, int64_t item, int thread)
{
    const CastJob *j = ctx;
    Work t = work_at(j->x, item);
    Mat x = mat_cols(j->x, t.c0, t.cols);
    REAL *buf = FN(row_buf)(j->d, thread, 0);
    uint32_t m = 0;
    for (int64_t r = t.r0; r < t.r1; r++)
        m = largest_bits(m, row_in(x, r, buf), t.cols);
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

/* One tile: its rows to y, its columns to yt, whose rows are filled up with zeros. */
static void cast_item(void *ctx, int64_t item, int thread)
{
    const CastJob *j = ctx;
    int64_t across = (j->x.cols + TILE_ACROSS - 1) / TILE_ACROSS, padded = fp8_padded(j->x.rows);
    int64_t r0 = item / across * TILE_DOWN, c0 = item % across * TILE_ACROSS;
    int64_t down = padded - r0 < TILE_DOWN ? padded - r0 : TILE_DOWN;
    int64_t cols = j->x.cols - c0 < TILE_ACROSS ? j->x.cols - c0 : TILE_ACROSS;
    Mat x = mat_cols(j->x, c0, cols);
    REAL *buf = FN(row_buf)(j->d, thread, 0);
    uint8_t tile[TILE_DOWN][TILE_ACROSS] = {{0}};
    uint32_t m = 0;
    for (int64_t r = 0; r < down && r0 + r < x.rows; r++) {
        const REAL *row = row_in(x, r0 + r, buf);
        m = largest_bits(m, row, cols);
        to_fp8(tile[r], row, cols, j->scale, j->format);
        if (j->y)
            memcpy(j->y + (r0 + r) * j->x.cols + c0, tile[r], (size_t)cols);
    }
    for (int64_t c = 0; j->yt && c < cols; c++)
        for (int64_t r = 0; r < down; r++)
            j->yt[(c0 + c) * padded + r0 + r] = tile[r][c];
    note_largest(&j->s->seen, m);
}

void FN(cpu_fp8_cast)(Device *d, void *y, void *yt, Mat x, Fp8Scale *s, Fp8Format format, int delayed)
{
    CastJob j = {d, y, yt, x, s, format, s->scale > 0 ? s->scale : 1};
    BUG_ON(x.cols % 16 || (x.type != BF16 && x.type != F16));
    if (!x.rows || !x.cols)
        return;
    int finite = 1;
    if (!delayed) {
        float amax;
        s->amax = 0;
        pool_run(d->pool, amax_item, &j, work_items(x));
        memcpy(&amax, &s->amax, 4);
        finite = s->amax < 0x7f800000;
        j.scale = s->amax && finite ? fp8_largest(format) / amax : 1;
    }
    s->largest = fp8_largest(format);
    s->inverse = finite ? 1 / j.scale : NAN;       /* E4M3 has no infinity */
    int64_t across = (x.cols + TILE_ACROSS - 1) / TILE_ACROSS, down = (x.rows + TILE_DOWN - 1) / TILE_DOWN;
    pool_run(d->pool, cast_item, &j, across * down);
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
            s->scale = s->largest / largest;
    }
}
