/* layout_run -- running layouts, for test programs that open many layouts of one world in one job: the
 * model's configuration, its text, a run whose biases and gains are neither 0 nor 1, and some steps. */
#ifndef LAYOUT_RUN_H
#define LAYOUT_RUN_H
#include "job.h"
#include "layouts.h"
#include "masters.h"
#include "test.h"
#include <signal.h>
#include <unistd.h>

static char file[512];                 /* the configuration that all layouts share */
static char current[4096];             /* arguments of the layout that runs now, for failures */
static int rank, world, layouts;

static const char base[] =
    "model: {hidden_size: 16, kv_channels: 6, vocab_size: 19, init_method_std: 0.4, hidden_dropout: 0, "
    "attention_dropout: 0}\n"
    "train: {train_iters: 100}\n"
    "optimizer: {lr: 0.01, lr_decay_style: constant, adam_eps: 1e-6, clip_grad: 0.5, weight_decay: 0.1}\n"
    "data: {tokenizer_type: none}\n"
    "precision: {params_dtype: fp64, threads: 1}\n"
    "checkpoint: {save: layouts}\n";

static inline const char *work_folder(void) { return getenv("WORK") ? getenv("WORK") : "/tmp"; }

/* ---- the running layout is named when something ends the process ---- */

static inline void name_layout(void *ctx)
{
    (void)ctx;
    if (*current)
        printf("# in layout %s\n", current);
    fflush(stdout);
    *current = 0;
}

static inline void on_signal(int sig)
{
    if (rank == 0 && write(1, "# in layout ", 12) > 0 && write(1, current, strlen(current)) > 0 &&
        write(1, "\n", 1)) {
    }
    signal(sig, SIG_DFL);
    raise(sig);
}

static inline const Config *configure(Words *a, int n)
{
    int at = 0;
    for (int i = 0; i < a->n; i++)
        at += snprintf(current + at, sizeof current - (size_t)at, "%s'%s'", i ? " " : "", a->arg[i]);
    if (rank == 0 && getenv("VERBOSE"))
        fprintf(stderr, "%s\n", current);
    return config_load(file, a->n, a->arg, n, USE_STEPS);
}

/* ---- data: sample s is a function of s ---- */

enum { ROOM = 128 };                   /* most tokens of a microbatch */
static double document_rate = 0.25;    /* share of the tokens that start a document, where these are apart */

/* One sample: tokens, labels, loss mask, and where the token's document starts. */
typedef struct { int32_t token[ROOM], label[ROOM], start[ROOM]; float mask[ROOM]; } Sample;

/* Makes sample s of a text that can be learnt: most tokens follow from the one before. A quarter of the
 * samples have few tokens with loss mask 1, and some have none, so that microbatches and ranks differ in the
 * number of tokens that count. */
static inline void sample_text(Sample *x, const Config *c, int64_t s)
{
    int64_t V = c->vocab_size;
    double keep = s % 8 == 5 ? 0 : s % 4 == 0 ? 0.2 : 0.8;
    int32_t next = (int32_t)(rng_uniform(1, (uint64_t)s, 99) * (double)V), start = 0;
    for (int32_t i = 0; i < c->seq_length; i++) {
        uint64_t draw = (uint64_t)i;
        x->token[i] = next;
        next = rng_uniform(2, (uint64_t)s, draw) < 0.15
                   ? (int32_t)(rng_uniform(3, (uint64_t)s, draw) * (double)V)
                   : (int32_t)((5 * next + 3) % V);
        x->label[i] = next;
        x->start[i] = start = i && rng_uniform(4, (uint64_t)s, draw) < document_rate ? i : start;
        x->mask[i] = rng_uniform(5, (uint64_t)s, draw) < keep ? 1 : 0;
    }
}

static void (*text_source)(Sample *x, const Config *c, int64_t s) = sample_text;

/* A microbatch of what text_source makes: this rank's positions. Where the configuration resets the
 * attention mask, samples hold several documents, and positions count from their starts. */
static inline const Batch *microbatch(void *run, int mb)
{
    static int32_t tokens[ROOM], labels[ROOM], position[ROOM], doc_start[ROOM];
    static float mask[ROOM];
    static int64_t sample[8];
    static Batch batch;
    static Sample x;
    Run *r = run;
    const Config *c = r->cfg;
    int64_t B = c->micro_batch_size, S = c->seq_length, dp = r->grid.size[AXIS_DP];
    int packed = c->reset_attention_mask;
    Positions own = context_own(&r->model.now.context);
    BUG_ON(B * S > ROOM);
    for (int64_t b = 0; b < B; b++) {
        sample[b] = r->progress.consumed_samples + (mb * dp + r->grid.index[AXIS_DP]) * B + b;
        text_source(&x, c, sample[b]);
        memcpy(doc_start + b * S, x.start, sizeof *doc_start * (size_t)S);
        for (int k = 0; k < own.count; k++)
            for (int32_t i = own.run[k].start; i < own.run[k].start + own.run[k].n; i++) {
                int64_t at = b * own.stride + own.run[k].row + i - own.run[k].start;
                tokens[at] = x.token[i];
                labels[at] = x.label[i];
                position[at] = i - (packed ? x.start[i] : 0);
                mask[at] = x.mask[i];
            }
    }
    batch = (Batch){B, S, own, tokens, labels, position, packed ? doc_start : NULL, mask, sample};
    return &batch;
}

/* ---- a run and its results ---- */

/* Biases and gains away from 0 and 1, so that each of them matters. */
static double noisy(const Params *p, const Param *t, int64_t row, int64_t col, double x)
{
    (void)p, (void)col;
    return t->ndim == 1 ? x + 0.3 * rng_normal(3, (uint64_t)t->number, (uint64_t)row) : x;
}

/* The value of an element that begins as x. */
static double (*value_of)(const Params *p, const Param *t, int64_t row, int64_t col, double x) = noisy;

static inline void open_run(Run *r, const Config *c, RunUse use, const char *run_dir)
{
    run_open(r, c, use, 0, run_dir);
    if (r->checkpoint.saver)
        saver_start(r->checkpoint.saver);
    r->step.feed = microbatch;
    Params *p = &r->params;
    for (int i = 0; i < p->nparam; i++) {
        const Param *t = &p->param[i];
        int64_t from, to;
        Box box[MAX_BOXES];
        param_updated(p, t, &from, &to);
        int n = from < to ? param_boxes(p, t, from, to, box) : 0;
        for (int b = 0; b < n; b++)
            for (int64_t k = 0; k < box[b].rows * box[b].cols; k++) {
                int64_t row = k / box[b].cols, col = k % box[b].cols;
                union { double f64; float f32; } master;
                int64_t at = box[b].at + row * box[b].ld + col - t->offset;
                masters_get(p, &r->dev, t, at, 1, &master);
                double x = p->real == F64 ? master.f64 : (double)master.f32;
                x = value_of(p, t, box[b].row0 + row, box[b].col0 + col, x);
                if (p->real == F64)
                    master.f64 = x;
                else
                    master.f32 = (float)x;
                masters_put(p, &r->dev, t, at, 1, &master);
            }
    }
    params_refresh(p, &r->dev);
}

/* loss: of each step; norm, params_norm, zeros: of the last one; x: gathered gradients or weights; routers:
 * statistics of the last step, of layers with experts: [count], the losses' and entropies' sums beside. */
enum { ROUTER_ROOM = 256 };
typedef struct {
    double loss[64], norm, params_norm, zeros, *x;
    int counts, sums;
    int64_t count[ROUTER_ROOM];
    double sum[ROUTER_ROOM];
} Result;

static inline void keep_routers(Run *r, Result *res)
{
    const RouterStats *s = &r->model.routers;
    res->counts = (int)router_counts(s);
    res->sums = s->layers * ROUTER_SUMS;
    BUG_ON(res->counts > ROUTER_ROOM || res->sums > ROUTER_ROOM);
    for (int i = 0; i < res->counts; i++)
        res->count[i] = s->count[i];
    if (res->sums)
        r->dev.get(&r->dev, res->sum, s->sums, (size_t)res->sums * sizeof *res->sum);
}

/* Runs `steps` steps; 0: computes gradients alone. Fills everything of *res but x. */
static inline void train(Run *r, int steps, Result *res)
{
    Metrics m = {0};
    for (int i = 0; i < (steps ? steps : 1); i++) {
        r->step.metrics = steps ? &m : NULL;
        run_gradients(r);
        res->loss[i] = r->step.verdict.loss;
        res->norm = r->step.verdict.norm;
        res->params_norm = m.params_norm;
        res->zeros = m.num_zeros;
        keep_routers(r, res);
        r->progress.iteration++;
        r->progress.consumed_samples += steps ? config_batch_at(r->cfg, 0) : 0;
    }
}

static inline double apart(double a, double b) { return a == b ? 0 : fabs(a - b) / fmax(fabs(a), fabs(b)); }

/* Writes the configuration file, and makes errors and signals name the running layout. */
static inline void layouts_open(void)
{
    world = job_launched(&rank);
    snprintf(file, sizeof file, "%s/layouts.%d.yaml", work_folder(), rank);
    FILE *f = fopen(file, "w");
    if (!f || fputs(base, f) < 0 || fclose(f))
        die(EXIT_RESOURCE, "write", "%s; change: WORK=FOLDER that can be written", file);
    message_hook(name_layout, NULL);
    signal(SIGTERM, on_signal);
    signal(SIGSEGV, on_signal);
}

/* Prints the summary on rank 0; returns main's exit code. */
static inline int layouts_close(double start)
{
    *current = 0;
    remove(file);
    if (rank)
        return 0;
    printf("# %d layouts of %d ranks, %.1f s\n", layouts, world, now() - start);
    return test_end();
}
#endif
