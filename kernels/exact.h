/* exact -- sums of doubles that are not negative, without rounding. The bits of a sum depend neither on
 * the order of its terms nor on which rank adds which term. Norms over ranks use it.
 *
 * A sum is a number in base 2^32 whose digits are int64 words, lowest first. Digit i counts 2^(32 i -
 * 1074), so the smallest subnormal is 1 in digit 0, and 2^1024 is in digit 65. The upper half of a word
 * holds the carries of 2^31 additions. Words of two sums add up as integers, so a sum over ranks is one
 * all_reduce of I64. After Kulisch's long accumulator ("Computer Arithmetic and Validity", 2nd ed. 2013,
 * sec 8.3), without sign. */
#ifndef EXACT_H
#define EXACT_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

#define EXACT_DIGITS 68
typedef struct {
    int64_t digit[EXACT_DIGITS];
    int64_t bad;                /* number of terms that were not finite; these are in no digit */
} Exact;
#define EXACT_WORDS (EXACT_DIGITS + 1)

/* s += x[0] + .. + x[n-1]; no x is negative. Calls exact_carry as often as the digits need it. */
void exact_add(Exact *s, const double *x, int64_t n);

/* Moves carries up, so that every digit is below 2^32. Must be called before the words of several sums,
 * fewer than 2^31 of them, are added. */
void exact_carry(Exact *s);

/* Returns the sum, rounded once to nearest even: infinite above the largest double, NAN when a term was
 * not finite. */
double exact_round(const Exact *s);
#ifdef __cplusplus
}
#endif
#endif
