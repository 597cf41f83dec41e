/* attention_amx -- products of attention by AMX, for attention_tile.h's build `tiles`.
 *
 * Tiles of `a` are sixteen rows with 32 of k along them, tiles of b sixteen pairs of k with sixteen lanes
 * along them: panels and scores are read where they lie. Keys and values that are multiplied with k across
 * their rows, which are keys, are transposed once for each block. */
#ifndef ATTENTION_AMX_H
#define ATTENTION_AMX_H
#include "tiles.h"

#define GROUP_WORDS (KEY_STEP / 2)     /* words of a tile's row */
#define ROWS 16                  /* of a tile */

INLINE void units_begin(void) { tiles_begin(); }
INLINE void units_end(void) { tiles_end(); }

/* 32 columns of sixteen rows of c or, with `both`, 32. */
INLINE void amx_block(Product p, int64_t groups, const int both, int add)
{
    tiles_open(p.c, 4 * p.ldc, both, add);
    for (; groups; groups--, p.a += GROUP_WORDS, p.b += ROWS * p.ldb)
        tiles_multiply((TilePair){p.a, p.a + ROWS * p.lda, 4 * p.lda, 1},
                       (TilePair){p.b, p.b + TILE_WORDS, 4 * p.ldb, 1}, both);
    tiles_store(p.c, 4 * p.ldc, both);
}

/* The last m rows of c, fewer than a tile's, of which no others may be written. */
static void amx_rest(Product p, int64_t m, int64_t groups)
{
    _Alignas(64) REAL c[ROWS * STRIP] = {0};
    Product q = p;
    q.c = c, q.ldc = STRIP;
    for (int64_t i = 0; i < m; i++)
        memcpy(c + i * STRIP, p.c + i * p.ldc, STRIP * sizeof(REAL));
    amx_block(q, groups, 0, 1);
    for (int64_t i = 0; i < m; i++)
        memcpy(p.c + i * p.ldc, c + i * STRIP, STRIP * sizeof(REAL));
}

/* c [m, n] from a [m][k] and b [k][n]; n is a multiple of STRIP. k counts elements of a row and is taken as
 * the next multiple of KEY_STEP: the rows of b from k on are zeros. With SET rows of c up to the next
 * multiple of ROWS are written, and as many rows of a are read. */
static void product(int along, Product p, int64_t m, int64_t n, int64_t k, Init init, const REAL *alpha)
{
    (void)along;
    int64_t groups = (k + KEY_STEP - 1) / KEY_STEP;
    for (int64_t i = 0; init == SCALE && i < m; i++)
        for (int64_t v = 0; v < n; v += VN)
            vstore(p.c + i * p.ldc + v, vload(p.c + i * p.ldc + v) * vload(alpha + v));
    m = init == SET ? (m + ROWS - 1) / ROWS * ROWS : m;
    for (int64_t v = 0; v < n; v += STRIP) {
        Product q = {p.c + v, p.a, p.b + v, p.ldc, p.lda, p.ldb};
        int64_t left = m;
        for (; left >= 2 * ROWS; left -= 2 * ROWS, q.a += 2 * ROWS * q.lda, q.c += 2 * ROWS * q.ldc)
            amx_block(q, groups, 1, init != SET);
        if (left >= ROWS) {
            amx_block(q, groups, 0, init != SET);
            left -= ROWS, q.a += ROWS * q.lda, q.c += ROWS * q.ldc;
        }
        if (left)
            amx_rest(q, left, groups);
    }
}

/* to [ld][block / 2] pairs of keys, from n of at most `block` keys, `step` apart; zeros from key n to the
 * next multiple of KEY_STEP. */
static void turn_keys(Elem *to, const Elem *from, int64_t step, int64_t ld, int64_t n, int64_t block)
{
    for (int64_t j = 0; j < n; j += KEY_STEP)
        for (int64_t d = 0; d < ld; d += ROWS) {
            const char *p = (const char *)(from + j * step + d / 2);
            Factor f = {.p = p, .lane_step = 1, .k_step = 2 * step, .type = BF16};
            __m512i v[16];
            load_across_k(v, f, ROWS, n - j);
            transpose_words(v);
#pragma GCC unroll 16
            for (int i = 0; i < ROWS; i++)
                _mm512_storeu_si512(to + (d + i) * (block / 2) + j / 2, v[i]);
        }
}

/* See attention_tile.h. */
INLINE Product across(REAL *c, const Elem *panel, int64_t skip, const Elem *b, int64_t ld, int64_t block)
{
    (void)ld;
    return (Product){c, panel + skip / 2, b, STRIP, block / 2, STRIP};
}
#define ACROSS 1
#endif
