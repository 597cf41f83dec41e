/* attention_stats -- converts log-sum-exps between the op's lse, whose rows are tokens, and cuDNN's
 * layout, whose rows are heads. */
#include "attention.h"
#include "common.cuh"
#include <launch.cuh>

enum { THREADS = 256 };

/* Element i of packed [batch, heads, seq] is element (b seq + s, h) of lse. */
template <bool PACK>
__global__ void k_attention_stats(float *packed, float *lse, int ld, int heads, int seq, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n)
        return;
    int64_t row = i / seq, b = row / heads;
    float *at = lse + (b * seq + (i - row * seq)) * ld + (row - b * heads);
    if (PACK)
        packed[i] = *at;
    else
        *at = packed[i];
}

template <bool PACK> static void launch(Cuda *c, float *packed, Mat lse, int64_t seq)
{
    int64_t n = lse.rows * lse.cols;
    BUG_ON(lse.type != F32 || seq < 1 || seq >= 1 << 30 || lse.rows % seq || lse.ld >= (int64_t)1 << 31);
    LAUNCH((k_attention_stats<PACK>), blocks_of(ceil_div(n, THREADS)), THREADS, 0, c->compute, packed,
           static_cast<float *>(lse.p), (int)lse.ld, (int)lse.cols, (int)seq, n);
}

void attention_pack(Cuda *c, float *packed, Mat lse, int64_t seq) { launch<true>(c, packed, lse, seq); }
void attention_unpack(Cuda *c, Mat lse, const float *packed, int64_t seq)
{
    launch<false>(c, const_cast<float *>(packed), lse, seq);
}
