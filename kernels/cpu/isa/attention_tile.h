/* attention_tile -- what attention's forward and backward are made of.
 *
 * A strip is up to STRIP queries of one head, one to a vector lane. Keys are taken in blocks of key_block()
 * rows that start at multiples of it. Scores of a strip with a block lie as [key][lane], so that maxima, sums
 * and masks of the softmax are plain lane-wise operations, and every product is
 *
 *   c[m][n] = sum over k of a(m, k) * b[k][n]        n along the lanes
 *
 * in which `a` is read one element at a time. Keys and values are therefore used in the layout they have in
 * memory (converted and made dense, never transposed); only the queries of a strip are turned, once.
 * `ld` is dim rounded up to whole vectors; the columns between are zero in packed panels. */
#ifndef ATTENTION_TILE_H
#define ATTENTION_TILE_H
#include "isa.h"

#define INLINE static inline __attribute__((always_inline))
#define NV 2                     /* vectors to a strip and to a tile */
#define STRIP (NV * VN)
#ifdef ISA_avx512
#define MR 8                     /* rows of a register tile: MR * NV sums, NV of b and one of a, of 32 */
#else
#define MR 6                     /* the same of 16 registers */
#endif
#define HEAD_MAX 512             /* largest head size: what the four buffers of a thread hold */
#define KEYS 128                 /* keys to a block, fewer for wide heads */
#define LOG2E 1.44269504088896340736
#define LN2 0.693147180559945309417

INLINE int64_t whole_vectors(int64_t n) { return (n + VN - 1) / VN * VN; }
/* A function of the head size only: blocks are part of what fixes the bits. */
INLINE int64_t key_block(int64_t ld)
{
    int64_t n = 32 * HEAD_MAX / ld / 16 * 16;
    return n < KEYS ? n : KEYS;
}

typedef struct {
    int64_t i0, n;               /* first query of the sample, number of queries */
    int64_t width;               /* n in whole vectors; lanes past n repeat query n - 1, never stored */
    int64_t first, end;          /* keys that some query sees lie in [first, end); empty when end <= first */
    int64_t all_first, all_end;  /* keys in [all_first, all_end) are seen by all */
    IntLane lo[STRIP], hi[STRIP];    /* query of a lane sees keys lo..hi */
} Strip;

/* The strip of sample b that starts at query i0 and ends before query `stop`. */
static inline void strip_open(Strip *t, const Attention *s, int64_t b, int64_t i0, int64_t stop)
{
    t->i0 = i0;
    t->n = stop - i0 < STRIP ? stop - i0 : STRIP;
    t->width = whole_vectors(t->n);
    t->first = t->all_end = s->seq_k;
    t->end = t->all_first = 0;
    for (int64_t i = 0; i < t->n; i++) {
        int64_t position = s->pos0 + i0 + i, lo = s->doc_start ? s->doc_start[b * s->seq_q + i0 + i] : 0;
        int64_t hi = position < s->seq_k ? position : s->seq_k - 1;
        if (s->window > 0 && lo < position - s->window + 1)
            lo = position - s->window + 1;
        if (lo <= hi) {
            t->first = lo < t->first ? lo : t->first;
            t->end = hi + 1 > t->end ? hi + 1 : t->end;
        }
        t->all_first = lo > t->all_first ? lo : t->all_first;
        t->all_end = hi + 1 < t->all_end ? hi + 1 : t->all_end;
        t->lo[i] = (IntLane)lo;
        t->hi[i] = (IntLane)hi;
    }
    for (int64_t i = t->n; i < t->width; i++) {
        t->lo[i] = t->lo[t->n - 1];
        t->hi[i] = t->hi[t->n - 1];
    }
}
/* Does some query of the strip not see some key of [from, to)? */
INLINE int strip_masked(const Strip *t, int64_t from, int64_t to)
{
    return from < t->all_first || to > t->all_end;
}
/* Which lanes of vector v see key j. */
INLINE IVec strip_sees(const Strip *t, int64_t v, int64_t j)
{
    IVec lo, hi, key = (IntLane)j - (IVec){0};
    memcpy(&lo, t->lo + v, sizeof lo);
    memcpy(&hi, t->hi + v, sizeof hi);
    return (key >= lo) & (key <= hi);
}

/* The dropout masks of a strip (isa.h says which word is whose): drop_masks makes those of keys j .. j+3, j a
 * multiple of 4, for lanes v .. v + VN. limit = 0: no dropout. */
typedef struct { uint64_t key; uint32_t limit, hi0, hi1; int64_t position; } Drop;
static inline Drop drop_open(const Attention *s, int64_t b, int head, const Strip *t)
{
    if (s->dropout <= 0)
        return (Drop){0};
    uint64_t hi = (uint64_t)s->sample[b] << 16 | (uint64_t)(s->head0 + head);
    return (Drop){s->key, dropout_limit(s->dropout), (uint32_t)hi, (uint32_t)(hi >> 32), s->pos0 + t->i0};
}
static inline void drop_masks(IVec keep[4], const Drop *p, int64_t v, int64_t j)
{
    WVec word[4], zero = {0}, lane;
    int n = (int)(sizeof zero / 8);
    for (int i = 0; i < n; i++)
        lane[i] = (uint64_t)(p->position + v + i * (VN / n));
    word[0] = (uint64_t)j / 4 - zero;
    word[1] = lane;
    word[2] = p->hi0 - zero;
    word[3] = p->hi1 - zero;
#ifdef REAL_f64
    vphilox(word, p->key);
    for (int r = 0; r < 4; r++)
        keep[r] = (IVec)(word[r] >= p->limit - zero);
#else
    WVec odd[4] = {word[0], lane + 1, word[2], word[3]};
    vphilox(word, p->key);
    vphilox(odd, p->key);
    for (int r = 0; r < 4; r++)
        keep[r] = (IVec)((UVec)(word[r] | odd[r] << 32) >= p->limit - (UVec){0});
#endif
}

/* 2^x for x <= 0 (and a rounding above); 0 from x = -126.5 down in F32; NaN stays NaN. */
INLINE Vec vexp2(Vec x)
{
#ifdef REAL_f64
    for (int i = 0; i < VN; i++)
        x[i] = exp2(x[i]);
    return x;
#else
    /* Adding 1.5 * 2^23 + 127 rounds to an integer and leaves it, with the exponent's bias, in the low bits:
     * the exponent of 2^n, and 0 at n = -127. The polynomial is 2^r on |r| <= 1/2, a least-squares fit
     * reweighted until its relative error was level, 9.2e-8. */
    Vec c = vmax(vset(-127), x), t = c + 12583039.0f, r = c - (t - 12583039.0f);
    Vec p = r * 0.001326472731307149f + 0.009671512991189957f;
    p = p * r + 0.05550733581185341f;
    p = p * r + 0.24022242426872253f;
    p = p * r + 0.6931470036506653f;
    p = p * r + 1.0f;
    return p * (Vec)((IVec)t << 23);
#endif
}

typedef enum { SET, ADD, SCALE } Init;   /* c = ab, c = c + ab, c = c * alpha + ab with alpha by lanes */
typedef struct { REAL *c; const REAL *a, *b; int64_t ldc, lda, ldb; } Product;

/* M rows by N vectors. along: a(m, k) is a[m*lda + k], else a[k*lda + m]. */
INLINE void tile(const int M, const int N, const int along, Product p, int64_t k, Init init,
                 const REAL *alpha)
{
    Vec sum[MR][NV], b[NV];
#pragma GCC unroll 16
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) {
            sum[m][n] = init == SET ? vset(0) : vload(p.c + m * p.ldc + n * VN);
            if (init == SCALE)
                sum[m][n] *= vload(alpha + n * VN);
        }
    for (int64_t i = 0; i < k; i++) {
#pragma GCC unroll 4
        for (int n = 0; n < N; n++)
            b[n] = vload(p.b + i * p.ldb + n * VN);
#pragma GCC unroll 16
        for (int m = 0; m < M; m++) {
            Vec a = vset(along ? p.a[m * p.lda + i] : p.a[i * p.lda + m]);
#pragma GCC unroll 4
            for (int n = 0; n < N; n++)
                sum[m][n] += a * b[n];
        }
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int n = 0; n < N; n++)
            vstore(p.c + m * p.ldc + n * VN, sum[m][n]);
}

INLINE void tiles(const int N, const int along, Product p, int64_t m, int64_t k, Init init, const REAL *alpha)
{
    int64_t c = p.ldc, a = along ? p.lda : 1;
    for (; m >= MR; m -= MR, p.c += MR * c, p.a += MR * a)
        tile(MR, N, along, p, k, init, alpha);
    for (; m >= 4; m -= 4, p.c += 4 * c, p.a += 4 * a)
        tile(4, N, along, p, k, init, alpha);
    for (; m; m--, p.c += c, p.a += a)
        tile(1, N, along, p, k, init, alpha);
}

/* c [m, n] from a (m by k; see tile) and b [k, n]; n in whole vectors. The sum runs over k in order. */
static void product(int along, Product p, int64_t m, int64_t n, int64_t k, Init init, const REAL *alpha)
{
    for (; n > 0; n -= STRIP, p.c += STRIP, p.b += STRIP, alpha += alpha ? STRIP : 0) {
        if (n > VN && along)
            tiles(NV, 1, p, m, k, init, alpha);
        else if (n > VN)
            tiles(NV, 0, p, m, k, init, alpha);
        else if (along)
            tiles(1, 1, p, m, k, init, alpha);
        else
            tiles(1, 0, p, m, k, init, alpha);
    }
}

/* dst[c][r] = src[r][c] * factor; rows and cols in whole vectors. VN rows at a time: after log2(VN) rounds in
 * which rows i and i + VN/2 are interleaved, the rows are the columns. */
static void transpose(REAL *dst, int64_t ldd, const REAL *src, int64_t lds, int64_t rows, int64_t cols,
                      REAL factor)
{
    IVec low, high;
    for (int i = 0; i < VN; i++) {
        low[i] = i / 2 + (i & 1) * VN;
        high[i] = low[i] + VN / 2;
    }
    for (int64_t r = 0; r < rows; r += VN)
        for (int64_t c = 0; c < cols; c += VN) {
            Vec x[VN], y[VN];
            for (int i = 0; i < VN; i++)
                x[i] = vload(src + (r + i) * lds + c) * factor;
            for (int n = 1; n < VN; n *= 2) {
                for (int i = 0; i < VN / 2; i++) {
                    y[2 * i] = __builtin_shuffle(x[i], x[i + VN / 2], low);
                    y[2 * i + 1] = __builtin_shuffle(x[i], x[i + VN / 2], high);
                }
                memcpy(x, y, sizeof x);
            }
            for (int i = 0; i < VN; i++)
                vstore(dst + (c + i) * ldd + r, x[i]);
        }
}

/* Rows r .. r+n of columns c .. c+dim of x as reals, ld to a row, zeros between; unpack is the way back. */
static inline void pack(REAL *dst, int64_t ld, Mat x, int64_t r, int64_t n, int64_t c, int64_t dim)
{
    for (int64_t i = 0; i < n; i++) {
        REAL *to = dst + i * ld;
        if (x.type == REAL_TYPE)
            memcpy(to, mat_at(x, r + i, c), (size_t)dim * sizeof(REAL));
        else
            FN(load_reals)(to, mat_at(x, r + i, c), dim, x.type);
        for (int64_t j = dim; j < ld; j++)
            to[j] = 0;
    }
}
static inline void unpack(Mat x, int64_t r, int64_t n, int64_t c, int64_t dim, const REAL *src, int64_t ld)
{
    for (int64_t i = 0; i < n; i++)
        if (x.type == REAL_TYPE)
            memcpy(mat_at(x, r + i, c), src + i * ld, (size_t)dim * sizeof(REAL));
        else
            FN(store_reals)(mat_at(x, r + i, c), src + i * ld, dim, x.type);
}
#endif
