/* gemm -- matrix products on the CPU: one blocked driver, and kernels that differ in their instructions
 * and in the layout of their packed panels.
 *
 *   for each block of op(a) packed by all threads, read from L3 for each strip of columns of op(b) a
 *       work item: packed by the thread that uses it, in its L2 for each block of mc rows, of kc of k,
 *       of nr columns, of mr rows: the kernel, a tile in registers
 *
 * Panels of op(a) are not packed where a kernel reads them as they lie.
 *
 * An element of c is the sum over blocks of kc, in order, of sums over k in order. Its bits depend on
 * its row of op(a), its column of op(b), k and the kernel's constants. They do not depend on threads,
 * tiles, m, n, or the element's position.
 *
 * Goto, van de Geijn 2008, "Anatomy of high-performance matrix multiplication"; Van Zee, van de Geijn
 * 2015, "BLIS". */
#ifndef GEMM_H
#define GEMM_H
#include "device.h"

/* A factor as lanes (rows of op(a), or columns of op(b)) by k. Element (lane, k) is element
 * lane*lane_step + k*k_step from p on; one of the two steps is 1. */
typedef struct {
    const char *p;
    int64_t lane_step, k_step;
    Dtype type;
    int fp8;                   /* bool: bytes in `format`, with k_step 1; type is unused */
    Fp8Format format;
    Fp8Scaling scaling;        /* with blocks numbers are multiplied by `inverse` where they are packed */
    const void *inverse;
    int64_t pitch, lane, k;    /* of the inverses; position of p in the whole matrix */
} Factor;

static inline Factor factor_at(Factor f, int64_t lane, int64_t k)
{
    f.p += (lane * f.lane_step + k * f.k_step) * (f.fp8 ? 1 : (int64_t)dtype_size(f.type));
    f.lane += lane, f.k += k;
    return f;
}

/* Where a finished tile goes: out (+)= by * tile + part + bias. The three matrices start at the tile's first
 * element. part (real) and bias (one row) are absent when their p is NULL. acc != 0 adds to out. `by` is 1
 * without `scaled`. */
typedef struct { Mat out, part, bias; int acc, scaled; float by; } Finish;

/* Cache lines that are used soon: `rows` rows of `wide` lines, `step` bytes apart. A tile product by AMX
 * prefetches them little by little: all at once they would fill the open misses that its loads need. */
#define LINE 64                /* bytes of a cache line */
typedef struct { const char *p; int64_t step; int rows, wide; } Soon;

#define TILE_ROWS 32           /* largest mr of a kernel */
#define TILE_COLS 64           /* largest nr of a kernel */

typedef struct GemmKernel {
    const char *name;
    int mr, nr;                /* rows and columns of a tile: lanes of a panel of op(a), of op(b) */
    int group;                 /* k is padded with zeros to a multiple of it; divides kc */
    int kc;                    /* k of one tile pass: a panel of op(b), kc x nr, stays in L1; with `along` it
                                  is large, and sums stay in registers over most k */
    int mc, strip;             /* rows of op(a), bytes of op(b) that are used together: both stay in an L2 of
                                  1 MiB */
    int along;                 /* bool: the tiles of a row follow each other, not those of a column */
    int size;                  /* bytes of a packed element */
    int lies;                  /* bool: whole panels of op(a) with k_step 1 are multiplied where they lie */
    /* Pack lanes into a panel of mr (pack_a) or nr (pack_b) lanes; missing lanes and the padding of k
     * are 0.
     *   panel  out  the panel
     *   f      in   the factor, from its first lane and k on
     *   lanes  in   lanes of f to pack, at most mr or nr
     *   kn     in   elements of a lane */
    void (*pack_a)(void *panel, Factor f, int lanes, int64_t kn);
    void (*pack_b)(void *panel, Factor f, int lanes, int64_t kn);
    /* Multiplies two panels.
     *   kn    in                  k of the panels, a multiple of group
     *   a, b  in                  panels of op(a), op(b)
     *   step  in                  0, or bytes between the rows of a, which lies as in the matrix
     *   tile  in/out  [mr][nr]    real: the product
     *   rows  in                  rows of the tile that are needed, from the first on
     *   add   in                  bool: += instead of =
     *   soon  in      [2]         lines to prefetch; NULL without `along` */
    void (*tile)(int64_t kn, const void *a, int64_t step, const void *b, void *tile, int rows, int add,
                 const Soon *soon);
    /* The tile of one row of op(a) and a panel of op(b), as they lie: k_step is 1 in both. The bits are those
     * of the packed panels; for one row their packing would take longer than memory.
     *   kn    in         elements of a lane
     *   a, b  in         the row; the panel's lanes; of one type, BF16 or real
     *   cols  in         lanes of the panel, 1 .. nr
     *   tile  out  [nr]  real: the product
     * NULL: this kernel multiplies only panels. */
    void (*row)(int64_t kn, Factor a, Factor b, int cols, void *tile);
    /* Writes a tile [rows][width], of which `cols` columns are used, to where f says. */
    void (*finish)(const Finish *f, void *tile, int width, int rows, int cols);
    void (*begin)(void);       /* called before each work item, or NULL */
    void (*end)(void);         /* called after each work item, or NULL */
} GemmKernel;

typedef struct {
    void *a;                   /* packed block of op(a), shared by all threads */
    size_t a_bytes;            /* op(b) is packed again for each block: larger ones pack less */
    void *part;                /* real: sums of earlier blocks of k, where c's type cannot hold them */
    char *own;                 /* [threads][own_bytes]: packed strip of op(b), then tiles of c */
    size_t own_bytes;          /* bytes of a thread's part of own */
    int l2_times;              /* mc and strip are this many times the kernel's: this CPU's L2 is larger */
} GemmBuffers;

/* Takes from arena `a` the buffers that kernels g and h need. */
void gemm_buffers(GemmBuffers *b, Arena *a, Dtype real, const GemmKernel *g, const GemmKernel *h,
                  int threads);

/* The ops matmul and linear (device.h): c (+)= op(a) op(b) + bias; bias.p NULL: no bias. */
void gemm(Device *d, Mat c, Mat a, int ta, Mat b, int tb, int acc, Mat bias);
/* The op fp8_matmul. The factors are multiplied as the reals that they stand for. */
void gemm_fp8(Device *d, Mat c, Mat8 a, Mat8 b, Mat bias, int acc);
#endif
