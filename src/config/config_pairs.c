/* config_pairs -- pairs of keys that exclude or need each other
 *
 *   PAIR(a, b, broken, change)  if both keys are readable and `broken` holds, a violation of key a is
 *                               reported with both values and the advice `change`
 *
 * All pairs stand here, so that no configuration passes the rules and is refused later. The conditions
 * see the keys as they were set, before absent keys are derived. On an axis of size 1 all its options
 * are legal: rows about data parallelism ask for DP, rows about the pipeline for PP. */
#define _GNU_SOURCE
#include "config_rules.h"

#define DP         (c->data_parallel_size > 1)
#define PP         (c->pipeline_model_parallel_size > 1)
#define SET(key)   (!ABSENT(key))
#define NO_SHARD   (c->data_parallel_sharding_strategy == DATA_PARALLEL_SHARDING_STRATEGY_NO_SHARD)
#define BY_COST    (c->pipeline_balance == PIPELINE_BALANCE_COST)
#define FUSED      (c->attention_backend == ATTENTION_BACKEND_FUSED)
#define FULL       (c->recompute_granularity == RECOMPUTE_GRANULARITY_FULL)
#define WSD        (c->lr_decay_style == LR_DECAY_STYLE_WSD)
#define BY_SAMPLES SET(train_samples)
#define ONE_WAY    "layers are shared out in one way: keep one of the two"
#define KEEP_ONE   "keep one of the two"
#define ONE_CORPUS "either data_path with split, or a corpus for each split"
#define NO_SHARES  "each split has a corpus of its own: leave split out"

static int nothing_to_validate(const Config *c)
{
    double share[3];
    return c->eval_iters && c->split && rules_shares_parse(c->split, share) && share[1] == 0;
}

/* Whether any part of the state is shared out: over the data ranks of the dense or of the expert grid. */
static int shares_data(const Config *c)
{
    int64_t tp = c->tensor_model_parallel_size, pp = c->pipeline_model_parallel_size,
            etp = ABSENT(expert_tensor_parallel_size) ? tp : c->expert_tensor_parallel_size;
    return c->world > tp * pp || c->world > etp * c->expert_model_parallel_size * pp;
}

#define PAIRS(PAIR)                                                                                          \
    PAIR(attention_backend, device, FUSED && c->device != DEVICE_CUDA,                                       \
         "cuDNN is for GPUs: use auto, or cuda")                                                             \
    PAIR(attention_backend, params_dtype,                                                                    \
         FUSED && c->params_dtype != PARAMS_DTYPE_BF16 && c->params_dtype != PARAMS_DTYPE_FP16,              \
         "cuDNN's kernels compute in bf16 and fp16: use auto, or bf16")                                      \
    PAIR(attention_backend, attention_dropout, FUSED && c->attention_dropout > 0,                            \
         "cuDNN's masks are another generator's: use auto, or dropout 0")                                    \
    PAIR(attention_backend, reset_attention_mask, FUSED && c->reset_attention_mask,                          \
         "cuDNN's kernels do without documents: use auto, or false")                                         \
    PAIR(attention_backend, context_parallel_size, FUSED && c->context_parallel_size > 1,                    \
         "cuDNN's kernels do whole sequences: use auto, or 1")                                               \
    PAIR(deterministic_mode, sdc_rerun,                                                                      \
         !c->deterministic_mode && c->sdc_rerun && c->device == DEVICE_CUDA &&                               \
             c->attention_backend != ATTENTION_BACKEND_FLASH,                                                \
         "cuDNN's attention has other bits when a step runs again: use true, or sdc_rerun false")            \
    PAIR(fp8, params_dtype,                                                                                  \
         c->fp8 != FP8_NONE && c->params_dtype != PARAMS_DTYPE_BF16 && c->params_dtype != PARAMS_DTYPE_FP16, \
         "use bf16")                                                                                         \
    PAIR(fp8, fp8_recipe, c->fp8 == FP8_E4M3 && (c->fp8_recipe == FP8_RECIPE_DELAYED ||                      \
                                                 c->fp8_recipe == FP8_RECIPE_TENSORWISE),                    \
         "one scale for a matrix of gradients asks for E5M2's range: use hybrid, or blockwise or mxfp8")     \
    PAIR(logits_dtype, params_dtype,                                                                         \
         c->logits_dtype == LOGITS_DTYPE_BF16 && c->params_dtype != PARAMS_DTYPE_BF16,                       \
         "one product makes them from such weights: use fp32, or bf16")                                      \
    PAIR(main_grads_dtype, params_dtype,                                                                     \
         c->main_grads_dtype == MAIN_GRADS_DTYPE_BF16 && c->params_dtype != PARAMS_DTYPE_BF16,               \
         "gradients of other weights are kept in fp32: use fp32, or bf16")                                   \
    PAIR(main_grads_dtype, optimizer,                                                                        \
         c->main_grads_dtype == MAIN_GRADS_DTYPE_BF16 && c->optimizer == OPTIMIZER_LAMB,                     \
         "lamb keeps the direction of its step in the gradient's memory: use fp32, or adam")                 \
    PAIR(exp_avg_dtype, params_dtype,                                                                        \
         c->exp_avg_dtype != EXP_AVG_DTYPE_FP32 && c->params_dtype == PARAMS_DTYPE_FP64,                     \
         "fp64 is for checking and keeps fp64 moments: use fp32 for the moment, or other weights")           \
    PAIR(exp_avg_sq_dtype, params_dtype,                                                                     \
         c->exp_avg_sq_dtype != EXP_AVG_SQ_DTYPE_FP32 && c->params_dtype == PARAMS_DTYPE_FP64,               \
         "fp64 is for checking and keeps fp64 moments: use fp32 for the moment, or other weights")           \
    PAIR(exp_avg_sq_dtype, optimizer,                                                                        \
         c->exp_avg_sq_dtype != EXP_AVG_SQ_DTYPE_FP32 && c->optimizer != OPTIMIZER_ADAM &&                   \
             c->optimizer != OPTIMIZER_LAMB,                                                                 \
         "it has no second moment: leave it out")                                                            \
    PAIR(grad_reduce_in_bf16, params_dtype,                                                                  \
         c->grad_reduce_in_bf16 && c->params_dtype != PARAMS_DTYPE_BF16,                                     \
         "gradients of other weights are sent in fp32: use false, or bf16")                                  \
    PAIR(overlap_param_gather, data_parallel_sharding_strategy, DP && c->overlap_param_gather && NO_SHARD,   \
         "with copies there is nothing to gather: use optim, optim_grads or optim_grads_params")             \
    PAIR(overlap_param_gather, overlap_grad_reduce,                                                          \
         DP && c->overlap_param_gather && !c->overlap_grad_reduce, "set overlap_grad_reduce too")            \
    PAIR(num_distributed_optimizer_instances, data_parallel_sharding_strategy,                               \
         DP && c->num_distributed_optimizer_instances > 1 && NO_SHARD,                                       \
         "every rank has a copy already: use 1, or optim, optim_grads or optim_grads_params")                \
    PAIR(expert_model_parallel_size, num_moe_experts,                                                        \
         c->expert_model_parallel_size > 1 && ABSENT(num_moe_experts), "there is nothing to share: use 1")   \
    PAIR(overlap_moe_expert_parallel_comm, pipeline_schedule,                                                \
         PP && config_is_paired(c) && SET(pipeline_schedule) &&                                              \
             c->pipeline_schedule != PIPELINE_SCHEDULE_1F1B &&                                               \
             c->pipeline_schedule != PIPELINE_SCHEDULE_INTERLEAVED &&                                        \
             c->pipeline_schedule != PIPELINE_SCHEDULE_DUALPIPEV,                                            \
         "its lists have no pairs of forward and backward: use 1f1b, interleaved or dualpipev")              \
    PAIR(overlap_moe_expert_parallel_comm, cpu_offloading_num_layers,                                        \
         config_is_paired(c) && c->cpu_offloading_num_layers,                                                \
         "two microbatches would need the same windows on the device: offload 0 layers")                     \
    PAIR(overlap_moe_expert_parallel_comm, data_parallel_sharding_strategy,                                  \
         shares_data(c) && config_is_paired(c) &&                                                            \
             c->data_parallel_sharding_strategy >= DATA_PARALLEL_SHARDING_STRATEGY_OPTIM_GRADS,              \
         "they cut a backward into layers, which are no pair with a forward: use optim or no_shard")         \
    PAIR(pipeline_schedule_file, pipeline_schedule,                                                          \
         PP && (c->pipeline_schedule == PIPELINE_SCHEDULE_CUSTOM) == ABSENT(pipeline_schedule_file),         \
         "the file goes with custom, and only with it")                                                      \
    PAIR(pipeline_max_activations, pipeline_schedule,                                                        \
         PP && SET(pipeline_max_activations) && c->pipeline_schedule != PIPELINE_SCHEDULE_ZB_AUTO,           \
         "it is a bound for zb-auto only: leave it out")                                                     \
    PAIR(pipeline_model_parallel_layout, num_layers_in_first_pipeline_stage,                                 \
         PP && SET(pipeline_model_parallel_layout) && SET(num_layers_in_first_pipeline_stage), ONE_WAY)      \
    PAIR(pipeline_model_parallel_layout, num_layers_in_last_pipeline_stage,                                  \
         PP && SET(pipeline_model_parallel_layout) && SET(num_layers_in_last_pipeline_stage), ONE_WAY)       \
    PAIR(pipeline_model_parallel_layout, account_for_embedding_in_pipeline_split,                            \
         PP && SET(pipeline_model_parallel_layout) && c->account_for_embedding_in_pipeline_split, ONE_WAY)   \
    PAIR(pipeline_model_parallel_layout, account_for_loss_in_pipeline_split,                                 \
         PP && SET(pipeline_model_parallel_layout) && c->account_for_loss_in_pipeline_split, ONE_WAY)        \
    PAIR(pipeline_model_parallel_layout, pipeline_balance,                                                   \
         PP && SET(pipeline_model_parallel_layout) && BY_COST, ONE_WAY)                                      \
    PAIR(num_layers_in_first_pipeline_stage, account_for_embedding_in_pipeline_split,                        \
         PP && SET(num_layers_in_first_pipeline_stage) && c->account_for_embedding_in_pipeline_split,        \
         ONE_WAY)                                                                                            \
    PAIR(num_layers_in_first_pipeline_stage, account_for_loss_in_pipeline_split,                             \
         PP && SET(num_layers_in_first_pipeline_stage) && c->account_for_loss_in_pipeline_split, ONE_WAY)    \
    PAIR(num_layers_in_first_pipeline_stage, pipeline_balance,                                               \
         PP && SET(num_layers_in_first_pipeline_stage) && BY_COST, ONE_WAY)                                  \
    PAIR(num_layers_in_last_pipeline_stage, account_for_embedding_in_pipeline_split,                         \
         PP && SET(num_layers_in_last_pipeline_stage) && c->account_for_embedding_in_pipeline_split,         \
         ONE_WAY)                                                                                            \
    PAIR(num_layers_in_last_pipeline_stage, account_for_loss_in_pipeline_split,                              \
         PP && SET(num_layers_in_last_pipeline_stage) && c->account_for_loss_in_pipeline_split, ONE_WAY)     \
    PAIR(num_layers_in_last_pipeline_stage, pipeline_balance,                                                \
         PP && SET(num_layers_in_last_pipeline_stage) && BY_COST, ONE_WAY)                                   \
    PAIR(account_for_embedding_in_pipeline_split, pipeline_balance,                                          \
         PP && c->account_for_embedding_in_pipeline_split && BY_COST, ONE_WAY)                               \
    PAIR(account_for_loss_in_pipeline_split, pipeline_balance,                                               \
         PP && c->account_for_loss_in_pipeline_split && BY_COST, ONE_WAY)                                    \
    PAIR(step_batch_size_schedule, global_batch_size,                                                        \
         SET(step_batch_size_schedule) && SET(global_batch_size), KEEP_ONE)                                  \
    PAIR(min_world, global_batch_size,                                                                       \
         DP && SET(min_world) && ABSENT(global_batch_size) && ABSENT(step_batch_size_schedule),              \
         "an absent batch follows the world, and a smaller one goes on with the same: set "                  \
         "global_batch_size, or step_batch_size_schedule")                                                   \
    PAIR(train_samples, train_iters, SET(train_samples) && SET(train_iters), KEEP_ONE)                       \
    PAIR(lr_decay_samples, train_samples, SET(lr_decay_samples) && !BY_SAMPLES,                              \
         "the run is given in iterations: use lr_decay_iters")                                               \
    PAIR(lr_wsd_decay_samples, train_samples, SET(lr_wsd_decay_samples) && !BY_SAMPLES,                      \
         "the run is given in iterations: use lr_wsd_decay_iters")                                           \
    PAIR(lr_warmup_samples, train_samples, c->lr_warmup_samples && !BY_SAMPLES,                              \
         "the run is given in iterations: use lr_warmup_iters")                                              \
    PAIR(lr_decay_iters, train_samples, SET(lr_decay_iters) && BY_SAMPLES,                                   \
         "the run is given in samples: use lr_decay_samples")                                                \
    PAIR(lr_wsd_decay_iters, train_samples, SET(lr_wsd_decay_iters) && BY_SAMPLES,                           \
         "the run is given in samples: use lr_wsd_decay_samples")                                            \
    PAIR(lr_warmup_iters, train_samples, c->lr_warmup_iters && BY_SAMPLES,                                   \
         "the run is given in samples: use lr_warmup_samples")                                               \
    PAIR(lr_wsd_decay_iters, lr_decay_style,                                                                 \
         !BY_SAMPLES && (SET(train_iters) || SET(lr_decay_iters)) && WSD == ABSENT(lr_wsd_decay_iters),      \
         "the closing decay goes with WSD, and only with it")                                                \
    PAIR(lr_wsd_decay_samples, lr_decay_style, BY_SAMPLES && WSD == ABSENT(lr_wsd_decay_samples),            \
         "the closing decay goes with WSD, and only with it")                                                \
    PAIR(lr_warmup_fraction, lr_warmup_iters, SET(lr_warmup_fraction) && c->lr_warmup_iters, KEEP_ONE)       \
    PAIR(lr_warmup_fraction, lr_warmup_samples, SET(lr_warmup_fraction) && c->lr_warmup_samples, KEEP_ONE)   \
    PAIR(lr_base_batch_size, lr_scaling, (c->lr_scaling == LR_SCALING_NONE) != ABSENT(lr_base_batch_size),   \
         "it goes with linear or sqrt, and only with these")                                                 \
    PAIR(sgd_nesterov, optimizer, c->sgd_nesterov && c->optimizer != OPTIMIZER_SGD,                          \
         "it is for sgd: leave it out")                                                                      \
    PAIR(sgd_nesterov, sgd_momentum,                                                                         \
         c->sgd_nesterov && c->optimizer == OPTIMIZER_SGD && c->sgd_momentum == 0, "use a momentum above 0") \
    PAIR(optimizer_offload_fraction, optimizer_cpu_offload,                                                  \
         c->optimizer_offload_fraction != 1 && !c->optimizer_cpu_offload, "set optimizer_cpu_offload too")   \
    PAIR(eval_interval, split, SET(eval_interval) && nothing_to_validate(c),                                 \
         "nothing is left to validate on: use for example '969, 30, 1'")                                     \
    PAIR(train_data_path, data_path, SET(train_data_path) && SET(data_path), ONE_CORPUS)                     \
    PAIR(valid_data_path, data_path, SET(valid_data_path) && SET(data_path), ONE_CORPUS)                     \
    PAIR(test_data_path, data_path, SET(test_data_path) && SET(data_path), ONE_CORPUS)                       \
    PAIR(train_data_path, split, SET(train_data_path) && SET(split), NO_SHARES)                              \
    PAIR(valid_data_path, split, SET(valid_data_path) && SET(split), NO_SHARES)                              \
    PAIR(test_data_path, split, SET(test_data_path) && SET(split), NO_SHARES)                                \
    PAIR(recompute_method, recompute_granularity, FULL != (c->recompute_method != RECOMPUTE_METHOD_NONE),    \
         "uniform or block go with full, and only with it")                                                  \
    PAIR(recompute_num_layers, recompute_granularity, FULL == ABSENT(recompute_num_layers),                  \
         "it goes with full, and only with it")                                                              \
    PAIR(recompute_modules, recompute_granularity,                                                           \
         c->recompute_modules.n && c->recompute_granularity != RECOMPUTE_GRANULARITY_SELECTIVE,              \
         "they are for selective: leave them out")                                                           \
    PAIR(cpu_offloading_num_layers, recompute_granularity, c->cpu_offloading_num_layers && FULL,             \
         "layers that run again keep nothing that could lie elsewhere: use none or selective, or offload 0 " \
         "layers")                                                                                           \
    PAIR(loss_scale, params_dtype, SET(loss_scale) && c->params_dtype != PARAMS_DTYPE_FP16,                  \
         "it is for fp16: leave it out")                                                                     \
    PAIR(finetune, load, c->finetune && ABSENT(load), "set load to the checkpoint to take the weights from") \
    PAIR(save_retain_interval, save_interval, SET(save_retain_interval) && ABSENT(save_interval),            \
         "set save_interval too")

#define PAIR(a, b, condition, change)                                                                        \
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
        if (!check_usable(k, on) || !p->broken(k->cfg))
            continue;
        char *a = config_text(k->cfg, p->a), *b = config_text(k->cfg, p->b);
        const char *with = options[p->b].key;
        if (option_absent(&options[p->a], k->cfg))
            check_report(k, on, "absent beside %s %.60s; %s", with, b, p->change);
        else if (option_absent(&options[p->b], k->cfg))
            check_report(k, on, "%.60s needs %s, which is absent; %s", a, with, p->change);
        else
            check_report(k, on, "%.60s does not go with %s %.60s; %s", a, with, b, p->change);
        free(a);
        free(b);
        k->split_conflict |= !strcmp(p->change, ONE_WAY);
    }
}
