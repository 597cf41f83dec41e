/* model_open -- what a rank holds of the model: units, chunks, tables and memory */
#include "model.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Number of layers in the next unit, and whether the unit is recomputed.
 *   left       in   layers left in the chunk
 *   before     in   layers of the rank so far: recompute_method block counts through the whole rank
 *   recompute  out  bool */
static int group_size(const Config *c, int left, int before, int *recompute)
{
    int n = (int)c->recompute_num_layers;
    int full = c->recompute_granularity == RECOMPUTE_GRANULARITY_FULL;
    *recompute = full && (c->recompute_method == RECOMPUTE_METHOD_UNIFORM || before < n);
    return full && c->recompute_method == RECOMPUTE_METHOD_UNIFORM ? n < left ? n : left : 1;
}

ModelUnit *model_units(const Config *cfg, const Params *params, int *n, int *per_chunk)
{
    ModelUnit *unit = xcalloc((size_t)params->nparts + 1, sizeof *unit);
    int before = 0;                    /* layers of the rank so far */
    *n = 0;
    for (int c = 0; c < params->nchunks; c++) {
        int first = params->chunk[c].first, end = first + params->chunk[c].count, start = *n, group = 0,
            layer = 0;
        for (int part = first; part < end;) {
            ModelUnit *u = &unit[(*n)++];
            PartKind kind = params->part[part].kind;
            *u = (ModelUnit){.kind = (UnitKind)kind, .chunk = c, .part = part, .count = 1};
            if (kind == PART_LAYER) {
                int left = end - part - (params->part[end - 1].kind == PART_HEAD);
                u->count = group_size(cfg, left, before, &u->recompute);
                u->group = group++;
                u->layer = layer;
                u->offload = layer < cfg->cpu_offloading_num_layers;
                layer += u->count;
                before += u->count;
            }
            part += u->count;
        }
        per_chunk[c] = *n - start;
    }
    return unit;
}

static void open_chunks(Model *m, const PipeShape *shape)
{
    int rank = m->grid->index[AXIS_PP], last = shape->p * m->held.nchunks - 1, at = 0;
    int *units = xcalloc((size_t)m->held.nchunks, sizeof *units);
    m->held.unit = model_units(m->cfg, m->params, &m->held.nunits, units);
    m->held.chunk = xcalloc((size_t)m->held.nchunks, sizeof *m->held.chunk);
    for (int c = 0; c < m->held.nchunks; c++) {
        Chunk *k = &m->held.chunk[c];
        int stage = pipe_stage(shape, rank, c), there;
        *k =
            (Chunk){.unit0 = at, .units = units[c], .prev = -1, .next = -1, .prev_here = -1, .next_here = -1};
        for (int u = at; u < at + units[c]; u++)
            if (m->held.unit[u].kind == UNIT_LAYERS) {
                k->groups++;
                k->layers += m->held.unit[u].count;
            }
        at += units[c];
        if (stage > 0) {
            pipe_place(shape, stage - 1, &k->prev, &there);
            k->prev_here = k->prev == rank ? there : -1;
        }
        if (stage < last) {
            pipe_place(shape, stage + 1, &k->next, &there);
            k->next_here = k->next == rank ? there : -1;
        }
    }
    free(units);
}

static int recomputes(const Config *c, const char *module)
{
    if (c->recompute_granularity != RECOMPUTE_GRANULARITY_SELECTIVE)
        return 0;
    for (int i = 0; i < c->recompute_modules.n; i++)
        if (!strcmp(c->recompute_modules.v[i], module))
            return 1;
    return 0;
}

static Arena slot_arena(Arena *run, const char *name, size_t bytes)
{
    return (Arena){.name = name, .size = bytes, .base = arena_take(run, bytes)};
}

static void open_windows(Model *m, Arena *run, Arena *mapped, const ModelBytes *bytes)
{
    for (int u = 0; u < m->held.nunits; u++)
        if (m->held.unit[u].offload && m->held.unit[u].layer >= m->offload.layers)
            m->offload.layers = m->held.unit[u].layer + 1;
    for (int i = 0; i < 2; i++) {
        m->offload.window[i].d = slot_arena(run, "an offloaded layer's activations until D", bytes->window_d);
        m->offload.window[i].w = slot_arena(run, "an offloaded layer's activations until W", bytes->window_w);
    }
    m->offload.mapped = arena_take(mapped, (size_t)m->slots.nfd * (size_t)m->offload.layers *
                                             (bytes->window_d + bytes->window_w));
}

static void open_slots(Model *m, const int slots[SLOT_KINDS], size_t room, Arena *run,
                       const ModelBytes *bytes)
{
    int groups = 0, layers = 0, n = slots[SLOT_FD];
    for (int c = 0; c < m->held.nchunks; c++) {
        groups = m->held.chunk[c].groups > groups ? m->held.chunk[c].groups : groups;
        layers = m->held.chunk[c].layers > layers ? m->held.chunk[c].layers : layers;
    }
    m->slots.all = slot_arena(run, "activations", room);
    m->slots.bytes = *bytes;
    m->slots.nfd = n;
    m->slots.layers = layers;
    m->slots.nfw = slots[SLOT_FW] ? slots[SLOT_FW] : 1; /* forward-only lists need one for its tables */
    m->slots.ndw = slots[SLOT_DW];
    m->slots.fd = xcalloc((size_t)m->slots.nfd, sizeof *m->slots.fd);
    m->slots.fw = xcalloc((size_t)m->slots.nfw, sizeof *m->slots.fw);
    m->slots.dw = xcalloc((size_t)m->slots.ndw + 1, sizeof *m->slots.dw);
    m->scratch = slot_arena(run, "scratch", bytes->scratch);
    m->pair.other.scratch = slot_arena(run, "scratch of a forward beside a backward", bytes->beside);
    m->slots.in = xcalloc((size_t)n * (size_t)(groups + 1), sizeof *m->slots.in);
    for (int i = 0; i < n; i++) {
        m->slots.fd[i].in = m->slots.in + (size_t)i * (size_t)(groups + 1);
        m->slots.fd[i].mem = m->slots.all;
    }
}

static ModelDims dims_of(const Params *p)
{
    const Config *c = p->cfg;
    int tp = p->grid->size[AXIS_TP];
    int64_t groups = c->num_query_groups;
    ModelDims d = {.H = c->hidden_size, .A = c->num_attention_heads / tp, .K = groups < tp ? 1 : groups / tp,
                   .D = c->kv_channels, .F = c->ffn_hidden_size / tp, .V = c->padded_vocab_size / tp,
                   .type = p->type, .real = p->real,
                   .logits = c->logits_dtype == LOGITS_DTYPE_BF16 ? BF16 : p->real};
    d.expert_F = c->moe_ffn_hidden_size / p->grid->expert[EXPERT_TP].size;
    d.vocab0 = p->grid->index[AXIS_TP] * d.V;
    d.Vvalid = c->vocab_size - d.vocab0;
    d.Vvalid = d.Vvalid < 0 ? 0 : d.Vvalid < d.V ? d.Vvalid : d.V;
    return d;
}

/* Rows of a dispatch: those of a microbatch that this rank has, or a sequence that is generated. */
static void open_experts(Model *m, int64_t length, Arena *run)
{
    const Config *c = m->cfg;
    int64_t rows = c->micro_batch_size * c->seq_length / m->grid->size[AXIS_CP];
    if (c->sequence_parallel)
        rows /= m->grid->size[AXIS_TP];
    ExpertsLimit limit, *has = NULL;
    if (!isnan(c->moe_expert_capacity_factor)) {
        limit = capacity_open(m, rows);
        has = &limit;
    }
    ModelLane *lane[] = {&m->lane, &m->pair.other};
    for (int i = 0; i <= (m->pair.fiber != NULL); i++) {
        experts_open(&lane[i]->experts, &m->grid->expert[EXPERT_EP], &m->grid->expert[EXPERT_TP],
                     (int)c->num_moe_experts, (int)c->moe_router_topk, rows > length ? rows : length,
                     precision_rows_piece(c),
                     c->moe_token_dispatcher_type == MOE_TOKEN_DISPATCHER_TYPE_ALLGATHER, has);
        lane[i]->experts.turns = m->pair.fiber;
        lane[i]->experts.hot = c->moe_router_force == MOE_ROUTER_FORCE_HOT ||
                               c->moe_router_force == MOE_ROUTER_FORCE_CHANGING;
    }
    router_open(m, rows, run);
}

void model_open(Model *m, const Config *cfg, Grid *grid, const PipeShape *shape, Device *dev, Params *params,
                const int slots[SLOT_KINDS], size_t room, int split, int recast, int64_t logits_rows,
                int64_t length, Arena *run, Arena *mapped, const ModelBytes *bytes)
{
    int tp = grid->size[AXIS_TP];
    *m = (Model){.cfg = cfg, .grid = grid, .dev = dev, .params = params, .data = &params->data,
                 .dim = dims_of(params), .held.nchunks = params->nchunks, .split = split,
                 .logits_rows = logits_rows, .now = {.loss_scale = 1, .counted = 1}};
    comm_self_open(&m->tp.one, "rows");
    m->tp.tokens = xcalloc((size_t)tp * 2, sizeof *m->tp.tokens);
    m->tp.one.dev = dev;
    m->pair.fiber = shape->paired ? fiber_open() : NULL;
    m->keep.ln = !recomputes(cfg, "layernorm");
    m->keep.attn = !recomputes(cfg, "core_attn");
    m->keep.mlp = !recomputes(cfg, "mlp");
    m->keep.act = !recomputes(cfg, "mlp_act");
    m->keep.moe = !recomputes(cfg, "moe");
    open_chunks(m, shape);
    rope_open(m, length, run);
    m->sums = arena_take(run, MODEL_SUMS * sizeof *m->sums);
    precision_open(m, recast, run);
    if (cfg->num_moe_experts != CFG_ABSENT) {
        open_experts(m, length, run);
        router_stats_open(&m->routers, cfg, run);
    }
    open_slots(m, slots, room, run, bytes);
    open_windows(m, run, mapped, bytes);
}

ModelBytes model_peaks(Model *m)
{
    ModelBytes *b = &m->slots.bytes;
    for (int i = 0; i < m->slots.nfd; i++)
        slot_count(m, SLOT_FD, &m->slots.fd[i].at);
    for (int i = 0; i < m->slots.nfw; i++)
        slot_count(m, SLOT_FW, &m->slots.fw[i].at);
    for (int i = 0; i < m->slots.ndw; i++)
        slot_count(m, SLOT_DW, &m->slots.dw[i].at);
    b->scratch = m->scratch.peak;
    b->beside = m->pair.other.scratch.peak;
    b->window_d = offload_room_d(m);
    b->window_w = offload_room_w(m);
    return *b;
}

void model_close(Model *m)
{
    free(m->slots.in);
    for (int i = 0; i < m->slots.nfw; i++) {
        free(m->slots.fw[i].layer);
        free(m->slots.fw[i].grads);
    }
    free(m->slots.fd);
    free(m->slots.fw);
    free(m->slots.dw);
    free(m->tp.tokens);
    experts_close(&m->experts);
    experts_close(&m->pair.other.experts);
    fiber_close(m->pair.fiber);
    router_close(m);
    capacity_close(m);
    router_stats_close(&m->routers);
    precision_close(m);
    free(m->held.chunk);
    free(m->held.unit);
    *m = (Model){0};
}
