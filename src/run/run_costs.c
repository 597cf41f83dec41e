/* run_costs -- FLOPs of a rank's step; costs of F, D and W of each stage for zb-auto */
#include "run_costs.h"
#include "cost.h"
#include "json_number.h"

/* One rank's step over a device that counts FLOPs. */
typedef struct {
    double flops;                                           /* so far: whole numbers, so sums are exact */
    CostSink sink;
    Device dev;
    void (*act[INSTR_KINDS])(void *run, const Instr *i);    /* the model's functions that act() wraps */
    double *cost[3];                                        /* [n] F, D, W of the virtual stages */
    PipeShape shape;
} Count;

static void add_flops(void *count, const Cost *c) { ((Count *)count)->flops += c->flops / c->rate; }
static void add_whole_flops(void *count, const Cost *c) { ((Count *)count)->flops += c->flops; }

static void act(void *run, const Instr *i)
{
    Run *r = run;
    Count *k = cost_ctx(r->model.dev);
    double before = k->flops;
    k->act[i->op](run, i);
    if (r->model.now.evaluating || i->op > I_W)
        return;
    BUG_ON(i->op == I_B);
    int stage = pipe_stage(&k->shape, r->grid.index[AXIS_PP], i->chunk);
    k->cost[i->op == I_F ? 0 : i->op == I_D ? 1 : 2][stage] += k->flops - before;
}

static void count_step(void *count, Run *r, const Lists *l)
{
    Count *k = count;
    k->shape = r->plan.shape;
    for (int i = 0; i <= I_W; i++) {
        k->act[i] = r->stage.act[i];
        r->stage.act[i] = act;
    }
    run_rehearse_step(r, l);
}

/* Counts one microbatch of stage s, with its backward split in D and W. */
static void count_stage(Count *k, const Config *cfg, int s)
{
    Config one = *cfg;
    Run r;
    one.pipeline_schedule = PIPELINE_SCHEDULE_ZB_H1;
    one.overlap_moe_expert_parallel_comm = 0;
    one.data_parallel_sharding_strategy = DATA_PARALLEL_SHARDING_STRATEGY_NO_SHARD;
    one.batch_steps = 1;
    one.batch_step = &(BatchStep){0, cfg->micro_batch_size * cfg->data_parallel_size};
    run_plan_over(&r, &one, RUN_GRADIENT, 0, run_first(&one, AXIS_PP, s),
                  &(Rehearsal){.dev = &k->dev, .step = count_step, .ctx = k});
    run_plan_close(&r);
}

void run_costs(PipeShape *shape, const Config *cfg, const Placement *pl)
{
    Count k = {.sink = {add_flops, &k}};
    double sum = 0, *cost = xcalloc(3 * (size_t)pl->n, sizeof *cost);
    BUG_ON(pl->v != 1);
    cost_open(&k.dev, cfg->params_dtype == PARAMS_DTYPE_FP64 ? F64 : F32, &k.sink);
    for (int op = 0; op < 3; op++)
        shape->cost[op] = k.cost[op] = cost + op * pl->n;
    for (int s = 0; s < pl->n; s++) {
        int like = 0;
        while (!placement_same(&pl->stage[like], &pl->stage[s]))
            like++;
        if (like == s)
            count_stage(&k, cfg, s);
        else
            for (int op = 0; op < 3; op++)
                k.cost[op][s] = k.cost[op][like];
    }
    for (int i = 0; i < 3 * pl->n; i++)
        sum += cost[i];
    for (int i = 0; i < 3 * pl->n; i++)
        cost[i] *= 3 * pl->n / sum;
}

/* ---- a whole step ---- */

/* Of the first microbatch; the others cost the same. */
static void act_once(void *run, const Instr *i)
{
    Run *r = run;
    Count *k = cost_ctx(r->model.dev);
    if (!i->mb && !r->model.now.evaluating && k->act[i->op])
        k->act[i->op](run, i);
}

static void count_once(void *count, Run *r, const Lists *l)
{
    Count *k = count;
    r->stage.pair = NULL;                  /* a pair's F and B are counted one after the other */
    for (int i = 0; i < INSTR_KINDS; i++) {
        k->act[i] = i <= I_W || instr_info[i].message ? r->stage.act[i] : NULL;
        r->stage.act[i] = act_once;
    }
    run_rehearse_step(r, l);
}

double run_flops(const Config *cfg, int rank, const StepLists *lists)
{
    Config one = *cfg;
    Count k = {.sink = {add_whole_flops, &k}};
    int last = lists->n - 1;
    StepLists own = {1, lists->shape, &lists->train[last], &lists->forward[last]};
    Run r;
    one.data_parallel_sharding_strategy = DATA_PARALLEL_SHARDING_STRATEGY_NO_SHARD;
    one.batch_steps = 1;
    one.batch_step = &cfg->batch_step[last];
    cost_open(&k.dev, cfg->params_dtype == PARAMS_DTYPE_FP64 ? F64 : F32, &k.sink);
    run_plan_over(&r, &one, RUN_GRADIENT, 0, rank,
                  &(Rehearsal){.dev = &k.dev, .step = count_once, .ctx = &k, .lists = &own});
    run_plan_close(&r);
    return k.flops * lists->shape.m;
}

/* ---- in words ---- */

static double cost_of(const PipeShape *s, int op, int stage) { return s->cost[op] ? s->cost[op][stage] : 1; }

const char *run_costs_phrase(const PipeShape *s)
{
    return s->cost[0] ? "where the stages take what their FLOPs say"
                      : "where forward and both halves of backward take equal times";
}

static int same_costs(const PipeShape *s, int a, int b)
{
    int same = 1;
    for (int op = 0; op < 3; op++)
        same &= cost_of(s, op, a) == cost_of(s, op, b);
    return same;
}

void run_costs_print(FILE *f, const PipeShape *s)
{
    for (int stage = 0, last; stage < s->p * s->v; stage = last + 1) {
        for (last = stage; last + 1 < s->p * s->v && same_costs(s, stage, last + 1);)
            last++;
        fprintf(f, "%s %d", stage ? "," : " stage", stage);
        if (last > stage)
            fprintf(f, " to %d", last);
        fprintf(f, ": %.3g %.3g %.3g", cost_of(s, 0, stage), cost_of(s, 1, stage), cost_of(s, 2, stage));
    }
}

json_t *run_costs_json(const PipeShape *s, const char *source)
{
    static const char *const key[] = {"forward", "backward_input", "backward_weight"};
    json_t *o = json_pack("{s:s}", "source", source);
    for (int op = 0; op < 3; op++) {
        json_t *list = json_array();
        for (int stage = 0; stage < s->p * s->v; stage++)
            json_array_append_new(list, json_number(cost_of(s, op, stage)));
        json_object_set_new(o, key[op], list);
    }
    return o;
}
