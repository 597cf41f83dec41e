/* balance -- embedding, layers and head timed, and the layers split over the stages by these times */
#include "balance.h"
#include "config_table.h"
#include "placement.h"
#include "run.h"
#include <stdlib.h>
#include <string.h>

enum { KINDS = 4 };                    /* of layers: dense or with experts, in FP8 or not */

/* Each time is the minimum of ROUNDS runs: noise only makes a run longer. */
#define ROUNDS 3

static double timed(Run *r, void (*act)(void *model, const Instr *i), InstrKind op, int unit)
{
    Instr i = {.op = (uint8_t)op, .unit = (uint16_t)unit};
    double start = now();
    act(&r->model, &i);
    return 1e3 * (now() - start);
}

/* Gives every microbatch the same tokens: the time does not depend on them. */
static const Batch *some_tokens(void *batch, int mb)
{
    (void)mb;
    return batch;
}

Batch balance_tokens_open(const Config *c)
{
    size_t n = (size_t)(c->micro_batch_size * c->seq_length);
    Batch b = {.batch = c->micro_batch_size, .seq = c->seq_length, .runs = positions_one(0, c->seq_length),
               .tokens = xcalloc(n, 4), .labels = xcalloc(n, 4), .position = xcalloc(n, 4),
               .loss_mask = xcalloc(n, 4), .sample = xcalloc((size_t)c->micro_batch_size, 8)};
    b.doc_start = c->reset_attention_mask ? xcalloc(n, 4) : NULL;
    for (size_t i = 0; i < n; i++) {
        b.tokens[i] = b.labels[i] = (int32_t)((int64_t)(i * 7919) % c->vocab_size);
        b.position[i] = (int32_t)((int64_t)i % c->seq_length);
        b.loss_mask[i] = 1;
    }
    return b;
}

void balance_tokens_close(Batch *b)
{
    free(b->tokens);
    free(b->labels);
    free(b->position);
    free(b->loss_mask);
    free(b->doc_start);
    free(b->sample);
}

static int kind_of(const Config *c, int layer)
{
    return 2 * model_in_fp8(c, layer) + config_is_moe(c, layer);
}

/* Returns a model for one rank with one layer of each kind that cfg has. It lasts as cfg does.
 *   at  out  [KINDS]  the unit of each kind; 0: there is none */
static const Config *model_of_kinds(const Config *cfg, int at[KINDS])
{
    Config *c = config_for_one_rank(cfg);
    const char **with_experts = keep_alloc(KINDS, sizeof *with_experts);
    int *layers = keep_alloc(1, sizeof *layers);
    BatchStep *step = keep_alloc(1, sizeof *step);
    memset(at, 0, KINDS * sizeof *at);
    for (int l = 0; l < cfg->num_layers; l++)
        at[kind_of(cfg, l)] = 1;
    for (int kind = 0; kind < KINDS; kind++)       /* those that stay out of FP8 first */
        if (at[kind]) {
            with_experts[*layers] = kind % 2 ? "1" : "0";
            at[kind] = ++*layers;
        }
    c->moe_layer_freq = (List){.v = with_experts, .n = *layers};
    c->first_last_layers_bf16 = 1;
    c->num_layers_at_start_in_bf16 = !!at[0] + !!at[1];
    c->num_layers_at_end_in_bf16 = 0;
    c->num_layers = *layers;
    c->stages = 1;
    c->stage_layers = layers;
    *step = (BatchStep){0, c->micro_batch_size};
    c->batch_steps = 1;
    c->batch_step = step;
    c->recompute_num_layers = c->recompute_method == RECOMPUTE_METHOD_BLOCK ? *layers : 1;
    return c;
}

/* Times forward plus backward of each unit of a model.
 *   took  out  [units]  ms */
static void time_units(const Config *c, int units, double *took)
{
    Batch batch = balance_tokens_open(c);
    Run r;
    run_open(&r, c, RUN_GRADIENT, 0, NULL);
    for (int round = 0; round < ROUNDS; round++) {
        double this[KINDS + 2];
        data_begin(&r.params.data);
        model_begin(&r.model, &r.plan.lists[0].train, c->micro_batch_size, c->seq_length, 1);
        r.model.now.next_batch = some_tokens;
        r.model.now.batch_ctx = &batch;
        for (int u = 0; u < units; u++)
            this[u] = timed(&r, model_forward, I_F, u);
        for (int u = units - 1; u >= 0; u--)
            this[u] += timed(&r, model_backward, I_B, u);
        for (int u = 0; u < units; u++)
            took[u] = round == 0 || this[u] < took[u] ? this[u] : took[u];
    }
    run_close(&r);
    balance_tokens_close(&batch);
}

/* cost: out [num_layers + 2] ms of the embedding, each layer and the head. */
static void measure(const Config *cfg, double *cost)
{
    int at[KINDS];
    double took[KINDS + 2];
    const Config *small = model_of_kinds(cfg, at);
    time_units(small, (int)small->num_layers + 2, took);
    cost[0] = took[0];
    for (int l = 0; l < cfg->num_layers; l++)
        cost[1 + l] = took[at[kind_of(cfg, l)]];
    cost[1 + cfg->num_layers] = took[1 + small->num_layers];
}

static int balanced(const Config *c) { return c->pipeline_balance != PIPELINE_BALANCE_COST || c->stages; }

static double *costs_open(const Config *c) { return xcalloc((size_t)c->num_layers + 2, sizeof(double)); }

const Config *balance_choose(const Config *cfg)
{
    Grid g;
    if (balanced(cfg))
        return cfg;
    double *cost = costs_open(cfg);
    run_grid(&g, cfg);
    if (g.rank == 0)
        measure(cfg, cost);
    g.all.wait(&g.all, g.all.broadcast(&g.all, cost, cfg->num_layers + 2, F64, 0));
    cfg = placement_share_out(cfg, cost, "", g.rank ? NULL : stderr);
    grid_close(&g);
    free(cost);
    return cfg;
}

const Config *balance_here(const Config *cfg)
{
    if (balanced(cfg))
        return cfg;
    double *cost = costs_open(cfg);
    measure(cfg, cost);
    cfg = placement_share_out(cfg, cost, "", stderr);
    free(cost);
    return cfg;
}
