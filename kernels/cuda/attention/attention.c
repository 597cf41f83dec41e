/* attention -- the ops of attention: which kernels a call goes to.
 *
 * A call whose graph was made before the first step goes to cuDNN, any other one to our own kernels
 * (attention_fwd.cu, attention_bwd.cu, attention_plain.cu). Both keep the same statistics, so a forward
 * and its backward may go to different kernels. */
#include "attention.h"
#include "cuda.h"
#include "products.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cuda_attention_built(void) { return sdpa_built(); }
const char *cuda_built(void)
{
    return sdpa_built() ? "GPUs: CUDA; attention by cuDNN where it can, by our own kernels elsewhere"
                        : "GPUs: CUDA; attention by our own kernels, built without cuDNN (scripts/setup gpu)";
}

static SdpaShape shape_of(const CudaAttention *t, const AttentionCall *call)
{
    const Attention *s = &call->shape;
    const Mat *mat = call->mat;
    int backward = call->backward;
    SdpaShape a = {0};
    a.backward = backward;
    a.type = mat[SDPA_Q].type;
    a.batch = s->batch;
    a.seq = positions_rows(&s->q);
    a.window = s->window > 0 && s->window < a.seq ? s->window : 0;
    a.heads = s->heads;
    a.kv_heads = s->kv_heads;
    a.dim = s->dim;
    a.any_order = backward && t->any_order;
    a.scale = s->scale;
    for (int i = 0; i <= (backward ? SDPA_DV : SDPA_O); i++)
        a.ld[i] = mat[i].ld;
    return a;
}

/* ---- before the first step ---- */

/* Makes the graph of a shape, of the most samples that have room. Returns NULL, and why it has none for all
 * samples, if even one sample has none. */
static SdpaPlan *graph_of(Sdpa *library, const SdpaShape *a, size_t room, int64_t *pieces, SdpaWhy *why)
{
    SdpaPlan *plan = sdpa_plan(library, a, room, why), *one;
    SdpaShape some = *a;
    SdpaWhy other;
    *pieces = 1;
    if (plan || !a->backward || a->batch == 1)
        return plan;
    some.batch = 1;
    one = sdpa_plan(library, &some, room, &other);
    for (*pieces = 2; one && *pieces < a->batch; ++*pieces) {
        some.batch = a->batch / *pieces;
        plan = a->batch % *pieces ? NULL : sdpa_plan(library, &some, room, &other);
        if (plan) {
            sdpa_plan_close(one);
            return plan;
        }
    }
    return one;
}

static void add_call(Cuda *c, CudaAttention *t, const SdpaShape *a, size_t room, AttentionUse *use)
{
    SdpaWhy why = {""};
    int64_t pieces;
    SdpaPlan *plan = graph_of(t->library, a, room, &pieces, &why);
    if (a->backward)
        use->backward++, use->fused_backward += !!plan;
    else
        use->forward++, use->fused_forward += !!plan;
    if (plan) {
        t->entry = xrealloc(t->entry, (size_t)(t->n + 1) * sizeof *t->entry);
        t->entry[t->n++] = (AttentionEntry){*a, plan, pieces};
    } else if (!*use->why) {
        snprintf(use->why, sizeof use->why, "%s of heads of %d on %.60s: %.160s",
                 a->backward ? "backward" : "forward", a->dim, c->gpu, why.text);
    }
}

void cuda_attention(Device *d, const Products *p, size_t reserve, AttentionUse *use)
{
    Cuda *c = cuda_of(d);
    CudaAttention *t = xcalloc(1, sizeof *t);
    SdpaWhy why = {""};
    SdpaShape a;
    BUG_ON(c->attention);
    *use = (AttentionUse){0};
    c->attention = t;
    t->any_order = p->any_order;
    t->library = sdpa_open(c->compute, &why);
    snprintf(use->name, sizeof use->name, "%s", t->library ? sdpa_name(t->library) : "cuDNN");
    snprintf(use->why, sizeof use->why, "%s", why.text);
    for (int64_t i = 0; t->library && i < p->calls; i++)
        if (attention_fusible(&p->call[i])) {
            const AttentionCall *one = &p->call[i];
            a = shape_of(t, one);
            add_call(c, t, &a, attention_room(one, p->any_order), use);
        }
    size_t bytes = attention_bytes(p), left = d->left(d);
    left = left > reserve ? left - reserve : 0;
    if (t->n && bytes > left) {
        snprintf(use->why, sizeof use->why,
                 "its %zu bytes of workspace are more than the %zu that the GPU has left", bytes, left);
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

static const AttentionEntry *find(const Cuda *c, const AttentionCall *call)
{
    const CudaAttention *t = c->attention;
    if (!t || !attention_fusible(call))
        return NULL;
    SdpaShape a = shape_of(t, call);
    for (int i = 0; i < t->n; i++)
        if (!memcmp(&t->entry[i].shape, &a, sizeof a))
            return &t->entry[i];
    return NULL;
}

void attention_fused(Cuda *c, const AttentionEntry *e, const Mat mat[SDPA_MATS], Mat lse)
{
    void *at[SDPA_MATS];
    float *statistics = (float *)c->attention->workspace;
    int64_t tokens = e->shape.batch / e->pieces * e->shape.seq;
    size_t rows = (size_t)(e->shape.batch * e->shape.seq * e->shape.heads);
    char *rest = c->attention->workspace + attention_up(rows * sizeof *statistics);
    if (e->shape.backward)
        attention_pack(c, statistics, lse, e->shape.seq);
    for (int64_t p = 0; p < e->pieces; p++) {
        for (int i = 0; i < SDPA_MATS; i++)
            at[i] = mat[i].p ? mat_at(mat[i], p * tokens, 0) : NULL;
        sdpa_run(c->attention->library, e->plan, at, statistics + p * tokens * e->shape.heads, rest);
    }
    if (!e->shape.backward)
        attention_unpack(c, lse, statistics, e->shape.seq);
}

void cuda_attention_fwd(Device *d, Mat o, Mat lse, Mat q, Mat k, Mat v, const Attention *s)
{
    const AttentionCall call = {.shape = *s, .mat = {q, k, v, o}};
    const AttentionEntry *e = find(cuda_of(d), &call);
    if (e)
        attention_fused(cuda_of(d), e, call.mat, lse);
    else
        flash_attention_fwd(d, o, lse, q, k, v, s);
}

void cuda_attention_bwd(Device *d, Mat dq, Mat dk, Mat dv, Mat dout, Mat o, Mat lse, Mat delta, Mat q, Mat k,
                        Mat v, const Attention *s)
{
    const AttentionCall call = {.backward = 1, .shape = *s, .mat = {q, k, v, o, dout, dq, dk, dv}};
    const AttentionEntry *e = find(cuda_of(d), &call);
    if (e)
        attention_fused(cuda_of(d), e, call.mat, lse);
    else
        flash_attention_bwd(d, dq, dk, dv, dout, o, lse, delta, q, k, v, s);
}
