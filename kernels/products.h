/* products -- the matrix products and calls of attention that a run will ask for, by shape: a device that
 * only counts writes them down, and another does each product once, before the first step, and chooses
 * kernels for attention. */
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

/* One call: its matrices without their memory, in the order of the op's arguments. rows 0: absent. */
typedef struct {
    ProductOp op;
    Mat mat[PRODUCT_MATS];     /* FP8: of a and b rows and cols count */
    int ta, tb, acc, kind;
    Fp8Format a, b;
} Product;

/* One call of attention; its matrices without their memory: q, k, v, o, of a backward dout, dq, dk, dv too.
 */
typedef struct {
    int backward;
    Attention shape;           /* without key and samples */
    Mat mat[8];
} AttentionCall;

typedef struct {
    Product *list;
    int64_t n, room;
    AttentionCall *call;
    int64_t calls, calls_room;
} Products;

/* From here on d's products and calls of attention are added to p, each shape once. d is a device that does
 * nothing, without an `impl`. */
void products_watch(Device *d, Products *p);
void products_close(Products *p);

/* Does each product once, with all operands in `memory` of d, whose numbers are lost. What does not fit into
 * `bytes` is left out: a run has room for the operands of all its products. */
void products_replay(const Products *p, Device *d, void *memory, size_t bytes);

/* Whether cuDNN may do a call: its kernels draw dropout's masks from a generator of their own, and know
 * documents by their lengths, not by starts. Rows lie at multiples of 16 bytes, and so do matrices that have
 * memory. */
int attention_fusible(const AttentionCall *c);
/* Bytes that its kernels may take for one: of a backward dq in F32 and its rows' sums, and, where heads share
 * keys, dk and dv of each. Of the device, when cuDNN does all it may of p: the most of these, and statistics
 * in its order. */
size_t attention_room(const AttentionCall *c);
size_t attention_bytes(const Products *p);
static inline size_t attention_up(size_t bytes) { return (bytes + 255) / 256 * 256; }

/* On a GPU: attention goes through cuDNN, from here on, where p's calls are such that it can (causal, without
 * dropout and documents, of the whole sequence) and it has kernels for them. Of these calls `forward` and
 * `backward`: how many there are; fused_*: how many cuDNN does; why: what the first of the others lacks, or
 * the library. name: it and its release. reserve: bytes that its workspace leaves free. */
typedef struct {
    int forward, backward, fused_forward, fused_backward;
    char name[32], why[320];
} AttentionUse;
void cuda_attention(Device *d, const Products *p, size_t reserve, AttentionUse *use);
/* What one of each of these calls takes, in nanoseconds, in all: ns[backward][0] with our own kernels, [1]
 * with cuDNN's. Measured in `memory`, whose numbers are lost, and added to `known`, or found there. What our
 * kernels do not do, or has no room, counts as nothing. Start-up only. */
void cuda_attention_time(Device *d, Algorithms *known, void *memory, size_t bytes, int64_t ns[2][2]);
/* Our own kernels do all forwards again, or all backwards: how many shapes cuDNN is left with, and its memory
 * if there are any. close: everything. */
int cuda_attention_leave(Device *d, int backward);
void cuda_attention_close(Device *d);
/* Whether this executable was built with it. */
int cuda_attention_built(void);

/* On a GPU: does all products once, so that nothing is chosen within a step. Their algorithms are those of
 * `known`, which stays as long as the device; with `most` > 1 the others are timed, that many candidates
 * each, and added to it. `memory` of d is scratch, zeros afterwards. */
void cuda_tune(Device *d, const Products *p, Algorithms *known, int most, void *memory, size_t bytes);
#endif
