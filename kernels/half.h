/* half -- BF16 and F16 to F32 and back; F32 masters as a BF16 weight and the 16 bits that it lacks. */
#ifndef HALF_H
#define HALF_H
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define BOTH_SIDES static __host__ __device__ __forceinline__
#else
#define BOTH_SIDES static inline
#endif

/* Each function converts one element. To BF16 and F16 it rounds to nearest even; NaN stays NaN. */
static inline float bf16_to_f32(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline uint16_t f32_to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
/* F16 is converted by its bits: some compilers make a library call of each _Float16 conversion, and some
 * CPUs have no such type. */
static inline float f16_to_f32(uint16_t h)
{
    uint32_t u = (uint32_t)(h & 0x7fff) << 13, sign = (uint32_t)(h & 0x8000) << 16, small;
    float f;
    small = u + (113u << 23);                              /* a subnormal is 2^-14 (1 + m) - 2^-14 */
    memcpy(&f, &small, 4);
    f -= 0x1p-14f;
    memcpy(&small, &f, 4);
    u = u >= 0x0f800000 ? u + (224u << 23) : u >= 0x00800000 ? u + (112u << 23) : small;
    u |= sign;
    memcpy(&f, &u, 4);
    return f;
}
static inline uint16_t f32_to_f16(float f)
{
    uint32_t u, sign, small, h;
    memcpy(&u, &f, 4);
    sign = u >> 16 & 0x8000;
    u &= 0x7fffffff;
    memcpy(&f, &u, 4);
    f += 0.5f;             /* 0.5 has the last place of F16's subnormals: the addition rounds to it */
    memcpy(&small, &f, 4);
    h = (u - (112u << 23) + 0xfff + (u >> 13 & 1)) >> 13;
    h = u < 0x38800000 ? small - 0x3f000000 : u >= 0x47800000 ? 0x7c00 : h;
    h = u > 0x7f800000 ? 0x7e00 | (u >> 13 & 0x3ff) : h;
    return (uint16_t)(h | sign);
}

/* A master in 32 bits that include its weight: the weight is the master rounded to BF16, ties away from zero,
 * and the remainder is the lower half of the master's bits as a whole number with a sign. To round so is to
 * add half a unit to the bits, so bits = weight * 2^16 + remainder: no bit of the master is lost. Ties to
 * even would not do: an even weight then has 2^16 + 1 masters, one more than there are remainders. A NaN
 * becomes the quiet NaN of its sign. The form of Transformer Engine's store_param_remainders. */
BOTH_SIDES uint32_t master_bits(float master)
{
    uint32_t u;
    memcpy(&u, &master, 4);
    return (u & 0x7fffffff) > 0x7f800000 ? (u & 0x80000000) | 0x7fc00000 : u;
}
BOTH_SIDES uint16_t master_weight(float master) { return (uint16_t)((master_bits(master) + 0x8000) >> 16); }
BOTH_SIDES int16_t master_rest(float master) { return (int16_t)(uint16_t)master_bits(master); }
BOTH_SIDES float master_join(uint16_t weight, int16_t rest)
{
    uint32_t u = ((uint32_t)weight << 16) + (uint32_t)(int32_t)rest;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
#endif
