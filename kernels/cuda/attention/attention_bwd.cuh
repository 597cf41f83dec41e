/* attention_bwd -- what the kernels of attention's backward share.
 *
 * With P = exp(score - lse), delta = rowsum(do * o) and M the dropout mask / (1 - p):
 *
 *   dv = (P M)^T do      ds = P ((do v^T) M - delta)      dq = ds k scale      dk = ds^T q scale
 *
 * (Dao 2023, arXiv:2307.08691, sec 3.1). P is computed again from q, k and lse. One kernel has a tile of
 * queries a block and makes dq (attention_bwd.cu), the other has tiles of keys and makes dk and dv
 * (attention_bwd_keys.cu). Together they have seven matrix products, because scores and do v^T are
 * computed twice; one kernel by keys would have five. In exchange dq is summed in registers in a fixed
 * order. One kernel by keys would add F32 partial sums of dq to memory for every key tile, 16 KB for 64
 * queries of 64, cleared before and converted after: with atomics two runs differ in their bits; in a fixed
 * order blocks wait for each other; kept apart, the sums are T / 64 times the size of dq. */
#ifndef ATTENTION_BWD_CUH
#define ATTENTION_BWD_CUH
#include "attention.cuh"

/* What both kernels read. lse, delta: [B seq_q, heads]. */
template <class T> struct Backward {
    Shape s;
    View<T> q, k, v, dout;
    View<float> lse, delta;
};

/* Returns lse in units of log 2. For a row that sees nothing it is infinite, so that P is 0. */
__device__ __forceinline__ float lse_log2(float lse)
{
    return lse == -INFINITY ? INFINITY : lse * ATTENTION_LOG2E;
}

/* Makes dk and dv (attention_bwd_keys.cu). a.s is not read; rows: of k. */
template <class T>
void attention_bwd_keys(Cuda *c, const Backward<T> &a, Out dk, Out dv, int64_t rows, const Attention *s);
void attention_bwd_keys_open(const Cuda *c);
#endif
