/* run -- the start of a run, step by step, and its end */
#include "cost.h"
#include "run_layout.h"
#include "job.h"
#include "modes.h"
#include <math.h>

/* The rank that the launcher gave this process. */
static int launched_rank(const Config *cfg)
{
    int rank = 0;
    if (cfg->world > 1)
        job_launched(&rank);
    return rank;
}

void run_grid(Grid *g, const Config *cfg)
{
    GridSpec spec = run_spec(cfg);
    comm_checksums(cfg->comm_checksums);
    grid_open(g, &spec, cfg->world, launched_rank(cfg));
}

/* Opens the groups of ranks, in place of the plan's, which only count. */
static void open_groups(Run *r)
{
    params_close(&r->params);
    grid_close(&r->grid);
    run_grid(&r->grid, r->cfg);
}

/* Dies unless all ranks have the same configuration and instruction lists. */
static void compare_ranks(Run *r)
{
    Comm *all = &r->grid.all;
    config_same(r->cfg, all);
    int64_t low = (int64_t)(r->plan.hash >> 1), high = low;
    all->wait(all, all->all_reduce(all, &low, 1, I64, OP_MIN));
    all->wait(all, all->all_reduce(all, &high, 1, I64, OP_MAX));
    all_ok(all, low == high, EXIT_BUG, "schedule-hash", "the ranks have made different instruction lists of "
           "the same configuration; change: run the same build on every host, and report this");
}

static void open_values(Run *r)
{
    if (r->use != RUN_FORWARD)
        params_init(&r->params, &r->dev);
    if (r->use == RUN_TRAIN) {
        const Config *c = r->cfg;
        int gpu = c->device == DEVICE_CUDA, absent = isnan(c->straggler_threshold);
        double threshold = !absent ? c->straggler_threshold : gpu ? 0 : STRAGGLER_THRESHOLD;
        trace_start(&r->trace, &r->grid);
        straggler_open(&r->straggler, &r->grid, threshold, !absent, r->gpu.sharing);
        own_open(&r->own, r->grid.world, r->straggler.on,
                 !gpu || c->distributed_backend != DISTRIBUTED_BACKEND_NCCL);
    }
    spikes_open(&r->spikes, r->cfg);
    reference_begin(r);
}

void run_open(Run *r, const Config *cfg, RunUse use, int64_t kv_length, const char *run_dir)
{
    run_plan(r, cfg, use, kv_length, launched_rank(cfg));  /* run_layout.c: lists and sizes */
    open_groups(r);
    compare_ranks(r);
    run_table_open(r);                                 /* the parameter table again, over the groups */
    lists_units(r);
    run_device_open(r);                                /* run_device.c: CPU or GPU */
    run_alike(r);                                      /* run_alike.c: dies where results would differ */
    run_attention(r);                                  /* run_attention.c: a GPU's attention kernels */
    modes_check(0);                                    /* every library is loaded */
    run_fit(r);                                        /* fit.c: dies when the plan does not fit */
    run_device_arenas(r);                              /* run_device.c: all memory, empty */
    run_tune(r, run_dir);                              /* run_tune.c: algorithms of a GPU's products */
    run_layout_take(r, &r->dev, &r->arenas, run_dir);  /* run_layout.c: tensors, optimizer, saver */
    r->checkpoint.dir = run_dir;
    open_values(r);
}

void run_close(Run *r)
{
    if (r->checkpoint.memory)
        saver_close(r->checkpoint.memory);
    if (r->checkpoint.saver)
        saver_close(r->checkpoint.saver);
    json_decref(r->checkpoint.huggingface);
    straggler_close(&r->straggler);
    account_drop(r);
    own_close(&r->own);
    trace_close(&r->trace);
    spikes_close(&r->spikes);
    run_layout_give(r);
    lists_close(r);
    params_close(&r->params);
    placement_close(&r->plan.placement);
    grid_close(&r->grid);              /* before the device: groups wait for it and use its memory */
    run_device_close(r);
    products_close(&r->gpu.products);
    algorithms_close(&r->gpu.algorithms);
}

/* Feed-forward weights of a layer that a token is multiplied with, over hidden_size: of a layer with experts
 * the router's, those of the experts that it visits, and the shared expert's. */
static int64_t visited(const Config *c, int layer)
{
    int64_t dense = c->ffn_hidden_size, one = c->moe_ffn_hidden_size;
    int64_t shared = c->moe_shared_expert_intermediate_size;
    ActKind act = (ActKind)c->activation;
    if (!config_is_moe(c, layer))
        return dense + act_width(act, dense);
    shared = shared == CFG_ABSENT ? 0 : shared + act_width(act, shared);
    return c->num_moe_experts + c->moe_router_topk * (one + act_width(act, one)) + shared;
}

double run_flops_per_token(const Config *c)
{
    int64_t Q = c->num_attention_heads * c->kv_channels, KV = c->num_query_groups * c->kv_channels;
    int64_t keys = c->window_size && c->window_size < c->seq_length ? c->window_size : c->seq_length;
    double forward = cost_product(1, (double)c->vocab_size, (double)c->hidden_size);
    for (int layer = 0; layer < c->num_layers; layer++)
        forward += cost_product(1, (double)(2 * Q + 2 * KV + visited(c, layer)), (double)c->hidden_size) +
                   cost_attention((double)keys, (double)Q);
    return 3 * forward;
}
