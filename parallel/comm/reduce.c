/* reduce -- sums, maxima and minima of arrays, in the best instruction set of this CPU */
#include "reduce.h"
#include "half.h"
#include <string.h>

/* Compiles a function for three instruction sets; one is chosen when the program starts. Additions and
 * conversions give the same bits in all of them. */
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif

#define BLOCK 1024             /* elements: two blocks of the widest type stay in the first-level cache */

#define JOIN_SUM(a, x) ((a) + (x))
#define JOIN_MAX(a, x) ((x) > (a) || (x) != (x) ? (x) : (a))
#define JOIN_MIN(a, x) ((x) < (a) || (x) != (x) ? (x) : (a))

#define EACH(join)                                                                                           \
    for (int64_t i = 0; i < n; i++)                                                                          \
        dst[i] = join(a[i], b[i]);                                                                           \
    break

/* pair_TYPE: dst = a op b; dst may be a or b */
#define PAIR(type, name)                                                                                     \
    CLONES static void pair_##name(type *dst, const type *a, const type *b, int64_t n, ReduceOp op)          \
    {                                                                                                        \
        switch (op) {                                                                                        \
        case OP_SUM: EACH(JOIN_SUM);                                                                         \
        case OP_MAX: EACH(JOIN_MAX);                                                                         \
        case OP_MIN: EACH(JOIN_MIN);                                                                         \
        }                                                                                                    \
    }
PAIR(double, f64)
PAIR(float, f32)
PAIR(int64_t, i64)
PAIR(int32_t, i32)

static void pair(void *dst, const void *a, const void *b, int64_t n, Dtype type, ReduceOp op)
{
    switch (type) {
    case F64: pair_f64(dst, a, b, n, op); break;
    case F32: pair_f32(dst, a, b, n, op); break;
    case I64: pair_i64(dst, a, b, n, op); break;
    case I32: pair_i32(dst, a, b, n, op); break;
    default: BUG_ON("no arithmetic in this type");
    }
}

#define CONVERT(name, To, From, of_bf16, of_f16)                                                             \
    CLONES static void name(To *dst, const From *src, int64_t n, Dtype type)                                 \
    {                                                                                                        \
        if (type == BF16)                                                                                    \
            for (int64_t i = 0; i < n; i++)                                                                  \
                dst[i] = of_bf16(src[i]);                                                                    \
        else                                                                                                 \
            for (int64_t i = 0; i < n; i++)                                                                  \
                dst[i] = of_f16(src[i]);                                                                     \
    }
CONVERT(widen, float, uint16_t, bf16_to_f32, f16_to_f32)
CONVERT(narrow, uint16_t, float, f32_to_bf16, f32_to_f16)

/* Sums of two 16-bit arrays, the most frequent case, in one pass. */
#define PAIR_SUM(name, widen_one, narrow_one)                                                                \
    CLONES static void name(uint16_t *dst, const uint16_t *a, const uint16_t *b, int64_t n)                  \
    {                                                                                                        \
        for (int64_t i = 0; i < n; i++)                                                                      \
            dst[i] = narrow_one(widen_one(a[i]) + widen_one(b[i]));                                          \
    }
PAIR_SUM(pair_sum_bf16, bf16_to_f32, f32_to_bf16)
PAIR_SUM(pair_sum_f16, f16_to_f32, f32_to_f16)

/* n <= BLOCK elements of src in the type of partial results: converted into buf, or src itself. */
static const void *load(const void *src, Dtype type, int64_t n, float *buf)
{
    if (reduce_partial(type) == type)
        return src;
    widen(buf, src, n, type);
    return buf;
}

/* Reduces elements [at, at + n), n <= BLOCK. */
static void reduce_block(char *dst, Dtype dst_type, const char *const *src, Dtype src_type, int m, int64_t at,
                         int64_t n, ReduceOp op)
{
    _Alignas(64) double sum[BLOCK], wide[BLOCK];
    Dtype part = reduce_partial(src_type);
    size_t skip = (size_t)at * dtype_size(src_type);
    void *out = dst + (size_t)at * dtype_size(dst_type);
    int same = dst_type == part;
    const void *first = load(src[0] + skip, src_type, n, (float *)sum);
    for (int k = 1; k < m; k++) {
        /* dst may be a source, so it is written when all sources have been read */
        void *to = same && k == m - 1 ? out : sum;
        pair(to, first, load(src[k] + skip, src_type, n, (float *)wide), n, part, op);
        first = to;
    }
    if (!same)
        narrow(out, first, n, dst_type);
    else if (first != out)
        memmove(out, first, (size_t)n * dtype_size(part));
}

void reduce_arrays(void *dst, Dtype dst_type, const void *const *src, Dtype src_type, int m, int64_t n,
                   ReduceOp op)
{
    BUG_ON(m < 1 || reduce_partial(dst_type) != reduce_partial(src_type));
    if (m == 2 && dst_type == src_type && reduce_partial(src_type) == src_type) {
        pair(dst, src[0], src[1], n, src_type, op);
        return;
    }
    if (m == 2 && dst_type == src_type && op == OP_SUM) {
        (dst_type == BF16 ? pair_sum_bf16 : pair_sum_f16)(dst, src[0], src[1], n);
        return;
    }
    for (int64_t at = 0; at < n; at += BLOCK)
        reduce_block(dst, dst_type, (const char *const *)src, src_type, m, at,
                     n - at < BLOCK ? n - at : BLOCK, op);
}
