/* test_gradient_types -- gradients of 16 bits: mpirun -n 2, data parallelism alone.
 *
 * exact    A run in F32 records what each rank has of each microbatch's gradient, and of the step's, at the
 *          moment it is sent. From these numbers the rules of the two options are worked out here, with every
 *          rounding written down; the runs with main_grads_dtype bf16 and grad_reduce_in_bf16 have the same
 *          bits in every ZeRO stage, and with overlap
 * zeros    of BF16 are counted
 * bytes    on the wire and in memory
 * trained  forty steps stay close to those of F32, and ZeRO 0 and 1, and 2 and 3, have the same bits
 *
 * With mpirun -n 4: shards that have copies, whose sum is rounded as well. */
#include "half.h"
#include "layout_run.h"

enum { RANKS = 2, PER_RANK = 3, STEPS = 40 };
static const char *const stages[] = {"no_shard", "optim", "optim_grads", "optim_grads_params"};
typedef enum { AS_F32, SENT, KEPT, BOTH, MODES } Mode;
static const char *const modes[MODES][2] = {{"main_grads_dtype=fp32", "grad_reduce_in_bf16=false"},
                                            {"main_grads_dtype=fp32", "grad_reduce_in_bf16=true"},
                                            {"main_grads_dtype=bf16", "grad_reduce_in_bf16=false"},
                                            {"main_grads_dtype=bf16", "grad_reduce_in_bf16=true"}};

static const Config *config_for(Mode mode, int stage, const char *more)
{
    static const char *const model[] = {
        "params_dtype=bf16", "num_layers=2", "num_attention_heads=2", "seq_length=16", "micro_batch_size=2",
        "global_batch_size=12", "init_method_std=0.1", "untie_embeddings_and_output_weights=true",
        "logits_slice_rows=32", NULL};
    static Words a;
    char text[64];
    a = (Words){0};
    for (const char *const *m = model; *m; m++)
        add_arg(&a, *m, NULL);
    snprintf(text, sizeof text, "data_parallel_sharding_strategy=%s", stages[stage]);
    set_arg(&a, text);
    if (world == 2 * RANKS)
        set_arg(&a, "global_batch_size=16");
    set_arg(&a, modes[mode][0]);
    set_arg(&a, modes[mode][1]);
    if (more)
        set_arg(&a, more);
    return configure(&a, world);
}

/* ---- what is sent ---- */

static struct {
    Data *data;
    float *part;                       /* [PER_RANK][elems]: what this rank sent each time; NULL: not kept */
    int64_t sent, bytes, calls;        /* elements; their bytes */
    Token (*all_reduce)(Comm *c, void *buf, int64_t n, Dtype type, ReduceOp op);
    Token (*reduce_scatter)(Comm *c, void *recv, const void *send, int64_t n, Dtype type, ReduceOp op);
} tap;

static void note(const void *buf, int64_t n, Dtype type)
{
    Data *d = tap.data;
    tap.sent += n, tap.bytes += n * (int64_t)dtype_size(type), tap.calls++;
    for (int b = 0; b < d->buckets && tap.part; b++)
        if (d->bucket[b].grad == buf) {
            BUG_ON(type != F32 || n != d->bucket[b].n || d->bucket[b].reduced >= PER_RANK);
            memcpy(tap.part + d->bucket[b].reduced * d->elems + d->bucket[b].at, buf, (size_t)n * 4);
        }
}

static Token tapped_all_reduce(Comm *c, void *buf, int64_t n, Dtype type, ReduceOp op)
{
    note(buf, n, type);
    return tap.all_reduce(c, buf, n, type, op);
}

static Token tapped_reduce_scatter(Comm *c, void *recv, const void *send, int64_t n, Dtype type, ReduceOp op)
{
    note(send, n * c->size, type);
    return tap.reduce_scatter(c, recv, send, n, type, op);
}

/* Computes the gradients of a step; parts: out: [PER_RANK][elems], NULL: not wanted. */
static void gradients(Run *r, float *parts)
{
    Comm *whole = data_groups(&r->params.data, 0)->data, *shard = data_groups(&r->params.data, 0)->shard;
    tap.data = &r->params.data;
    tap.part = parts;
    tap.sent = tap.bytes = tap.calls = 0;
    tap.all_reduce = whole->all_reduce, whole->all_reduce = tapped_all_reduce;
    tap.reduce_scatter = shard->reduce_scatter, shard->reduce_scatter = tapped_reduce_scatter;
    r->step.metrics = NULL;
    run_gradients(r);
    whole->all_reduce = tap.all_reduce;
    shard->reduce_scatter = tap.reduce_scatter;
}

/* What all ranks sent in a step of F32: [RANKS][PER_RANK][elems]. */
static float *recorded(int stage, int64_t *elems)
{
    Run r = {0};
    open_run(&r, config_for(AS_F32, stage, NULL), RUN_TRAIN, NULL);
    *elems = r.params.data.elems;
    int64_t n = PER_RANK * *elems;
    float *own = xcalloc((size_t)n, sizeof *own), *all = xcalloc((size_t)(RANKS * n), sizeof *all);
    gradients(&r, own);
    Comm *c = &r.grid.all;
    c->wait(c, c->all_gather(c, all, own, n, F32));
    run_close(&r);
    free(own);
    return all;
}

/* ---- the rules ---- */

static float rounded(float x) { return bf16_to_f32(f32_to_bf16(x)); }

/* Element i of the step's gradient. part: of the run that sends every microbatch; whole: of the run that
 * sends the step's sum. */
static float expected(Mode mode, int stage, const float *part, const float *whole, int64_t elems, int64_t i)
{
    float sum = 0, local[RANKS] = {0};
    for (int m = 0; m < PER_RANK; m++) {
        float over_ranks = 0;
        for (int r = 0; r < RANKS; r++) {
            float x = part[(r * PER_RANK + m) * elems + i];
            over_ranks += rounded(x);
            local[r] = rounded(local[r] + x);
        }
        sum += rounded(over_ranks);
        sum = mode == SENT ? sum : rounded(sum);
    }
    if (stage >= 2)
        return sum;
    if (mode == SENT)
        return rounded(rounded(whole[i]) + rounded(whole[PER_RANK * elems + i]));
    return rounded(local[0] + local[1]);
}

/* The zeros of a gradient in BF16 are counted, whatever their sign; the smallest number is none. Plants four
 * numbers on each rank. */
static void check_zeros_of_bf16(Run *r)
{
    static const uint16_t planted[] = {0, 0x8000, 1, 0x8001};
    enum { N = sizeof planted / sizeof *planted };
    Params *p = &r->params;
    uint16_t *at = NULL;
    double before = optimizer_zeros(&r->opt);
    for (int i = 0, others = 0; i < p->nparam && !others; i++) {
        const Param *t = &p->param[i];
        int64_t from, to;
        param_own(p, t, &from, &to);
        to = to < t->counted ? to : t->counted;
        at = to - from < N ? NULL : param_at(p, t, &p->data.grad, from);
        for (int k = others = 0; at && k < N; k++)
            others += (at[k] & 0x7fff) != 0;
        others = others == N;
    }
    if (at)
        memcpy(at, planted, sizeof planted);
    double after = optimizer_zeros(&r->opt);
    CHECK(at && after == before + 2 * world, "%s: %.0f zeros, %.0f before", current, after, before);
}

static void exact(Mode mode, int stage, const char *more, const float *part, const float *whole,
                  int64_t elems)
{
    Run r = {0};
    int64_t wrong = 0, seen = 0, nonzero = 0;
    open_run(&r, config_for(mode, stage, more), RUN_TRAIN, NULL);
    Data *d = &r.params.data;
    int64_t before = data_groups(d, 0)->shard->bytes + data_groups(d, 0)->data->bytes;
    gradients(&r, NULL);
    int64_t counted = data_groups(d, 0)->shard->bytes + data_groups(d, 0)->data->bytes - before;
    CHECK(tap.calls && tap.bytes == 2 * tap.sent, "%s: %lld bytes for %lld elements sent", current,
          (long long)tap.bytes, (long long)tap.sent);
    CHECK(stage == 3 || counted == 2 * tap.sent, "%s: %lld bytes counted for %lld elements", current,
          (long long)counted, (long long)tap.sent);
    CHECK(d->grad.type == (mode == SENT ? F32 : BF16), "%s: gradients in %s", current,
          dtype_name(d->grad.type));
    int64_t kept = mode == SENT ? 4 : 2, windows = stage >= 2 || mode == SENT ? d->window[1] : 0;
    CHECK(d->bytes[1] == kept * (stage >= 2 ? d->own : d->elems) + 2 * windows, "%s: %lld bytes of gradients",
          current, (long long)d->bytes[1]);
    for (int b = 0; b < d->buckets; b++) {
        int64_t from, to;
        data_updated(d, b, &from, &to);
        for (int64_t i = from; i < to; i++, seen++) {
            const char *at = data_at(d, &d->grad, b, i);
            float x = mode == SENT ? *(const float *)at : bf16_to_f32(*(const uint16_t *)at);
            wrong += x != expected(mode, stage, part, whole, elems, i);
            nonzero += x != 0;
        }
    }
    CHECK(!wrong && nonzero > 1500, "%s: %lld of %lld elements differ from the rule, %lld are not 0",
          current, (long long)wrong, (long long)seen, (long long)nonzero);
    if (mode == KEPT)
        check_zeros_of_bf16(&r);
    run_close(&r);
    layouts++;
}

/* ---- copies of shards ---- */

/* This rank's shard of the step's gradient, with two instances of two ranks each. Returns its length. */
static int64_t shard_of_two(Mode mode, int stage, float **shard)
{
    Run r = {0};
    open_run(&r, config_for(mode, stage, "num_distributed_optimizer_instances=2"), RUN_TRAIN, NULL);
    Data *d = &r.params.data;
    int64_t n = d->own;
    r.step.metrics = NULL;
    run_gradients(&r);
    *shard = xcalloc((size_t)n, sizeof **shard);
    for (int b = 0; b < d->buckets; b++) {
        int64_t from, to;
        data_own(d, b, &from, &to);
        BUG_ON(d->grad.type != F32);
        memcpy(*shard + d->bucket[b].own, data_at(d, &d->grad, b, from),
               (size_t)(to - from) * sizeof **shard);
    }
    run_close(&r);
    layouts++;
    return n;
}

/* Sums over the copies of a shard are rounded for their message, too: near those of F32, not the same. */
static void instances(void)
{
    for (int stage = 1; stage < 4; stage++) {
        float *f32, *sent, most = 0, apart = 0;
        int64_t n = shard_of_two(AS_F32, stage, &f32), whole = 0;
        shard_of_two(SENT, stage, &sent);
        for (int64_t i = 0; i < n; i++) {
            most = fmaxf(most, fabsf(f32[i]));
            apart = fmaxf(apart, fabsf(f32[i] - sent[i]));
            whole += sent[i] == rounded(sent[i]);
        }
        CHECK(apart > 0 && apart < 0.01F * most, "%s: apart by %g of %g", current, apart, most);
        CHECK(whole == n, "%s: %lld of %lld sums were not rounded", current, (long long)(n - whole),
              (long long)n);
        free(f32);
        free(sent);
    }
}

/* ---- training ---- */

static double trained(Mode mode, int stage)
{
    Run r = {0};
    Result res = {0};
    open_run(&r, config_for(mode, stage, NULL), RUN_TRAIN, NULL);
    train(&r, STEPS, &res);
    run_close(&r);
    layouts++;
    double mean = 0;
    for (int s = STEPS - 10; s < STEPS; s++)
        mean += res.loss[s] / 10;
    return mean;
}

/* The mean loss of the last ten steps is within 0.5 % of that of F32 gradients. */
static void close_to_f32(void)
{
    double f32 = trained(AS_F32, 0);
    for (Mode mode = SENT; mode <= KEPT; mode++) {
        double of[4];
        for (int stage = 0; stage < 4; stage++) {
            of[stage] = trained(mode, stage);
            CHECK(fabs(of[stage] / f32 - 1) < 0.005 && of[stage] != f32, "%s: loss %.6f, of F32 %.6f",
                  current, of[stage], f32);
        }
        CHECK(of[0] == of[1] && of[2] == of[3], "%s: losses %.9g %.9g %.9g %.9g of ZeRO 0 to 3", current,
              of[0], of[1], of[2], of[3]);
        if (rank == 0)
            printf("# mean loss of the last steps: %.6f and %.6f, of F32 %.6f\n", of[0], of[2], f32);
    }
}

int main(void)
{
    double start = now();
    int64_t elems[2];
    layouts_open();
    if (world == 2 * RANKS) {
        instances();
        return layouts_close(start);
    }
    float *whole = recorded(0, &elems[0]), *part = recorded(2, &elems[1]);
    BUG_ON(elems[0] != elems[1] || world != RANKS);
    for (int stage = 0; stage < 4; stage++)
        for (Mode mode = SENT; mode < MODES; mode++)
            exact(mode, stage, mode == BOTH ? "overlap_grad_reduce=true" : NULL, part, whole, elems[0]);
    exact(SENT, 0, "overlap_grad_reduce=true", part, whole, elems[0]);
    exact(SENT, 3, "overlap_grad_reduce=true", part, whole, elems[0]);
    close_to_f32();
    free(whole);
    free(part);
    return layouts_close(start);
}
