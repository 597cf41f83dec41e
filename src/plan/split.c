/* split -- pipeline_balance cost for a machine: layers split over the stages by their predicted times */
#include "split.h"
#include "config_table.h"
#include "placement.h"
#include <stdlib.h>

/* Predicts one microbatch of a pipeline in which the embedding, each layer and the head have a rank of their
 * own. What counts layers of a stage counts the one layer. */
static void predict_units(Prediction *out, const Config *cfg, const Machine *m)
{
    Config apart = *cfg;
    int n = (int)cfg->num_layers + 2, *layers = xcalloc((size_t)n, sizeof *layers);
    for (int i = 1; i < n - 1; i++)
        layers[i] = 1;
    apart.world = (int)(cfg->world / cfg->pipeline_model_parallel_size) * n;
    apart.pipeline_model_parallel_size = apart.stages = n;
    apart.stage_layers = layers;
    apart.num_virtual_stages_per_pipeline_rank = apart.microbatch_group_size_per_vp_stage = 1;
    apart.pipeline_schedule = PIPELINE_SCHEDULE_1F1B;
    apart.pipeline_max_activations = CFG_ABSENT;
    apart.pipeline_schedule_file = NULL;
    apart.custom = NULL;
    apart.overlap_moe_expert_parallel_comm = 0;
    apart.cpu_offloading_num_layers = 0;
    apart.recompute_num_layers = 1;
    apart.batch_steps = 1;
    apart.batch_step = &(BatchStep){0, cfg->micro_batch_size * cfg->data_parallel_size};
    predict(out, &apart, m);
    free(layers);
}

const Config *split_predicted(const Config *cfg, const Machine *m, FILE *says)
{
    Prediction p;
    if (cfg->pipeline_balance != PIPELINE_BALANCE_COST || cfg->stages)
        return cfg;
    predict_units(&p, cfg, m);
    double *cost = xcalloc((size_t)p.n, sizeof *cost);
    for (int s = 0; s < p.n; s++)
        cost[s] = 1e3 * (p.stage[s].forward.work + p.stage[s].backward_x.work + p.stage[s].backward_w.work);
    prediction_close(&p);
    char *how = textf(", predicted for %s", m->name);
    const Config *c = placement_share_out(cfg, cost, how, says);
    free(cost);
    return c;
}
