/* common -- what the row-wise and elementwise kernels share: 16-byte pieces of storage, reductions in a
 * fixed order, division by a constant of the launch, Philox.
 *
 * Storage is float, bf16 or f16; arithmetic is float. A kernel that reads storage has two versions: one
 * for 16-byte pieces (Piece), where every pointer and every distance between rows is a multiple of 16
 * bytes, and one element by element. */
#ifndef COMMON_CUH
#define COMMON_CUH
#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>
#include "cuda.h"
#include "half.h"
#include <launch.cuh>

typedef __nv_bfloat16 Bf16;
typedef __half Half;

template <class T> struct DtypeOf;
template <> struct DtypeOf<float> { enum { value = F32 }; };
template <> struct DtypeOf<Bf16> { enum { value = BF16 }; };
template <> struct DtypeOf<Half> { enum { value = F16 }; };

/* Calls run(T{}), where T is the C++ type of storage type t. */
template <class Run> static inline void with_type(Dtype t, Run run)
{
    switch (t) {
    case F32: run(float()); return;
    case BF16: run(Bf16()); return;
    case F16: run(Half()); return;
    default: BUG_ON("a GPU stores F32, BF16 and F16");
    }
}

/* ---- one element ---- */

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(Bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(Half x) { return __half2float(x); }
__device__ __forceinline__ void from_float(float *p, float x) { *p = x; }
__device__ __forceinline__ void from_float(Bf16 *p, float x) { *p = __float2bfloat16_rn(x); }
__device__ __forceinline__ void from_float(Half *p, float x) { *p = __float2half_rn(x); }

/* ---- 16 bytes ---- */

__device__ __forceinline__ uint32_t float_bits(float x) { return __float_as_uint(x); }
__device__ __forceinline__ float bits_float(uint32_t x) { return __uint_as_float(x); }

/* Two elements of a 16-bit type are a word, the first one in the low half. */
__device__ __forceinline__ void unpack(float *f, uint32_t w, Bf16)
{
    f[0] = bits_float(w << 16);
    f[1] = bits_float(w & 0xffff0000u);
}
__device__ __forceinline__ void unpack(float *f, uint32_t w, Half)
{
    __half_raw low, high;
    low.x = (unsigned short)w;
    high.x = (unsigned short)(w >> 16);
    f[0] = __half2float(Half(low));
    f[1] = __half2float(Half(high));
}
/* One instruction rounds a pair. */
__device__ __forceinline__ uint32_t pack(float a, float b, Bf16)
{
    __nv_bfloat162 h = __floats2bfloat162_rn(a, b);
    uint32_t w;
    memcpy(&w, &h, sizeof w);
    return w;
}
__device__ __forceinline__ uint32_t pack(float a, float b, Half)
{
    __half2 h = __floats2half2_rn(a, b);
    uint32_t w;
    memcpy(&w, &h, sizeof w);
    return w;
}

/* 16 bytes, N elements, in their storage type: half as many registers as floats where T has 16 bits. */
template <class T> struct Piece {
    enum { N = 16 / sizeof(T) };
    uint4 raw;

    __device__ __forceinline__ void load(const T *p) { raw = *reinterpret_cast<const uint4 *>(p); }
    __device__ __forceinline__ void store(T *p) const { *reinterpret_cast<uint4 *>(p) = raw; }
    __device__ __forceinline__ void store_whole(T *p) const { __stwb(reinterpret_cast<uint4 *>(p), raw); }
    __device__ __forceinline__ void clear() { raw.x = raw.y = raw.z = raw.w = 0; }
    __device__ __forceinline__ void get(float *f) const
    {
        unpack(f, raw.x, T());
        unpack(f + 2, raw.y, T());
        unpack(f + 4, raw.z, T());
        unpack(f + 6, raw.w, T());
    }
    __device__ __forceinline__ void set(const float *f)
    {
        raw.x = pack(f[0], f[1], T());
        raw.y = pack(f[2], f[3], T());
        raw.z = pack(f[4], f[5], T());
        raw.w = pack(f[6], f[7], T());
    }
};
template <> __device__ __forceinline__ void Piece<float>::get(float *f) const
{
    f[0] = bits_float(raw.x), f[1] = bits_float(raw.y), f[2] = bits_float(raw.z), f[3] = bits_float(raw.w);
}
template <> __device__ __forceinline__ void Piece<float>::set(const float *f)
{
    raw.x = float_bits(f[0]), raw.y = float_bits(f[1]), raw.z = float_bits(f[2]), raw.w = float_bits(f[3]);
}

/* What one access loads or stores: a piece, or with N = 1 an element. */
template <class T, int N> struct Chunk : Piece<T> {
    static_assert(N == Piece<T>::N, "a piece or an element");
};
template <class T> struct Chunk<T, 1> {
    T x;
    __device__ __forceinline__ void load(const T *p) { x = *p; }
    __device__ __forceinline__ void get(float *f) const { f[0] = to_float(x); }
    __device__ __forceinline__ void set(const float *f) { from_float(&x, f[0]); }
    __device__ __forceinline__ void store(T *p) const { *p = x; }
    __device__ __forceinline__ void store_whole(T *p) const { *p = x; }
};

/* Load or store N elements of any storage type as floats; N is 1 or a multiple of Piece<T>::N. */
template <int N, class T> __device__ __forceinline__ void get_floats(float *f, const T *p)
{
    enum { STEP = N == 1 ? 1 : Piece<T>::N };
    Chunk<T, STEP> v;
#pragma unroll
    for (int i = 0; i < N; i += STEP) {
        v.load(p + i);
        v.get(f + i);
    }
}
template <int N, class T> __device__ __forceinline__ void put_floats(T *p, const float *f)
{
    enum { STEP = N == 1 ? 1 : Piece<T>::N };
    Chunk<T, STEP> v;
#pragma unroll
    for (int i = 0; i < N; i += STEP) {
        v.set(f + i);
        v.store(p + i);
    }
}
/* put_floats to global memory, for places where nvcc splits the store of a piece into four of 4 bytes: seen
 * where an address is another one's plus a distance that only the launch knows (tests/cuda/cuda_sass.sh). */
template <int N, class T> __device__ __forceinline__ void put_whole(T *p, const float *f)
{
    Chunk<T, N> v;
    v.set(f);
    v.store_whole(p);
}

/* Whether p, or each row of m, can be accessed in 16-byte pieces; 1 for an absent matrix. */
static inline int aligned(const void *p) { return (uintptr_t)p % 16 == 0; }
static inline int aligned(Mat m)
{
    return !m.p || (aligned(m.p) && (size_t)m.ld * dtype_size(m.type) % 16 == 0);
}

/* Whether a gradient may be of type t where storage is of type `storage`. */
static inline int is_gradient(Dtype t, Dtype storage) { return t == F32 || (t == BF16 && storage == BF16); }

/* ---- reductions ---- */

enum { WARP = 32 };
static const unsigned EVERY_LANE = 0xffffffffu;

/* Sums over groups of `lanes` neighbouring lanes, a power of two. Every lane gets the same bits, because
 * a + b = b + a. */
__device__ __forceinline__ float warp_sum(float x, int lanes = WARP)
{
    for (int o = lanes / 2; o; o >>= 1)
        x += __shfl_xor_sync(EVERY_LANE, x, o);
    return x;
}
__device__ __forceinline__ double warp_sum(double x)
{
    for (int o = WARP / 2; o; o >>= 1)
        x += __shfl_xor_sync(EVERY_LANE, x, o);
    return x;
}

/* Sum over a block of up to 32 whole warps; has one barrier.
 *   slot  out  [32]  shared memory that nothing else uses until the next barrier */
template <class T> __device__ __forceinline__ T block_sum(T x, T *slot)
{
    int lane = (int)threadIdx.x % WARP, warps = (int)blockDim.x / WARP;
    x = warp_sum(x);
    if (lane == 0)
        slot[threadIdx.x / WARP] = x;
    __syncthreads();
    return warp_sum(lane < warps ? slot[lane] : (T)0);
}

/* ---- whole numbers ---- */

/* n / d for 0 <= n < 2^31 by a multiplication: Granlund, Montgomery 1994, "Division by invariant
 * integers using multiplication", sec 4 (with N = 31 the multiplier fits 32 bits). */
struct Divider { uint32_t d, multiplier, shift; };
static inline Divider divider(int64_t d)
{
    BUG_ON(d < 1 || d >= (int64_t)1 << 31);
    uint32_t bits = 0;
    while (((int64_t)1 << bits) < d)
        bits++;
    Divider v = {(uint32_t)d, (uint32_t)((((uint64_t)1 << (31 + bits)) + (uint64_t)d - 1) / (uint64_t)d),
                 bits};
    return v;
}
__device__ __forceinline__ uint32_t operator/(uint32_t n, Divider v)
{
    return (uint32_t)((uint64_t)n * v.multiplier >> 31 >> v.shift);
}

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Returns n as the size of a one-dimensional grid, which has fewer than 2^31 blocks. */
static inline unsigned blocks_of(int64_t n)
{
    BUG_ON(n < 1 || n >= (int64_t)1 << 31);
    return (unsigned)n;
}

/* ---- random numbers ---- */

/* philox of base.h: c is the counter (counter_lo in c[0], c[1]) and becomes the random words. */
__device__ __forceinline__ void device_philox(uint32_t c[4], uint64_t key)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
#pragma unroll
    for (int i = 0; i < 10; i++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c[0], p1 = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t c1 = c[1], c3 = c[3];
        c[0] = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c[1] = (uint32_t)p1;
        c[2] = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c[3] = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

/* A Dropout (device.h) as kernels take it. The masks are those of kernels/cpu/isa/isa.h. */
struct Drop {
    const int64_t *sample;
    uint64_t key;
    int64_t col0, row0;
    Divider seq;               /* rows of a sample */
    uint32_t start[2], first;  /* positions of rows 0 and `first` of a sample; others follow the one before */
    uint32_t limit;            /* p * 2^32: an element is kept if its random word is at least this */
    float keep;                /* 1 / (1 - p): what a kept element is multiplied by */
    float jitter;              /* factors are uniform in [1 - jitter, 1 + jitter) */
    int on;                    /* bool: p > 0 or jitter > 0 */
};
static inline Drop drop_of(const Dropout *s)
{
    BUG_ON(!(s->p >= 0 && s->p < 1 && s->jitter >= 0 && s->p * s->jitter == 0));
    const int on = s->p > 0 || s->jitter > 0;
    const Positions none = positions_one(0, 1), *r = on ? s->runs : &none;
    const PositionRun *last = &r->run[r->count - 1];
    BUG_ON(r->count > 2);
    Drop d = {s->sample, s->key, s->col0, s->row0, divider(r->stride),
              {(uint32_t)r->run[0].start, (uint32_t)last->start}, (uint32_t)last->row,
              (uint32_t)fmin(ceil(s->p * 4294967296.0), 4294967295.0), (float)(1 / (1 - s->p)),
              (float)s->jitter, on};
    return d;
}
/* What the masks of a row are drawn from. */
struct DropRow { uint32_t position; uint64_t sample; };
__device__ __forceinline__ DropRow drop_row(const Drop &d, uint32_t row)
{
    uint32_t r = (uint32_t)d.row0 + row, b = r / d.seq;
    uint32_t i = r - b * d.seq.d;
    DropRow at = {i < d.first ? d.start[0] + i : d.start[1] + (i - d.first), (uint64_t)d.sample[b]};
    return at;
}
/* What an element with the random word w is multiplied by. JITTER: d may have jitter. */
template <int JITTER> __device__ __forceinline__ float drop_factor(const Drop &d, uint32_t w)
{
    if (JITTER && d.jitter > 0)
        return 1 + d.jitter * ((float)(w >> 8) * 0x1p-23f - 1);
    return w >= d.limit ? d.keep : 0;
}
/* x[i] *= the factor of column col + i. N and col0 + col are multiples of 4, or N = 1. */
template <int N, int JITTER = 0>
__device__ __forceinline__ void drop(float *x, const Drop &d, DropRow at, uint32_t col)
{
    uint32_t column = (uint32_t)d.col0 + col;
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        uint32_t c[4] = {(column + i) / 4, at.position, (uint32_t)at.sample, (uint32_t)(at.sample >> 32)};
        device_philox(c, d.key);
        if (N == 1) {
            uint32_t w = column % 4;
            w = w < 2 ? w ? c[1] : c[0] : w == 2 ? c[2] : c[3];
            x[0] *= drop_factor<JITTER>(d, w);
        } else {
#pragma unroll
            for (int k = 0; k < 4; k++)
                x[(i + k) % N] *= drop_factor<JITTER>(d, c[k]);
        }
    }
}
#endif
