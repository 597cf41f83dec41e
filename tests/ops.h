/* ops -- shared by the tests of the op table: the instruction sets of this CPU, random numbers from a
 * seed, and rounding to storage types by arithmetic instead of by bits. */
#ifndef TEST_OPS_H
#define TEST_OPS_H
#include "device.h"
#include "test.h"
#ifdef __aarch64__
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif

__attribute__((unused)) static const char *const isa_names[] = {"generic", "avx2", "avx512", "sve256"};
enum { ISAS = 4 };

/* 1: this CPU has instruction set i, and the command line (PROGRAM [ISA]) names i or no instruction set. */
__attribute__((unused)) static int isa_wanted(int i, int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], isa_names[i]))
        return 0;
#ifdef __x86_64__
    if (i == 1)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (i == 2)
        return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")
               && __builtin_cpu_supports("avx512dq");
#elif defined __aarch64__
    if (i == 3)
        return getauxval(AT_HWCAP) & HWCAP_SVE && (prctl(PR_SVE_GET_VL) & PR_SVE_VL_LEN_MASK) == 32;
#endif
    return i == 0;
}

/* Element i of random sequence s: a standard normal number, the same in every run. */
static inline double normal(uint64_t s, int64_t i)
{
    enum { N = 1 << 16 };
    static double table[N];
    if (table[0] == 0)
        for (uint64_t k = 0; k < N; k++)
            table[k] = rng_normal(0x5eed, 0, k);
    return table[(s * 10007 + (uint64_t)i) % N];
}

/* x rounded to nearest even: `bits` bits of significand, smallest exponent emin, largest number `top`. */
static inline double rounded_to(double x, int bits, int emin, double top)
{
    if (!isfinite(x) || x == 0)
        return x;
    int e;
    frexp(x, &e);
    double unit = ldexp(1, (e - 1 < emin ? emin : e - 1) - (bits - 1)), y = nearbyint(x / unit) * unit;
    return fabs(y) > top ? copysign(INFINITY, x) : y;
}
static inline double rounded(double x, Dtype t)
{
    switch (t) {
    case F32: return (float)x;
    case BF16: return rounded_to(x, 8, -126, 0x1.fep127);
    case F16: return rounded_to(x, 11, -14, 65504);
    default: return x;
    }
}

/* get reads element i of an array of type t; put rounds x to type t and writes it. */
static inline double get(const void *p, int64_t i, Dtype t)
{
    uint16_t h;
    uint32_t u;
    float f;
    double d;
    switch (t) {
    case F64: memcpy(&d, (const char *)p + 8 * i, 8); return d;
    case F32: memcpy(&f, (const char *)p + 4 * i, 4); return f;
    case BF16:
        memcpy(&h, (const char *)p + 2 * i, 2);
        u = (uint32_t)h << 16;
        memcpy(&f, &u, 4);
        return f;
    default:
        memcpy(&h, (const char *)p + 2 * i, 2);
        int e = h >> 10 & 31, m = h & 1023;
        d = e == 31 ? (m ? NAN : INFINITY) : ldexp(e ? 1024 + m : m, (e ? e : 1) - 25);
        return h >> 15 ? -d : d;
    }
}
static inline void put(void *p, int64_t i, Dtype t, double x)
{
    double y = rounded(x, t);
    float f = (float)y;
    uint32_t u;
    uint16_t h;
    switch (t) {
    case F64: memcpy((char *)p + 8 * i, &y, 8); return;
    case F32: memcpy((char *)p + 4 * i, &f, 4); return;
    case BF16:
        memcpy(&u, &f, 4);
        h = (uint16_t)(u >> 16);
        break;
    default: {
        int e = 0;
        double a = fabs(y);
        if (isfinite(a) && a)
            frexp(a, &e);
        e = e - 1 < -14 || a == 0 ? -15 : e - 1;       /* -15: subnormal */
        h = isnan(a) ? 0x7e00 : isinf(a) ? 0x7c00
            : (uint16_t)(((e + 15) << 10) + (int)(ldexp(a, e == -15 ? 24 : 10 - e) - (e == -15 ? 0 : 1024)));
        h |= (uint16_t)(signbit(y) ? 0x8000 : 0);
    }
    }
    memcpy((char *)p + 2 * i, &h, 2);
}
#endif
