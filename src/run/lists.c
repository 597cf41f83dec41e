/* lists -- the instruction lists of a run: made for all ranks, checked, and this rank's made ready */
#include "custom.h"
#include "run_costs.h"
#include "run_layout.h"
#include <stdlib.h>
#include <string.h>

int lists_split(const Config *c, const PipeShape *s)
{
    int backward = schedule_info[s->kind].backward;
    return backward == BACKWARD_GIVEN ? c->custom->split : backward == BACKWARD_SPLIT;
}

PipeShape run_shape(const Config *c, const Placement *pl)
{
    PipeShape s = {.kind = SCHEDULE_1F1B, .p = pl->p, .v = pl->v,
                   .group = (int)c->microbatch_group_size_per_vp_stage, .weight_share = 1};
    if (pl->p > 1)
        s.kind = (ScheduleKind)c->pipeline_schedule;
    s.vee = pl->p > 1 && placement_turns(c);
    s.paired = config_is_paired(c);
    s.limit = c->pipeline_max_activations == CFG_ABSENT ? 0 : (int)c->pipeline_max_activations;
    s.lists = c->custom ? c->custom->list : NULL;
    if (s.kind == SCHEDULE_ZB_AUTO)
        run_costs(&s, c, pl);
    return s;
}

void run_shape_close(PipeShape *s)
{
    free((void *)s->cost[0]);
    memset(s->cost, 0, sizeof s->cost);
}

/* Which instructions stand between the units of this rank: gather, release, reduce, the tied
 * embedding. */
static Expand expand_of(const Run *r, const int *units)
{
    const Data *d = &r->params.data;
    Expand e = {.units = units, .sharded_grads = d->stage >= SHARD_GRADS,
                .overlap = r->cfg->overlap_grad_reduce, .gather = d->stage == SHARD_PARAMS,
                .tied = d->tied >= 0};
    for (int u = 0; e.tied && u < d->units; u++)
        if (d->tied >= d->unit[u].first && d->tied < d->unit[u].first + d->unit[u].count)
            e.tied_unit = u;
    return e;
}

/* Cuts an open table into units.
 *   units  out  [nchunks]  number of units of each chunk */
static Expand open_units(Run *r, int *units)
{
    int n;
    ModelUnit *unit = model_units(r->cfg, &r->params, &n, units);
    PartRange *range = xcalloc((size_t)n + 1, sizeof *range);
    for (int i = 0; i < n; i++)
        range[i] = (PartRange){unit[i].part, unit[i].count};
    params_units(&r->params, range, n);
    free(range);
    free(unit);
    return expand_of(r, units);
}

/* Microbatches of this rank in a step of segment i. */
static int microbatches(const Config *c, int i)
{
    return (int)(c->batch_step[i].batch / (c->micro_batch_size * c->data_parallel_size));
}

/* Opens the lists of all ranks. check: dies when they break a rule of schedules_check. */
static void open_set(ScheduleSet *set, PipeShape shape, ScheduleKind kind, int check)
{
    char why[WHY];
    shape.kind = kind;
    schedules_open(set, &shape);
    if (check && !schedules_check(set, why, sizeof why))
        die(EXIT_BUG, "schedule",
            "the schedule does not hold: %s; change: another pipeline_schedule, and report this one", why);
}

/* Opens this rank's list.
 *   made  in   the lists of all ranks; NULL: made here
 *   sim   out  rank 0: replay of the lists made here; NULL: not wanted */
static void open_list(Run *r, Schedule *own, ScheduleKind kind, int m, const Expand *e,
                      const ScheduleSet *made, Simulation *sim)
{
    ScheduleSet set;
    if (made) {
        schedule_open(own, made, r->grid.index[AXIS_PP], e);
        return;
    }
    r->plan.shape.m = m;
    open_set(&set, r->plan.shape, kind, r->grid.rank == 0);
    uint64_t hash = schedules_hash(&set);
    r->plan.hash = hash64(&hash, sizeof hash, r->plan.hash);
    if (sim && r->grid.rank == 0)
        simulate(&set, sim, 0);
    schedule_open(own, &set, r->grid.index[AXIS_PP], e);
    schedules_close(&set);
}

void lists_open(Run *r, const StepLists *made)
{
    const Config *c = r->cfg;
    int *units = xcalloc((size_t)r->params.nchunks, sizeof *units);
    r->plan.shape = run_shape(c, &r->plan.placement);
    Expand e = open_units(r, units);
    r->plan.hash = HASH_SEED;
    r->plan.lists = xcalloc((size_t)c->batch_steps, sizeof *r->plan.lists);
    for (int i = 0; i < c->batch_steps; i++) {
        Lists *l = &r->plan.lists[i];
        l->batch = c->batch_step[i].batch;
        l->m = microbatches(c, i);
        if (r->use != RUN_FORWARD)
            open_list(r, &l->train, r->plan.shape.kind, l->m, &e, made ? &made->train[i] : NULL,
                      i == c->batch_steps - 1 ? &r->plan.sim : NULL);
        open_list(r, &l->forward, SCHEDULE_FORWARD, l->m, &e, made ? &made->forward[i] : NULL, NULL);
    }
    if (r->generation.kv_length)
        open_list(r, &r->generation.list, SCHEDULE_FORWARD, 1, &e, NULL, NULL);
    free(units);
}

void lists_units(Run *r)
{
    int *units = xcalloc((size_t)r->params.nchunks, sizeof *units);
    open_units(r, units);
    free(units);
}

void lists_close(Run *r)
{
    for (int i = 0; i < r->cfg->batch_steps; i++) {
        schedule_close(&r->plan.lists[i].train);
        schedule_close(&r->plan.lists[i].forward);
    }
    schedule_close(&r->generation.list);
    free(r->plan.lists);
    run_shape_close(&r->plan.shape);
    simulation_close(&r->plan.sim);
}

void step_lists_open(StepLists *l, const Config *c, const Placement *pl)
{
    *l = (StepLists){.n = c->batch_steps, .shape = run_shape(c, pl)};
    l->train = xcalloc(2 * (size_t)l->n, sizeof *l->train);
    l->forward = l->train + l->n;
    for (int i = 0; i < l->n; i++) {
        l->shape.m = microbatches(c, i);
        open_set(&l->train[i], l->shape, l->shape.kind, 1);
        open_set(&l->forward[i], l->shape, SCHEDULE_FORWARD, 0);
    }
}

void step_lists_close(StepLists *l)
{
    for (int i = 0; i < l->n; i++) {
        schedules_close(&l->train[i]);
        schedules_close(&l->forward[i]);
    }
    free(l->train);
    run_shape_close(&l->shape);
}

const Lists *run_lists(const Run *r, int64_t batch)
{
    int i = 0;
    while (r->plan.lists[i].batch != batch)
        i++;
    return &r->plan.lists[i];
}

Expand run_expand(const Config *cfg, int rank, int *units)
{
    GridSpec spec = run_spec(cfg);
    Run r = {.cfg = cfg};
    grid_open_counting(&r.grid, &spec, cfg->world, rank);
    placement_open(&r.plan.placement, cfg);
    run_table_open(&r);
    Expand e = open_units(&r, units);
    params_close(&r.params);
    placement_close(&r.plan.placement);
    grid_close(&r.grid);
    return e;
}
