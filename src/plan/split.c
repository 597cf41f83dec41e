/* split -- pipeline_balance cost for a machine: layers split over the stages by their predicted times */
#include "split.h"
#include "config_table.h"
#include "kinds.h"
#include "placement.h"
#include <stdlib.h>

/* Predicts one microbatch of a pipeline in which the embedding, each `each` layers and the head have a rank
 * of their own. What counts layers of a stage counts these. */
static void predict_units(Prediction *out, const Config *cfg, const Machine *m, int each)
{
    Config apart = *cfg;
    int left = (int)cfg->num_layers, n = (left + each - 1) / each + 2;
    int *layers = xcalloc((size_t)n, sizeof *layers);
    for (int i = 1; i < n - 1; i++, left -= each)
        layers[i] = left < each ? left : each;
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
    apart.recompute_num_layers = cfg->recompute_method == RECOMPUTE_METHOD_BLOCK ? each : 1;
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
    /* a pipeline has RANKS_MOST ranks at most: of more layers, neighbours share one and count alike */
    int layers = (int)cfg->num_layers, each = 1 + (layers - 1) / (RANKS_MOST - 2);
    predict_units(&p, cfg, m, each);
    double *cost = xcalloc((size_t)layers + 2, sizeof *cost);
    for (int s = 0, at = 0; s < p.n; s++) {
        const StageTime *t = &p.stage[s];
        int n = s == 0 || s == p.n - 1 ? 1 : layers + 1 - at < each ? layers + 1 - at : each;
        for (int i = 0; i < n; i++)
            cost[at++] = 1e3 * (t->forward.work + t->backward_x.work + t->backward_w.work) / n;
    }
    prediction_close(&p);
    char *how = textf(", predicted for %s", m->name);
    const Config *c = placement_share_out(cfg, cost, how, says);
    free(cost);
    return c;
}
