/* test_memory -- each rank's memory against its plan: mpirun -n 4. Every ZeRO stage on pipeline 2 x
 * data 2; every kind of context parallelism, whose ranks divide the activations, too; experts with balanced
 * and with hot routing, and with a capacity; the snapshots of saves */
#include "job.h"
#include "run.h"
#include "test.h"
#include <sys/stat.h>
#include <unistd.h>

enum { NOISE = 4 << 20 };              /* bytes of libraries and of the heap that are no part of a plan */
enum { HUGE = 2 << 20 };               /* bytes that the heap had before, in a page of them */
#define BASE                                                                                                 \
    "model: {num_layers: 8, hidden_size: 384, num_attention_heads: 8, seq_length: 128, vocab_size: 8000, "   \
    "hidden_dropout: 0, attention_dropout: 0, untie_embeddings_and_output_weights: true}\n"                  \
    "train: {micro_batch_size: 1, global_batch_size: 4, train_iters: 2}\n"                                   \
    "optimizer: {lr: 0.01}\n"                                                                                \
    "data: {tokenizer_type: none}\n"                                                                         \
    "precision: {threads: 1}\n"                                                                              \
    "parallel: {pipeline_model_parallel_size: 2}\n"

static const Batch *zeros(void *run, int mb)
{
    enum { MOST = 1024 };
    static int32_t tokens[MOST], position[MOST];
    static float mask[MOST];
    static int64_t sample[1];
    const Run *r = run;
    Positions own = context_own(&r->model.now.context);
    BUG_ON(own.stride > MOST);
    sample[0] = mb;
    for (const PositionRun *p = own.run; p < own.run + own.count; p++)
        for (int i = 0; i < p->n; i++) {
            tokens[p->row + i] = ((p->start + i) * 61 + mb) % (int)r->cfg->vocab_size;
            position[p->row + i] = p->start + i;
            mask[p->row + i] = 1;
        }
    static Batch batch;
    batch = (Batch){1, r->cfg->seq_length, own, tokens, tokens, position, NULL, mask, sample};
    return &batch;
}

/* Runs a step and compares the growth of resident memory, anonymous and shared, with the plan, which it
 * returns. Of the memory that groups share, planned for messages of any size, groups of context and of
 * experts need only part: their messages are small here.
 *   n, args  in  what the layout changes in the file, and room for one argument more */
static int64_t beyond;                 /* bytes that resident memory may be apart from the plan, beside 5 % */
static const char *save_in;            /* where the run saves once; NULL: nowhere */
static int64_t written;                /* bytes that this rank writes in a save */

/* Saves the state. What it takes must be there before: the run's memory does not grow by it. */
static void save_once(Run *r)
{
    json_t *state = json_pack("{s:i}", "iteration", 1);
    const RunCheckpoint *k = &r->checkpoint;
    written = 0;
    for (int i = 0; i < k->npieces; i++)
        written += k->pieces[i].rows * k->pieces[i].cols * (int64_t)dtype_size(k->pieces[i].type);
    size_t used = r->arenas.host.used;
    saver_start(r->checkpoint.saver);
    saver_save(r->checkpoint.saver, 1, state);
    CHECK(saver_wait(r->checkpoint.saver) == 1, "saved");
    CHECK(r->arenas.host.used == used && used == r->arenas.host.size && r->arenas.host.peak == used,
          "%zu bytes of the host's arena, %zu after the save, %zu planned", used, r->arenas.host.used,
          r->arenas.host.size);
    json_decref(state);
}

static Memory held(const char *file, int n, char **args)
{
    static char isa[32];
    Run r;
    snprintf(isa, sizeof isa, "cpu_isa=%s", test_isa());
    args[n] = isa;
    const Config *c = config_load(file, n + 1, args, 0, USE_MODEL);
    Grid g;
    run_grid(&g, c);                   /* MPI's own memory is not part of the plan */
    grid_close(&g);
    int64_t before = metrics_memory_resident();
    run_open(&r, c, RUN_TRAIN, 0, save_in);
    r.step.feed = zeros;
    Metrics m = {0};
    r.step.metrics = &m;
    run_gradients(&r);
    r.step.metrics = NULL;
    if (save_in)
        save_once(&r);
    int64_t used = metrics_memory_resident() - before, plan = r.plan.memory.total;
    const RunCheckpoint *k = &r.checkpoint;
    int64_t blocks = save_in ? saver_workspace(c, k->pieces, k->npieces) : 0;  /* partly given back */
    int shared = c->context_parallel_size > 1 || c->expert_model_parallel_size > 1;
    int64_t unused = blocks + (shared ? r.plan.workspace : 0);
    int64_t fullest = used;            /* with one hot expert the other ranks hold less */
    if (beyond)
        r.grid.all.wait(&r.grid.all, r.grid.all.all_reduce(&r.grid.all, &fullest, 1, I64, OP_MAX));
    CHECK(isfinite(r.step.verdict.loss) && isfinite(r.step.verdict.norm), "no update: loss %g, norm %g",
          r.step.verdict.loss, r.step.verdict.norm);
    CHECK(SANITIZED || ((double)used <= (beyond ? 1 : 1.05) * (double)plan + NOISE * (beyond > 0) &&
                        (double)(fullest + beyond + HUGE) >= 0.95 * (double)(plan - unused)),
          "rank %d %s %s: %.2f MB held, %.2f planned", r.grid.rank, args[0], args[1], (double)used / 1e6,
          (double)plan / 1e6);
    Memory all = r.plan.memory;
    run_close(&r);
    return all;
}

/* Gradients of 16 bits, kept or sent, are held as planned: half of the bytes of F32 ones, or, where those are
 * whole, as many and two windows. */
static void gradients(const char *file, int rank)
{
    /* large enough that room for packing, which small products do not fill, is within 5 % */
    char *args[7] = {"data_parallel_sharding_strategy=optim_grads", "params_dtype=bf16", "num_layers=8",
                     "vocab_size=8000", "main_grads_dtype=bf16"};
    int64_t kept = held(file, 5, args).gradients, f32[2];
    for (int s = 0; s < 2; s++) {
        Run r;
        args[0] = s ? "data_parallel_sharding_strategy=no_shard" : args[0];
        run_plan(&r, config_load(file, 4, args, 4, USE_MODEL), RUN_TRAIN, 0, rank);
        f32[s] = r.plan.memory.gradients;
        run_plan_close(&r);
    }
    args[4] = "grad_reduce_in_bf16=true";
    int64_t sent = held(file, 5, args).gradients;
    CHECK(2 * kept == f32[0], "%lld bytes of gradients in bf16, %lld in fp32", (long long)kept,
          (long long)f32[0]);
    CHECK(sent > f32[1] && sent <= 2 * f32[1], "%lld bytes of gradients that are sent in bf16, %lld in fp32",
          (long long)sent, (long long)f32[1]);
}

/* Moments of 16 and 8 bits are held as planned: with the masters' other halves 10 bytes a parameter become 6,
 * and 4 and 1/16. */
static void moments(const char *file)
{
    char *args[5] = {"data_parallel_sharding_strategy=no_shard", "params_dtype=bf16", "exp_avg_dtype=fp32",
                     "exp_avg_sq_dtype=fp32"};
    int64_t f32 = held(file, 4, args).optimizer;
    args[2] = "exp_avg_dtype=bf16", args[3] = "exp_avg_sq_dtype=bf16";
    int64_t bf16 = held(file, 4, args).optimizer;
    args[2] = "exp_avg_dtype=fp8", args[3] = "exp_avg_sq_dtype=fp8";
    int64_t fp8 = held(file, 4, args).optimizer;
    /* beside the arrays of parameters there are 4096 bytes at most */
    CHECK(fabs((double)bf16 - 0.6 * (double)f32) < 4096 && fabs((double)fp8 - 0.40625 * (double)f32) < 4096,
          "%lld bytes of the optimizer, with bf16 moments %lld, with fp8 %lld", (long long)f32,
          (long long)bf16, (long long)fp8);
}

static Memory stage(const char *file, const char *strategy, const char *dtype, const char *offload)
{
    char sharding[96], type[64], elsewhere[64];
    snprintf(sharding, sizeof sharding, "data_parallel_sharding_strategy=%s", strategy);
    snprintf(type, sizeof type, "params_dtype=%s", dtype);
    snprintf(elsewhere, sizeof elsewhere, "optimizer_cpu_offload=%s", offload);
    return held(file, 3, (char *[4]){sharding, type, elsewhere});
}

/* ---- ranks that share a sequence ---- */

enum { POSITIONS = 1024 };

static int64_t planned_activations(const char *file, int n, char **args, int world)
{
    Run r;
    run_plan(&r, config_load(file, n, args, world, USE_MODEL), RUN_TRAIN, 0, 0);
    int64_t bytes = r.plan.memory.activations;
    run_plan_close(&r);
    return bytes;
}

/* Long sequences over cp ranks: the activations of a rank are those of one, divided by cp. */
static void shared_sequence(const char *file, int cp, const char *kind)
{
    char ranks[48], how[48], length[48];
    snprintf(ranks, sizeof ranks, "context_parallel_size=%d", cp);
    snprintf(how, sizeof how, "cp_comm_type=[%s]", kind);
    snprintf(length, sizeof length, "seq_length=%d", POSITIONS);
    char *args[12] = {how, ranks, length, "max_position_embeddings=1024", "num_layers=4", "hidden_size=192",
                      "vocab_size=512", "global_batch_size=2",
                      cp == 4 ? "pipeline_model_parallel_size=1" : "pipeline_model_parallel_size=2"};
    int n = 9;
    if (!strcmp(kind, "a2a+p2p"))
        args[n++] = cp == 4 ? "hierarchical_context_parallel_sizes=[2, 2]"
                            : "hierarchical_context_parallel_sizes=[1, 2]";
    int64_t own = planned_activations(file, n, args, 4);
    held(file, n, args);
    args[0] = "cp_comm_type=[p2p]";
    args[1] = "context_parallel_size=1";
    int64_t one = planned_activations(file, 9, args, 4 / cp);
    CHECK(fabs((double)(own * cp) / (double)one - 1) <= 0.1,
          "%s over %d: %.2f MB of activations, one rank %.2f", kind, cp, (double)own / 1e6,
          (double)one / 1e6);
}

/* Experts, with every expert equally loaded and with all tokens on the same two. The plan is the bound of
 * both: rows in excess go in further rounds. */
static void experts(const char *file, int ep, int etp, const char *routing)
{
    char ranks[48], parts[48], force[48];
    snprintf(ranks, sizeof ranks, "expert_model_parallel_size=%d", ep);
    snprintf(parts, sizeof parts, "expert_tensor_parallel_size=%d", etp);
    snprintf(force, sizeof force, "moe_router_force=%s", routing);
    beyond = 50 << 20;
    held(file, 13, (char *[14]){force, ranks, parts, "num_moe_experts=8", "moe_router_topk=2", "num_layers=4",
                                "seq_length=1024", "max_position_embeddings=1024", "vocab_size=512",
                                "pipeline_model_parallel_size=1", "moe_ffn_hidden_size=768",
                                "moe_aux_loss_coeff=0.01", "add_bias_linear=false"});
    beyond = 0;
}

/* A capacity bounds what the ranks of experts get: with rows of zeros up to it all planned memory is used,
 * and it is less than without a limit. */
static void capacity(const char *file)
{
    char *args[16] = {"moe_expert_capacity_factor=0.75", "expert_model_parallel_size=4", "num_moe_experts=8",
                      "moe_router_topk=4", "moe_ffn_hidden_size=768", "pipeline_model_parallel_size=1",
                      "seq_length=1024", "max_position_embeddings=1024", "num_layers=4", "hidden_size=192",
                      "vocab_size=512", "moe_router_force=uniform", "moe_pad_expert_input_to_capacity=true"};
    int64_t padded = held(file, 13, args).activations;
    int64_t limited = planned_activations(file, 12, args, 4);
    args[0] = "moe_expert_capacity_factor=null";
    int64_t free = planned_activations(file, 12, args, 4);
    CHECK(padded == limited && (double)limited < 0.75 * (double)free,
          "capacity 0.75: %.2f MB of activations, padded %.2f; without a limit %.2f", (double)limited / 1e6,
          (double)padded / 1e6, (double)free / 1e6);
}

/* A save that goes on beside training needs a copy of what this rank writes: the plan has it, it is taken
 * from the arenas when the run opens, and it is held like the rest. */
static void snapshots(const char *file, const char *strategy)
{
    /* as large as for gradients, that room for packing is within 5 % */
    char sharding[96], *args[6] = {sharding, "async_save=false", "num_layers=6", "vocab_size=4000"};
    snprintf(sharding, sizeof sharding, "data_parallel_sharding_strategy=%s", strategy);
    char *top = xstrdup(file);
    *strrchr(top, '/') = 0;
    *strrchr(top, '/') = 0;
    save_in = xasprintf("%s/saved", top);
    Memory plain = held(file, 4, args);
    args[1] = "async_save=true";
    Memory copied = held(file, 4, args);
    int64_t more = copied.total - plain.total;
    CHECK(labs(more - written) < 4096, "%lld bytes more are planned, a rank writes %lld", (long long)more,
          (long long)written);
    free((char *)save_in);
    free(top);
    save_in = NULL;
}

int main(void)
{
    static const char *const strategies[] = {"no_shard", "optim", "optim_grads", "optim_grads_params"};
    char file[512];
    static const char *const kinds[] = {"p2p", "allgather", "a2a", "a2a+p2p"};
    Memory planned[4], away;
    int rank;
    job_launched(&rank);
    snprintf(file, sizeof file, "%s/%d", getenv("WORK") ? getenv("WORK") : "/tmp", rank);
    mkdir(file, 0700);
    strcat(file, "/memory.yaml");      /* one name on all ranks, which compare it */
    FILE *f = fopen(file, "w");
    fputs(BASE, f);
    fclose(f);
    for (int s = 0; s < 4; s++) {
        planned[s] = stage(file, strategies[s], "fp32", "false");
        CHECK(s == 0 || planned[s].total < planned[s - 1].total, "%s holds %lld, the stage before %lld",
              strategies[s], (long long)planned[s].total, (long long)planned[s - 1].total);
    }
    away = stage(file, strategies[1], "fp32", "true");      /* the same bytes, counted as host's */
    CHECK(labs(away.total - planned[1].total) < 4096 && away.optimizer + away.host == planned[1].optimizer &&
              away.optimizer < 4096,
          "offloaded: %lld in all, %lld of the optimizer, %lld of the host; before %lld and %lld",
          (long long)away.total, (long long)away.optimizer, (long long)away.host, (long long)planned[1].total,
          (long long)planned[1].optimizer);
    gradients(file, rank);
    moments(file);
    for (int k = 0; k < 4; k++) {
        shared_sequence(file, 2, kinds[k]);
        shared_sequence(file, 4, kinds[k]);
    }
    static const int grids[][2] = {{4, 1}, {2, 2}, {1, 1}};
    for (int g = 0; g < 3; g++) {
        experts(file, grids[g][0], grids[g][1], "uniform");
        experts(file, grids[g][0], grids[g][1], "hot");
    }
    capacity(file);
    snapshots(file, "optim");
    snapshots(file, "optim_grads_params");
    unlink(file);
    return test_end();
}
