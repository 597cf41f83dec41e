/* test_experts -- layers with experts beside what they must be, and at their edges, on one rank or over six
 * layouts of four ranks:
 *   experts that are all the same, beside a shared one, give the dense model's loss and gradients
 *   tokens that are all the same give the gradient of balance and z losses that is computed by hand
 *   the statistics of the routers are those of the logits that a watch sees, recomputed or not
 *   rows that F keeps give the bits of rows that D sends and computes again
 *   all tokens to the same experts, no token for the others, all experts for each token, one expert, fewer
 *   tokens than ranks, choices by moe_router_force, capacities of 0, too few and too many: layouts and one
 *   rank agree */
#include "layout_compare.h"

/* The model of these tests with more options. */
static void model(Words *a, const char *const *more)
{
    static const char *const base_args[] = {"num_layers=2",
                                            "num_attention_heads=4",
                                            "ffn_hidden_size=24",
                                            "seq_length=8",
                                            "global_batch_size=8",
                                            "micro_batch_size=2",
                                            "make_vocab_size_divisible_by=1",
                                            NULL};
    a->n = 0;
    for (const char *const *s = base_args; *s; s++)
        set_arg(a, *s);
    for (; *more; more++)
        set_arg(a, *more);
    add_arg(a, "cpu_isa", getenv("ISA") && *getenv("ISA") ? getenv("ISA") : "auto");
}

/* Layouts of four ranks. */
static const char *const grids[][6] = {
    {"expert_model_parallel_size=4"},
    {"expert_model_parallel_size=2", "expert_tensor_parallel_size=2"},
    {"tensor_model_parallel_size=2", "sequence_parallel=true", "expert_model_parallel_size=4",
     "expert_tensor_parallel_size=1"},
    {"tensor_model_parallel_size=2", "sequence_parallel=true", "context_parallel_size=2",
     "expert_model_parallel_size=2", "expert_tensor_parallel_size=1"},
    {"pipeline_model_parallel_size=2", "pipeline_schedule=zb-h1", "expert_model_parallel_size=2",
     "data_parallel_sharding_strategy=optim_grads_params", "moe_token_dispatcher_type=allgather"},
    {"context_parallel_size=4", "expert_tensor_parallel_size=4", "moe_token_dispatcher_type=allgather"},
};
enum { GRIDS = sizeof grids / sizeof *grids };

static void grid_args(Words *a, int g)
{
    for (int i = 0; i < 6 && grids[g][i]; i++)
        set_arg(a, grids[g][i]);
}

/* Where a tensor of a layer begins among the gathered ones. expert: -1: of none. */
static int64_t place(const Config *c, const Whole *w, int layer, ParamId id, int expert)
{
    int of_row = c->num_moe_experts == CFG_ABSENT ? 1 : (int)c->num_moe_experts + 1;
    int64_t number = ((int64_t)(layer + 1) * PARAM_KINDS + id) * of_row + expert + 1;
    return w->at[number];
}

/* ---- the same experts ---- */

enum { WIDTH = 16, SHARED = 8 };

/* An element of the tensor `id`, the same in both models and for every expert. */
static double drawn(ParamId id, int layer, int64_t row, int64_t col)
{
    return 0.4 * rng_normal(21, (uint64_t)(100 * (layer + 1) + (int)id), (uint64_t)(row * 1024 + col));
}

/* The dense model's mlp has the expert's columns before the shared expert's. */
static double same(const Params *p, const Param *t, int64_t row, int64_t col, double x)
{
    int shared = p->cfg->ffn_hidden_size > WIDTH;
    int64_t all = p->cfg->ffn_hidden_size, part = row / all, at = row % all;
    (void)x;
    if (t->id == P_SGATE)
        return 0;                      /* a gate of a half */
    if (t->id == P_FC1 && shared)
        return at < WIDTH ? drawn(P_FC1, t->layer, part * WIDTH + at, col)
                          : drawn(P_SFC1, t->layer, part * SHARED + at - WIDTH, col);
    if (t->id == P_FC2 && shared && col >= WIDTH)
        return drawn(P_SFC2, t->layer, row, col - WIDTH) / 2;
    int dense = t->id >= P_EFC1 && t->id <= P_EFC2B ? (int)P_FC1 + (int)t->id - (int)P_EFC1 : (int)t->id;
    return (t->ndim == 1) + drawn((ParamId)dense, t->layer, row, col);
}

/* A tensor of the layers with experts, and what it is in the dense model: rows or columns [at, ..) of each
 * segment of a tensor that is wider. */
typedef struct {
    ParamId id, dense;
    int experts;               /* 0: the tensor is of no expert */
    int64_t rows, cols;
    int64_t part, dense_part;  /* rows of a segment; 0: `at` counts columns */
    int64_t at, dense_cols;
    double factor;             /* the gradient is this times the dense one */
} Tensor;

/* The largest difference between the sum of all experts' gradients and the dense gradient, relative to the
 * largest element. */
static double sum_apart(const Config *c, const Whole *w, const double *x, const Config *dc, const Whole *dw,
                        const double *dx, int layer, Tensor t)
{
    double worst = 0, most = 0;
    for (int64_t row = 0; row < t.rows; row++)
        for (int64_t col = 0; col < t.cols; col++) {
            int64_t drow = t.dense_part ? row / t.part * t.dense_part + t.at + row % t.part : row;
            int64_t dcol = t.dense_part ? col : t.at + col;
            double sum = 0, dense = dx[place(dc, dw, layer, t.dense, -1) + drow * t.dense_cols + dcol];
            for (int e = 0; e < (t.experts ? t.experts : 1); e++)
                sum += x[place(c, w, layer, t.id, t.experts ? e : -1) + row * t.cols + col];
            worst = worse(worst, fabs(sum - t.factor * dense));
            most = fmax(most, fabs(dense));
        }
    return most > 0 ? worst / most : HUGE_VAL;
}

/* Compares the results of rank 0, *got, with the dense model's, *one. */
static void check_equal(const Config *c, const Whole *w, const Result *got, const Config *dc, const Whole *dw,
                        const Result *one, int shared)
{
    int64_t H = c->hidden_size, W = c->ffn_hidden_size;
    const Tensor all[] = {
        {P_LN1, P_LN1, 0, 1, H, 0, 0, 0, H, 1},
        {P_LN2, P_LN2, 0, 1, H, 0, 0, 0, H, 1},
        {P_PROJ, P_PROJ, 0, H, 24, 0, 0, 0, 24, 1},
        {P_EFC1, P_FC1, 4, (1 + shared) * WIDTH, H, WIDTH, W, 0, H, 1},
        {P_EFC2, P_FC2, 4, H, WIDTH, 0, 0, 0, W, 1},
        {shared ? P_SFC1 : P_EFC1B, shared ? P_FC1 : P_FC1B, shared ? 0 : 4, shared ? 2 * SHARED : 1,
         shared ? H : WIDTH, SHARED, shared ? W : 0, shared ? WIDTH : 0, shared ? H : WIDTH, 1},
        {shared ? P_SFC2 : P_EFC2B, shared ? P_FC2 : P_FC2B, shared ? 0 : 4, shared ? H : 1,
         shared ? SHARED : H, 0, 0, shared ? WIDTH : 0, shared ? W : H, shared ? 0.5 : 1},
    };
    double loss = apart(one->loss[0], got->loss[0]);
    CHECK(loss <= 1e-13 && one->loss[0] > 1, "loss %.17g, the dense model's %.17g\n#   %s", got->loss[0],
          one->loss[0], current);
    for (size_t i = 0; i < 2 * sizeof all / sizeof *all; i++) {
        const Tensor *t = &all[i / 2];
        double worst = sum_apart(c, w, got->x, dc, dw, one->x, (int)i % 2, *t);
        CHECK(worst <= 1e-11, "layer %d, gradients of %s and the dense one: apart by %.2g\n#   %s",
              (int)i % 2, param_defs[t->id].name, worst, current);
        most_apart = fmax(most_apart, worst);
    }
}

/* Compares a model of equal experts, and of a shared one with a gate of a half, with the dense model. */
static void equal(int shared, int g)
{
    static const char *const moe[][8] = {
        {"num_moe_experts=4", "moe_router_topk=2", "moe_ffn_hidden_size=16", "ffn_hidden_size=16"},
        {"num_moe_experts=4", "moe_router_topk=2", "moe_ffn_hidden_size=16", "ffn_hidden_size=24",
         "add_bias_linear=false", "activation=swiglu", "moe_shared_expert_intermediate_size=8",
         "moe_shared_expert_gate=true"}};
    static const char *const dense[][4] = {
        {"ffn_hidden_size=16"}, {"ffn_hidden_size=24", "add_bias_linear=false", "activation=swiglu"}};
    Words a;
    const char *more[9] = {0};
    memcpy(more, moe[shared], sizeof moe[0]);
    model(&a, more);
    if (g >= 0)
        grid_args(&a, g);
    value_of = same;
    const Config *c = configure(&a, world);
    Whole w = whole_open(c);
    Result got = result_of(c, &w, 0);
    layouts++;
    if (rank == 0) {
        memset(more, 0, sizeof more);
        memcpy(more, dense[shared], sizeof dense[0]);
        char running[sizeof current];
        memcpy(running, current, sizeof current);
        model(&a, more);
        const Config *dc = configure(&a, 1);
        Whole dw = whole_open(dc);
        Result one = result_of(dc, &dw, 0);
        memcpy(current, running, sizeof current);
        check_equal(c, &w, &got, dc, &dw, &one, shared);
        free(one.x);
        free(dw.at);
    }
    value_of = noisy;
    free(got.x);
    free(w.at);
}

/* ---- the same tokens ---- */

/* The second norm gives its bias, whatever the token, so that all tokens choose the same experts. */
static double constant(const Params *p, const Param *t, int64_t row, int64_t col, double x)
{
    return t->id == P_LN2 ? 0 : t->id == P_LN2B ? rng_normal(22, (uint64_t)t->layer, (uint64_t)row)
                                                : noisy(p, t, row, col, x);
}

static void all_count(Sample *x, const Config *c, int64_t s)
{
    sample_text(x, c, s);
    for (int i = 0; i < c->seq_length; i++)
        x->mask[i] = 1;
}

/* Initial weights of the router of layer 1. */
static double router[8][64];
static double router_seen(const Params *p, const Param *t, int64_t row, int64_t col, double x)
{
    if (t->id == P_ROUTER && t->layer == 1)
        router[row][col] = x;
    return constant(p, t, row, col, x);
}

/* Fedus et al. 2021, eq. 4, and Zoph et al. 2022, eq. 5, of tokens that have all the same logits. */
static void check_balance(const Config *c, const Whole *w, const double *without, const double *with,
                          int topk, double aux, double z)
{
    double logit[4] = {0}, p[4], share[4], most = -HUGE_VAL, sum = 0, pushed = 0, worst = 0, largest_g = 0;
    int64_t H = c->hidden_size, at = place(c, w, 1, P_ROUTER, -1);
    for (int e = 0; e < 4; e++) {
        for (int64_t h = 0; h < H; h++)
            logit[e] += router[e][h] * rng_normal(22, 1, (uint64_t)h);
        most = fmax(most, logit[e]);
    }
    for (int e = 0; e < 4; e++)
        sum += exp(logit[e] - most);
    for (int e = 0; e < 4; e++) {
        int better = 0;
        for (int f = 0; f < 4; f++)
            better += logit[f] > logit[e];
        p[e] = exp(logit[e] - most) / sum;
        share[e] = better < topk ? 1.0 / topk : 0;
        pushed += share[e] * p[e];
    }
    for (int e = 0; e < 4; e++)
        for (int64_t h = 0; h < H; h++) {
            double want = 4 * aux * p[e] * (share[e] - pushed) + 2 * z * (most + log(sum)) * p[e];
            want *= rng_normal(22, 1, (uint64_t)h);
            worst = worse(worst, fabs(with[at + e * H + h] - without[at + e * H + h] - want));
            largest_g = fmax(largest_g, fabs(want));
        }
    CHECK(worst <= 1e-12 * largest_g && largest_g > 0.01,
          "the router's gradient is apart by %.2g of %.2g\n#   %s", worst, largest_g, current);
}

/* Compares the router's gradient with these losses less that without them. */
static void balance(const char *kind, int topk, double aux, double z, int g)
{
    char text[4][64];
    double *x[2];
    const Config *c = NULL;
    Whole w = {0};
    snprintf(text[0], sizeof *text, "moe_router_load_balancing_type=%s", kind);
    snprintf(text[1], sizeof *text, "moe_aux_loss_coeff=%g", aux);
    snprintf(text[2], sizeof *text, "moe_z_loss_coeff=%g", z);
    snprintf(text[3], sizeof *text, "moe_router_topk=%d", topk);
    text_source = all_count;
    for (int with = 0; with < 2; with++) {
        const char *more[] = {"num_moe_experts=4", "moe_layer_freq=[0, 1]", "moe_router_pre_softmax=true",
                              text[3], with ? text[0] : NULL, text[1], text[2], NULL};
        Words a;
        model(&a, more);
        if (g >= 0)
            grid_args(&a, g);
        c = configure(&a, world);
        free(w.at);
        w = whole_open(c);
        value_of = constant;
        x[with] = result_of(c, &w, 0).x;
        layouts++;
    }
    if (rank == 0) {       /* the router's weights, of one rank's run */
        Words a;
        const char *more[] = {"num_moe_experts=4", "moe_layer_freq=[0, 1]", "moe_router_pre_softmax=true",
                              text[3], NULL};
        char running[sizeof current];
        memcpy(running, current, sizeof current);
        model(&a, more);
        value_of = router_seen;
        free(result_of(configure(&a, 1), &w, 0).x);
        memcpy(current, running, sizeof current);
        check_balance(c, &w, x[0], x[1], topk, aux, z);
    }
    value_of = noisy;
    text_source = sample_text;
    free(x[0]);
    free(x[1]);
    free(w.at);
}

/* ---- the statistics of the routers ---- */

/* The statistics by their definitions, of the logits of one rank's microbatches. */
typedef struct {
    const Config *c;
    int64_t count[4][5];                   /* by layer: choices of each expert; those above the capacity */
    double balance[4], z[4], entropy[4];   /* sums over microbatches, and the entropy over tokens */
} Seen;

/* Adds n rows of logits: Fedus et al. 2021, eq. 4, over these rows, which are `share` of a microbatch. */
static void see_rows(Seen *s, int layer, const double *x, int64_t n, double share)
{
    const Config *c = s->c;
    int E = (int)c->num_moe_experts, k = (int)c->moe_router_topk, sigmoid = c->moe_router_score_function != 0;
    double score[4] = {0}, pairs[4] = {0};
    for (int64_t i = 0; i < n; i++, x += E) {
        double p[4], sum = 0, exps = 0;
        for (int e = 0; e < E; e++) {
            exps += exp(x[e]);
            sum += p[e] = sigmoid ? 1 / (1 + exp(-x[e])) : exp(x[e]);
        }
        for (int e = 0; e < E; e++) {
            int better = 0;
            for (int f = 0; f < E; f++)
                better += x[f] > x[e];
            pairs[e] += better < k;
            s->count[layer][e] += better < k;
            score[e] += p[e] / sum;
            s->entropy[layer] -= p[e] / sum * log(p[e] / sum);
        }
        s->z[layer] += c->moe_z_loss_coeff * log(exps) * log(exps) * share / (double)n;
    }
    for (int e = 0; e < E; e++) {
        double over = pairs[e] - ceil((double)(n * k) / E * c->moe_expert_capacity_factor);
        s->count[layer][4] += over > 0 ? (int64_t)over : 0;
        s->balance[layer] +=
            share * c->moe_aux_loss_coeff * E * pairs[e] / (double)(k * n) * score[e] / (double)n;
    }
}

static void see_logits(void *ctx, Model *m, int part, const char *where, Mat x)
{
    Seen *s = ctx;
    const Config *c = s->c;
    int seq = c->moe_router_load_balancing_type == MOE_ROUTER_LOAD_BALANCING_TYPE_SEQ_AUX_LOSS;
    int64_t parts = seq ? c->micro_batch_size : 1, n = x.rows / parts;
    for (int64_t i = 0; i < parts && !strcmp(where, "mlp.router"); i++)
        see_rows(s, m->params->part[part].layer, (const double *)x.p + i * n * x.cols, n, 1 / (double)parts);
}

/* The statistics of a step beside what a watch of the same step without recomputation sees. */
static void statistics(const char *kind, const char *score, const char *freq, const char *capacity)
{
    char text[3][64];
    static Run r;
    Seen seen = {0};
    Result res[2] = {{{0}}};
    const Config *c = NULL;
    snprintf(text[0], sizeof *text, "moe_router_load_balancing_type=%s", kind);
    snprintf(text[1], sizeof *text, "moe_router_score_function=%s", score);
    snprintf(text[2], sizeof *text, "moe_layer_freq=%s", freq);
    for (int again = 0; again < 2; again++) {
        const char *more[] = {"num_moe_experts=4", "moe_router_topk=2", "moe_aux_loss_coeff=0.3",
                              "moe_z_loss_coeff=0.1", text[0], text[1], text[2],
                              capacity ? capacity : text[2], again ? "recompute_granularity=full" : NULL,
                              "recompute_method=uniform", "recompute_num_layers=1", NULL};
        Words a;
        model(&a, more);
        c = configure(&a, 1);
        r = (Run){0};
        open_run(&r, c, RUN_GRADIENT, NULL);
        seen.c = c;
        if (!again)
            r.model.watch = (ModelWatch){.see = see_logits, .ctx = &seen};
        train(&r, 0, &res[again]);
        run_close(&r);
        layouts++;
    }
    double batches = (double)(c->global_batch_size / c->micro_batch_size), worst = 0;
    int row = 0, wrong = 0;
    int64_t dropped = 0;
    for (int layer = 0; layer < c->num_layers; layer++) {
        const double *sum = res[1].sum + row * ROUTER_SUMS;
        if (!config_is_moe(c, layer))
            continue;
        for (int e = 0; e < 5; e++)
            wrong += res[1].count[row * 5 + e] != seen.count[layer][e];
        dropped += seen.count[layer][4];
        worst = worse(worst, apart(sum[ROUTER_BALANCE], seen.balance[layer] / batches));
        worst = worse(worst, apart(sum[ROUTER_Z], seen.z[layer] / batches));
        worst = worse(worst, apart(sum[ROUTER_ENTROPY], seen.entropy[layer]));
        row++;
    }
    CHECK(row && row == res[1].counts / 5 && !wrong, "%d counts differ, of %d layers\n#   %s", wrong, row,
          current);
    CHECK((dropped > 0) == (capacity != NULL), "%lld pairs dropped\n#   %s", (long long)dropped, current);
    CHECK(worst <= 1e-13, "statistics are apart by %.2g\n#   %s", worst, current);
    CHECK(!memcmp(res[0].count, res[1].count, sizeof res[0].count) &&
              !memcmp(res[0].sum, res[1].sum, sizeof res[0].sum),
          "recomputation changes bits\n#   %s", current);
}

/* ---- edges ---- */

static void edges(void)
{
    static const struct { int constant; const char *more[7]; } cases[] = {
        {1, {"moe_router_topk=1", "moe_router_pre_softmax=true"}},
        {1, {"moe_router_topk=2", "moe_router_load_balancing_type=aux_loss", "moe_aux_loss_coeff=0.5"}},
        {0, {"moe_router_topk=4", "moe_router_load_balancing_type=seq_aux_loss", "moe_aux_loss_coeff=0.5"}},
        {0, {"moe_router_topk=2", "seq_length=4", "micro_batch_size=1"}},
        {1,
         {"moe_router_topk=2", "seq_length=4", "micro_batch_size=1", "activation=swiglu",
          "moe_layer_freq=2"}},
        {0, {"moe_router_topk=1", "seq_length=2", "micro_batch_size=1", "moe_router_pre_softmax=true"}},
        {0, {"moe_router_topk=1", "num_moe_experts=1", "moe_router_pre_softmax=true"}},
        {0, {"moe_router_topk=2", "moe_router_force=uniform"}},
        {0, {"moe_router_topk=3", "moe_router_force=zipf", "moe_aux_loss_coeff=0.5"}},
        {0, {"moe_router_topk=2", "moe_router_force=changing", "recompute_granularity=full",
             "recompute_method=uniform", "recompute_num_layers=1"}},
        {0, {"moe_router_topk=2", "moe_router_force=hot", "moe_router_pre_softmax=true"}},
        {1, {"moe_router_topk=2", "moe_expert_capacity_factor=1", "moe_aux_loss_coeff=0.5"}},
        {1, {"moe_router_topk=2", "moe_expert_capacity_factor=1", "moe_pad_expert_input_to_capacity=true"}},
        {0, {"moe_router_topk=2", "moe_expert_capacity_factor=0", "moe_aux_loss_coeff=0.5"}},
        {0, {"moe_router_topk=2", "moe_expert_capacity_factor=1e6", "moe_pad_expert_input_to_capacity=true"}},
        {0, {"moe_router_topk=4", "moe_expert_capacity_factor=0.6", "moe_token_drop_policy=position",
             "recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=1"}},
        {0, {"moe_router_topk=1", "num_moe_experts=1", "moe_router_pre_softmax=true",
             "moe_expert_capacity_factor=0.5", "moe_pad_expert_input_to_capacity=true"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int g = 0; g < GRIDS; g++) {
            Words a;
            const char *more[9] = {"num_moe_experts=4"};
            memcpy(more + 1, cases[i].more, sizeof cases[i].more);
            model(&a, more);
            grid_args(&a, g);
            if (!strcmp(cases[i].more[1], "num_moe_experts=1"))
                set_arg(&a, "expert_model_parallel_size=1");
            if ((g == 5 && strstr(cases[i].more[1], "seq_length")) ||
                (g == 3 && !strcmp(cases[i].more[1], "seq_length=2")))
                continue;              /* too few tokens for two chunks a context rank */
            value_of = cases[i].constant ? constant : noisy;
            const Config *c = configure(&a, world);
            Whole w = whole_open(c);
            Result got = result_of(c, &w, 0);
            layouts++;
            if (rank == 0) {
                Result one = result_of(config_for_one_rank(c), &w, 0);
                check(&w, c, &one, &got, 0);
                free(one.x);
            }
            value_of = noisy;
            free(got.x);
            free(w.at);
        }
}

/* Where moe_router_force is hot, the first experts get gradients and the others none. */
static void forced(void)
{
    const char *more[] = {"num_moe_experts=4", "moe_router_topk=2", "moe_router_force=hot", NULL};
    Words a;
    model(&a, more);
    const Config *c = configure(&a, world);
    Whole w = whole_open(c);
    Result got = result_of(c, &w, 0);
    layouts++;
    for (int e = 0; e < 4; e++) {
        double most = 0;
        for (int64_t i = 0; i < c->ffn_hidden_size * c->hidden_size; i++)
            most = worse(most, fabs(got.x[place(c, &w, 1, P_EFC1, e) + i]));
        CHECK(e < 2 ? most > 1e-6 : most == 0, "hot: expert %d's largest gradient is %.3g", e, most);
    }
    free(got.x);
    free(w.at);
}

/* A capacity that drops nothing gives the bits of none, padded the same numbers; one of 0 gives no expert a
 * gradient. */
static void limits(void)
{
    static const char *const factors[][3] = {{NULL},
                                             {"moe_expert_capacity_factor=2"},
                                             {"moe_expert_capacity_factor=2",
                                              "moe_pad_expert_input_to_capacity=true"},
                                             {"moe_expert_capacity_factor=0"}};
    double *x[4], most = 0;
    Whole w = {0};
    const Config *c = NULL;
    for (int i = 0; i < 4; i++) {
        const char *more[] = {"num_moe_experts=4", "moe_router_topk=2", "moe_aux_loss_coeff=0.1",
                              factors[i][0],       factors[i][1],       NULL};
        Words a;
        model(&a, more);
        c = configure(&a, world);
        free(w.at);
        w = whole_open(c);
        x[i] = result_of(c, &w, 0).x;
        layouts++;
    }
    int number;
    CHECK(!memcmp(x[0], x[1], (size_t)w.elems * sizeof **x), "a capacity that drops nothing changes bits");
    CHECK(furthest(&w, x[0], x[2], &number) <= 1e-12, "rows of zeros change tensor %d", number);
    for (int e = 0; e < 4; e++)
        for (int64_t i = 0; i < c->ffn_hidden_size * c->hidden_size; i++)
            most = worse(most, fabs(x[3][place(c, &w, 1, P_EFC1, e) + i]));
    CHECK(most == 0, "a capacity of 0: an expert's largest gradient is %.3g", most);
    for (int i = 0; i < 4; i++)
        free(x[i]);
    free(w.at);
}

/* ---- kept rows ---- */

/* A first round that F keeps gives the bits of one that D makes again. */
static void kept(int g)
{
    static const char *const again[] = {"recompute_granularity=none", "recompute_granularity=full",
                                        "recompute_granularity=selective"};
    for (int hot = 0; hot < 2; hot++) {        /* one expert has all rows: several rounds */
        Result got[3] = {0};
        Whole w = {0};
        for (int i = 0; i < 3; i++) {
            const char *more[] = {"num_moe_experts=4", "activation=swiglu", "moe_ffn_hidden_size=16",
                                  again[i],
                                  i == 1   ? "recompute_method=uniform"
                                  : i == 2 ? "recompute_modules=[moe]" : NULL,
                                  i == 1 ? "recompute_num_layers=1" : NULL, NULL};
            Words a;
            model(&a, more);
            if (g >= 0)
                grid_args(&a, g);
            value_of = hot ? constant : noisy;
            const Config *c = configure(&a, world);
            free(w.at);
            w = whole_open(c);
            got[i] = result_of(c, &w, 0);
            layouts++;
            CHECK(rank || (!memcmp(got[i].x, got[0].x, (size_t)w.elems * sizeof *got[i].x) &&
                           got[i].loss[0] == got[0].loss[0]), "other bits than of rows that are kept\n#   %s",
                  current);
        }
        for (int i = 0; i < 3; i++)
            free(got[i].x);
        free(w.at);
    }
    value_of = noisy;
}

int main(void)
{
    double start = now();
    layouts_open();
    for (int g = world == 1 ? -1 : 0; g < (world == 1 ? 0 : GRIDS); g++) {
        equal(0, g);
        equal(1, g);
        balance("aux_loss", 1, 0.5, 0, g);
        balance("seq_aux_loss", 2, 0.3, 0, g);
        balance("global_aux_loss", 1, 0.4, 0, g);
        balance("none", 2, 0, 0.2, g);
        balance("aux_loss", 3, 0.5, 0.1, g);
        kept(g);
    }
    forced();
    limits();
    if (world > 1)
        edges();
    else {
        statistics("aux_loss", "softmax", "1", NULL);
        statistics("seq_aux_loss", "softmax", "[0, 1]", NULL);
        statistics("seq_aux_loss", "sigmoid", "1", NULL);
        statistics("aux_loss", "sigmoid", "2", NULL);
        statistics("aux_loss", "softmax", "1", "moe_expert_capacity_factor=0.75");
    }
    say_apart();
    return layouts_close(start);
}
