/* amx -- products of BF16 by AMX. TDPBF16PS multiplies tiles of 16 rows by 64 bytes; like vdpbf16ps it
 * takes denormals for zero. Palette 1 has eight tiles of 16 x 64 bytes on every CPU, so CPUID's leaf
 * 0x1D, which some hypervisors hide, is not read. */
#define _GNU_SOURCE
#include "bf16.h"
#include "cpu.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ROWS 16                /* rows of a tile */
#define WORDS 16               /* 32-bit words of a tile's row: pairs of BF16, or F32 */
#define MR 32
#define NR 32
#define GROUP 32               /* k of one tile product */
#define KC 512

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} TileConfig;

static void begin(void)
{
    TileConfig c = {.palette = 1};
    for (int t = 0; t < 8; t++)
        c.rows[t] = ROWS, c.row_bytes[t] = 4 * WORDS;
    /* gcc 12 takes it that _tile_loadconfig reads 8 of the 64 bytes and drops the stores to the others;
     * this statement keeps them */
    __asm__ volatile("" ::"r"(&c) : "memory");
    _tile_loadconfig(&c);
}
static void end(void) { _tile_release(); }

/* GemmKernel.tile. Tile registers 0 and 1 are the upper half of c, 2 and 3 the lower half, 4 and 5 are
 * a, 6 and 7 are b. a is [kn/32][32 rows][32 of k], b is [kn/2][32] pairs. */
static void tile(int64_t kn, const void *a, const void *b, void *c, int rows, int add)
{
    const char *x = a, *y = b;
    float *z = c;
    int both = rows > ROWS;
    if (add) {
        _tile_loadd(0, z, NR * 4);
        _tile_loadd(1, z + WORDS, NR * 4);
        if (both) {
            _tile_loadd(2, z + ROWS * NR, NR * 4);
            _tile_loadd(3, z + ROWS * NR + WORDS, NR * 4);
        }
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t k = 0; k < kn; k += GROUP, x += 2 * MR * GROUP, y += 2 * NR * GROUP) {
        _tile_loadd(6, y, NR * 4);
        _tile_loadd(7, y + 4 * WORDS, NR * 4);
        _tile_loadd(4, x, 2 * GROUP);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (both) {
            _tile_loadd(5, x + 2 * ROWS * GROUP, 2 * GROUP);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, z, NR * 4);
    _tile_stored(1, z + WORDS, NR * 4);
    if (both) {
        _tile_stored(2, z + ROWS * NR, NR * 4);
        _tile_stored(3, z + ROWS * NR + WORDS, NR * 4);
    }
}

static void pack_a(void *panel, Factor f, int lanes, int64_t kn)
{
    uint32_t *to = panel;
    for (int64_t k = 0; k < kn; k += GROUP)
        for (int l = 0; l < MR; l += ROWS, to += ROWS * WORDS) {
            Factor g = factor_at(f, l, k);
            __m512i v[16];
            if (f.k_step == 1) {
                load_along_k(v, g, lanes - l, kn - k);
                prefetch_along_k(g, MR);
            } else {
#pragma GCC unroll 16
                for (int p = 0; p < WORDS; p++) {
                    Factor h = factor_at(g, 0, 2 * p);
                    int64_t left = kn - k - 2 * p;
                    v[p] = left > 0 ? load_pair(h, lanes - l, left) : _mm512_setzero_si512();
                }
                transpose_words(v);
            }
#pragma GCC unroll 16
            for (int i = 0; i < ROWS; i++)
                _mm512_storeu_si512(to + i * WORDS, v[i]);
        }
}
static void pack_b(void *to, Factor f, int lanes, int64_t kn) { pack_pairs(to, f, lanes, kn, GROUP, NR); }

const GemmKernel amx_kernel = {
    .name = "amx", .size = sizeof(uint16_t),
    .mr = MR, .nr = NR, .group = GROUP, .kc = KC, .mc = 128, .strip = 256 << 10,
    .pack_a = pack_a, .pack_b = pack_b, .tile = tile, .finish = gemm_finish_avx512_f32,
    .begin = begin, .end = end,
};

static sigjmp_buf trapped;
static void on_trap(int sig)
{
    (void)sig;
    siglongjmp(trapped, 1);
}

/* Linux lets a process use AMX tiles only on request (arch_prctl); its threads inherit the permission. */
int amx_works(void)
{
    enum { REQUEST = 0x1023, TILE_DATA = 18 };
    if (syscall(SYS_arch_prctl, REQUEST, TILE_DATA))
        return 0;
    struct sigaction act = {.sa_handler = on_trap}, old;
    sigaction(SIGILL, &act, &old);
    volatile int good = 0;
    if (!sigsetjmp(trapped, 1)) {
        _Alignas(64) uint16_t one[MR * GROUP];
        _Alignas(64) float sum[MR * NR];
        for (int i = 0; i < MR * GROUP; i++)
            one[i] = 0x3f80;
        begin();
        tile(GROUP, one, one, sum, MR, 0);
        end();
        good = 1;
        for (int i = 0; i < MR * NR; i++)
            good = good && sum[i] == GROUP;
    }
    sigaction(SIGILL, &old, NULL);
    return good;
}
