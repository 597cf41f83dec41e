/* gemm -- matrix products on the CPU: one blocked driver, and a table of kernels that differ in instructions
 * and in the layout of their packed panels.
 *
 *   for each block of op(a)                 packed by all threads, read from L3
 *     for each strip of columns of op(b)    a work item: packed by the thread that uses it, in its L2
 *       for each block of rows, of kc of k, of nr columns, of mr rows: the kernel, a tile in registers
 *
 * An element of c is the sum over blocks of kc, in order, of sums over k in order: its bits depend on its row
 * of op(a), its column of op(b), k and the kernel's constants, and on nothing else: not on threads, tiles, m,
 * n or where it lies.
 *
 * Goto, van de Geijn 2008, "Anatomy of high-performance matrix multiplication"; Van Zee, van de Geijn 2015,
 * "BLIS". */
#ifndef GEMM_H
#define GEMM_H
#include "device.h"

/* A factor seen as lanes (rows of op(a) or columns of op(b)) by k: element (lane, k) is at lane*lane_step +
 * k*k_step, in elements; one of the two steps is 1. */
typedef struct { const char *p; int64_t lane_step, k_step; Dtype type; } Factor;

static inline Factor factor_at(Factor f, int64_t lane, int64_t k)
{
    f.p += (lane * f.lane_step + k * f.k_step) * (int64_t)dtype_size(f.type);
    return f;
}

/* What a finished tile becomes: out (+)= tile + part + bias. All start at the tile's first column; part
 * (real) and bias (one row) are absent when their p is NULL. */
typedef struct { Mat out, part, bias; int acc; } Finish;

#define TILE_ROWS 32           /* the largest mr, nr */
#define TILE_COLS 32

typedef struct GemmKernel {
    const char *name;
    int mr, nr;                /* tile: lanes of a panel of op(a), of op(b) */
    int group;                 /* k is padded with zeros to a multiple of it; divides kc */
    int kc;                    /* k per tile pass: a B panel of kc x nr stays in L1 */
    int mc, strip;             /* rows of op(a), bytes of op(b) worked on together: both stay in L2 */
    int size;                  /* bytes of a packed element */
    /* Packs `lanes` <= mr (nr) lanes by kn of f into one panel; missing lanes and the padding of k are zeros.
     * */
    void (*pack_a)(void *panel, Factor f, int lanes, int64_t kn);
    void (*pack_b)(void *panel, Factor f, int lanes, int64_t kn);
    /* tile [mr][nr] real = (add: +=) panel product over kn (a multiple of group); only the first `rows` rows
     * matter. */
    void (*tile)(int64_t kn, const void *a, const void *b, void *tile, int rows, int add);
    void (*finish)(const Finish *f, void *tile, int width, int rows, int cols);   /* tile [rows][width] */
    void (*begin)(void);       /* around a work item, or NULL */
    void (*end)(void);
} GemmKernel;

typedef struct {
    void *a;                   /* packed block of op(a), shared */
    void *part;                /* real: partial sums of a block of c, where c itself cannot hold them */
    char *own;                 /* [threads][own_bytes]: packed strip of op(b), tiles of c */
    size_t own_bytes;
} GemmBuffers;

/* Takes the buffers that kernels `g` and `h` need from the arena. */
void gemm_buffers(GemmBuffers *b, Arena *a, Dtype real, const GemmKernel *g, const GemmKernel *h,
                  int threads);

/* The body of ops matmul and linear. bias.p NULL: none. */
void gemm(Device *d, Mat c, Mat a, int ta, Mat b, int tb, int acc, Mat bias);
#endif
