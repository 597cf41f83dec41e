/* normals -- standard normal numbers by counter, a block at a time. The loops are plain C that the compiler
 * turns into vectors, once for each instruction set; nothing is contracted to fused multiply-adds, so the
 * numbers have the same bits on all of them. */
#include "base.h"
#include <math.h>
#include <string.h>

#define BLOCK 64                 /* pairs of normals made at a time */
#if defined __x86_64__ && !defined __clang__ && __GNUC__ >= 12
#define EACH_ISA __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define EACH_ISA
#endif

static inline double real_of(uint64_t bits) { double x; memcpy(&x, &bits, sizeof x); return x; }
static inline uint64_t bits_of(double x) { uint64_t bits; memcpy(&bits, &x, sizeof bits); return bits; }
/* 53 bits of two random words, a whole number */
static inline double whole(uint32_t high, uint32_t low) { return high * 0x1p21 + (low >> 11); }

/* -2 ln u for u in [2^-53, 1]: u is m 2^e with m in [1/sqrt 2, sqrt 2), and ln m = 2 artanh s with
 * s = (m - 1) / (m + 1), |s| < 0.172. What the series leaves out is below 1e-17. */
static inline double minus_two_log(double u)
{
    uint64_t up = bits_of(u) + 0x00095f619980c433;       /* carries into the exponent from sqrt 2 on */
    double e = real_of(0x4330000000000000 | up >> 52) - (0x1p52 + 1023);       /* by the bits of 2^52 + n */
    double m = real_of(bits_of(u) - ((up >> 52) - 1023) * 0x0010000000000000);
    double s = (m - 1) / (m + 1), z = s * s, p = 1 / 21.;
    p = p * z + 1 / 19.;
    p = p * z + 1 / 17.;
    p = p * z + 1 / 15.;
    p = p * z + 1 / 13.;
    p = p * z + 1 / 11.;
    p = p * z + 1 / 9.;
    p = p * z + 1 / 7.;
    p = p * z + 1 / 5.;
    p = p * z + 1 / 3.;
    return -2 * (e * 0.693147180559945309417 + (2 * s + 2 * s * (z * p)));
}

/* Cosine and sine of 2 pi t, t in [0, 1): the nearest quarter of a turn, and Taylor's series of the rest. */
static inline void turn(double t, double *cosine, double *sine)
{
    double q = (4 * t + 0x1.8p52) - 0x1.8p52, x = (t - q / 4) * 6.283185307179586476925, z = x * x;
    double s = 1 / 355687428096000., c = -1 / 6402373705728000.;
    s = s * z - 1 / 1307674368000.;
    c = c * z + 1 / 20922789888000.;
    s = s * z + 1 / 6227020800.;
    c = c * z - 1 / 87178291200.;
    s = s * z - 1 / 39916800.;
    c = c * z + 1 / 479001600.;
    s = s * z + 1 / 362880.;
    c = c * z - 1 / 3628800.;
    s = s * z - 1 / 5040.;
    c = c * z + 1 / 40320.;
    s = s * z + 1 / 120.;
    c = c * z - 1 / 720.;
    s = s * z - 1 / 6.;
    c = c * z + 1 / 24.;
    s = x + x * (z * s);
    c = 1 + z * (c * z - 0.5);
    double a = q == 1 || q == 3 ? s : c, b = q == 1 || q == 3 ? c : s;
    *cosine = q == 1 || q == 2 ? -a : a;
    *sine = q == 2 || q == 3 ? -b : b;
}

/* Box-Muller: counters i .. i + n of stream (key, sub), n at most BLOCK, give normals 2i .. 2i + 2n. */
EACH_ISA
static void block(uint64_t key, uint64_t sub, uint64_t i, int n, double *out)
{
    uint32_t word[4][BLOCK];
    for (int k = 0; k < n; k++) {
        Philox r = philox(key, i + (uint64_t)k, sub);
        for (int w = 0; w < 4; w++)
            word[w][k] = r.v[w];
    }
    for (int k = 0; k < n; k++) {
        double cosine, sine, radius = sqrt(minus_two_log((whole(word[0][k], word[1][k]) + 1) * 0x1p-53));
        turn(whole(word[2][k], word[3][k]) * 0x1p-53, &cosine, &sine);
        out[2 * k] = radius * cosine;
        out[2 * k + 1] = radius * sine;
    }
}

void rng_normals(uint64_t key, uint64_t sub, uint64_t index, int64_t n, double *out)
{
    double pairs[2 * BLOCK];
    while (n > 0) {
        int64_t skip = (int64_t)(index & 1), some = n < 2 * BLOCK - skip ? n : 2 * BLOCK - skip;
        block(key, sub, index / 2, (int)(skip + some + 1) / 2, pairs);
        memcpy(out, pairs + skip, (size_t)some * sizeof *out);
        out += some, index += (uint64_t)some, n -= some;
    }
}

double rng_normal(uint64_t key, uint64_t sub, uint64_t index)
{
    double x;
    rng_normals(key, sub, index, 1, &x);
    return x;
}
