/* test_model -- the whole model: gradients against central finite differences in F64
 *
 * Recompute, schedule and threads change no bit; splits of the batch, vocabulary padding and the
 * key/value cache agree to rounding; arenas have exactly the planned sizes. */
#include "run.h"
#include "linear.h"
#include "masters.h"
#include "test.h"
#include <unistd.h>

#define BASE                                                                                                 \
    "model: {num_layers: 2, hidden_size: 12, num_attention_heads: 4, kv_channels: 6, ffn_hidden_size: 20, "  \
    "seq_length: 7, "                                                                                        \
    "vocab_size: 19, init_method_std: 0.4, hidden_dropout: 0, attention_dropout: 0}\n"                       \
    "train: {micro_batch_size: 2, global_batch_size: 4, train_iters: 2}\n"                                   \
    "optimizer: {lr: 0.01}\n"                                                                                \
    "data: {tokenizer_type: none}\n"                                                                         \
    "precision: {params_dtype: fp64}\n"

static const char *const families[][13] = {
    {"activation=gelu_tanh", NULL},
    {"activation=gelu", "hidden_dropout=0.2", "attention_dropout=0.1", NULL},
    {"position_embedding_type=rope", "normalization=RMSNorm", "activation=swiglu", "add_bias_linear=false",
     "untie_embeddings_and_output_weights=true", "num_query_groups=2", NULL},
    {"position_embedding_type=rope", "rotary_percent=0.7", "qk_layernorm=true", "activation=geglu",
     "num_query_groups=1", "window_size=3", "rope_scaling=yarn", "rope_scaling_factor=3",
     "rope_original_max_position_embeddings=4", NULL},
    {"position_embedding_type=none", "normalization=RMSNorm", "qk_layernorm=true", "add_bias_linear=false",
     "add_qkv_bias=true", "activation=squared_relu", "num_query_groups=2", "reset_attention_mask=true", NULL},
    {"position_embedding_type=rope", "rope_scaling=dynamic", "rope_scaling_factor=3",
     "rope_original_max_position_embeddings=4", "normalization=RMSNorm", NULL},
    {"position_embedding_type=rope", "normalization=RMSNorm", "activation=swiglu", "add_bias_linear=false",
     "num_moe_experts=4", "moe_router_topk=2", "moe_ffn_hidden_size=10",
     "moe_shared_expert_intermediate_size=6", "moe_shared_expert_gate=true", "hidden_dropout=0.1",
     "moe_input_jitter_eps=0.4", NULL},
    {"activation=gelu_tanh", "num_moe_experts=3", "moe_router_topk=2", "moe_router_score_function=sigmoid",
     "moe_router_topk_scaling_factor=2.5", "moe_layer_freq=[0, 1]", NULL},
    {"activation=geglu", "num_moe_experts=4", "moe_router_topk=4", "moe_ffn_hidden_size=6", NULL},
    {"activation=relu", "num_moe_experts=1", "moe_router_topk=1", "moe_router_pre_softmax=true", NULL},
};
enum { FAMILIES = sizeof families / sizeof *families };

static char file[512];

/* BASE with the options of a, then those of b, which replace a's of the same key. */
static const Config *config(const char *const *a, const char *const *b)
{
    char *args[32];
    int n = 0;
    for (; *a; a++) {
        size_t key = strcspn(*a, "=") + 1;
        int replaced = 0;
        for (const char *const *other = b; other && *other; other++)
            replaced |= !strncmp(*a, *other, key);
        if (!replaced)
            args[n++] = (char *)*a;
    }
    for (; b && *b; b++)
        args[n++] = (char *)*b;
    static char isa[32];
    snprintf(isa, sizeof isa, "cpu_isa=%s", test_isa());
    args[n++] = isa;
    return config_load(file, n, args, 1, USE_MODEL);
}

static int changed;                /* bool: the first document has other tokens */

/* A microbatch of random tokens. A sample has the same tokens whatever the microbatch size; every third
 * token has loss mask 0. */
static const Batch *random_batch(void *run, int mb)
{
    static int32_t tokens[64], labels[64], position[64], doc_start[64];
    static float mask[64];
    static int64_t sample[8];
    const Config *c = ((Run *)run)->cfg;
    int64_t B = c->micro_batch_size, S = c->seq_length;
    for (int64_t b = 0; b < B; b++) {
        sample[b] = mb * B + b;
        for (int64_t s = 0; s < S; s++) {
            uint64_t at = (uint64_t)(sample[b] * S + s);
            tokens[b * S + s] =
                (int32_t)(rng_uniform(changed && s < 3 ? 5 : 1, 0, at) * (double)c->vocab_size);
            labels[b * S + s] = (int32_t)(rng_uniform(2, 0, at) * (double)c->vocab_size);
            position[b * S + s] = (int32_t)s;
            doc_start[b * S + s] = s < 3 ? 0 : 3;
            mask[b * S + s] = at % 3 ? 1 : 0;
        }
    }
    static Batch batch;
    batch = (Batch){B, S, positions_one(0, S), tokens, labels, position,
                    c->reset_attention_mask ? doc_start : NULL, mask, sample};
    return &batch;
}

static void open_run(Run *r, const Config *c)
{
    run_open(r, c, RUN_GRADIENT, 7, NULL);
    r->step.feed = random_batch;
    /* biases and gains away from 0 and 1, so that each of them matters */
    for (int i = 0; i < r->params.nparam; i++) {
        const Param *t = &r->params.param[i];
        for (int64_t k = 0; t->ndim == 1 && k < t->n; k++) {
            double noise = 0.3 * rng_normal(3, (uint64_t)i, (uint64_t)k), wide = 0;
            float narrow = 0;
            void *master = r->params.real == F64 ? (void *)&wide : &narrow;
            masters_get(&r->params, &r->dev, t, k, 1, master);
            wide += noise, narrow += (float)noise;
            masters_put(&r->params, &r->dev, t, k, 1, master);
        }
    }
    params_refresh(&r->params, &r->dev);
}

static double largest(const double *g, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs(g[i]));
    return most;
}

static void finite_differences(int family)
{
    Run r;
    open_run(&r, config(families[family], NULL));
    run_gradients(&r);
    int64_t n = r.params.data.elems;
    double *g = xcalloc((size_t)n, sizeof *g), *w = (void *)r.params.data.weight.p, most;
    for (int64_t i = 0; i < n; i++)
        g[i] = ((double *)r.params.data.grad.p)[i] * r.step.verdict.gscale;
    most = largest(g, n);
    CHECK(isfinite(r.step.verdict.loss) && most > 0, "family %d loss %g", family, r.step.verdict.loss);
    for (int i = 0; i < r.params.nparam; i++) {
        const Param *t = &r.params.param[i];
        double scale = fmax(largest(g + t->offset, t->n), 1e-3 * most);
        for (int k = 0; k < 6; k++) {
            int64_t at =
                t->offset + (int64_t)(rng_uniform(4, (uint64_t)i, (uint64_t)k) * (double)(t->rows * t->cols));
            double keep = w[at], eps = 1e-5, up, down;
            w[at] = keep + eps;
            run_gradients(&r);
            up = r.step.verdict.loss;
            w[at] = keep - eps;
            run_gradients(&r);
            down = r.step.verdict.loss;
            w[at] = keep;
            double numeric = (up - down) / (2 * eps);
            CHECK(fabs(numeric - g[at]) <= 1e-6 * scale, "family %d %s[%lld] numeric %.12g computed %.12g",
                  family, t->name, (long long)(at - t->offset), numeric, g[at]);
        }
    }
    free(g);
    run_close(&r);
}

/* The results of a run. bits: hash of loss and gradients; grad: n elements. */
typedef struct { uint64_t bits; double loss, *grad; int64_t n; } Result;

static Result result_of(int family, const char *const *more)
{
    Run r;
    open_run(&r, config(families[family], more));
    run_gradients(&r);
    static double row[64];
    Result x = {.loss = r.step.verdict.loss, .n = r.params.data.elems};
    size_t bytes = (size_t)r.params.data.elems * dtype_size(r.params.real);
    x.bits = hash64(r.params.data.grad.p, bytes, hash64(&r.step.verdict.loss, 8, HASH_SEED));
    x.grad = xcalloc((size_t)x.n, sizeof *x.grad);
    for (int64_t i = 0; i < x.n; i++)
        x.grad[i] = r.step.verdict.gscale * (r.params.real == F64 ? ((double *)r.params.data.grad.p)[i]
                                                                  : ((float *)r.params.data.grad.p)[i]);
    step_forward(&r, &r.plan.lists[0].forward, r.cfg->micro_batch_size, r.cfg->seq_length, 1);
    run_extend(&r, random_batch(&r, 0)->tokens, 7, row);
    CHECK(r.model.scratch.peak == r.model.scratch.size, "scratch %zu planned %zu", r.model.scratch.peak,
          r.model.scratch.size);
    CHECK(r.arenas.run.used + r.arenas.mapped.used + r.arenas.host.used ==
              (size_t)(r.plan.memory.total - r.plan.workspace),
          "arenas %zu planned %lld", r.arenas.run.used + r.arenas.host.used,
          (long long)(r.plan.memory.total - r.plan.workspace));
    run_close(&r);
    return x;
}

static void same_bits(int family, const char *const *one, const char *const *other)
{
    Result a = result_of(family, one), b = result_of(family, other);
    CHECK(a.bits == b.bits && a.n == b.n, "family %d %s: loss %.17g and %.17g", family, other[0], a.loss,
          b.loss);
    free(a.grad);
    free(b.grad);
}

#define WITH(...) (const char *const[]){__VA_ARGS__, NULL}

static void bitwise(int family, const char *dtype)
{
    const char *const *plain = WITH(dtype);
    same_bits(
        family, plain,
        WITH("recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=1", dtype));
    same_bits(
        family, plain,
        WITH("recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=2", dtype));
    same_bits(family, plain,
              WITH("recompute_granularity=full", "recompute_method=block", "recompute_num_layers=1", dtype));
    same_bits(family, plain, WITH("recompute_granularity=selective", dtype));
    same_bits(
        family, plain,
        WITH("recompute_granularity=selective", "recompute_modules=[layernorm, mlp, core_attn]", dtype));
    same_bits(family, plain, WITH("recompute_granularity=selective", "recompute_modules=[mlp_act]", dtype));
    same_bits(family, plain,
              WITH("recompute_granularity=selective", "recompute_modules=[mlp_act, mlp]", dtype));
    same_bits(family, plain, WITH("pipeline_schedule=gpipe", dtype));
    same_bits(family, plain, WITH("threads=1", dtype));
}

static void close_to(int family, const char *const *one, const char *const *other)
{
    Result a = result_of(family, one), b = result_of(family, other);
    double most = largest(a.grad, a.n), worst = 0;
    int same_layout = !strstr(other[0], "vocab");     /* vocabulary padding moves the tensors */
    CHECK(fabs(a.loss - b.loss) <= 1e-13 * fabs(a.loss), "family %d %s: loss %.17g and %.17g", family,
          other[0], a.loss, b.loss);
    for (int64_t i = 0; same_layout && i < a.n; i++)
        worst = worse(worst, fabs(a.grad[i] - b.grad[i]));
    CHECK(worst <= 1e-12 * most, "family %d %s: gradients differ by %g of %g", family, other[0], worst, most);
    free(a.grad);
    free(b.grad);
}

/* The sum of losses of an evaluation. */
static double evaluated(int family, const char *const *more)
{
    Run r;
    open_run(&r, config(families[family], more));
    model_clear(&r.model);
    step_forward(&r, &r.plan.lists[0].forward, r.cfg->micro_batch_size, r.cfg->seq_length, 1);
    double sum = r.model.sums[0];
    run_close(&r);
    return sum;
}

/* An evaluation has the bits of a model without dropout and jitter. */
static void evaluates_without_noise(int family, const char *const *with, const char *const *without)
{
    double a = evaluated(family, with), b = evaluated(family, without);
    CHECK(a == b && a > 0, "family %d %s: losses %.17g, without %.17g", family, with[0], a, b);
}

/* Sums of the residual stream are counted. fused: those in add_norm_fwd, together with the next norm.
 * alone: those in dropout_fwd. */
static Device own;
static int fused, alone;
static int64_t inner;          /* width of the feed-forward */
static int outputs;            /* outputs of layers that were computed */

static void count_add_norm_fwd(Device *d, Mat y, Mat ln, Mat stats, Mat x, Mat res, const Dropout *s,
                               Mat gain, Mat bias, double eps, NormKind kind)
{
    fused++;
    own.add_norm_fwd(d, y, ln, stats, x, res, s, gain, bias, eps, kind);
}

static void count_dropout_fwd(Device *d, Mat y, Mat x, Mat res, const Dropout *s)
{
    alone += res.rows > 0;
    own.dropout_fwd(d, y, x, res, s);
}

static void count_linear(Device *d, Mat y, Mat x, Mat w, Mat bias)
{
    outputs += w.cols == inner;
    own.linear(d, y, x, w, bias);
}

/* A layer's output is the second product of its feed-forward. Recompute repeats the outputs that are
 * read again. */
static void sums_fused(const char *const *more, int with_norm, int without, int products)
{
    Run r;
    open_run(&r, config(families[1], more));
    own = r.dev;
    r.dev.add_norm_fwd = count_add_norm_fwd;
    r.dev.dropout_fwd = count_dropout_fwd;
    r.dev.linear = count_linear;
    fused = alone = outputs = 0;
    inner = r.cfg->ffn_hidden_size;
    run_gradients(&r);
    CHECK(fused == with_norm && alone == without, "%s: %d sums with a norm, %d without, for %d and %d",
          more[0], fused, alone, with_norm, without);
    CHECK(outputs == products, "%s: %d outputs of layers computed, for %d", more[0], outputs, products);
    run_close(&r);
}

/* ctx [S, V]: logits of sample 0 */
static void see_logits(void *ctx, Model *m, int part, const char *where, Mat x)
{
    double *whole = ctx;
    (void)part;
    for (int64_t r = 0; !strcmp(where, "logits") && m->watch.batch->sample[0] == 0 && r < x.rows; r++)
        memcpy(whole + mapped_row(m->watch.rows, r) * x.cols, mat_at(x, r, 0),
               (size_t)x.cols * sizeof *whole);
}

/* Logits computed token by token over the cache, in a run with samples of `seq`, equal those of the whole
 * sequence at once. */
static void cache_agrees(int family, const char *seq)
{
    Run r;
    open_run(&r, config(families[family], WITH("micro_batch_size=1", "reset_attention_mask=false")));
    const Batch *b = random_batch(&r, 0);
    int64_t S = b->seq, V = r.cfg->vocab_size;
    int32_t tokens[8];
    memcpy(tokens, b->tokens, (size_t)S * 4);
    double *whole = xcalloc((size_t)(S * V), sizeof *whole);
    double *one = xcalloc((size_t)V, sizeof *one);
    r.model.watch = (ModelWatch){.see = see_logits, .ctx = whole};
    step_forward(&r, &r.plan.lists[0].forward, 1, S, 1);
    run_close(&r);
    open_run(&r, config(families[family], WITH("micro_batch_size=1", "reset_attention_mask=false", seq,
                                               "max_position_embeddings=7")));
    for (int64_t s = 0, n; s < S; s += n) {
        n = s == 0 ? 3 : 1;                /* a prompt, then one at a time */
        run_extend(&r, tokens + s, n, one);
        for (int64_t v = 0; v < V; v++)
            CHECK(fabs(one[v] - whole[(s + n - 1) * V + v]) < 1e-12,
                  "family %d position %lld: %.15g and %.15g", family, (long long)s, one[v],
                  whole[(s + n - 1) * V + v]);
    }
    free(whole);
    free(one);
    run_close(&r);
}

/* With reset_attention_mask the logits of a document do not depend on the document before it. */
static void documents_apart(int family)
{
    Run r;
    open_run(&r, config(families[family], WITH("micro_batch_size=1")));
    int64_t S = r.cfg->seq_length, V = r.cfg->vocab_size;
    double *before = xcalloc((size_t)(S * V), sizeof *before);
    double *whole = xcalloc((size_t)(S * V), sizeof *whole);
    r.model.watch = (ModelWatch){.see = see_logits, .ctx = whole};
    for (changed = 0; changed < 2; changed++) {
        step_forward(&r, &r.plan.lists[0].forward, 1, S, 1);
        if (!changed)
            memcpy(before, whole, (size_t)(S * V) * sizeof *whole);
    }
    changed = 0;
    CHECK(memcmp(before, whole, (size_t)(3 * V) * sizeof *whole), "family %d: the first document differs",
          family);
    CHECK(!memcmp(before + 3 * V, whole + 3 * V, (size_t)((S - 3) * V) * sizeof *whole),
          "family %d: the second document sees the first", family);
    free(before);
    free(whole);
    run_close(&r);
}

/* recompute_modules mlp_act keeps one matrix [T, F] a layer less from F to W. */
static void activation_not_kept(int family)
{
    const char *const *other = WITH("recompute_granularity=selective", "recompute_modules=[mlp_act]");
    size_t kept[2];
    Run r;
    for (int i = 0; i < 2; i++) {
        open_run(&r, config(families[family], i ? other : NULL));
        kept[i] = r.model.slots.bytes.data[SLOT_FW][0];
        run_close(&r);
    }
    const Config *c = config(families[family], NULL);
    Arena each = {0};
    for (int64_t i = 0; i < c->num_layers; i++)
        mat_take(&each, c->micro_batch_size * c->seq_length, c->ffn_hidden_size, F64);
    CHECK(kept[0] - kept[1] == each.used,
          "family %d: keeps %zu bytes, with mlp_act %zu; [T, F] of all layers: %zu",
          family, kept[0], kept[1], each.used);
}

/* A transposed copy that waits for its product keeps its scale, when another cast changes that. */
static void turned_scale(void)
{
    Arena mem;
    Device d;
    Fp8Scale s = {0};
    cpu_open(&d, F32, "auto", 1);
    arena_open(&mem, "test_model", (size_t)1 << 16);
    Mat x = mat_take(&mem, 16, 16, BF16);
    for (int i = 0; i < 16 * 16; i++)
        ((uint16_t *)x.p)[i] = f32_to_bf16(3);
    Fp8Turned t = linear_turned(&mem, x.rows, x.cols, FP8_OWN);
    linear_turn(&d, x, (Precision){.x = &s, .fp8 = 1, .scaling = FP8_OWN, .xt = &t});
    float was = s.inverse;
    s.inverse = 2 * was;
    float kept = *(float *)t.inverse.p;
    CHECK(was > 0 && kept == was, "the copy's scale is %g, not %g", kept, was);
    arena_close(&mem);
    cpu_close(&d);
}

int main(void)
{
    snprintf(file, sizeof file, "%s/model.yaml", getenv("WORK") ? getenv("WORK") : "/tmp");
    FILE *f = fopen(file, "w");
    fputs(BASE, f);
    fclose(f);
    for (int i = 0; i < FAMILIES; i++) {
        finite_differences(i);
        bitwise(i, "params_dtype=fp64");
        close_to(i, WITH("micro_batch_size=2"), WITH("micro_batch_size=1"));
        cache_agrees(i, "seq_length=7");
        cache_agrees(i, "seq_length=5");
    }
    evaluates_without_noise(1, WITH("hidden_dropout=0.3"), WITH("hidden_dropout=0"));
    evaluates_without_noise(1, WITH("attention_dropout=0.3"), WITH("attention_dropout=0"));
    evaluates_without_noise(6, WITH("moe_input_jitter_eps=0.4"), WITH("moe_input_jitter_eps=null"));
    documents_apart(4);
    turned_scale();
    activation_not_kept(0);
    activation_not_kept(1);
    /* Two microbatches of three layers. Every sum but the chunk's last is fused. With full recompute a
     * layer's memory ends with the layer: the forward fuses the sums within a layer, the backward every
     * sum that is read again. */
    sums_fused(WITH("num_layers=3"), 2 * 5, 2, 2 * 3);
    sums_fused(WITH("num_layers=3", "recompute_granularity=selective"), 2 * 5, 2, 2 * 3);
    sums_fused(WITH("num_layers=3", "recompute_granularity=full", "recompute_method=uniform",
                    "recompute_num_layers=1"),
               2 * (3 + 3), 2 * 3, 2 * 3);
    sums_fused(WITH("num_layers=3", "recompute_granularity=full", "recompute_method=uniform",
                    "recompute_num_layers=3"),
               2 * (3 + 5), 2 * 3, 2 * (3 + 2));
    bitwise(1, "params_dtype=bf16");
    bitwise(3, "params_dtype=fp16");
    bitwise(2, "params_dtype=fp32");
    close_to(0, WITH("make_vocab_size_divisible_by=1"), WITH("make_vocab_size_divisible_by=64"));
    return test_end();
}
