/* cuda_runtime -- the part of CUDA's C++ that kernels use, as C++ of the host: see emulation.h. C sees the
 * runtime alone. */
#ifndef EMULATION_CUDA_RUNTIME_H
#define EMULATION_CUDA_RUNTIME_H
#include <cuda_runtime_api.h>
#ifdef __cplusplus
#include <emulation.h>
#include <math.h>
#include <string.h>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __constant__ const
#define __shared__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define warpSize 32

/* ---- vector types ---- */
#define EMULATION_VECTOR(t, name, a2, a4)                                                                    \
    struct name##1 { t x; };                                                                                 \
    struct __attribute__((aligned(a2))) name##2 { t x, y; };                                                 \
    struct name##3 { t x, y, z; };                                                                           \
    struct __attribute__((aligned(a4))) name##4 { t x, y, z, w; };                                           \
    static inline name##2 make_##name##2(t x, t y) { return {x, y}; }                                        \
    static inline name##3 make_##name##3(t x, t y, t z) { return {x, y, z}; }                                \
    static inline name##4 make_##name##4(t x, t y, t z, t w) { return {x, y, z, w}; }
EMULATION_VECTOR(signed char, char, 2, 4)
EMULATION_VECTOR(unsigned char, uchar, 2, 4)
EMULATION_VECTOR(short, short, 4, 8)
EMULATION_VECTOR(unsigned short, ushort, 4, 8)
EMULATION_VECTOR(int, int, 8, 16)
EMULATION_VECTOR(unsigned, uint, 8, 16)
EMULATION_VECTOR(long long, longlong, 16, 16)
EMULATION_VECTOR(unsigned long long, ulonglong, 16, 16)
EMULATION_VECTOR(float, float, 8, 16)
EMULATION_VECTOR(double, double, 16, 16)
#undef EMULATION_VECTOR

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

/* ---- barriers and warp operations ---- */
#define EMULATION_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define EMULATION_BARRIER(wait)                                                                              \
    do {                                                                                                     \
        static int emulation_state;                                                                          \
        if (emulation_site(&emulation_state, "barrier", __FILE__, __LINE__))                                 \
            wait;                                                                                            \
    } while (0)
#define __syncthreads() EMULATION_BARRIER(emulation_barrier(__FILE__, __LINE__))
#define __syncwarp(...) EMULATION_BARRIER(emulation_sync_warp(__FILE__, __LINE__, ##__VA_ARGS__))

static inline void emulation_sync_warp(const char *file, int line, unsigned mask = ~0u)
{
    unsigned present;
    emulation_meet(mask, nullptr, 0, &present, "__syncwarp", file, line);
}

/* Value of lane `from` in a shuffle. */
template <class T> static inline T emulation_shuffle(unsigned mask, const T &v, int from, const char *what,
                                                     const char *file, int line)
{
    static_assert(sizeof(T) <= 8, "a shuffle moves 4 or 8 bytes");
    unsigned present;
    const char *all = emulation_meet(mask, &v, sizeof v, &present, what, file, line);
    if (!(present >> from & 1))
        emulation_fail("%s:%d: %s reads lane %d, which is not there (present %08x)", file, line, what, from,
                       present);
    T r;
    memcpy(static_cast<void *>(&r), all + (size_t)from * sizeof v, sizeof v);
    return r;
}
static inline int emulation_lane(void) { return emulation_thread() & 31; }
template <class T> static inline T __shfl_sync(unsigned mask, T v, int lane, int width = 32, EMULATION_PLACE)
{
    return emulation_shuffle(mask, v, (emulation_lane() & ~(width - 1)) | (lane & (width - 1)), "__shfl_sync",
                             file, line);
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T v, int bits, int width = 32, EMULATION_PLACE)
{
    int lane = emulation_lane(), from = lane ^ bits;
    if (from / width > lane / width)
        from = lane;
    return emulation_shuffle(mask, v, from, "__shfl_xor_sync", file, line);
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32, EMULATION_PLACE)
{
    int lane = emulation_lane(), from = lane + (int)by;
    if (from / width != lane / width)
        from = lane;
    return emulation_shuffle(mask, v, from, "__shfl_down_sync", file, line);
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32, EMULATION_PLACE)
{
    int lane = emulation_lane(), from = lane - (int)by;
    if (from < 0 || from / width != lane / width)
        from = lane;
    return emulation_shuffle(mask, v, from, "__shfl_up_sync", file, line);
}
static inline unsigned __ballot_sync(unsigned mask, int predicate, EMULATION_PLACE)
{
    unsigned present, r = 0;
    int yes = predicate != 0;
    const char *all = emulation_meet(mask, &yes, sizeof yes, &present, "__ballot_sync", file, line);
    for (int i = 0; i < 32; i++) {
        memcpy(&yes, all + (size_t)i * sizeof yes, sizeof yes);
        r |= (unsigned)((present >> i & 1) && yes) << i;
    }
    return r;
}
static inline int __any_sync(unsigned mask, int predicate, EMULATION_PLACE)
{
    return __ballot_sync(mask, predicate, file, line) != 0;
}
static inline int __all_sync(unsigned mask, int predicate, EMULATION_PLACE)
{
    return __ballot_sync(mask, !predicate, file, line) == 0;
}

/* ---- atomics: one thread runs at a time ---- */
#define EMULATION_ATOMIC __attribute__((no_sanitize_thread)) static inline
template <class T> EMULATION_ATOMIC T emulation_atomic(T *p, T v)
{
    emulation_touch(p, sizeof *p, 1, 1);
    T old = *p;
    *p = v;
    return old;
}
EMULATION_ATOMIC int atomicAdd(int *p, int v)
{
    return emulation_atomic(p, (int)((unsigned)*p + (unsigned)v));
}
EMULATION_ATOMIC unsigned atomicAdd(unsigned *p, unsigned v) { return emulation_atomic(p, *p + v); }
EMULATION_ATOMIC unsigned long long atomicAdd(unsigned long long *p, unsigned long long v)
{
    return emulation_atomic(p, *p + v);
}
EMULATION_ATOMIC int atomicMax(int *p, int v) { return emulation_atomic(p, *p > v ? *p : v); }
EMULATION_ATOMIC unsigned atomicMax(unsigned *p, unsigned v) { return emulation_atomic(p, *p > v ? *p : v); }
EMULATION_ATOMIC int atomicMin(int *p, int v) { return emulation_atomic(p, *p < v ? *p : v); }
EMULATION_ATOMIC unsigned atomicMin(unsigned *p, unsigned v) { return emulation_atomic(p, *p < v ? *p : v); }
EMULATION_ATOMIC int atomicOr(int *p, int v) { return emulation_atomic(p, *p | v); }
EMULATION_ATOMIC unsigned atomicOr(unsigned *p, unsigned v) { return emulation_atomic(p, *p | v); }
EMULATION_ATOMIC int atomicExch(int *p, int v) { return emulation_atomic(p, v); }
EMULATION_ATOMIC unsigned atomicExch(unsigned *p, unsigned v) { return emulation_atomic(p, v); }
EMULATION_ATOMIC int atomicCAS(int *p, int was, int v) { return emulation_atomic(p, *p == was ? v : *p); }
EMULATION_ATOMIC unsigned atomicCAS(unsigned *p, unsigned was, unsigned v)
{
    return emulation_atomic(p, *p == was ? v : *p);
}
EMULATION_ATOMIC unsigned long long atomicCAS(unsigned long long *p, unsigned long long was,
                                           unsigned long long v)
{
    return emulation_atomic(p, *p == was ? v : *p);
}
/* Counts from 0 to `top`, then from 0 again. */
EMULATION_ATOMIC unsigned atomicInc(unsigned *p, unsigned top)
{
    return emulation_atomic(p, *p >= top ? 0 : *p + 1);
}
static inline void __threadfence(void) {}
static inline void __threadfence_block(void) {}
[[noreturn]] static inline void __trap(void) { emulation_fail("a kernel called __trap"); }

/* ---- arithmetic ---- */
template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline void __stwb(T *p, T x) { *p = x; }
template <class T> static inline T __ldcs(const T *p) { return *p; }
template <class T> static inline T __ldcg(const T *p) { return *p; }
template <class T> static inline void __stcs(T *p, T v) { *p = v; }
template <class T> static inline void __stcg(T *p, T v) { *p = v; }
template <class A, class B> static inline typename std::common_type<A, B>::type min(A a, B b)
{
    return b < a ? b : a;
}
template <class A, class B> static inline typename std::common_type<A, B>::type max(A a, B b)
{
    return a < b ? b : a;
}

template <class To, class From> static inline To emulation_bits(From x)
{
    static_assert(sizeof(To) == sizeof(From), "");
    To y;
    memcpy(&y, &x, sizeof y);
    return y;
}
static inline unsigned __float_as_uint(float x) { return emulation_bits<unsigned>(x); }
static inline int __float_as_int(float x) { return emulation_bits<int>(x); }
static inline float __uint_as_float(unsigned x) { return emulation_bits<float>(x); }
static inline float __int_as_float(int x) { return emulation_bits<float>(x); }
static inline long long __double_as_longlong(double x) { return emulation_bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return emulation_bits<double>(x); }

static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s)
{
    uint64_t both = (uint64_t)b << 32 | a;
    unsigned r = 0;
    for (int i = 0; i < 4; i++)
        r |= (unsigned)(both >> (s >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return r;
}

/* the C library declares these names itself */
#define __expf(x) expf(x)
#define __exp2f(x) exp2f(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanhf(x) tanhf(x)
#define __powf(x, y) powf(x, y)
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __frcp_rn(float x) { return 1 / x; }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1) : 0; }
/* the C library of C23 has functions of these names */
static inline float emulation_rsqrtf(float x) { return 1 / sqrtf(x); }
static inline double emulation_rsqrt(double x) { return 1 / sqrt(x); }
#define rsqrtf emulation_rsqrtf
#define rsqrt emulation_rsqrt
/* Operations that round once and are never fused with a neighbour. */
#define EMULATION_ROUNDED(t, name, op)                                                                       \
    static inline t name(t a, t b)                                                                           \
    {                                                                                                        \
        t r = a op b;                                                                                        \
        __asm__("" : "+m"(r));                                                                               \
        return r;                                                                                            \
    }
EMULATION_ROUNDED(float, __fadd_rn, +)
EMULATION_ROUNDED(float, __fsub_rn, -)
EMULATION_ROUNDED(float, __fmul_rn, *)
EMULATION_ROUNDED(double, __dadd_rn, +)
EMULATION_ROUNDED(double, __dsub_rn, -)
EMULATION_ROUNDED(double, __dmul_rn, *)
#undef EMULATION_ROUNDED
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline double __dsqrt_rn(double x) { return sqrt(x); }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline int __float2int_rn(float x) { return (int)nearbyintf(x); }
static inline int __float2int_rd(float x) { return (int)floorf(x); }
static inline float __int2float_rn(int x) { return (float)x; }
static inline float __uint2float_rn(unsigned x) { return (float)x; }
static inline float __double2float_rn(double x) { return (float)x; }

/* ---- functions of the C++ interface alone ---- */
cudaError_t emulation_shared_limit(const void *kernel, cudaFuncAttribute which, int value);
template <class... P>
static inline cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute which, int value)
{
    return emulation_shared_limit(reinterpret_cast<const void *>(kernel), which, value);
}
template <class... P>
static inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void (*)(P...),
                                                                        int threads, size_t shared)
{
    int by_threads = 2048 / (threads ? threads : 1),
        by_shared = shared ? (int)(EMULATION_SHARED / (shared + 1024)) : 32;
    *blocks = min(min(by_threads, by_shared), 32);
    return cudaSuccess;
}
template <class T> static inline cudaError_t cudaMalloc(T **p, size_t bytes)
{
    return cudaMalloc(reinterpret_cast<void **>(p), bytes);
}
template <class T> static inline cudaError_t cudaMallocHost(T **p, size_t bytes)
{
    return cudaMallocHost(reinterpret_cast<void **>(p), bytes);
}
#endif
#endif
