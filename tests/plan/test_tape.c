/* test_tape -- a prediction that plays tapes beside one where every walk runs its layers: the same bits.
 *
 * Each row is a model and what orders its instructions. A tape must get right who waits for whom, which
 * gradients have a value, what neighbours a chunk has, and which microbatches are cut into units. */
#include "config_table.h"
#include "predict.h"
#include "test.h"
#include <unistd.h>

static const char base[] = "model: {num_layers: 8, hidden_size: 512, num_attention_heads: 8, "
                           "seq_length: 4096, vocab_size: 32000}\n"
                           "data: {tokenizer_type: none}\n"
                           "precision: {params_dtype: bf16}\n"
                           "train: {micro_batch_size: 1, global_batch_size: 32}\n";

static const char *const machines[] = {"configs/machines/h100.yaml", "configs/machines/h100-mcore-2024.yaml",
                                       "configs/machines/a100-80gb-2022.yaml"};

#define STAGES "pipeline_model_parallel_size=4"
#define CHUNKS STAGES, "num_virtual_stages_per_pipeline_rank=2"
#define EXPERTS "num_moe_experts=4", "moe_router_topk=2", "expert_model_parallel_size=2"
#define FP8 "fp8=hybrid", "first_last_layers_bf16=true", "num_layers_at_start_in_bf16=4", \
            "num_layers_at_end_in_bf16=1"
#define FULL "recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=1"

/* Of 16 ranks. */
static const struct { const char *name, *args[8]; } rows[] = {
    {"one stage", {"tensor_model_parallel_size=2"}},
    {"1F1B", {STAGES, "tensor_model_parallel_size=2", "sequence_parallel=true"}},
    {"1F1B, reductions overlap", {STAGES, "overlap_grad_reduce=true"}},
    {"interleaved", {CHUNKS}},
    {"interleaved, all overlaps", {CHUNKS, "overlap_grad_reduce=true", "overlap_param_gather=true"}},
    {"interleaved, a chunk is empty",
     {CHUNKS, "pipeline_model_parallel_layout=Et|tt|t|t|t|t|t|L", "overlap_grad_reduce=true"}},
    {"zb-h1", {STAGES, "pipeline_schedule=zb-h1", "overlap_grad_reduce=true"}},
    {"zb-v", {CHUNKS, "pipeline_schedule=zb-v"}},
    {"zb-v, tied", {CHUNKS, "pipeline_schedule=zb-v", "untie_embeddings_and_output_weights=false",
                    "overlap_grad_reduce=true"}},
    {"zb-v, untied", {CHUNKS, "pipeline_schedule=zb-v", "untie_embeddings_and_output_weights=true"}},
    {"v-half", {CHUNKS, "pipeline_schedule=v-half"}},
    {"full recomputation", {STAGES, FULL}},
    {"block recomputation", {CHUNKS, "recompute_granularity=full", "recompute_method=block",
                             "recompute_num_layers=1"}},
    {"selective recomputation", {STAGES, "recompute_granularity=selective"}},
    {"experts", {STAGES, EXPERTS, "moe_layer_freq=2"}},
    {"experts, pairs", {STAGES, EXPERTS, "overlap_moe_expert_parallel_comm=true"}},
    {"experts, rows shared out",
     {EXPERTS, "tensor_model_parallel_size=2", "sequence_parallel=true", "expert_tensor_parallel_size=1"}},
    {"dualpipev", {CHUNKS, "pipeline_schedule=dualpipev"}},
    {"dualpipev, experts", {CHUNKS, "pipeline_schedule=dualpipev", EXPERTS}},
    {"zb-auto", {STAGES, "pipeline_schedule=zb-auto"}},
    {"context, mixed", {STAGES, "context_parallel_size=2",
                        "cp_comm_type=[p2p, a2a, allgather, p2p, a2a, p2p, p2p, a2a]"}},
    {"context", {STAGES, "context_parallel_size=2"}},
    {"FP8", {STAGES, FP8}},
    {"several instances", {STAGES, "num_distributed_optimizer_instances=2"}},
    {"offloaded optimizer", {STAGES, "optimizer_cpu_offload=true", "overlap_grad_reduce=true",
                              "overlap_param_gather=true"}},
    {"offloaded activations", {STAGES, "cpu_offloading_num_layers=1"}},
    {"16 bits on the wire", {STAGES, "grad_reduce_in_bf16=true", "overlap_grad_reduce=true"}},
    {"batch sizes", {STAGES, "global_batch_size=null", "step_batch_size_schedule=0:16 1M:32"}},
    {"two microbatches", {STAGES, "global_batch_size=8"}},
};

static const char *const sharding[] = {"no_shard", "optim", "optim_grads", "optim_grads_params"};

static void write_base(const char *path)
{
    FILE *f = fopen(path, "w");
    fputs(base, f);
    fclose(f);
}

static int predicts(const Prediction *a, const Prediction *b, const char **what)
{
    size_t p = (size_t)a->p, n = (size_t)a->n;
    *what = a->p != b->p || a->n != b->n || a->m != b->m                        ? "shape"
            : memcmp(a->stage, b->stage, n * sizeof *a->stage)                  ? "times of stages"
            : memcmp(&a->step, &b->step, sizeof a->step)                        ? "step"
            : memcmp(a->rank, b->rank, p * sizeof *a->rank)                     ? "times of ranks"
            : memcmp(a->memory, b->memory, p * sizeof *a->memory)               ? "memory"
            : memcmp(a->most, b->most, sizeof a->most)                          ? "messages"
            : a->bubble != b->bubble || a->step_bubble != b->step_bubble || a->hop != b->hop ? "bubble"
                                                                                : NULL;
    return !*what;
}

/* Returns whether the row is legal with this sharding. */
static int one(const char *path, int row, int shards, const Machine *m)
{
    char *args[10], text[64];
    int n = 0;
    while (n < 8 && rows[row].args[n]) {
        args[n] = (char *)rows[row].args[n];
        n++;
    }
    snprintf(text, sizeof text, "data_parallel_sharding_strategy=%s", sharding[shards]);
    args[n++] = text;
    Check k;
    config_check(&k, path, n, args, 16, USE_MODEL);
    if (k.n + k.dropped)
        return 0;
    StepLists l;
    Placement pl;
    Prediction played, walked;
    const char *what;
    placement_open(&pl, k.cfg);
    step_lists_open(&l, k.cfg, &pl);
    predict_over(&played, k.cfg, m, &l);
    predict_walked(&walked, k.cfg, m, &l);
    CHECK(predicts(&played, &walked, &what), "%s, %s, %s: other %s: step %.17g played, %.17g walked",
          rows[row].name, sharding[shards], m->path, what, played.step, walked.step);
    int tapes = !k.cfg->cpu_offloading_num_layers;
    CHECK(!tapes || played.walks < walked.walks, "%s, %s: %d walks of %d ran their layers", rows[row].name,
          sharding[shards], played.walks, walked.walks);
    prediction_close(&played);
    prediction_close(&walked);
    step_lists_close(&l);
    placement_close(&pl);
    return 1;
}

int main(void)
{
    char folder[] = "/tmp/test_tape.XXXXXX", path[64];
    CHECK(mkdtemp(folder), "no folder");
    snprintf(path, sizeof path, "%s/base.yaml", folder);
    write_base(path);
    for (int r = 0; r < (int)(sizeof rows / sizeof *rows); r++) {
        int legal = 0;
        for (int shards = 0; shards < 4; shards++)
            legal += one(path, r, shards, machine_load(machines[(r + shards) % 3]));
        CHECK(legal, "%s is not legal", rows[r].name);
    }
    unlink(path);
    rmdir(folder);
    return test_end();
}
