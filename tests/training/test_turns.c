/* test_turns -- an F and a B that run by turns (overlap_moe_expert_parallel_comm) on two, four, eight ranks:
 *   every loss and weight has the bits of a run without it, in fp64 and bf16
 *   both lanes use memory of their own, within what was planned for them
 *   ranks of one tensor group whose expert groups need other numbers of rounds do not wait for each other
 *   rows of one microbatch are on their way while the other computes */
#include "layout_compare.h"

static const char *const model[] = {"num_layers=4",
                                    "num_attention_heads=4",
                                    "ffn_hidden_size=24",
                                    "seq_length=8",
                                    "global_batch_size=16",
                                    "micro_batch_size=1",
                                    "make_vocab_size_divisible_by=1",
                                    "position_embedding_type=none",
                                    "activation=swiglu",
                                    "add_bias_linear=false",
                                    "untie_embeddings_and_output_weights=true",
                                    "hidden_dropout=0.1",
                                    "sequence_parallel=true",
                                    "num_moe_experts=4",
                                    "moe_router_topk=2",
                                    "moe_ffn_hidden_size=12",
                                    "moe_shared_expert_intermediate_size=8",
                                    "moe_aux_loss_coeff=0.1",
                                    "moe_z_loss_coeff=0.01"};
enum { MODEL = sizeof model / sizeof *model };

/* ranks: of the world. */
static const struct { int ranks; const char *args[7]; } cases[] = {
    {2, {"expert_model_parallel_size=2"}},
    {2, {"expert_model_parallel_size=2", "context_parallel_size=2"}},
    {2, {"expert_model_parallel_size=2", "moe_layer_freq=[0, 1, 1, 0]", "recompute_granularity=full",
         "recompute_method=uniform", "recompute_num_layers=1"}},
    {2, {"expert_model_parallel_size=2", "tensor_model_parallel_size=2", "expert_tensor_parallel_size=1",
         "recompute_granularity=selective"}},
    {4, {"expert_model_parallel_size=4", "overlap_grad_reduce=true", "overlap_param_gather=true",
         "data_parallel_sharding_strategy=optim"}},
    {4, {"expert_model_parallel_size=2", "expert_tensor_parallel_size=2"}},
    {4, {"expert_model_parallel_size=4", "moe_token_dispatcher_type=allgather"}},
    {4, {"expert_model_parallel_size=2", "expert_tensor_parallel_size=1", "tensor_model_parallel_size=4",
         "tp_comm_overlap=true"}},
    {4, {"expert_model_parallel_size=2", "pipeline_model_parallel_size=2", "overlap_grad_reduce=true"}},
    {4, {"expert_model_parallel_size=2", "pipeline_model_parallel_size=2",
         "num_virtual_stages_per_pipeline_rank=2"}},
    {4, {"expert_model_parallel_size=2", "pipeline_model_parallel_size=2", "pipeline_schedule=dualpipev",
         "tensor_model_parallel_size=2", "expert_tensor_parallel_size=1"}},
    {8, {"expert_model_parallel_size=4", "pipeline_model_parallel_size=2", "pipeline_schedule=dualpipev"}},
    {8, {"expert_model_parallel_size=4", "pipeline_model_parallel_size=2", "tensor_model_parallel_size=2",
         "expert_tensor_parallel_size=1", "context_parallel_size=2"}},
    {8, {"expert_model_parallel_size=2", "pipeline_model_parallel_size=4",
         "pipeline_model_parallel_layout=Et|t|t|tL"}},
};
enum { CASES = sizeof cases / sizeof *cases, STEPS = 3 };

/* ---- who does what when ---- */

/* kind: 'S' rows are sent to other ranks, 'W' they are awaited, 'M' a product of matrices. */
typedef struct { char kind; int lane; } Event;
static struct {
    Run *run;
    Comm ep;                   /* as it was */
    void (*matmul)(Device *, Mat, Mat, int, Mat, int, int);
    void (*linear)(Device *, Mat, Mat, Mat, Mat);
    Event *event;
    int n;
} heard;

static void hear(char kind)
{
    heard.event = xgrow(heard.event, heard.n, sizeof *heard.event);
    heard.event[heard.n++] = (Event){kind, heard.run->model.pair.lane};
}

static Token heard_send(Comm *c, const void *buf, int64_t n, Dtype type, int peer)
{
    hear('S');
    return heard.ep.send(c, buf, n, type, peer);
}

static Token heard_gather(Comm *c, void *out, const void *in, int64_t n, Dtype type)
{
    hear('S');
    return heard.ep.all_gather(c, out, in, n, type);
}

static void heard_wait(Comm *c, Token t)
{
    if (t)
        hear('W');
    heard.ep.wait(c, t);
}

static void heard_matmul(Device *d, Mat y, Mat a, int ta, Mat b, int tb, int add)
{
    hear('M');
    heard.matmul(d, y, a, ta, b, tb, add);
}

static void heard_linear(Device *d, Mat y, Mat x, Mat w, Mat b)
{
    hear('M');
    heard.linear(d, y, x, w, b);
}

static void listen(Run *r)
{
    Comm *ep = &r->grid.expert[EXPERT_EP];
    heard.run = r;
    heard.ep = *ep;
    heard.n = 0;
    heard.matmul = r->dev.matmul;
    ep->send = heard_send;
    ep->all_gather = heard_gather;
    ep->wait = heard_wait;
    r->dev.matmul = heard_matmul;
    heard.linear = r->dev.linear;
    r->dev.linear = heard_linear;
}

/* The sends of one lane that are under way while the other lane multiplies. */
static int hidden(void)
{
    int n = 0;
    for (int i = 0; i < heard.n; i++) {
        int lane = heard.event[i].lane, beside = 0;
        if (heard.event[i].kind != 'S')
            continue;
        for (int k = i + 1; k < heard.n; k++) {
            const Event *e = &heard.event[k];
            beside |= e->kind == 'M' && e->lane != lane;
            if (e->kind == 'W' && e->lane == lane)
                break;
        }
        n += beside;
    }
    return n;
}

static int sends(void)
{
    int n = 0;
    for (int i = 0; i < heard.n; i++)
        n += heard.event[i].kind == 'S';
    return n;
}

/* ---- one layout with and without ---- */

typedef struct {
    uint64_t bits;             /* of losses, norm and weights */
    int hidden, sends, pairs;
    int64_t rounds;            /* of this rank's last dispatch */
} Seen;

static Seen run_case(const char *const *args, const char *dtype, int turns)
{
    static Run r;
    static Words a;
    Result res = {0};
    a.n = 0;
    for (int i = 0; i < MODEL; i++)
        set_arg(&a, model[i]);
    for (; *args; args++)
        set_arg(&a, *args);
    add_arg(&a, "cpu_isa", test_isa());
    set_arg(&a, dtype);
    set_arg(&a, turns ? "overlap_moe_expert_parallel_comm=true" : "overlap_moe_expert_parallel_comm=false");
    r = (Run){0};
    open_run(&r, configure(&a, world), RUN_TRAIN, NULL);
    listen(&r);
    train(&r, STEPS, &res);
    const Schedule *list = &r.plan.lists[0].train;
    Seen seen = {.hidden = hidden(), .sends = sends(), .rounds = r.model.experts.rounds};
    for (int i = 0; i < list->n; i++)
        seen.pairs += STEPS * (instr_together(list->list, list->n, i) == 2);
    double sums[] = {res.loss[0], res.loss[1], res.loss[2], res.norm};
    seen.bits = hash64(sums, sizeof sums, 1);
    Whole w = whole_open(r.cfg);
    double *weights = gather(&r, &w, 1);
    seen.bits = hash64(weights, (size_t)w.elems * sizeof *weights, seen.bits);
    free(weights);
    free(w.at);
    const Arena *s[] = {&r.model.scratch, &r.model.pair.other.scratch};
    for (int i = 0; i <= turns; i++)
        CHECK(s[i]->peak > 0 && s[i]->peak <= s[i]->size, "scratch of lane %d: %zu, planned %zu\n#   %s", i,
              s[i]->peak, s[i]->size, current);
    CHECK(isfinite(res.loss[2]) && res.loss[2] > 0 && res.norm > 0, "loss %g\n#   %s", res.loss[2], current);
    layouts++;
    run_close(&r);
    return seen;
}

static int second_token;

/* Both halves of a sample are one token again and again, whose experts are on one rank or on two. */
static void two_tokens(Sample *x, const Config *c, int64_t s)
{
    sample_text(x, c, s);
    for (int i = 0; i < c->seq_length; i++)
        x->token[i] = i < c->seq_length / 2 ? 3 : second_token;
}

/* The least and the largest x of all ranks. */
static void range(int64_t x, int64_t *least, int64_t *most)
{
    Grid g;
    GridSpec spec = grid_along(AXIS_DP, world);
    grid_open(&g, &spec, world, rank);
    *least = *most = x;
    g.all.wait(&g.all, g.all.all_reduce(&g.all, least, 1, I64, OP_MIN));
    g.all.wait(&g.all, g.all.all_reduce(&g.all, most, 1, I64, OP_MAX));
    grid_close(&g);
}

/* Runs the layout without turns and with them. Sends that are under way during the other lane's products:
 * none without turns, with them one for each pair and more. */
static void both(const char *const *args, const char *dtype)
{
    int64_t least, most, fewest;
    Seen without = run_case(args, dtype, 0), with = run_case(args, dtype, 1);
    range(without.bits == with.bits, &least, &most);
    CHECK(least == 1, "other bits with turns\n#   %s", current);
    range(without.hidden, &fewest, &most);
    CHECK(most == 0, "%lld sends beside another lane without turns\n#   %s", (long long)most, current);
    range(with.pairs && !without.pairs, &least, &most);
    CHECK(least == 1, "a rank has %d pairs, without turns %d\n#   %s", with.pairs, without.pairs, current);
    range(with.hidden - with.pairs, &least, &most);
    CHECK(least >= 0, "%d of %d sends beside products in %d pairs\n#   %s", with.hidden, with.sends,
          with.pairs, current);
    if (rank == 0 && getenv("VERBOSE"))
        fprintf(stderr, "%d of %d sends beside products, %d pairs\n", with.hidden, with.sends, with.pairs);
    CHECK(without.sends == with.sends, "%d sends, with turns %d\n#   %s", without.sends, with.sends, current);
}

/* Two expert groups of one tensor group need one round and two. */
static void uneven(void)
{
    static const char *const args[] = {"tensor_model_parallel_size=4", "expert_model_parallel_size=2",
                                       "expert_tensor_parallel_size=1", "seq_length=32", "num_layers=1",
                                       "hidden_dropout=0", NULL};
    int64_t least = 0, most = 0;
    text_source = two_tokens;
    for (second_token = 0; second_token < 19 && least == most; second_token++)
        range(run_case(args, "params_dtype=fp64", 0).rounds, &least, &most);
    second_token--;
    CHECK(least == 1 && most == 2, "all ranks have %lld rounds", (long long)least);
    both(args, "params_dtype=fp64");
    text_source = sample_text;
}

int main(void)
{
    double start = now();
    layouts_open();
    for (int i = 0; i < CASES; i++)
        if (cases[i].ranks == world) {
            both(cases[i].args, "params_dtype=fp64");
            both(cases[i].args, "params_dtype=bf16");
        }
    if (world == 4)
        uneven();
    free(heard.event);
    return layouts_close(start);
}
