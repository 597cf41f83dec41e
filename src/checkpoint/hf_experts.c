/* hf_experts -- layers with experts in config.json: of Mixtral, Qwen2-MoE, Qwen3-MoE and dots1 */
#define _GNU_SOURCE
#include "hf_json.h"
#include <math.h>

const char *const hf_mixtral_names[PARAM_KINDS] = {
    [P_ROUTER] = "block_sparse_moe.gate.weight",
    [P_EFC1] = "block_sparse_moe.experts.#.w1.weight,block_sparse_moe.experts.#.w3.weight",
    [P_EFC2] = "block_sparse_moe.experts.#.w2.weight",
};
const char *const hf_dots_names[PARAM_KINDS] = {
    [P_SFC1] = "mlp.shared_experts.gate_proj.weight,mlp.shared_experts.up_proj.weight",
    [P_SFC2] = "mlp.shared_experts.down_proj.weight",
};

/* ---- which family */

/* The number of dense layers at the start, if all others have experts; -1: another pattern. */
static int64_t dense_start(const Config *c)
{
    int64_t first = 0;
    while (first < c->num_layers && !config_is_moe(c, (int)first))
        first++;
    for (int64_t i = first; i < c->num_layers; i++)
        if (!config_is_moe(c, (int)i))
            return -1;
    return first;
}

/* dots1 takes the sum of the two best scores as a group's value, and divides the weights by their sum. */
static void fit_dots(const Config *c, char why[WHY])
{
    if (c->moe_router_num_groups != CFG_ABSENT && c->moe_router_topk != 2 * c->moe_router_group_topk)
        because(why, "moe_router_group_topk");
    if (dense_start(c) < 0)
        because(why, "moe_layer_freq");
    if (c->moe_shared_expert_intermediate_size == CFG_ABSENT ||
        c->moe_shared_expert_intermediate_size % c->moe_ffn_hidden_size)
        because(why, "moe_shared_expert_intermediate_size");
    if (c->moe_shared_expert_gate)
        because(why, "moe_shared_expert_gate");
}

void hf_experts_fit(const HfFamily *f, const Config *c, char why[WHY])
{
    int has = c->num_moe_experts != CFG_ABSENT, dots = f->experts == HF_DOTS;
    if (has != (f->experts != HF_DENSE))
        because(why, "num_moe_experts");
    if (!has || f->experts == HF_DENSE)
        return;
    if (dots != (c->moe_router_score_function == MOE_ROUTER_SCORE_FUNCTION_SIGMOID))
        because(why, "moe_router_score_function");
    if (c->moe_router_enable_expert_bias && !dots)
        because(why, "moe_router_enable_expert_bias");
    if (dots) {
        fit_dots(c, why);
        return;
    }
    if (c->moe_router_num_groups != CFG_ABSENT)
        because(why, "moe_router_num_groups");
    if (!isnan(c->moe_router_topk_scaling_factor) && c->moe_router_topk_scaling_factor != 1)
        because(why, "moe_router_topk_scaling_factor");
    int shared = c->moe_shared_expert_intermediate_size != CFG_ABSENT;
    if (shared != f->qkv_bias || (shared && !c->moe_shared_expert_gate))      /* Qwen2-MoE alone */
        because(why, "moe_shared_expert_intermediate_size or moe_shared_expert_gate");
    if (f->experts == HF_MIXTRAL && dense_start(c) != 0)
        because(why, "moe_layer_freq");
    if (f->experts == HF_MIXTRAL && c->moe_router_pre_softmax)
        because(why, "moe_router_pre_softmax");
}

/* ---- config.json, reading */

#define MOST_LAYERS 10000      /* of num_layers, which refuses more */

/* Which layers have experts, as moe_layer_freq. */
static char *read_layers(const In *in, const HfFamily *f, int64_t layers)
{
    const json_t *dense = get(in, "mlp_only_layers"), *v;
    int64_t step = 1, first = 0;
    size_t at;
    layers = layers < MOST_LAYERS ? layers : MOST_LAYERS;
    if (f->experts == HF_QWEN_MOE)
        step = whole(in, "decoder_sparse_step", 1, 1);
    else
        dense = NULL;
    if (f->experts == HF_DOTS)
        first = whole(in, "first_k_dense_replace", 0, 0);
    char *list = xcalloc((size_t)layers + 1, 2), *w = list;
    for (int64_t i = 0; i < layers; i++) {
        int expert = i >= first && (i + 1) % step == 0;
        json_array_foreach(dense, at, v)
            expert &= json_integer_value(v) != i;
        w += sprintf(w, "%s%d", i ? "," : "", expert);
    }
    if (dense && !json_is_array(dense))
        because(in->why, "mlp_only_layers is not a list");
    json_array_foreach(dense, at, v)
        if (!json_is_integer(v))
            because(in->why, "mlp_only_layers has an entry that is not a whole number");
    if (!strchr(list, '1'))
        because(in->why, "a model of experts without a layer that has them");
    return list;
}

/* The lines of dots1's router and shared experts. */
static char *read_dots(const In *in, int64_t E, int64_t topk, int64_t width)
{
    int64_t groups = whole(in, "n_group", 1, 1), best = whole(in, "topk_group", 1, 1);
    double scale = real(in, "routed_scaling_factor", 1);
    char *lines = NULL;
    if (flag(in, "norm_topk_prob", 0) != (topk > 1))
        because(in->why, "norm_topk_prob %s with num_experts_per_tok %" PRId64, topk > 1 ? "false" : "true",
                topk);
    if (E % groups || best > groups)
        because(in->why, "topk_group %" PRId64 " of %" PRId64 " groups of %" PRId64 " experts", best, groups,
                E);
    if (!(scale > 0))
        because(in->why, "routed_scaling_factor %g", scale);
    if (groups > best) {        /* else all groups are open */
        if (topk != 2 * best)
            because(in->why, "groups valued by two experts, topk_group %" PRId64 ", num_experts_per_tok %"
                    PRId64, best, topk);
        lines = xasprintf("  moe_router_num_groups: %" PRId64 "\n  moe_router_group_topk: %" PRId64 "\n",
                          groups, best);
    }
    char *all = xasprintf("  moe_router_score_function: sigmoid\n  moe_router_enable_expert_bias: true\n"
                          "  moe_router_topk_scaling_factor: %.17g\n"
                          "  moe_shared_expert_intermediate_size: %" PRId64 "\n%s", scale,
                          width * whole(in, "n_shared_experts", -1, 1), lines ? lines : "");
    free(lines);
    return all;
}

/* transformers' balance loss over ours where the loads are even: transformers takes all layers with experts
 * at once and does not divide by the experts of a token, so that its loss is k; ours is 1 in each layer. */
static double balance_ratio(int64_t topk, int64_t layers) { return (double)topk / (double)layers; }

char *hf_read_experts(const In *in, const HfFamily *f, int64_t layers)
{
    if (f->experts == HF_DENSE)
        return xasprintf("%s", "");
    const int qwen = f->experts == HF_QWEN_MOE;
    const char *number = f->experts == HF_DOTS ? "n_routed_experts"
                       : qwen && get(in, "num_experts") ? "num_experts" : "num_local_experts";
    int64_t E = whole(in, number, f->E, 1), topk = whole(in, "num_experts_per_tok", f->topk, 1);
    int64_t width = f->experts == HF_MIXTRAL ? whole(in, "intermediate_size", -1, 1)
                                             : whole(in, "moe_intermediate_size", f->expert_F, 1);
    int pre = qwen && !flag(in, "norm_topk_prob", 0);
    char *layer = read_layers(in, f, layers), *more = NULL;
    int64_t with = 0;                  /* layers with experts */
    for (const char *p = layer; *p; p++)
        with += *p == '1';
    if (topk > E)
        because(in->why, "num_experts_per_tok %" PRId64 " of %" PRId64 " experts", topk, E);
    if (topk == 1 && f->experts != HF_DOTS && !pre)
        because(in->why, "num_experts_per_tok 1, whose weight is 1 always");
    if (real(in, "router_jitter_noise", 0) != 0)
        because(in->why, "router_jitter_noise %g", real(in, "router_jitter_noise", 0));
    if (f->experts == HF_DOTS)
        more = read_dots(in, E, topk, width);
    else if (f->qkv_bias)
        more = xasprintf("  moe_shared_expert_intermediate_size: %" PRId64
                         "\n  moe_shared_expert_gate: true\n",
                         whole(in, "shared_expert_intermediate_size", 5632, 1));
    char *lines = xasprintf(
        "moe:\n  num_moe_experts: %" PRId64 "\n  moe_layer_freq: [%s]\n  moe_ffn_hidden_size: %" PRId64 "\n"
        "  moe_router_topk: %" PRId64 "\n  moe_router_pre_softmax: %s\n  moe_aux_loss_coeff: %.17g\n%s", E,
        strchr(layer, '0') ? layer : "1", width, topk, pre ? "true" : "false",
        f->experts == HF_DOTS || !with ? 0
            : real(in, "router_aux_loss_coef", 0.001) * balance_ratio(topk, with), more ? more : "");
    free(layer);
    free(more);
    return lines;
}

/* ---- config.json, writing */

static void set_int(json_t *j, const char *key, int64_t value)
{
    json_object_set_new(j, key, json_integer(value));
}

static void write_dots(json_t *j, const Config *c)
{
    int groups = c->moe_router_num_groups != CFG_ABSENT;
    set_int(j, "n_routed_experts", c->num_moe_experts);
    set_int(j, "n_shared_experts", c->moe_shared_expert_intermediate_size / c->moe_ffn_hidden_size);
    set_int(j, "n_group", groups ? c->moe_router_num_groups : 1);
    set_int(j, "topk_group", groups ? c->moe_router_group_topk : 1);
    set_int(j, "first_k_dense_replace", dense_start(c));
    json_object_set_new(j, "norm_topk_prob", json_boolean(c->moe_router_topk > 1));
    json_object_set_new(j, "routed_scaling_factor", json_real(isnan(c->moe_router_topk_scaling_factor)
                                                                  ? 1 : c->moe_router_topk_scaling_factor));
}

static void write_qwen(json_t *j, const Config *c, const HfFamily *f)
{
    json_t *dense = json_array();
    for (int i = 0; i < c->num_layers; i++)
        if (!config_is_moe(c, i))
            json_array_append_new(dense, json_integer(i));
    set_int(j, "decoder_sparse_step", 1);
    json_object_set_new(j, "mlp_only_layers", dense);
    json_object_set_new(j, "norm_topk_prob", json_boolean(!c->moe_router_pre_softmax));
    set_int(j, "num_experts", c->num_moe_experts);
    if (f->qkv_bias) {
        json_object_set_new(j, "qkv_bias", json_boolean(c->add_qkv_bias));
        set_int(j, "shared_expert_intermediate_size", c->moe_shared_expert_intermediate_size);
    } else {
        set_int(j, "num_local_experts", c->num_moe_experts);       /* Qwen3-MoE's, in transformers 5 */
    }
}

void hf_write_experts(json_t *j, const Config *c, const HfFamily *f)
{
    int64_t with = 0;                  /* layers with experts */
    if (f->experts == HF_DENSE)
        return;
    for (int i = 0; i < c->num_layers; i++)
        with += config_is_moe(c, i);
    set_int(j, "num_experts_per_tok", c->moe_router_topk);
    json_object_set_new(j, "output_router_logits", json_false());
    if (f->experts == HF_MIXTRAL) {
        set_int(j, "intermediate_size", c->moe_ffn_hidden_size);
        set_int(j, "num_local_experts", c->num_moe_experts);
        json_object_set_new(j, "router_jitter_noise", json_real(0));
    } else {
        set_int(j, "moe_intermediate_size", c->moe_ffn_hidden_size);
    }
    if (f->experts == HF_DOTS)
        write_dots(j, c);
    else
        json_object_set_new(j, "router_aux_loss_coef",
                            json_real(c->moe_aux_loss_coeff / balance_ratio(c->moe_router_topk, with)));
    if (f->experts == HF_QWEN_MOE)
        write_qwen(j, c, f);
}
