/* test_memory -- each rank's memory against its plan, at every ZeRO stage: mpirun -n 4 (pipeline 2 x
 * data 2) */
#include "job.h"
#include "run.h"
#include "test.h"
#include <sys/stat.h>
#include <unistd.h>

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
    static int32_t tokens[128], position[128];
    static float mask[128];
    static int64_t sample[1];
    (void)run;
    sample[0] = mb;
    for (int i = 0; i < 128; i++) {
        tokens[i] = (i * 61 + mb) % 8000;
        position[i] = i;
        mask[i] = 1;
    }
    static Batch batch;
    batch = (Batch){1, 128, positions_one(0, 128), tokens, tokens, position, NULL, mask, sample};
    return &batch;
}

/* Runs a step and compares the growth of resident memory, anonymous and shared, with the plan. held: the
 * plan. */
static void stage(const char *file, const char *strategy, const char *dtype, const char *offload,
                  Memory *held)
{
    char sharding[96], type[64], elsewhere[64];
    static char isa[32];
    Run r;
    snprintf(sharding, sizeof sharding, "data_parallel_sharding_strategy=%s", strategy);
    snprintf(type, sizeof type, "params_dtype=%s", dtype);
    snprintf(isa, sizeof isa, "cpu_isa=%s", test_isa());
    snprintf(elsewhere, sizeof elsewhere, "optimizer_cpu_offload=%s", offload);
    char *args[] = {sharding, type, isa, elsewhere};
    const Config *c = config_load(file, 4, args, 0, USE_MODEL);
    Grid g;
    run_grid(&g, c);                   /* MPI's own memory is not part of the plan */
    grid_close(&g);
    int64_t before = metrics_memory_resident();
    run_open(&r, c, RUN_TRAIN, 0, NULL);
    r.step.feed = zeros;
    Metrics m = {0};
    r.step.metrics = &m;
    run_gradients(&r);
    r.step.metrics = NULL;
    int64_t used = metrics_memory_resident() - before, plan = r.plan.memory.total;
    CHECK(fabs((double)(used - plan)) <= 0.05 * (double)plan, "rank %d %s %s: %.2f MB held, %.2f planned",
          r.grid.rank, strategy, dtype, (double)used / 1e6, (double)plan / 1e6);
    *held = r.plan.memory;
    run_close(&r);
}

int main(void)
{
    static const char *const strategies[] = {"no_shard", "optim", "optim_grads", "optim_grads_params"};
    char file[512];
    Memory held[4], away;
    int rank;
    job_launched(&rank);
    snprintf(file, sizeof file, "%s/%d", getenv("WORK") ? getenv("WORK") : "/tmp", rank);
    mkdir(file, 0700);
    strcat(file, "/memory.yaml");      /* one name on all ranks, which compare it */
    FILE *f = fopen(file, "w");
    fputs(BASE, f);
    fclose(f);
    for (int s = 0; s < 4; s++) {
        stage(file, strategies[s], "fp32", "false", &held[s]);
        CHECK(s == 0 || held[s].total < held[s - 1].total, "%s holds %lld, the stage before %lld",
              strategies[s], (long long)held[s].total, (long long)held[s - 1].total);
    }
    stage(file, strategies[1], "fp32", "true", &away);     /* the same bytes, counted as host's */
    CHECK(labs(away.total - held[1].total) < 4096 && away.optimizer + away.host == held[1].optimizer &&
              away.optimizer < 4096,
          "offloaded: %lld in all, %lld of the optimizer, %lld of the host; before %lld and %lld",
          (long long)away.total, (long long)away.optimizer, (long long)away.host, (long long)held[1].total,
          (long long)held[1].optimizer);
    unlink(file);
    return test_end();
}
