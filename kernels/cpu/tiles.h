/* tiles -- the AMX tile registers of a thread: eight of 16 rows of 64 bytes. Palette 1 has them on every CPU,
 * so CPUID's leaf 0x1D, which some hypervisors hide, is not read. */
#ifndef TILES_H
#define TILES_H
#include "bf16.h"

#define TILE_WORDS 16          /* 32-bit words of a row: pairs of BF16, or F32 */

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} TileConfig;

/* Configures all tiles: those from `narrow` on have 16 rows of `bytes` bytes, the others of 64. */
static inline void tiles_configure(int narrow, int bytes)
{
    TileConfig c = {.palette = 1};
    for (int t = 0; t < 8; t++)
        c.rows[t] = 16, c.row_bytes[t] = (uint16_t)(t < narrow ? 4 * TILE_WORDS : bytes);
    /* gcc 12 takes it that _tile_loadconfig reads 8 of the 64 bytes and drops the stores to the others;
     * this statement keeps them */
    __asm__ volatile("" ::"r"(&c) : "memory");
    _tile_loadconfig(&c);
}
static void tiles_begin(void) { tiles_configure(8, 0); }
static void tiles_end(void) { _tile_release(); }

/* Eight instructions that do nothing. On a busy machine tile instructions right behind each other take 1.5
 * times as long as with others between them, probably where another program has the core's other hyperthread.
 * On a quiet one the eight cost nothing beside a product's 16 cycles. */
INLINE void tiles_apart(void) { __asm__ volatile(".rept 8\n\tnop\n\t.endr"); }

/* Loads or, without `add`, clears the sums of 16 rows by 32 columns of c or, with `both`, of 32 rows: tile
 * registers 0 and 1 are the upper half, 2 and 3 the lower. step: bytes from a row of c to the next. */
INLINE void tiles_open(const float *c, int64_t step, const int both, int add)
{
    const char *low = (const char *)c + 16 * step;
    if (add) {
        _tile_loadd(0, c, step);
        _tile_loadd(1, c + TILE_WORDS, step);
        if (both) {
            _tile_loadd(2, low, step);
            _tile_loadd(3, low + 4 * TILE_WORDS, step);
        }
        return;
    }
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

/* Stores the sums; see tiles_open. */
INLINE void tiles_store(float *c, int64_t step, const int both)
{
    char *low = (char *)c + 16 * step;
    _tile_stored(0, c, step);
    _tile_stored(1, c + TILE_WORDS, step);
    if (both) {
        _tile_stored(2, low, step);
        _tile_stored(3, low + 4 * TILE_WORDS, step);
    }
}

/* Tiles of one factor: those of the first and of the second half of the sums' rows, or columns. step: bytes
 * from a row of a tile to the next. near: they are read through L1, else past it. */
typedef struct { const void *first, *second; int64_t step; int near; } TilePair;

/* Adds to the sums the product of tiles of a, 32 or 16 rows with 32 of k along them, and of b, 16 pairs of k
 * with 32 columns along them. Tile registers 4 and 5 are a, 6 and 7 are b. */
INLINE void tiles_multiply(const TilePair a, const TilePair b, const int both)
{
#define LOAD(t, pair, half)                                                                                  \
    do {                                                                                                     \
        if ((pair).near)                                                                                     \
            _tile_loadd(t, (pair).half, (pair).step);                                                        \
        else                                                                                                 \
            _tile_stream_loadd(t, (pair).half, (pair).step);                                                 \
        tiles_apart();                                                                                       \
    } while (0)
#define ADD(c, a, b)                                                                                         \
    do {                                                                                                     \
        _tile_dpbf16ps(c, a, b);                                                                             \
        tiles_apart();                                                                                       \
    } while (0)
    LOAD(6, b, first);
    LOAD(4, a, first);
    ADD(0, 4, 6);
    LOAD(7, b, second);
    ADD(1, 4, 7);
    if (both) {
        LOAD(5, a, second);
        ADD(2, 5, 6);
        ADD(3, 5, 7);
    }
#undef LOAD
#undef ADD
}
#endif
