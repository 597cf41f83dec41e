/* tiles -- the AMX tile registers of a thread: eight of 16 rows of 64 bytes. Palette 1 has them on every CPU,
 * so CPUID's leaf 0x1D, which some hypervisors hide, is not read. */
#ifndef TILES_H
#define TILES_H
#include <immintrin.h>
#include <stdint.h>

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
#endif
