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

/* A block does a row, a thread N columns of one head at a time. */
template <class T, int N>
__global__ void k_attention_merge(float *o, int old, float *lse, int lld, const T *piece, int pld,
                                  const float *plse, int plld, int heads, int dim)
{
    o += (int64_t)blockIdx.x * old, lse += (int64_t)blockIdx.x * lld;
    piece += (int64_t)blockIdx.x * pld, plse += (int64_t)blockIdx.x * plld;
    for (int c = N * (int)threadIdx.x; c < heads * dim; c += N * THREADS) {
        float a = lse[c / dim], b = plse[c / dim], top = fmaxf(a, b), x[N], y[N];
        if (b == -INFINITY)
            continue;
        float wa = expf(a - top), wb = expf(b - top), sum = wa + wb;
        get_floats<N>(x, o + c);
        get_floats<N>(y, piece + c);
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = (x[i] * wa + y[i] * wb) / sum;
        put_floats<N>(o + c, x);
    }
    __syncthreads();                   /* no thread reads lse any more */
    for (int h = (int)threadIdx.x; h < heads; h += THREADS) {
        float a = lse[h], b = plse[h], top = fmaxf(a, b);
        if (b != -INFINITY)
            lse[h] = top + logf(expf(a - top) + expf(b - top));
    }
}

template <class T, int N> static void merge(Cuda *c, Mat o, Mat lse, Mat piece, Mat plse, int dim)
{
    LAUNCH((k_attention_merge<T, N>), (unsigned)o.rows, THREADS, 0, c->compute, static_cast<float *>(o.p),
           (int)o.ld, static_cast<float *>(lse.p), (int)lse.ld, static_cast<const T *>(piece.p),
           (int)piece.ld, static_cast<const float *>(plse.p), (int)plse.ld, (int)lse.cols, dim);
}

void cuda_attention_merge(Device *d, Mat o, Mat lse, Mat piece, Mat plse)
{
    int heads = (int)lse.cols, dim = heads ? (int)(o.cols / heads) : 0;
    BUG_ON(o.type != F32 || lse.type != F32 || plse.type != F32 || o.rows >= (int64_t)1 << 31);
    BUG_ON(o.rows != lse.rows || o.rows != piece.rows || o.rows != plse.rows || o.cols != piece.cols);
    BUG_ON(lse.cols != plse.cols || o.cols != (int64_t)heads * dim || o.cols >= 1 << 30);
    if (!o.rows || !dim)
        return;
    with_type(piece.type, [&](auto t) {
        typedef decltype(t) T;
        if (dim % 8 == 0 && aligned(o) && aligned(piece))
            merge<T, 8>(cuda_of(d), o, lse, piece, plse, dim);
        else
            merge<T, 1>(cuda_of(d), o, lse, piece, plse, dim);
    });
}
