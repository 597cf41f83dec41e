/* config_moe -- which layers have experts, and the rules between the keys of section moe */
#define _GNU_SOURCE
#include "config_rules.h"
#include "device.h"
#include "grid.h"
#include <stdlib.h>

int config_is_moe(const Config *c, int layer)
{
    const List *l = &c->moe_layer_freq;
    if (ABSENT(num_moe_experts) || layer < 0 || !l->n)     /* no number: in a checkpoint that was changed */
        return 0;
    int64_t value = strtol(l->v[l->n == c->num_layers ? layer : 0], NULL, 10);
    return l->n == c->num_layers ? value != 0 : value && layer % value == 0;
}

int config_is_paired(const Config *c)
{
    return !ABSENT(num_moe_experts) && c->overlap_moe_expert_parallel_comm &&
           c->expert_model_parallel_size > 1;
}

static int64_t common(int64_t a, int64_t b) { return b ? common(b, a % b) : a; }

/* Checks the sizes of the expert grid. */
static void rules_expert_grid(Check *k)
{
    Config *c = k->cfg;
    int64_t E = c->num_moe_experts, ep = c->expert_model_parallel_size, etp = c->expert_tensor_parallel_size,
            pp = c->pipeline_model_parallel_size;
    const int *on = ON3(expert_model_parallel_size, expert_tensor_parallel_size,
                        pipeline_model_parallel_size);
    RULE(ON2(expert_model_parallel_size, num_moe_experts), E % ep, "%ld does not divide num_moe_experts %ld; "
         "nearest: %s", ep, E, check_nearest_divisors(E, ep));
    RULE(on, c->data_parallel_size && c->world % (etp * pp), "expert tensor %ld x pipeline %ld = %ld does "
         "not divide the world of %d ranks; nearest expert_tensor_parallel_size: %s", etp, pp, etp * pp,
         c->world, check_nearest_divisors(c->world / pp, etp));
    int64_t rest = c->world % (etp * pp) ? 0 : c->world / (etp * pp);
    RULE(on, c->data_parallel_size && rest && E % ep == 0 && rest % ep, "expert tensor %ld x expert %ld x "
         "pipeline %ld = %ld does not divide the world of %d ranks; nearest expert_model_parallel_size: %s",
         etp, ep, pp, etp * ep * pp, c->world, check_nearest_divisors(common(E, rest), ep));
    int64_t data = c->data_parallel_size * c->context_parallel_size, edp = rest / ep;
    RULE(ON4(num_distributed_optimizer_instances, expert_model_parallel_size, expert_tensor_parallel_size,
             context_parallel_size),
         rest % ep == 0 && edp > 1 && edp % c->num_distributed_optimizer_instances, "%ld copies do not "
         "divide the %ld ranks that have the same experts; nearest: %s",
         c->num_distributed_optimizer_instances, edp,
         check_nearest_divisors(common(edp, data), c->num_distributed_optimizer_instances));
    GridSpec s = {.size = {[AXIS_TP] = (int)c->tensor_model_parallel_size,
                           [AXIS_CP] = (int)c->context_parallel_size, [AXIS_EP] = 1,
                           [AXIS_DP] = (int)c->data_parallel_size, [AXIS_PP] = (int)pp},
                  .etp = (int)etp, .ep = (int)ep};
    int size[AXES];
    RULE(ON4(rank_order, expert_model_parallel_size, expert_tensor_parallel_size,
             pipeline_model_parallel_size),
         c->data_parallel_size && rest && rest % ep == 0 && grid_parse_order(c->rank_order, s.order) &&
             !grid_expert_size(&s, c->world, size),
         "with this order the expert grid has other pipelines than the dense grid; let pp be last, as in "
         "tp-cp-ep-dp-pp");
    RULE(ON2(moe_ffn_hidden_size, expert_tensor_parallel_size), c->moe_ffn_hidden_size % etp,
         "%ld is not a multiple of expert_tensor_parallel_size %ld; nearest: %s", c->moe_ffn_hidden_size, etp,
         check_nearest_multiples(etp, c->moe_ffn_hidden_size));
    RULE(ON2(sequence_parallel, tensor_model_parallel_size),
         c->tensor_model_parallel_size > 1 && !c->sequence_parallel, "experts beside "
         "tensor_model_parallel_size %ld need sequence_parallel: true, which shares out the tokens",
         c->tensor_model_parallel_size);
}

/* Checks the choice among groups of experts. */
static void rules_expert_groups(Check *k)
{
    Config *c = k->cfg;
    int64_t E = c->num_moe_experts, n = c->moe_router_num_groups, best = c->moe_router_group_topk;
    const int *on = ON2(moe_router_num_groups, moe_router_group_topk);
    RULE(on, ABSENT(moe_router_num_groups) != ABSENT(moe_router_group_topk),
         "moe_router_num_groups and moe_router_group_topk go together: give both or none");
    if (!check_usable(k, on) || ABSENT(moe_router_num_groups) || ABSENT(moe_router_group_topk))
        return;
    RULE(ON2(moe_router_num_groups, num_moe_experts), E % n, "%ld does not divide num_moe_experts %ld; "
         "nearest: %s", n, E, check_nearest_divisors(E, n));
    RULE(ON1(moe_router_num_groups), n > ROUTING_GROUPS, "%ld is more than %d; use %d or fewer", n,
         ROUTING_GROUPS, ROUTING_GROUPS);
    RULE(on, best > n, "moe_router_group_topk %ld is more than moe_router_num_groups %ld; use %ld or fewer",
         best, n, n);
    RULE(ON2(moe_router_group_topk, moe_router_topk), c->moe_router_topk % best,
         "%ld does not divide moe_router_topk %ld; nearest: %s", best, c->moe_router_topk,
         check_nearest_divisors(c->moe_router_topk, best));
    RULE(ON3(moe_router_group_topk, moe_router_num_groups, moe_router_topk),
         E % n == 0 && best <= n && c->moe_router_topk > best * (E / n), "%ld groups of %ld experts are "
         "fewer than moe_router_topk %ld; use more groups", best, E / n, c->moe_router_topk);
}

static void rules_router(Check *k)
{
    Config *c = k->cfg;
    int softmax = c->moe_router_score_function == MOE_ROUTER_SCORE_FUNCTION_SOFTMAX;
    RULE(ON2(moe_router_topk, num_moe_experts), c->moe_router_topk > c->num_moe_experts,
         "%ld is more than num_moe_experts %ld", c->moe_router_topk, c->num_moe_experts);
    RULE(ON3(moe_router_topk, moe_router_pre_softmax, moe_router_score_function),
         c->moe_router_topk == 1 && softmax && !c->moe_router_pre_softmax, "the softmax over one choice is 1 "
         "and teaches the router nothing; use moe_router_pre_softmax: true, or 2 and more choices");
    RULE(ON2(moe_router_enable_expert_bias, moe_router_score_function),
         c->moe_router_enable_expert_bias && softmax,
         "true needs moe_router_score_function: sigmoid, whose scores it is added to");
    RULE(ON2(moe_aux_loss_coeff, moe_router_load_balancing_type),
         c->moe_aux_loss_coeff > 0 &&
             c->moe_router_load_balancing_type == MOE_ROUTER_LOAD_BALANCING_TYPE_NONE,
         "%g needs a loss that it is the weight of; use moe_router_load_balancing_type aux_loss, "
         "seq_aux_loss or global_aux_loss, or 0", c->moe_aux_loss_coeff);
    RULE(ON2(moe_pad_expert_input_to_capacity, moe_expert_capacity_factor),
         c->moe_pad_expert_input_to_capacity && ABSENT(moe_expert_capacity_factor),
         "true needs moe_expert_capacity_factor, which is absent");
}

double config_router_sum(const Config *c)
{
    if (c->moe_router_score_function == MOE_ROUTER_SCORE_FUNCTION_SIGMOID)
        return c->moe_router_topk == 1 ? 0.5 : 1;
    return c->moe_router_pre_softmax ? (double)c->moe_router_topk / (double)c->num_moe_experts : 1;
}

/* Checks that a dense model has all that the experts are copied from. */
static void rules_upcycling(Check *k)
{
    Config *c = k->cfg;
    RULE(ON2(moe_use_upcycling, load), c->moe_use_upcycling && ABSENT(load),
         "true needs load: the checkpoint of the dense model");
    RULE(ON3(moe_use_upcycling, moe_ffn_hidden_size, ffn_hidden_size),
         c->moe_use_upcycling && c->moe_ffn_hidden_size != c->ffn_hidden_size,
         "true copies whole mlps, but moe_ffn_hidden_size is %ld and ffn_hidden_size %ld; use "
         "moe_ffn_hidden_size %ld", c->moe_ffn_hidden_size, c->ffn_hidden_size, c->ffn_hidden_size);
    RULE(ON2(moe_use_upcycling, moe_shared_expert_intermediate_size),
         c->moe_use_upcycling && !ABSENT(moe_shared_expert_intermediate_size),
         "true has nothing to make a shared expert of; leave out moe_shared_expert_intermediate_size");
}

/* Checks that the experts' sizes are multiples of pieces, as those of dense layers (config_rules.c). */
static void rules_expert_fp8(Check *k)
{
    Config *c = k->cfg;
    int64_t tp = c->tensor_model_parallel_size, etp = c->expert_tensor_parallel_size,
            shared = ABSENT(moe_shared_expert_intermediate_size) ? 0 : c->moe_shared_expert_intermediate_size;
    const char *asks;
    int64_t piece = config_fp8_piece(c, &asks);
    RULE(ON3(moe_ffn_hidden_size, fp8, expert_tensor_parallel_size),
         c->fp8 != FP8_NONE && c->moe_ffn_hidden_size % (piece * etp),
         "%ld is not a multiple of %ld x expert_tensor_parallel_size %ld, as %s asks; nearest: %s",
         c->moe_ffn_hidden_size, piece, etp, asks,
         check_nearest_multiples(piece * etp, c->moe_ffn_hidden_size));
    RULE(ON3(moe_shared_expert_intermediate_size, fp8, tensor_model_parallel_size),
         c->fp8 != FP8_NONE && shared % (piece * tp),
         "%ld is not a multiple of %ld x tensor_model_parallel_size %ld, as %s asks; nearest: %s", shared,
         piece, tp, asks, check_nearest_multiples(piece * tp, shared));
    int blocks = c->fp8 != FP8_NONE && c->fp8_recipe == FP8_RECIPE_BLOCKWISE;
    RULE(ON3(moe_ffn_hidden_size, fp8_recipe, expert_tensor_parallel_size),
         blocks && c->moe_ffn_hidden_size % (128 * etp),
         "%ld is not a multiple of 128 x expert_tensor_parallel_size %ld, as fp8_recipe blockwise asks; "
         "nearest: %s",
         c->moe_ffn_hidden_size, etp, check_nearest_multiples(128 * etp, c->moe_ffn_hidden_size));
    RULE(ON3(moe_shared_expert_intermediate_size, fp8_recipe, tensor_model_parallel_size),
         blocks && shared % (128 * tp),
         "%ld is not a multiple of 128 x tensor_model_parallel_size %ld, as fp8_recipe blockwise asks; "
         "nearest: %s",
         shared, tp, check_nearest_multiples(128 * tp, shared));
}

/* Checks the list of layers that have experts. */
static void rules_moe_layers(Check *k)
{
    Config *c = k->cfg;
    const List *l = &c->moe_layer_freq;
    const int *on = ON2(moe_layer_freq, num_layers);
    int64_t largest = 0, value;
    int many = l->n != 1 && l->n != c->num_layers;
    RULE(on, many, "%d numbers, but num_layers is %ld; give one number N, or a 0 or 1 for each layer", l->n,
         c->num_layers);
    for (int i = 0; i < l->n; i++)
        largest = (value = strtol(l->v[i], NULL, 10)) > largest ? value : largest;
    RULE(on, l->n == c->num_layers && l->n > 1 && largest > 1, "a list for all layers has 0 and 1 only");
    RULE(on, !many && !largest, "no layer has experts; leave out num_moe_experts, or give a 1");
}

void rules_moe(Check *k)
{
    Config *c = k->cfg;
    if (ABSENT(num_moe_experts) || !check_usable(k, ON1(num_moe_experts)))
        return;
    DERIVE(expert_tensor_parallel_size, ON1(tensor_model_parallel_size), c->tensor_model_parallel_size);
    rules_expert_grid(k);
    rules_router(k);
    rules_expert_groups(k);
    rules_moe_layers(k);
    rules_expert_fp8(k);
    rules_force(k);
    rules_upcycling(k);
    RULE(ON2(moe_shared_expert_gate, moe_shared_expert_intermediate_size),
         c->moe_shared_expert_gate && ABSENT(moe_shared_expert_intermediate_size),
         "true needs moe_shared_expert_intermediate_size, which is absent");
    RULE(ON2(moe_shared_expert_intermediate_size, add_bias_linear),
         !ABSENT(moe_shared_expert_intermediate_size) && c->add_bias_linear,
         "shared experts have no biases; use add_bias_linear: false");
    RULE(ON2(moe_shared_expert_intermediate_size, tensor_model_parallel_size),
         !ABSENT(moe_shared_expert_intermediate_size) &&
             c->moe_shared_expert_intermediate_size % c->tensor_model_parallel_size,
         "%ld is not a multiple of tensor_model_parallel_size %ld; nearest: %s",
         c->moe_shared_expert_intermediate_size, c->tensor_model_parallel_size,
         check_nearest_multiples(c->tensor_model_parallel_size, c->moe_shared_expert_intermediate_size));
    double wide = (double)act_width((ActKind)c->activation, c->moe_ffn_hidden_size) +
                  (double)c->moe_ffn_hidden_size;
    double parameters = (double)c->num_layers * (double)c->num_moe_experts * (double)c->hidden_size * wide;
    RULE(ON3(num_moe_experts, moe_ffn_hidden_size, hidden_size), parameters > 1e15,
         "the experts have about %.2g parameters; at most 1e15", parameters);
}
