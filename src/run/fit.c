/* fit -- whether a run's memory is free before it is taken, and which settings would need less */
#include "config_table.h"
#include "run_layout.h"
#include <stdio.h>
#include <stdlib.h>

static double gib(int64_t bytes) { return (double)bytes / (1 << 30); }

/* A configuration that needs less memory. */
typedef struct {
    char set[160];             /* the settings, as on a command line */
    Config cfg;                /* the configuration with these settings */
    int64_t need;              /* bytes of the device that this rank would need */
    int64_t leaves;            /* bytes of the present workspace that would become free */
} Remedy;
enum { REMEDIES = 9 };

/* Adds a remedy named `set`. Returns its configuration, for the caller to change. */
static Config *remedy(const Run *r, Remedy *list, int *n, const char *set)
{
    Remedy *x = &list[(*n)++];
    snprintf(x->set, sizeof x->set, "%s", set);
    x->cfg = *r->cfg;
    return &x->cfg;
}

static void offload_remedies(const Run *r, Remedy *list, int *n)
{
    const Config *c = r->cfg;
    int stage = 0;
    for (int s = 0; s < c->stages; s++)
        stage = c->stage_layers[s] > stage ? c->stage_layers[s] : stage;
    if (r->use == RUN_TRAIN && (!c->optimizer_cpu_offload || c->optimizer_offload_fraction < 1)) {
        Config *to = remedy(r, list, n, c->optimizer_cpu_offload ? "optimizer_offload_fraction=1"
                                                                 : "optimizer_cpu_offload=true");
        to->optimizer_cpu_offload = 1;
        to->optimizer_offload_fraction = 1;
    }
    if (c->recompute_granularity != RECOMPUTE_GRANULARITY_FULL && c->cpu_offloading_num_layers < stage)
        remedy(r, list, n, textf("cpu_offloading_num_layers=%d", stage))->cpu_offloading_num_layers = stage;
}

/* The smallest divisor of micro_batch_size that makes at most MICROBATCHES_MOST microbatches. */
static int64_t least_micro_batch(const Config *c)
{
    int64_t micro = 1;
    while (c->micro_batch_size % micro ||
           config_batch_most(c) / (micro * c->data_parallel_size) > MICROBATCHES_MOST)
        micro++;
    return micro;
}

/* Rows of a small slice of logits, which every tensor rank has equally many of. */
static int64_t least_slice(const Config *c)
{
    return 256 / c->tensor_model_parallel_size * c->tensor_model_parallel_size;
}

/* Lists the remedies by rising cost: next to nothing, time on the bus, messages, smaller or repeated
 * matrix products, accuracy. Returns how many. */
static int list_remedies(const Run *r, Remedy *list)
{
    static const char *const sharding[] = {"data_parallel_sharding_strategy=optim",
                                           "data_parallel_sharding_strategy=optim_grads_params"};
    static const int strategy[] = {DATA_PARALLEL_SHARDING_STRATEGY_OPTIM,
                                   DATA_PARALLEL_SHARDING_STRATEGY_OPTIM_GRADS_PARAMS};
    const Config *c = r->cfg;
    int64_t micro = least_micro_batch(c);
    int n = 0;
    if (r->plan.apart && r->plan.logits_rows > least_slice(c))
        remedy(r, list, &n, textf("logits_slice_rows=%ld", least_slice(c)))->logits_slice_rows =
            least_slice(c);
    if (r->gpu.fused && c->attention_backend == ATTENTION_BACKEND_AUTO)
        remedy(r, list, &n, "attention_backend=flash")->attention_backend = ATTENTION_BACKEND_FLASH;
    if (r->plan.apart && r->use != RUN_FORWARD)
        offload_remedies(r, list, &n);
    for (int i = 0; i < 2; i++)
        if (c->data_parallel_size > 1 && (int)c->data_parallel_sharding_strategy < strategy[i])
            remedy(r, list, &n, sharding[i])->data_parallel_sharding_strategy = strategy[i];
    if (micro < c->micro_batch_size)
        remedy(r, list, &n, textf("micro_batch_size=%lld", (long long)micro))->micro_batch_size = micro;
    if (r->use != RUN_FORWARD && c->recompute_granularity == RECOMPUTE_GRANULARITY_NONE &&
        !c->cpu_offloading_num_layers) {
        Config *to =
            remedy(r, list, &n, "recompute_granularity=full recompute_method=uniform recompute_num_layers=1");
        to->recompute_granularity = RECOMPUTE_GRANULARITY_FULL;
        to->recompute_method = RECOMPUTE_METHOD_UNIFORM;
        to->recompute_num_layers = 1;
    }
    if (dtype_size(r->params.type) > 2)
        remedy(r, list, &n, "params_dtype=bf16")->params_dtype = PARAMS_DTYPE_BF16;
    return n;
}

/* Bytes of the GPU's workspace that depend on the configuration: cuDNN's attention. */
static int64_t taken(const Run *r) { return r->gpu.fused ? (int64_t)run_attention_bytes(r) : 0; }

static void plan_remedy(const Run *r, Remedy *x)
{
    Run other;
    run_plan_over(&other, &x->cfg, r->use, r->generation.kv_length, r->grid.rank,
                  &(Rehearsal){.fp8_recast = r->plan.fp8_recast, .logits_rows = r->plan.logits_rows});
    other.gpu.fused = r->gpu.fused;
    x->need = run_need(&other);
    x->leaves = taken(r) - taken(&other);
    run_plan_close(&other);
}

/* The next remedy to name: the cheapest one that suffices, else the one that saves most; -1: none saves
 * anything. */
static int next_remedy(const Remedy *list, int n, int64_t room, int64_t need)
{
    int best = -1;
    for (int i = 0; i < n; i++) {
        int64_t more = list[i].need - list[i].leaves;
        if (more <= room)
            return i;
        if (more < (best < 0 ? need : list[best].need - list[best].leaves))
            best = i;
    }
    return best;
}

/* The text of at most three changes that would help.
 *   room  in  bytes of the device that this rank may take */
static const char *remedies(const Run *r, int64_t room)
{
    static char text[700];
    Remedy *list = xcalloc(REMEDIES, sizeof *list);
    int n = list_remedies(r, list), at = 0;
    for (int i = 0; i < n; i++)
        plan_remedy(r, &list[i]);
    for (int k = 0; k < 3; k++) {
        int i = next_remedy(list, n, room, run_need(r));
        if (i < 0)
            break;
        at += snprintf(text + at, sizeof text - (size_t)at, "%s (%.2f GiB%s), ", list[i].set,
                       gib(list[i].need), list[i].need - list[i].leaves <= room ? "" : ", not enough alone");
        list[i].need = INT64_MAX;
        list[i].leaves = 0;
    }
    snprintf(text + at, sizeof text - (size_t)at, "%smore ranks", at ? "or " : "");
    free(list);
    return text;
}

void run_fit(Run *r)
{
    Comm *all = &r->grid.all;
    const Memory *m = &r->plan.memory;
    int here = grid_host_ranks(&r->grid), share = run_device_ranks(r);
    all->barrier(all);                 /* every rank has opened its device */
    int64_t room = (int64_t)r->dev.left(&r->dev) / share, host = (int64_t)host_left() / here;
    all->barrier(all);                 /* every rank has measured before any takes memory */
    run_room(r, room);
    int64_t need = run_need(r);
    int fits = need <= room;
    all_ok(all, fits, EXIT_RESOURCE, "memory-plan", "this rank needs %.2f GiB of the %s's memory (parameters "
           "%.2f, gradients %.2f, optimizer %.2f, activations %.2f, buffers %.2f%s), %.2f are left for each "
           "of the %d that share it; change: %s", gib(need), r->plan.apart ? "GPU" : "host",
           gib(m->parameters), gib(m->gradients), gib(m->optimizer), gib(m->activations), gib(m->buffers),
           m->reserve ? textf(", %.2f for libraries", gib(m->reserve)) : "", gib(room), share,
           fits ? "" : remedies(r, room));
    all_ok(all, !r->plan.apart || m->host <= host, EXIT_RESOURCE, "memory-plan", "this rank needs %.2f GiB "
           "of the host's memory (offloaded %.2f, copies %.2f), %.2f are left for each of its %d ranks; "
           "change: a lower optimizer_offload_fraction or cpu_offloading_num_layers, async_save=false, or "
           "fewer ranks a host", gib(m->host), gib(m->mapped), gib(m->staging), gib(host), here);
}
