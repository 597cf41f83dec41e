/* exact -- sums of doubles that >= 0 without any rounding, so that their bits depend neither on the order nor
 * on who adds what: the order-independent half of a norm over ranks.
 *
 * A sum is a number in base 2^32 whose digits stand in int64 words, lowest first: digit i counts 2^(32 i -
 * 1074), so the smallest subnormal is 1 and 2^1024 is digit 65. The upper half of a word takes the carries of
 * 2^31 additions. Words of two sums add up like integers, which is how a sum over ranks is one all_reduce of
 * I64. After Kulisch's long accumulator ("Computer Arithmetic and Validity", 2nd ed. 2013, sec 8.3) without
 * its sign. */
#ifndef EXACT_H
#define EXACT_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

#define EXACT_DIGITS 68
typedef struct {
    int64_t digit[EXACT_DIGITS];
    int64_t bad;                /* how many terms were not finite; they are in no digit */
} Exact;
#define EXACT_WORDS (EXACT_DIGITS + 1)

/* s += x[0] + .. + x[n-1], none negative. Carries by itself often enough. */
void exact_add(Exact *s, const double *x, int64_t n);

/* Moves carries up, so that every digit is below 2^32: before words of several sums are added, fewer than
 * 2^31 of them. */
void exact_carry(Exact *s);

/* The sum, rounded once to nearest even; infinite above the largest double; NAN when a term was not finite.
 */
double exact_round(const Exact *s);
#ifdef __cplusplus
}
#endif
#endif
