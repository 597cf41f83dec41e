/* cuda_bf16 -- BF16 and pairs of it on the host: the part of CUDA's header of this name that kernels use.
 * Arithmetic is F32's, rounded. */
#ifndef EMULATION_CUDA_BF16_H
#define EMULATION_CUDA_BF16_H
#include <cuda_runtime.h>

struct __nv_bfloat16_raw { unsigned short x; };

struct __nv_bfloat16 {
    unsigned short bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(float f) : bits(emulation_float_to_bf16(f)) {}
    __nv_bfloat16(double f) : bits(emulation_float_to_bf16((float)f)) {}
    __nv_bfloat16(int f) : bits(emulation_float_to_bf16((float)f)) {}
    __nv_bfloat16(__nv_bfloat16_raw r) : bits(r.x) {}
    operator float() const { return emulation_bf16_to_float(bits); }
    operator __nv_bfloat16_raw() const { return {bits}; }
};
struct __align__(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
    __nv_bfloat162() = default;
    __nv_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) : x(a), y(b) {}
};
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

static inline __nv_bfloat16 __float2bfloat16_rn(float f) { return __nv_bfloat16(f); }
static inline float __bfloat162float(__nv_bfloat16 h) { return h; }
static inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return __nv_bfloat162(a, b); }
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short u)
{
    return __nv_bfloat16(__nv_bfloat16_raw{u});
}
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 h) { return h.bits; }
#endif
