/* moments -- an optimizer's moments in 16 and 8 bits (exp_avg_dtype, exp_avg_sq_dtype).
 *
 * BF16 is the upper half of an F32. FP16 and FP8 are numbers with a scale for each block of MOMENT_BLOCK
 * neighbouring elements: a power of two, by which the block's largest magnitude just fits the format, stored
 * as the byte exponent + 127 (0: the block is zero, as cleared memory is). FP8 is E4M3 for the first moment;
 * the second has no sign, and the exponent has that bit: E5M3, whose largest number is 2^34 times its
 * smallest one. NaN is the number with all bits set, and infinity becomes NaN.
 *
 * A number is rounded at random, up or down, so that its mean is the exact one (Gupta et al. 2015,
 * arXiv:1502.02551, sec 3): to nearest a second moment would stay where it is, because a step changes it by
 * 0.001 of itself and half a unit in the last place is 0.002 to 0.06. Element j of a block has the bits of
 * word j % 4 of philox(key, 8 block + j / 4, turn): the lower half for the first moment, the upper half for
 * the second. A second moment above 0 never becomes 0, which would make its element's next step too large.
 *
 * Scales are powers of two. The values of a block that are stored again keep their bits; while the largest
 * number of the block changes, so do those that are not subnormal. FP8 numbers times their scales are BF16
 * numbers, FP16's are F32 numbers: a checkpoint holds these. */
#ifndef MOMENTS_H
#define MOMENTS_H
#include "half.h"

enum { MOMENT_BLOCK = 32 };
/* Order of the options. */
typedef enum { MOMENT_FP32, MOMENT_BF16, MOMENT_FP16, MOMENT_FP8 } MomentType;

/* A number's magnitude in `code` bits: the upper bits of an F32's, less those of the exponents that are not
 * there. Codes below 1 << (23 - shift) are subnormal. */
typedef struct {
    uint8_t shift;  /* bits of an F32's fraction that are missing */
    uint8_t sign;   /* place of the sign; 0: none, of a second moment */
    uint8_t scaled; /* bool: blocks have scales */
    uint32_t low;   /* bits of the smallest normal number as F32 */
    uint32_t most;  /* bits of the largest number as F32 */
    uint32_t nan;   /* code of NaN */
} MomentFormat;

/* second, bool: of the second moment. FP32 has no format. */
BOTH_SIDES MomentFormat moment_format(MomentType type, int second)
{
    const MomentFormat bf16 = {16, 15, 0, 0x00800000, 0x7f7f0000, 0x7fc0},
                       fp16 = {13, 15, 1, 0x38800000, 0x477fe000, 0x7fff},
                       e4m3 = {20, 7, 1, 0x3c800000, 0x43e00000, 0x7f},
                       e5m3 = {20, 0, 1, 0x38800000, 0x47e00000, 0xff};
    MomentFormat f = type == MOMENT_BF16 ? bf16 : type == MOMENT_FP16 ? fp16 : second ? e5m3 : e4m3;
    if (second)
        f.sign = 0;
    return f;
}

/* Bytes of an element. */
BOTH_SIDES int moment_size(MomentType type)
{
    return type == MOMENT_FP32 ? 4 : type == MOMENT_FP8 ? 1 : 2;
}
BOTH_SIDES int moment_scaled(MomentType type)
{
    return type >= MOMENT_FP16;
}

BOTH_SIDES uint32_t moment_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}
BOTH_SIDES float moment_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}

/* The byte of a block's scale.
 *   amax  in  bits of its largest magnitude that is finite */
BOTH_SIDES uint8_t moment_scale(MomentFormat f, uint32_t amax)
{
    /* bits compare as logarithms; the exponent's floor keeps scales, their inverses and numbers normal */
    int32_t e = (int32_t)(amax - f.most + 0x7fffff) >> 23;
    e = e < -102 ? -102 : e;
    return (uint8_t)(amax ? e + 127 : 0);
}
/* What numbers of the block are multiplied by, and its inverse. */
BOTH_SIDES float moment_factor(uint8_t scale)
{
    return moment_float((uint32_t)scale << 23);
}
BOTH_SIDES float moment_inverse(uint8_t scale)
{
    return moment_float((uint32_t)(scale ? 254 - scale : 0) << 23);
}

/* What is added to the bits that go, by 16 random bits. */
BOTH_SIDES uint32_t moment_chance(MomentFormat f, uint32_t random)
{
    return f.shift >= 16 ? random << (f.shift - 16) | 1u << (f.shift - 16) >> 1 : random >> (16 - f.shift);
}

/* The number of a scaled format, or BF16 (inverse 1), that x becomes.
 *   chance   in  moment_chance; UINT32_MAX: to nearest even
 *   inverse  in  moment_inverse of the block's scale */
BOTH_SIDES uint32_t moment_encode(MomentFormat f, float x, float inverse, uint32_t chance)
{
    uint32_t sign = moment_bits(x) >> 31, u = moment_bits(x) & 0x7fffffff, code;
    int finite = u<0x7f800000, above = u> 0;
    if (f.scaled) {
        float y = moment_float(u) * inverse, low = moment_float(f.low);
        /* adding the smallest normal number to a smaller one gives bits whose upper part is the subnormal */
        int subnormal = y < low;
        u = moment_bits(subnormal ? y + low : y) - f.low + (subnormal ? 0 : 1u << 23);
    }
    chance = chance == UINT32_MAX ? (1u << (f.shift - 1)) - 1 + (u >> f.shift & 1) : chance;
    code = (u + chance) >> f.shift;
    code = !f.sign && above && !code ? 1 : code;
    if (!finite)
        code = f.scaled || u > 0x7f800000 ? f.nan : 0x7f80;
    return f.sign ? code | sign << f.sign : code;
}

/* The value of a number before its scale. */
BOTH_SIDES float moment_decode(MomentFormat f, uint32_t code)
{
    uint32_t sign = f.sign ? code >> f.sign : 0, u = f.sign ? code & ((1u << f.sign) - 1) : code;
    float y;
    if (!f.scaled)
        return moment_float(code << 16);
    u = u == f.nan ? 0x7fc00000 : u;
    y = u < 1u << (23 - f.shift) ? moment_float((u << f.shift) + f.low) - moment_float(f.low)
        : u == 0x7fc00000        ? moment_float(u)
                                 : moment_float((u << f.shift) + f.low - (1u << 23));
    return moment_float(moment_bits(y) | sign << 31);
}
#endif
