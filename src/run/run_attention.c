/* run_attention -- which kernels compute attention on a GPU: chosen once at the start, alike on all
 * ranks */
#include "run_layout.h"
#include <stdio.h>
#include <string.h>

/* Why cuDNN cannot compute this configuration's attention; NULL: it may. With attention_backend fused
 * the configuration has been refused before for most of these reasons. */
static const char *unwanted(const Config *c)
{
    if (c->attention_backend == ATTENTION_BACKEND_FLASH)
        return "attention_backend is flash";
    if (c->params_dtype != PARAMS_DTYPE_BF16 && c->params_dtype != PARAMS_DTYPE_FP16)
        return "cuDNN's compute in bf16 and fp16";
    if (c->attention_dropout > 0)
        return "attention_dropout is above 0, and cuDNN's masks are another generator's";
    if (c->reset_attention_mask)
        return "reset_attention_mask is set, which cuDNN's do without";
    return NULL;
}

size_t run_attention_bytes(const Run *r)
{
    const Config *c = r->cfg;
    int may = cuda_attention_built() || c->attention_backend == ATTENTION_BACKEND_FUSED;
    return c->device == DEVICE_CUDA && may && !unwanted(c) ? attention_bytes(&r->gpu.products) : 0;
}

/* Fills r->gpu.attention: "cuDNN 9.28.0", "our own kernels: REASON", or how many shapes each computes;
 * and that the sums of cuDNN's backwards have no fixed order, where they do not. */
static void say(Run *r, const AttentionUse *u, const char *why)
{
    char *said = r->gpu.attention;
    size_t n = sizeof r->gpu.attention;
    int forward = u->forward && u->fused_forward == u->forward, backward = u->fused_backward == u->backward;
    if (why)
        snprintf(said, n, "our own kernels: %s", why);
    else if (!u->fused_forward && !u->fused_backward)
        snprintf(said, n, "our own kernels: %s: %s", u->name, *u->why ? u->why : "no call that it could do");
    else if (forward && backward)
        snprintf(said, n, "%s", u->name);
    else
        snprintf(said, n, "%s %d of %d forward, %d of %d backward shapes, our own kernels the others: %s",
                 u->name, u->fused_forward, u->forward, u->fused_backward, u->backward, u->why);
    size_t at = strlen(said);
    if (!why && u->fused_backward && r->gpu.products.any_order)
        snprintf(said + at, n - at, "; cuDNN's backward adds dq in any order (deterministic_mode false)");
}

void run_attention(Run *r)
{
    const Config *c = r->cfg;
    Comm *all = &r->grid.all;
    const char *why = unwanted(c);
    AttentionUse u = {0};
    size_t bytes = run_attention_bytes(r);
    if (c->device != DEVICE_CUDA)
        return;
    if (!why)
        cuda_attention(&r->dev, &r->gpu.products, run_reserve(c), &u);
    int taken = u.fused_forward + u.fused_backward, some = taken > 0;
    if (c->attention_backend == ATTENTION_BACKEND_FUSED)
        all_ok(all, some && taken == u.forward + u.backward, EXIT_RESOURCE, "cudnn",
               "attention_backend is fused, and %s cannot do it: %s; change: attention_backend: auto, or %s",
               u.name, why ? why : *u.why ? u.why : "no call that it could do",
               *u.why ? "install cuDNN 9 and set LD_LIBRARY_PATH to its folder" : "leave it out");
    int64_t missing = !why && !some;
    all->wait(all, all->all_reduce(all, &missing, 1, I64, OP_MAX));
    if (missing && some) {             /* all ranks must use the same kernels for the same bits */
        cuda_attention_close(&r->dev);
        why = "another rank cannot use cuDNN";
    }
    r->gpu.fused = !why && !missing;
    if (!r->gpu.fused)
        r->plan.workspace -= (int64_t)bytes;
    say(r, &u, why);
}

/* ---- the faster one ---- */

/* Appends to r->gpu.attention: "; backward: our own kernels, 1.200 ms, cuDNN's 1.350 ms".
 *   ns  in  [2]  nanoseconds of our own kernels and of cuDNN's, summed over the ranks */
static void say_time(Run *r, int backward, const int64_t ns[2], int ours)
{
    size_t at = strlen(r->gpu.attention);
    double ms[2] = {1e-6 * (double)ns[0] / r->grid.world, 1e-6 * (double)ns[1] / r->grid.world};
    snprintf(r->gpu.attention + at, sizeof r->gpu.attention - at, "; %s: %s, %.3f ms, %s %.3f ms",
             backward ? "backward" : "forward", ours ? "our own kernels" : "cuDNN", ms[!ours],
             ours ? "cuDNN's" : "our own kernels'", ms[ours]);
}

void run_attention_tune(Run *r)
{
    const Config *c = r->cfg;
    Comm *all = &r->grid.all;
    int64_t ns[2][2];
    if (!r->gpu.fused || c->attention_backend != ATTENTION_BACKEND_AUTO || c->cublaslt_tune == 1)
        return;
    cuda_attention_time(&r->dev, &r->gpu.algorithms, r->arenas.run.base, r->arenas.run.size, ns);
    all->wait(all, all->all_reduce(all, ns, 4, I64, OP_SUM));
    for (int back = 0; back < 2; back++) {
        int ours = ns[back][0] < ns[back][1];
        if (!ns[back][0] || !ns[back][1])
            continue;
        say_time(r, back, ns[back], ours);
        if (ours)
            r->gpu.fused = cuda_attention_leave(&r->dev, back);
    }
    if (!r->gpu.fused)
        r->plan.workspace -= (int64_t)run_attention_bytes(r);
}
