/* config_idle -- keys that are set and change nothing beside another key: a warning, no error
 *
 *   IDLE(key, by, idle)  while `idle` holds, no value of the key changes anything, because of the key `by`
 *
 * Options of an axis of size 1 are left out: they are legal and change nothing, and sweeps need that. The
 * conditions see a resolved configuration. */
#define _GNU_SOURCE
#include "config_rules.h"

#define ROPE      (c->position_embedding_type == POSITION_EMBEDDING_TYPE_ROPE)
#define ADAM      (c->optimizer == OPTIMIZER_ADAM || c->optimizer == OPTIMIZER_LAMB)
#define WARMS_UP  (c->lr_warmup_iters || c->lr_warmup_samples || c->lr_warmup_fraction > 0)
#define FP8       (c->fp8 != FP8_NONE)
#define FP16      (c->params_dtype == PARAMS_DTYPE_FP16)
#define SCALED    (FP16 && !ABSENT(loss_scale))
#define ON_A_CPU  (c->device != DEVICE_CUDA)
#define UNSPIKED  (c->on_spike == ON_SPIKE_NONE)
#define DENSE     ABSENT(num_moe_experts)
#define SIGMOID   (c->moe_router_score_function == MOE_ROUTER_SCORE_FUNCTION_SIGMOID)
#define BALANCING (c->moe_router_load_balancing_type != MOE_ROUTER_LOAD_BALANCING_TYPE_NONE)

#define IDLES(IDLE)                                                                                          \
    IDLE(rotary_base, position_embedding_type, !ROPE)                                                        \
    IDLE(rotary_percent, position_embedding_type, !ROPE)                                                     \
    IDLE(reset_position_ids, position_embedding_type,                                                        \
         c->position_embedding_type == POSITION_EMBEDDING_TYPE_NONE)                                         \
    IDLE(min_lr, lr_decay_style, c->lr_decay_style == LR_DECAY_STYLE_CONSTANT)                               \
    IDLE(lr_wsd_decay_style, lr_decay_style, c->lr_decay_style != LR_DECAY_STYLE_WSD)                        \
    IDLE(lr_warmup_init, lr_warmup_iters, !WARMS_UP)                                                         \
    IDLE(adam_beta1, optimizer, !ADAM)                                                                       \
    IDLE(adam_beta2, optimizer, !ADAM)                                                                       \
    IDLE(adam_eps, optimizer, !ADAM)                                                                         \
    IDLE(sgd_momentum, optimizer, ADAM)                                                                      \
    IDLE(lars_trust_coefficient, optimizer, c->optimizer != OPTIMIZER_LARS)                                  \
    IDLE(microbatch_group_size_per_vp_stage, pipeline_schedule,                                              \
         c->pipeline_model_parallel_size > 1 && c->pipeline_schedule != PIPELINE_SCHEDULE_INTERLEAVED &&     \
             c->microbatch_group_size_per_vp_stage != c->pipeline_model_parallel_size)                       \
    IDLE(grad_reduce_in_bf16, main_grads_dtype, c->main_grads_dtype == MAIN_GRADS_DTYPE_BF16)                \
    IDLE(fp8_recipe, fp8, !FP8)                                                                              \
    IDLE(fp8_amax_history_len, fp8, !FP8)                                                                    \
    IDLE(fp8_amax_compute_algo, fp8, !FP8)                                                                   \
    IDLE(first_last_layers_bf16, fp8, !FP8)                                                                  \
    IDLE(fp8_amax_history_len, fp8_recipe, FP8 && c->fp8_recipe != FP8_RECIPE_DELAYED)                       \
    IDLE(fp8_amax_compute_algo, fp8_recipe, FP8 && c->fp8_recipe != FP8_RECIPE_DELAYED)                      \
    IDLE(num_layers_at_start_in_bf16, first_last_layers_bf16, !c->first_last_layers_bf16)                    \
    IDLE(num_layers_at_end_in_bf16, first_last_layers_bf16, !c->first_last_layers_bf16)                      \
    IDLE(initial_loss_scale, params_dtype, !FP16)                                                            \
    IDLE(min_loss_scale, params_dtype, !FP16)                                                                \
    IDLE(loss_scale_window, params_dtype, !FP16)                                                             \
    IDLE(hysteresis, params_dtype, !FP16)                                                                    \
    IDLE(initial_loss_scale, loss_scale, SCALED)                                                             \
    IDLE(min_loss_scale, loss_scale, SCALED)                                                                 \
    IDLE(loss_scale_window, loss_scale, SCALED)                                                              \
    IDLE(hysteresis, loss_scale, SCALED)                                                                     \
    IDLE(cublaslt_tune, device, ON_A_CPU)                                                                    \
    IDLE(cublaslt_table, device, ON_A_CPU)                                                                   \
    IDLE(cublaslt_algorithms, device, ON_A_CPU)                                                              \
    IDLE(attention_backend, device, ON_A_CPU)                                                                \
    IDLE(deterministic_mode, device, ON_A_CPU)                                                               \
    IDLE(expert_tensor_parallel_size, num_moe_experts,                                                       \
         DENSE && c->expert_tensor_parallel_size != c->tensor_model_parallel_size)                           \
    IDLE(moe_router_pre_softmax, moe_router_score_function, !DENSE && SIGMOID)                               \
    IDLE(moe_router_bias_update_rate, moe_router_enable_expert_bias,                                         \
         !DENSE && !c->moe_router_enable_expert_bias)                                                        \
    IDLE(moe_router_load_balancing_type, moe_aux_loss_coeff,                                                 \
         !DENSE && BALANCING && c->moe_aux_loss_coeff == 0)                                                  \
    IDLE(moe_token_drop_policy, moe_expert_capacity_factor, !DENSE && ABSENT(moe_expert_capacity_factor))    \
    IDLE(spike_sigma, on_spike, UNSPIKED)                                                                    \
    IDLE(spike_window, on_spike, UNSPIKED)

#define IDLE(a, b, condition)                                                                                \
    static int idle_##a##_##b(const Config *c) { return (condition); }
IDLES(IDLE)
#undef IDLE

#define IDLE(a, b, condition) {OPT_##a, OPT_##b, idle_##a##_##b},
static const struct { int key, by; int (*holds)(const Config *c); } idles[] = {IDLES(IDLE)};
#undef IDLE

/* Whether a key of section moe is idle in a dense model. A derived width is not set by anybody. */
static int idle_expert(const Config *c, int i)
{
    return DENSE && !strcmp(options[i].section, "moe") && i != OPT_num_moe_experts &&
           !(i == OPT_moe_ffn_hidden_size && c->moe_ffn_hidden_size == c->ffn_hidden_size);
}

/* Returns the list with the key and its value added, if it is set to another value than its default. */
static const char *join(const char *list, const Config *c, int i)
{
    Check plain;
    if (!c->given[i])
        return list;
    check_open(&plain, "");
    if (config_same_text(c, plain.cfg, i))
        return list;
    char *value = config_text(c, i);
    list = textf("%s%s%s %.60s", list, *list ? ", " : "", options[i].key, value);
    free(value);
    return list;
}

const char *config_idle(const Config *c, int by)
{
    const char *list = "";
    for (size_t i = 0; i < sizeof idles / sizeof *idles; i++)
        if (idles[i].by == by && idles[i].holds(c))
            list = join(list, c, idles[i].key);
    for (int i = 0; i < OPTIONS && by == OPT_num_moe_experts; i++)
        if (idle_expert(c, i))
            list = join(list, c, i);
    if (!*list)
        return NULL;
    char *value = config_text(c, by);
    const char *beside = option_absent(&options[by], c) ? textf("without %s", options[by].key)
                                                        : textf("beside %s %.60s", options[by].key, value);
    free(value);
    return textf("%s: without effect %s; change: nothing if it is meant so, else one of these keys", list,
                 beside);
}
