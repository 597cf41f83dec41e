/* lt -- matrix products through cuBLASLt, row-major, with its epilogues.
 *
 * cuBLASLt's matrices are column-major: a row-major matrix is to it the transpose. c = op(a) op(b) is
 * therefore computed as c^T = op(b)^T op(a)^T; cuBLASLt's A is our b, its B our a.
 *
 * A plan is what a product needs beside its pointers: descriptors, layouts, algorithm. It is made when a
 * shape is first seen, and kept. Its algorithm comes from the list of known ones; else, while lt_tune is
 * on, it is the fastest of several candidates; else it is the first of the library's heuristic. The
 * library, the GPU and the list thus determine all algorithms of a run. Partial sums along k are added
 * in F32: no other reduction scheme is allowed. */
#ifndef LT_H
#define LT_H
#include "algorithms.h"
#include "libraries.h"
#include <cuda_runtime_api.h>

typedef struct { void *p; int64_t rows, cols, ld; cudaDataType type; } LtMat;

typedef struct {
    LtMat c, a, b;             /* c [m,n] (+)= op(a) [m,k] op(b) [k,n] */
    int ta, tb, acc;
    cublasLtEpilogue_t epilogue;
    void *vector;              /* in: bias [n]; out with BGRADB: bias gradient [m], op(a) over k */
    LtMat aux;                 /* [m,n] input of GELU: out of GELU_AUX, in of DGELU; p NULL: none */
    const void *scale_a, *scale_b;     /* device memory: what a and b in FP8 are multiplied by */
    int32_t mode_a, mode_b;    /* cublasLtMatmulMatrixScale_t: one scale (0), or one a block */
    int fast;                  /* bool, FP8: sums may stay in the tensor cores' precision */
} LtProduct;

typedef struct Lt Lt;

/* Opens cuBLASLt for products on one stream.
 *   gpu        in           name of the GPU; must live as long as the result
 *   stream     in           stream of the products
 *   workspace  in  [bytes]  device memory, more than LT_VECTOR bytes, at a multiple of 256; other work
 *                           on this stream may use it too */
Lt *lt_open(const LtApi *api, const char *gpu, cudaStream_t stream, void *workspace, size_t bytes);
void lt_close(Lt *lt);

/* Whether the library has an algorithm for this product. */
int lt_has(Lt *lt, const LtProduct *q);
/* Microseconds of this product when its algorithm was timed, in this run or an earlier one; -1: never
 * timed. */
double lt_us(Lt *lt, const LtProduct *q);
/* Enqueues the product. Dies with EXIT_RESOURCE if it has no algorithm or a call fails. */
void lt_multiply(Lt *lt, const LtProduct *q);

/* Sets where products that are new from now on take their algorithm from. Start-up only.
 *   known  in/out  known algorithms; must live until lt_close; NULL: none
 *   most   in      candidates to time for a product that is not in `known`, which are then added to it;
 *                  0, 1: none */
void lt_tune(Lt *lt, Algorithms *known, int most);
/* Gives the products that are timed from now on n sets of operands, used in turn, so that a product does not
 * find its operands in L2. A pointer into [base, base + stride) stands for the same place of each set; others
 * stay. n 0: there is one set.
 *   stride  in  bytes from one set to the next, a multiple of 256 */
void lt_rotate(Lt *lt, void *base, size_t stride, int64_t n);
/* Forgets every plan: products take their algorithms from the list again. Start-up only. */
void lt_forget(Lt *lt);
/* What the key of every algorithm of this library on this GPU begins with. */
void lt_prefix(const Lt *lt, char text[ALGORITHM_KEY]);

/* Returns device memory for one vector of the next product, at most LT_VECTOR bytes. */
#define LT_VECTOR (1u << 20)
void *lt_vector(const Lt *lt, size_t bytes);
#endif
