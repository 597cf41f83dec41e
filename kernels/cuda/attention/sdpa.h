/* sdpa -- attention through cuDNN: one graph for each shape, compiled once. attention_cudnn.cpp makes
 * graphs with cudnn-frontend; builds without its headers have attention_none.c, which refuses; the
 * emulation has an implementation of its own.
 *
 * It does what training needs: queries and keys of the same rows, causal, without dropout (cuDNN draws
 * its masks from another generator) and without documents. A backward graph gives the same bits every
 * time, or is not made, unless its shape has any_order. */
#ifndef SDPA_H
#define SDPA_H
#include "base.h"
#include "device.h"
#include <cuda_runtime_api.h>
#ifdef __cplusplus
extern "C" {
#endif

enum { SDPA_Q, SDPA_K, SDPA_V, SDPA_O, SDPA_DOUT, SDPA_DQ, SDPA_DK, SDPA_DV, SDPA_MATS };

/* The shape of a graph. It has no padding, because shapes are compared as bytes. Matrices are those of
 * device.h; each row and pointer is at a multiple of 16 bytes; a forward has SDPA_Q .. SDPA_O only.
 * Statistics are the log-sum-exp of each row of scores, dense [batch, heads, seq] in F32, which every
 * release of cuDNN can read. */
typedef struct {
    int backward;                      /* bool */
    Dtype type;                        /* BF16 or F16 */
    int64_t batch, seq, window;        /* window: see Attention (device.h) */
    int heads, kv_heads, dim;
    int any_order;                     /* bool: a backward may add dq in an order that differs between runs */
    double scale;
    int64_t ld[SDPA_MATS];             /* elements from one row to the next; 0: no such matrix */
} SdpaShape;

#ifndef __cplusplus
_Static_assert(sizeof(SdpaShape) == 56 + 8 * SDPA_MATS, "a shape has no padding");
#endif

typedef struct Sdpa Sdpa;          /* the library, open */
typedef struct SdpaPlan SdpaPlan;  /* a compiled graph */
typedef struct { char text[256]; } SdpaWhy;

/* Whether this executable was built with cuDNN. */
int sdpa_built(void);
/* Opens the library for calls on `stream` of the current device. Returns NULL and writes *why if it
 * cannot. */
Sdpa *sdpa_open(cudaStream_t stream, SdpaWhy *why);
/* Opens the library for a GPU that this machine does not have, for tests: plans are checked, not
 * compiled.
 *   sm          in   compute capability, such as 90
 *   properties  in   the GPU in cuDNN's JSON
 *   why         out  the reason when NULL is returned */
Sdpa *sdpa_open_absent(int sm, const char *properties, SdpaWhy *why);
void sdpa_close(Sdpa *s);
/* Returns the name of the library and its release, "cuDNN 9.28.0". */
const char *sdpa_name(const Sdpa *s);

/* Compiles the graph of a shape, which allocates memory and takes up to seconds.
 *   bytes  in   most bytes of workspace that the graph may ask for
 *   why    out  what the library lacks for the shape, when NULL is returned */
SdpaPlan *sdpa_plan(Sdpa *s, const SdpaShape *shape, size_t bytes, SdpaWhy *why);
void sdpa_plan_close(SdpaPlan *p);
/* Returns the bytes of workspace that the graph takes. */
size_t sdpa_plan_bytes(const SdpaPlan *p);
/* Enqueues a graph on the stream of sdpa_open. A failure dies with EXIT_RESOURCE.
 *   mat         in/out  [SDPA_MATS]          device memory of each matrix
 *   statistics  in/out  [batch, heads, seq]  device memory: out of a forward, in of a backward
 *   workspace   out     [sdpa_plan_bytes]    device memory at a multiple of 256 */
void sdpa_run(Sdpa *s, SdpaPlan *p, void *const mat[SDPA_MATS], float *statistics, void *workspace);

#ifdef __cplusplus
}
#endif
#endif
