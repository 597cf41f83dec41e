/* bf16dot -- products of BF16 by AVX512-BF16. vdpbf16ps adds the two products of a pair (bf16.h) to an
 * F32. It rounds to nearest even after each of the two and takes denormals for zero. */
#include "bf16.h"
#include "cpu.h"

#define MR 14
#define NR 32
#define KC 512

/* GemmKernel.tile for a constant number of rows: c [MR][NR] floats, a [kn/2][MR] pairs, b [kn/2][NR]
 * pairs. */
INLINE void tile_rows(const int rows, int64_t kn, const uint32_t *restrict a, const uint32_t *restrict b,
                      float *restrict c, int add)
{
    __m512 acc[MR][2];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
        acc[r][0] = acc[r][1] = _mm512_setzero_ps();
    for (int64_t k = 0; k < kn; k += 2, a += MR, b += NR) {
        __m512bh b0 = (__m512bh)_mm512_loadu_si512(b), b1 = (__m512bh)_mm512_loadu_si512(b + 16);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            __m512bh x = (__m512bh)_mm512_set1_epi32((int)a[r]);
            acc[r][0] = _mm512_dpbf16_ps(acc[r][0], x, b0);
            acc[r][1] = _mm512_dpbf16_ps(acc[r][1], x, b1);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++, c += NR)
        for (int v = 0; v < 2; v++) {
            __m512 old = add ? _mm512_loadu_ps(c + 16 * v) : _mm512_setzero_ps();
            _mm512_storeu_ps(c + 16 * v, old + acc[r][v]);
        }
}

static void tile(int64_t kn, const void *a, int64_t step, const void *b, void *c, int rows, int add,
                 const Soon *soon)
{
    (void)step, (void)soon;
    switch (rows) {
#define ROWS(n) case n: tile_rows(n, kn, a, b, c, add); break;
    ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6) ROWS(7)
    ROWS(8) ROWS(9) ROWS(10) ROWS(11) ROWS(12) ROWS(13) ROWS(14)
    }
}

/* part + sixteen lanes by `pairs` pairs of k, transposed in registers. */
INLINE __m512 row_block(__m512 part, const char *a, Factor b, int64_t lanes, int64_t kn, int64_t pairs)
{
    uint32_t pair[16];
    __m512i t[16];
    _mm512_storeu_si512(pair, _mm512_maskz_loadu_epi16(first_bits(kn), a));
    load_along_k(t, b, lanes, kn);
    transpose_words(t);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        if (i < pairs)
            part = _mm512_dpbf16_ps(part, (__m512bh)_mm512_set1_epi32((int)pair[i]), (__m512bh)t[i]);
    return part;
}

/* GemmKernel.row: sixteen lanes from end to end, which is what prefetchers follow, and then the next ones. */
static void row(int64_t kn, Factor a, Factor b, int cols, void *tile)
{
    for (int l = 0; l < cols; l += 16) {
        __m512 sum = _mm512_setzero_ps();
        for (int64_t k0 = 0; k0 < kn; k0 += KC) {
            int64_t k = k0, k1 = k0 + KC < kn ? k0 + KC : kn;
            __m512 part = _mm512_setzero_ps();
            for (; cols - l >= 16 && k + 32 <= k1; k += 32) {
#pragma GCC unroll 16
                for (int i = 0; i < 16; i++)
                    __builtin_prefetch(factor_at(b, l + 16 + i, k).p, 0, 2);      /* to L2, see gemm_real.c */
                part = row_block(part, a.p + 2 * k, factor_at(b, l, k), 16, 32, 16);
            }
            for (; k < k1; k += 32)
                part = row_block(part, a.p + 2 * k, factor_at(b, l, k), cols - l, k1 - k, (k1 - k + 1) / 2);
            sum = k0 ? _mm512_add_ps(sum, part) : part;
        }
        _mm512_storeu_ps((float *)tile + l, sum);
    }
}

static void pack_a(void *panel, Factor f, int lanes, int64_t kn) { pack_pairs(panel, f, lanes, kn, 2, MR); }
static void pack_b(void *panel, Factor f, int lanes, int64_t kn) { pack_pairs(panel, f, lanes, kn, 2, NR); }

const GemmKernel bf16dot_kernel = {
    .name = "avx512_bf16", .size = sizeof(uint16_t),
    .mr = MR, .nr = NR, .group = 2, .kc = KC, .mc = MR * 8, .strip = 256 << 10,
    .pack_a = pack_a, .pack_b = pack_b, .tile = tile, .row = row, .finish = gemm_finish_avx512_f32,
};
