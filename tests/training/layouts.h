/* layouts -- the layouts that the tests run: a layout as a row of choices and as key=value arguments,
 * all layouts of a world, and a set that covers every pair of choices. */
#ifndef LAYOUTS_H
#define LAYOUTS_H
#include "run.h"
#include <stdio.h>
#include <string.h>

/* The choices of a layout. TP, PP, CP, DP, HEADS, INSTANCES, MICRO, EP and ETP hold sizes, the others an
 * index. HEADS: ranks of an a2a group of cp_comm_type a2a+p2p. EP and ETP are 0 without experts.
 * TURNS: overlap_moe_expert_parallel_comm. */
enum {
    TP,
    PP,
    CP,
    DP,
    KIND,
    HEADS,
    SP,
    SCHEDULE,
    ZERO,
    INSTANCES,
    RECOMPUTE,
    OVERLAP,
    SPLIT,
    ORDER,
    PADDING,
    MICRO,
    GROUP,
    FAMILY,
    EP,
    ETP,
    CAPACITY,
    TURNS,
    GATHER,                            /* bool: the experts' rows are gathered */
    CHOICES
};
typedef struct { int is[CHOICES]; } Layout;
#define VALUES 16                      /* more values than any choice has */

static const struct { const char *name; int v;
} layout_schedules[] = {{"1f1b", 1},        {"gpipe", 1},       {"zb-h1", 1},   {"zb-h2", 1},
                        {"zb-v", 2},        {"v-half", 2},      {"v-min", 2},   {"interleaved", 2},
                        {"interleaved", 3}, {"interleaved", 4}, {"zb-auto", 1}, {"dualpipev", 2}};
enum { SCHEDULES = sizeof layout_schedules / sizeof *layout_schedules };
static const char *const layout_zero[] = {"no_shard", "optim", "optim_grads", "optim_grads_params"};
static const char *const layout_order[] = {"tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp", "pp-dp-ep-cp-tp",
                                           "dp-tp-cp-ep-pp"};
static const char *const layout_recompute[][4] = {
    {NULL},
    {"recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=1", NULL},
    {"recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=2", NULL},
    {"recompute_granularity=full", "recompute_method=block", "recompute_num_layers=1", NULL},
    {"recompute_granularity=selective", NULL},
    {"recompute_granularity=selective", "recompute_modules=[layernorm, mlp, moe, core_attn]", NULL}};
enum { RECOMPUTES = sizeof layout_recompute / sizeof *layout_recompute };
static const int layout_padding[] = {1, 3, 8};
/* KIND; the last value gives the layers one kind after the other. */
static const char *const layout_kinds[] = {"p2p", "allgather", "a2a", "a2a+p2p"};
enum { KINDS = sizeof layout_kinds / sizeof *layout_kinds, MIXED = KINDS };

/* The capacity of experts. The first two words say what is dropped, the third one changes no result. */
static const char *const layout_capacity[][4] = {
    {NULL},
    {"moe_expert_capacity_factor=0.5", "moe_token_drop_policy=position", NULL},
    {"moe_expert_capacity_factor=1", "moe_token_drop_policy=probs", NULL},
    {"moe_expert_capacity_factor=1.25", "moe_token_drop_policy=position",
     "moe_pad_expert_input_to_capacity=true", NULL},
    {"moe_expert_capacity_factor=0.5", "moe_token_drop_policy=probs", "moe_pad_expert_input_to_capacity=true",
     NULL}};
enum { CAPACITIES = sizeof layout_capacity / sizeof *layout_capacity };

/* Model families; those with experts are the last ones. groups: 0 gives each query head its own key/value
 * head, layout_model chooses their number otherwise. width: columns of the feed-forward layers per head; 24
 * makes shards end inside of tensors. experts: of a layer; 8 of them come in groups that are chosen first. */
static const struct { int layers, groups, width; const char *args[20]; int experts;
} families[] = {
    {4, 0, 24, {"activation=gelu_tanh"}},
    {4,
     0,
     3,
     {"activation=gelu", "hidden_dropout=0.2", "attention_dropout=0.1", "reset_attention_mask=true"}},
    {4,
     1,
     24,
     {"position_embedding_type=rope", "rotary_base=9973", "normalization=RMSNorm", "activation=swiglu",
      "add_bias_linear=false", "untie_embeddings_and_output_weights=true"}},
    {6,
     2,
     3,
     {"position_embedding_type=rope", "rotary_base=1009", "rotary_percent=0.7", "qk_layernorm=true",
      "activation=geglu", "window_size=3", "rope_scaling=yarn", "rope_scaling_factor=2",
      "rope_original_max_position_embeddings=4"}},
    {4,
     1,
     4,
     {"position_embedding_type=none", "normalization=RMSNorm", "qk_layernorm=true", "add_bias_linear=false",
      "add_qkv_bias=true", "activation=squared_relu", "reset_attention_mask=true",
      "untie_embeddings_and_output_weights=true"}},
    {6,
     1,
     24,
     {"position_embedding_type=rope", "rotary_base=9973", "activation=gelu_tanh", "hidden_dropout=0.1",
      "attention_dropout=0.2", "reset_attention_mask=true", "untie_embeddings_and_output_weights=true"}},
    {4, 1, 3, {"qk_layernorm=true", "normalization=RMSNorm", "activation=swiglu", "hidden_dropout=0.3"}},
    {4, 0, 3, {"activation=relu", "window_size=5", "attention_dropout=0.1", "reset_attention_mask=true"}},
    {4,
     1,
     3,
     {"position_embedding_type=rope", "rotary_base=9973", "normalization=RMSNorm", "activation=swiglu",
      "add_bias_linear=false", "untie_embeddings_and_output_weights=true", "hidden_dropout=0.1",
      "moe_router_topk=2", "moe_shared_expert_gate=true", "moe_router_load_balancing_type=aux_loss",
      "moe_aux_loss_coeff=0.5", "moe_z_loss_coeff=0.1"},
     4},
    {4,
     0,
     3,
     {"activation=gelu_tanh", "attention_dropout=0.1", "reset_attention_mask=true", "moe_router_topk=2",
      "moe_router_score_function=sigmoid", "moe_router_topk_scaling_factor=2.5", "moe_router_group_topk=2",
      "moe_router_load_balancing_type=seq_aux_loss", "moe_aux_loss_coeff=0.5", "moe_z_loss_coeff=0.05",
      "moe_layer_freq=[0, 1, 1, 0]", "untie_embeddings_and_output_weights=true",
      "moe_router_enable_expert_bias=true", "moe_router_bias_update_rate=0.05"},
     8},
    {6,
     2,
     24,
     {"position_embedding_type=rope", "rotary_base=1009", "qk_layernorm=true", "activation=geglu",
      "window_size=3", "hidden_dropout=0.2", "reset_attention_mask=true", "moe_router_topk=1",
      "moe_router_pre_softmax=true", "moe_router_load_balancing_type=global_aux_loss",
      "moe_aux_loss_coeff=0.5", "moe_layer_freq=2"},
     4},
    {4,
     1,
     3,
     {"normalization=RMSNorm", "activation=squared_relu", "add_bias_linear=false", "moe_router_topk=4",
      "moe_router_score_function=sigmoid", "moe_router_load_balancing_type=none", "moe_z_loss_coeff=0.2",
      "moe_input_jitter_eps=0.3",
      "moe_layer_freq=[1, 1, 0, 1]", "untie_embeddings_and_output_weights=true"},
     4}};
enum {
    ALL_FAMILIES = sizeof families / sizeof *families,
    EXPERT_FAMILIES = 4,
    FAMILIES = ALL_FAMILIES - EXPERT_FAMILIES /* without experts */
};

/* Number of heads, batch size and sequence length that every layout of n ranks can divide. */
static inline int layout_heads(int n) { return n == 3 || n == 6 ? 12 : n == 5 || n == 7 ? n : 8; }
static inline int layout_batch(int n) { return n == 3 || n == 6 ? 12 : n == 5 || n == 7 ? 2 * n : 8; }
static inline int layout_seq(int n) { return n == 3 || n == 6 ? 12 : n == 5 || n == 7 ? 2 * n : 16; }
/* Experts of a layer of the family's model, in a world of n ranks; 0: none. */
static inline int layout_experts(int n, int family)
{
    int experts = families[family].experts;
    return !experts ? 0 : n == 3 || n == 6 ? 6 : n == 5 || n == 7 ? n : experts;
}
static inline int layout_world(const Layout *l) { return l->is[TP] * l->is[PP] * l->is[CP] * l->is[DP]; }
/* Ranks that share the optimizer's work: of the dense grid, or of the expert grid if those are more. */
static inline int layout_data(const Layout *l)
{
    const int *is = l->is;
    int dense = is[DP] * is[CP], experts = is[EP] ? layout_world(l) / (is[EP] * is[ETP] * is[PP]) : 1;
    return dense > experts ? dense : experts;
}
/* Key/value heads of the family's model for a world of n ranks. */
static inline int layout_groups(int n, int family)
{
    int heads = layout_heads(n);
    return !families[family].groups                              ? heads
           : n == 5 || n == 7 || families[family].groups == 2    ? 1
           : heads == 12                                         ? 6
                                                                 : 2;
}
static inline int layout_v(const Layout *l)
{
    return l->is[PP] > 1 ? layout_schedules[l->is[SCHEDULE]].v : 1;
}

static inline int layout_micros(const Layout *l)
{
    return layout_batch(layout_world(l)) / (l->is[DP] * l->is[MICRO]);
}

/* Microbatches in a group of the interleaved schedule: as many as pipeline ranks, one more, or all of
 * the step. 0: not legal. */
static inline int layout_group(const Layout *l)
{
    int p = l->is[PP], m = layout_micros(l), g = l->is[GROUP] == 0 ? p : l->is[GROUP] == 1 ? p + 1 : m;
    return g >= p && g <= m && (m % g == 0 || m % g >= p) ? g : 0;
}

/* Returns whether layers of the kind can exchange positions for heads, or need not. */
static inline int layout_fits(const Layout *l, int kind)
{
    const int *is = l->is;
    int n = layout_world(l), k = layout_groups(n, is[FAMILY]);
    int shares = kind == 2 ? is[CP] : kind == 3 ? is[HEADS] : 1;
    return is[CP] % shares == 0 && layout_heads(n) / is[TP] % shares == 0 &&
           (k < is[TP] ? 1 : k / is[TP]) % shares == 0;
}

/* Resets the choices that layers with experts do not have. Returns 0 when the expert grid is not legal. */
static inline int layout_expert_grid(Layout *l)
{
    int *is = l->is, n = layout_world(l), size[AXES], experts = layout_experts(n, is[FAMILY]);
    GridSpec s = {.size = {[AXIS_TP] = is[TP], [AXIS_CP] = is[CP], [AXIS_EP] = 1, [AXIS_DP] = is[DP],
                           [AXIS_PP] = is[PP]},
                  .etp = is[ETP], .ep = is[EP]};
    if (!experts) {
        is[EP] = is[ETP] = is[CAPACITY] = is[TURNS] = is[GATHER] = 0;
        return 1;
    }
    if (n % (is[EP] * is[ETP] * is[PP]) || experts % is[EP])
        return 0;
    is[SP] = is[TP] > 1 && !is[SP] ? 1 : is[SP];
    BUG_ON(!grid_parse_order(layout_order[is[ORDER]], s.order));
    if (!grid_expert_size(&s, n, size))
        is[ORDER] = 0;
    int edp = n / (is[EP] * is[ETP] * is[PP]);
    if (edp > 1 && edp % is[INSTANCES])
        is[INSTANCES] = 1;
    return 1;
}

/* Whether forward and backward may run by turns. */
static inline int layout_pairs(const Layout *l)
{
    const char *schedule = layout_schedules[l->is[SCHEDULE]].name;
    int written = !strcmp(schedule, "1f1b") || !strcmp(schedule, "interleaved") ||
                  !strcmp(schedule, "dualpipev");
    return l->is[EP] > 1 && (l->is[PP] == 1 || written) && (l->is[ZERO] < 2 || layout_data(l) == 1);
}

/* Resets the choices that mean nothing in this layout. Returns 0 when the layout is not legal. */
static inline int layout_normal(Layout *l)
{
    int *is = l->is, interleaved;
    if (layout_world(l) > 8 || layout_heads(layout_world(l)) % is[TP] || !layout_expert_grid(l))
        return 0;
    if (is[TP] == 1)
        is[SP] = 0;
    if (is[PP] == 1)
        is[SCHEDULE] = is[SPLIT] = 0;
    interleaved = !strcmp(layout_schedules[is[SCHEDULE]].name, "interleaved");
    if (is[CP] == 1)
        is[KIND] = 0;
    if (is[KIND] < 3 || (is[KIND] == MIXED && !layout_fits(l, 3)))
        is[HEADS] = 1;
    if (is[KIND] < MIXED && !layout_fits(l, is[KIND]))
        return 0;
    if (layout_data(l) == 1)
        is[ZERO] = is[OVERLAP] = 0;
    if (is[ZERO] == 0) {
        is[INSTANCES] = 1;
        is[OVERLAP] = is[OVERLAP] == 2 ? 1 : is[OVERLAP];
    }
    if (is[DP] * is[CP] % is[INSTANCES])
        is[INSTANCES] = 1;
    if (layout_batch(layout_world(l)) % (is[DP] * is[MICRO]) || (interleaved && !layout_group(l)))
        is[MICRO] = 1;
    if (!interleaved || !layout_group(l))
        is[GROUP] = 0;
    if (!strcmp(layout_schedules[is[SCHEDULE]].name, "dualpipev")) {       /* needs two a rank */
        is[MICRO] = layout_micros(l) < 2 * is[PP] ? 1 : is[MICRO];
        if (layout_micros(l) < 2 * is[PP])
            return 0;
    }
    is[TURNS] = layout_pairs(l) ? is[TURNS] : 0;
    return !interleaved || layout_group(l);
}

/* ---- as arguments ---- */

enum { WORDS = 80 };
typedef struct { int n; char text[WORDS][160], *arg[WORDS]; } Words;

static inline void add_arg(Words *a, const char *key, const char *value)
{
    BUG_ON(a->n == WORDS);
    snprintf(a->text[a->n], sizeof *a->text, "%s%s%s", key, value ? "=" : "", value ? value : "");
    a->arg[a->n] = a->text[a->n];
    a->n++;
}

/* Adds KEY=VALUE, or replaces the value of KEY. */
static inline void set_arg(Words *a, const char *text)
{
    size_t key = strcspn(text, "=") + 1;
    for (int i = 0; i < a->n; i++)
        if (!strncmp(a->text[i], text, key)) {
            snprintf(a->text[i], sizeof *a->text, "%s", text);
            return;
        }
    add_arg(a, text, NULL);
}

static inline void add_number(Words *a, const char *key, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    add_arg(a, key, text);
}

/* Arguments of the family's model for a world of n ranks. */
static inline void layout_model(Words *a, int n, int family)
{
    int heads = layout_heads(n);
    a->n = 0;
    for (const char *const *s = families[family].args; *s; s++)
        add_arg(a, *s, NULL);
    add_number(a, "num_layers", families[family].layers);
    add_number(a, "num_attention_heads", heads);
    add_number(a, "ffn_hidden_size", families[family].width * heads);
    add_number(a, "seq_length", layout_seq(n));
    add_number(a, "global_batch_size", layout_batch(n));
    if (families[family].groups)
        add_number(a, "num_query_groups", layout_groups(n, family));
    int experts = layout_experts(n, family), shared = families[family].groups == 1 && experts;
    if (experts) {
        add_number(a, "num_moe_experts", experts);
        add_number(a, "moe_ffn_hidden_size", (families[family].width + 1) * heads);
    }
    if (shared)
        add_number(a, "moe_shared_expert_intermediate_size", 2 * heads);
    if (families[family].experts == 8)
        add_number(a, "moe_router_num_groups", experts % 2 ? experts : experts / 2);
    add_arg(a, "cpu_isa", getenv("ISA") && *getenv("ISA") ? getenv("ISA") : "auto");
}

/* The pipeline rank that has stage s. */
static inline int stage_rank(const Layout *l, int s)
{
    int p = l->is[PP], k = l->is[SCHEDULE];
    return ((k >= 4 && k <= 6) || k == 11) && s >= p ? 2 * p - 1 - s : s % p;
}

/* Adds the split of layers over stages: evenly where the layout asks for that and it is possible, else
 * at random, with empty stages. Returns the largest number of layers of a pipeline rank, or less. */
static inline int add_split(Words *a, const Layout *l, uint64_t seed)
{
    int layers = families[l->is[FAMILY]].layers, p = l->is[PP], v = layout_v(l), n = p * v;
    int count[64] = {0}, rank[8] = {0};
    int split = l->is[SPLIT], most = 0, at = 0;
    char text[128];
    if (p == 1)
        return layers;
    if (layout_schedules[l->is[SCHEDULE]].v > 1 &&
        !strcmp(layout_schedules[l->is[SCHEDULE]].name, "interleaved"))
        add_number(a, "num_virtual_stages_per_pipeline_rank", v);
    if (split == 1 && (layers + 2) % n == 0 && (layers + 2) / n > 0) {
        add_arg(a, "account_for_embedding_in_pipeline_split", "true");
        add_arg(a, "account_for_loss_in_pipeline_split", "true");
        return (layers + 2) / n * v - 2;       /* of the rank with embedding and head, if one has both */
    }
    if (split == 2 && p > 2 && v == 1 && (layers - 2) % (p - 2) == 0) {
        add_number(a, "num_layers_in_first_pipeline_stage", 1);
        add_number(a, "num_layers_in_last_pipeline_stage", 1);
        return (layers - 2) / (p - 2);
    }
    if (split != 3 && layers % n == 0)
        return layers / n * v;
    for (int i = 0; i < layers; i++)
        count[(int)(rng_uniform(seed, 7, (uint64_t)i) * n)]++;
    for (int s = 0; s < n; s++) {
        at += snprintf(text + at, sizeof text - (size_t)at, "%s%.*s", s ? "|" : "E", count[s], "tttttttt");
        rank[stage_rank(l, s)] += count[s];
    }
    snprintf(text + at, sizeof text - (size_t)at, "L");
    add_arg(a, "pipeline_model_parallel_layout", text);
    for (int r = 0; r < p; r++)
        most = rank[r] > most ? rank[r] : most;
    return most;
}

/* Adds how keys and queries come together: one kind, or of those that fit one after the other. */
static inline void add_context(Words *a, const Layout *l)
{
    const int *is = l->is;
    int layers = is[KIND] == MIXED ? families[is[FAMILY]].layers : 1, kind = is[KIND] % KINDS, has = 0;
    char text[96] = "[", sizes[16];
    for (int i = 0; i < layers; i++, kind = (kind + 1) % KINDS) {
        while (!layout_fits(l, kind))
            kind = (kind + 1) % KINDS;
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", i ? ", " : "", layout_kinds[kind]);
        has |= kind == 3;
    }
    add_number(a, "context_parallel_size", is[CP]);
    if (is[CP] == 1)
        return;
    strcat(text, "]");
    add_arg(a, "cp_comm_type", text);
    snprintf(sizes, sizeof sizes, "[%d, %d]", is[HEADS], is[CP] / is[HEADS]);
    if (has)
        add_arg(a, "hierarchical_context_parallel_sizes", sizes);
}

/* All arguments of a layout. */
static inline void layout_args(Words *a, const Layout *l)
{
    const int *is = l->is;
    uint64_t seed = hash64(l, EP * sizeof *is, 1);
    layout_model(a, layout_world(l), is[FAMILY]);
    add_number(a, "tensor_model_parallel_size", is[TP]);
    add_arg(a, "sequence_parallel", is[SP] ? "true" : "false");
    add_arg(a, "tp_comm_overlap", is[SP] == 2 ? "true" : "false");
    add_number(a, "pipeline_model_parallel_size", is[PP]);
    add_context(a, l);
    add_arg(a, "pipeline_schedule", is[PP] > 1 ? layout_schedules[is[SCHEDULE]].name : "1f1b");
    int most = add_split(a, l, seed), recompute = is[RECOMPUTE] == 2 && most < 2 ? 1 : is[RECOMPUTE];
    if (is[GROUP])
        add_number(a, "microbatch_group_size_per_vp_stage", layout_group(l));
    add_arg(a, "data_parallel_sharding_strategy", layout_zero[is[ZERO]]);
    add_number(a, "num_distributed_optimizer_instances", is[INSTANCES]);
    add_arg(a, "overlap_grad_reduce", is[OVERLAP] ? "true" : "false");
    add_arg(a, "overlap_param_gather", is[OVERLAP] == 2 ? "true" : "false");
    add_arg(a, "rank_order", layout_order[is[ORDER]]);
    add_number(a, "make_vocab_size_divisible_by", layout_padding[is[PADDING]]);
    add_number(a, "micro_batch_size", is[MICRO]);
    for (const char *const *s = layout_recompute[recompute]; *s; s++)
        add_arg(a, *s, NULL);
    if (is[EP]) {
        add_number(a, "expert_model_parallel_size", is[EP]);
        add_number(a, "expert_tensor_parallel_size", is[ETP]);
        add_arg(a, "moe_token_dispatcher_type", is[GATHER] ? "allgather" : "alltoall");
        for (const char *const *s = layout_capacity[is[CAPACITY]]; *s; s++)
            add_arg(a, *s, NULL);
        add_arg(a, "overlap_moe_expert_parallel_comm", is[TURNS] ? "true" : "false");
    }
}

/* ---- sets of layouts ---- */

static const int layout_values[CHOICES] = {
    [KIND] = MIXED + 1, [SP] = 3,    [SCHEDULE] = SCHEDULES, [ZERO] = 4,  [RECOMPUTE] = RECOMPUTES,
    [OVERLAP] = 3,      [SPLIT] = 4, [ORDER] = 4,            [PADDING] = 3, [GROUP] = 3,
    [FAMILY] = FAMILIES, [CAPACITY] = CAPACITIES, [TURNS] = 2, [GATHER] = 2};

static inline int pick(uint64_t key, uint64_t at, int n) { return (int)(rng_uniform(key, 11, at) * n); }

/* Draws a divisor of n. */
static inline int pick_divisor(uint64_t key, uint64_t at, int n)
{
    int x;
    do
        x = 1 + pick(key, at += 100, n);
    while (n % x);
    return x;
}

/* Draws every choice but TP, PP, CP and DP; CP is 1. */
static inline void layout_draw(Layout *l, uint64_t key)
{
    for (int c = 0; c < CHOICES; c++)
        if (layout_values[c])
            l->is[c] = pick(key, (uint64_t)c, layout_values[c]);
    l->is[CP] = 1;
    l->is[HEADS] = 1 + pick(key, HEADS, 4);
    l->is[INSTANCES] = 1 << pick(key, INSTANCES, 3);
    l->is[MICRO] = 1 + pick(key, MICRO, 2);
}

/* Makes a drawn layout one with experts: family and expert grid are drawn. */
static inline void layout_draw_experts(Layout *l, uint64_t key)
{
    int rest = layout_world(l) / l->is[PP];
    l->is[FAMILY] = FAMILIES + pick(key, 60, EXPERT_FAMILIES);
    l->is[ETP] = pick_divisor(key, 103, rest);
    l->is[EP] = pick_divisor(key, 104, rest / l->is[ETP]);
}

/* Adds every sp x schedule x ZeRO of the sizes and the kind of *of to list[found]; the other choices are
 * drawn, until the layout is legal. With experts (EP is not 0) the kind is drawn, too. Returns how many
 * layouts the list has then. */
static inline int layouts_of(const Layout *of, Layout *list, int found, uint64_t seed)
{
    const int *is = of->is;
    int data = layout_data(of);
    for (int at = 0; at < 3 * SCHEDULES * 4; at++) {
        int sp = at % 3, s = at / 3 % SCHEDULES, z = at / 3 / SCHEDULES, legal = 0;
        Layout l;
        if ((sp && is[TP] == 1) || (is[EP] && !sp && is[TP] > 1) || (s && is[PP] == 1) || (z && data == 1))
            continue;
        for (int draw = 0; draw < 64 && !legal; draw++) {
            int key[] = {is[TP], is[PP], sp, s, z, is[DP], is[CP], is[KIND], draw};
            layout_draw(&l, hash64(key, sizeof key, seed + (uint64_t)(10 * is[EP] + is[ETP])));
            l.is[TP] = is[TP], l.is[PP] = is[PP], l.is[CP] = is[CP], l.is[DP] = is[DP];
            l.is[SP] = sp, l.is[SCHEDULE] = s, l.is[ZERO] = z;
            l.is[EP] = is[EP], l.is[ETP] = is[ETP];
            if (is[EP])
                l.is[FAMILY] = FAMILIES + pick(seed, (uint64_t)(100 * draw + at), EXPERT_FAMILIES);
            else
                l.is[KIND] = is[KIND];
            legal = layout_normal(&l);
        }
        if (legal)
            list[found++] = l;
    }
    return found;
}

/* Adds these sizes with every expert grid. */
static inline int layouts_of_experts(const Layout *sizes, Layout *list, int found, uint64_t seed)
{
    Layout of = *sizes;
    int rest = layout_world(&of) / of.is[PP], *is = of.is;
    for (is[ETP] = 1; is[ETP] <= rest; is[ETP]++)
        for (is[EP] = 1; is[EP] <= rest / is[ETP]; is[EP]++)
            if (rest % (is[ETP] * is[EP]) == 0)
                found = layouts_of(&of, list, found, seed);
    return found;
}

/* Every tp x sp x cp (each kind) x pp x v x dp x ZeRO x schedule of n ranks. experts: every tp x sp x cp x ep
 * x etp x pp x v x dp x ZeRO x schedule, of families with experts. Returns how many. */
static inline int layouts_all(int n, int experts, Layout *list, int max, uint64_t seed)
{
    int found = 0;
    for (int tp = 1; tp <= n; tp++)
        for (int pp = 1; pp <= n; pp++)
            for (int cp = 1; cp <= n; cp++)
                for (int kind = 0; kind < (cp > 1 && !experts ? MIXED + 1 : 1) && n % (tp * pp * cp) == 0;
                     kind++) {
                    Layout of = {
                        {[TP] = tp, [PP] = pp, [CP] = cp, [DP] = n / (tp * pp * cp), [KIND] = kind}};
                    found = (experts ? layouts_of_experts : layouts_of)(&of, list, found, seed);
                }
    BUG_ON(found > max);
    return found;
}

typedef uint8_t PairsSeen[CHOICES][VALUES][CHOICES][VALUES];

/* The value of a choice; VALUES - 1 where the choice means nothing. No sequence parallelism on one
 * tensor rank is another case than on two. */
static inline int layout_value(const Layout *l, int choice)
{
    const int *is = l->is;
    int nothing = (choice == SP && is[TP] == 1) || ((choice == SCHEDULE || choice == SPLIT) && is[PP] == 1) ||
                  ((choice == ZERO || choice == OVERLAP) && layout_data(l) == 1) ||
                  (choice == INSTANCES && is[ZERO] == 0) || (choice == KIND && is[CP] == 1) ||
                  (choice == HEADS && is[KIND] < 3) || (choice == TURNS && !layout_pairs(l)) ||
                  (choice == GROUP && strcmp(layout_schedules[is[SCHEDULE]].name, "interleaved"));
    return nothing ? VALUES - 1 : is[choice];
}

static inline int pairs_new(PairsSeen seen, const Layout *l, int mark)
{
    int fresh = 0, choices = l->is[EP] ? CHOICES : EP, value[CHOICES];
    for (int a = 0; a < choices; a++)
        value[a] = layout_value(l, a);
    for (int a = 0; a < choices; a++)
        for (int b = a + 1; b < choices; b++) {
            fresh += !seen[a][value[a]][b][value[b]];
            seen[a][value[a]][b][value[b]] |= (uint8_t)mark;
        }
    return fresh;
}

/* Layouts of n ranks, of families with experts or of those without, in which every possible pair of values of
 * two choices occurs. Greedy: each round
 * adds the drawn layout with the most new pairs; ends after three rounds without any. Returns the number
 * of layouts. */
static inline int layouts_cover(int n, int experts, Layout *list, int max, uint64_t seed)
{
    static PairsSeen seen;
    int found = 0, idle = 0;
    uint64_t key = seed;
    memset(seen, 0, sizeof seen);
    while (found < max && idle < 3) {
        Layout best = {0};
        int most = 0;
        for (int i = 0; i < 300; i++) {
            Layout l;
            layout_draw(&l, ++key);
            l.is[TP] = pick_divisor(key, 100, n);
            l.is[PP] = pick_divisor(key, 101, n / l.is[TP]);
            l.is[CP] = pick_divisor(key, 102, n / l.is[TP] / l.is[PP]);
            l.is[DP] = n / (l.is[TP] * l.is[PP] * l.is[CP]);
            if (experts)
                layout_draw_experts(&l, key);
            int fresh = layout_normal(&l) ? pairs_new(seen, &l, 0) : 0;
            if (fresh > most)
                most = fresh, best = l;
        }
        idle = most ? 0 : idle + 1;
        if (most) {
            pairs_new(seen, &best, 1);
            list[found++] = best;
        }
    }
    return found;
}
#endif
