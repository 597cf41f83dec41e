/* cuda_fp16 -- F16 and pairs of it on the host: the part of CUDA's header of this name that kernels use.
 * Arithmetic is F32's, rounded. */
#ifndef EMULATION_CUDA_FP16_H
#define EMULATION_CUDA_FP16_H
#include <cuda_runtime.h>

struct __half_raw { unsigned short x; };

struct __half {
    unsigned short bits;
    __half() = default;
    __half(float f) : bits(emulation_float_to_half(f)) {}
    __half(double f) : bits(emulation_float_to_half((float)f)) {}
    __half(int f) : bits(emulation_float_to_half((float)f)) {}
    __half(__half_raw r) : bits(r.x) {}
    operator float() const { return emulation_half_to_float(bits); }
    operator __half_raw() const { return {bits}; }
};
struct __align__(4) __half2 {
    __half x, y;
    __half2() = default;
    __half2(__half a, __half b) : x(a), y(b) {}
};
typedef __half half;
typedef __half2 half2;

static inline __half __float2half_rn(float f) { return __half(f); }
static inline float __half2float(__half h) { return h; }
static inline __half2 __floats2half2_rn(float a, float b) { return __half2(a, b); }
static inline __half __ushort_as_half(unsigned short u) { return __half(__half_raw{u}); }
static inline unsigned short __half_as_ushort(__half h) { return h.bits; }
#endif
