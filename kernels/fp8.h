/* fp8 -- FP8 to F32 and back: E4M3 has 3 bits of mantissa, bias 7, no infinity and one NaN; E5M2 has 2 bits
 * and is the upper half of an F16. The CPU's functions; a GPU has instructions for them. */
#ifndef FP8_H
#define FP8_H
#include "device.h"
#include "half.h"

/* Largest number of a format. */
static inline float fp8_largest(Fp8Format f) { return f == E4M3 ? 448 : 57344; }
/* Returns the scale that makes a magnitude, finite and above 0, a format's largest number. Below 1e-34 the
 * quotient may be infinite; the scale is then the largest float. */
BOTH_SIDES float fp8_scale(float largest, float magnitude)
{
    const float most = 3.40282346638528859812e38f, scale = largest / magnitude;
    return scale < most ? scale : most;
}

/* ---- scales of blocks: their inverses are 2^(e - 127), or NaN for e 255, as E8M0 stores them ---- */

/* Numbers of a row that have one scale. */
BOTH_SIDES int fp8_across(Fp8Scaling s) { return s == FP8_MX ? 32 : FP8_BLOCK; }
/* Returns e for the least power of two that brings numbers of the largest magnitude `amax` (its bits) into
 * the format; 255 for what is not finite. FP8_MX: at least 0, also for zeros. Else at least 1, so that the
 * inverse is a normal float, and 127 for zeros. 448 is 1.75 x 2^8, 57344 is 1.75 x 2^15. */
BOTH_SIDES int fp8_block_exponent(uint32_t amax, Fp8Format format, Fp8Scaling s)
{
    const int e = (int)(amax >> 23) - (format == E4M3 ? 8 : 15) + ((amax & 0x7fffff) > 0x600000);
    const int least = s == FP8_MX ? 0 : 1;
    if (amax >= 0x7f800000)
        return 255;
    if (amax == 0 && s != FP8_MX)
        return 127;
    return e < least ? least : e;
}
/* The float of these bits. */
BOTH_SIDES float fp8_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}
/* What the numbers of a block are multiplied by: 1 where e is 255. */
BOTH_SIDES float fp8_block_scale(int e) { return fp8_float((uint32_t)(e == 255 ? 127 : 254 - e) << 23); }
/* Its inverse. 2^-127 is below the normal floats. */
BOTH_SIDES float fp8_power(int e)
{
    return fp8_float(e == 255 ? 0x7fc00000 : e == 0 ? 0x00400000 : (uint32_t)e << 23);
}

/* Which of a matrix's scales is that of element (r, c). In a tile of FP8_MX the scales of rows that are 32
 * apart are neighbours, four of each row. */
BOTH_SIDES int64_t fp8_block_at(int64_t pitch, Fp8Scaling s, int64_t r, int64_t c)
{
    const int64_t down = r / FP8_BLOCK, across = c / FP8_BLOCK;
    if (s == FP8_MX)
        return down * pitch + across * FP8_TILE + r % 32 * 16 + r % FP8_BLOCK / 32 * 4 + c % FP8_BLOCK / 32;
    return s == FP8_VECTORS ? across * pitch + r : down * pitch + across;
}
/* Stores an inverse scale. */
BOTH_SIDES void fp8_block_put(void *inverse, int64_t at, Fp8Scaling s, int e)
{
    if (s == FP8_MX)
        ((uint8_t *)inverse)[at] = (uint8_t)e;
    else
        ((float *)inverse)[at] = fp8_power(e);
}
/* 1 / scale of element (r, c) of a matrix with or without blocks. */
BOTH_SIDES float fp8_inverse_at(const void *inverse, int64_t pitch, Fp8Scaling s, int64_t r, int64_t c)
{
    if (s < FP8_VECTORS)
        return *(const float *)inverse;
    const int64_t at = fp8_block_at(pitch, s, r, c);
    return s == FP8_MX ? fp8_power(((const uint8_t *)inverse)[at]) : ((const float *)inverse)[at];
}

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
