/* normals -- two standard normal numbers of four random words (Box and Muller 1958). The CPU and the GPU
 * compile this one source without fused multiply-adds, so the numbers have the same bits on both. */
#ifndef NORMALS_H
#define NORMALS_H
#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __CUDACC__
#define NORMALS_INLINE static __device__ __forceinline__
#else
#define NORMALS_INLINE static inline
#endif

NORMALS_INLINE double real_of(uint64_t bits) { double x; memcpy(&x, &bits, sizeof x); return x; }
NORMALS_INLINE uint64_t bits_of(double x) { uint64_t bits; memcpy(&bits, &x, sizeof bits); return bits; }
/* 53 bits of two random words, a whole number */
NORMALS_INLINE double whole(uint32_t high, uint32_t low) { return high * 0x1p21 + (low >> 11); }

/* -2 ln u for u in [2^-53, 1]: u is m 2^e with m in [1/sqrt 2, sqrt 2), and ln m = 2 artanh s with
 * s = (m - 1) / (m + 1), |s| < 0.172. What the series leaves out is below 1e-17. */
NORMALS_INLINE double minus_two_log(double u)
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
NORMALS_INLINE void turn(double t, double *cosine, double *sine)
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

/* w0 to w3: the words of a counter; they give numbers 2i and 2i + 1 of a stream. */
NORMALS_INLINE void normals_pair(uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3, double pair[2])
{
    double cosine, sine, radius = sqrt(minus_two_log((whole(w0, w1) + 1) * 0x1p-53));
    turn(whole(w2, w3) * 0x1p-53, &cosine, &sine);
    pair[0] = radius * cosine;
    pair[1] = radius * sine;
}

/* An initial value of the op `normals` (device.h), x a standard normal number. */
NORMALS_INLINE double normals_value(double x, double mean, double std) { return mean + std * x; }
#endif
