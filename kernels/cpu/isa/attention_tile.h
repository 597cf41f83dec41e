/* attention_tile -- strips, masks and products of attention's forward and backward.
 *
 * A strip is up to STRIP queries of one head, one query a vector lane. A block is key_block() keys and
 * starts at a multiple of that. Scores of a strip and a block are stored as [key][lane], so that maxima,
 * sums and masks of the softmax are lane-wise operations, and every product is
 *
 *   c[m][n] = sum over k of a(m, k) * b[k][n]        n along the lanes
 *
 * in which `a` is read one element at a time. Keys and values are therefore used in the order of their
 * memory: they are converted and made dense, but not transposed. Only the queries of a strip are
 * transposed, once. `ld` is dim rounded up to whole vectors; columns [dim, ld) of packed panels are
 * zero.
 *
 * An Elem of `a` and `b` is a REAL; in the builds `pairs` and `tiles` it is two neighbours in k, in BF16,
 * which vdpbf16ps, or AMX, multiplies and adds to an F32. There k counts pairs, and a panel [k][n] has
 * rows of pairs: a Panel holds its rows, for products with k along them, and the same joined two by two,
 * for products with k across them. Elsewhere both are one. AMX takes no `a` with k across its rows: in the
 * build `tiles` keys and values are transposed for it (attention_amx.h). */
#ifndef ATTENTION_TILE_H
#define ATTENTION_TILE_H
#include "isa.h"

#if defined(REAL_tiles)
#define REAL_pairs
#define OP(name) name##_tiles
#elif defined(REAL_pairs)
#define OP(name) name##_pairs
#else
#define OP(name) FN(name)
#endif
#ifdef REAL_pairs
#define PER 2                    /* k of an Elem */
typedef uint32_t Elem;
#else
#define PER 1
typedef REAL Elem;
#endif
typedef Elem EVec __attribute__((vector_size(VBYTES)));
#define NV 2                     /* vectors of a strip and of a tile */
#define STRIP (NV * VN)
#if defined(ISA_avx512) || defined(__aarch64__)
#define MR 8                     /* rows of a tile: MR * NV sums, NV of b, one of a, in 32 registers */
#else
#define MR 6                     /* rows of a tile, for 16 registers */
#endif
#define HEAD_MAX 512             /* largest head size that the four row buffers of a thread can hold */
#define KEYS 128                 /* most keys of a block; wide heads have fewer */
#define LOG2E 1.44269504088896340736

#ifdef REAL_tiles
#define KEY_STEP 32              /* keys of a strip begin, and blocks end, at multiples of it: k of a tile */
#define ROW_STEP 16              /* rows of a panel that are read together: those of a tile */
#define STRIP_STEP STRIP         /* lanes of a strip are a multiple of it */
#else
#define KEY_STEP PER
#define ROW_STEP 1
#define STRIP_STEP VN
#endif

INLINE int64_t whole_vectors(int64_t n) { return (n + VN * PER - 1) / (VN * PER) * (VN * PER); }
/* Keys of a block, a function of the head size alone: the bits of a result depend on it. */
INLINE int64_t key_block(int64_t ld)
{
    const int64_t step = KEY_STEP > 16 ? KEY_STEP : 16;
    int64_t n = 32 * HEAD_MAX / ld / step * step;
    return n < KEYS ? n : KEYS;
}

typedef struct {
    int64_t i0, n;               /* first query, counted through the runs of a sample; number of queries */
    int64_t row;                 /* row of the first query within its sample */
    int64_t position;            /* of the first query; those of the others follow */
    int64_t width;               /* lanes: n in whole STRIP_STEPs; lanes past n are not stored */
    int64_t first, end;          /* positions outside of [first, end) are seen by no query */
    int64_t all_first, all_end;  /* keys in [all_first, all_end) are seen by all queries */
    IntLane lo[STRIP], hi[STRIP];    /* the query of a lane sees keys lo..hi; lanes past n as query n - 1 */
} Strip;

/* Makes *t the strip of sample b that starts at query i0 and ends before query `stop`, at the end of the
 * run of i0, or after STRIP. */
static inline void strip_open(Strip *t, const Attention *s, int64_t b, int64_t i0, int64_t stop)
{
    const PositionRun *r = s->q.run;
    int64_t at = i0;             /* i0 within its run */
    for (; at >= r->n; r++)
        at -= r->n;
    t->i0 = i0;
    t->row = r->row + at;
    t->position = r->start + at;
    t->n = stop - i0 < r->n - at ? stop - i0 : r->n - at;
    t->n = t->n < STRIP ? t->n : STRIP;
    t->width = (t->n + STRIP_STEP - 1) / STRIP_STEP * STRIP_STEP;
    t->first = t->all_end = INT64_MAX;
    t->end = t->all_first = 0;
    for (int64_t i = 0; i < t->n; i++) {
        int64_t hi = t->position + i, lo = s->doc_start ? s->doc_start[b * s->seq + hi] : 0;
        if (s->window > 0 && lo < hi - s->window + 1)
            lo = hi - s->window + 1;
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
/* The part of [*from, *to) that a run holds; empty where *from >= *to. Positions. */
INLINE void run_clip(const PositionRun *r, int64_t *from, int64_t *to)
{
    int64_t end = (int64_t)r->start + r->n;
    *from = *from > r->start ? *from : r->start;
    *to = *to < end ? *to : end;
}
/* Whether some query of the strip does not see some key of [from, to). */
INLINE int strip_masked(const Strip *t, int64_t a, int64_t b) { return a < t->all_first || b > t->all_end; }
/* Returns which of the lanes from v on see key j. */
INLINE IVec strip_sees(const Strip *t, int64_t v, int64_t j)
{
    IVec lo, hi, key = (IntLane)j - (IVec){0};
    memcpy(&lo, t->lo + v, sizeof lo);
    memcpy(&hi, t->hi + v, sizeof hi);
    return (key >= lo) & (key <= hi);
}

/* The keys [*from, *to) of [base, stop) that are looked at for a strip. Returns how many come before them, a
 * multiple of KEY_STEP. */
INLINE int64_t strip_keys(const Strip *t, int64_t base, int64_t stop, int64_t *from, int64_t *to)
{
    int64_t skip = t->first > base ? (t->first - base) / KEY_STEP * KEY_STEP : 0;
    *from = base + skip;
    *to = stop < t->end ? stop : t->end;
    return skip;
}

/* What the dropout masks of a strip are drawn from (isa.h). limit 0: no dropout. drop_masks makes the
 * masks of keys j .. j+3, j a multiple of 4, and lanes v .. v + VN. */
typedef struct { uint64_t key; uint32_t limit, hi0, hi1; int64_t position; } Drop;
static inline Drop drop_open(const Attention *s, int64_t b, int head, const Strip *t)
{
    if (s->dropout <= 0)
        return (Drop){0};
    uint64_t hi = (uint64_t)s->sample[b] << 16 | (uint64_t)(s->head0 + head);
    return (Drop){s->key, dropout_limit(s->dropout), (uint32_t)hi, (uint32_t)(hi >> 32), t->position};
}
static inline void drop_masks(IVec keep[4], const Drop *p, int64_t v, int64_t j)
{
    WVec word[4], zero = {0}, lane = {0};
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

/* The mask of key j and lanes v .. v + VN, for keys one after the other: those of four are drawn at once.
 * first: bool, the first key of all. */
INLINE IVec drop_mask(IVec keep[4], const Drop *p, int64_t v, int64_t j, int first)
{
    if (first || j % 4 == 0)
        drop_masks(keep, p, v, j & ~(int64_t)3);
    return keep[j % 4];
}

/* 2^x for x <= 0 and the rounding errors above 0. In F32 it is 0 from x = -126.5 down; NaN stays NaN. */
INLINE Vec vexp2(Vec x)
{
#ifdef REAL_f64
    for (int i = 0; i < VN; i++)
        x[i] = exp2(x[i]);
    return x;
#else
    /* x = n + r, |r| <= 1/2. Adding 1.5 * 2^23 + 127 rounds x to n and leaves n plus the exponent's bias
     * in the low bits; a shift makes 2^n of them, 0 at n = -127. The polynomial is 2^r: a least-squares
     * fit, reweighted until its relative error was level, 9.2e-8. */
    Vec c = vmax(vset(-127), x), t = c + 12583039.0f, r = c - (t - 12583039.0f);
    Vec p = r * 0.001326472731307149f + 0.009671512991189957f;
    p = p * r + 0.05550733581185341f;
    p = p * r + 0.24022242426872253f;
    p = p * r + 0.6931470036506653f;
    p = p * r + 1.0f;
    return p * (Vec)((IVec)t << 23);
#endif
}

/* SET: c = ab. ADD: c = c + ab. SCALE: c = c * alpha + ab, with one alpha a lane. */
typedef enum { SET, ADD, SCALE } Init;
typedef struct { REAL *c; const Elem *a, *b; int64_t ldc, lda, ldb; } Product;

INLINE EVec eload(const Elem *p) { EVec v; memcpy(&v, p, sizeof v); return v; }
INLINE void estore(Elem *p, EVec v) { memcpy(p, &v, sizeof v); }
#ifdef REAL_tiles
#include "attention_amx.h"
#else
/* Before and after products. */
INLINE void units_begin(void) {}
INLINE void units_end(void) {}

/* sum + ab, with a in every lane */
INLINE Vec multiply_add(Vec sum, Elem a, EVec b)
{
#ifdef REAL_pairs
    return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32((int)a), (__m512bh)b);
#else
    return sum + vset(a) * b;
#endif
}

/* A tile of M rows by N vectors of c. along: bool: a(m, k) is a[m*lda + k], else a[k*lda + m]. */
INLINE void tile(const int M, const int N, const int along, Product p, int64_t k, Init init,
                 const REAL *alpha)
{
    Vec sum[MR][NV];
    EVec b[NV];
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
            b[n] = eload(p.b + i * p.ldb + n * VN);
#pragma GCC unroll 16
        for (int m = 0; m < M; m++)
#pragma GCC unroll 4
            for (int n = 0; n < N; n++)
                sum[m][n] = multiply_add(sum[m][n], along ? p.a[m * p.lda + i] : p.a[i * p.lda + m], b[n]);
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

/* c [m, n] from a (m by k, see tile) and b [k, n]; n is a multiple of VN and k counts elements of a row:
 * an Elem that begins before k is multiplied whole. Sums run over k in order. */
static void product(int along, Product p, int64_t m, int64_t n, int64_t k, Init init, const REAL *alpha)
{
    k = (k + PER - 1) / PER;
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

/* c += or = what a panel with k across its rows, from row `skip` on, makes of b. */
INLINE Product across(REAL *c, const Elem *panel, int64_t skip, const Elem *b, int64_t ld, int64_t block)
{
    (void)block;
    return (Product){c, panel + skip * ld / PER, b, STRIP, ld, STRIP};
}
#define ACROSS 0                 /* how product() takes it */
#endif

/* Interleaves the lanes of two vectors: a0 b0 a1 b1 .. */
INLINE void interleave(EVec *first, EVec *second, EVec a, EVec b)
{
    IVec low, high;
    for (int i = 0; i < VN; i++) {
        low[i] = i / 2 + (i & 1) * VN;
        high[i] = low[i] + VN / 2;
    }
    *first = __builtin_shuffle(a, b, low);
    *second = __builtin_shuffle(a, b, high);
}

/* dst[c][r] = src[r][c]; rows and cols are multiples of VN. It works on VN x VN blocks: after log2(VN)
 * rounds, each of which interleaves rows i and i + VN/2, the rows of a block are its columns. */
static void transpose(Elem *dst, int64_t ldd, const Elem *src, int64_t lds, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; r += VN)
        for (int64_t c = 0; c < cols; c += VN) {
            EVec x[VN], y[VN];
            for (int i = 0; i < VN; i++)
                x[i] = eload(src + (r + i) * lds + c);
            for (int n = 1; n < VN; n *= 2) {
                for (int i = 0; i < VN / 2; i++)
                    interleave(&y[2 * i], &y[2 * i + 1], x[i], x[i + VN / 2]);
                memcpy(x, y, sizeof x);
            }
            for (int i = 0; i < VN; i++)
                estore(dst + (c + i) * ldd + r, x[i]);
        }
}

#define AHEAD 24                 /* rows that are prefetched before they are copied */
/* Prefetches columns [c, c+dim) of a row: processors do not follow short rows that are far apart. */
INLINE void prefetch_row(Mat x, int64_t r, int64_t c, int64_t dim)
{
    for (size_t i = 0; i < (size_t)dim * dtype_size(x.type); i += 64)
        __builtin_prefetch((char *)mat_at(x, r, c) + i);
}

/* pack: dst [n][ld] = columns [c, c+dim) of rows [r, r+n) of x, as reals, with zeros from dim on.
 * unpack: the other way. */
static inline void pack(REAL *dst, int64_t ld, Mat x, int64_t r, int64_t n, int64_t c, int64_t dim)
{
    for (int64_t i = 0; i < n; i++) {
        REAL *to = dst + i * ld;
        prefetch_row(x, r + i + AHEAD, c, dim);
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

/* Rows with k along them, `step` apart, and with k across them, [n / PER][ld]. */
typedef struct { Elem *along, *across; int64_t step; } Panel;

/* A panel of n rows, a multiple of PER, in memory of n * ld reals. */
static inline Panel panel_at(REAL *p, int64_t n, int64_t ld)
{
    return (Panel){(Elem *)p, (Elem *)p + n * ld / PER * (PER - 1), ld / PER};
}

/* Fills a panel's rows with zeros from row n to `stop` and with columns [c, c+dim) of rows [r, r+n) of x
 * before that. In the build `pairs` x is BF16. */
static inline void panel_rows(Panel to, int64_t ld, Mat x, int64_t r, int64_t n, int64_t stop, int64_t c,
                              int64_t dim)
{
#ifdef REAL_pairs
    for (int64_t i = 0; i < n; i++) {
        char *row = (char *)(to.along + i * ld / 2);
        prefetch_row(x, r + i + AHEAD, c, dim);
        memcpy(row, mat_at(x, r + i, c), (size_t)dim * 2);
        memset(row + dim * 2, 0, (size_t)(ld - dim) * 2);
    }
#else
    pack(to.along, ld, x, r, n, c, dim);
#endif
    memset(to.along + n * ld / PER, 0, (size_t)((stop - n) * ld / PER) * sizeof(Elem));
}

#ifdef REAL_pairs
/* Indices 0, second, 1, second + 1, .. 15, second + 15. */
INLINE __m512i pairs_of_halves(int second)
{
    __m512i i = _mm512_cvtepu16_epi32(_mm256_set_epi16(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
    return _mm512_or_si512(i, _mm512_slli_epi32(_mm512_add_epi32(i, _mm512_set1_epi32(second)), 16));
}
#endif

/* Returns the n rows [r, r+n), columns [c, c+dim), of x for the products of `strips` strips: copied to `room`
 * or, in the builds `pairs` and `tiles` for a single strip, where they lie, if its products can read that. */
static inline Panel panel_of(Panel room, int64_t ld, Mat x, int64_t r, int64_t n, int64_t c, int64_t dim,
                             int strips)
{
    if (PER == 1 || strips > 1 || dim != ld || n % ROW_STEP || x.ld % PER) {
        panel_rows(room, ld, x, r, n, n, c, dim);
        return room;
    }
    for (int64_t i = 0; i < n; i++)
        prefetch_row(x, r + i, c, dim);
    return (Panel){mat_at(x, r, c), room.across, x.ld / PER};
}

/* Makes across [n / PER][ld] of a panel's n rows; the partner of an odd last row is zeros. */
static inline void panel_across(Panel p, int64_t ld, int64_t n)
{
#ifdef REAL_pairs
    const Elem *row = p.along;
    for (int64_t i = 0; i < n; i += 2, row += 2 * p.step)
        for (int64_t c = 0; c < ld / 2; c += VN) {
            __m512i a = (__m512i)eload(row + c), b = {0}, low = pairs_of_halves(32);
            __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
            if (i + 1 < n)
                b = (__m512i)eload(row + p.step + c);
            estore(p.across + i / 2 * ld + 2 * c, (EVec)_mm512_permutex2var_epi16(a, low, b));
            estore(p.across + i / 2 * ld + 2 * c + VN, (EVec)_mm512_permutex2var_epi16(a, high, b));
        }
#else
    (void)p, (void)ld, (void)n;
#endif
}

/* Makes of a panel's n rows, of at most `block`, what products with k across them take. */
INLINE void panel_turn(Panel p, int64_t ld, int64_t n, int64_t block)
{
#ifdef REAL_tiles
    turn_keys(p.across, p.along, p.step, ld, n, block);
#else
    (void)block;
    panel_across(p, ld, n);
#endif
}

/* Fills with zeros the rows after key n of a block's scores, with k across the lanes, that products read. */
INLINE void zeros_across(REAL *p, int64_t n)
{
    for (int64_t i = (n + PER - 1) / PER; i < (n + KEY_STEP - 1) / KEY_STEP * KEY_STEP / PER; i++)
        for (int v = 0; v < STRIP; v += VN)
            vstore(p + i * STRIP + v, vset(0));
}

/* Store what is computed of lanes [v, v + VN) of a block's scores, p [key][STRIP], in the same memory; a
 * row of p is read before it is written. put_along: key i, with k along the lanes. put_across: keys i ..
 * i + PER, with k across the lanes. */
INLINE void put_along(REAL *p, int64_t i, int64_t v, Vec x)
{
#ifdef REAL_pairs
    __m256i half = (__m256i)_mm512_cvtneps_pbh(x);
    memcpy((char *)(p + i * STRIP) + 2 * v, &half, sizeof half);
#else
    vstore(p + i * STRIP + v, x);
#endif
}
INLINE void put_across(REAL *p, int64_t i, int64_t v, const Vec x[PER])
{
#ifdef REAL_pairs
    __m512i both = (__m512i)_mm512_cvtne2ps_pbh(x[1], x[0]);
    estore((Elem *)p + i / 2 * STRIP + v, (EVec)_mm512_permutexvar_epi16(pairs_of_halves(16), both));
#else
    vstore(p + i * STRIP + v, x[0]);
#endif
}
#endif
