/* attention -- the two ways that attention's ops go: our own kernels, and cuDNN's (attention.c chooses). */
#ifndef ATTENTION_H
#define ATTENTION_H
#include "cuda.h"
#include "sdpa.h"
#ifdef __cplusplus
extern "C" {
#endif

/* A call of which there is a graph. */
typedef struct { SdpaShape shape; SdpaPlan *plan; } AttentionEntry;

typedef struct CudaAttention {
    Sdpa *library;
    AttentionEntry *entry;
    int n;
    char *workspace;           /* statistics as cuDNN wants them, and what its kernels take */
} CudaAttention;

/* Runs it: mat as in SdpaShape, lse as the table's ops have it. */
void attention_fused(Cuda *c, const AttentionEntry *e, const Mat mat[SDPA_MATS], Mat lse);

/* Our own kernels: every case of device.h's attention_fwd and attention_bwd. */
void flash_attention_fwd(Device *d, Mat o, Mat lse, Mat q, Mat k, Mat v, const Attention *s);
void flash_attention_bwd(Device *d, Mat dq, Mat dk, Mat dv, Mat dout, Mat o, Mat lse, Mat delta, Mat q, Mat k,
                         Mat v, const Attention *s);

/* Statistics from rows of heads, lse [batch*seq, heads] F32, to rows of queries, dense [batch, heads, seq];
 * and back. */
void attention_pack(Cuda *c, float *packed, Mat lse, int64_t seq);
void attention_unpack(Cuda *c, Mat lse, const float *packed, int64_t seq);

#ifdef __cplusplus
}
#endif
#endif
