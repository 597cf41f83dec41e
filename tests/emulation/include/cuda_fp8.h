/* cuda_fp8 -- E4M3 and E5M2 on the host: the part of CUDA's header of this name that kernels use.
 * Micikevicius et al. 2022, "FP8 formats for deep learning", arXiv:2209.05433. */
#ifndef EMULATION_CUDA_FP8_H
#define EMULATION_CUDA_FP8_H
#include <cuda_fp16.h>

typedef unsigned char __nv_fp8_storage_t;
typedef unsigned short __nv_fp8x2_storage_t;
typedef unsigned __nv_fp8x4_storage_t;
typedef enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE } __nv_saturation_t;
typedef enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 } __nv_fp8_interpretation_t;

/* Rounds to nearest even. E4M3 has no infinity: a number that is too large becomes NaN, or the largest
 * number with __NV_SATFINITE. */
static inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float f, __nv_saturation_t saturate,
                                                       __nv_fp8_interpretation_t kind)
{
    int mantissa = kind == __NV_E4M3 ? 3 : 2, bias = kind == __NV_E4M3 ? 7 : 15, e;
    float largest = kind == __NV_E4M3 ? 448 : 57344, a = fabsf(f);
    unsigned sign = signbit(f) ? 0x80u : 0, top = kind == __NV_E4M3 ? 0x7eu : 0x7bu;
    if (f != f)
        return (__nv_fp8_storage_t)0x7f;
    if (a == 0)
        return (__nv_fp8_storage_t)sign;
    if (a == INFINITY)
        return (__nv_fp8_storage_t)(sign | (saturate ? top : kind == __NV_E4M3 ? 0x7fu : 0x7cu));
    frexpf(a, &e);
    e = e - 1 < 1 - bias ? 1 - bias : e - 1;           /* subnormals have the smallest exponent */
    float units = nearbyintf(ldexpf(a, mantissa - e));
    if (ldexpf(units, e - mantissa) > largest)
        return (__nv_fp8_storage_t)(sign | (saturate ? top : kind == __NV_E4M3 ? 0x7fu : 0x7cu));
    /* the leading 1 of a normal number adds 1 to the exponent's field */
    return (__nv_fp8_storage_t)(sign | (((unsigned)(e + bias - 1) << mantissa) + (unsigned)units));
}
static inline float emulation_fp8_to_float(__nv_fp8_storage_t x, __nv_fp8_interpretation_t kind)
{
    int mantissa = kind == __NV_E4M3 ? 3 : 2, bias = kind == __NV_E4M3 ? 7 : 15;
    int field = (x & 0x7f) >> mantissa, m = x & ((1 << mantissa) - 1);
    float sign = x & 0x80 ? -1.0f : 1.0f;
    if (kind == __NV_E4M3 ? (x & 0x7f) == 0x7f : field == 31)
        return kind == __NV_E5M2 && !m ? sign * INFINITY : NAN;
    return sign * ldexpf((float)(field ? m + (1 << mantissa) : m), (field ? field : 1) - bias - mantissa);
}
static inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 f, __nv_saturation_t saturate,
                                                            __nv_fp8_interpretation_t kind)
{
    return (__nv_fp8x2_storage_t)(__nv_cvt_float_to_fp8(f.x, saturate, kind)
                                  | __nv_cvt_float_to_fp8(f.y, saturate, kind) << 8);
}
static inline __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t x, __nv_fp8_interpretation_t kind)
{
    return {emulation_float_to_half(emulation_fp8_to_float(x, kind))};
}

#define EMULATION_FP8(name, kind)                                                                            \
    struct name {                                                                                            \
        __nv_fp8_storage_t __x;                                                                              \
        name() = default;                                                                                    \
        explicit name(float f) : __x(__nv_cvt_float_to_fp8(f, __NV_SATFINITE, kind)) {}                      \
        explicit operator float() const { return emulation_fp8_to_float(__x, kind); }                        \
    };
EMULATION_FP8(__nv_fp8_e4m3, __NV_E4M3)
EMULATION_FP8(__nv_fp8_e5m2, __NV_E5M2)
#undef EMULATION_FP8
#endif
