/* fp8 -- casts matrices to E4M3 and E5M2 with one scale each (Micikevicius et al. 2022,
 * arXiv:2209.05433).
 *
 * cuBLASLt multiplies FP8 along rows only, so one pass over a matrix writes it as it is, transposed, or
 * both. The largest magnitude is an integer maximum of bits, which is exact in any order. */
#include "common.cuh"
#include <cuda_fp8.h>

extern __shared__ __align__(16) char shared[];

enum { THREADS = 256, TILE = 64, EIGHT = 8, PITCH = TILE + 4, AMAX_BLOCKS = 1024 };
static_assert(TILE * TILE == THREADS * 16, "a thread writes 16 bytes of a transposed tile");

template <Fp8Format F> struct Format;
template <> struct Format<E4M3> {
    static constexpr float largest = 448;
    static const __nv_fp8_interpretation_t kind = __NV_E4M3;
};
template <> struct Format<E5M2> {
    static constexpr float largest = 57344;
    static const __nv_fp8_interpretation_t kind = __NV_E5M2;
};

__device__ __forceinline__ uint32_t largest_bits(uint32_t m, float x)
{
    uint32_t b = float_bits(x) & 0x7fffffffu;
    return b > m ? b : m;
}

/* Returns the largest m of a block, in thread 0. */
__device__ __forceinline__ uint32_t block_largest(uint32_t m)
{
    uint32_t *slot = (uint32_t *)shared;
    int lane = (int)threadIdx.x % WARP;
    for (int o = WARP / 2; o; o >>= 1) {
        uint32_t other = __shfl_xor_sync(EVERY_LANE, m, o);
        m = other > m ? other : m;
    }
    __syncthreads();           /* all have read the tile, which is in the same memory */
    if (lane == 0)
        slot[threadIdx.x / WARP] = m;
    __syncthreads();
    for (int i = 1; i < THREADS / WARP && threadIdx.x == 0; i++)
        m = slot[i] > m ? slot[i] : m;
    return m;
}

/* *amax = the larger of *amax and the block's largest m. */
__device__ __forceinline__ void note_largest(uint32_t *amax, uint32_t m)
{
    m = block_largest(m);
    if (threadIdx.x == 0)
        atomicMax(amax, m);
}

/* Loads eight neighbours as floats; x is a multiple of eight elements. */
template <class T> __device__ __forceinline__ void load_eight(float *f, const T *x)
{
    get_floats<EIGHT>(f, x);
}

template <class T> __global__ void __launch_bounds__(THREADS)
k_fp8_amax(Fp8Scale *s, const T *x, int64_t rows, int64_t eights, int64_t ld)
{
    uint32_t m = 0;
    const int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x; i < rows * eights; i += step) {
        float f[EIGHT];
        load_eight(f, x + i / eights * ld + i % eights * EIGHT);
#pragma unroll
        for (int k = 0; k < EIGHT; k++)
            m = largest_bits(m, f[k]);
    }
    note_largest(&s->amax, m);
}

/* Returns the scale for a largest magnitude: it becomes the format's largest number. 1 for 0 and not
 * finite. */
__device__ __forceinline__ float scale_for(uint32_t amax, float largest)
{
    return amax == 0 || amax >= 0x7f800000u ? 1.0f : largest / bits_float(amax);
}

/* Casts one tile a block: tile (blockIdx.x / column tiles, blockIdx.x % column tiles). If x is not
 * finite, the scale of its products becomes NaN, because E4M3 has no infinity.
 *   y      out     [rows, cols]  or NULL; cols is a multiple of 16
 *   yt     out     [cols, padded]  or NULL; padded: fp8_padded(rows)
 *   s      in/out                the scale
 *   found  in                    bool: s->amax is x's, and sets the scale; else s->scale is used, or 1 */
template <class T, Fp8Format F>
__global__ void __launch_bounds__(THREADS)
    k_fp8_cast(unsigned char *y, unsigned char *yt, const T *x, int64_t rows, int64_t padded,
               int64_t cols, int64_t ld, Fp8Scale *s, int found)
{
    unsigned char *tile = (unsigned char *)shared;         /* [TILE][PITCH] */
    const int64_t across = (cols + TILE - 1) / TILE;
    const int64_t row0 = blockIdx.x / across * TILE, col0 = blockIdx.x % across * TILE;
    const uint32_t amax = found ? s->amax : 0;
    const float scale = found ? scale_for(amax, Format<F>::largest) : s->scale > 0 ? s->scale : 1.0f;
    const int c = (int)threadIdx.x % (TILE / EIGHT) * EIGHT;
    uint32_t m = 0;
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        s->largest = Format<F>::largest;
        s->inverse = amax >= 0x7f800000u ? bits_float(0x7fffffffu) : 1 / scale;
        if (found)
            s->seen = amax > s->seen ? amax : s->seen;
    }
    for (int r = (int)threadIdx.x / (TILE / EIGHT); r < TILE; r += THREADS / (TILE / EIGHT)) {
        float f[EIGHT];
        uint32_t word[2] = {0, 0};
        if (row0 + r >= padded || col0 + c >= cols)
            continue;
        for (int k = 0; k < EIGHT; k++)
            f[k] = 0;
        if (row0 + r < rows)
            load_eight(f, x + (row0 + r) * ld + col0 + c);
#pragma unroll
        for (int k = 0; k < EIGHT; k += 2) {
            float2 pair = {f[k] * scale, f[k + 1] * scale};
            m = largest_bits(largest_bits(m, f[k]), f[k + 1]);
            word[k / 4] |= (uint32_t)__nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, Format<F>::kind)
                           << (k % 4 * 8);
        }
        if (y && row0 + r < rows) {
            uint2 both = {word[0], word[1]};
            *(uint2 *)(y + (row0 + r) * cols + col0 + c) = both;
        }
        *(uint32_t *)(tile + r * PITCH + c) = word[0];
        *(uint32_t *)(tile + r * PITCH + c + 4) = word[1];
    }
    if (yt) {
        __syncthreads();
        const int column = (int)threadIdx.x / 4, first = (int)threadIdx.x % 4 * 16;
        if (col0 + column < cols && row0 + first < padded) {
            uint32_t word[4] = {0, 0, 0, 0};
#pragma unroll
            for (int k = 0; k < 16; k++)
                word[k / 4] |= (uint32_t)tile[(first + k) * PITCH + column] << (k % 4 * 8);
            uint4 all = {word[0], word[1], word[2], word[3]};
            *(uint4 *)(yt + (col0 + column) * padded + row0 + first) = all;
        }
    }
    if (!found)
        note_largest(&s->seen, m);
}

template <class T, Fp8Format F>
static void cast(Device *d, void *y, void *yt, Mat x, Fp8Scale *s, int found)
{
    int64_t tiles = ceil_div(x.rows, TILE) * ceil_div(x.cols, TILE);
    LAUNCH((k_fp8_cast<T, F>), blocks_of(tiles), THREADS, TILE * PITCH, cuda_stream(d), (unsigned char *)y,
           (unsigned char *)yt, (const T *)x.p, x.rows, fp8_padded(x.rows), x.cols, x.ld, s, found);
}

void cuda_fp8_cast(Device *d, void *y, void *yt, Mat x, Fp8Scale *s, Fp8Format format, int delayed)
{
    const Cuda *c = cuda_of(d);
    if (10 * c->major + c->minor < 89)
        die(EXIT_CONFIG, "fp8",
            "%s multiplies no FP8: it is of compute capability %d.%d, and that begins with 8.9; change: fp8: "
            "none, or a newer GPU",
            c->gpu, c->major, c->minor);
    BUG_ON(x.cols % 16 || !aligned(x) || !aligned(y) || !aligned(yt));
    BUG_ON(x.type != BF16 && x.type != F16);
    if (!x.rows || !x.cols)
        return;
    if (!delayed)
        d->zero(d, &s->amax, sizeof s->amax);
    with_type(x.type, [&](auto t) {
        typedef decltype(t) T;
        int64_t eights = x.cols / EIGHT, blocks = ceil_div(x.rows * eights, THREADS);
        if (!delayed)
            LAUNCH((k_fp8_amax<T>), blocks_of(blocks < AMAX_BLOCKS ? blocks : (int64_t)AMAX_BLOCKS), THREADS,
                   THREADS / WARP * sizeof(uint32_t), c->compute, s, (const T *)x.p, x.rows, eights, x.ld);
        if (format == E4M3)
            cast<T, E4M3>(d, y, yt, x, s, !delayed);
        else
            cast<T, E5M2>(d, y, yt, x, s, !delayed);
    });
}

/* fp8_next; a block a scale. */
__global__ void __launch_bounds__(THREADS) k_fp8_next(Fp8Scale *all, int length)
{
    enum { EACH = FP8_HISTORY / THREADS };
    Fp8Scale *s = &all[blockIdx.x];
    const int t = (int)threadIdx.x;
    float kept[EACH];
    uint32_t top = s->seen;
    if (s->largest == 0)
        return;
    for (int k = 0; k < EACH; k++) {
        int i = k * THREADS + t;
        kept[k] = s->history[i];
        if (i + 1 < length && float_bits(kept[k]) > top)
            top = float_bits(kept[k]);
    }
    top = block_largest(top);      /* has a barrier: all threads have read the history */
    for (int k = 0; k < EACH; k++)
        if (k * THREADS + t + 1 < FP8_HISTORY)
            s->history[k * THREADS + t + 1] = kept[k];
    if (t == 0) {
        s->history[0] = bits_float(s->seen);
        s->seen = 0;
        if (top > 0 && top < 0x7f800000u)
            s->scale = s->largest / bits_float(top);
    }
}

void cuda_fp8_next(Device *d, Fp8Scale *s, int64_t n, int64_t length, int most_recent)
{
    BUG_ON(length < 1 || length > FP8_HISTORY);
    if (n)
        LAUNCH(k_fp8_next, blocks_of(n), THREADS, THREADS / WARP * sizeof(uint32_t), cuda_stream(d), s,
               most_recent ? 1 : (int)length);
}
