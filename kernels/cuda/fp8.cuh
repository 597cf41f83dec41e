/* fp8 -- numbers of FP8 on the way from registers to rows and to transposed rows; fp8.cu and fp8_norm.cu use
 * them */
#ifndef FP8_CUH
#define FP8_CUH
#include "common.cuh"
#include "fp8.h"
#include <cuda_fp8.h>

/* with_type for the types that are cast to FP8. */
template <class F> static inline void with_sixteen(Dtype t, F run)
{
    switch (t) {
    case BF16: run(Bf16()); return;
    case F16: run(Half()); return;
    default: BUG_ON("FP8 is cast from BF16 and F16");
    }
}

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

/* Returns the largest m of a block, in thread 0.
 *   slot  out  [32]  shared memory, which may be in use until the call */
__device__ __forceinline__ uint32_t block_largest(uint32_t m, uint32_t *slot)
{
    int lane = (int)threadIdx.x % WARP;
    for (int o = WARP / 2; o; o >>= 1) {
        uint32_t other = __shfl_xor_sync(EVERY_LANE, m, o);
        m = other > m ? other : m;
    }
    __syncthreads();
    if (lane == 0)
        slot[threadIdx.x / WARP] = m;
    __syncthreads();
    for (int i = 1; i < (int)blockDim.x / WARP && threadIdx.x == 0; i++)
        m = slot[i] > m ? slot[i] : m;
    return m;
}

/* *amax = the larger of *amax and the block's largest m. */
__device__ __forceinline__ void note_largest(uint32_t *amax, uint32_t m, uint32_t *slot)
{
    m = block_largest(m, slot);
    if (threadIdx.x == 0)
        atomicMax(amax, m);
}

/* x as it would be if it were stored. */
template <class T> __device__ __forceinline__ float rounded(float x)
{
    T stored;
    from_float(&stored, x);
    return to_float(stored);
}

/* Rounds four neighbours to FP8, the first in the low byte. */
template <Fp8Format F> __device__ __forceinline__ uint32_t cast_four(const float *f, float scale)
{
    uint32_t word = 0;
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
        float2 pair = {f[k] * scale, f[k + 1] * scale};
        word |= (uint32_t)__nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, Format<F>::kind) << (k * 8);
    }
    return word;
}

/* Stores eight numbers as FP8 in a tile's row, and in y. */
template <Fp8Format F>
__device__ __forceinline__ void cast_eight(unsigned char *tile, unsigned char *y, const float *f, float scale)
{
    const uint32_t word[2] = {cast_four<F>(f, scale), cast_four<F>(f + 4, scale)};
    if (y) {
        uint2 both = {word[0], word[1]};
        *(uint2 *)y = both;
    }
    *(uint32_t *)tile = word[0];
    *(uint32_t *)(tile + 4) = word[1];
}

/* Stores 16 numbers of a column of a tile, whose rows are `pitch` bytes apart, in a row of yt. */
__device__ __forceinline__ void turn_sixteen(unsigned char *yt, const unsigned char *tile, int pitch)
{
    uint32_t word[4] = {0, 0, 0, 0};
#pragma unroll
    for (int k = 0; k < 16; k++)
        word[k / 4] |= (uint32_t)tile[k * pitch] << (k % 4 * 8);
    uint4 all = {word[0], word[1], word[2], word[3]};
    *(uint4 *)yt = all;
}
#endif
