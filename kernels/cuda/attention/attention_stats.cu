/* attention_stats -- converts log-sum-exps between the op's lse, whose rows are tokens, and cuDNN's
 * layout, whose rows are heads; merges two pieces by their log-sum-exps. */
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

/* ---- two pieces of keys ---- */

/* A block does a row: warps share its heads, lanes the columns of a head. */
template <class T>
__global__ void k_attention_merge(float *o, int old, float *lse, int lld, const T *piece, int pld,
                                  const float *plse, int plld, int heads, int dim)
{
    int64_t r = blockIdx.x;
    for (int h = (int)threadIdx.x / 32; h < heads; h += THREADS / 32) {
        float a = lse[r * lld + h], b = plse[r * plld + h], top = fmaxf(a, b);
        if (b == -INFINITY)
            continue;
        float wa = expf(a - top), wb = expf(b - top), sum = wa + wb;
        for (int c = (int)threadIdx.x % 32; c < dim; c += 32) {
            int64_t at = (int64_t)h * dim + c;
            o[r * old + at] = (o[r * old + at] * wa + to_float(piece[r * pld + at]) * wb) / sum;
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            lse[r * lld + h] = top + logf(sum);
    }
}

void cuda_attention_merge(Device *d, Mat o, Mat lse, Mat piece, Mat plse)
{
    int heads = (int)lse.cols, dim = heads ? (int)(o.cols / heads) : 0;
    BUG_ON(o.type != F32 || lse.type != F32 || plse.type != F32 || o.rows >= (int64_t)1 << 31);
    BUG_ON(o.rows != lse.rows || o.rows != piece.rows || o.rows != plse.rows || o.cols != piece.cols);
    BUG_ON(lse.cols != plse.cols || o.cols != (int64_t)heads * dim);
    if (!o.rows || !dim)
        return;
    with_type(piece.type, [&](auto t) {
        typedef decltype(t) T;
        LAUNCH((k_attention_merge<T>), (unsigned)o.rows, THREADS, 0, cuda_of(d)->compute, (float *)o.p,
               (int)o.ld, (float *)lse.p, (int)lse.ld, (const T *)piece.p, (int)piece.ld,
               (const float *)plse.p, (int)plse.ld, heads, dim);
    });
}
