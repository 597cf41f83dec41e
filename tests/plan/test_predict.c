/* test_predict -- predictions against published step times and memory, and against arithmetic by hand */
#include "predict.h"
#include "test.h"
#include <stdarg.h>
#include <time.h>
#include <unistd.h>

static char folder[] = "/tmp/test_predict.XXXXXX";

static const char *file_of(const char *name, const char *fmt, ...)
{
    static char path[4][256];
    static int k;
    char *p = path[k++ % 4];
    va_list ap;
    snprintf(p, 256, "%s/%s.yaml", folder, name);
    FILE *f = fopen(p, "w");
    va_start(ap, fmt);
    vfprintf(f, fmt, ap);
    va_end(ap);
    fclose(f);
    return p;
}

/* ---- published runs: A100-80GB, sequences of 2048, vocabulary of 51200 ---- */

typedef struct { const char *name; int layers, hidden, heads, tp, pp, world, batch, micro, chunks; } Row;

static const char FULL[] = "recompute: {recompute_granularity: full, recompute_method: uniform, "
                           "recompute_num_layers: 1}\n";
static const char SELECTIVE[] = "recompute: {recompute_granularity: selective}\n";

static const Config *published(const Row *r, int sequence_parallel, const char *recompute)
{
    char chunks[64] = "";
    if (r->chunks > 1)
        snprintf(chunks, sizeof chunks, ", num_virtual_stages_per_pipeline_rank: %d", r->chunks);
    return config_load(file_of("published",
                               "model: {num_layers: %d, hidden_size: %d, num_attention_heads: %d, "
                               "seq_length: 2048, vocab_size: 51200}\n"
                               "train: {micro_batch_size: %d, global_batch_size: %d}\n"
                               "data: {tokenizer_type: none}\n"
                               "precision: {params_dtype: bf16}\n"
                               "parallel: {tensor_model_parallel_size: %d, pipeline_model_parallel_size: %d, "
                               "sequence_parallel: %s, overlap_grad_reduce: false%s}\n%s",
                               r->layers, r->hidden, r->heads, r->micro, r->batch, r->tp, r->pp,
                               sequence_parallel ? "true" : "false", chunks, recompute),
                       0, NULL, r->world, USE_MODEL);
}

/* Korthikanti et al. 2022, arXiv:2205.05198 (its step times: configs/published). Figure 1: state: GiB of
 * parameters and optimizer; kept: GiB of activations without recomputation. Figure 7: share: % of kept
 * with sequence parallelism, selective recomputation, both, and full recomputation. */
static const struct { Row run; double state, kept, share[4];
} models[] = {
    {{"22B", 48, 6144, 64, 8, 1, 8, 4, 4, 1}, 45.56, 59.25, {66.84, 49.42, 16.18, 7.64}},
    {{"175B", 96, 12288, 96, 8, 8, 64, 64, 1, 3}, 45.56, 66.84, {62.04, 56.53, 18.49, 8.71}},
    {{"530B", 105, 20480, 128, 8, 35, 280, 280, 1, 3},
     31.64,
     114.02,
     {58.31, 62.04, 20.27, 9.42}},
    {{"1T", 128, 25600, 160, 8, 64, 512, 512, 1, 1},
     32.96,
     131.25,
     {58.31, 62.04, 20.27, 9.42}},
};
enum { MODELS = sizeof models / sizeof *models };

static double compare(const char *name, const char *what, double predicted, double measured, double *most)
{
    double error = 100 * (predicted / measured - 1);
    printf("# %-6s %-34s %9.2f predicted %9.2f  %+6.2f %%\n", name, what, measured, predicted, error);
    *most = worse(*most, fabs(error));
    return fabs(error);
}

/* Bytes of the gradients between layers, two [rows, hidden] each; the figures do not count them. */
static double in_flight(const Row *r, const Run *first)
{
    double rows = (double)r->micro * 2048 / (first->cfg->sequence_parallel ? r->tp : 1);
    return first->plan.lists[0].train.slots[SLOT_DW] * 2 * rows * r->hidden * 2;
}

/* Parameters and optimizer are compared on a middle stage, because the figures leave out the embedding;
 * a model of one stage includes it, and it is small. Activations are compared on the first stage, which
 * holds most. */
static void test_memory(const Machine *m)
{
    static const struct { const char *what; int rows; const char *recompute; } modes[] = {
        {"activations, GiB", 0, ""},
        {"sequence parallel, GiB", 1, ""}, {"selective, GiB", 0, SELECTIVE},
            {"sequence parallel, selective, GiB", 1, SELECTIVE},
        {"full recomputation, GiB", 0, FULL}};
    double state = 0, most = 0, gib = 1 << 30;
    for (int i = 0; i < MODELS; i++) {
        const Row *r = &models[i].run;
        Prediction p;
        predict(&p, published(r, 0, ""), m);
        const Memory *middle = &p.memory[p.p / 2];
        /* the published runs keep whole masters, 18 bytes a parameter; two of these are in the weight here */
        double held = (double)(2 * middle->parameters + middle->gradients + middle->optimizer);
        compare(r->name, "parameters and optimizer, GiB", held / gib, models[i].state, &state);
        prediction_close(&p);
        for (int k = 0; k < 5; k++) {
            Run first;
            Device d;
            Tally tally = {.m = m, .share = 1, .scatter = 1};
            predict_device(&d, &tally, F32);
            run_plan_over(&first, published(r, modes[k].rows, modes[k].recompute), RUN_TRAIN, 0, 0,
                          &(Rehearsal){.dev = &d});
            double held = (double)first.plan.memory.activations - in_flight(r, &first);
            compare(r->name, modes[k].what, held / gib,
                    models[i].kept * (k ? models[i].share[k - 1] / 100 : 1), &most);
            run_plan_close(&first);
        }
    }
    CHECK(state <= 5, "parameters and optimizer: %.2f %%", state);
    CHECK(most <= 5, "activations: %.2f %%", most);
}

/* ---- by hand ---- */

/* A machine on which only the arguments cost time. tflops: TFLOP/s; link, network: GB/s inside and
 * between nodes; ranks: of a node; ops: op_set. */
static const Machine *ideal(double tflops, double link, double network, int ranks, const char *ops)
{
    return machine_load(file_of(
        "ideal",
        "machine: {name: ideal}\n"
        "device: {matmul_tflops: %g, matmul_tflops_fp32: %g, matmul_efficiency: [1, 1], attention_forward: "
        "1, attention_backward: 1, memory_gbps: 1e6, memory_efficiency: [1, 1.9], launch_us: 0, host_gbps: "
        "1e-3, memory_gib: 1}\n"
        "node: {ranks: %d, link_gbps: %g, link_latency_us: 0}\n"
        "network: {network_gbps: %g, network_latency_us: 0, overlap: 1}\n"
        "ops: {op_set: %s}\n",
        tflops, tflops, ranks, link, network, ops));
}

static const Config *small(int world, const char *parallel)
{
    return config_load(file_of("small",
        "model: {num_layers: 8, hidden_size: 512, num_attention_heads: 8, seq_length: 256, vocab_size: 1024, "
        "hidden_dropout: 0, "
        "attention_dropout: 0, untie_embeddings_and_output_weights: true}\n"
        "train: {micro_batch_size: 2, global_batch_size: 32}\n"
        "data: {tokenizer_type: none}\n"
        "precision: {params_dtype: bf16}\n"
        "parallel: {%s}\n", parallel), 0, NULL, world, USE_MODEL);
}

static void near(const char *what, double got, double want, double tolerance)
{
    CHECK(fabs(got - want) <= tolerance * want, "%s: %.6g, by hand %.6g", what, got, want);
}

static void test_arithmetic(void)
{
    /* slow arithmetic, so that only products count */
    const Machine *m = ideal(1e-3, 1e6, 1e6, 8, "unfused");
    const Config *c = small(1, "");
    Prediction p;
    predict(&p, c, m);
    near("FLOPs of a step", p.step, run_flops_per_token(c) * 32 * 256 / 1e9, 1e-3);
    prediction_close(&p);
    /* 16 microbatches over 4 ranks; a stage has two layers, the last one the head as well */
    c = small(4, "pipeline_model_parallel_size: 4");
    predict(&p, c, m);
    double layer = 12.0 * 512 * 512 * 6 + 12 * 512 * 256, head = 6.0 * 512 * 1024, token = 1e9 / (2 * 256);
    near("a pipeline whose last rank sets the pace", p.step,
         ((2 * layer + head) * 16 + 2 * layer * 3) / token, 2e-3);
    prediction_close(&p);
    /* tensor parallelism divides the arithmetic */
    predict(&p, small(4, "tensor_model_parallel_size: 4"), m);
    near("a quarter of the arithmetic", p.step, run_flops_per_token(c) * 32 * 256 / 4e9, 1e-3);
    prediction_close(&p);
}

static void test_messages(void)
{
    double bytes = 2.0 * 256 * 512 * 2, layers = 8, m = 16, bandwidth = 1e6;
    Prediction p;
    /* Arithmetic takes no time. A microbatch has four all-reduces a layer, one after the embedding, one
     * before the head, and small ones of the softmax's statistics. */
    const char *tensor = "tensor_model_parallel_size: 4";
    predict(&p, small(4, tensor), ideal(1e6, 1e-3, 1e-3, 4, "fused"));
    near("all-reduces inside a node", p.rank[0].tp, m * (4 * layers + 2) * 1.5 * bytes / bandwidth, 0.01);
    prediction_close(&p);
    predict(&p, small(4, "tensor_model_parallel_size: 4, sequence_parallel: true"),
            ideal(1e6, 1e-3, 1e-3, 4, "fused"));
    near("gathers and scatters", p.rank[0].tp, m * (10 * layers + 4) * 0.75 * bytes / bandwidth, 0.03);
    prediction_close(&p);
    /* Two nodes of two ranks: a ring has 2 x 0.5e-3 GB/s between the nodes. All-reduces by levels take
     * the same time, with half of the bytes on each link. */
    predict(&p, small(4, tensor), ideal(1e6, 1e3, 0.5e-3, 2, "fused"));
    near("all-reduces between nodes", p.rank[0].tp, m * (4 * layers + 2) * bytes / 2 / 0.5e6, 0.01);
    prediction_close(&p);
}

static Prediction shared_out(const char *kind, const Machine *m)
{
    Prediction p;
    char parallel[128];
    snprintf(parallel, sizeof parallel, "context_parallel_size: 4, cp_comm_type: [%s]", kind);
    predict(&p, small(4, parallel), m);
    return p;
}

/* Four ranks share a sequence. Where arithmetic takes no time a layer waits for all of its messages; where
 * arithmetic is slow a ring's messages are hidden, and those of a2a are not. */
static void test_context(void)
{
    const Machine *near_by = ideal(1e6, 1e-3, 1e-3, 4, "fused"), *far = ideal(1e6, 1e3, 1e-3, 2, "fused"),
                  *slow = ideal(1e-3, 1, 1, 4, "fused");
    double T = 2 * 256 / 4, q = 512, kv = 2 * 512, passes = 16 * 8, bandwidth = 1e6;
    double ring = 3 * T * kv * (2 * 2 + 4), heads = 2 * T * (2 * (q + kv) + 3 * q);
    Prediction p = shared_out("p2p", near_by);
    near("keys and values twice, and their gradients", p.rank[0].cp, passes * ring / bandwidth, 1e-3);
    prediction_close(&p);
    p = shared_out("allgather", near_by);
    near("a gather and a scatter carry what a ring does", p.rank[0].cp, passes * ring / bandwidth, 1e-3);
    prediction_close(&p);
    p = shared_out("a2a", near_by);
    near("heads for positions", p.rank[0].cp, passes * 0.75 * heads / bandwidth, 1e-3);
    prediction_close(&p);
    p = shared_out("a2a+p2p], hierarchical_context_parallel_sizes: [2, 2", near_by);
    /* in the backward keys travel while o and its gradient are exchanged */
    near("both", p.rank[0].cp, passes * (0.5 * heads + ring / 3 - 2 * T * q) / bandwidth, 1e-3);
    prediction_close(&p);
    /* two nodes: a ring waits for its slowest link; an all-to-all sends half of its bytes to the other
     * node */
    p = shared_out("p2p", far);
    near("a ring over two nodes", p.rank[0].cp, passes * ring / bandwidth, 1e-3);
    prediction_close(&p);
    p = shared_out("a2a", far);
    near("heads over two nodes", p.rank[0].cp, passes * 0.5 * heads / bandwidth, 1e-3);
    prediction_close(&p);
    p = shared_out("p2p", slow);
    CHECK(p.rank[0].sent[AXIS_CP] > 0.1 && p.rank[0].cp < 1e-3 * p.rank[0].sent[AXIS_CP],
          "%g s of a ring are not hidden, of %g", p.rank[0].cp, p.rank[0].sent[AXIS_CP]);
    prediction_close(&p);
    p = shared_out("a2a", slow);
    near("heads are waited for", p.rank[0].cp, p.rank[0].sent[AXIS_CP], 1e-6);
    prediction_close(&p);
}

/* Forward and backward of a microbatch on rank 0, s, and its waits for rows, with the experts over four
 * ranks. */
static double with_experts(const char *turns, const Machine *m)
{
    Prediction p;
    char parallel[256];
    snprintf(parallel, sizeof parallel, "expert_model_parallel_size: 4}\nmoe: {num_moe_experts: 8, "
             "moe_router_topk: 2, moe_ffn_hidden_size: 512, overlap_moe_expert_parallel_comm: %s", turns);
    predict(&p, small(4, parallel), m);
    double s = (p.rank[0].forward + p.rank[0].backward + p.rank[0].ep) / 4;
    prediction_close(&p);
    return s;
}

/* Four microbatches make three pairs: a pair takes the longer of the arithmetic and the rows' messages. */
static void test_turns(void)
{
    double rows = with_experts("false", ideal(1e6, 1, 1, 4, "fused")),
           work = with_experts("false", ideal(100, 1e6, 1e6, 4, "fused"));
    static const double tflops[] = {10, 100, 1000};
    for (int i = 0; i < 3; i++) {
        const Machine *m = ideal(tflops[i], 1, 1, 4, "fused");
        double took = work * 100 / tflops[i], want = rows + took - 0.75 * fmin(rows, took);
        near("one after the other", with_experts("false", m), rows + took, 0.02);
        near("by turns", with_experts("true", m), want, 0.02);
    }
    CHECK(rows > 1e-3 && work > 1e-4, "rows %g, work %g", rows, work);
}

/* Layers are offloaded and prefetched: a microbatch prefetches once all of its layers are offloaded. */
static void test_offload(void)
{
    const Machine *m = ideal(1e6, 1e6, 1e6, 8, "fused");
    Prediction p;
    predict(&p, small(1, "}\nrecompute: {cpu_offloading_num_layers: 8"), m);
    near("layers to the host and back", p.step, 16 * 2 * (double)p.memory[0].mapped / 1e6, 1e-3);
    prediction_close(&p);
    /* masters and two moments are read and written at the same time; nothing else takes time */
    predict(&p, small(1, "}\noptimizer: {optimizer_cpu_offload: true"), m);
    near("an update over the bus", p.step, (double)p.memory[0].mapped / 1e6, 1e-2);
    near("nothing else takes time", p.rank[0].dp, p.step, 1e-2);
    prediction_close(&p);
}

/* Without overlap all reductions wait for the backward. With overlap only those of the first layer and
 * the embedding are not hidden, because their backward comes last. */
static void test_data(void)
{
    const Machine *m = ideal(0.1, 1e6, 0.4, 1, "fused");
    const Config *late = small(2, "overlap_grad_reduce: false"),
                 *early = small(2, "overlap_grad_reduce: true");
    double all = 4.0 * (double)params_count(late) / 0.4e9, last = 4.0 * (12 * 512 + 1024 + 256) * 512 / 0.4e9;
    Prediction a, b;
    predict(&a, late, m);
    predict(&b, early, m);
    near("reductions that wait", a.rank[0].dp, all, 0.02);
    near("reductions that overlap", b.rank[0].dp, last, 0.01);
    near("the step is shorter by what overlaps", a.step - b.step, all - last, 0.01);
    prediction_close(&a);
    prediction_close(&b);
}

/* The step of a small model where an operation takes launch_us of the device and host_us of the host. */
static double launched_step(double launch_us, double host_us, double *host)
{
    Machine m = *ideal(1e6, 1e6, 1e6, 8, "fused");
    Prediction p;
    m.launch_us = launch_us;
    m.host_us = host_us;
    predict(&p, small(1, ""), &m);
    double step = p.step;
    *host = p.rank[0].host;
    prediction_close(&p);
    return step;
}

/* Launches queue behind the device: the step takes the longer of the two, and the wait has its name. */
static void test_launches(void)
{
    double host, device = launched_step(7, 0, &host), launches = device / 7e-6;
    CHECK(host == 0 && launches > 1000, "%g s for the host, %g operations", host, launches);
    near("launched by the host one after the other", launched_step(0, 7, &host), device, 0.01);
    near("which all wait for it", host, device, 0.01);
    near("hidden behind the device", launched_step(7, 3, &host), device, 0.001);
    CHECK(host < 1e-3 * device, "%g s for the host of %g", host, device);
    near("longer than the device", launched_step(3, 7, &host), device, 0.01);
    near("for what is longer", host, device * 4 / 7, 0.01);
}

/* Seconds of the product of [rows, terms] and [terms, cols] on ten multiprocessors of 1e11 FLOP/s each. */
static double product_s(int64_t rows, int64_t cols, int64_t terms, double fill)
{
    Machine m = *ideal(1, 1e6, 1e6, 8, "fused");
    Tally k = {.m = &m, .share = 1, .scatter = 1};
    Device d;
    m.sms = 10;
    m.tile_fill = fill;
    predict_device(&d, &k, F32);
    Mat c = mat(NULL, rows, cols, BF16);
    d.matmul(&d, c, mat(NULL, rows, terms, BF16), 0, mat(NULL, terms, cols, BF16), 0, 0);
    return k.now;
}

/* Tiles of 128 x 256 go over the multiprocessors in waves. */
static void test_tiles(void)
{
    double tile = 2. * 128 * 256 * 1024 / 1e11;
    near("ten full waves", product_s(1280, 2560, 1024, 0), 10 * tile, 1e-3);
    near("a row more, a wave more", product_s(1281, 2560, 1024, 0), 11 * tile, 1e-3);
    near("an eighth of the rows: two waves", product_s(160, 2560, 1024, 0), 2 * tile, 1e-3);
    near("eleven tiles on ten, too short to be split: three waves of halves, which are slower",
         product_s(128, 2816, 1024, 1e6), 3 * tile * (1e6 + 1024) / 1024 / 2 / 0.92, 1e-3);
    near("start and end of every tile", product_s(1280, 2560, 1024, 512), 15 * tile, 1e-3);
    CHECK(product_s(128, 256, 1 << 20, 0) < 0.2 * 1024 * tile, "the sum of one tile is split: %g s of %g",
          product_s(128, 256, 1 << 20, 0), 1024 * tile);
}

/* A group's collectives of few bytes take the floor: an all-reduce all of it, others half. */
static void test_floor(void)
{
    Machine m = *ideal(0.1, 1e6, 1e6, 8, "fused");
    Prediction p;
    m.all_reduce_floor_us = 4000;
    predict(&p, small(2, "tensor_model_parallel_size: 2"), &m);
    enum { MICROBATCHES = 16 };            /* the loss of each gathers its statistics once */
    near("all-reduces", p.rank[0].sent[AXIS_TP], (double)p.most[AXIS_TP].ops * 4e-3 - MICROBATCHES * 2e-3,
         1e-9);
    prediction_close(&p);
    predict(&p, small(2, "data_parallel_sharding_strategy: optim_grads_params"), &m);
    near("gathers and scatters, the norm's and the loss's sums", p.rank[0].sent[AXIS_DP],
         (double)p.most[AXIS_DP].ops * 2e-3, 0.05);
    prediction_close(&p);
}

/* straggle: two doublings of the nodes add twice the share to a step, and nothing inside a node. */
static void test_slowest(void)
{
    Machine m = *ideal(0.1, 1e6, 1e6, 1, "fused");
    Prediction a, b;
    predict(&a, small(4, ""), &m);
    m.straggle = 0.01;
    predict(&b, small(4, ""), &m);
    near("the slowest of four nodes", b.step, 1.02 * a.step, 1e-9);
    near("and says so", b.rank[0].slowest, 0.02 * a.step, 1e-9);
    prediction_close(&b);
    m.ranks = 4;
    predict(&b, small(4, ""), &m);
    CHECK(!(b.rank[0].slowest > 0), "one node: %g s", b.rank[0].slowest);
    prediction_close(&a);
    prediction_close(&b);
}

/* op_set separate: the forward passes of the loss move 38 bytes a logit. */
static void test_separate(void)
{
    enum { ROWS = 64 };
    Machine m = *ideal(1e6, 1e6, 1e6, 1, "separate");
    m.memory_gbps = 1;             /* of which a curve of 1.9 is taken */
    Tally k = {.m = &m, .share = 1, .scatter = 1};
    Device d;
    Mat logits = {.rows = ROWS, .cols = 1000, .ld = 1000, .type = F32},
        stats = {.rows = ROWS, .cols = 2, .ld = 2, .type = F32};
    predict_device(&d, &k, F32);
    d.xent_stats(&d, stats, logits, NULL, (RowMap){0}, 0, 1000);
    near("passes of the loss", k.work[OPKIND_xent_stats], (38.0 * ROWS * 1000 + 8 * ROWS) / 1.9e9, 1e-9);
}

/* A host of two cores, where only products take time. jitter: of tensor groups; speed: of products where
 * ranks share cores. */
static const Machine *host(double jitter, double speed)
{
    return machine_load(
        file_of("host",
                "machine: {name: host}\n"
                "device: {matmul_tflops: 1e-3, matmul_tflops_fp32: 1e-3, matmul_efficiency: [1, 1], "
                "attention_forward: 1, attention_backward: 1, memory_gbps: 1e6, memory_efficiency: [1, 1.9], "
                "launch_us: 0, memory_gib: 1, shared: true, cores: 2, op_speed_shared: [matmul, %g, linear, "
                "%g, attention_fwd, %g, attention_bwd, %g]}\n"
                "node: {ranks: 64, link_gbps: 1e6, link_latency_us: 0, jitter: %g}\n"
                "network: {network_gbps: 1e6, network_latency_us: 0, overlap: 0}\n",
                speed, speed, speed, speed, jitter));
}

static Prediction on_host(int world, const char *parallel, double jitter, double speed)
{
    Prediction p;
    predict(&p, small(world, parallel), host(jitter, speed));
    return p;
}

/* Where a host has more ranks than cores, ranks take turns: while one waits for its neighbours, another
 * uses its core. */
static void test_host(void)
{
    Prediction one = on_host(1, "", 0, 2), two = on_host(2, "pipeline_model_parallel_size: 2", 0, 1);
    Prediction four = on_host(4, "pipeline_model_parallel_size: 2", 0, 1), deep =
        on_host(4, "pipeline_model_parallel_size: 4", 0, 1);
    /* two ranks on two cores: each has its own core, which is idle while the rank waits */
    CHECK(two.step > 1.05 * one.step && two.bubble > 0.05, "a core for each rank: %g s, alone %g", two.step,
          one.step);
    near("two replicas of the pipeline leave no core idle", four.step, one.step, 2e-3);
    CHECK(four.bubble > 0.02, "a pipeline rank waits although no core does: bubble %g", four.bubble);
    /* four stages of equal cost on two cores: cores are idle only while the first or the last stage
     * computes alone */
    CHECK(deep.step > 1.001 * one.step && deep.step < 0.9 * two.step + 0.1 * one.step,
          "four stages on two cores: %g s, alone %g, two stages %g",
          deep.step, one.step, two.step);
    Prediction wide = on_host(2, "tensor_model_parallel_size: 2", 0, 1), late =
        on_host(2, "tensor_model_parallel_size: 2", 0.1, 1);
    Prediction quick = on_host(2, "tensor_model_parallel_size: 2", 0, 2);
    near("half of the arithmetic on half of the cores", wide.step, one.step, 2e-3);
    near("a tensor group waits for the last of its ranks", late.rank[0].tp, 0.1 * wide.step, 0.01);
    near("and the step is longer by that", late.step - wide.step, 0.1 * wide.step, 0.01);
    near("faster where ranks share", quick.step, wide.step / 2, 1e-3);
    Prediction *all[] = {&one, &two, &four, &deep, &wide, &late, &quick};
    for (int i = 0; i < 7; i++)
        prediction_close(all[i]);
}

/* Where ranks take turns on cores, moving the bytes of the data group takes the cores' time, whenever it is
 * done. And a step takes longer by `crowding`, but not where each rank has a core. */
static void test_crowding(void)
{
    Machine m = *host(0, 1);
    m.link_gbps = 1e-3;
    static const char *const split[] = {"data_parallel_sharding_strategy: no_shard",
                                        "data_parallel_sharding_strategy: optim_grads_params",
                                        "pipeline_model_parallel_size: 2"};
    for (size_t i = 0; i < sizeof split / sizeof *split; i++) {
        Prediction p[3];
        for (int k = 0; k < 3; k++) {
            char text[160];
            snprintf(text, sizeof text, "overlap_grad_reduce: %s, %s", k == 1 ? "true" : "false", split[i]);
            m.crowding = k == 2 ? 0.25 : 0;
            predict(&p[k], small(4, text), &m);
        }
        near("messages beside computing", p[1].step, p[0].step, 1e-6);
        CHECK(p[0].rank[0].dp > 0.05 * p[0].step, "messages are too short to be seen: %g of %g s",
              p[0].rank[0].dp, p[0].step);
        near("crowding", p[2].step, 1.25 * p[0].step, 1e-9);
        near("crowding is told apart", p[2].rank[0].slowest, 0.25 * p[0].step, 1e-9);
        for (int k = 0; k < 3; k++)
            prediction_close(&p[k]);
    }
    Prediction two;
    predict(&two, small(2, "tensor_model_parallel_size: 2"), &m);
    CHECK(two.rank[0].slowest == 0, "a core for each rank, and %g s lost", two.rank[0].slowest);
    prediction_close(&two);
}

/* ---- keys of machines that only hosts have ---- */

/* Seconds of an all-reduce of 4 MB by n ranks. name: group, "tp" or "dp"; crowd: more ranks than cores. */
static double reduced(Machine *m, const char *name, int n, int crowd)
{
    Tally k = {.m = m, .share = 1, .scatter = 1, .crowd = crowd};
    Grid g = {.rank = 0};
    Comm c = {0};
    predict_group(&k, &g, &c, name, (int[]){0, 1, 2, 3}, n);
    c.wait(&c, c.all_reduce(&c, NULL, 1 << 20, F32, OP_SUM));
    c.close(&c);
    return k.now;
}

/* Seconds of a message of 4 MB to a neighbour. crowd: more ranks than cores. */
static double sent(Machine *m, int crowd)
{
    Tally k = {.m = m, .share = 1, .scatter = 1, .crowd = crowd};
    Grid g = {.rank = 0};
    Comm c = {0};
    predict_group(&k, &g, &c, "pp", (int[]){0, 1}, 2);
    c.send(&c, NULL, 1 << 20, F32, 1);
    c.close(&c);
    return k.message;
}

/* With more ranks than cores, each pass of a ring and each message takes link_latency_crowded_us.
 * Messages of the data group have the bandwidth link_cold_gbps. */
static void test_waits(void)
{
    Machine m = *ideal(1, 8, 1, 64, "fused");
    double bytes = 4 << 20;
    m.link_latency_us = 3;
    near("a cold link that is not described", reduced(&m, "dp", 2, 0), bytes / 8e9 + 6e-6, 1e-6);
    near("too few cores, where that is not described", reduced(&m, "tp", 2, 1), bytes / 8e9 + 6e-6, 1e-6);
    m.link_cold_gbps = 2;
    m.link_latency_crowded_us = 50;
    near("gradients are cold", reduced(&m, "dp", 2, 0), bytes / 2e9 + 6e-6, 1e-6);
    near("what was just computed is not", reduced(&m, "tp", 2, 0), bytes / 8e9 + 6e-6, 1e-6);
    near("a ring of ranks that sleep while they wait", reduced(&m, "tp", 2, 1), bytes / 8e9 + 100e-6, 1e-6);
    near("four ranks that are awake", reduced(&m, "tp", 4, 0), 1.5 * bytes / 8e9 + 18e-6, 1e-6);
    near("four ranks that sleep once a pass", reduced(&m, "tp", 4, 1), 1.5 * bytes / 8e9 + 100e-6, 1e-6);
    near("a message to one that is awake", sent(&m, 0), bytes / 8e9 + 3e-6, 1e-6);
    near("a message to one that sleeps", sent(&m, 1), bytes / 8e9 + 50e-6, 1e-6);
}

static double multiplied(const Machine *m, int64_t rows, int acc)
{
    Tally k = {.m = m, .share = 0.5, .scatter = 1};
    Device d;
    predict_device(&d, &k, F32);
    Mat x = {.rows = rows, .cols = 320, .type = F32}, w = {.rows = 1280, .cols = 320, .type = F32};
    Mat y = {.rows = rows, .cols = 1280, .type = F32};
    if (acc)
        d.matmul(&d, w, y, 1, x, 0, 1);
    else
        d.linear(&d, y, x, w, (Mat){0});
    return k.now;
}

/* Products on half of a device of 0.2 TFLOP/s, with matmul_gbps 16: 64 rows take more than a quarter of
 * the time of 256. */
static void test_rows(void)
{
    Machine m = *ideal(0.2, 1, 1, 64, "fused");
    for (int64_t rows = 64; rows <= 256; rows *= 4) {
        double flops = 2.0 * (double)rows * 320 * 1280,
               bytes = 4.0 * ((double)rows * (320 + 1280) + 320 * 1280);
        m.matmul_gbps = NAN;
        near("arithmetic alone", multiplied(&m, rows, 0), flops / 0.1e12, 1e-6);
        m.matmul_gbps = 16;
        near("and the bytes beside it", multiplied(&m, rows, 0), flops / 0.1e12 + bytes / 8e9, 1e-6);
        near("a gradient added to", multiplied(&m, rows, 1), flops / 0.1e12 + (bytes + 4 * 320 * 1280) / 8e9,
             1e-6);
    }
}

/* 96 pipeline ranks with 3,072 microbatches. The time is printed for the benchmarks; no check reads it. */
static void test_size(const Machine *m)
{
    static const Row row = {"size", 96, 12288, 96, 8, 96, 3072, 12288, 1, 1};
    clock_t start = clock();
    Prediction p;
    predict(&p, published(&row, 0, SELECTIVE), m);
    prediction_close(&p);
    double took = (double)(clock() - start) / CLOCKS_PER_SEC;
    printf("# predicting 3,072 ranks takes %.2f s of CPU time\n", took);
}

int main(void)
{
    if (!mkdtemp(folder))
        return 1;
    const Machine *m = machine_load("a100-80gb-2022");
    test_memory(m);
    test_arithmetic();
    test_messages();
    test_context();
    test_turns();
    test_offload();
    test_data();
    test_host();
    test_crowding();
    test_waits();
    test_rows();
    test_slowest();
    test_launches();
    test_tiles();
    test_floor();
    test_separate();
    test_size(m);
    char *rm[] = {"published", "ideal", "small", "host"};
    for (int i = 0; i < 4; i++) {
        char path[300];
        snprintf(path, sizeof path, "%s/%s.yaml", folder, rm[i]);
        unlink(path);
    }
    rmdir(folder);
    return test_end();
}
