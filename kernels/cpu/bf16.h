/* bf16 -- packs panels of BF16 for AMX tiles and vdpbf16ps, which multiply pairs; needs AVX-512.
 *
 * A pair is two neighbours in k in a 32-bit word. A panel is [kn/2][width] pairs; missing lanes and the
 * partner of an odd last k are zeros. */
#ifndef BF16_H
#define BF16_H
#include "cpu.h"
#include <immintrin.h>
#include <string.h>

/* Exchanges the upper h words of every 2h of the first vector of a pair with the lower h of the second. The
 * compiler chooses the shuffles: with their indices in registers it would run out of these. */
typedef int32_t Words __attribute__((vector_size(64)));
INLINE void exchange_words(__m512i v[16], const int h)
{
    const Words lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, upper = (lane & h) != 0;
    const Words low = lane + (upper & (16 - h)), high = lane + (~upper & h) + (upper & 16);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        if (!(i & h)) {
            Words a = (Words)v[i], b = (Words)v[i + h];
            v[i] = (__m512i)__builtin_shuffle(a, b, low);
            v[i + h] = (__m512i)__builtin_shuffle(a, b, high);
        }
}

/* Transposes 16 x 16 words. */
INLINE void transpose_words(__m512i v[16])
{
    exchange_words(v, 8);
    exchange_words(v, 4);
    exchange_words(v, 2);
    exchange_words(v, 1);
}

static inline uint32_t first_bits(int64_t n) { return n >= 32 ? ~0u : n <= 0 ? 0 : (1u << n) - 1; }

/* Loads sixteen lanes by up to 32 of k of a factor with k_step 1: v[lane] = 16 pairs. */
INLINE void load_along_k(__m512i v[16], Factor f, int64_t lanes, int64_t kn)
{
    __mmask32 some = first_bits(kn);
#pragma GCC unroll 16
    for (int l = 0; l < 16; l++)
        v[l] = l < lanes ? _mm512_maskz_loadu_epi16(some, f.p + 2 * l * f.lane_step) : _mm512_setzero_si512();
}

/* Prefetches the same lanes of the next panel, which is `ahead` lanes on: the hardware prefetcher does not
 * follow that many short streams. */
INLINE void prefetch_along_k(Factor f, int ahead)
{
#pragma GCC unroll 16
    for (int l = 0; l < 16; l++)
        __builtin_prefetch(f.p + 2 * (l + ahead) * f.lane_step);
}

/* Loads a pair of k (with kn 1 its second half is 0) of sixteen lanes of a factor with lane_step 1. */
INLINE __m512i load_pair(Factor f, int64_t lanes, int64_t kn)
{
    __mmask16 some = (__mmask16)first_bits(lanes < 16 ? lanes : 16);
    __m256i a = _mm256_maskz_loadu_epi16(some, f.p);
    __m256i b = kn > 1 ? _mm256_maskz_loadu_epi16(some, f.p + 2 * f.k_step) : _mm256_setzero_si256();
    return _mm512_or_si512(_mm512_cvtepu16_epi32(a), _mm512_slli_epi32(_mm512_cvtepu16_epi32(b), 16));
}

/* Loads sixteen pairs of k of sixteen lanes of a factor with lane_step 1: v[pair] = the lanes. */
INLINE void load_across_k(__m512i v[16], Factor f, int64_t lanes, int64_t kn)
{
#pragma GCC unroll 16
    for (int p = 0; p < 16; p++) {
        int64_t left = kn - 2 * p;
        v[p] = left > 0 ? load_pair(factor_at(f, 0, 2 * p), lanes, left) : _mm512_setzero_si512();
    }
}

/* Packs a factor as pairs.
 *   to     out  [pairs][width]  words; pairs is half of kn, rounded up to a multiple of `group`
 *   f      in                   the factor
 *   lanes  in                   lanes of f to pack, at most width
 *   kn     in                   elements of a lane
 *   width  in                   lanes of the panel, a constant at each call */
INLINE void pack_pairs(uint32_t *to, Factor f, int lanes, int64_t kn, int64_t group, const int width)
{
    int64_t pairs = (kn + group - 1) / group * group / 2;
#pragma GCC unroll 4
    for (int l = 0; l < width; l += 16) {
        __mmask16 keep = (__mmask16)first_bits(width - l < 16 ? width - l : 16);
        Factor g = factor_at(f, l, 0);
        if (f.lane_step == 1 && f.k_step != 1)
            for (int64_t p = 0; p < pairs; p++, g = factor_at(g, 0, 2)) {
                __m512i v = 2 * p < kn ? load_pair(g, lanes - l, kn - 2 * p) : _mm512_setzero_si512();
                _mm512_mask_storeu_epi32(to + p * width + l, keep, v);
            }
        else
            for (int64_t p = 0; p < pairs; p += 16, g = factor_at(g, 0, 32)) {
                __m512i v[16];
                load_along_k(v, g, lanes - l, kn - 2 * p);
                prefetch_along_k(g, width);
                transpose_words(v);
#pragma GCC unroll 16
                for (int i = 0; i < 16; i++)
                    if (p + i < pairs)
                        _mm512_mask_storeu_epi32(to + (p + i) * width + l, keep, v[i]);
            }
    }
}
#endif
