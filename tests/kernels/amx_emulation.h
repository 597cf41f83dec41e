/* amx_emulation -- the AMX tile instructions in software, to test amx.c on a CPU without AMX: include
 * this file, then amx.c. Each thread has its own tiles; their use without a configuration aborts, where
 * hardware traps. */
#ifndef AMX_EMULATION_H
#define AMX_EMULATION_H
#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local struct {
    int ready;
    uint16_t row_bytes[8];
    uint8_t rows[8], data[8][16][64];
} tiles;

static void emulate_config(const void *config)
{
    const uint8_t *c = config;
    if (c[0] != 1)
        abort();
    memcpy(tiles.row_bytes, c + 16, sizeof tiles.row_bytes);
    memcpy(tiles.rows, c + 48, sizeof tiles.rows);
    memset(tiles.data, 0, sizeof tiles.data);
    tiles.ready = 1;
}
static void emulate_release(void) { tiles.ready = 0; }

static void emulate_check(int t)
{
    if (!tiles.ready || tiles.rows[t] > 16 || tiles.row_bytes[t] > 64)
        abort();
}
static void emulate_zero(int t)
{
    emulate_check(t);
    memset(tiles.data[t], 0, sizeof tiles.data[t]);
}
static void emulate_load(int t, const void *from, int64_t stride)
{
    emulate_check(t);
    for (int r = 0; r < tiles.rows[t]; r++)
        memcpy(tiles.data[t][r], (const char *)from + r * stride, tiles.row_bytes[t]);
}
static void emulate_store(int t, void *to, int64_t stride)
{
    emulate_check(t);
    for (int r = 0; r < tiles.rows[t]; r++)
        memcpy((char *)to + r * stride, tiles.data[t][r], tiles.row_bytes[t]);
}
static float emulate_bf16(const uint8_t *p)
{
    uint8_t wide[4] = {0, 0, p[0], p[1]};
    float f;
    memcpy(&f, wide, sizeof f);
    return f;
}
/* Tiles: c [m][n] F32 += a [m][k] b [k][n], where an element of a and b is a pair of BF16; k in order. */
static void emulate_dot(int c, int a, int b)
{
    emulate_check(a), emulate_check(b), emulate_check(c);
    for (int m = 0; m < tiles.rows[c]; m++)
        for (int k = 0; k < tiles.row_bytes[a] / 4; k++)
            for (int n = 0; n < tiles.row_bytes[c] / 4; n++) {
                const uint8_t *x = tiles.data[a][m] + 4 * k, *y = tiles.data[b][k] + 4 * n;
                float sum;
                memcpy(&sum, tiles.data[c][m] + 4 * n, sizeof sum);
                sum += emulate_bf16(x) * emulate_bf16(y) + emulate_bf16(x + 2) * emulate_bf16(y + 2);
                memcpy(tiles.data[c][m] + 4 * n, &sum, sizeof sum);
            }
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_stream_loadd
#undef _tile_dpbf16ps
#define _tile_loadconfig emulate_config
#define _tile_release emulate_release
#define _tile_zero emulate_zero
#define _tile_loadd emulate_load
#define _tile_stream_loadd emulate_load
#define _tile_stored emulate_store
#define _tile_dpbf16ps emulate_dot
#endif
