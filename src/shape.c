#include "shape.h"
#include "base.h"
#include <math.h>
#include <stdlib.h>

#define SAME(name) _Static_assert((int)SCHEDULE_##name == (int)PIPELINE_SCHEDULE_##name, "one order")
SAME(GPIPE); SAME(1F1B); SAME(INTERLEAVED); SAME(ZB_H1); SAME(ZB_H2); SAME(ZB_V); SAME(V_HALF); SAME(V_MIN);
SAME(DUALPIPEV); SAME(ZB_AUTO); SAME(CUSTOM);

/* The times of one clock_* key for every virtual stage: one number is a rank's, shared by its v chunks. */
static void costs_of(double *out, const List *times, int stages, int v)
{
    BUG_ON(times->n > 1 && times->n != stages);
    for (int s = 0; s < stages; s++)
        out[s] = !times->n ? 1.0 / v : times->n == 1 ? strtod(times->v[0], NULL) / v : strtod(times->v[s], NULL);
}

void shape_open(PipeShape *s, const Config *c, int m)
{
    int p = (int)c->pipeline_model_parallel_size, v = p == 1 ? 1 : (int)c->num_virtual_stages_per_pipeline_rank;
    const List *times[] = {&c->clock_forward_ms, &c->clock_backward_input_ms, &c->clock_backward_weight_ms};
    int two = c->pipeline_schedule == PIPELINE_SCHEDULE_INTERLEAVED || c->pipeline_schedule >= PIPELINE_SCHEDULE_ZB_V;
    *s = (PipeShape){.kind = p == 1 && two ? SCHEDULE_1F1B : (ScheduleKind)c->pipeline_schedule, .p = p, .v = v, .m = m,
                     .group = (int)c->microbatch_group_size_per_vp_stage};
    double *cost = xcalloc(3 * (size_t)(p * v), sizeof *cost);
    for (int k = 0; k < 3; k++) {
        costs_of(cost + k * p * v, times[k], p * v, v);
        s->cost[k] = cost + k * p * v;
    }
    if (c->clock_p2p_ms.n > 1)
        die(EXIT_CONFIG, "not-built", "clock_p2p_ms: messages of different length are not built; change: give one "
            "number");
    s->hop = c->clock_p2p_ms.n ? strtod(c->clock_p2p_ms.v[0], NULL) : 0;
    s->weight_share = isnan(c->clock_weight_share) ? 1 : c->clock_weight_share;
}

void shape_close(PipeShape *s)
{
    free((void *)s->cost[0]);
    *s = (PipeShape){0};
}

Expand shape_expand(const Config *c, const Placement *pl, int rank, int *units)
{
    int first = pl->stage[0].pp_rank, last = pl->stage[pl->n - 1].pp_rank;
    int zero = c->data_parallel_sharding_strategy, all = 0;
    for (int k = 0; k < pl->v; k++) {
        const StagePlace *at = placement_at(pl, rank, k);
        all += units[k] = at->layers + at->embedding + at->loss;
    }
    return (Expand){.units = units,
                    .sharded_grads = zero == DATA_PARALLEL_SHARDING_STRATEGY_OPTIM_GRADS ||
                                     zero == DATA_PARALLEL_SHARDING_STRATEGY_OPTIM_GRADS_PARAMS,
                    .gather = zero == DATA_PARALLEL_SHARDING_STRATEGY_OPTIM_GRADS_PARAMS,
                    .overlap = c->overlap_grad_reduce,
                    .tied = !c->untie_embeddings_and_output_weights && first != last && (rank == first || rank == last),
                    .tied_unit = rank == first ? 0 : all - 1};
}

int shape_microbatches(const Config *c, int64_t batch)
{
    return (int)(batch / (c->micro_batch_size * c->data_parallel_size));
}
