/* test_traffic -- messages and bytes of a step with context parallelism or experts: counted by the groups of
 * a real run, planned by its rehearsal, predicted by a walk, and by hand; FLOPs of the ranks beside each
 * other. mpirun -n 2, 4 or 8 */
#include "job.h"
#include "predict.h"
#include "run_costs.h"
#include "test.h"
#include <sys/stat.h>
#include <unistd.h>

enum { LAYERS = 4, HEADS = 8, KV_HEADS = 4, DIM = 4, POSITIONS = 64, BATCH = 8, VOCAB = 64, ARGS = 12,
       EXPERTS = 8, VISITS = 2 };

#define BASE                                                                                                 \
    "model: {num_layers: 4, hidden_size: 32, num_attention_heads: 8, num_query_groups: 4, seq_length: 64, "  \
    "vocab_size: 64, make_vocab_size_divisible_by: 8, position_embedding_type: rope, hidden_dropout: 0, "    \
    "attention_dropout: 0, untie_embeddings_and_output_weights: true}\n"                                     \
    "train: {micro_batch_size: 1, global_batch_size: 8, train_iters: 9}\n"                                   \
    "data: {tokenizer_type: none}\n"                                                                         \
    "precision: {threads: 1}\n"

/* world, tp, cp, pp; the rest as arguments */
typedef struct { int world, tp, cp, pp; const char *more[ARGS]; } Case;

#define TP "tensor_model_parallel_size=2"
#define PP "pipeline_model_parallel_size=2"
#define FULL "recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=1"
#define EP "num_moe_experts=8", "moe_router_topk=2", "moe_ffn_hidden_size=16", "moe_router_force=uniform"
#define EP2 "expert_model_parallel_size=2", EP
#define EP4 "expert_model_parallel_size=4", EP
static const Case cases[] = {
    {2, 1, 1, 1, {EP2, "params_dtype=bf16", "eod_mask_loss=true"}},
    {2, 1, 1, 1, {EP2, FULL}},
    {2, 1, 1, 1, {EP2, "moe_token_dispatcher_type=allgather", "params_dtype=bf16"}},
    {2, 1, 1, 1, {EP2, "moe_token_dispatcher_type=allgather", FULL}},
    {4, 1, 1, 1, {EP4, "moe_shared_expert_intermediate_size=16", "add_bias_linear=false"}},
    {4, 1, 1, 1, {EP4, "moe_token_dispatcher_type=allgather"}},
    {4, 1, 1, 2, {PP, EP2, "pipeline_schedule=zb-h1"}},
    {2, 1, 2, 1, {"cp_comm_type=[p2p]", "params_dtype=fp64"}},
    {2, 1, 2, 1, {"cp_comm_type=[p2p]", "window_size=8"}},
    {2, 1, 2, 1, {"cp_comm_type=[allgather]", FULL}},
    {2, 1, 2, 1, {"cp_comm_type=[a2a]", "params_dtype=bf16"}},
    {2, 1, 2, 1, {"cp_comm_type=[p2p, allgather, a2a, p2p]"}},
    {4, 1, 4, 1, {"cp_comm_type=[p2p]", "data_parallel_sharding_strategy=optim_grads_params"}},
    {4, 1, 4, 1, {"cp_comm_type=[allgather]", "params_dtype=bf16", "data_parallel_sharding_strategy=optim"}},
    {4, 1, 4, 1, {"cp_comm_type=[a2a]", FULL, "data_parallel_sharding_strategy=optim_grads"}},
    {4, 1, 4, 1, {"cp_comm_type=[a2a+p2p]", "hierarchical_context_parallel_sizes=[2, 2]", FULL}},
    {4, 1, 4, 1, {"cp_comm_type=[a2a+p2p, p2p, a2a, allgather]",
                  "hierarchical_context_parallel_sizes=[2, 2]", "params_dtype=bf16"}},
    {4, 1, 2, 2, {PP, "cp_comm_type=[p2p]", "pipeline_schedule=zb-h1"}},
    {4, 1, 2, 2, {PP, "cp_comm_type=[allgather]", "num_virtual_stages_per_pipeline_rank=2"}},
    {4, 2, 2, 1, {TP, "cp_comm_type=[p2p]", "sequence_parallel=true"}},
    {4, 1, 2, 1, {"cp_comm_type=[a2a]", "data_parallel_sharding_strategy=optim_grads_params",
                  "overlap_grad_reduce=true", "overlap_param_gather=true"}},
    {4, 1, 2, 1, {"cp_comm_type=[a2a]", "params_dtype=bf16", "grad_reduce_in_bf16=true"}},
    {4, 1, 2, 1, {"cp_comm_type=[a2a]", "data_parallel_sharding_strategy=optim_grads", "params_dtype=bf16",
                  "grad_reduce_in_bf16=true"}},
    {4, 1, 2, 1, {"cp_comm_type=[a2a]", "data_parallel_sharding_strategy=optim", "params_dtype=bf16",
                  "main_grads_dtype=bf16"}},
    {8, 2, 2, 2, {TP, PP, "cp_comm_type=[a2a]", "sequence_parallel=true", "pipeline_schedule=zb-v"}},
    {8, 1, 4, 2, {PP, "cp_comm_type=[a2a+p2p]", "hierarchical_context_parallel_sizes=[2, 2]",
                  "pipeline_schedule=zb-auto", "data_parallel_sharding_strategy=optim"}},
    {8, 2, 4, 1, {TP, "cp_comm_type=[p2p]", "params_dtype=bf16"}},
    {8, 1, 8, 1, {"cp_comm_type=[p2p]", "data_parallel_sharding_strategy=optim_grads"}},
    {8, 1, 8, 1, {"cp_comm_type=[a2a+p2p]", "hierarchical_context_parallel_sizes=[4, 2]"}},
    {8, 1, 8, 1, {"cp_comm_type=[allgather]", "params_dtype=bf16"}},
    {8, 2, 4, 1, {TP, "cp_comm_type=[a2a+p2p]", "hierarchical_context_parallel_sizes=[2, 2]", FULL}},
};
enum { CASES = sizeof cases / sizeof *cases };

static char file[512];
static int rank, world;

static const Config *configure(const Case *k)
{
    static char context[64];
    char *args[ARGS + 2];
    static char isa[32];
    int n = 0;
    snprintf(context, sizeof context, "context_parallel_size=%d", k->cp);
    snprintf(isa, sizeof isa, "cpu_isa=%s", test_isa());
    args[n++] = context;
    args[n++] = isa;
    for (int i = 0; i < ARGS && k->more[i]; i++)
        args[n++] = (char *)k->more[i];
    return config_load(file, n, args, k->world, USE_MODEL);
}

/* A microbatch of any tokens: messages do not depend on them. */
static const Batch *any_tokens(void *run, int mb)
{
    static int32_t tokens[POSITIONS], position[POSITIONS];
    static float mask[POSITIONS];
    static int64_t sample[1];
    static Batch batch;
    Positions own = context_own(&((Run *)run)->model.now.context);
    sample[0] = mb;
    for (const PositionRun *p = own.run; p < own.run + own.count; p++)
        for (int i = 0; i < p->n; i++) {
            tokens[p->row + i] = (p->start + i + mb) % VOCAB;
            position[p->row + i] = p->start + i;
            mask[p->row + i] = 1;
        }
    batch = (Batch){1, POSITIONS, own, tokens, tokens, position, NULL, mask, sample};
    return &batch;
}

/* ---- by hand ---- */

/* Adds the messages of one layer and microbatch on the context axis, as configs/README.md gives them.
 * again: times that the layer's forward is repeated. */
static void by_hand(const Case *k, const char *kind, int again, double b, double real, double out[2])
{
    int c = k->cp, heads = !strcmp(kind, "a2a") ? c : !strcmp(kind, "a2a+p2p") ? c == 8 ? 4 : 2 : 1,
        gather = !strcmp(kind, "allgather") ? c : 1, ring = c / heads / gather, forwards = 1 + again;
    double T = (double)POSITIONS / c, Q = HEADS * DIM / k->tp, KV = 2.0 * KV_HEADS * DIM / k->tp;
    if (heads > 1) {
        out[0] += 2 * forwards + 3;
        out[1] += b * T * (forwards * (Q + KV + Q) + 2 * Q + Q + KV);
    }
    if (gather > 1) {
        out[0] += forwards + 2;
        out[1] += T * KV * ((forwards + 1) * b + gather * real);
    }
    out[0] += 2 * (ring - 1) * (forwards + 2);
    out[1] += (ring - 1) * T * KV * ((forwards + 1) * b + real);
}

/* Adds the messages of one layer with experts and microbatch on the expert axis. */
static void experts_by_hand(const Config *c, int again, double b, double real, double out[2])
{
    double ep = (double)c->expert_model_parallel_size, R = POSITIONS, H = HEADS * DIM;
    double rows = R * VISITS / ep * (ep - 1);  /* pairs for other ranks */
    if (ep == 1)
        return;
    if (c->moe_token_dispatcher_type == MOE_TOKEN_DISPATCHER_TYPE_ALLGATHER) {
        /* forward and backward: two lists and the rounds; rows and weights one way, sums the other way */
        out[0] += 2 * 3 + 3 + 3 + 2 * again;
        out[1] += 2 * (EXPERTS * 8 + R * VISITS * 4 + 8) + (2 + again) * R * H * b +
                  (1 + again) * R * VISITS * real + ep * (2 * R * H * b + R * VISITS * real);
        return;
    }
    out[0] += 2 * 2 + 2 * (ep - 1) * (3 + 3 + 2 * again);
    out[1] += 2 * (EXPERTS * 8 + 8) + rows * ((4 + again) * H * b + (2 + again) * real);
}

/* Messages of a step on the context or expert axis of a rank with LAYERS / pp layers. */
static void step_by_hand(const Case *k, const Config *c, double out[2])
{
    int full = c->recompute_granularity == RECOMPUTE_GRANULARITY_FULL;
    double b = c->params_dtype == PARAMS_DTYPE_FP64 ? 8 : c->params_dtype == PARAMS_DTYPE_BF16 ? 2 : 4;
    double real = b == 8 ? 8 : 4, m = (double)(BATCH / c->data_parallel_size);
    out[0] = out[1] = 0;
    for (int i = 0; i < LAYERS / k->pp && c->num_moe_experts != CFG_ABSENT; i++)
        experts_by_hand(c, full, b, real, out);
    for (int i = 0; i < LAYERS / k->pp && c->num_moe_experts == CFG_ABSENT; i++)
        by_hand(k, c->cp_comm_type.v[c->cp_comm_type.n > 1 ? i : 0], full, b, real, out);
    out[0] *= m;
    out[1] *= m;
}

/* ---- counted ---- */

static void check_prediction(const Case *k, const Config *c, const Traffic *each, const Machine *machine)
{
    Prediction p;
    predict(&p, c, machine);
    for (int a = 0; a < AXES; a++) {
        int64_t most = 0, same = 0;
        for (int r = 0; r < world; r++)
            most = each[r * AXES + a].bytes > most ? each[r * AXES + a].bytes : most;
        for (int r = 0; r < world; r++)
            same |= !memcmp(&each[r * AXES + a], &p.most[a], sizeof *each);
        CHECK(p.most[a].bytes == most && same, "%s %s: %lld messages, %lld bytes predicted; most is %lld",
              k->more[0], grid_axis_name[a], (long long)p.most[a].ops, (long long)p.most[a].bytes,
              (long long)most);
    }
    prediction_close(&p);
}

static void check(const Case *k, const Machine *machine)
{
    const Config *c = configure(k);
    static Run r;
    Metrics m = {0};
    Traffic from[AXES], to[AXES];
    double hand[2];
    run_open(&r, c, RUN_TRAIN, 0, NULL);
    r.step.feed = any_tokens;
    r.step.metrics = &m;
    run_gradients(&r);                         /* gathers of parameters may reach into the next step */
    run_traffic(&r.grid, from);
    run_gradients(&r);
    run_traffic(&r.grid, to);
    Traffic *each = xcalloc((size_t)(world * AXES), sizeof *each);
    for (int a = 0; a < AXES; a++) {
        const Traffic *plan = &r.plan.traffic[a];
        to[a] = (Traffic){to[a].ops - from[a].ops, to[a].bytes - from[a].bytes};
        CHECK(to[a].ops == plan->ops && to[a].bytes == plan->bytes,
              "%s rank %d %s: %lld messages, %lld bytes counted; %lld and %lld planned", k->more[0], rank,
              grid_axis_name[a], (long long)to[a].ops, (long long)to[a].bytes, (long long)plan->ops,
              (long long)plan->bytes);
    }
    step_by_hand(k, c, hand);
    const Traffic *axis = &to[c->num_moe_experts == CFG_ABSENT ? AXIS_CP : AXIS_EP];
    CHECK((double)axis->ops == hand[0] && (double)axis->bytes == hand[1],
          "%s rank %d: %lld messages, %lld bytes; by hand %.0f and %.0f", k->more[0], rank,
          (long long)axis->ops, (long long)axis->bytes, hand[0], hand[1]);
    Comm *all = &r.grid.all;
    all->wait(all, all->all_gather(all, each, to, AXES * 2, I64));
    run_close(&r);
    if (rank == 0)
        check_prediction(k, c, each, machine);
    free(each);
}

int main(void)
{
    world = job_launched(&rank);
    snprintf(file, sizeof file, "%s/%d", getenv("WORK") ? getenv("WORK") : "/tmp", rank);
    mkdir(file, 0700);
    strcat(file, "/traffic.yaml");     /* one name on all ranks, which compare it */
    FILE *f = fopen(file, "w");
    fputs(BASE, f);
    fclose(f);
    const Machine *machine = machine_load("h100");
    for (int i = 0; i < CASES; i++)
        if (cases[i].world == world)
            check(&cases[i], machine);
    unlink(file);
    return test_end();
}
