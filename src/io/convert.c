/* convert -- F64, F32, BF16 and F16 converted into each other; values that are not finite counted */
#include "convert.h"
#include <string.h>

/* BF16 and F16: a sign bit, _E bits of exponent, _M bits of fraction. */
enum { BF16_E = 8, BF16_M = 7, F16_E = 5, F16_M = 10 };

static uint64_t round_shift(uint64_t m, int shift)
{
    uint64_t q, rest, half;
    if (shift > 54)
        return 0;
    q = m >> shift, rest = m & ((1ull << shift) - 1), half = 1ull << (shift - 1);
    return q + (rest > half || (rest == half && (q & 1)));
}

static uint16_t narrow(double d, int ebits, int mbits)
{
    uint64_t u, m, sign;
    memcpy(&u, &d, 8);
    sign = u >> 63 << (ebits + mbits);
    m = u & ((1ull << 52) - 1);
    int e = (int)(u >> 52 & 0x7ff), top = (1 << ebits) - 1;
    if (e == 0x7ff)         /* a NaN keeps its leading fraction bits and is quiet */
        return (uint16_t)(sign | (uint64_t)top << mbits | (m ? 1ull << (mbits - 1) | m >> (52 - mbits) : 0));
    if (e == 0)             /* below every number of the narrow types */
        return (uint16_t)sign;
    e += (top >> 1) - 1023;
    /* a carry out of the fraction moves the exponent up */
    uint64_t r = e > 0 ? ((uint64_t)e << mbits) + round_shift(m, 52 - mbits)
                       : round_shift(m | 1ull << 52, 52 - mbits + 1 - e);
    uint64_t inf = (uint64_t)top << mbits;
    return (uint16_t)(sign | (r < inf ? r : inf));
}

static double widen(uint16_t h, int ebits, int mbits)
{
    uint64_t sign = (uint64_t)(h >> (ebits + mbits)) << 63, u, m = h & ((1u << mbits) - 1);
    int e = h >> mbits & ((1 << ebits) - 1), top = (1 << ebits) - 1;
    double d;
    if (e == 0) {           /* a subnormal: m units of the smallest one */
        int scale = 1 - (top >> 1) - mbits;
        u = (uint64_t)(scale + 1023) << 52;
        memcpy(&d, &u, 8);
        d *= (double)m;
        return sign ? -d : d;
    }
    u = sign | (e == top ? 0x7ffull : (uint64_t)(e - (top >> 1) + 1023)) << 52 | m << (52 - mbits);
    memcpy(&d, &u, 8);
    return d;
}

#define EACH(TO, FROM, expression)                                                                           \
    do {                                                                                                     \
        TO *y = dst;                                                                                         \
        const FROM *x = src;                                                                                 \
        for (int64_t i = 0; i < n; i++)                                                                      \
            y[i] = (TO)(expression);                                                                         \
    } while (0)

void convert(void *dst, Dtype to, const void *src, Dtype from, int64_t n)
{
    if (to == from) {
        memcpy(dst, src, (size_t)n * dtype_size(to));
        return;
    }
    switch (to << 4 | from) {
    case F64 << 4 | F32:  EACH(double, float, x[i]);                                       break;
    case F64 << 4 | BF16: EACH(double, uint16_t, widen(x[i], BF16_E, BF16_M));             break;
    case F64 << 4 | F16:  EACH(double, uint16_t, widen(x[i], F16_E, F16_M));               break;
    case F32 << 4 | F64:  EACH(float, double, x[i]);                                       break;
    case F32 << 4 | BF16: EACH(uint32_t, uint16_t, (uint32_t)x[i] << 16);                  break;
    case F32 << 4 | F16:  EACH(float, uint16_t, widen(x[i], F16_E, F16_M));                break;
    case BF16 << 4 | F64: EACH(uint16_t, double, narrow(x[i], BF16_E, BF16_M));            break;
    case BF16 << 4 | F32: EACH(uint16_t, float, narrow(x[i], BF16_E, BF16_M));             break;
    case BF16 << 4 | F16: EACH(uint16_t, uint16_t, narrow(widen(x[i], F16_E, F16_M), BF16_E, BF16_M)); break;
    case F16 << 4 | F64:  EACH(uint16_t, double, narrow(x[i], F16_E, F16_M));              break;
    case F16 << 4 | F32:  EACH(uint16_t, float, narrow(x[i], F16_E, F16_M));               break;
    case F16 << 4 | BF16: EACH(uint16_t, uint16_t, narrow(widen(x[i], BF16_E, BF16_M), F16_E, F16_M)); break;
    default:              BUG_ON(to != from);
    }
}

/* Counts elements whose exponent bits are all set: NaN and infinity. */
#define COUNT(word, exponent)                                                                                \
    for (int64_t i = 0; i < n; i++) {                                                                        \
        word w;                                                                                              \
        memcpy(&w, (const char *)src + (size_t)i * sizeof w, sizeof w);                                      \
        count += (w & (exponent)) == (exponent);                                                             \
    }

int64_t convert_count_not_finite(const void *src, Dtype type, int64_t n)
{
    int64_t count = 0;
    switch (type) {
    case F64:  COUNT(uint64_t, 0x7ffull << 52); break;
    case F32:  COUNT(uint32_t, 0xffu << 23); break;
    case BF16: COUNT(uint16_t, 0xffu << BF16_M); break;
    case F16:  COUNT(uint16_t, 0x1fu << F16_M); break;
    default:   break;
    }
    return count;
}
