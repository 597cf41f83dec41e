/* amx_emulation -- the AMX tile instructions, and the conversion to BF16, in software, to test what uses them
 * on a CPU with no more than AVX-512: include this file first. Each thread has its own tiles; their use
 * without a configuration aborts, where hardware traps. */
#ifndef AMX_EMULATION_H
#define AMX_EMULATION_H
#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local struct {
    int ready;
    uint16_t row_bytes[8];
    uint8_t rows[8], data[8][16][64];
} tile_state;

static void emulate_config(const void *config)
{
    const uint8_t *c = config;
    if (c[0] != 1)
        abort();
    memcpy(tile_state.row_bytes, c + 16, sizeof tile_state.row_bytes);
    memcpy(tile_state.rows, c + 48, sizeof tile_state.rows);
    memset(tile_state.data, 0, sizeof tile_state.data);
    tile_state.ready = 1;
}
static void emulate_release(void) { tile_state.ready = 0; }

static void emulate_check(int t)
{
    if (!tile_state.ready || tile_state.rows[t] > 16 || tile_state.row_bytes[t] > 64)
        abort();
}
static void emulate_zero(int t)
{
    emulate_check(t);
    memset(tile_state.data[t], 0, sizeof tile_state.data[t]);
}
static void emulate_load(int t, const void *from, int64_t stride)
{
    emulate_check(t);
    for (int r = 0; r < tile_state.rows[t]; r++)
        memcpy(tile_state.data[t][r], (const char *)from + r * stride, tile_state.row_bytes[t]);
}
static void emulate_store(int t, void *to, int64_t stride)
{
    emulate_check(t);
    for (int r = 0; r < tile_state.rows[t]; r++)
        memcpy((char *)to + r * stride, tile_state.data[t][r], tile_state.row_bytes[t]);
}
static float emulate_bf16(const uint8_t *p)
{
    uint8_t wide[4] = {0, 0, p[0], p[1]};
    float f;
    memcpy(&f, wide, sizeof f);
    return f;
}
/* Tiles: c [m][n] F32 += a [m][k] b [k][n], where an element of a and b is a pair of BF16; k in order. */
static void emulate_dot(int c, int a, int b)
{
    emulate_check(a), emulate_check(b), emulate_check(c);
    for (int m = 0; m < tile_state.rows[c]; m++)
        for (int k = 0; k < tile_state.row_bytes[a] / 4; k++)
            for (int n = 0; n < tile_state.row_bytes[c] / 4; n++) {
                const uint8_t *x = tile_state.data[a][m] + 4 * k, *y = tile_state.data[b][k] + 4 * n;
                float sum;
                memcpy(&sum, tile_state.data[c][m] + 4 * n, sizeof sum);
                sum += emulate_bf16(x) * emulate_bf16(y) + emulate_bf16(x + 2) * emulate_bf16(y + 2);
                memcpy(tile_state.data[c][m] + 4 * n, &sum, sizeof sum);
            }
}

/* The upper half of the nearest F32 with zeros below it; denormals are 0. */
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl")
static inline __m512i emulate_halves(__m512 x)
{
    __m512i i = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(i, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(i, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __m512i half = _mm512_srli_epi32(up, 16);
    half = _mm512_mask_or_epi32(half, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), _mm512_srli_epi32(i, 16),
                                _mm512_set1_epi32(0x40));
    return _mm512_mask_and_epi32(half, _mm512_testn_epi32_mask(i, _mm512_set1_epi32(0x7f800000)), half,
                                 _mm512_set1_epi32(0x8000));
}
static inline __m256i emulate_to_bf16(__m512 x) { return _mm512_cvtepi32_epi16(emulate_halves(x)); }
static inline __m512i emulate_two_to_bf16(__m512 high, __m512 low)
{
    __m512i v = _mm512_castsi256_si512(emulate_to_bf16(low));
    return _mm512_inserti64x4(v, emulate_to_bf16(high), 1);
}
#pragma GCC pop_options

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_stream_loadd
#undef _tile_dpbf16ps
#define _tile_loadconfig emulate_config
#define _tile_release emulate_release
#define _tile_zero emulate_zero
#define _tile_loadd emulate_load
#define _tile_stream_loadd emulate_load
#define _tile_stored emulate_store
#define _tile_dpbf16ps emulate_dot
#define _mm512_cvtneps_pbh emulate_to_bf16
#define _mm512_cvtne2ps_pbh emulate_two_to_bf16
#endif
