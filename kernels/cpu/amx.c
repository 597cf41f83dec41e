/* amx -- products of BF16 by AMX. TDPBF16PS multiplies tiles of 16 rows by 64 bytes; like vdpbf16ps it
 * takes denormals for zero. */
#define _GNU_SOURCE
#include "cpu.h"
#include "tiles.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ROWS 16                /* rows of a tile */
#define WORDS TILE_WORDS
#define MR 32
#define NR 64
#define GROUP 32               /* k of one tile product */
#define TILE 1024              /* bytes */
#define KC 4096                /* sums stay in tile registers */
#define NEAR 512               /* of k: 32 KiB of a panel of op(a), of an L1 of 48 */

/* What is prefetched beside the `all` products of a tile: soon[0] is written then, and becomes this core's
 * own. Before each product due[i] grows by the rows of soon[i]; whenever it reaches `all`, a row is
 * prefetched. */
typedef struct { Soon soon[2]; int due[2], all; } Ahead;

INLINE void prefetch_due(Ahead *h)
{
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        Soon *s = &h->soon[i];
        for (h->due[i] += s->rows; h->due[i] >= h->all; h->due[i] -= h->all, s->p += s->step)
            for (int l = 0; l < s->wide; l++)
                if (i == 0)
                    __builtin_prefetch(s->p + LINE * l, 1);
                else
                    __builtin_prefetch(s->p + LINE * l, 0, 2);
    }
}

/* Half a tile, 32 x 32. step: GemmKernel.tile's. */
INLINE void tile_half(int64_t kn, const char *a, int64_t step, const char *b, float *c, const int both,
                      int add, Ahead *h)
{
    const char *low = a + (step ? ROWS * step : TILE);
    int64_t next = step ? 4 * WORDS : MR / ROWS * TILE;
    step = step ? step : 4 * WORDS;
    tiles_open(c, NR * 4, both, add);
    for (int64_t k = 0; k < kn; k += GROUP, a += next, low += next, b += NR / WORDS * TILE) {
        prefetch_due(h);
        tiles_multiply((TilePair){a, low, step, k < NEAR}, (TilePair){b, b + TILE, 4 * WORDS, 0}, both);
    }
    tiles_store(c, NR * 4, both);
}

/* GemmKernel.tile. Panels are sequences of tiles: a is [kn/32][2][16 rows][32 of k], b is
 * [kn/32][4][16 pairs of k][16 columns]. Rows as they lie are tiles, too. The first NEAR of k of a stay in L1
 * for the tiles of its row; the others and b are read past it. */
static void tile(int64_t kn, const void *a, int64_t step, const void *b, void *c, int rows, int add,
                 const Soon *soon)
{
    Ahead ahead = {{soon[0], soon[1]}, {0}, (int)(2 * kn / GROUP)};
    for (int h = 0; h < 2; h++) {
        const char *half = (const char *)b + h * 2 * TILE;
        if (rows > ROWS)
            tile_half(kn, a, step, half, (float *)c + h * 2 * WORDS, 1, add, &ahead);
        else
            tile_half(kn, a, step, half, (float *)c + h * 2 * WORDS, 0, add, &ahead);
    }
}

/* The vector whose 128-bit pieces are `step` bytes apart: each is inserted as it is loaded, which takes no
 * shuffle. */
INLINE __m512i load_pieces(const char *p, int64_t step)
{
    __m512i v = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)p));
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(p + step)), 1);
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(p + 2 * step)), 2);
    return _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(p + 3 * step)), 3);
}

/* to [16 pairs of k][16 lanes], from lanes of 64 bytes, `step` bytes apart. */
INLINE void turn_lanes(uint32_t *to, const char *from, int64_t step)
{
#pragma GCC unroll 4
    for (int q = 0; q < 4; q++, from += 16, to += 4 * WORDS) {
        __m512i a = load_pieces(from, 4 * step), b = load_pieces(from + step, 4 * step);
        __m512i c = load_pieces(from + 2 * step, 4 * step), d = load_pieces(from + 3 * step, 4 * step);
        __m512i ab = _mm512_unpacklo_epi32(a, b), cd = _mm512_unpacklo_epi32(c, d);
        _mm512_storeu_si512(to, _mm512_unpacklo_epi64(ab, cd));
        _mm512_storeu_si512(to + WORDS, _mm512_unpackhi_epi64(ab, cd));
        ab = _mm512_unpackhi_epi32(a, b), cd = _mm512_unpackhi_epi32(c, d);
        _mm512_storeu_si512(to + 2 * WORDS, _mm512_unpacklo_epi64(ab, cd));
        _mm512_storeu_si512(to + 3 * WORDS, _mm512_unpackhi_epi64(ab, cd));
    }
}

/* to [8 lanes][32 of k], from 32 of k of eight lanes, 64 bytes apart: three rounds, each of which joins
 * neighbours in k of twice as many. */
INLINE void turn_rows(uint32_t *to, const char *from)
{
    __m512i a[8], b[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        a[i] = load_pieces(from + i * 64, 8 * 64);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        b[i] = _mm512_unpacklo_epi16(a[2 * i], a[2 * i + 1]);     /* lanes 0 .. 3 */
        b[4 + i] = _mm512_unpackhi_epi16(a[2 * i], a[2 * i + 1]); /* lanes 4 .. 7 */
    }
#pragma GCC unroll 2
    for (int h = 0; h < 8; h += 4) {
        a[h] = _mm512_unpacklo_epi32(b[h], b[h + 1]), a[h + 1] = _mm512_unpacklo_epi32(b[h + 2], b[h + 3]);
        a[h + 2] = _mm512_unpackhi_epi32(b[h], b[h + 1]),
              a[h + 3] = _mm512_unpackhi_epi32(b[h + 2], b[h + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2, to += 2 * WORDS) {
        _mm512_storeu_si512(to, _mm512_unpacklo_epi64(a[i], a[i + 1]));
        _mm512_storeu_si512(to + WORDS, _mm512_unpackhi_epi64(a[i], a[i + 1]));
    }
}

/* Joins two rows of 32 lanes as pairs, of sixteen lanes each. */
INLINE void join_rows(uint32_t *first, uint32_t *second, const char *p, int64_t step)
{
    const __m512i turn = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
    __m512i a = _mm512_permutexvar_epi64(turn, _mm512_loadu_si512(p));
    __m512i b = _mm512_permutexvar_epi64(turn, _mm512_loadu_si512(p + step));
    _mm512_storeu_si512(first, _mm512_unpacklo_epi16(a, b));
    _mm512_storeu_si512(second, _mm512_unpackhi_epi16(a, b));
}

/* Packs 32 lanes by 32 of k, all there, as two tiles; across: see pack_tiles. */
INLINE void pack_two(uint32_t *to, Factor f, const int across)
{
    int64_t step = 2 * (f.k_step == 1 ? f.lane_step : f.k_step);
    _Alignas(64) uint32_t rows[32 * WORDS];
    if (f.k_step == 1 && across) {
        turn_lanes(to, f.p, step);
        turn_lanes(to + ROWS * WORDS, f.p + ROWS * step, step);
    } else if (across) {
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++)
            join_rows(to + i * WORDS, to + (ROWS + i) * WORDS, f.p + 2 * i * step, step);
    } else {
        uint32_t *copy = f.k_step == 1 ? to : rows;
#pragma GCC unroll 32
        for (int i = 0; i < 32; i++)
            _mm512_storeu_si512(copy + i * WORDS, _mm512_loadu_si512(f.p + i * step));
        for (int l = 0; copy == rows && l < 32; l += 8)
            turn_rows(to + l * WORDS, (const char *)rows + 2 * l);
    }
}

/* A tile of any of sixteen lanes by 32 of k; across: see pack_tiles. */
static void pack_some(uint32_t *to, Factor f, int64_t lanes, int64_t kn, int across)
{
    __m512i v[16];
    if (f.k_step == 1)
        load_along_k(v, f, lanes, kn);
    else
        load_across_k(v, f, lanes, kn);
    if ((f.k_step == 1) == across)
        transpose_words(v);
    for (int i = 0; i < ROWS; i++)
        _mm512_storeu_si512(to + i * WORDS, v[i]);
}

/* Prefetches 32 rows of 64 bytes to L2: in L1 rows of some lengths would be in the way of each other. */
INLINE void prefetch_rows(const char *p, int64_t step)
{
#pragma GCC unroll 32
    for (int i = 0; i < 32; i++)
        __builtin_prefetch(p + i * step, 0, 2);
}

/* Prefetches what pack_tiles reads soon after the block at (l, k) of panel f. With k across the rows a block
 * is 64 bytes of each row, and the CPU fetches 128 together: both halves are asked for at a time. */
INLINE void prefetch_source(Factor f, int64_t l, int64_t k, int64_t kn, const int width)
{
    int64_t next = k + 4 * GROUP;
    if (f.k_step == 1) {
        prefetch_rows((next < kn ? factor_at(f, l, next) : factor_at(f, l + width, next - kn)).p,
                      2 * f.lane_step);
    } else if ((uintptr_t)factor_at(f, l, k).p / LINE % 2 == 0) {
        const char *p = factor_at(f, l, k + 2 * GROUP).p;
        prefetch_rows(p, 2 * f.k_step);
        prefetch_rows(p + LINE, 2 * f.k_step);
    }
}

/* Packs a panel of `width` lanes as tiles, whose rows are lanes with k along them or, across: bool, pairs
 * of k with lanes along them. The next two tiles' place is made this core's own meanwhile: stores to lines
 * that are elsewhere are three times as slow. */
INLINE void pack_tiles(uint32_t *to, Factor f, int lanes, int64_t kn, const int width, const int across)
{
    for (int64_t k = 0; k < kn; k += GROUP)
        for (int l = 0; l < width; l += 2 * ROWS, to += 2 * ROWS * WORDS) {
            Factor g = factor_at(f, l, k);
            if (lanes - l < 32 || kn - k < GROUP) {
                pack_some(to, g, lanes - l, kn - k, across);
                pack_some(to + ROWS * WORDS, factor_at(g, ROWS, 0), lanes - l - ROWS, kn - k, across);
                continue;
            }
            prefetch_source(f, l, k, kn, width);
#pragma GCC unroll 32
            for (int i = 0; i < 32; i++)
                __builtin_prefetch((char *)to + 2 * TILE + LINE * i, 1);
            pack_two(to, g, across);
        }
}
static void pack_a(void *panel, Factor f, int lanes, int64_t kn)
{
    pack_tiles(panel, f, lanes, kn, MR, 0);
}
static void pack_b(void *panel, Factor f, int lanes, int64_t kn)
{
    pack_tiles(panel, f, lanes, kn, NR, 1);
}

/* GemmKernel.finish: to BF16, or to F32, in a few instructions; all else as for reals. The conversion to BF16
 * takes denormals for 0, as the products do. */
static void finish(const Finish *f, void *tile, int width, int rows, int cols)
{
    int bf16 = f->out.type == BF16, bias = f->bias.p != NULL;
    int plain = bf16 ? !f->acc && (!bias || f->bias.type == BF16) : f->out.type == F32 && !bias;
    if (f->scaled || f->part.p || !plain) {
        gemm_finish_avx512_f32(f, tile, width, rows, cols);
        return;
    }
    __m512 x[4], b[4];
    __mmask16 some[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) {
        some[v] = (__mmask16)first_bits(cols - WORDS * v);
        b[v] = _mm512_setzero_ps();
        if (bias && some[v]) {
            __m256i half = _mm256_maskz_loadu_epi16(some[v], (const char *)f->bias.p + 2 * WORDS * v);
            b[v] = (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16);
        }
    }
    for (int r = 0; r < rows; r++) {
        float *t = (float *)tile + r * NR, *to = mat_at(f->out, r, 0);
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++)
            x[v] = _mm512_loadu_ps(t + WORDS * v) +
                   (f->acc ? _mm512_maskz_loadu_ps(some[v], to + WORDS * v) : b[v]);
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++)
            if (!bf16)
                _mm512_mask_storeu_ps(to + WORDS * v, some[v], x[v]);
            else if (v % 2)
                _mm512_mask_storeu_epi16(to + WORDS * (v / 2), first_bits(cols - 32 * (v / 2)),
                                         (__m512i)_mm512_cvtne2ps_pbh(x[v], x[v - 1]));
    }
}

/* GemmKernel.row. Sixteen lanes of b are sixteen rows of a tile where they lie, and the row is a tile of one
 * column. They are read from end to end, and then the next ones: these are prefetched to L2, and from there
 * to L1 two tiles ahead. */
static void row(int64_t kn, Factor a, Factor b, int cols, void *tile)
{
    _Alignas(64) uint16_t lanes[ROWS * GROUP], x[GROUP];
    tiles_configure(6, 4);
    for (int l = 0; l < cols; l += ROWS) {
        _tile_zero(6);
        for (int64_t k = 0; k < kn; k += GROUP) {
            Factor f = factor_at(b, l, k);
            if (cols - l >= ROWS && kn - k >= GROUP) {
#pragma GCC unroll 16
                for (int i = 0; i < ROWS; i++) {
                    __builtin_prefetch(f.p + 2 * (ROWS + i) * b.lane_step, 0, 2);
                    __builtin_prefetch(f.p + 2 * (2 * GROUP + i * b.lane_step));
                }
                _tile_loadd(0, f.p, 2 * b.lane_step);
                _tile_loadd(7, a.p + 2 * k, 4);
            } else {
                pack_some((uint32_t *)lanes, f, cols - l, kn - k, 0);
                _mm512_store_si512(x, _mm512_maskz_loadu_epi16(first_bits(kn - k), a.p + 2 * k));
                _tile_loadd(0, lanes, 2 * GROUP);
                _tile_loadd(7, x, 4);
            }
            _tile_dpbf16ps(6, 0, 7);
        }
        _tile_stored(6, (float *)tile + l, 4);
    }
    tiles_end();
}

const GemmKernel amx_kernel = {
    .name = "amx", .size = sizeof(uint16_t), .lies = 1,
    .mr = MR, .nr = NR, .group = GROUP, .kc = KC, .along = 1, .mc = 128, .strip = 384 << 10,
    .pack_a = pack_a, .pack_b = pack_b, .tile = tile, .row = row, .finish = finish,
    .begin = tiles_begin, .end = tiles_end,
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
        _Alignas(64) uint16_t one[NR * GROUP];
        _Alignas(64) float sum[MR * NR];
        for (int i = 0; i < NR * GROUP; i++)
            one[i] = 0x3f80;
        tiles_begin();
        tile(GROUP, one, 0, one, sum, MR, 0, (Soon[2]){{0}});
        tiles_end();
        good = 1;
        for (int i = 0; i < MR * NR; i++)
            good = good && sum[i] == GROUP;
    }
    sigaction(SIGILL, &old, NULL);
    return good;
}
