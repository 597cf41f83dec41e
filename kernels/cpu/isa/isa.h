/* isa -- what a file in this directory is written in. Each file compiles once for every instruction set
 * (ISA = generic, avx2, avx512) and real type (REAL = float, double); FN(name) gives each its own symbol.
 * Vec is a vector of VN reals in the compiler's own vector type, so plain operators work on it and the
 * generic build is plain C on any CPU.
 *
 * Ops read and write storage through row_in / row_out: when the storage type is REAL these are
 * the row itself, without a copy; else a converted copy in the thread's buffer. */
#ifndef ISA_H
#define ISA_H
#include "half.h"
#include <math.h>
#include <string.h>
#include "cpu.h"
#if defined(ISA_avx2) || defined(ISA_avx512)
#include <immintrin.h>
#endif

#define CAT3_(a, b, c, d) a##_##b##_##c
#define CAT3(a, b, c) CAT3_(a, b, c, )
#ifdef REAL_f64
#define REAL double
#define REAL_TYPE F64
#define FN(name) CAT3(name, ISA, f64)
typedef int64_t IntLane;
#else
#define REAL float
#define REAL_TYPE F32
#define FN(name) CAT3(name, ISA, f32)
typedef int32_t IntLane;
#endif

#define VN ((int)(VBYTES / sizeof(REAL)))
typedef REAL Vec __attribute__((vector_size(VBYTES)));
typedef IntLane IVec __attribute__((vector_size(VBYTES)));
#ifdef REAL_f64
typedef uint64_t UVec __attribute__((vector_size(VBYTES)));
#else
typedef uint32_t UVec __attribute__((vector_size(VBYTES)));
#endif

static inline Vec vload(const REAL *p) { Vec v; memcpy(&v, p, sizeof v); return v; }
static inline void vstore(REAL *p, Vec v) { memcpy(p, &v, sizeof v); }
static inline Vec vset(REAL x) { return x - (Vec){0}; }   /* folds to a broadcast; 0 + x would not (x = -0) */
static inline Vec vselect(IVec m, Vec a, Vec b) { return (Vec)((m & (IVec)a) | (~m & (IVec)b)); }
/* a > b ? a : b and a < b ? a : b, lane by lane: b where either is NaN. */
#if defined(ISA_avx512) || defined(ISA_avx2)
#define VCAT_(a, b) a##b
#define VCAT(a, b) VCAT_(a, b)
#ifdef ISA_avx512
#define VOP(op) VCAT(_mm512_##op, VSUFFIX)
#else
#define VOP(op) VCAT(_mm256_##op, VSUFFIX)
#endif
#ifdef REAL_f64
#define VSUFFIX pd
#else
#define VSUFFIX ps
#endif
static inline Vec vmax(Vec a, Vec b) { return VOP(max_)(a, b); }
static inline Vec vmin(Vec a, Vec b) { return VOP(min_)(a, b); }
#else
static inline Vec vmax(Vec a, Vec b) { return vselect(a > b, a, b); }
static inline Vec vmin(Vec a, Vec b) { return vselect(a < b, a, b); }
#endif
static inline Vec vsqrt(Vec x)
{
    for (int i = 0; i < VN; i++)
        x[i] = sizeof(REAL) == 8 ? (REAL)sqrt(x[i]) : (REAL)sqrtf((float)x[i]);
    return x;
}
/* First n (< VN) lanes from memory, the rest `fill`; and back. */
static inline Vec vload_part(const REAL *p, int64_t n, REAL fill)
{
#ifdef ISA_avx512
    return VOP(mask_loadu_)(vset(fill), (1u << n) - 1, p);
#else
    Vec v = vset(fill);
    memcpy(&v, p, (size_t)n * sizeof(REAL));
    return v;
#endif
}
static inline void vstore_part(REAL *p, Vec v, int64_t n)
{
#ifdef ISA_avx512
    VOP(mask_storeu_)(p, (1u << n) - 1, v);
#else
    memcpy(p, &v, (size_t)n * sizeof(REAL));
#endif
}
/* Where n may also be VN or more: for (i = 0; i < n; i += VN) vput(y + i, f(vget(x + i, n - i)), n - i) */
static inline Vec vget(const REAL *p, int64_t n) { return n >= VN ? vload(p) : vload_part(p, n, 0); }
static inline void vput(REAL *p, Vec v, int64_t n)
{
    if (n >= VN)
        vstore(p, v);
    else
        vstore_part(p, v, n);
}
/* Sum and maximum of the lanes, always in the same order: halves onto halves. */
static inline REAL vsum(Vec v)
{
#ifdef ISA_avx512
    return VOP(reduce_add_)(v);
#else
    for (int n = VN / 2; n; n /= 2)
        for (int i = 0; i < n; i++)
            v[i] += v[i + n];
    return v[0];
#endif
}
static inline REAL vmaximum(Vec v)
{
#ifdef ISA_avx512
    return VOP(reduce_max_)(v);
#else
    for (int n = VN / 2; n; n /= 2)
        for (int i = 0; i < n; i++)
            v[i] = v[i] > v[i + n] ? v[i] : v[i + n];
    return v[0];
#endif
}

/* exp and erf: F32 by polynomial, within 2 ulp; F64 through libm lane by lane (the oracle is not in a hurry).
 * In F32 exp(x) is infinite from x = 88.38 on and 0 below -87.69; NaN stays NaN. */
static inline Vec vexp(Vec x)
{
#ifdef REAL_f64
    for (int i = 0; i < VN; i++)
        x[i] = exp(x[i]);
    return x;
#else
    /* x = n ln2 + r, |r| <= ln2/2; the polynomial is Cephes' expf (Moshier 1984). Adding 1.5 * 2^23 + 127
     * rounds x / ln2 to n and leaves n, with the exponent's bias, in the low bits, which a shift makes 2^n: 0
     * and infinity at the two ends that x is clamped to. A NaN passes the clamp, which keeps its second
     * argument, and p. */
    Vec c = vmin(vset(89), vmax(vset(-88), x));
    Vec t = c * 1.44269504088896341f + 12583039.0f, n = t - 12583039.0f;
    Vec r = c - n * 0.693359375f + n * 2.12194440e-4f;
    Vec p = vset(1.9875691500E-4f);
    p = p * r + 1.3981999507E-3f;
    p = p * r + 8.3334519073E-3f;
    p = p * r + 4.1665795894E-2f;
    p = p * r + 1.6666665459E-1f;
    p = p * r + 5.0000001201E-1f;
    p = p * (r * r) + r + 1.0f;
    return p * (Vec)((UVec)t << 23);
#endif
}
static inline Vec verf(Vec x)
{
#ifdef REAL_f64
    for (int i = 0; i < VN; i++)
        x[i] = erf(x[i]);
    return x;
#else
    /* |x| < 0.9375: x + x P(x^2); else 1 - exp(-Q(|x|)), which is 1 from |x| = 4 on. P and Q are minimax fits
     * of erf(x)/x - 1 (relative error 2e-8) and of -log erfc (error in erf 2e-9) */
    Vec a = vmax(x, -x), z = x * x, b = vmin(a, vset(4.0f));
    Vec p = vset(-0.00059431343f);
    p = p * z + 0.004984377f;
    p = p * z - 0.026761105f;
    p = p * z + 0.11281682f;
    p = p * z - 0.37612483f;
    p = p * z + 0.12837915f;
    Vec q = vset(-0.00019295399f);
    q = q * b + 0.0030139794f;
    q = q * b - 0.022110492f;
    q = q * b + 0.10369034f;
    q = q * b + 0.6374568f;
    q = q * b + 1.1275128f;
    q = q * b + 0.000235039f;
    Vec big = 1.0f - vexp(-q);
    big = vselect(x < 0, -big, big);
    return vselect(a >= 0.9375f, big, p * x + x);      /* NaN takes the polynomial and stays NaN */
#endif
}

/* Philox4x32-10 of a vector of counters (base.h: philox). Each 64-bit lane carries one 32-bit word in its low
 * half; the high halves are noise on the way in and zero on the way out. c[0], c[1] are counter_lo, c[2],
 * c[3] counter_hi. */
typedef uint64_t WVec __attribute__((vector_size(VBYTES)));
static inline WVec wmul(WVec a, uint32_t b)
{
#if defined(ISA_avx512)
    return (WVec)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64(b));
#elif defined(ISA_avx2)
    return (WVec)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(b));
#else
    return (a & 0xffffffffu) * b;
#endif
}
static inline void vphilox(WVec c[4], uint64_t key)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int i = 0; i < 10; i++) {
        WVec p0 = wmul(c[0], 0xD2511F53u), p1 = wmul(c[2], 0xCD9E8D57u);
        c[0] = p1 >> 32 ^ c[1] ^ k0;
        c[1] = p1;
        c[2] = p0 >> 32 ^ c[3] ^ k1;
        c[3] = p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int i = 0; i < 4; i++)
        c[i] &= 0xffffffffu;
}

/* n elements of storage to reals and back, vectorised (convert.c). */
void FN(load_reals)(REAL *dst, const void *src, int64_t n, Dtype type);
void FN(store_reals)(void *dst, const REAL *src, int64_t n, Dtype type);

/* Row r of m as reals: the row itself when its type is REAL, else converted into buf (m.cols long). */
static inline const REAL *row_in(Mat m, int64_t r, REAL *buf)
{
    if (m.type == REAL_TYPE)
        return (const REAL *)m.p + r * m.ld;
    FN(load_reals)(buf, mat_at(m, r, 0), m.cols, m.type);
    return buf;
}
/* Where to write row r as reals; then row_done stores it. */
static inline REAL *row_out(Mat m, int64_t r, REAL *buf)
{
    return m.type == REAL_TYPE ? (REAL *)m.p + r * m.ld : buf;
}
static inline void row_done(Mat m, int64_t r, const REAL *buf)
{
    if (m.type != REAL_TYPE)
        FN(store_reals)(mat_at(m, r, 0), buf, m.cols, m.type);
}

/* The thread's own buffer, `slot` 0..ROW_SLOTS-1 of ROW_MAX reals each: rows up to ROW_MAX columns. Wider
 * rows are worked on in pieces by the ops that can meet them. */
REAL *FN(row_buf)(Device *d, int thread, int slot);
/* Two larger ones (slot 0, 1) of SUM_MAX reals. */
REAL *FN(sum_buf)(Device *d, int thread, int slot);

/* Dropout masks. Four consecutive elements share one Philox counter (vphilox): element i is kept iff word
 * i % 4 of
 *   activations   philox(key, column / 4 | position << 32, sample)              i = column of the whole row
 *   attention     philox(key, key position / 4 | query position << 32, sample << 16 | head)  i = key position
 * is at least p * 2^32. */
static inline uint32_t dropout_limit(double p) { return (uint32_t)fmin(ceil(p * 0x1p32), 0xffffffffp0); }

#define X(name, params, names) void FN(cpu_##name) params;
OPS(X)
#undef X
#endif
