/* run_layout -- the memory of a run: taken from arenas, and sized by a rehearsal over arenas that
 * count */
#include "memory_copies.h"
#include "run_layout.h"
#include <stdlib.h>
#include <string.h>

GridSpec run_spec(const Config *c)
{
    int tp = (int)c->tensor_model_parallel_size;
    int64_t ranks = c->data_parallel_size * c->context_parallel_size,
            copies = c->num_distributed_optimizer_instances;
    GridSpec s = {.size = {[AXIS_TP] = tp, [AXIS_CP] = (int)c->context_parallel_size, [AXIS_EP] = 1,
                           [AXIS_DP] = (int)c->data_parallel_size,
                           [AXIS_PP] = (int)c->pipeline_model_parallel_size},
                  .context_heads = (int)c->context_heads,
                  .kv_share = c->num_query_groups < tp ? tp / (int)c->num_query_groups : 1,
                  .instances = (int)(copies < ranks ? copies : ranks), /* one rank: any number is legal */
                  .experts = c->num_moe_experts != CFG_ABSENT,
                  .etp = (int)c->expert_tensor_parallel_size, .ep = (int)c->expert_model_parallel_size};
    BUG_ON(!grid_parse_order(c->rank_order, s.order));
    return s;
}

int run_index(const Config *cfg, int rank, Axis axis)
{
    GridSpec spec = run_spec(cfg);
    return grid_index(&spec, rank, axis);
}

int run_first(const Config *cfg, Axis axis, int index)
{
    GridSpec spec = run_spec(cfg);
    return grid_first(&spec, axis, index);
}

/* What several lists need of the model's memory. */
typedef struct {
    int slots[SLOT_KINDS];
    size_t bytes;
} Need;

/* Gives the data of a list's microbatches, of sizes b, their places, and adds what these need. */
static void pack(Need *n, Schedule *s, const ModelBytes *b)
{
    if (!s->n)
        return;
    schedule_pack(s, (const size_t *const[]){b->data[SLOT_FD], b->data[SLOT_FW], b->data[SLOT_DW]});
    for (int k = 0; k < SLOT_KINDS; k++)
        n->slots[k] = s->slots[k] > n->slots[k] ? s->slots[k] : n->slots[k];
    n->bytes = s->bytes > n->bytes ? s->bytes : n->bytes;
}

/* forward: bool: of evaluations and generation, too. */
static Need pack_all(Run *r, const ModelBytes *b, int forward)
{
    Need n = {{0}, 0};
    for (int i = 0; i < r->cfg->batch_steps; i++) {
        pack(&n, &r->plan.lists[i].train, b);
        if (forward)
            pack(&n, &r->plan.lists[i].forward, b);
    }
    if (forward)
        pack(&n, &r->generation.list, b);
    return n;
}

/* Bytes that `run` has grown by since the last call with the same *before. */
static int64_t grown(const Arena *run, size_t *before)
{
    int64_t n = (int64_t)(run->used - *before);
    *before = run->used;
    return n;
}

/* Takes the memory of generation: the tokens of a sequence as a microbatch, and keys and values of the
 * layers of this rank. */
static void layout_generation(Run *r, Arena *run, Arena *host)
{
    const Config *c = r->cfg;
    RunGeneration *g = &r->generation;
    const ModelDims *m = &r->model.dim;
    size_t n = (size_t)g->kv_length;
    g->cache = (KvCache){0};
    if (!n)
        return;
    g->cache.k = xcalloc((size_t)c->num_layers * 2, sizeof *g->cache.k);
    g->cache.v = g->cache.k + c->num_layers;
    for (int i = 0; i < r->params.nparts; i++)
        if (r->params.part[i].kind == PART_LAYER) {
            int layer = r->params.part[i].layer;
            g->cache.k[layer] = mat_take(run, g->kv_length, m->K * m->D, m->type);
            g->cache.v[layer] = mat_take(run, g->kv_length, m->K * m->D, m->type);
        }
    g->logits = mat_take(run, 1, c->vocab_size, m->real);
    g->sequence = (Batch){.batch = 1, .tokens = arena_take(host, n * 4), .labels = arena_take(host, n * 4),
                          .position = arena_take(host, n * 4), .loss_mask = arena_take(host, n * 4),
                          .sample = arena_take(host, 8)};
}

/* Events that a step records on this rank: its instructions, the messages that the rehearsal has counted
 * on every axis, about 32 messages over all ranks at the end of a step, and its losses. The rehearsal's
 * experts need one round; at most up(4 ep / 5) may be needed, of fewer than twice the messages each. */
static int64_t events(const Run *r)
{
    int64_t n = 0, rounds = (4 * r->grid.expert[EXPERT_EP].size + 4) / 5,
            ops = 32 + 2 * (rounds - 1) * r->plan.traffic[AXIS_EP].ops;
    for (int i = 0; i < r->cfg->batch_steps; i++)
        n = r->plan.lists[i].train.n > n ? r->plan.lists[i].train.n : n;
    for (int a = 0; a < AXES; a++)
        ops += r->plan.traffic[a].ops;
    return n + ops + LOSSES;
}

/* Opens what saves: to the disk, and to memory, where MEMORY_KEPT copies and the one that is being written
 * take as much as that saver's snapshot each. */
static void open_savers(Run *r, const char *run_dir, Arena *host)
{
    const Config *c = r->cfg;
    RunCheckpoint *k = &r->checkpoint;
    size_t before = host->used;
    k->saver = saver_open(c, run_dir, &r->grid.all, k->pieces, k->npieces, host);
    size_t middle = host->used;
    if (c->memory_save_interval != CFG_ABSENT)
        k->memory = saver_open_memory(c, &r->grid.all, k->pieces, k->npieces, host);
    r->plan.memory.copies = (MEMORY_KEPT + 1) * (int64_t)(host->used - middle);
    r->plan.memory.saving = (int64_t)(host->used - before) + r->plan.memory.copies +
                            saver_workspace(c, k->pieces, k->npieces);
}

/* Takes all memory of a run. whole: bool; 0: but what saves and records need, for a rehearsal. */
static void take(Run *r, Device *dev, RunArenas *from, const char *run_dir, int whole)
{
    const Config *c = r->cfg;
    Arena *run = &from->run, *host = &from->host, *mapped = &from->mapped;
    const ModelBytes *bytes = &r->plan.bytes;
    Memory *mem = &r->plan.memory;
    Need need = pack_all(r, bytes, 1);
    size_t before = run->used;
    *mem = (Memory){0};
    params_offload(&r->params, c->optimizer_cpu_offload ? c->optimizer_offload_fraction : 0, mapped);
    params_layout(&r->params, dev, run, r->use != RUN_FORWARD,
                  r->use == RUN_TRAIN ? optimizer_moments(c) : 0);
    const int64_t *held = r->params.data.bytes;
    mem->parameters = held[0];
    mem->gradients = held[1];
    mem->optimizer = grown(run, &before) - held[0] - held[1];
    if (r->use != RUN_FORWARD)
        optimizer_open(&r->opt, c, &r->params, dev, run);
    sdc_open(r, run);
    rerun_open(r, dev, run);
    mem->optimizer += grown(run, &before);
    model_open(&r->model, c, &r->grid, &r->plan.shape, dev, &r->params, need.slots, need.bytes,
               lists_split(c, &r->plan.shape), r->plan.fp8_recast, r->plan.logits_rows,
               r->generation.kv_length ? r->generation.kv_length : c->seq_length, run, mapped, bytes);
    reference_open(r, run);
    mem->activations = (int64_t)(need.bytes + 2 * (bytes->window_d + bytes->window_w));
    for (int k = 0; k < SLOT_KINDS; k++)
        mem->data[k] = (int64_t)bytes->data[k][0];
    mem->buffers = grown(run, &before) - mem->activations;
    layout_generation(r, run, host);
    mem->activations += grown(run, &before);
    if (r->use == RUN_TRAIN && whole) {
        r->checkpoint.pieces = pieces_open(&r->params, PIECES_SAVE, &r->checkpoint.npieces);
        expert_bias_pieces(&r->model, PIECES_SAVE, &r->checkpoint.pieces, &r->checkpoint.npieces);
        fp8_scales_pieces(&r->model, PIECES_SAVE, &r->checkpoint.pieces, &r->checkpoint.npieces);
        trace_open(&r->trace, c, events(r), host);
        if (run_dir || !run->base)
            open_savers(r, run_dir, host);
    }
    r->flight.verdict = arena_take(host, STEPS_OPEN * sizeof *r->flight.verdict);
    if (c->device == DEVICE_CUDA)
        r->flight.span = arena_take(host, STEPS_OPEN * (size_t)step_instructions(r) * sizeof(InstrSpan));
    if (dev->mark_room)        /* an instruction has two marks, a step two, a recorded instruction one more */
        dev->mark_room(dev, STEPS_OPEN * (3 * step_instructions(r) + 2));
    routers_open(r, host);
    mem->buffers += grown(run, &before);
    mem->arena = (int64_t)run->used;
    mem->mapped = (int64_t)mapped->used;
    mem->staging = (int64_t)host->used;
    int64_t blocks = mem->saving ? saver_workspace(c, r->checkpoint.pieces, r->checkpoint.npieces) : 0;
    int64_t host_side = mem->staging + mem->copies + blocks;
    mem->host = mem->mapped + (r->plan.apart ? host_side : mem->copies);
    mem->buffers += r->plan.workspace + (r->plan.apart ? 0 : host_side);
    mem->total = mem->arena + r->plan.workspace + (r->plan.apart ? 0 : mem->mapped + host_side);
    mem->evaluation = r->plan.evaluation;
    mem->reserve = r->plan.apart ? run_reserve(c) : 0;
}

void run_layout_take(Run *r, Device *dev, RunArenas *from, const char *run_dir)
{
    take(r, dev, from, run_dir, 1);
}

void run_layout_give(Run *r)
{
    routers_close(r);
    sdc_close(r);
    rerun_close(r);
    model_close(&r->model);
    optimizer_close(&r->opt);
    free(r->generation.cache.k);
    if (r->checkpoint.pieces)
        pieces_close(r->checkpoint.pieces, r->checkpoint.npieces);
    r->checkpoint.pieces = NULL;
}

void run_traffic(const Grid *g, Traffic t[AXES])
{
    const struct { int axis; const Comm *comm; } more[] = {
        {AXIS_TP, &g->kv}, {AXIS_CP, &g->context_heads}, {AXIS_CP, &g->context_ring},
        {AXIS_EP, &g->expert[EXPERT_EP]}, {AXIS_EP, &g->expert[EXPERT_TP]},
        {AXIS_DP, &g->data}, {AXIS_DP, &g->shard}, {AXIS_DP, &g->copies}, {AXIS_DP, &g->expert[EXPERT_DATA]},
        {AXIS_DP, &g->expert[EXPERT_SHARD]}, {AXIS_DP, &g->expert[EXPERT_COPIES]},
        {AXIS_PP, &g->embedding}};
    for (int a = 0; a < AXES; a++)
        t[a] = (Traffic){g->axis[a].ops, g->axis[a].bytes};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        t[more[i].axis].ops += more[i].comm->ops;
        t[more[i].axis].bytes += more[i].comm->bytes;
    }
}

/* Bytes of the device's memory that device and transport take for themselves. What NCCL takes is in the
 * reserve of a GPU, and messages through the host are in the host's memory. */
static int64_t workspace(const Run *r)
{
    const Grid *g = &r->grid;
    const Comm *large[] = {&g->axis[AXIS_TP],      &g->axis[AXIS_CP],      &g->axis[AXIS_PP],
                           &g->kv,                 &g->context_heads,      &g->context_ring,
                           &g->data,               &g->shard,              &g->copies,
                           &g->embedding,          &g->expert[EXPERT_EP],  &g->expert[EXPERT_TP],
                           &g->expert[EXPERT_DATA], &g->expert[EXPERT_SHARD], &g->expert[EXPERT_COPIES]};
    size_t n = run_device_workspace(r);
    if (r->cfg->device == DEVICE_CUDA)
        return (int64_t)n;
    for (size_t i = 0; i < sizeof large / sizeof *large; i++)
        n += large[i]->ops ? comm_workspace() : 0;
    if (r->cfg->num_moe_experts != CFG_ABSENT)     /* three flights of a microbatch at a time */
        n += (r->model.pair.fiber ? 6 : 3) * dtype_size(r->model.dim.type) *
             (size_t)(experts_under_way(&r->model.lane.experts) * r->model.dim.H);
    return (int64_t)n;
}

void run_rehearse_step(Run *r, const Lists *l)
{
    r->model.fp8.steady = 1;
    step_train(r, l);
    if (r->use == RUN_TRAIN) {
        optimizer_step(&r->opt, 0);
        model_next_scales(&r->model);
        data_gather_all(&r->params.data, r->cfg->overlap_param_gather);
    }
    r->model.fp8.steady = 0;
}

/* Bytes of the model's data and scratch, of sizes b, that the lists need; forward: bool: evaluations too. */
static int64_t data_bytes(Run *r, const ModelBytes *b, int forward)
{
    Need need = pack_all(r, b, forward);
    return (int64_t)(need.bytes + 2 * (b->window_d + b->window_w) + b->scratch + b->beside);
}

/* Runs every list of the plan over a device and groups that do nothing, and counts the traffic of a
 * training step of the last segment. Nothing of it is noted: the rank is still at its start. */
static void rehearse(Run *r, const Rehearsal *over)
{
    const Config *c = r->cfg;
    int same = over->peaks && !over->step;     /* all is known */
    r->stage.note = NULL;
    for (int i = 0; i < c->batch_steps && !same; i++) {
        Traffic before[AXES];
        run_traffic(&r->grid, before);
        if (r->use != RUN_FORWARD && over->step && i == c->batch_steps - 1)
            over->step(over->ctx, r, &r->plan.lists[i]);
        else if (r->use != RUN_FORWARD)
            run_rehearse_step(r, &r->plan.lists[i]);
        run_traffic(&r->grid, r->plan.traffic);
        for (int a = 0; a < AXES; a++)
            r->plan.traffic[a] =
                (Traffic){r->plan.traffic[a].ops - before[a].ops, r->plan.traffic[a].bytes - before[a].bytes};
    }
    if (same)
        memcpy(r->plan.traffic, over->peaks->traffic, sizeof r->plan.traffic);
    r->plan.trained = over->peaks ? over->peaks->trained : model_peaks(&r->model);
    for (int i = 0; i < c->batch_steps && !over->peaks; i++)
        step_forward(r, &r->plan.lists[i].forward, c->micro_batch_size, c->seq_length, 1);
    ModelBytes all = over->peaks ? over->peaks->bytes : model_peaks(&r->model);
    r->plan.evaluation =
        r->use == RUN_TRAIN ? data_bytes(r, &all, 1) - data_bytes(r, &r->plan.trained, 0) : 0;
    if (r->generation.kv_length)
        run_extend(r, NULL, r->generation.kv_length, NULL);
    r->plan.bytes = over->peaks ? all : model_peaks(&r->model);
    step_open(r);
}

void run_table_open(Run *r) { params_open(&r->params, r->cfg, &r->grid, &r->plan.placement); }

/* Finds every size over arenas that only count: takes memory with slots that grow, runs every list, and
 * takes memory again with slots of the peak sizes. */
static void count(Run *r, const Rehearsal *over)
{
    Device null, *dev = over->dev ? over->dev : &null;
    RunArenas first = {
        .run = {.name = "run"}, .mapped = {.name = "run, offloaded"}, .host = {.name = "run, host"}};
    RunArenas second = first;
    null_open(&null, r->params.real);
    if (r->cfg->device == DEVICE_CUDA)
        products_watch(&null, &r->gpu.products);
    r->gpu.products.any_order = !r->cfg->deterministic_mode;
    step_open(r);
    take(r, dev, &first, NULL, 0);
    rehearse(r, over);
    r->plan.workspace = over->peaks ? over->peaks->workspace : workspace(r);
    run_layout_give(r);
    run_layout_take(r, dev, &second, NULL);
    run_layout_give(r);
}

void run_plan_over(Run *r, const Config *cfg, RunUse use, int64_t kv_length, int rank, const Rehearsal *over)
{
    GridSpec spec = run_spec(cfg);
    *r = (Run){.cfg = cfg, .use = use, .generation.kv_length = kv_length,
               .plan.apart = over->apart || cfg->device == DEVICE_CUDA, .plan.fp8_recast = over->fp8_recast};
    r->plan.logits_rows = run_logits_rows(cfg, r->plan.apart, over->logits_rows);
    if (over->open)
        grid_open_by(&r->grid, &spec, cfg->world, rank, over->open, over->ctx);
    else
        grid_open_counting(&r->grid, &spec, cfg->world, rank);
    placement_open(&r->plan.placement, cfg);
    run_table_open(r);
    lists_open(r, over->lists);
    count(r, over);
}

RunPeaks run_plan_peaks(const Run *r)
{
    RunPeaks p = {.trained = r->plan.trained, .bytes = r->plan.bytes, .workspace = r->plan.workspace};
    memcpy(p.traffic, r->plan.traffic, sizeof p.traffic);
    return p;
}

void run_plan(Run *r, const Config *cfg, RunUse use, int64_t kv_length, int rank)
{
    run_plan_over(r, cfg, use, kv_length, rank, &(Rehearsal){0});
}

void run_plan_close(Run *r)
{
    products_close(&r->gpu.products);
    lists_close(r);
    params_close(&r->params);
    placement_close(&r->plan.placement);
    grid_close(&r->grid);
}
