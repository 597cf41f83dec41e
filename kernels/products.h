/* products -- the matrix products and attention calls that a run will make, by shape. The device of the
 * counting run records them. Before the first step a GPU does each product once and chooses its kernels
 * for attention. */
#ifndef PRODUCTS_H
#define PRODUCTS_H
#include "algorithms.h"
#include "device.h"

typedef enum {
    PRODUCT_MATMUL,
    PRODUCT_LINEAR,
    PRODUCT_LINEAR_ACT_FWD,
    PRODUCT_LINEAR_ACT_BWD_X,
    PRODUCT_LINEAR_BWD_W,
    PRODUCT_FP8
} ProductOp;
enum { PRODUCT_MATS = 5 };

/* One product, as an op was called. */
typedef struct {
    ProductOp op;
    Mat mat[PRODUCT_MATS];     /* the op's matrices in order, p unused; rows 0: absent */
    int ta, tb, acc, kind;     /* arguments of the op; 0 where the op has none */
    Fp8Format a, b;            /* formats of the operands of PRODUCT_FP8 */
    Fp8Scaling scaling_a, scaling_b;
} Product;

/* One call of attention_fwd or attention_bwd. */
typedef struct {
    int backward;              /* bool: attention_bwd */
    Attention shape;           /* key, sample and doc_start are cleared in a recorded call */
    Mat mat[8];                /* q, k, v, o, and of a backward dout, dq, dk, dv; recorded with p NULL */
} AttentionCall;

typedef struct {
    Product *list;             /* [n] each shape once */
    int64_t n;
    AttentionCall *call;       /* [calls] each shape once */
    int64_t calls;
    int any_order;             /* bool: cuDNN's backwards may add dq in an order that differs between runs */
} Products;

/* Makes d add each of its products and attention calls to p, each shape once.
 *   d  in/out  a device of null_open, without `impl` */
void products_watch(Device *d, Products *p);
void products_close(Products *p);

/* Does each product once. A product whose operands do not fit into `memory` is left out; a run's memory
 * has room for the operands of each of its products.
 *   memory  out  [bytes]  memory of d for the operands, overwritten; begins with the Fp8Scale of all of them
 *   ready   in            called before a product, whose operands lie in the `stride` bytes from `first` on;
 *                         `sets` such sets fit into `memory`. NULL: no call */
typedef void ProductReady(Device *d, const Product *q, char *first, size_t stride, int64_t sets);
void products_replay(const Products *p, Device *d, void *memory, size_t bytes, ProductReady *ready);

/* Whether cuDNN may do a call. It may not with dropout (cuDNN draws the masks from its own generator),
 * with documents (cuDNN takes their lengths, not their starts), or with part of a sequence. The type
 * must be BF16 or F16, and rows and matrices must start at multiples of 16 bytes. */
int attention_fusible(const AttentionCall *c);
/* Most bytes of workspace that cuDNN's kernels take for one call. A backward has dq in F32 and one sum a
 * row or, on Hopper and in a fixed order, the T x T gradients of scores, of as many samples at a time as
 * 256 MiB hold; and where query heads share keys also dk and dv of each query head.
 *   any_order  in  bool: see Products */
size_t attention_room(const AttentionCall *c, int any_order);
/* Bytes of device memory when cuDNN does every call of p that it may: the largest attention_room
 * together with that call's statistics in cuDNN's layout. */
size_t attention_bytes(const Products *p);
/* Rounds up to a multiple of 256. */
static inline size_t attention_up(size_t bytes) { return (bytes + 255) / 256 * 256; }

/* What cuda_attention has found. The counts are of shapes that attention_fusible accepts. */
typedef struct {
    int forward, backward;                 /* shapes of the run */
    int fused_forward, fused_backward;     /* shapes that cuDNN does */
    char name[32];                         /* the library and its release, "cuDNN 9.28.0" */
    char why[320];                         /* why cuDNN refuses the first shape that it refuses, or all */
} AttentionUse;
/* On a GPU: from this call on cuDNN does attention for every shape of p that attention_fusible accepts
 * and the library has kernels for.
 *   reserve  in   bytes of device memory that cuDNN's workspace must leave free
 *   use      out  what was found */
void cuda_attention(Device *d, const Products *p, size_t reserve, AttentionUse *use);
/* Times one call of each shape that cuDNN does, with both kinds of kernels. Start-up only.
 *   known   in/out           times of earlier runs; new ones are added
 *   memory  out     [bytes]  device memory for the operands, overwritten
 *   ns      out     [2][2]   nanoseconds of all shapes: ns[backward][0] by our kernels, [1] by cuDNN's;
 *                            a shape that our kernels do not do, or that does not fit `memory`, counts
 *                            as 0 */
void cuda_attention_time(Device *d, Algorithms *known, void *memory, size_t bytes, int64_t ns[2][2]);
/* Gives all forwards (backward 0) or all backwards (1) back to our own kernels. Returns the number of
 * shapes that cuDNN still does; at 0 its memory has been freed. */
int cuda_attention_leave(Device *d, int backward);
/* Gives all attention back to our own kernels and frees cuDNN's memory. */
void cuda_attention_close(Device *d);
/* Whether this executable was built with cuDNN. */
int cuda_attention_built(void);
/* Returns one line: what this executable was built with for GPUs. */
const char *cuda_built(void);

/* On a GPU: does every product once, so that no algorithm is chosen within a step. Algorithms are timed on
 * random numbers, because constants take less power and rank otherwise, and over several sets of operands
 * in turn, as far as `memory` has room for them, because a step does not find operands in L2.
 *   known   in/out           algorithms of earlier runs, used first; must live as long as the device
 *   most    in               candidates to time for a product that is not in `known`, which are then
 *                            added to it; 0 or 1: none is timed, the library's first choice is taken
 *   memory  out     [bytes]  device memory, scratch; zeros afterwards */
void cuda_tune(Device *d, const Products *p, Algorithms *known, int most, void *memory, size_t bytes);
/* What the key of every algorithm for products on this GPU begins with: library, release, GPU. */
void cuda_algorithms_prefix(const Device *d, char text[ALGORITHM_KEY]);
#endif
