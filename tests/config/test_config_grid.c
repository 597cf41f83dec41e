/* test_config_grid -- which layouts are legal, by brute force over every world of up to 16 ranks
 *
 * Also every pair of settings that is refused. A layout that passes must be placed, scheduled, written,
 * read again and compared with one rank. */
#define _GNU_SOURCE
#include "config_text.h"
#include "grid.h"
#include "placement.h"
#include "run.h"
#include "schedule.h"

/* Joins args and more. A key of both comes from `more` alone, because a key may be given once. */
static const char *with(const char *args, const char *more)
{
    char *copy = text_copy(args);
    const char *all = more;
    for (char *a; (a = strsep(&copy, "|"));) {
        const char *key = textf("|%.*s=", (int)strcspn(a, "="), a);
        if (*a && !strstr(textf("|%s", more), key))
            all = textf("%s|%s", a, all);
    }
    return all;
}

/* ---- every refused pair ---- */

/* One entry for each refused pair (a, b), in any order. args: break this pair. mend: arguments that replace
 * those of args and make the configuration legal. others: bool: other rules may report args too. */
#define BLOCKS "hidden_size=64|ffn_hidden_size=64|kv_channels=32"
#define TURNS "num_moe_experts=4|expert_model_parallel_size=2|overlap_moe_expert_parallel_comm=true"
static const struct { const char *a, *b, *args, *mend; int world, others;
} refused[] = {
    {"attention_backend", "device", "attention_backend=fused|params_dtype=bf16|attention_dropout=0",
     "device=cuda", 1, 0},
    {"attention_backend", "params_dtype", "attention_backend=fused|device=cuda|attention_dropout=0",
     "params_dtype=bf16", 1, 0},
    {"attention_backend", "attention_dropout",
     "attention_backend=fused|device=cuda|params_dtype=bf16|attention_dropout=0.1", "attention_dropout=0", 1,
     0},
    {"attention_backend", "reset_attention_mask",
     "attention_backend=fused|device=cuda|params_dtype=bf16|attention_dropout=0|reset_attention_mask=true",
     "reset_attention_mask=false", 1, 0},
    {"attention_backend", "context_parallel_size",
     "attention_backend=fused|device=cuda|params_dtype=bf16|attention_dropout=0|context_parallel_size=2",
     "context_parallel_size=1", 2, 0},
    {"deterministic_mode", "sdc_rerun", "deterministic_mode=false|sdc_rerun=true|device=cuda",
     "deterministic_mode=true", 1, 0},
    {"deterministic_mode", "sdc_rerun", "deterministic_mode=false|sdc_rerun=true|device=cuda",
     "sdc_rerun=false", 1, 0},
    {"deterministic_mode", "sdc_rerun", "deterministic_mode=false|sdc_rerun=true|device=cuda",
     "attention_backend=flash", 1, 0},
    {"deterministic_mode", "sdc_rerun", "deterministic_mode=false|sdc_rerun=true|device=cuda", "device=cpu",
     1, 0},
    {"fp8", "params_dtype",
     "fp8=hybrid|hidden_size=64|ffn_hidden_size=64|kv_channels=16|seq_length=64",
     "params_dtype=bf16", 1, 0},
    {"fp8", "fp8_recipe",
     "fp8=e4m3|params_dtype=bf16|hidden_size=64|ffn_hidden_size=64|kv_channels=32|seq_length=64",
     "fp8_recipe=mxfp8", 1, 0},
    {"logits_dtype", "params_dtype", "logits_dtype=bf16", "params_dtype=bf16", 1, 0},
    {"main_grads_dtype", "params_dtype", "main_grads_dtype=bf16", "params_dtype=bf16", 1, 0},
    {"main_grads_dtype", "optimizer", "main_grads_dtype=bf16|params_dtype=bf16|optimizer=lamb",
     "optimizer=adam", 1, 0},
    {"exp_avg_dtype", "params_dtype", "exp_avg_dtype=bf16|params_dtype=fp64|" BLOCKS, "params_dtype=bf16", 1,
     0},
    {"exp_avg_sq_dtype", "params_dtype", "exp_avg_sq_dtype=fp8|params_dtype=fp64|" BLOCKS,
     "params_dtype=fp32", 1, 0},
    {"exp_avg_sq_dtype", "optimizer", "exp_avg_sq_dtype=fp8|optimizer=sgd|" BLOCKS, "optimizer=lamb", 1, 0},
    {"grad_reduce_in_bf16", "params_dtype", "grad_reduce_in_bf16=true", "params_dtype=bf16", 1, 0},
    {"overlap_param_gather", "data_parallel_sharding_strategy",
     "overlap_param_gather=true|overlap_grad_reduce=true", "data_parallel_sharding_strategy=optim", 2, 0},
    {"overlap_param_gather", "overlap_grad_reduce",
     "overlap_param_gather=true|data_parallel_sharding_strategy=optim", "overlap_grad_reduce=true", 2, 0},
    {"num_distributed_optimizer_instances", "data_parallel_sharding_strategy",
     "num_distributed_optimizer_instances=2", "data_parallel_sharding_strategy=optim_grads_params", 4, 0},
    {"expert_model_parallel_size", "num_moe_experts", "expert_model_parallel_size=2",
     "expert_model_parallel_size=1", 2, 0},
    {"pipeline_schedule_file", "pipeline_schedule", "pipeline_model_parallel_size=2|pipeline_schedule_file=x",
     "pipeline_schedule_file=null", 2, 0},
    {"pipeline_schedule_file", "pipeline_schedule", "pipeline_model_parallel_size=2|pipeline_schedule=custom",
     "pipeline_schedule=gpipe", 2, 1},
    {"pipeline_max_activations", "pipeline_schedule",
     "pipeline_model_parallel_size=2|pipeline_schedule=zb-h1|pipeline_max_activations=3",
     "pipeline_max_activations=null", 2, 0},
    {"overlap_moe_expert_parallel_comm", "pipeline_schedule",
     TURNS "|pipeline_model_parallel_size=2|pipeline_schedule=zb-h1", "pipeline_schedule=1f1b", 4, 0},
    {"overlap_moe_expert_parallel_comm", "cpu_offloading_num_layers", TURNS "|cpu_offloading_num_layers=1",
     "cpu_offloading_num_layers=0", 2, 0},
    {"overlap_moe_expert_parallel_comm", "data_parallel_sharding_strategy",
     TURNS "|data_parallel_sharding_strategy=optim_grads", "data_parallel_sharding_strategy=optim", 2, 0},
    {"step_batch_size_schedule", "global_batch_size", "step_batch_size_schedule='0:4'|global_batch_size=4",
     "global_batch_size=null", 2, 0},
    {"min_world", "global_batch_size", "min_world=1", "global_batch_size=4", 2, 0},
    {"min_world", "global_batch_size", "min_world=1", "step_batch_size_schedule='0:4'", 2, 0},
    {"train_samples", "train_iters", "train_samples=100", "train_iters=null", 1, 0},
    {"lr_decay_samples", "train_samples", "lr_decay_samples=100", "train_iters=null|train_samples=100", 1, 0},
    {"lr_wsd_decay_samples", "train_samples",
     "lr_decay_style=WSD|lr_wsd_decay_iters=2|lr_wsd_decay_samples=10", "lr_wsd_decay_samples=null", 1, 0},
    {"lr_warmup_samples", "train_samples", "lr_warmup_samples=10", "train_iters=null|train_samples=100", 1,
     0},
    {"lr_decay_iters", "train_samples", "lr_decay_iters=10|train_iters=null|train_samples=100",
     "lr_decay_iters=null", 1, 0},
    {"lr_wsd_decay_iters", "train_samples",
     "lr_decay_style=WSD|lr_wsd_decay_iters=2|lr_wsd_decay_samples=10|train_iters=null|train_samples=100",
     "lr_wsd_decay_iters=null", 1, 0},
    {"lr_warmup_iters", "train_samples", "lr_warmup_iters=1|train_iters=null|train_samples=100",
     "lr_warmup_iters=0", 1, 0},
    {"lr_wsd_decay_iters", "lr_decay_style", "lr_decay_style=WSD", "lr_wsd_decay_iters=2", 1, 0},
    {"lr_wsd_decay_iters", "lr_decay_style", "lr_wsd_decay_iters=2", "lr_decay_style=WSD", 1, 0},
    {"lr_wsd_decay_samples", "lr_decay_style", "lr_decay_style=WSD|train_iters=null|train_samples=100",
     "lr_wsd_decay_samples=2", 1, 0},
    {"lr_warmup_fraction", "lr_warmup_iters", "lr_warmup_fraction=0.1|lr_warmup_iters=1", "lr_warmup_iters=0",
     1, 0},
    {"lr_warmup_fraction", "lr_warmup_samples",
     "lr_warmup_fraction=0.1|lr_warmup_samples=1|train_iters=null|train_samples=100", "lr_warmup_samples=0",
     1, 0},
    {"lr_base_batch_size", "lr_scaling", "lr_base_batch_size=8", "lr_scaling=sqrt", 1, 0},
    {"lr_base_batch_size", "lr_scaling", "lr_scaling=linear", "lr_base_batch_size=8", 1, 0},
    {"sgd_nesterov", "optimizer", "sgd_nesterov=true", "optimizer=sgd", 1, 0},
    {"sgd_nesterov", "sgd_momentum", "sgd_nesterov=true|optimizer=sgd|sgd_momentum=0", "sgd_momentum=0.5", 1,
     0},
    {"optimizer_offload_fraction", "optimizer_cpu_offload", "optimizer_offload_fraction=0.5",
     "optimizer_cpu_offload=true", 1, 0},
    {"eval_interval", "split", "eval_interval=5|split='1'", "split='8,2'", 1, 0},
    {"train_data_path", "data_path", "train_data_path=a", "data_path=[]", 1, 0},
    {"valid_data_path", "data_path", "valid_data_path=a", "data_path=[]|train_data_path=b", 1, 0},
    {"test_data_path", "data_path", "test_data_path=a", "data_path=[]|train_data_path=b", 1, 0},
    {"train_data_path", "split", "data_path=[]|train_data_path=a|split='8,2'", "split=null", 1, 0},
    {"valid_data_path", "split", "data_path=[]|train_data_path=a|valid_data_path=b|split='8,2'", "split=null",
     1, 1},
    {"test_data_path", "split", "data_path=[]|train_data_path=a|test_data_path=b|split='8,2'", "split=null",
     1, 1},
    {"recompute_method", "recompute_granularity", "recompute_method=block", "recompute_method=none", 1, 0},
    {"recompute_method", "recompute_granularity", "recompute_granularity=full|recompute_num_layers=1",
     "recompute_method=uniform", 1, 0},
    {"recompute_num_layers", "recompute_granularity", "recompute_num_layers=1", "recompute_num_layers=null",
     1, 0},
    {"recompute_num_layers", "recompute_granularity", "recompute_granularity=full|recompute_method=block",
     "recompute_num_layers=1", 1, 0},
    {"recompute_modules", "recompute_granularity", "recompute_modules=[mlp]",
     "recompute_granularity=selective", 1, 0},
    {"cpu_offloading_num_layers", "recompute_granularity",
     "cpu_offloading_num_layers=1|recompute_granularity=full|recompute_method=uniform|recompute_num_layers=1",
     "cpu_offloading_num_layers=0", 1, 0},
    {"loss_scale", "params_dtype", "loss_scale=8", "params_dtype=fp16", 1, 0},
    {"finetune", "load", "finetune=true", "load=x", 1, 0},
    {"save_retain_interval", "save_interval", "save_retain_interval=4", "save_interval=2", 1, 0},
};

/* Ways to split layers over stages. set: value that is legal alone on two pipeline ranks; unset: value
 * that turns the way off. Ways of one kind go together. */
static const struct { const char *key, *set, *unset; int kind; } ways[] = {
    {"pipeline_model_parallel_layout", "Et/t*3L", "null", 0},
    {"num_layers_in_first_pipeline_stage", "1", "null", 1},
    {"num_layers_in_last_pipeline_stage", "3", "null", 1},
    {"account_for_embedding_in_pipeline_split", "true", "false", 2},
    {"account_for_loss_in_pipeline_split", "true", "false", 2},
    {"pipeline_balance", "cost", "count", 3}};
enum { WAYS = sizeof ways / sizeof *ways };

static int row_of(const char *a, const char *b)
{
    for (int i = 0; i < pair_count; i++)
        if (!strcmp(options[pairs[i].a].key, a) && !strcmp(options[pairs[i].b].key, b))
            return i;
    return -1;
}

/* The number of violations that report the pair (a, b). */
static int told(const Check *k, const char *a, const char *b)
{
    int n = 0;
    for (int i = 0; i < k->n; i++) {
        const char *t = k->list[i].text;
        n += !strncmp(t, a, strlen(a)) && t[strlen(a)] == ':' &&
             (strstr(t, textf(" does not go with %s ", b)) ||
              strstr(t, textf(" needs %s, which is absent", b)) || strstr(t, textf(" absent beside %s ", b)));
    }
    return n;
}

static void check_pair(const char *a, const char *b, const char *args, const char *mend, int world,
                       int others, uint8_t *seen)
{
    int row = row_of(a, b);
    Check k = resolve(args, world, USE_TRAIN), mended = resolve(with(args, mend), world, USE_TRAIN);
    CHECK(row >= 0, "no row of %s and %s", a, b);
    CHECK(told(&k, a, b) == 1 && (others || k.n == 1), "%s: %s", args, listing(&k));
    CHECK(!mended.n, "%s|%s: %s", args, mend, listing(&mended));
    if (row >= 0)
        seen[row] = 1;
}

static void test_pairs(void)
{
    uint8_t seen[256] = {0};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        check_pair(refused[i].a, refused[i].b, refused[i].args, refused[i].mend, refused[i].world,
                   refused[i].others, seen);
    for (int i = 0; i < WAYS; i++)
        for (int j = i + 1; j < WAYS; j++) {
            const char *both =
                textf("num_layers=4|%s=%s|%s=%s", ways[i].key, ways[i].set, ways[j].key, ways[j].set);
            int odd = (ways[i].kind == 2) !=
                      (ways[j].kind == 2); /* an end counts as a layer: 3 + 1 divide by 2, 4 + 1 do not */
            if (ways[i].kind != ways[j].kind)
                check_pair(ways[i].key, ways[j].key, with(both, "pipeline_model_parallel_size=2"),
                           textf("%s=%s%s", ways[j].key, ways[j].unset,
                                 odd && ways[i].kind == 2 ? "|num_layers=3" : ""), 2,
                           0, seen);
            Check alone = resolve(both, 1, USE_TRAIN);
            CHECK(!alone.n, "%s on one rank: %s", both, listing(&alone));
        }
    for (int i = 0; i < pair_count; i++)
        CHECK(seen[i], "no test of %s and %s", options[pairs[i].a].key, options[pairs[i].b].key);
}

/* ---- which layouts are legal: brute force ---- */

typedef struct {
    int world, tp, pp, v, v_given, schedule, group, layers, heads, kv, ffn, seq, sp, micro, batch, sharding,
        instances;
    int reduce, gather;
} Layout;

/* Whether some x >= 1 makes a * x == b. */
static int divides(int a, int b)
{
    for (int x = 1; a * x <= b; x++)
        if (a * x == b)
            return 1;
    return 0;
}

/* Whether the schedule takes v chunks a rank: 1, exactly 2 for the V shape, 2 and more for interleaved. */
static int chunks_fit(const Layout *l)
{
    switch (l->schedule) {
    case PIPELINE_SCHEDULE_GPIPE:
    case PIPELINE_SCHEDULE_1F1B:
    case PIPELINE_SCHEDULE_ZB_H1:
    case PIPELINE_SCHEDULE_ZB_H2:
    case PIPELINE_SCHEDULE_ZB_AUTO:
        return l->v == 1;
    case PIPELINE_SCHEDULE_ZB_V: case PIPELINE_SCHEDULE_V_HALF: case PIPELINE_SCHEDULE_V_MIN:
    case PIPELINE_SCHEDULE_DUALPIPEV:
        return l->v == 2;
    case PIPELINE_SCHEDULE_INTERLEAVED:
        return l->v >= 2;
    default:
        return 0;
    }
}

static int legal(const Layout *l)
{
    int dp = 0;
    for (int d = 1; d <= l->world; d++)
        dp = l->tp * l->pp * d == l->world ? d : dp;
    if (!dp || !divides(l->tp, l->heads) || !divides(l->kv, l->heads) || !divides(l->tp, l->ffn) ||
        !(divides(l->tp, l->kv) || divides(l->kv, l->tp)) || (l->sp && !divides(l->tp, l->seq)))
        return 0;
    int m = 0;
    for (int left = l->batch; left > 0; left -= l->micro * dp, m++)
        if (left < l->micro * dp)
            return 0;
    if (dp > 1 && (!divides(l->instances, dp) || (l->instances > 1 && l->sharding == 0) ||
                   (l->gather && (l->sharding == 0 || !l->reduce))))
        return 0;
    if (l->pp == 1)
        return 1;
    if (!chunks_fit(l) || !divides(l->pp * l->v, l->layers))
        return 0;
    if (l->schedule == PIPELINE_SCHEDULE_DUALPIPEV)
        return m >= l->pp + l->pp;
    if (l->schedule != PIPELINE_SCHEDULE_INTERLEAVED)
        return 1;
    if (l->group < l->pp || l->group > m)
        return 0;
    for (int left = m; left > 0; left -= l->group) /* a last, shorter group must still fill the pipeline */
        if (left < l->group && left < l->pp)
            return 0;
    return 1;
}

static const char *spelled(const Layout *l)
{
    static const char *const strategy[] = {"no_shard", "optim", "optim_grads", "optim_grads_params"};
    return textf(
        "tensor_model_parallel_size=%d|pipeline_model_parallel_size=%d|num_virtual_stages_per_pipeline_rank=%"
        "s|pipeline_schedule=%s|microbatch_group_size_per_vp_stage=%d|num_layers=%d|num_attention_heads=%d|"
        "num_query_groups=%d|kv_channels=4|ffn_hidden_size=%d|seq_length=%d|sequence_parallel=%s|"
        "micro_batch_size=%d|global_batch_size=%d|data_parallel_sharding_strategy=%s|"
        "num_distributed_optimizer_instances=%d|overlap_grad_reduce=%s|overlap_param_gather=%s",
        l->tp, l->pp, l->v_given ? textf("%d", l->v) : "null",
        options[OPT_pipeline_schedule].choices[l->schedule], l->group, l->layers, l->heads, l->kv, l->ffn,
        l->seq, l->sp ? "true" : "false", l->micro, l->batch, strategy[l->sharding], l->instances,
        l->reduce ? "true" : "false", l->gather ? "true" : "false");
}

static int one_of(const int *list, int n) { return list[draw((uint32_t)n)]; }

/* A layout of random sizes: small numbers with many divisors, so that many layouts are legal. */
static Layout random_layout(int world, int tp, int pp)
{
    static const int schedules[] = {
        PIPELINE_SCHEDULE_GPIPE,       PIPELINE_SCHEDULE_1F1B,        PIPELINE_SCHEDULE_ZB_H1,
        PIPELINE_SCHEDULE_ZB_H2,       PIPELINE_SCHEDULE_INTERLEAVED, PIPELINE_SCHEDULE_INTERLEAVED,
        PIPELINE_SCHEDULE_INTERLEAVED, PIPELINE_SCHEDULE_ZB_V,        PIPELINE_SCHEDULE_V_HALF,
        PIPELINE_SCHEDULE_V_MIN,       PIPELINE_SCHEDULE_DUALPIPEV,   PIPELINE_SCHEDULE_ZB_AUTO};
    static const int heads[] = {12, 24, 48, 5, 8, 16}, widths[] = {48, 96, 40, 240},
                     seqs[] = {48, 32, 15, 240};
    Layout l = {.world = world, .tp = tp, .pp = pp, .schedule = one_of(schedules, 12),
                .heads = one_of(heads, 6), .ffn = one_of(widths, 4), .seq = one_of(seqs, 4),
                .sp = (int)draw(2), .micro = 1 + (int)draw(2), .sharding = (int)draw(4),
                .instances = draw(3) ? 1 : 1 + (int)draw(4), .reduce = (int)draw(4) > 0,
                .gather = (int)draw(4) == 0};
    int fixed = schedule_info[l.schedule].place == PLACE_VEE;
    int dp = world / (tp * pp) ? world / (tp * pp) : 1;
    l.v_given = l.schedule == PIPELINE_SCHEDULE_INTERLEAVED || draw(2);
    l.v = !l.v_given ? fixed ? 2 : 1 : fixed ? draw(8) ? 2 : 1 : 1 + (int)draw(3);
    l.kv = draw(3) ? l.heads : 1 + (int)draw(12);
    l.layers = draw(4) ? l.pp * l.v * (1 + (int)draw(3)) : 1 + (int)draw(24);
    l.group = draw(4) ? l.pp + (int)draw(3) : 1 + (int)draw(9);
    l.batch = draw(4) ? l.micro * dp * (1 + (int)draw(10)) : 1 + (int)draw(40);
    return l;
}

/* A legal configuration has a placement, a grid, and a schedule for every rank. */
static void check_derived(const Config *given, const char *args)
{
    const Config *c = given;
    char why[256];
    if (!c->stages) {
        double *cost = xcalloc((size_t)c->num_layers + 2, sizeof *cost);
        for (int64_t l = 0; l < c->num_layers + 2; l++)
            cost[l] = l == 0 ? 0.5 : l <= c->num_layers ? 1 : 3;
        c = placement_share_out(c, cost, "", NULL);
        free(cost);
    }
    Axis order[AXES];
    Placement pl;
    ScheduleSet set;
    placement_open(&pl, c);
    CHECK(grid_parse_order(c->rank_order, order), "%s: order %s", args, c->rank_order);
    PipeShape shape = {.kind = (ScheduleKind)c->pipeline_schedule, .p = pl.p, .v = pl.v, .group =
                       (int)c->microbatch_group_size_per_vp_stage,
                       .m = (int)(c->batch_step[0].batch / (c->micro_batch_size * c->data_parallel_size))};
    shape.kind = pl.p == 1 ? SCHEDULE_1F1B : shape.kind;
    schedules_open(&set, &shape);
    CHECK(schedules_check(&set, why, sizeof why), "%s: %s", args, why);
    for (int s = 0; s < pl.n; s++) {
        int rank, chunk;
        pipe_place(&shape, s, &rank, &chunk);
        CHECK(rank == pl.stage[s].pp_rank && chunk == pl.stage[s].chunk,
              "%s: stage %d is on %d.%d for the schedule", args, s, rank, chunk);
    }
    for (int r = 0; r < pl.p; r++) {
        int *units = keep_alloc((size_t)pl.v, sizeof *units);
        for (int i = 0; i < pl.v; i++) {
            const StagePlace *st = placement_at(&pl, r, i);
            units[i] = st->embedding + st->layers + st->loss;
        }
        Schedule list;
        schedule_open(&list, &set, r,
                      &(Expand){.units = units, .overlap = c->overlap_grad_reduce,
                                .sharded_grads = c->data_parallel_sharding_strategy >= 2,
                                .gather = c->data_parallel_sharding_strategy ==
                                          DATA_PARALLEL_SHARDING_STRATEGY_OPTIM_GRADS_PARAMS});
        CHECK(list.n > 0, "%s: an empty list", args);
        schedule_close(&list);
    }
    schedules_close(&set);
    placement_close(&pl);
    for (int i = 0; i < 2; i++) { /* run_plan rehearses one rank and checks its schedule */
        Run r;
        int rank = i ? (int)draw((uint32_t)c->world) : c->world - 1;
        run_plan(&r, c, RUN_TRAIN, 0, rank);
        CHECK(r.plan.memory.total > 0, "%s: rank %d", args, rank);
        run_plan_close(&r);
    }
}

/* The configuration, and its equivalent on one rank, are the same after writing and reading. */
static void check_copies(const Config *c, const char *args)
{
    for (int alone = 0; alone < 2; alone++) {
        const Config *of = alone ? config_for_one_rank(c) : c;
        char *text = NULL;
        size_t size;
        FILE *f = open_memstream(&text, &size);
        config_write(f, of);
        fclose(f);
        Check again = read_text(text, size, 0, NULL, of->world, USE_TRAIN);
        CHECK(!again.n && config_hash(again.cfg) == config_hash(of) && again.cfg->stages == of->stages,
              "%s: %s", args, listing(&again));
        free(text);
    }
}

/* Tries the tensor sizes that a message lists: each must be accepted. */
static void try_tensor_sizes(const Check *k, const Layout *l)
{
    for (int i = 0; i < k->n; i++) {
        const char *s = strstr(k->list[i].text, "tensor sizes that fit: ");
        s = s && l->world % l->pp == 0 ? s + strlen("tensor sizes that fit: ") : NULL;
        for (int t, n; s && sscanf(s, "%d%n", &t, &n) == 1; s = s[n] == ',' ? s + n + 2 : NULL) {
            Layout other = *l;
            other.tp = t;
            Check again = resolve(spelled(&other), l->world, USE_TRAIN);
            CHECK(!count(&again, "tensor_model_parallel_size", NULL, NULL), "tp %d for %s: %s", t, spelled(l),
                  listing(&again));
        }
    }
}

static void test_layouts(void)
{
    int fits = 0, all = 0, rounds = SANITIZED ? 2 : 16;
    for (int world = 1; world <= 16; world++)
        for (int tp = 1; tp <= world; tp++)
            for (int pp = 1; tp * pp <= world; pp++) {
                if (world % (tp * pp) && draw(8))
                    continue;
                for (int i = 0; i < rounds; i++) {
                    Layout l = random_layout(world, tp, pp);
                    const char *args = spelled(&l);
                    Check k = resolve(args, world, USE_TRAIN);
                    int ok = legal(&l);
                    CHECK((k.n == 0) == ok, "world %d, %s is %s: %s", world, args, ok ? "legal" : "not legal",
                          listing(&k));
                    all++, fits += ok;
                    if (k.n)
                        try_tensor_sizes(&k, &l);
                    if (!k.n) {
                        CHECK(k.cfg->data_parallel_size * tp * pp == world, "%s: dp", args);
                        check_derived(k.cfg, args);
                        check_copies(k.cfg, args);
                    }
                }
            }
    printf("# %d of %d layouts are legal\n", fits, all);
    CHECK(fits > all / 10 && fits < all * 9 / 10, "%d of %d", fits, all);
}

/* ---- pairwise: every two settings together; what passes must work ---- */

static const char *const settings[] = {
    "tensor_model_parallel_size=2",
    "tensor_model_parallel_size=4",
    "sequence_parallel=true",
    "pipeline_model_parallel_size=2",
    "pipeline_model_parallel_size=4",
    "num_virtual_stages_per_pipeline_rank=1",
    "num_virtual_stages_per_pipeline_rank=2",
    "num_virtual_stages_per_pipeline_rank=3",
    "microbatch_group_size_per_vp_stage=3",
    "pipeline_schedule=gpipe",
    "pipeline_schedule=1f1b",
    "pipeline_schedule=interleaved",
    "pipeline_schedule=zb-h1",
    "pipeline_schedule=zb-h2",
    "pipeline_schedule=zb-v",
    "pipeline_schedule=v-half",
    "pipeline_schedule=v-min",
    "pipeline_schedule=dualpipev",
    "pipeline_schedule=zb-auto",
    "pipeline_schedule=custom",
    "pipeline_max_activations=4",
    "pipeline_schedule_file=x",
    "pipeline_balance=cost",
    "pipeline_model_parallel_layout=Et/t*11L",
    "pipeline_model_parallel_layout=E//t*12/L",
    "num_layers_in_first_pipeline_stage=2",
    "num_layers_in_last_pipeline_stage=4",
    "account_for_embedding_in_pipeline_split=true",
    "account_for_loss_in_pipeline_split=true",
    "context_parallel_size=2",
    "cp_comm_type=[a2a]",
    "expert_model_parallel_size=2",
    "expert_tensor_parallel_size=2",
    "data_parallel_sharding_strategy=optim",
    "data_parallel_sharding_strategy=optim_grads",
    "data_parallel_sharding_strategy=optim_grads_params",
    "num_distributed_optimizer_instances=2",
    "overlap_grad_reduce=true",
    "overlap_param_gather=true",
    "rank_order=pp-dp-ep-cp-tp",
    "distributed_backend=nccl",
    "params_dtype=fp64",
    "params_dtype=bf16",
    "params_dtype=fp16",
    "device=cuda",
    "device=clock",
    "recompute_granularity=selective",
    "recompute_granularity=full|recompute_method=block|recompute_num_layers=6",
    "recompute_granularity=full|recompute_method=uniform|recompute_num_layers=3",
    "num_moe_experts=4",
    "optimizer=sgd",
    "optimizer=lamb",
    "optimizer=lars",
    "untie_embeddings_and_output_weights=true",
    "num_query_groups=1",
    "num_query_groups=2",
    "num_layers=13",
    "num_layers=3",
    "seq_length=31",
    "micro_batch_size=1",
    "global_batch_size=96",
    "global_batch_size=8",
    "step_batch_size_schedule='0:48 10K:96'",
    "make_vocab_size_divisible_by=1",
    "position_embedding_type=rope",
    "activation=swiglu",
    "reset_attention_mask=true",
    "window_size=8",
    "clip_grad=0"};

static void test_pairwise(void)
{
    int n = sizeof settings / sizeof *settings, passed = 0, tried = 0;
    for (int i = 0; i < n; i++)
        for (int j = i + 1; j < n; j += SANITIZED ? 5 : 1)
            for (int world = 2; world <= 8; world += 6) {
                const char *base = strstr(settings[i], "step_b") || strstr(settings[j], "step_b")
                                       ? "num_layers=12|num_attention_heads=8"
                                       : "num_layers=12|num_attention_heads=8|global_batch_size=48";
                base = world == 8 ? with(base, "pipeline_model_parallel_size=2") : base;
                const char *args = with(with(base, settings[i]), settings[j]);
                Check k = resolve(args, world, USE_TRAIN);
                tried++;
                if (k.n) {
                    config_forget();
                    continue;
                }
                passed++;
                check_derived(k.cfg, args);
                check_copies(k.cfg, args);
                config_forget();
            }
    printf("# %d of %d pairs of settings pass\n", passed, tried);
    CHECK(passed > tried / 4, "%d of %d", passed, tried);
}

int main(void)
{
    static const struct { const char *name; void (*run)(void);
    } tests[] = {{"pairs", test_pairs}, {"layouts", test_layouts}, {"pairwise", test_pairwise}};
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        double start = now();
        tests[i].run();
        config_forget();
        printf("# %s: %.2f s\n", tests[i].name, now() - start);
    }
    return test_end();
}
