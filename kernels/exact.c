/* exact -- sums of doubles without rounding, in words of 32 bits */
#include "exact.h"
#include "base.h"
#include <math.h>
#include <string.h>

/* Terms between two carries: a term adds less than 2^32 to a digit, and 2^31 of them fill a word. */
#define CARRY_EVERY ((int64_t)1 << 28)

static void add_one(Exact *s, double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int exponent = (int)(bits >> 52);            /* the sign bit is 0 */
    uint64_t fraction = bits & (((uint64_t)1 << 52) - 1);
    if (exponent >= 0x7ff) {                     /* not finite, or the sign bit is 1 */
        BUG_ON(x < 0);
        s->bad += !(x == 0);
        return;
    }
    if (exponent)
        fraction |= (uint64_t)1 << 52;
    int shift = exponent ? exponent - 1 : 0, at = shift / 32;
    unsigned __int128 wide = (unsigned __int128)fraction << (shift % 32);
    s->digit[at] += (int64_t)(uint32_t)wide;
    s->digit[at + 1] += (int64_t)(uint32_t)(wide >> 32);
    s->digit[at + 2] += (int64_t)(uint32_t)(wide >> 64);
}

void exact_add(Exact *s, const double *x, int64_t n)
{
    exact_carry(s);
    for (int64_t i = 0; i < n; i++) {
        add_one(s, x[i]);
        if (i % CARRY_EVERY == CARRY_EVERY - 1)
            exact_carry(s);
    }
}

void exact_carry(Exact *s)
{
    for (int i = 0; i + 1 < EXACT_DIGITS; i++) {
        s->digit[i + 1] += s->digit[i] >> 32;
        s->digit[i] &= 0xffffffff;
    }
}

double exact_round(const Exact *sum)
{
    Exact s = *sum;
    int top = EXACT_DIGITS - 1, lost = 0;
    if (s.bad)
        return NAN;
    exact_carry(&s);
    while (top >= 0 && !s.digit[top])
        top--;
    if (top < 0)
        return 0;
    /* wide holds the three top digits, which have at least 65 bits; digits below them only break a tie */
    int bits = 32 - __builtin_clz((unsigned)s.digit[top]);
    unsigned __int128 wide = 0;
    for (int k = 0; k < 3; k++)
        wide = wide << 32 | (uint64_t)(top - k >= 0 ? s.digit[top - k] : 0);
    for (int i = top - 3; i >= 0; i--)
        lost |= s.digit[i] != 0;
    int length = 64 + bits;                /* bits of wide */
    int lowest = 32 * (top - 2) - 1074;    /* the lowest bit of wide counts 2^lowest */
    int keep = 53, spare = length - keep;  /* bits of the result, bits to cut off */
    if (lowest + spare < -1074)            /* a subnormal keeps fewer bits */
        spare = -1074 - lowest;
    uint64_t kept = (uint64_t)(wide >> spare);
    unsigned __int128 rest = wide & (((unsigned __int128)1 << spare) - 1),
                      half = (unsigned __int128)1 << (spare - 1);
    kept += rest > half || (rest == half && (lost || (kept & 1)));
    return ldexp((double)kept, lowest + spare);
}
