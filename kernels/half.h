/* half -- BF16 and F16 to F32 and back. */
#ifndef HALF_H
#define HALF_H
#include <stdint.h>
#include <string.h>

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
    memcpy(&f, &(uint32_t){u + (113u << 23)}, 4);          /* a subnormal is 2^-14 (1 + m) - 2^-14 */
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
#endif
