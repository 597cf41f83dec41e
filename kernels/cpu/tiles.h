/* tiles -- the AMX tile registers of a thread: eight of 16 rows of 64 bytes. Palette 1 has them on every CPU, so
 * CPUID's leaf 0x1D, which some hypervisors hide, is not read. */
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

static void tiles_begin(void)
{
    TileConfig c = {.palette = 1};
    for (int t = 0; t < 8; t++)
        c.rows[t] = 16, c.row_bytes[t] = 4 * TILE_WORDS;
    /* gcc 12 takes it that _tile_loadconfig reads 8 of the 64 bytes and drops the stores to the others;
     * this statement keeps them */
    __asm__ volatile("" ::"r"(&c) : "memory");
    _tile_loadconfig(&c);
}
static void tiles_end(void) { _tile_release(); }
#endif
