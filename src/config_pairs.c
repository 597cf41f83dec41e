/* Settings that exclude each other, or of which one needs the other: one row a pair, all of them here, so that no
 * configuration passes the rules and is refused later.
 *
 *   PAIR(a, b, broken, change)     both keys readable and `broken`: reported under a, with both values and `change`
 *
 * On an axis of size 1 its options are legal: rows about data parallelism ask for DP, rows about the pipeline for PP. */
#define _GNU_SOURCE
#include "config_rules.h"

#define DP       (c->data_parallel_size > 1)
#define PP       (c->pipeline_model_parallel_size > 1)
#define SET(key) (!ABSENT(key))
#define NO_SHARD (c->data_parallel_sharding_strategy == DATA_PARALLEL_SHARDING_STRATEGY_NO_SHARD)
#define BY_COST  (c->pipeline_balance == PIPELINE_BALANCE_COST)
#define ONE_WAY  "layers are shared out in one way: keep one of the two"

#define PAIRS(PAIR)                                                                                                    \
    PAIR(overlap_param_gather, data_parallel_sharding_strategy, DP && c->overlap_param_gather && NO_SHARD,             \
         "with copies there is nothing to gather: use optim, optim_grads or optim_grads_params")                       \
    PAIR(overlap_param_gather, overlap_grad_reduce, DP && c->overlap_param_gather && !c->overlap_grad_reduce,          \
         "set overlap_grad_reduce too")                                                                                \
    PAIR(num_distributed_optimizer_instances, data_parallel_sharding_strategy,                                         \
         DP && c->num_distributed_optimizer_instances > 1 && NO_SHARD,                                                 \
         "every rank has a copy already: use 1, or optim, optim_grads or optim_grads_params")                          \
    PAIR(pipeline_schedule_file, pipeline_schedule,                                                                    \
         PP && (c->pipeline_schedule == PIPELINE_SCHEDULE_CUSTOM) == ABSENT(pipeline_schedule_file),                   \
         "the file goes with custom, and only with it")                                                                \
    PAIR(pipeline_max_activations, pipeline_schedule,                                                                  \
         PP && SET(pipeline_max_activations) && c->pipeline_schedule != PIPELINE_SCHEDULE_ZB_AUTO,                     \
         "it is a bound for zb-auto only: leave it out")                                                               \
    PAIR(pipeline_model_parallel_layout, pipeline_balance, PP && SET(pipeline_model_parallel_layout) && BY_COST,       \
         ONE_WAY)                                                                                                      \
    PAIR(pipeline_model_parallel_layout, num_layers_in_first_pipeline_stage,                                           \
         PP && SET(pipeline_model_parallel_layout) && SET(num_layers_in_first_pipeline_stage), ONE_WAY)                \
    PAIR(pipeline_model_parallel_layout, num_layers_in_last_pipeline_stage,                                            \
         PP && SET(pipeline_model_parallel_layout) && SET(num_layers_in_last_pipeline_stage), ONE_WAY)                 \
    PAIR(pipeline_model_parallel_layout, account_for_embedding_in_pipeline_split,                                      \
         PP && SET(pipeline_model_parallel_layout) && c->account_for_embedding_in_pipeline_split, ONE_WAY)             \
    PAIR(pipeline_model_parallel_layout, account_for_loss_in_pipeline_split,                                           \
         PP && SET(pipeline_model_parallel_layout) && c->account_for_loss_in_pipeline_split, ONE_WAY)                  \
    PAIR(num_layers_in_first_pipeline_stage, account_for_embedding_in_pipeline_split,                                  \
         PP && SET(num_layers_in_first_pipeline_stage) && c->account_for_embedding_in_pipeline_split, ONE_WAY)         \
    PAIR(num_layers_in_first_pipeline_stage, account_for_loss_in_pipeline_split,                                       \
         PP && SET(num_layers_in_first_pipeline_stage) && c->account_for_loss_in_pipeline_split, ONE_WAY)              \
    PAIR(num_layers_in_last_pipeline_stage, account_for_embedding_in_pipeline_split,                                   \
         PP && SET(num_layers_in_last_pipeline_stage) && c->account_for_embedding_in_pipeline_split, ONE_WAY)          \
    PAIR(num_layers_in_last_pipeline_stage, account_for_loss_in_pipeline_split,                                        \
         PP && SET(num_layers_in_last_pipeline_stage) && c->account_for_loss_in_pipeline_split, ONE_WAY)               \
    PAIR(num_layers_in_first_pipeline_stage, pipeline_balance,                                                         \
         PP && SET(num_layers_in_first_pipeline_stage) && BY_COST, ONE_WAY)                                            \
    PAIR(num_layers_in_last_pipeline_stage, pipeline_balance,                                                          \
         PP && SET(num_layers_in_last_pipeline_stage) && BY_COST, ONE_WAY)                                             \
    PAIR(account_for_embedding_in_pipeline_split, pipeline_balance,                                                    \
         PP && c->account_for_embedding_in_pipeline_split && BY_COST, ONE_WAY)                                         \
    PAIR(account_for_loss_in_pipeline_split, pipeline_balance,                                                         \
         PP && c->account_for_loss_in_pipeline_split && BY_COST, ONE_WAY)

#define PAIR(a, b, condition, change)                                                                                  \
    static int broken_##a##_##b(const Config *c) { return (condition); }
PAIRS(PAIR)
#undef PAIR

#define PAIR(a, b, condition, change) {OPT_##a, OPT_##b, broken_##a##_##b, change},
const Pair pairs[] = {PAIRS(PAIR)};
#undef PAIR
const int pair_count = sizeof pairs / sizeof *pairs;

void rules_pairs(Check *k)
{
    for (int i = 0; i < pair_count; i++) {
        const Pair *p = &pairs[i];
        const int on[] = {p->a, p->b, -1};
        if (!usable(k, on) || !p->broken(k->cfg))
            continue;
        char *a = config_text(k->cfg, p->a), *b = config_text(k->cfg, p->b);
        complain(k, on, "%.60s does not go with %s %.60s; %s", a, options[p->b].key, b, p->change);
        free(a);
        free(b);
        k->split_conflict |= !strcmp(p->change, ONE_WAY);
    }
}
