/* balance -- embedding, layer and head timed, and the layers split over the stages by these times */
#include "balance.h"
#include "placement.h"
#include "run.h"
#include <stdlib.h>

enum { EMBEDDING, LAYER, LOSS, PARTS };

/* Each time is the minimum of ROUNDS runs: noise only makes a run longer. */
#define ROUNDS 3

static double timed(Run *r, void (*act)(void *model, const Instr *i), InstrKind op, int unit)
{
    Instr i = {.op = (uint8_t)op, .unit = (uint16_t)unit};
    double start = now();
    act(&r->model, &i);
    return now() - start;
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

/* Times forward plus backward of each unit of a model with one layer.
 *   cost  out  [PARTS]  seconds */
static void measure(const Config *cfg, double cost[PARTS])
{
    static const int one[] = {1};
    Config small = *config_for_one_rank(cfg);
    small.num_layers = 1;
    small.stages = 1;
    small.stage_layers = one;
    small.batch_steps = 1;
    small.batch_step = &(BatchStep){0, small.micro_batch_size};
    small.recompute_num_layers = 1;
    Batch batch = balance_tokens_open(&small);
    Run r;
    run_open(&r, &small, RUN_GRADIENT, 0, NULL);
    for (int round = 0; round < ROUNDS; round++) {
        double took[PARTS] = {0};
        data_begin(&r.params.data);
        model_begin(&r.model, &r.plan.lists[0].train, small.micro_batch_size, small.seq_length, 1);
        r.model.now.next_batch = some_tokens;
        r.model.now.batch_ctx = &batch;
        for (int u = 0; u < PARTS; u++)
            took[u] += timed(&r, model_forward, I_F, u);
        for (int u = PARTS - 1; u >= 0; u--)
            took[u] += timed(&r, model_backward, I_B, u);
        for (int u = 0; u < PARTS; u++)
            cost[u] = round == 0 || took[u] < cost[u] ? took[u] : cost[u];
    }
    run_close(&r);
    balance_tokens_close(&batch);
}

static int balanced(const Config *c) { return c->pipeline_balance != PIPELINE_BALANCE_COST || c->stages; }

static const Config *share_out(const Config *cfg, const double cost[PARTS], int speaks)
{
    char *layout = placement_balance(cfg, cost);
    if (speaks)
        fprintf(stderr, "pipeline_balance cost: embedding %.3g ms, a layer %.3g, head %.3g: %s\n",
                cost[EMBEDDING] * 1e3, cost[LAYER] * 1e3, cost[LOSS] * 1e3, layout);
    const Config *c = config_with_layout(cfg, layout);
    free(layout);
    return c;
}

const Config *balance_choose(const Config *cfg)
{
    Grid g;
    double cost[PARTS] = {0};
    if (balanced(cfg))
        return cfg;
    run_grid(&g, cfg);
    if (g.rank == 0)
        measure(cfg, cost);
    g.all.wait(&g.all, g.all.broadcast(&g.all, cost, PARTS, F64, 0));
    cfg = share_out(cfg, cost, g.rank == 0);
    grid_close(&g);
    return cfg;
}

const Config *balance_here(const Config *cfg)
{
    double cost[PARTS] = {0};
    if (balanced(cfg))
        return cfg;
    measure(cfg, cost);
    return share_out(cfg, cost, 1);
}
