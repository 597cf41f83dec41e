/* isa -- the vectors and helpers that the files of this folder use. Each file is compiled once for every
 * instruction set (ISA = generic, avx2, avx512) and real type (REAL = float, double); FN(name) is the
 * symbol of one such build. Vec is a vector of VN reals, a vector type of the compiler: C's operators
 * work on it, and the generic build runs on any CPU.
 *
 * Ops read and write storage by row_in and row_out. Where the storage type is REAL these return the row
 * itself; else they return a converted copy in a buffer of the thread. */
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
/* x in every lane. x - 0 compiles to a broadcast; 0 + x would not, because of x = -0. */
static inline Vec vset(REAL x) { return x - (Vec){0}; }
/* m ? a : b, lane by lane. */
static inline Vec vselect(IVec m, Vec a, Vec b) { return (Vec)((m & (IVec)a) | (~m & (IVec)b)); }
/* vmax: a > b ? a : b, vmin: a < b ? a : b, lane by lane; both are b where either is NaN. */
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
/* vload_part: the first n lanes from memory, the others `fill`. vstore_part: the first n lanes to
 * memory. n < VN. */
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
/* The same for any n > 0: for (i = 0; i < n; i += VN) vput(y + i, f(vget(x + i, n - i)), n - i) */
static inline Vec vget(const REAL *p, int64_t n) { return n >= VN ? vload(p) : vload_part(p, n, 0); }
static inline void vput(REAL *p, Vec v, int64_t n)
{
    if (n >= VN)
        vstore(p, v);
    else
        vstore_part(p, v, n);
}
/* Sum and maximum of the lanes, in a fixed order: the upper half is added to the lower half, and so
 * on. */
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

/* exp and erf: F32 by polynomials, within 2 ulp; F64 by libm, lane by lane, because F64 is for checking
 * and need not be fast. In F32 exp(x) is infinite from x = 88.38 on and 0 below -87.69; NaN stays NaN. */
static inline Vec vexp(Vec x)
{
#ifdef REAL_f64
    for (int i = 0; i < VN; i++)
        x[i] = exp(x[i]);
    return x;
#else
    /* x = n ln2 + r, |r| <= ln2/2; the polynomial of r is Cephes' expf (Moshier 1984). Adding 1.5 * 2^23
     * + 127 rounds x / ln2 to n and leaves n plus the exponent's bias in the low bits; a shift makes 2^n
     * of them. At the two ends that x is clamped to, 2^n is 0 and infinity. A NaN passes the clamp (vmin
     * and vmax return their second argument) and the polynomial. */
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
    /* erf is x + x P(x^2) for |x| < 0.9375, else 1 - exp(-Q(|x|)), which is 1 from |x| = 4 on. P is a
     * minimax fit of erf(x)/x - 1 (relative error 2e-8), Q of -log erfc (error in erf 2e-9) */
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
    return vselect(a >= 0.9375f, big, p * x + x);      /* NaN goes through P and stays NaN */
#endif
}

/* Philox4x32-10 of a vector of counters, the bits of philox (base.h).
 *   c    in/out  [4]  32-bit words in the low halves of 64-bit lanes: in c[0], c[1] are counter_lo,
 *                     c[2], c[3] counter_hi, with anything in the high halves; out the random words,
 *                     with zeros there
 *   key  in           the key */
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

/* Bytes that long streams are prefetched ahead: the CPU's own prefetcher begins anew at each page. */
#define AHEAD_BYTES 4096

/* Convert n elements of storage type `type` to reals, and n reals to that type (convert.c). */
void FN(load_reals)(REAL *dst, const void *src, int64_t n, Dtype type);
void FN(store_reals)(void *dst, const REAL *src, int64_t n, Dtype type);

/* A row of act_fwd and of act_bwd (act.c): n elements of the gate h and, where kind is gated, its factor up.
 *   a     out  may be h
 *   dh    out  may be h or da; dup, where kind is gated, may be up */
void FN(act_row)(ActKind kind, REAL *a, const REAL *h, const REAL *up, int64_t n);
void FN(act_bwd_row)(ActKind kind, REAL *dh, REAL *dup, const REAL *da, const REAL *h, const REAL *up,
                     int64_t n);
/* norm.c: n elements of a row of norm_fwd, of which y may be x; bias NULL: none. And the statistics of
 * norm_fwd with one group, without its result. */
void FN(norm_row)(REAL *y, const REAL *x, const REAL *gain, const REAL *bias, REAL mean, REAL rstd,
                  int64_t n);
void FN(norm_stats)(Device *d, Mat stats, Mat x, Mat gain, Mat bias, double eps, NormKind kind);
/* Converts n elements of FP8 to reals (fp8.c). */
void FN(fp8_reals)(REAL *dst, const uint8_t *src, int64_t n, Fp8Format format);

/* Returns row r of m as reals: the row itself when its type is REAL, else a copy in buf [m.cols]. */
static inline const REAL *row_in(Mat m, int64_t r, REAL *buf)
{
    if (m.type == REAL_TYPE)
        return (const REAL *)m.p + r * m.ld;
    FN(load_reals)(buf, mat_at(m, r, 0), m.cols, m.type);
    return buf;
}
/* Returns where to write row r as reals; row_done then stores what was written. */
static inline REAL *row_out(Mat m, int64_t r, REAL *buf)
{
    return m.type == REAL_TYPE ? (REAL *)m.p + r * m.ld : buf;
}
static inline void row_done(Mat m, int64_t r, const REAL *buf)
{
    if (m.type != REAL_TYPE)
        FN(store_reals)(mat_at(m, r, 0), buf, m.cols, m.type);
}

/* Whether a gradient may be of type t where storage is of type `storage`. */
static inline int is_gradient(Dtype t, Dtype storage)
{
    return t == REAL_TYPE || (t == BF16 && storage == BF16);
}

/* Returns buffer `slot`, 0..ROW_SLOTS-1, of a thread: ROW_MAX reals. Ops whose rows may be wider work on
 * pieces of a row. */
REAL *FN(row_buf)(Device *d, int thread, int slot);
/* Returns sum buffer `slot`, 0 or 1, of a thread: SUM_MAX reals. */
REAL *FN(sum_buf)(Device *d, int thread, int slot);

/* Dropout masks: element i of a row is kept if word i % 4 of a Philox counter is at least p * 2^32.
 *   activations  i is the column of the whole row; philox(key, i / 4 | position << 32, sample)
 *   attention    i is the key's position; philox(key, i / 4 | query position << 32, sample << 16 | head)
 * dropout_limit returns p * 2^32, rounded up. */
static inline uint32_t dropout_limit(double p) { return (uint32_t)fmin(ceil(p * 0x1p32), 0xffffffffp0); }
/* Draws random words in order: words[4 i .. 4 i + 3] are philox(key, first + i | position << 32, sample), and
 * first + i has 32 bits (dropout.c).
 *   words  out  [n]  rounded up to a multiple of VBYTES / 2 */
void FN(draw_words)(uint32_t *words, int64_t n, uint64_t key, int64_t first, int64_t position,
                    int64_t sample);

/* Converts n moments of a type with fewer bits to reals, and reals to such (moments.c), from the start of a
 * block on.
 *   scale   in, out  [n / MOMENT_BLOCK, rounded up]; not read and not written where the type has none
 *   second  in       bool: second moments
 *   blocks  in       numbers of the blocks
 *   block   in       number of the first of them among the array's
 *   turn    in       of the update, for the bits of rounding */
void FN(load_moments)(REAL *dst, const void *src, const uint8_t *scale, int64_t n, MomentType type,
                      int second);
void FN(store_moments)(void *dst, uint8_t *scale, const REAL *src, int64_t n, MomentType type, int second,
                       const BlockNumbers *blocks, int64_t block, int64_t turn);

/* Adds the column sums of norm_bwd to dgain and dbias; x and stats are read for dgain only. */
void FN(norm_columns)(Device *d, Mat dgain, Mat dbias, Mat dy, Mat x, Mat stats, int groups);

#define X(name, params, names) void FN(cpu_##name) params;
OPS(X)
#undef X
#endif
