/* fp8 -- FP8 to F32 and back: E4M3 has 3 bits of mantissa, bias 7, no infinity and one NaN; E5M2 has 2 bits
 * and is the upper half of an F16. The CPU's functions; a GPU has instructions for them. */
#ifndef FP8_H
#define FP8_H
#include "device.h"
#include "half.h"

/* Largest number of a format. */
static inline float fp8_largest(Fp8Format f) { return f == E4M3 ? 448 : 57344; }

/* Returns the inverse scale of a block: the least power of two that brings numbers of the largest magnitude
 * `amax` (its bits) into the format, at least 2^-126, so that the scale is a float, too. 1 for 0; NaN for
 * what is not finite. 448 is 1.75 x 2^8, 57344 is 1.75 x 2^15. */
BOTH_SIDES float fp8_block_inverse(uint32_t amax, Fp8Format format)
{
    const int32_t exponent =
        (int32_t)(amax >> 23) - (format == E4M3 ? 8 : 15) + ((amax & 0x7fffff) > 0x600000);
    uint32_t u = (uint32_t)(exponent < 1 ? 1 : exponent) << 23;
    float f;
    u = amax == 0 ? 0x3f800000 : amax >= 0x7f800000 ? 0x7fc00000 : u;
    memcpy(&f, &u, 4);
    return f;
}
/* The scale that belongs to it: 1 for NaN. */
BOTH_SIDES float fp8_block_scale(float inverse) { return inverse > 0 ? 1 / inverse : 1; }

static inline float fp8_to_f32(uint8_t x, Fp8Format format)
{
    if (format == E5M2)
        return f16_to_f32((uint16_t)(x << 8));
    uint32_t u = (uint32_t)(x & 0x7f) << 20, sign = (uint32_t)(x & 0x80) << 24, small = u + (121u << 23);
    float f;
    memcpy(&f, &small, 4);
    f -= 0x1p-6f;                      /* a subnormal is 2^-6 (1 + m) - 2^-6 */
    memcpy(&small, &f, 4);
    u = u < 0x00800000 ? small : u == 0x07f00000 ? 0x7fc00000 : u + (120u << 23);
    u |= sign;
    memcpy(&f, &u, 4);
    return f;
}

/* Rounds to nearest even. What is too large, and infinity, becomes the largest number; NaN stays NaN. It
 * works on bits, so that no compiler joins the caller's multiplication with the addition here. */
static inline uint8_t fp8_from_f32(float x, Fp8Format format)
{
    const int shift = format == E4M3 ? 20 : 21;                  /* bits that F32's mantissa has more */
    const uint32_t bias = format == E4M3 ? 120 : 112;            /* F32's bias less the format's */
    const uint32_t top = format == E4M3 ? 0x43e00000 : 0x47600000;
    const float unit = format == E4M3 ? 0x1p14f : 0x1p7f;        /* its last place is that of subnormals */
    uint32_t u, sign, small, place, code;
    float f;
    memcpy(&u, &x, 4);
    sign = u >> 24 & 0x80;
    u &= 0x7fffffff;
    uint32_t nan = u > 0x7f800000;
    u = u > top ? top : u;
    memcpy(&f, &u, 4);
    f += unit;                         /* the addition rounds to the last place of subnormals */
    memcpy(&small, &f, 4);
    memcpy(&place, &unit, 4);
    code = (u - (bias << 23) + (1u << (shift - 1)) - 1 + (u >> shift & 1)) >> shift;
    code = u < (bias + 1) << 23 ? small - place : code;
    return (uint8_t)(sign | (nan ? 0x7f : code));
}
#endif
