/* Attention: which kernels a call goes to. A call whose graph cuDNN has made before the first step goes there, any
 * other to our own (attention_fwd.cu, attention_bwd.cu, attention_plain.cu). Both keep the same statistics, so that
 * forward and backward need not go the same way. */
#include "attention.h"
#include "cuda.h"
#include "products.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(SdpaShape) == 56 + 8 * SDPA_MATS, "a shape has no padding");

/* ---- which calls cuDNN may do ---- */

/* Its kernels draw dropout's masks from a generator of their own, and mask documents by lengths, not by starts. */
static int expressible(const Attention *s)
{
    return s->dropout == 0 && !s->doc_start && s->pos0 == 0 && s->seq_q == s->seq_k;
}

static SdpaShape shape_of(const Attention *s, int backward, const Mat mat[SDPA_MATS])
{
    SdpaShape a = {0};
    a.backward = backward;
    a.type = mat[SDPA_Q].type;
    a.batch = s->batch;
    a.seq = s->seq_q;
    a.window = s->window > 0 && s->window < s->seq_q ? s->window : 0;
    a.heads = s->heads;
    a.kv_heads = s->kv_heads;
    a.dim = s->dim;
    a.scale = s->scale;
    for (int i = 0; i <= (backward ? SDPA_DV : SDPA_O); i++)
        a.ld[i] = mat[i].ld;
    return a;
}

static int aligned(const SdpaShape *a, const Mat mat[SDPA_MATS])
{
    for (int i = 0; i <= (a->backward ? SDPA_DV : SDPA_O); i++)
        if ((uintptr_t)mat[i].p % 16 || mat[i].ld * (int64_t)dtype_size(a->type) % 16)
            return 0;
    return a->type == BF16 || a->type == F16;
}

static size_t statistics_bytes(const SdpaShape *a)
{
    return attention_up((size_t)(a->batch * a->seq * a->heads) * sizeof(float));
}

/* What the library's kernels may take for a shape: of a backward dq in F32 and its rows' sums, and, where key heads are
 * shared, dk and dv of each query head. */
enum { SMALL = 16 << 20 };
static size_t library_bytes(const SdpaShape *a)
{
    size_t rows = (size_t)(a->batch * a->seq * a->heads), dim = (size_t)a->dim;
    if (!a->backward)
        return SMALL;
    size_t each = a->heads > a->kv_heads ? 2 * rows * dim * dtype_size(a->type) : 0;
    return SMALL + rows * (dim + 1) * sizeof(float) + each;
}

/* The shape of a call that cuDNN may do, or 0. */
static int wanted(const AttentionCall *c, SdpaShape *a)
{
    *a = shape_of(&c->shape, c->backward, c->mat);
    return expressible(&c->shape) && aligned(a, c->mat);
}

size_t cuda_attention_bytes(const Products *p)
{
    size_t most = 0;
    SdpaShape a;
    for (int64_t i = 0; sdpa_built() && i < p->calls; i++)
        if (wanted(&p->call[i], &a) && statistics_bytes(&a) + library_bytes(&a) > most)
            most = statistics_bytes(&a) + library_bytes(&a);
    return most;
}

/* ---- before the first step ---- */

static void add_call(Cuda *c, CudaAttention *t, const SdpaShape *a, AttentionUse *use)
{
    SdpaWhy why = {""};
    SdpaPlan *plan = sdpa_plan(t->library, a, library_bytes(a), &why);
    if (a->backward)
        use->backward++, use->fused_backward += !!plan;
    else
        use->forward++, use->fused_forward += !!plan;
    if (plan) {
        t->entry = xrealloc(t->entry, (size_t)(t->n + 1) * sizeof *t->entry);
        t->entry[t->n++] = (AttentionEntry){*a, plan};
    } else if (!*use->why) {
        snprintf(use->why, sizeof use->why, "%s of heads of %d on %.60s: %.160s", a->backward ? "backward" : "forward",
                 a->dim, c->gpu, why.text);
    }
}

void cuda_attention(Device *d, const Products *p, AttentionUse *use)
{
    Cuda *c = cuda_of(d);
    CudaAttention *t = xcalloc(1, sizeof *t);
    SdpaWhy why = {""};
    SdpaShape a;
    BUG_ON(c->attention);
    *use = (AttentionUse){0};
    c->attention = t;
    t->library = sdpa_open(c->compute, &why);
    snprintf(use->name, sizeof use->name, "%s", t->library ? sdpa_name(t->library) : "cuDNN");
    snprintf(use->why, sizeof use->why, "%s", why.text);
    for (int64_t i = 0; t->library && i < p->calls; i++)
        if (wanted(&p->call[i], &a))
            add_call(c, t, &a, use);
    size_t bytes = cuda_attention_bytes(p), left = d->left(d);
    if (t->n && bytes > left) {
        snprintf(use->why, sizeof use->why, "its %zu bytes of workspace are more than the %zu that the GPU has left",
                 bytes, left);
        use->fused_forward = use->fused_backward = 0;
    }
    if (use->fused_forward + use->fused_backward)
        t->workspace = cuda_memory(bytes);
    else
        cuda_attention_close(d);
}

void cuda_attention_close(Device *d)
{
    Cuda *c = cuda_of(d);
    CudaAttention *t = c->attention;
    if (!t)
        return;
    d->sync(d);
    for (int i = 0; i < t->n; i++)
        sdpa_plan_close(t->entry[i].plan);
    sdpa_close(t->library);
    if (t->workspace)
        CUDA_OK(cudaFree(t->workspace));
    free(t->entry);
    free(t);
    c->attention = NULL;
}

int cuda_attention_leave(Device *d, int backward)
{
    CudaAttention *t = cuda_of(d)->attention;
    int n = 0;
    if (!t)
        return 0;
    d->sync(d);
    for (int i = 0; i < t->n; i++)
        if (t->entry[i].shape.backward == backward)
            sdpa_plan_close(t->entry[i].plan);
        else
            t->entry[n++] = t->entry[i];
    t->n = n;
    if (!n)
        cuda_attention_close(d);
    return n;
}

/* ---- the ops ---- */

static const AttentionEntry *find(const Cuda *c, const Attention *s, int backward, const Mat mat[SDPA_MATS])
{
    const CudaAttention *t = c->attention;
    if (!t || !expressible(s))
        return NULL;
    SdpaShape a = shape_of(s, backward, mat);
    for (int i = 0; aligned(&a, mat) && i < t->n; i++)
        if (!memcmp(&t->entry[i].shape, &a, sizeof a))
            return &t->entry[i];
    return NULL;
}

void attention_fused(Cuda *c, const AttentionEntry *e, const Mat mat[SDPA_MATS], Mat lse)
{
    void *at[SDPA_MATS];
    float *statistics = (float *)c->attention->workspace;
    for (int i = 0; i < SDPA_MATS; i++)
        at[i] = mat[i].p;
    if (e->shape.backward)
        attention_pack(c, statistics, lse, e->shape.seq);
    sdpa_run(c->attention->library, e->plan, at, statistics, c->attention->workspace + statistics_bytes(&e->shape));
    if (!e->shape.backward)
        attention_unpack(c, lse, statistics, e->shape.seq);
}

void cuda_attention_fwd(Device *d, Mat o, Mat lse, Mat q, Mat k, Mat v, const Attention *s)
{
    const Mat mat[SDPA_MATS] = {q, k, v, o};
    const AttentionEntry *e = find(cuda_of(d), s, 0, mat);
    if (e)
        attention_fused(cuda_of(d), e, mat, lse);
    else
        flash_attention_fwd(d, o, lse, q, k, v, s);
}

void cuda_attention_bwd(Device *d, Mat dq, Mat dk, Mat dv, Mat dout, Mat o, Mat lse, Mat delta, Mat q, Mat k, Mat v,
                        const Attention *s)
{
    const Mat mat[SDPA_MATS] = {q, k, v, o, dout, dq, dk, dv};
    const AttentionEntry *e = find(cuda_of(d), s, 1, mat);
    if (e)
        attention_fused(cuda_of(d), e, mat, lse);
    else
        flash_attention_bwd(d, dq, dk, dv, dout, o, lse, delta, q, k, v, s);
}
