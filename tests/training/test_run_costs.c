/* test_run_costs -- costs of a searched schedule: FLOPs against arithmetic by hand, and better lists
 * with them; FLOPs of the ranks that share a sequence beside each other */
#include "predict.h"
#include "run_costs.h"
#include "test.h"
#include <unistd.h>

static char path[] = "/tmp/test_run_costs.XXXXXX";

typedef struct {
    int64_t layers, hidden, heads, groups, ffn, seq, vocab, padded, micro;
    int gated, recompute, tp;
    const char *dtype, *layout;
    int stage[4];                      /* layers of each stage */
} Case;

static const Config *config_of(const Case *c)
{
    FILE *f = fopen(path, "w");
    fprintf(f,
            "model: {num_layers: %lld, hidden_size: %lld, num_attention_heads: %lld, num_query_groups: %lld, "
            "ffn_hidden_size: %lld, seq_length: %lld, vocab_size: %lld, activation: %s, "
            "position_embedding_type: rope, make_vocab_size_divisible_by: 64}\n",
            (long long)c->layers, (long long)c->hidden, (long long)c->heads, (long long)c->groups,
            (long long)c->ffn, (long long)c->seq, (long long)c->vocab, c->gated ? "swiglu" : "gelu");
    fprintf(f,
            "data: {tokenizer_type: none}\ntrain: {micro_batch_size: %lld, global_batch_size: %lld}\n"
            "precision: {params_dtype: %s}\nparallel: {pipeline_model_parallel_size: 4, pipeline_schedule: "
            "zb-auto, tensor_model_parallel_size: %d, pipeline_model_parallel_layout: '%s', "
            "data_parallel_sharding_strategy: optim_grads_params}\n",
            (long long)c->micro, (long long)c->micro * 24, c->dtype, c->tp, c->layout);
    if (c->recompute)
        fprintf(
            f,
            "recompute: {recompute_granularity: full, recompute_method: uniform, recompute_num_layers: 1}\n");
    fclose(f);
    return config_load(path, 0, NULL, 8 * c->tp, USE_MODEL);
}

/* One rank's FLOPs by hand, of F, D and W (rows) of each stage; tensor ranks have equal shares here. */
static void by_hand(const Case *c, double out[3][4])
{
    double T = (double)(c->micro * c->seq), dim = (double)(c->hidden / c->heads), H = (double)c->hidden,
           pairs = 0;
    double qkv = dim * (double)(c->heads + 2 * c->groups),
           weights = H * (qkv + H) + H * (double)c->ffn * (c->gated ? 3 : 2);
    for (int64_t q = 0; q < c->seq; q++)
        pairs += (double)(q + 1);
    pairs *= (double)(c->micro * c->heads);
    for (int s = 0; s < 4; s++) {
        double product = c->stage[s] * 2 * T * weights, attention = c->stage[s] * 4 * pairs * dim;
        out[0][s] = (product + attention) / c->tp;
        double unread = c->stage[s] * 2 * T * H * (double)c->ffn / c->tp; /* outputs, not recomputed */
        out[1][s] = (product + 2.5 * attention) / c->tp + (c->recompute ? out[0][s] - unread : 0);
        out[2][s] = product / c->tp;
    }
    out[1][3] += 6 * T * H * (double)c->padded / c->tp; /* the head: logits and both of its products, in D */
}

/* Time of a step whose lists are generated with the costs `with` and simulated with the costs `by`. */
static double step(PipeShape s, const double *const with[3], const double *const by[3])
{
    ScheduleSet set;
    Simulation sim;
    memcpy(s.cost, with, sizeof s.cost);
    schedules_open(&set, &s);
    memcpy(set.shape.cost, by, sizeof s.cost);
    simulate(&set, &sim, 0);
    double makespan = sim.makespan;
    simulation_close(&sim);
    schedules_close(&set);
    return makespan;
}

static void check(const Case *c, int better)
{
    const Config *cfg = config_of(c);
    static const double *const equal[3];
    double want[3][4], sum = 0;
    Run r;
    by_hand(c, want);
    for (int i = 0; i < 12; i++)
        sum += want[i / 4][i % 4];
    run_plan(&r, cfg, RUN_TRAIN, 0, 0);
    for (int op = 0; op < 3; op++)
        for (int s = 0; s < 4; s++)
            CHECK(fabs(r.plan.shape.cost[op][s] - 12 * want[op][s] / sum) < 1e-12,
                  "%s, stage %d, %c: %.15g, by hand %.15g", c->layout, s, "FDW"[op], r.plan.shape.cost[op][s],
                  12 * want[op][s] / sum);
    PipeShape shape = r.plan.shape;
    shape.m = r.plan.lists[0].m;
    double own = r.plan.sim.makespan, uniform = step(shape, equal, r.plan.shape.cost);
    printf("# %s: step %.6g, %.6g with lists for equal times\n", c->layout, own, uniform);
    CHECK(shape.m == 12, "%d microbatches", shape.m);
    CHECK(own <= uniform && (!better || own < 0.999 * uniform), "%s: %.6g, %.6g with lists for equal times",
          c->layout, own, uniform);
    run_plan_close(&r);
}

/* Predictions and plans of several ranks are the same with shared lists as with a list for each rank. */
static void check_lists(const Case *c)
{
    const Config *cfg = config_of(c);
    Placement pl;
    StepLists lists;
    placement_open(&pl, cfg);
    step_lists_open(&lists, cfg, &pl);
    for (int rank = 0; rank < cfg->world; rank += 3) {
        Run own, given;
        run_plan(&own, cfg, RUN_TRAIN, 0, rank);
        run_plan_over(&given, cfg, RUN_TRAIN, 0, rank, &(Rehearsal){.lists = &lists});
        const Schedule *a = &own.plan.lists[0].train, *b = &given.plan.lists[0].train;
        CHECK(a->n == b->n && !memcmp(a->list, b->list, (size_t)a->n * sizeof *a->list),
              "rank %d has other lists", rank);
        CHECK(own.plan.memory.total == given.plan.memory.total, "rank %d: %lld and %lld bytes", rank,
              (long long)own.plan.memory.total, (long long)given.plan.memory.total);
        run_plan_close(&own);
        run_plan_close(&given);
    }
    step_lists_close(&lists);
    placement_close(&pl);
}

/* ---- context parallelism ---- */

static double flops_of(const Config *c, int rank)
{
    Placement pl;
    StepLists lists;
    placement_open(&pl, c);
    step_lists_open(&lists, c, &pl);
    double x = run_flops(c, rank, &lists);
    step_lists_close(&lists);
    placement_close(&pl);
    return x;
}

/* The ranks that share a sequence have equally many FLOPs under a causal mask, and together those of one
 * rank. With a window the first positions see less than the others, and the rank that has them. */
static void check_balance(int cp, const char *kind, int window)
{
    FILE *f = fopen(path, "w");
    fprintf(f, "model: {num_layers: 2, hidden_size: 64, num_attention_heads: 8, seq_length: 768, vocab_size: "
            "256, window_size: %d}\ndata: {tokenizer_type: none}\ntrain: {micro_batch_size: 2, "
            "global_batch_size: 4}\nparallel: {cp_comm_type: [%s], context_parallel_size: %d",
            window ? 100 : 0, kind, cp);
    if (!strcmp(kind, "a2a+p2p"))
        fprintf(f, ", hierarchical_context_parallel_sizes: [%d, 2]", cp / 2);
    fprintf(f, "}\n");
    fclose(f);
    char *alone[] = {"context_parallel_size=1", "hierarchical_context_parallel_sizes=[]"};
    double sum = 0, most = 0, least = HUGE_VAL, one = flops_of(config_load(path, 2, alone, 1, USE_MODEL), 0);
    const Config *c = config_load(path, 0, NULL, cp, USE_MODEL);
    for (int rank = 0; rank < cp; rank++) {
        double x = flops_of(c, rank);
        sum += x;
        most = fmax(most, x);
        least = fmin(least, x);
    }
    CHECK(window || most <= 1.01 * least, "%s over %d: ranks have %.6g to %.6g FLOPs", kind, cp, least, most);
    CHECK(fabs(sum / one - 1) < 1e-12, "%s over %d: %.9g FLOPs together, one rank has %.9g", kind, cp, sum,
          one);
}

static double flops_of_window(int window)
{
    char *one[] = {xasprintf("window_size=%d", window)};
    double x = flops_of(config_load(path, 1, one, 1, USE_MODEL), 0);
    free(one[0]);
    return x;
}

/* A query sees as many keys as the window holds, or as stand before it: the mean of these, not the window
 * where that is less than the mean. So with a window of half the sequence attention takes 3/4, not all. */
static void check_window(void)
{
    enum { S = 512 };
    static const int windows[] = {2, 100, S / 4, S / 2, S - 1, S, 2 * S};
    FILE *f = fopen(path, "w");
    fprintf(f, "model: {num_layers: 2, hidden_size: 64, num_attention_heads: 8, seq_length: %d, vocab_size: "
            "256}\ndata: {tokenizer_type: none}\ntrain: {micro_batch_size: 2, global_batch_size: 4}\n", S);
    fclose(f);
    double all = flops_of_window(0), least = flops_of_window(1);   /* S (S + 1) / 2 pairs; S pairs */
    for (size_t i = 0; i < sizeof windows / sizeof *windows; i++) {
        double pairs = 0, share = (flops_of_window(windows[i]) - least) / (all - least);
        for (int q = 0; q < S; q++)
            pairs += q + 1 < windows[i] ? q + 1 : windows[i];
        double want = (pairs - S) / (S * (S + 1) / 2.0 - S);
        CHECK(fabs(share - want) < 1e-12, "window %d of %d: %.6f of attention, by hand %.6f", windows[i], S,
              share, want);
        CHECK(windows[i] != S / 2 || fabs(pairs / (S * (S + 1) / 2.0) - 0.75) < 1e-3, "%g pairs", pairs);
    }
}

/* FLOPs of a token by hand: layers 0 and 2 of three have experts, of which a token visits two of five. */
static void check_active(void)
{
    FILE *f = fopen(path, "w");
    fputs("model: {num_layers: 3, hidden_size: 32, num_attention_heads: 4, num_query_groups: 2, "
          "ffn_hidden_size: 96, seq_length: 16, vocab_size: 100, activation: swiglu, add_bias_linear: "
          "false}\ndata: {tokenizer_type: none}\n"
          "moe: {num_moe_experts: 5, moe_router_topk: 2, moe_ffn_hidden_size: 24, moe_layer_freq: 2, "
          "moe_shared_expert_intermediate_size: 40}\n", f);
    fclose(f);
    const Config *c = config_load(path, 0, NULL, 1, USE_MODEL);
    double attention = 2 * 32 * (32 + 2 * 16 + 32) + 4 * 16 * 32, dense = 2 * 32 * 3 * 96.0;
    double experts = 2 * 32 * (5 + 2 * 3 * 24 + 3 * 40.0);
    double want = 3 * (3 * attention + dense + 2 * experts + 2 * 32 * 100), got = run_flops_per_token(c);
    CHECK(got == want, "%.0f FLOPs of a token, %.0f by hand", got, want);
    for (int window = 0; window < 32; window += 4) {       /* a token sees no key outside of its window */
        Config narrow = *c;
        narrow.window_size = window;
        int keys = window && window < 16 ? window : 16;
        want = got - 3 * 3 * 4.0 * (16 - keys) * 32;
        CHECK(run_flops_per_token(&narrow) == want, "window %d: %.0f FLOPs of a token, %.0f by hand", window,
              run_flops_per_token(&narrow), want);
    }
}

/* Mixtral 8x7B: its published 46.7 billion parameters, 12.9 of them active, and a token's FLOPs by hand. */
static void check_mixtral(void)
{
    FILE *f = fopen(path, "w");
    fputs("model: {num_layers: 32, hidden_size: 4096, ffn_hidden_size: 14336, num_attention_heads: 32, "
          "num_query_groups: 8, seq_length: 4096, vocab_size: 32000, position_embedding_type: rope, "
          "normalization: RMSNorm, activation: swiglu, add_bias_linear: false, "
          "untie_embeddings_and_output_weights: true}\ndata: {tokenizer_type: none}\n"
          "moe: {num_moe_experts: 8, moe_router_topk: 2}\n", f);
    fclose(f);
    const Config *c = config_load(path, 0, NULL, 1, USE_MODEL);
    int64_t H = 4096, attention = H * (H + 2 * 1024 + H), expert = 3 * H * 14336, V = 32000;
    int64_t rest = 32 * (attention + 8 * H + 2 * H) + 2 * V * H + H;
    int64_t all = rest + 32 * 8 * expert, active = rest + 32 * 2 * expert;
    double flops = 6.0 * (double)(32 * (attention + 8 * H + 2 * expert) + V * H) + 12.0 * 32 * 4096 * 4096;
    CHECK(all == 46702792704 && active == 12879925248, "%lld, %lld", (long long)all, (long long)active);
    CHECK(params_count(c) == all && params_active(c) == active, "%lld parameters, %lld active",
          (long long)params_count(c), (long long)params_active(c));
    CHECK(run_flops_per_token(c) == flops, "%.0f FLOPs of a token, %.0f by hand", run_flops_per_token(c),
          flops);
}

/* Experts shared out over ranks: a rank's arithmetic at balance is what it is with all experts on it, also
 * where forward and backward run by turns. */
static void check_experts(void)
{
    FILE *f = fopen(path, "w");
    fputs("model: {num_layers: 2, hidden_size: 64, num_attention_heads: 8, seq_length: 64, vocab_size: 256}\n"
          "data: {tokenizer_type: none}\ntrain: {micro_batch_size: 2, global_batch_size: 32}\n"
          "moe: {num_moe_experts: 4, moe_ffn_hidden_size: 96}\n", f);
    fclose(f);
    char *ep[] = {"expert_model_parallel_size=4", "overlap_moe_expert_parallel_comm=true"};
    double one = flops_of(config_load(path, 0, NULL, 4, USE_MODEL), 0);
    double share = flops_of(config_load(path, 1, ep, 4, USE_MODEL), 0),
           turns = flops_of(config_load(path, 2, ep, 4, USE_MODEL), 0);
    CHECK(turns == share, "%.9g FLOPs by turns, %.9g without", turns, share);
    CHECK(fabs(share / one - 1) < 1e-12, "%.9g FLOPs with a fourth of the experts, %.9g with all", share,
          one);
}

/* Two stages of one layer, of which one has experts: three times the products of the other's feed-forward. */
static void check_mixed(void)
{
    FILE *f = fopen(path, "w");
    fputs("model: {num_layers: 4, hidden_size: 64, num_attention_heads: 8, seq_length: 64, vocab_size: 256, "
          "add_bias_linear: false}\n"
          "data: {tokenizer_type: none}\ntrain: {micro_batch_size: 2, global_batch_size: 32}\n"
          "moe: {num_moe_experts: 4, moe_ffn_hidden_size: 256, moe_router_topk: 3, "
          "moe_layer_freq: [0, 1, 0, 1]}\n"
          "parallel: {pipeline_model_parallel_size: 4, pipeline_schedule: zb-auto}\n", f);
    fclose(f);
    const Config *cfg = config_load(path, 0, NULL, 4, USE_MODEL);
    Placement pl;
    placement_open(&pl, cfg);
    PipeShape s = run_shape(cfg, &pl);
    CHECK(s.cost[0][1] > 1.5 * s.cost[0][2], "F of a layer with experts %g, without %g", s.cost[0][1],
          s.cost[0][2]);
    run_shape_close(&s);
    placement_close(&pl);
}

int main(void)
{
    static const Case cases[] = {
        {8, 64, 4, 4, 256, 32, 1024, 1024, 2, 0, 0, 1, "fp32", "Ett|tt|tt|ttL", {2, 2, 2, 2}},
        {8, 64, 4, 2, 192, 16, 1000, 1024, 1, 1, 0, 1, "bf16", "Ettt|tt|ttt|L", {3, 2, 3, 0}},
        {5, 32, 4, 4, 128, 24, 256, 256, 3, 0, 1, 1, "fp64", "E|tt|t|ttL", {0, 2, 1, 2}},
        {6, 64, 8, 4, 128, 32, 500, 512, 1, 1, 1, 2, "fp32", "Ett|t|tt|tL", {2, 1, 2, 1}},
    };
    int f = mkstemp(path);
    close(f);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check(&cases[i], i >= 2);
    check_lists(&cases[0]);
    static const char *const kinds[] = {"p2p", "allgather", "a2a", "a2a+p2p"};
    for (int cp = 2; cp <= 8; cp *= 2)
        for (int k = 0; k < 4; k++) {
            check_balance(cp, kinds[k], 0);
            check_balance(cp, kinds[k], 1);
        }
    check_active();
    check_window();
    check_mixtral();
    check_experts();
    check_mixed();
    unlink(path);
    return test_end();
}
