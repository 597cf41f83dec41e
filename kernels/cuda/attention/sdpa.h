/* sdpa -- attention through cuDNN: one graph for each shape, compiled once. attention_cudnn.cpp makes them
 * with cudnn-frontend (make CUDNN=1); attention_none.c says, in other builds, that there is none; the
 * emulation has its own.
 *
 * Only what training asks for is here: queries and keys of the same rows, causal, without dropout (its masks
 * are another generator's) and without documents. Backward graphs are deterministic or are not made. */
#ifndef SDPA_H
#define SDPA_H
#include "base.h"
#include "device.h"
#include <cuda_runtime_api.h>
#ifdef __cplusplus
extern "C" {
#endif

enum { SDPA_Q, SDPA_K, SDPA_V, SDPA_O, SDPA_DOUT, SDPA_DQ, SDPA_DK, SDPA_DV, SDPA_MATS };

/* One graph; without padding: compared as bytes. Matrices as in device.h, rows ld[] elements apart, each row
 * and pointer at a multiple of 16 bytes; of a forward SDPA_Q .. SDPA_O. Statistics, the log-sum-exp of each
 * row of scores, are dense [batch, heads, seq] in F32: the one layout that every release of cuDNN reads. */
typedef struct {
    int backward;
    Dtype type;                /* BF16, F16 */
    int64_t batch, seq, window;                /* window 0: none */
    int heads, kv_heads, dim, zero;
    double scale;
    int64_t ld[SDPA_MATS];
} SdpaShape;

#ifndef __cplusplus
_Static_assert(sizeof(SdpaShape) == 56 + 8 * SDPA_MATS, "a shape has no padding");
#endif

typedef struct Sdpa Sdpa;      /* the library, open */
typedef struct SdpaPlan SdpaPlan;
typedef struct { char text[256]; } SdpaWhy;

/* Whether this executable was built with cuDNN. */
int sdpa_built(void);
/* Opens the library for what runs on `stream` of the current device. NULL: *why says what is missing. */
Sdpa *sdpa_open(cudaStream_t stream, SdpaWhy *why);
/* Opens it for a GPU that is not there, as cuDNN describes it in JSON: plans are checked and not compiled.
 * `sm`: its compute capability, 90. For tests. */
Sdpa *sdpa_open_absent(int sm, const char *properties, SdpaWhy *why);
void sdpa_close(Sdpa *s);
/* "cuDNN 9.28.0" */
const char *sdpa_name(const Sdpa *s);

/* Compiles the graph of a shape: allocates, takes up to seconds. NULL: *why says what the library lacks for
 * it. At most `bytes` of workspace; one that asks for more is not made. */
SdpaPlan *sdpa_plan(Sdpa *s, const SdpaShape *shape, size_t bytes, SdpaWhy *why);
void sdpa_plan_close(SdpaPlan *p);
/* Bytes of workspace that running it takes. */
size_t sdpa_plan_bytes(const SdpaPlan *p);
/* Enqueues it on the stream of sdpa_open: mat[i] and statistics are device memory, as is `workspace`, at a
 * multiple of 256. A failure dies with EXIT_RESOURCE. */
void sdpa_run(Sdpa *s, SdpaPlan *p, void *const mat[SDPA_MATS], float *statistics, void *workspace);

#ifdef __cplusplus
}
#endif
#endif
