/* convert -- storage to reals and back; the ops copy, zero, add and sum_parts.
 *
 * An F64 becomes BF16 or F16 by way of F32, and is therefore rounded twice. */
#include "work.h"

#define HALVES 32              /* of 16 bits in a cache line */

/* The compiler vectorises these loops; F16 uses the F16C instructions where the instruction set has
 * them. BF16, which large activations are stored in, is prefetched. */
void FN(load_reals)(REAL *restrict dst, const void *restrict src, int64_t n, Dtype type)
{
    int64_t i = 0;
    switch (type) {
    case F64: for (const double *s = src; i < n; i++) dst[i] = (REAL)s[i]; return;
    case F32: for (const float *s = src; i < n; i++) dst[i] = (REAL)s[i]; return;
    case BF16:
        for (const uint16_t *s = src; i + HALVES <= n; i += HALVES) {
            __builtin_prefetch((const char *)(s + i) + AHEAD_BYTES);
            for (int k = 0; k < HALVES; k++)
                dst[i + k] = (REAL)bf16_to_f32(s[i + k]);
        }
        for (const uint16_t *s = src; i < n; i++)
            dst[i] = (REAL)bf16_to_f32(s[i]);
        return;
    case F16:
#if (defined(ISA_avx2) || defined(ISA_avx512)) && !defined(REAL_f64)
        for (const __m128i_u *h = src; i + 8 <= n; i += 8)
            _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128(h++)));
#endif
        for (const uint16_t *s = src; i < n; i++)
            dst[i] = (REAL)f16_to_f32(s[i]);
        return;
    default: BUG_ON("not a real type");
    }
}

void FN(store_reals)(void *restrict dst, const REAL *restrict src, int64_t n, Dtype type)
{
    int64_t i = 0;
    switch (type) {
    case F64: for (double *d = dst; i < n; i++) d[i] = (double)src[i]; return;
    case F32: for (float *d = dst; i < n; i++) d[i] = (float)src[i]; return;
    case BF16:
        for (uint16_t *d = dst; i + HALVES <= n; i += HALVES) {
            __builtin_prefetch((char *)(d + i) + AHEAD_BYTES / 2, 1);
            for (int k = 0; k < HALVES; k++)
                d[i + k] = f32_to_bf16((float)src[i + k]);
        }
        for (uint16_t *d = dst; i < n; i++)
            d[i] = f32_to_bf16((float)src[i]);
        return;
    case F16:
#if (defined(ISA_avx2) || defined(ISA_avx512)) && !defined(REAL_f64)
        for (__m128i_u *h = dst; i + 8 <= n; i += 8)
            _mm_storeu_si128(h++, _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT));
#endif
        for (uint16_t *d = dst; i < n; i++)
            d[i] = f32_to_f16((float)src[i]);
        return;
    default: BUG_ON("not a real type");
    }
}

typedef struct { Device *d; Mat y, a, b; } Job;

static void copy_item(void *ctx, int64_t item, int thread)
{
    const Job *j = ctx;
    Work t = work_at(j->y, item);
    REAL *buf = FN(row_buf)(j->d, thread, 0);
    for (int64_t r = t.r0; r < t.r1; r++) {
        Mat y = mat_cols(j->y, t.c0, t.cols), a = mat_cols(j->a, t.c0, t.cols);
        if (y.type == a.type)
            memcpy(mat_at(y, r, 0), mat_at(a, r, 0), (size_t)t.cols * dtype_size(a.type));
        else if (y.type == REAL_TYPE)
            FN(load_reals)(mat_at(y, r, 0), mat_at(a, r, 0), t.cols, a.type);
        else
            FN(store_reals)(mat_at(y, r, 0), row_in(a, r, buf), t.cols, y.type);
    }
}

void FN(cpu_copy)(Device *d, Mat dst, Mat src)
{
    BUG_ON(dst.rows != src.rows || dst.cols != src.cols);
    Job j = {d, dst, src, {0}};
    pool_run(d->pool, copy_item, &j, work_items(dst));
}

#define ZERO_BLOCK ((int64_t)1 << 20)
typedef struct { char *p; int64_t bytes; } ZeroJob;

static void zero_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const ZeroJob *j = ctx;
    int64_t at = item * ZERO_BLOCK, left = j->bytes - at;
    memset(j->p + at, 0, (size_t)(left < ZERO_BLOCK ? left : ZERO_BLOCK));
}

void FN(cpu_zero)(Device *d, void *p, size_t bytes)
{
    ZeroJob j = {p, (int64_t)bytes};
    pool_run(d->pool, zero_item, &j, (j.bytes + ZERO_BLOCK - 1) / ZERO_BLOCK);
}

static void add_item(void *ctx, int64_t item, int thread)
{
    const Job *j = ctx;
    Work t = work_at(j->y, item);
    Mat ym = mat_cols(j->y, t.c0, t.cols), am = mat_cols(j->a, t.c0, t.cols);
    Mat bm = mat_cols(j->b, t.c0, t.cols);
    REAL *buf0 = FN(row_buf)(j->d, thread, 0), *buf1 = FN(row_buf)(j->d, thread, 1);
    for (int64_t r = t.r0; r < t.r1; r++) {
        const REAL *a = row_in(am, r, buf0), *b = row_in(bm, r, buf1);
        REAL *y = row_out(ym, r, buf0);
        for (int64_t i = 0; i < t.cols; i += VN)
            vput(y + i, vget(a + i, t.cols - i) + vget(b + i, t.cols - i), t.cols - i);
        row_done(ym, r, y);
    }
}

void FN(cpu_add)(Device *d, Mat y, Mat a, Mat b)
{
    BUG_ON(y.rows != a.rows || y.cols != a.cols || y.rows != b.rows || y.cols != b.cols);
    Job j = {d, y, a, b};
    pool_run(d->pool, add_item, &j, work_items(y));
}

static void sum_parts_item(void *ctx, int64_t item, int thread)
{
    const Job *j = ctx;
    Work t = work_at(j->y, item);
    REAL *sum = FN(row_buf)(j->d, thread, 0), *buf = FN(row_buf)(j->d, thread, 1);
    for (int64_t r = t.r0; r < t.r1; r++) {
        for (int64_t at = r; at < j->a.rows; at += j->y.rows) {
            const REAL *a = row_in((Mat){mat_at(j->a, at, t.c0), 1, t.cols, t.cols, j->a.type}, 0, buf);
            for (int64_t i = 0; i < t.cols; i += VN)
                vput(sum + i,
                     at == r ? vget(a + i, t.cols - i) : vget(sum + i, t.cols - i) + vget(a + i, t.cols - i),
                     t.cols - i);
        }
        Mat ym = mat_cols(j->y, t.c0, t.cols);
        REAL *y = row_out(ym, r, buf);
        for (int64_t i = 0; i < t.cols; i += VN)
            vput(y + i, vget(sum + i, t.cols - i), t.cols - i);
        row_done(ym, r, y);
    }
}

void FN(cpu_sum_parts)(Device *d, Mat y, Mat parts)
{
    if (!y.rows)
        return;
    BUG_ON(y.cols != parts.cols || parts.rows % y.rows || y.type != parts.type);
    Job j = {d, y, parts, {0}};
    pool_run(d->pool, sum_parts_item, &j, work_items(y));
}
