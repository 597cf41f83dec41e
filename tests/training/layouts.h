/* layouts -- the layouts that the tests run: a layout as a row of choices and as key=value arguments,
 * all layouts of a world, and a set that covers every pair of choices. */
#ifndef LAYOUTS_H
#define LAYOUTS_H
#include "run.h"
#include <stdio.h>
#include <string.h>

/* The choices of a layout. TP, PP, CP, DP, HEADS, INSTANCES and MICRO hold sizes, the others an index. HEADS:
 * ranks of an a2a group of cp_comm_type a2a+p2p. */
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
    {"recompute_granularity=selective", "recompute_modules=[layernorm, mlp, core_attn]", NULL}};
enum { RECOMPUTES = sizeof layout_recompute / sizeof *layout_recompute };
static const int layout_padding[] = {1, 3, 8};
/* KIND; the last value gives the layers one kind after the other. */
static const char *const layout_kinds[] = {"p2p", "allgather", "a2a", "a2a+p2p"};
enum { KINDS = sizeof layout_kinds / sizeof *layout_kinds, MIXED = KINDS };

/* Model families. groups: 0 gives each query head its own key/value head, layout_model chooses their number
 * otherwise. width: columns of the feed-forward layers per head; 24 makes shards end inside of tensors. */
static const struct { int layers, groups, width; const char *args[14];
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
    {4, 0, 3, {"activation=relu", "window_size=5", "attention_dropout=0.1", "reset_attention_mask=true"}}};
enum { FAMILIES = sizeof families / sizeof *families };

/* Number of heads, batch size and sequence length that every layout of n ranks can divide. */
static inline int layout_heads(int n) { return n == 3 || n == 6 ? 12 : n == 5 || n == 7 ? n : 8; }
static inline int layout_batch(int n) { return n == 3 || n == 6 ? 12 : n == 5 || n == 7 ? 2 * n : 8; }
static inline int layout_seq(int n) { return n == 3 || n == 6 ? 12 : n == 5 || n == 7 ? 2 * n : 16; }
static inline int layout_world(const Layout *l) { return l->is[TP] * l->is[PP] * l->is[CP] * l->is[DP]; }
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

/* Resets the choices that mean nothing in this layout. Returns 0 when the layout is not legal. */
static inline int layout_normal(Layout *l)
{
    int *is = l->is, interleaved;
    if (layout_world(l) > 8 || layout_heads(layout_world(l)) % is[TP])
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
    if (is[DP] * is[CP] == 1)
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
    return !interleaved || layout_group(l);
}

/* ---- as arguments ---- */

typedef struct { int n; char text[64][160], *arg[64]; } Words;

static inline void add_arg(Words *a, const char *key, const char *value)
{
    BUG_ON(a->n == 64);
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
    uint64_t seed = hash64(l, sizeof *l, 1);
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
}

/* ---- sets of layouts ---- */

static const int layout_values[CHOICES] = {
    [KIND] = MIXED + 1, [SP] = 3,    [SCHEDULE] = SCHEDULES, [ZERO] = 4,  [RECOMPUTE] = RECOMPUTES,
    [OVERLAP] = 3,      [SPLIT] = 4, [ORDER] = 4,            [PADDING] = 3, [GROUP] = 3,
    [FAMILY] = FAMILIES};

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

/* Adds every sp x schedule x ZeRO of these sizes and kind to list[found]; the other choices are drawn, until
 * the layout is legal. Returns how many layouts the list has then. */
static inline int layouts_of(int tp, int pp, int cp, int kind, int dp, Layout *list, int found, uint64_t seed)
{
    for (int at = 0; at < 3 * SCHEDULES * 4; at++) {
        int sp = at % 3, s = at / 3 % SCHEDULES, z = at / 3 / SCHEDULES, legal = 0;
        Layout l;
        if ((sp && tp == 1) || (s && pp == 1) || (z && dp * cp == 1))
            continue;
        for (int draw = 0; draw < 64 && !legal; draw++) {
            layout_draw(&l, hash64(&(int[]){tp, pp, sp, s, z, dp, cp, kind, draw}, 9 * sizeof(int), seed));
            l.is[TP] = tp, l.is[PP] = pp, l.is[CP] = cp, l.is[DP] = dp;
            l.is[KIND] = kind, l.is[SP] = sp, l.is[SCHEDULE] = s, l.is[ZERO] = z;
            legal = layout_normal(&l);
        }
        if (legal)
            list[found++] = l;
    }
    return found;
}

/* Every tp x sp x cp (each kind) x pp x v x dp x ZeRO x schedule of n ranks. Returns how many. */
static inline int layouts_all(int n, Layout *list, int max, uint64_t seed)
{
    int found = 0;
    for (int tp = 1; tp <= n; tp++)
        for (int pp = 1; pp <= n; pp++)
            for (int cp = 1; cp <= n; cp++)
                for (int kind = 0; kind < (cp > 1 ? MIXED + 1 : 1) && n % (tp * pp * cp) == 0; kind++)
                    found = layouts_of(tp, pp, cp, kind, n / (tp * pp * cp), list, found, seed);
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
                  ((choice == ZERO || choice == OVERLAP) && is[DP] * is[CP] == 1) ||
                  (choice == INSTANCES && is[ZERO] == 0) || (choice == KIND && is[CP] == 1) ||
                  (choice == HEADS && is[KIND] < 3) ||
                  (choice == GROUP && strcmp(layout_schedules[is[SCHEDULE]].name, "interleaved"));
    return nothing ? VALUES - 1 : is[choice];
}

static inline int pairs_new(PairsSeen seen, const Layout *l, int mark)
{
    int fresh = 0, value[CHOICES];
    for (int a = 0; a < CHOICES; a++)
        value[a] = layout_value(l, a);
    for (int a = 0; a < CHOICES; a++)
        for (int b = a + 1; b < CHOICES; b++) {
            fresh += !seen[a][value[a]][b][value[b]];
            seen[a][value[a]][b][value[b]] |= (uint8_t)mark;
        }
    return fresh;
}

/* Layouts of n ranks in which every possible pair of values of two choices occurs. Greedy: each round
 * adds the drawn layout with the most new pairs; ends after three rounds without any. Returns the number
 * of layouts. */
static inline int layouts_cover(int n, Layout *list, int max, uint64_t seed)
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
