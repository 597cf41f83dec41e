/* lt -- matrix products through cuBLASLt, row-major, with what happens at their end.
 *
 * cuBLASLt's matrices are stored by columns: ours, read as such, are the transposes, so c = op(a) op(b) is
 * asked for as c^T = op(b)^T op(a)^T. Its A is our b, its B our a.
 *
 * What a product needs beside its pointers (descriptors, layouts, the algorithm) is a plan, made when its
 * shape is first seen and kept. Its algorithm comes from the list of known ones; else, while lt_tune is on,
 * it is the fastest of several; else the first that the library's heuristic names. So a run's algorithms
 * follow from the library, the GPU and the list. Partial sums along k are added in F32: no other reduction
 * scheme is allowed. */
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
    void *vector;              /* bias [n], or the bias gradient [m] of BGRADB: sums along k of op(a) */
    LtMat aux;                 /* what GELU is taken of [m,n]; p NULL: none */
    const float *scale_a, *scale_b;    /* device memory: what a and b in FP8 are multiplied by */
    int fast;                  /* FP8: sums are not promoted to F32 in between */
} LtProduct;

typedef struct Lt Lt;

/* gpu: its name, the caller's. workspace: device memory, more than LT_VECTOR bytes at a multiple of 256,
 * which others may use for what runs on this stream. */
Lt *lt_open(const LtApi *api, const char *gpu, cudaStream_t stream, void *workspace, size_t bytes);
void lt_close(Lt *lt);

/* Whether the library has an algorithm for this product. */
int lt_has(Lt *lt, const LtProduct *q);
/* Microseconds of this product when its algorithm was timed, in this run or for the list; -1: it was not. */
double lt_us(Lt *lt, const LtProduct *q);
/* Enqueues the product. No algorithm, or a call that fails, dies with EXIT_RESOURCE. */
void lt_multiply(Lt *lt, const LtProduct *q);

/* Products that are new from here on take their algorithm from `known`, which is the caller's and stays until
 * lt_close; with `most` > 1 the others are timed, that many candidates each, and added to it. NULL: neither.
 * Start-up only. */
void lt_tune(Lt *lt, Algorithms *known, int most);

/* Device memory for one vector that belongs to the next product, at most LT_VECTOR bytes. */
#define LT_VECTOR (1u << 20)
void *lt_vector(const Lt *lt, size_t bytes);
#endif
