/* attention -- the two implementations of attention's ops: our own kernels, and cuDNN's (attention.c
 * chooses). */
#ifndef ATTENTION_H
#define ATTENTION_H
#include "cuda.h"
#include "sdpa.h"
#ifdef __cplusplus
extern "C" {
#endif

/* A shape that cuDNN does, and its graph, which is of batch / pieces samples: on Hopper a deterministic
 * backward stores T x T numbers of each head, which a workspace has for some samples at a time. */
typedef struct { SdpaShape shape; SdpaPlan *plan; int64_t pieces; } AttentionEntry;

typedef struct CudaAttention {
    Sdpa *library;
    AttentionEntry *entry;
    int n;
    int any_order;             /* bool: SdpaShape.any_order of the backwards */
    char *workspace;           /* device memory: statistics in cuDNN's layout, then its workspace */
} CudaAttention;

/* Does one call by cuDNN.
 *   e    in                     its graph
 *   mat  in/out                 the matrices, as SdpaShape numbers them
 *   lse  in/out  [B seq_q, A]   as in device.h: out of a forward, in of a backward */
void attention_fused(Cuda *c, const AttentionEntry *e, const Mat mat[SDPA_MATS], Mat lse);

/* The ops attention_fwd and attention_bwd (device.h) by our own kernels, which do every case. */
void flash_attention_fwd(Device *d, Mat o, Mat lse, Mat q, Mat k, Mat v, const Attention *s);
void flash_attention_bwd(Device *d, Mat dq, Mat dk, Mat dv, Mat dout, Mat o, Mat lse, Mat delta, Mat q, Mat k,
                         Mat v, const Attention *s);

/* Returns the number of blocks of the kernel that makes dk and dv of a call in BF16 or F16.
 *   parts  out  parts of the work of a pair of key tiles, whose sums are added in order */
int64_t attention_bwd_blocks(const Attention *s, int *parts);

/* attention_pack: packed [batch, heads, seq], dense, = lse [batch*seq, heads], F32. attention_unpack:
 * the other way. */
void attention_pack(Cuda *c, float *packed, Mat lse, int64_t seq);
void attention_unpack(Cuda *c, Mat lse, const float *packed, int64_t seq);

#ifdef __cplusplus
}
#endif
#endif
