/* attention_time -- times our own kernels and cuDNN's for the shapes that cuDNN has graphs of. */
#include "attention.h"
#include "products.h"
#include <stdio.h>
#include <string.h>

enum { WARM = 2, TIMED = 8 };

/* All that a time may depend on, as text, for the file of known algorithms. */
static void key_text(const Cuda *c, const AttentionEntry *e, char text[ALGORITHM_KEY])
{
    const SdpaShape *a = &e->shape;
    char ld[SDPA_MATS * 8] = "";
    for (int i = 0, at = 0; i <= (a->backward ? SDPA_DV : SDPA_O) && at < (int)sizeof ld; i++)
        at += snprintf(ld + at, sizeof ld - (size_t)at, " %lld", (long long)a->ld[i]);
    const char *op = !a->backward ? "forward" : a->any_order ? "backward in any order" : "backward";
    int n = snprintf(text, ALGORITHM_KEY,
                     "attention %s %s, %.64s: %s %lld / %lld x %lld, heads %d to %d of %d, window %lld, ld%s",
                     op, sdpa_name(c->attention->library), c->gpu, dtype_name(a->type), (long long)a->batch,
                     (long long)e->pieces, (long long)a->seq, a->heads, a->kv_heads, a->dim,
                     (long long)a->window, ld);
    BUG_ON(n >= ALGORITHM_KEY);
}

/* Places the operands of a shape in memory. Returns whether they fit.
 *   memory  in   [bytes]
 *   mat     out  [SDPA_MATS]  q, k, v share rows where these are long enough, and so do dq, dk, dv
 *   stats   out  [2]          lse, delta */
static int place(const SdpaShape *a, char *memory, size_t bytes, Mat mat[SDPA_MATS], Mat stats[2])
{
    int64_t rows = a->batch * a->seq, wide = (a->heads + 2 * a->kv_heads) * (int64_t)a->dim;
    size_t used = 0;
    for (int i = 0; i < SDPA_MATS; i++) {
        int like = i >= SDPA_DQ ? i - SDPA_DQ : i, key = like == SDPA_K || like == SDPA_V;
        int64_t cols = (key ? a->kv_heads : a->heads) * (int64_t)a->dim, ld = a->ld[i] ? a->ld[i] : cols;
        mat[i] = (Mat){memory + used, rows, cols, ld, a->type};
        if (key && ld >= wide && ld == mat[i - 1].ld)
            mat[i].p = mat_at(mat[i - 1], 0, mat[i - 1].cols);
        else
            used += attention_up((size_t)(rows * ld) * dtype_size(a->type));
    }
    for (int i = 0; i < 2; i++) {
        stats[i] = (Mat){memory + used, rows, a->heads, a->heads, F32};
        used += attention_up((size_t)(rows * a->heads) * sizeof(float));
    }
    return used <= bytes;
}

static void call_ours(Device *d, const SdpaShape *a, const Mat m[SDPA_MATS], const Mat stats[2], int backward)
{
    Positions all = positions_one(0, a->seq);
    Attention s = {.batch = a->batch, .q = all, .k = all, .heads = a->heads,
                   .kv_heads = a->kv_heads, .dim = a->dim, .window = a->window, .scale = a->scale};
    if (backward)
        flash_attention_bwd(d, m[SDPA_DQ], m[SDPA_DK], m[SDPA_DV], m[SDPA_DOUT], m[SDPA_O], stats[0],
                            stats[1], m[SDPA_Q], m[SDPA_K], m[SDPA_V], &s);
    else
        flash_attention_fwd(d, m[SDPA_O], stats[0], m[SDPA_Q], m[SDPA_K], m[SDPA_V], &s);
}

/* Returns the nanoseconds of a call, by our own kernels (ours 1) or by cuDNN's (0). */
static uint64_t time_of(Device *d, const AttentionEntry *e, const Mat mat[SDPA_MATS], const Mat stats[2],
                        int ours)
{
    Cuda *c = cuda_of(d);
    cudaEvent_t start, end;
    float ms;
    CUDA_OK(cudaEventCreate(&start));
    CUDA_OK(cudaEventCreate(&end));
    for (int i = 0; i < WARM + TIMED; i++) {
        if (i == WARM)
            CUDA_OK(cudaEventRecord(start, c->compute));
        if (ours)
            call_ours(d, &e->shape, mat, stats, e->shape.backward);
        else
            attention_fused(c, e, mat, stats[0]);
    }
    CUDA_OK(cudaEventRecord(end, c->compute));
    CUDA_OK(cudaEventSynchronize(end));
    CUDA_OK(cudaEventElapsedTime(&ms, start, end));
    CUDA_OK(cudaEventDestroy(start));
    CUDA_OK(cudaEventDestroy(end));
    return (uint64_t)(1e6 * (double)ms / TIMED) + 1;
}

/* Whether our own kernels can do heads of `dim`: they have these sizes, and need 160 KB of shared
 * memory. */
static int ours_do(const Cuda *c, int dim)
{
    return (dim == 64 || dim == 80 || dim == 96 || dim == 128 || dim == 256) && c->shared >= (size_t)160
                                                                                                 << 10;
}

void cuda_attention_time(Device *d, Algorithms *known, void *memory, size_t bytes, int64_t ns[2][2])
{
    Cuda *c = cuda_of(d);
    memset(ns, 0, sizeof(int64_t[2][2]));
    for (int i = 0; c->attention && i < c->attention->n; i++) {
        const AttentionEntry *e = &c->attention->entry[i];
        Algorithm one = {0};
        Mat mat[SDPA_MATS], stats[2];
        key_text(c, e, one.key);
        const Algorithm *found = algorithms_find(known, one.key);
        if (!found && ours_do(c, e->shape.dim) && place(&e->shape, memory, bytes, mat, stats)) {
            CUDA_OK(cudaMemsetAsync(memory, 0x3c, bytes, c->compute));         /* 0.0115 in BF16 */
            call_ours(d, &e->shape, mat, stats, 0);        /* makes the o and lse that a backward reads */
            one.words[0] = time_of(d, e, mat, stats, 1);
            one.words[1] = time_of(d, e, mat, stats, 0);
            one.us = 1e-3 * (double)(one.words[0] < one.words[1] ? one.words[0] : one.words[1]);
            CUDA_OK(cudaMemsetAsync(memory, 0, bytes, c->compute));
            algorithms_add(known, &one);
            found = &one;
        }
        for (int k = 0; found && k < 2; k++)
            ns[e->shape.backward][k] += (int64_t)found->words[k];
    }
}
