/* gemm_real -- the product in reals: packing and the tile kernel, for one instruction set and one real type.
 * */
#include "isa.h"

/* NV vectors by MR rows of accumulators: as many as leave registers for a row of b and a broadcast of a. */
#define NV 2
#if defined(ISA_avx512)
#define MR 14
#else
#define MR 6
#endif
#define NR (NV * VN)
#define KC 256
#define CHUNK 64               /* of k converted at a time */

#define INLINE static inline __attribute__((always_inline))

/* acc is rows x NV registers: rows is a constant at each call below. The sum over k runs in order. */
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

static void tile(int64_t kn, const void *a, const void *b, void *c, int rows, int add)
{
    switch (rows) {
#define ROWS(n) case n: tile_rows(n, kn, a, b, c, add); break;
    ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6)
#if MR > 6
    ROWS(7) ROWS(8) ROWS(9) ROWS(10) ROWS(11) ROWS(12) ROWS(13) ROWS(14)
#endif
    }
}

/* Panel layout: [kn][width]. */
INLINE void pack(REAL *to, Factor f, int lanes, int64_t kn, const int width)
{
    if (lanes < width)
        memset(to, 0, (size_t)kn * (size_t)width * sizeof *to);
    if (f.lane_step == 1) {
        for (int64_t k = 0; k < kn; k++)
            FN(load_reals)(to + k * width, factor_at(f, 0, k).p, lanes, f.type);
        return;
    }
    REAL row[CHUNK];
    for (int64_t k0 = 0; k0 < kn; k0 += CHUNK) {
        int64_t n = kn - k0 < CHUNK ? kn - k0 : CHUNK;
        for (int l = 0; l < lanes; l++) {
            FN(load_reals)(row, factor_at(f, l, k0).p, n, f.type);
            for (int64_t k = 0; k < n; k++)
                to[(k0 + k) * width + l] = row[k];
        }
    }
}
static void pack_a(void *panel, Factor f, int lanes, int64_t kn) { pack(panel, f, lanes, kn, MR); }
static void pack_b(void *panel, Factor f, int lanes, int64_t kn) { pack(panel, f, lanes, kn, NR); }

#define WIDEST 64

void FN(gemm_finish)(const Finish *f, void *tile, int width, int rows, int cols)
{
    REAL old[WIDEST], bias[WIDEST] = {0};
    if (f->bias.p)
        FN(load_reals)(bias, f->bias.p, cols, f->bias.type);
    for (int r = 0; r < rows; r++) {
        REAL *t = (REAL *)tile + r * width;
        const REAL *part = mat_at(f->part, r, 0);
        void *out = mat_at(f->out, r, 0);
        for (int c = 0; part && c < cols; c++)
            t[c] += part[c];
        for (int c = 0; f->bias.p && c < cols; c++)
            t[c] += bias[c];
        if (f->acc) {
            FN(load_reals)(old, out, cols, f->out.type);
            for (int c = 0; c < cols; c++)
                t[c] += old[c];
        }
        FN(store_reals)(out, t, cols, f->out.type);
    }
}

const GemmKernel FN(gemm_kernel) = {
    .name = "f32", .size = sizeof(REAL),
    .mr = MR, .nr = NR, .group = 1, .kc = KC, .mc = MR * 16, .nc = NR * 4,
    .pack_a = pack_a, .pack_b = pack_b, .tile = tile, .finish = FN(gemm_finish),
};

void FN(cpu_matmul)(Device *d, Mat c, Mat a, int ta, Mat b, int tb, int acc)
{
    gemm(d, c, a, ta, b, tb, acc, (Mat){0});
}
void FN(cpu_linear)(Device *d, Mat y, Mat x, Mat w, Mat bias) { gemm(d, y, x, 0, w, 1, 0, bias); }
