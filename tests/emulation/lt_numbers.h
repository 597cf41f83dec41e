/* lt_numbers -- the element types of the emulated cuBLASLt, by arithmetic on their bits and with no type of
 * the headers that the kernels use. Rounds to nearest even; FP8 saturates (Micikevicius et al. 2022,
 * arXiv:2209.05433, sec 3). */
#ifndef EMULATION_LT_NUMBERS_H
#define EMULATION_LT_NUMBERS_H
#include <library_types.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

static inline size_t type_bytes(cudaDataType t)
{
    return t == CUDA_R_32F ? 4 : t == CUDA_R_8F_E4M3 || t == CUDA_R_8F_E5M2 ? 1 : 2;
}

static inline float float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
static inline uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

/* Value of a number of 1 sign, e exponent and m mantissa bits. ieee: as IEEE has it (E5M2, F16); otherwise
 * without infinities (E4M3). */
static inline float small_get(uint32_t u, int e, int m, int ieee)
{
    int bias = (1 << (e - 1)) - 1, x = (int)(u >> m & ((1u << e) - 1)), f = (int)(u & ((1u << m) - 1));
    float y;
    if (ieee && x == (1 << e) - 1)
        y = f ? NAN : INFINITY;
    else if (!ieee && x == (1 << e) - 1 && f == (1 << m) - 1)
        y = NAN;
    else
        y = ldexpf((float)(x ? f + (1 << m) : f), (x ? x : 1) - bias - m);
    return u >> (e + m) & 1 ? -y : y;
}
/* Bits of v in such a type. saturate: v above the largest number becomes the largest number, not
 * infinity. */
static inline uint32_t small_put(float v, int e, int m, int ieee, int saturate)
{
    int bias = (1 << (e - 1)) - 1, exponent;
    uint32_t sign = (bits_of(v) >> 31) << (e + m), top = (1u << (e + m)) - 1 - (ieee ? 1u << m : 1u);
    float a = fabsf(v), largest = small_get(top, e, m, ieee);
    if (isnan(v))
        return sign | ((1u << (e + m)) - 1);
    if (a == 0)
        return sign;
    frexpf(a, &exponent);                          /* a = f 2^exponent, f in [1/2, 1) */
    int unit = (exponent - 1 < 1 - bias ? 1 - bias : exponent - 1) - m;
    float steps = nearbyintf(ldexpf(a, -unit)), r = isinf(a) ? a : ldexpf(steps, unit);
    if (r > largest)
        return sign | (saturate ? top : top + 1);
    frexpf(r, &exponent);
    if (r == 0 || exponent - 1 < 1 - bias)
        return sign | (uint32_t)ldexpf(r, bias - 1 + m);
    return sign | ((uint32_t)(exponent - 1 + bias) << m)
           | ((uint32_t)ldexpf(r, m - (exponent - 1)) - (1u << m));
}

static inline float type_get(const void *p, int64_t i, cudaDataType t)
{
    if (t == CUDA_R_32F)
        return ((const float *)p)[i];
    if (t == CUDA_R_16BF)
        return float_of((uint32_t)((const uint16_t *)p)[i] << 16);
    if (t == CUDA_R_16F)
        return small_get(((const uint16_t *)p)[i], 5, 10, 1);
    const uint8_t u = ((const uint8_t *)p)[i];
    return t == CUDA_R_8F_E4M3 ? small_get(u, 4, 3, 0) : small_get(u, 5, 2, 1);
}
static inline void type_put(void *p, int64_t i, cudaDataType t, float v)
{
    if (t == CUDA_R_32F) {
        ((float *)p)[i] = v;
    } else if (t == CUDA_R_16BF) {
        uint32_t u = bits_of(v);
        ((uint16_t *)p)[i] = (uint16_t)(isnan(v) ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16);
    } else if (t == CUDA_R_16F) {
        ((uint16_t *)p)[i] = (uint16_t)small_put(v, 5, 10, 1, 0);
    } else {
        ((uint8_t *)p)[i] =
            (uint8_t)(t == CUDA_R_8F_E4M3 ? small_put(v, 4, 3, 0, 1) : small_put(v, 5, 2, 1, 1));
    }
}
#endif
