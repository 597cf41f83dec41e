/* gemm_real -- the product in reals: packing and tile kernel of one instruction set and real type. */
#include "fp8.h"
#include "isa.h"

/* A tile is MR rows of NV vectors: its accumulators leave registers for a row of b and an element of
 * a. With 16 registers 6 x 2 would fit, too; 4 x 3 loads less, and whole registers are packed for it.
 * MC: rows of op(a) used together. */
#if defined(ISA_avx512) || defined(__aarch64__)       /* 32 vector registers */
#define MR 14
#define NV 2
#define MC (8 * MR)
#else
#define MR 4
#define NV 3
#define MC (12 * MR)
#endif
#define NR (NV * VN)
#define KC 256
#ifdef REAL_f64
#define VLANES (VBYTES / 8)    /* VN for the preprocessor */
#else
#define VLANES (VBYTES / 4)
#endif
#define NEAR_BYTES 512         /* a lane is fetched to L1 so far ahead where op(a) is one row */
#define CHUNK 64               /* elements of a lane that are converted at a time; divides FP8_BLOCK and KC */

/* GemmKernel.tile for a constant number of rows: acc is rows x NV registers. Sums run over k in order. */
INLINE void tile_rows(const int rows, int64_t kn, const REAL *restrict a, const REAL *restrict b,
                      REAL *restrict c, int add)
{
    Vec acc[MR][NV];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++)
            acc[r][v] = vset(0);
#pragma GCC unroll 2
    for (int64_t k = 0; k < kn; k++, a += MR, b += NR) {
        Vec row[NV];
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++)
            row[v] = vload(b + v * VN);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int v = 0; v < NV; v++)
                acc[r][v] += vset(a[r]) * row[v];
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) {
            REAL *p = c + r * NR + v * VN;
            vstore(p, add ? vload(p) + acc[r][v] : acc[r][v]);
        }
}

static void tile(int64_t kn, const void *a, int64_t step, const void *b, void *c, int rows, int add,
                 const Soon *soon)
{
    (void)step, (void)soon;
    switch (rows) {
#define ROWS(n) case n: tile_rows(n, kn, a, b, c, add); break;
    ROWS(1) ROWS(2) ROWS(3) ROWS(4)
#if MR > 4
    ROWS(5) ROWS(6) ROWS(7) ROWS(8) ROWS(9) ROWS(10) ROWS(11) ROWS(12) ROWS(13) ROWS(14)
#endif
    }
}

/* Lane numbers 0 .. VN-1. */
static const IVec lane_numbers = {
    0, 1,
#if VLANES >= 4
    2, 3,
#endif
#if VLANES >= 8
    4, 5, 6, 7,
#endif
#if VLANES >= 16
    8, 9, 10, 11, 12, 13, 14, 15,
#endif
};

/* Exchanges the upper h lanes of every 2h of the first vector of a pair with the lower h of the second. */
INLINE void exchange(Vec v[VN], const int h)
{
    IVec upper = (lane_numbers & h) != 0;
    IVec low = lane_numbers + (upper & (VN - h)), high = lane_numbers + (~upper & h) + (upper & VN);
#pragma GCC unroll 16
    for (int i = 0; i < VN; i++)
        if (!(i & h)) {
            Vec a = v[i], b = v[i + h];
            v[i] = __builtin_shuffle(a, b, low);
            v[i + h] = __builtin_shuffle(a, b, high);
        }
}

/* Transposes VN x VN reals. */
INLINE void transpose(Vec v[VN])
{
    if (VN > 8)
        exchange(v, VN > 8 ? 8 : 0);
    if (VN > 4)
        exchange(v, VN > 4 ? 4 : 0);
    if (VN > 2)
        exchange(v, VN > 2 ? 2 : 0);
    exchange(v, 1);
}

/* Element k of a lane of type REAL or BF16, and VN elements from k on. */
INLINE REAL one(const Dtype type, const char *lane, int64_t k)
{
    return type == BF16 ? (REAL)bf16_to_f32(((const uint16_t *)lane)[k]) : ((const REAL *)lane)[k];
}
INLINE Vec some(const Dtype type, const char *lane, int64_t k)
{
    if (type != BF16)
        return vload((const REAL *)lane + k);
#ifdef REAL_f64
    Vec v = {0};
    for (int i = 0; i < VN; i++)
        v[i] = one(type, lane, k + i);
    return v;
#else
    typedef uint16_t Halves __attribute__((vector_size(VBYTES / 2)));
    Halves h;
    memcpy(&h, (const uint16_t *)lane + k, sizeof h);
    return (Vec)(__builtin_convertvector(h, UVec) << 16);
#endif
}

/* Packs VN of k of `width` lanes of REAL or BF16; the next element of a lane is the next in memory, and lanes
 * are `bytes` apart. Prefetches the lanes of the next panel: the hardware prefetcher does not follow that
 * many short streams. */
INLINE void transpose_block(const Dtype type, REAL *to, const char *from, int64_t bytes, const int width)
{
#pragma GCC unroll 4
    for (int l = 0; l < width; l += VN) {
        const int n = width - l < VN ? width - l : VN;
        Vec v[VN];
#pragma GCC unroll 16
        for (int i = 0; i < VN; i++)
            v[i] = i < n ? some(type, from + (l + i) * bytes, 0) : vset(0);
#pragma GCC unroll 16
        for (int i = 0; i < n; i++)
            __builtin_prefetch(from + (width + l + i) * bytes);
        transpose(v);
#pragma GCC unroll 16
        for (int i = 0; i < VN; i++)
            vput(to + i * width + l, v[i], n);
    }
}

/* n numbers of a lane in FP8, from the start of a block or of a CHUNK in it. */
static void fp8_lane(REAL *to, Factor f, int64_t n)
{
    const int64_t across = fp8_across(f.scaling);
    FN(fp8_reals)(to, (const uint8_t *)f.p, n, f.format);
    for (int64_t k = 0; fp8_blocked(f.scaling) && k < n; k += across) {
        const Vec by = vset((REAL)fp8_inverse_at(f.inverse, f.pitch, f.scaling, f.lane, f.k + k));
        const int64_t end = k + across < n ? k + across : n;
        for (int64_t i = k; i < end; i += VN)
            vput(to + i, vget(to + i, end - i) * by, end - i);
    }
}

/* Packs one k of `width` lanes of REAL or BF16 that are neighbours in memory. */
INLINE void pack_row(const Dtype type, REAL *to, const char *from, const int width)
{
    const int whole = width / VN * VN, left = width % VN;
#pragma GCC unroll 4
    for (int l = 0; l < whole; l += VN)
        vstore(to + l, some(type, from, l));
    if (left && type != BF16)
        vstore_part(to + whole, vload_part((const REAL *)from + whole, left, 0), left);
#if defined(ISA_avx512) && !defined(REAL_f64)
    else if (left) {
        __m256i h = _mm256_maskz_loadu_epi16((1u << left) - 1, (const uint16_t *)from + whole);
        vstore_part(to + whole, (Vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16), left);
    }
#else
    else
        for (int l = whole; l < width; l++)
            to[l] = one(type, from, l);
#endif
}

/* pack for lanes of REAL or BF16, from `from` on, all of them there. */
INLINE void pack_lanes(const Dtype type, REAL *to, const char *from, Factor f, int64_t kn, const int width)
{
    int64_t size = (int64_t)dtype_size(type), bytes = f.lane_step * size, k = 0;
    if (f.lane_step == 1) {
        for (; k < kn; k++)
            pack_row(type, to + k * width, from + k * f.k_step * size, width);
        return;
    }
    for (; k + VN <= kn; k += VN)
        transpose_block(type, to + k * width, from + k * size, bytes, width);
    for (int l = 0; l < width; l++)
        for (int64_t i = k; i < kn; i++)
            to[i * width + l] = one(type, from + l * bytes, i);
}

/* GemmKernel.pack_a, pack_b for a constant width: to [kn][width]. Other types than REAL and BF16, and fewer
 * lanes, are converted first, a CHUNK at a time. */
INLINE void pack(REAL *to, Factor f, int lanes, int64_t kn, const int width)
{
    if (lanes == width && !f.fp8 && f.type == REAL_TYPE) {
        pack_lanes(REAL_TYPE, to, f.p, f, kn, width);
        return;
    }
    if (lanes == width && !f.fp8 && f.type == BF16) {
        pack_lanes(BF16, to, f.p, f, kn, width);
        return;
    }
    if (lanes < width)
        memset(to, 0, (size_t)kn * (size_t)width * sizeof *to);
    if (f.lane_step == 1) {
        for (int64_t k = 0; k < kn; k++, to += width, f = factor_at(f, 0, 1))
            FN(load_reals)(to, f.p, lanes, f.type);
        return;
    }
    REAL rows[NR > MR ? NR : MR][CHUNK];
    Factor chunk = {.lane_step = CHUNK, .k_step = 1};
    for (int64_t k0 = 0; k0 < kn; k0 += CHUNK, to += CHUNK * width, f = factor_at(f, 0, CHUNK)) {
        int64_t n = kn - k0 < CHUNK ? kn - k0 : CHUNK;
        for (int l = 0; l < lanes; l++)
            if (f.fp8)
                fp8_lane(rows[l], factor_at(f, l, 0), n);
            else
                FN(load_reals)(rows[l], factor_at(f, l, 0).p, n, f.type);
        if (lanes == width)
            pack_lanes(REAL_TYPE, to, (const char *)rows, chunk, n, width);
        for (int l = 0; l < lanes && lanes < width; l++)
            for (int64_t i = 0; i < n; i++)
                to[i * width + l] = rows[l][i];
    }
}
static void pack_a(void *panel, Factor f, int lanes, int64_t kn) { pack(panel, f, lanes, kn, MR); }
static void pack_b(void *panel, Factor f, int lanes, int64_t kn) { pack(panel, f, lanes, kn, NR); }

/* Products of a row a and VN lanes over kn of k. VN by VN words are transposed in registers: a word is an
 * element, or two neighbours in BF16, of which each is the upper half of an F32. Those `ahead` bytes on, of
 * the next lanes, are prefetched to L2: to L1 they would fill its few open misses. Words of these lanes,
 * NEAR_BYTES on, are fetched from L2 to L1. */
INLINE Vec row_dots(const Dtype type, int64_t kn, const REAL *a, const char *const lane[VN], int64_t k0,
                    int64_t ahead)
{
    const int pairs = type == BF16 && sizeof(REAL) == 4, step = pairs ? 2 * VN : VN;
    Vec acc = {0}, t[VN];
    int64_t k = 0;
    for (; k + step <= kn; k += step) {
#pragma GCC unroll 16
        for (int i = 0; i < VN; i++) {
            const char *p = lane[i] + (k0 + k) * (int64_t)dtype_size(type);
            t[i] = pairs ? vload((const REAL *)p) : some(type, p, 0);
            __builtin_prefetch(p + NEAR_BYTES);
            __builtin_prefetch(p + ahead, 0, 2);
        }
        transpose(t);
#pragma GCC unroll 16
        for (int i = 0; i < VN; i++)
            if (pairs) {
                acc += vset(a[k + 2 * i]) * (Vec)((UVec)t[i] << 16);
                acc += vset(a[k + 2 * i + 1]) * (Vec)((UVec)t[i] >> 16 << 16);
            } else
                acc += vset(a[k + i]) * t[i];
    }
    for (; k < kn; k++) {
        Vec e = {0};
        for (int i = 0; i < VN; i++)
            e[i] = one(type, lane[i], k0 + k);
        acc += vset(a[k]) * e;
    }
    return acc;
}

/* GemmKernel.row for one type. As many streams from memory as lanes of a vector are read from end to end,
 * which is what prefetchers follow. Lanes past cols repeat the last one. */
INLINE void row_of(const Dtype type, int64_t kn, const char *a, Factor b, int cols, REAL *tile)
{
    int64_t ahead = VN * b.lane_step * (int64_t)dtype_size(type);
    REAL converted[KC];
    for (int l = 0; l < cols; l += VN) {
        const char *lane[VN];
        Vec sum = {0};
        for (int i = 0; i < VN; i++)
            lane[i] = factor_at(b, l + i < cols ? l + i : cols - 1, 0).p;
        for (int64_t k = 0; k < kn; k += KC) {
            int64_t n = k + KC < kn ? KC : kn - k;
            const char *block = a + k * (int64_t)dtype_size(type);
            if (type == BF16)
                FN(load_reals)(converted, block, n, BF16);
            Vec part = row_dots(type, n, type == BF16 ? converted : (const REAL *)block, lane, k, ahead);
            sum = k ? sum + part : part;
        }
        vstore(tile + l, sum);
    }
}
static void row(int64_t kn, Factor a, Factor b, int cols, void *tile)
{
    if (a.type == BF16)
        row_of(BF16, kn, a.p, b, cols, tile);
    else
        row_of(REAL_TYPE, kn, a.p, b, cols, tile);
}

INLINE void add_row(REAL *restrict out, const REAL *restrict t, int cols, int acc)
{
    for (int c = 0; c < cols; c += VN) {
        Vec v = vget(t + c, cols - c);
        vput(out + c, acc ? vget(out + c, cols - c) + v : v, cols - c);
    }
}

void FN(gemm_finish)(const Finish *f, void *tile, int width, int rows, int cols)
{
    REAL *t = tile, row[TILE_COLS];
    size_t size = dtype_size(f->out.type);
    if (f->bias.p)
        FN(load_reals)(row, f->bias.p, cols, f->bias.type);
    for (int64_t i = 0; f->scaled && i < rows * width; i++)
        t[i] *= (REAL)f->by;
    for (int r = 0; r < rows; r++) {
        if (f->part.p)
            add_row(t + r * width, mat_at(f->part, r, 0), cols, 1);
        if (f->bias.p)
            add_row(t + r * width, row, cols, 1);
    }
    if (f->out.type == REAL_TYPE) {
        for (int r = 0; r < rows; r++)
            add_row(mat_at(f->out, r, 0), t + r * width, cols, f->acc);
        return;
    }
    for (int r = 0; f->acc && r < rows; r++) {
        FN(load_reals)(row, mat_at(f->out, r, 0), cols, f->out.type);
        add_row(t + r * width, row, cols, 1);
    }
    /* the whole tile at once: rows are too short to convert one by one */
    _Alignas(64) char stored[TILE_ROWS * TILE_COLS * sizeof(float)];
    FN(store_reals)(stored, t, rows * width, f->out.type);
    for (int r = 0; r < rows; r++)
        if (cols == width && width * size == 64)
            memcpy(mat_at(f->out, r, 0), stored + r * 64, 64);
        else
            memcpy(mat_at(f->out, r, 0), stored + r * width * (int)size, (size_t)cols * size);
}

const GemmKernel FN(gemm_kernel) = {
    .name = "f32", .size = sizeof(REAL),
    .mr = MR, .nr = NR, .group = 1, .kc = KC, .mc = MC, .strip = 256 << 10,
    .pack_a = pack_a, .pack_b = pack_b, .tile = tile, .row = row, .finish = FN(gemm_finish),
};

void FN(cpu_matmul)(Device *d, Mat c, Mat a, int ta, Mat b, int tb, int acc)
{
    gemm(d, c, a, ta, b, tb, acc, (Mat){0});
}
void FN(cpu_linear)(Device *d, Mat y, Mat x, Mat w, Mat bias) { gemm(d, y, x, 0, w, 1, 0, bias); }

void FN(cpu_linear_act_fwd)(Device *d, Mat a, Mat h, Mat x, Mat w, Mat bias, ActKind kind)
{
    d->linear(d, h, x, w, bias);
    d->act_fwd(d, a, h, kind);
}

void FN(cpu_linear_act_bwd_x)(Device *d, Mat dh, Mat da, Mat dy, Mat w, Mat h, ActKind kind)
{
    d->matmul(d, da, dy, 0, w, 0, 0);
    d->act_bwd(d, dh, da, h, kind);
}

void FN(cpu_linear_bwd_w)(Device *d, Mat dw, Mat db, Mat dy, Mat x, int acc)
{
    d->matmul(d, dw, dy, 1, x, 0, acc);
    if (db.p)
        d->bias_bwd(d, db, dy);
}
