/* test_optimizer -- learning rates, loss scale and update rules against the formulas written out anew */
#include "lr.h"
#include "run.h"
#include "test.h"
#include <float.h>

static char file[512];

static const Config *config(const char *const *a)
{
    char *args[32];
    int n = 0;
    for (; *a; a++)
        args[n++] = (char *)*a;
    return config_load(file, n, args, 1, USE_MODEL | USE_STEPS);
}
#define WITH(...) config((const char *const[]){__VA_ARGS__, NULL})

static void same(const char *what, double got, double want, double tolerance)
{
    CHECK(fabs(got - want) <= tolerance * fmax(1e-300, fabs(want)), "%s: %.17g, not %.17g", what, got, want);
}

/* Rates that Megatron-LM's scheduler class prints for lr 0.01, min_lr 0.001, warm-up 2, decay 10. */
static void published_rates(void)
{
    static const double want[] = {0, .005, .01, .009657, .008682, .007222, .0055, .003778, .002318, .001343};
    const Config *c = WITH("min_lr=0.001", "lr_decay_style=cosine", "lr_warmup_iters=2", "lr_decay_iters=10");
    for (int i = 0; i < 10; i++)
        CHECK(fabs(lr_at(c, i * 4, 0) - want[i]) < 5e-7, "update %d: %.9f, not %.9f", i, lr_at(c, i * 4, 0),
              want[i]);
}

static void every_style(void)
{
    same("constant", lr_at(WITH("lr_decay_style=constant"), 400, 0), 0.01, 0);
    same("linear", lr_at(WITH("min_lr=0.002", "lr_decay_iters=8"), 4 * 6, 0), 0.002 + 0.25 * 0.008, 1e-15);
    same("past the decay", lr_at(WITH("min_lr=0.002", "lr_decay_iters=8"), 4 * 9, 0), 0.002, 0);
    same("root", lr_at(WITH("lr_decay_style=inverse-square-root", "lr_warmup_iters=2"), 4 * 8, 0), 0.01 * 0.5,
         1e-15);
#define ROOT(...) WITH("lr_decay_style=inverse-square-root", __VA_ARGS__)
    same("root before step 1", lr_at(ROOT("min_lr=0.001"), 0, 0), 0.01, 0);
    same("root not below min_lr", lr_at(ROOT("min_lr=0.008", "lr_warmup_iters=2"), 4 * 8, 0), 0.008, 0);
    same("root at the end", lr_at(ROOT("min_lr=0.001", "lr_warmup_iters=2", "lr_decay_iters=8"), 4 * 8, 0),
         0.005, 1e-15);
    same("moved", lr_at(WITH("min_lr=0.002", "lr_decay_iters=8"), 4 * 9, -4 * 3), 0.002 + 0.25 * 0.008,
         1e-15);
    same("warm-up from", lr_at(WITH("lr_warmup_iters=4", "lr_warmup_init=0.002"), 4, 0), 0.002 + 0.25 * 0.008,
         1e-15);
    same("share", lr_at(WITH("lr_warmup_fraction=0.25"), 4, 0), 0.01 / 2.5, 1e-15);
    same("samples", lr_at(WITH("train_iters=null", "train_samples=40", "lr_warmup_samples=10"), 5, 0), 0.005,
         1e-15);
#define WSD(tail)                                                                                            \
    WITH("lr_decay_style=WSD", "lr_wsd_decay_iters=4", "lr_wsd_decay_style=" tail, "min_lr=0.001")
    same("wsd before", lr_at(WSD("linear"), 4 * 6, 0), 0.01, 1e-15);
    same("wsd linear", lr_at(WSD("linear"), 4 * 7, 0), 0.001 + 0.75 * 0.009, 1e-15);
    same("wsd cosine", lr_at(WSD("cosine"), 4 * 7, 0), 0.001 + 0.5 * (cos(M_PI / 4) + 1) * 0.009, 1e-15);
    same("wsd exponential", lr_at(WSD("exponential"), 4 * 7, 0), 0.001 + (2 * pow(0.5, 0.25) - 1) * 0.009,
         1e-15);
    same("wsd in samples",
         lr_at(WITH("train_iters=null", "train_samples=40", "lr_decay_style=WSD", "lr_wsd_decay_samples=16",
                    "lr_wsd_decay_style=linear", "min_lr=0.001"), 28, 0), 0.001 + 0.75 * 0.009, 1e-15);
    same("wsd root", lr_at(WSD("minus_sqrt"), 4 * 7, 0), 0.001 + 0.5 * 0.009, 1e-15);
    same("scaled", lr_at(WITH("lr_decay_style=constant", "lr_scaling=linear", "lr_base_batch_size=16"), 0, 0),
         0.0025, 1e-15);
    same("root scaled",
         lr_at(WITH("lr_decay_style=constant", "lr_scaling=sqrt", "lr_base_batch_size=16"), 0, 0), 0.005,
         1e-15);
}

/* Batches of 2 samples of 8 tokens up to 64 tokens, then of 4 samples: the rate follows the samples. */
static void batch_schedule(void)
{
    const Config *c = WITH("global_batch_size=null", "step_batch_size_schedule='0:2 64:4'",
                           "micro_batch_size=2", "lr_warmup_iters=6");
    CHECK(config_batch_at(c, 0) == 2 && config_batch_at(c, 8) == 4, "batches %lld %lld",
          (long long)config_batch_at(c, 0), (long long)config_batch_at(c, 8));
    same("samples after 6 steps", (double)config_samples_after(c, 6), 4 * 2 + 2 * 4, 0);
    same("half of them", lr_at(c, 8, 0), 0.005, 1e-15);
    /* a schedule that stands still moves with no batch: the scale follows the samples that were consumed */
    c = WITH("global_batch_size=null", "step_batch_size_schedule='0:2 64:4'", "micro_batch_size=2",
             "lr_decay_style=constant", "lr_scaling=linear", "lr_base_batch_size=4");
    same("scaled by a batch of 4", lr_at(c, 8, -8), 0.01, 1e-15);
}

static void scale_of_fp16(void)
{
    const Config *c = WITH("params_dtype=fp16", "initial_loss_scale=16", "loss_scale_window=3",
                           "hysteresis=2", "min_loss_scale=4");
    /* bool overflow of a step, and the scale after it */
    static const struct { int overflow; double scale; } step[] = {
        {0, 16}, {1, 16}, {1, 8}, {1, 4}, {0, 4}, {0, 4}, {0, 8}, {1, 8}, {1, 4}, {0, 4}, {0, 4}, {0, 8}};
    LossScale s;
    loss_scale_open(&s, c);
    for (size_t i = 0; i < sizeof step / sizeof *step; i++) {
        CHECK(loss_scale_update(&s, c, step[i].overflow), "step %zu", i);
        CHECK(s.scale == step[i].scale, "step %zu: scale %g, not %g", i, s.scale, step[i].scale);
    }
    s = (LossScale){8, 7, 2};                  /* of a run whose window was larger */
    CHECK(loss_scale_update(&s, c, 0) && s.scale == 16, "scale %g behind a smaller window", s.scale);
    s = (LossScale){.scale = 8, .tolerance = 2};
    loss_scale_update(&s, c, 1);
    loss_scale_update(&s, c, 1);
    CHECK(s.scale == 4, "scale %g, not 4", s.scale);
    int stands = 1;
    for (int i = 1; i < 2 * OVERFLOWS_MOST; i++)       /* one step between them does not overflow */
        stands &= loss_scale_update(&s, c, i != OVERFLOWS_MOST);
    CHECK(stands && s.scale == 4, "the smallest scale, %g, ends the run", s.scale);
    CHECK(!loss_scale_update(&s, c, 1), "no stop after %d overflows at the smallest scale", OVERFLOWS_MOST);
    c = WITH("params_dtype=fp16", "initial_loss_scale=16", "hysteresis=1", "min_loss_scale=6");
    loss_scale_open(&s, c);
    CHECK(loss_scale_update(&s, c, 1) && loss_scale_update(&s, c, 1) && s.scale == 6, "scale %g, not 6",
          s.scale);
    c = WITH("params_dtype=fp16", "loss_scale=8");
    loss_scale_open(&s, c);
    int goes_on = 1;
    for (int i = 1; i < 2 * OVERFLOWS_MOST; i++)       /* one step between them does not overflow */
        goes_on &= loss_scale_update(&s, c, i != OVERFLOWS_MOST);
    CHECK(goes_on && s.scale == 8, "a fixed scale of %g ends the run", s.scale);
    CHECK(!loss_scale_update(&s, c, 1), "no stop after %d overflows in a row", OVERFLOWS_MOST);
}

/* A random double >= 0 of any size, zeros and subnormals included. */
static double any_size(uint64_t stream, uint64_t i)
{
    double x = rng_uniform(11, stream, i);
    return i % 17 == 0 ? 0 : ldexp(0.5 + x / 2, (int)(rng_uniform(12, stream, i) * 2090) - 1078);
}

/* Exact sums equal those of 113-bit arithmetic where that is exact, and are the same in any order and
 * grouping. */
static void exact_sums(void)
{
    enum { N = 1000 };
    double x[N], most[3] = {DBL_MAX, DBL_MAX, 5};
    for (uint64_t k = 0; k < 300; k++) {
        Exact s = {0}, parts[3] = {{{0}}};
        __float128 want = 0;
        int span = (int)(k % 25), base = (int)(rng_uniform(13, 0, k) * 2000) - 1060,
            n = 2 + (int)(k * 37 % (N - 2));
        for (int i = 0; i < n; i++) {
            double whole = floor(ldexp(rng_uniform(14, k, (uint64_t)i), 53 - (int)(k % 5) * 10));
            want += x[i] = ldexp(whole, base - 53 + (int)(rng_uniform(15, k, (uint64_t)i) * span));
        }
        exact_add(&s, x, n);
        CHECK(exact_round(&s) == (double)want, "case %d: %a, not %a", (int)k, exact_round(&s), (double)want);
        for (int i = 0; i < n; i++)
            x[i] = any_size(k, (uint64_t)i);
        s = (Exact){{0}};
        exact_add(&s, x, n);
        for (int i = n - 1; i >= 0; i--)
            exact_add(&parts[i * 7 % 3], &x[i], 1);
        for (int i = 0; i < EXACT_WORDS; i++)
            ((int64_t *)&parts[0])[i] += ((int64_t *)&parts[1])[i] + ((int64_t *)&parts[2])[i];
        exact_carry(&parts[0]);
        exact_carry(&s);
        CHECK(!memcmp(&s, &parts[0], sizeof s) && exact_round(&s) == exact_round(&parts[0]), "case %d: order",
              (int)k);
    }
    /* ties go to even unless anything below breaks them; the largest sums overflow */
    static const struct { double x[4], want;
    } tie[] = {
        {{1, 0x1p-53}, 1},
        {{1, 0x1p-53, 0x1p-1074}, 1 + 0x1p-52},
        {{1 + 0x1p-52, 0x1p-53}, 1 + 0x1p-51},
        {{0x1p-1074, 0x1p-1074}, 0x1p-1073},
        {{0x1p-1022, 0x1p-1074}, 0x1p-1022 + 0x1p-1074},
        {{0, 0, 0, 0}, 0},
        {{DBL_MAX, 0x1p970}, INFINITY},
        {{DBL_MAX, 0x1p969}, DBL_MAX},
        {{0x1.fffffffffffffp0, 0x1p-53, 0x1p-54}, 2},
    };
    for (size_t i = 0; i < sizeof tie / sizeof *tie; i++) {
        Exact s = {{0}};
        exact_add(&s, tie[i].x, 4);
        CHECK(exact_round(&s) == tie[i].want, "tie %zu: %a, not %a", i, exact_round(&s), tie[i].want);
    }
    Exact s = {{0}};
    exact_add(&s, most, 3);
    CHECK(exact_round(&s) == INFINITY && !s.bad, "overflow");
    exact_add(&s, (double[]){NAN, INFINITY}, 2);
    CHECK(isnan(exact_round(&s)) && s.bad == 2, "%d terms are not finite", (int)s.bad);
}

/* One tensor's state for the update rules in plain C. */
typedef struct { double *w, *m, *v; } Plain;

static double norm_of(const double *x, int64_t n)
{
    double s = 0;
    for (int64_t i = 0; i < n; i++)
        s += x[i] * x[i];
    return sqrt(s);
}

static void plain_step(const Config *c, int decays, int t, Plain p, const double *g, double gscale, double lr,
                       int64_t n)
{
    double wd = decays ? c->weight_decay : 0, *dir = xcalloc((size_t)n, sizeof *dir),
           *gs = xcalloc((size_t)n, sizeof *gs);
    double b1 = c->adam_beta1, b2 = c->adam_beta2, ratio = 1;
    for (int64_t i = 0; i < n; i++)
        gs[i] = g[i] * gscale;
    double wn = norm_of(p.w, n), gn = norm_of(gs, n);
    for (int64_t i = 0; i < n; i++) {
        if (c->optimizer == OPTIMIZER_ADAM || c->optimizer == OPTIMIZER_LAMB) {
            p.m[i] = b1 * p.m[i] + (1 - b1) * gs[i];
            p.v[i] = b2 * p.v[i] + (1 - b2) * gs[i] * gs[i];
            dir[i] =
                p.m[i] / (1 - pow(b1, t)) / (sqrt(p.v[i] / (1 - pow(b2, t))) + c->adam_eps) + wd * p.w[i];
        } else {
            dir[i] = gs[i] + wd * p.w[i];
        }
    }
    if (c->optimizer == OPTIMIZER_LAMB && decays)
        ratio = wn / norm_of(dir, n);
    if (c->optimizer == OPTIMIZER_LARS && decays)
        ratio = c->lars_trust_coefficient * wn / (gn + wd * wn);
    for (int64_t i = 0; i < n; i++) {
        double step = lr * ratio * dir[i];
        if (c->optimizer == OPTIMIZER_SGD) {
            p.m[i] = c->sgd_momentum * p.m[i] + dir[i];
            step = lr * (c->sgd_nesterov ? dir[i] + c->sgd_momentum * p.m[i] : p.m[i]);
        } else if (c->optimizer == OPTIMIZER_LARS) {
            step = p.m[i] = c->sgd_momentum * p.m[i] + step;
        }
        p.w[i] -= step;
    }
    free(dir);
    free(gs);
}

static const Limits no_limits = {INFINITY, INFINITY, 1};

/* The verdict on gradients that have to be multiplied by `gscale`. */
static Verdict judge(Run *r, double gscale)
{
    double sums[2] = {3, 1};
    optimizer_judge(&r->opt, sums, gscale, 1, no_limits);
    return optimizer_verdict(&r->opt);
}

/* The verdict on a gradient of one element x; its loss is 6 / tokens. go: bool: the previous step allowed
 * updates. */
static Verdict verdict_within(double x, double tokens, double clip, int stop, int go, Limits limits)
{
    Device d;
    Exact squares = {0};
    Verdict v = {.go = go, .stopped = !go && limits.seen};
    double sums[2] = {6, tokens};
    cpu_open(&d, F64, "generic", 1);
    d.squares(&d, &(Squares){&squares, &x, 1}, 1, F64);
    d.verdict(&d, &v, sums, &squares, 12, 2, clip, stop, limits);
    cpu_close(&d);
    return v;
}

static Verdict verdict_on(double x, double tokens, double clip, int stop, int go)
{
    return verdict_within(x, tokens, clip, stop, go, no_limits);
}

/* A step above a limit holds itself and no other: the next one knows that one was held that the host has not
 * seen, and goes. */
static void limits(void)
{
    Verdict v = verdict_within(2, 3, 0, 1, 1, (Limits){1.9, INFINITY, 1});
    CHECK(!v.go && !v.stopped, "the loss is above its limit: go %d, stopped %d", (int)v.go, (int)v.stopped);
    v = verdict_within(2, 3, 0, 1, 1, (Limits){INFINITY, 3.9, 1});
    CHECK(!v.go && !v.stopped, "the norm is above its limit: go %d, stopped %d", (int)v.go, (int)v.stopped);
    v = verdict_within(2, 3, 0, 1, 1, (Limits){2, 4, 0});
    CHECK(v.go && !v.behind, "at its limits: go %d, behind %d", (int)v.go, (int)v.behind);
    v = verdict_within(2, 3, 0, 1, 0, (Limits){2, 4, 0});
    CHECK(v.go && v.behind, "after a held step: go %d, behind %d", (int)v.go, (int)v.behind);
    v = verdict_within(NAN, 3, 0, 0, 1, (Limits){0, 0, 1});
    CHECK(v.go, "a step that is not finite is no spike");
    v = verdict_within(NAN, 3, 0, 1, 0, (Limits){0, 0, 0});
    CHECK(!v.go && v.stopped, "not finite: go %d, stopped %d", (int)v.go, (int)v.stopped);
}

static void verdicts(void)
{
    Verdict v = verdict_on(2, 3, 0.5, 1, 1);
    same("loss", v.loss, 2, 0);
    same("scale", v.gscale, 2, 0);                     /* 12 tokens where 3 count, at a loss scale of 2 */
    same("norm", v.norm, 4, 0);
    same("clip", v.multiplier, 2 * (0.5 / (4 + 1e-6)), 1e-15);
    CHECK(v.go == 1 && v.tokens == 3 && !v.bad, "go %d", (int)v.go);
    same("no clip", verdict_on(2, 3, 5, 1, 1).multiplier, 2, 0);
    same("clip off", verdict_on(2, 3, 0, 1, 1).multiplier, 2, 0);
    v = verdict_on(0, 0, 0.5, 1, 1);
    CHECK(v.loss == 0 && v.gscale == 0.5 && v.norm == 0 && v.go, "no tokens: %g %g %g", v.loss, v.gscale,
          v.norm);
    CHECK(!verdict_on(2, 3, 0.5, 1, 0).go, "goes on after a step that has stopped");
    CHECK(!verdict_on(NAN, 3, 0.5, 1, 1).go && verdict_on(NAN, 3, 0.5, 0, 1).go == 1, "stops when asked to");
    CHECK(verdict_on(NAN, 3, 0.5, 1, 1).bad == 1 && verdict_on(2, 3, 0.5, 0, 0).go == 1,
          "counts, and forgets");
}

static void rule(const Config *c)
{
    Run r;
    run_open(&r, c, RUN_TRAIN, 0, NULL);
    Params *p = &r.params;
    int64_t n = p->data.elems;
    double *g = (void *)p->data.grad.p, *w = (void *)p->data.master.p;
    Plain x = {xcalloc((size_t)n, 8), xcalloc((size_t)n, 8), xcalloc((size_t)n, 8)};
    memcpy(x.w, w, (size_t)n * 8);
    for (int t = 1; t <= 3; t++) {
        double gscale = 0.25, square = 0;
        for (int i = 0; i < p->nparam; i++)
            for (int64_t k = 0; k < p->param[i].n; k++)
                g[p->param[i].offset + k] = k < p->param[i].rows * p->param[i].cols
                                                ? rng_normal(7, (uint64_t)t * 100 + (uint64_t)i, (uint64_t)k)
                                                : 0;
        for (int64_t i = 0; i < n; i++)
            square += g[i] * gscale * g[i] * gscale;
        Verdict v = judge(&r, gscale);
        same("norm", v.norm, sqrt(square), 1e-13);
        CHECK(!v.bad && v.go && !optimizer_blame(&r.opt, &v, NULL), "%d terms are bad", (int)v.bad);
        for (int i = 0; i < p->nparam; i++) {
            int64_t at = p->param[i].offset;
            plain_step(c, p->param[i].ndim == 2, t, (Plain){x.w + at, x.m + at, x.v + at}, g + at, gscale,
                       0.01, p->param[i].n);
        }
        optimizer_step(&r.opt, 0.01);
    }
    for (int i = 0; i < p->nparam; i++)
        for (int64_t k = 0; k < p->param[i].n; k++) {
            int64_t at = p->param[i].offset + k;
            CHECK(fabs(w[at] - x.w[at]) <= 1e-13 * (fabs(x.w[at]) + 1), "%s[%lld]: %.17g, not %.17g",
                  p->param[i].name, (long long)k, w[at], x.w[at]);
        }
    g[p->param[2].offset] = NAN;
    Verdict v = judge(&r, 1);
    const char *bad = optimizer_blame(&r.opt, &v, NULL);
    CHECK(v.bad == 1 && !v.go, "%d terms are bad", (int)v.bad);
    CHECK(bad && !strcmp(bad, p->param[2].name), "blamed %s", bad ? bad : "nothing");
    free(x.w);
    free(x.m);
    free(x.v);
    run_close(&r);
}

int main(void)
{
    snprintf(file, sizeof file, "%s/optimizer.yaml", getenv("WORK") ? getenv("WORK") : "/tmp");
    FILE *f = fopen(file, "w");
    fputs("model: {num_layers: 1, hidden_size: 8, num_attention_heads: 2, seq_length: 8, vocab_size: 300}\n"
          "train: {micro_batch_size: 1, global_batch_size: 4, train_iters: 10}\n"
          "optimizer: {lr: 0.01, weight_decay: 0.1}\ndata: {tokenizer_type: none}\nprecision: {params_dtype: "
          "fp64}\n",
          f);
    fclose(f);
    published_rates();
    every_style();
    batch_schedule();
    scale_of_fp16();
    exact_sums();
    rule(WITH("clip_grad=0", "optimizer=adam"));
    rule(WITH("clip_grad=0", "optimizer=sgd"));
    rule(WITH("clip_grad=0", "optimizer=sgd", "sgd_nesterov=true"));
    rule(WITH("clip_grad=0", "optimizer=lamb"));
    rule(WITH("clip_grad=0", "optimizer=lars"));
    verdicts();
    limits();
    return test_end();
}
