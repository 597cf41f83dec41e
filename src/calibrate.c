#define _GNU_SOURCE
#include "calibrate.h"
#include "config_table.h"
#include "launch.h"
#include "predict.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const isas[] = {"auto", "amx", "avx512", "avx2", "generic"};

/* ---- operations ---- */

/* Matrices of a microbatch of the model; letters as in model.h. */
typedef struct {
    int64_t B, S, T, H, A, K, D, F, G, V;      /* G: columns of fc1, 2 F when gated */
    Dtype type, real;
    NormKind norm;
    ActKind act;
    Mat x, y, z, qkv, dqkv, o, h, a, da, lse, delta, stat, gain, dgain, logits, xent, loss, wte, dwte, rope;
    int32_t *token, *position;
    float *big;                /* BIG elements: larger than caches */
    double *sums;
    Attention attention;
    Update update;
    int64_t m, n, k;           /* of a product */
} Bench;
#define BIG ((int64_t)4 << 20)

static void fill(Mat m)
{
    char *p = m.p;
    size_t size = dtype_size(m.type);
    for (int64_t i = 0; p && i < m.rows * m.cols; i++) {
        float x = (float)(i * 7919 % 1999 - 999) * 1e-4f;
        uint32_t bits;
        memcpy(&bits, &x, 4);
        uint16_t half = m.type == BF16 ? (uint16_t)(bits >> 16) : (uint16_t)(0x2000 + i % 512);    /* fp16: small, positive */
        double wide = x;
        memcpy(p + (size_t)i * size, m.type == F64 ? (void *)&wide : m.type == F32 ? (void *)&x : (void *)&half, size);
    }
}

static Mat filled(Arena *a, int64_t rows, int64_t cols, Dtype type)
{
    Mat m = mat_take(a, rows, cols, type);
    fill(m);
    return m;
}

static void bench_take(Bench *b, const Config *c, Arena *mem)
{
    static const Dtype types[] = {F64, F32, BF16, F16};
    *b = (Bench){.B = c->micro_batch_size, .S = c->seq_length, .H = c->hidden_size, .A = c->num_attention_heads,
                 .K = c->num_query_groups, .D = c->kv_channels, .F = c->ffn_hidden_size, .type = types[c->params_dtype],
                 .norm = (NormKind)c->normalization, .act = (ActKind)c->activation};
    b->T = b->B * b->S;
    b->G = act_gated(b->act) ? 2 * b->F : b->F;
    b->V = c->padded_vocab_size < 8192 ? c->padded_vocab_size : 8192;
    b->real = b->type == F64 ? F64 : F32;
    Mat *rows[] = {&b->x, &b->y, &b->z};
    for (int i = 0; i < 3; i++)
        *rows[i] = filled(mem, b->T, b->H, b->type);
    b->qkv = filled(mem, b->T, (b->A + 2 * b->K) * b->D, b->type);
    b->dqkv = filled(mem, b->T, (b->A + 2 * b->K) * b->D, b->type);
    b->o = filled(mem, b->T, b->A * b->D, b->type);
    b->h = filled(mem, b->T, b->G, b->type);
    b->a = filled(mem, b->T, b->F, b->type);
    b->da = filled(mem, b->T, b->F, b->type);
    b->lse = filled(mem, b->T, b->A, b->real);
    b->delta = filled(mem, b->T, b->A, b->real);
    b->stat = filled(mem, b->T, 2, b->real);
    b->gain = filled(mem, 1, b->H, b->type);
    b->dgain = filled(mem, 1, b->H, b->real);
    b->logits = filled(mem, b->T, b->V, b->real);
    b->xent = filled(mem, b->T, 3, b->real);
    b->loss = filled(mem, b->T, 1, b->real);
    b->wte = filled(mem, b->V, b->H, b->type);
    b->dwte = filled(mem, b->V, b->H, b->real);
    b->rope = filled(mem, b->S, b->D, b->real);
    b->token = arena_take(mem, (size_t)b->T * 4);
    b->position = arena_take(mem, (size_t)b->T * 4);
    for (int64_t i = 0; b->token && i < b->T; i++) {
        b->token[i] = (int32_t)(i * 7919 % b->V);
        b->position[i] = (int32_t)(i % b->S);
    }
    b->big = arena_take(mem, (size_t)BIG * 8 * 4);
    b->sums = arena_take(mem, (size_t)(BIG / SUMSQ_BLOCK) * 8);
    b->attention = (Attention){.batch = b->B, .seq_q = b->S, .seq_k = b->S, .heads = (int)b->A, .kv_heads = (int)b->K,
                               .dim = (int)b->D, .window = c->window_size, .scale = 0.1};
    int64_t n = b->H * b->F;
    n = n < BIG / 2 ? n : BIG / 2;
    char *p = (char *)b->big;
    size_t bytes = (size_t)n * dtype_size(b->real);
    b->update = (Update){.n = n, .w = p, .g = p + bytes, .m = p + 2 * bytes, .v = p + 3 * bytes,
                         .out = b->type == b->real ? NULL : p + 4 * bytes, .out_type = b->type, .gscale = 1, .lr = 1e-9,
                         .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .bias1 = 1, .bias2 = 1};
}

static Mat no_mat(const Bench *b) { return (Mat){.type = b->type}; }
static Mat part(const Bench *b, Mat m, int64_t first, int64_t heads) { return mat_cols(m, first * b->D, heads * b->D); }
static Mat big(const Bench *b) { return mat(b->big, BIG / SUMSQ_BLOCK, SUMSQ_BLOCK, b->real); }

static void run_copy(Device *d, Bench *b) { d->copy(d, b->y, b->x); }
static void run_zero(Device *d, Bench *b) { d->zero(d, b->big, (size_t)BIG * 8); }
static void run_add(Device *d, Bench *b) { d->add(d, big(b), big(b), big(b)); }
static void run_bias_bwd(Device *d, Bench *b) { d->bias_bwd(d, b->dgain, b->x); }
static void run_norm_fwd(Device *d, Bench *b)
{
    d->norm_fwd(d, b->y, b->stat, b->x, b->gain, b->norm == NORM_RMS ? no_mat(b) : b->gain, 1e-5, b->norm, 1);
}
static void run_norm_bwd_x(Device *d, Bench *b)
{
    d->norm_bwd_x(d, b->z, b->z, b->y, b->x, b->stat, b->gain, b->norm, 1);
}
static void run_norm_bwd_w(Device *d, Bench *b)
{
    d->norm_bwd_w(d, b->dgain, b->norm == NORM_RMS ? (Mat){.type = b->real} : b->dgain, b->y, b->x, b->stat, b->norm, 1);
}
static void run_act_fwd(Device *d, Bench *b) { d->act_fwd(d, b->a, b->h, b->act); }
static void run_act_bwd(Device *d, Bench *b) { d->act_bwd(d, b->h, b->da, b->h, b->act); }
static void run_rope(Device *d, Bench *b)
{
    if (b->D % 2 == 0)
        d->rope(d, part(b, b->qkv, 0, b->A), (int)b->D, b->rope, b->position, 0);
}
static void run_attention_fwd(Device *d, Bench *b)
{
    d->attention_fwd(d, b->o, b->lse, part(b, b->qkv, 0, b->A), part(b, b->qkv, b->A, b->K), part(b, b->qkv, b->A + b->K, b->K),
                     &b->attention);
}
static void run_attention_bwd(Device *d, Bench *b)
{
    d->attention_bwd(d, part(b, b->dqkv, 0, b->A), part(b, b->dqkv, b->A, b->K), part(b, b->dqkv, b->A + b->K, b->K), b->o, b->o,
                     b->lse, b->delta, part(b, b->qkv, 0, b->A), part(b, b->qkv, b->A, b->K), part(b, b->qkv, b->A + b->K, b->K),
                     &b->attention);
}
static void run_embed_fwd(Device *d, Bench *b) { d->embed_fwd(d, b->y, b->token, b->position, b->wte, 0, no_mat(b)); }
static void run_embed_bwd(Device *d, Bench *b)
{
    d->embed_bwd(d, b->dwte, 0, (Mat){.type = b->real}, b->x, b->token, b->position);
}
static void run_dropout_fwd(Device *d, Bench *b) { d->dropout_fwd(d, b->z, b->y, b->x, &(Dropout){.seq = b->S}); }
static void run_xent_stats(Device *d, Bench *b) { d->xent_stats(d, b->xent, b->logits, b->token, 0, b->V); }
static void run_xent_grad(Device *d, Bench *b)
{
    Mat dlogits = {b->logits.p, b->T, b->V, b->V * (int64_t)(dtype_size(b->real) / dtype_size(b->type)), b->type};
    d->xent_grad(d, b->loss, dlogits, b->logits, b->xent, b->token, NULL, 0, b->V, 1e-6);
}
static void run_sumsq(Device *d, Bench *b) { d->sumsq(d, b->sums, b->big, BIG, b->real); }
static void run_adam(Device *d, Bench *b) { d->adam(d, &b->update); }

static const struct { Work work; void (*run)(Device *d, Bench *b); } benches[] = {
#define BENCH(name) {WORK_##name, run_##name},
    BENCH(copy) BENCH(zero) BENCH(add) BENCH(bias_bwd) BENCH(norm_fwd) BENCH(norm_bwd_x) BENCH(norm_bwd_w) BENCH(act_fwd)
    BENCH(act_bwd) BENCH(rope) BENCH(embed_fwd) BENCH(embed_bwd) BENCH(dropout_fwd) BENCH(xent_stats) BENCH(xent_grad)
    BENCH(sumsq) BENCH(adam)
#undef BENCH
};
enum { BENCHES = sizeof benches / sizeof *benches };

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median seconds of one call. */
static double timed(Device *d, Bench *b, void (*run)(Device *d, Bench *b))
{
    enum { MOST = 200 };
    double took[MOST], spent = 0;
    int n = 0;
    run(d, b);
    while (n < 5 || (spent < 0.03 && n < MOST)) {
        double start = now();
        run(d, b);
        took[n] = now() - start;
        spent += took[n++];
    }
    qsort(took, (size_t)n, sizeof *took, by_size);
    return took[n / 2];
}

/* What a machine of 1 GB/s, or of 1 TFLOP/s, would take. */
static double nominal(Bench *b, void (*run)(Device *d, Bench *b), double gbps, double tflops)
{
    static double one[] = {1};
    Machine m = {.matmul_tflops = tflops, .matmul_tflops_fp32 = tflops, .memory_gbps = gbps, .attention_forward = 1,
                 .attention_backward = 1, .matmul = {1, one, one}, .memory = {1, one, one}};
    Device d;
    Tally k = {.m = &m, .share = 1, .scatter = 1};
    for (int w = 0; w < WORKS; w++)
        m.speed[w] = 1;
    predict_device(&d, &k, b->real == F64 ? F32 : b->real);    /* fp64 counts as half a rate of its own: not here */
    run(&d, b);
    return k.now;
}

/* ---- products ---- */

/* The three products of a linear layer [T, k] -> [T, n]. */
static void run_products(Device *d, Bench *b)
{
    Mat x = mat(b->a.p, b->m, b->k, b->type), w = mat(b->big, b->n, b->k, b->type), y = mat(b->logits.p, b->m, b->n, b->type);
    Mat dw = mat(b->big + BIG * 2, b->n, b->k, b->real);
    d->linear(d, y, x, w, no_mat(b));
    d->matmul(d, x, y, 0, w, 0, 0);
    d->matmul(d, dw, y, 1, x, 0, 1);
}

typedef struct { double flops, rate; } Rate;

static int by_flops(const void *a, const void *b) { return by_size(&((const Rate *)a)->flops, &((const Rate *)b)->flops); }

/* FLOP/s of the model's linear layers at several cuts, in order of size; sizes within a factor of 1.6 are one. */
static int measure_products(Device *d, Bench *b, Rate *rate)
{
    const int64_t shape[][2] = {{(b->A + 2 * b->K) * b->D, b->H}, {b->H, b->A * b->D}, {b->G, b->H}, {b->H, b->F}, {b->V, b->H}};
    int n = 0, kept = 0;
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++)
        for (int cut = 1; cut <= 4; cut *= 2) {
            b->m = b->T;
            b->n = i == 1 || i == 3 ? shape[i][0] : shape[i][0] / cut;
            b->k = i == 1 || i == 3 ? shape[i][1] / cut : shape[i][1];
            /* each inside what the benches have */
            if (!b->n || !b->k || b->n * b->k > BIG || b->n > b->V || b->k > b->F)
                continue;
            double flops = 2.0 * (double)(b->m * b->n * b->k);
            rate[n++] = (Rate){flops, 3 * flops / timed(d, b, run_products)};
        }
    qsort(rate, (size_t)n, sizeof *rate, by_flops);
    for (int i = 0; i < n;) {
        double flops = 0, seconds = 0, first = rate[i].flops;
        int same = 0;
        for (; i < n && rate[i].flops < 1.6 * first; i++, same++) {
            flops += rate[i].flops;
            seconds += rate[i].flops / rate[i].rate;
        }
        rate[kept++] = (Rate){flops / same, flops / seconds};
    }
    return kept;
}

static void list_add(List *l, const char *text)
{
    l->v = keep_grow(l->v, ((size_t)l->n + 1) * sizeof *l->v);
    l->v[l->n++] = text;
}

static const char *number(double x) { return textf("%.4g", x); }

static void tiny(Device *d, Bench *b) { d->add(d, mat(b->x.p, 1, 8, b->type), mat(b->x.p, 1, 8, b->type), mat(b->y.p, 1, 8, b->type)); }

static void measure_device(Machine *m, const Config *c)
{
    Bench b;
    Device d;
    Rate rate[16];
    Arena mem = {.name = "calibration"};
    bench_take(&b, c, &mem);
    arena_open(&mem, "calibration", mem.used);
    cpu_open(&d, b.real, isas[c->cpu_isa], pool_cores());
    mem.used = 0;
    bench_take(&b, c, &mem);
    m->launch_us = timed(&d, &b, tiny) * 1e6;
    int n = measure_products(&d, &b, rate);
    double best = 0, memory = 0;
    for (int i = 0; i < n; i++)
        best = rate[i].rate > best ? rate[i].rate : best;
    for (int i = 0; i < n; i++) {
        list_add(&m->matmul_efficiency, number(rate[i].flops));
        list_add(&m->matmul_efficiency, number(rate[i].rate / best));
    }
    m->matmul_tflops = m->matmul_tflops_fp32 = best / 1e12 * (b.real == F64 ? 2 : 1);
    m->attention_forward = nominal(&b, run_attention_fwd, 1e9, best / 1e12) / timed(&d, &b, run_attention_fwd);
    m->attention_backward = nominal(&b, run_attention_bwd, 1e9, best / 1e12) / timed(&d, &b, run_attention_bwd);
    for (int i = 0; i < BENCHES; i++) {
        double gbps = nominal(&b, benches[i].run, 1, 1) / timed(&d, &b, benches[i].run);
        if (i == 0)
            m->memory_gbps = memory = gbps;
        if (!(gbps > 0))
            continue;
        list_add(&m->op_speed, work_name[benches[i].work]);
        list_add(&m->op_speed, number(gbps / memory));
    }
    cpu_close(&d);
    arena_close(&mem);
}

/* ---- messages ---- */

static void all_reduce(Comm *c, char *p, int64_t bytes) { c->wait(c, c->all_reduce(c, p, bytes / 4, F32, OP_SUM)); }

static void there_and_back(Comm *c, char *p, int64_t bytes)
{
    if (c->rank == 0)
        c->wait(c, c->send(c, p, bytes / 4, F32, 1));
    c->wait(c, c->recv(c, p, bytes / 4, F32, 1 - c->rank));
    if (c->rank == 1)
        c->wait(c, c->send(c, p, bytes / 4, F32, 0));
}

static double median_call(Comm *c, void (*call)(Comm *c, char *p, int64_t bytes), char *p, int64_t bytes)
{
    enum { ROUNDS = 15 };
    double took[ROUNDS];
    for (int i = -2; i < ROUNDS; i++) {
        c->barrier(c);
        double start = now();
        call(c, p, bytes);
        if (i >= 0)
            took[i] = now() - start;
    }
    qsort(took, ROUNDS, sizeof *took, by_size);
    return took[ROUNDS / 2];
}

/* Collective over the two ranks. */
static void measure_links(Machine *m, Comm *c)
{
    const int64_t few = 4096, many = 8 << 20;
    char *p = xcalloc((size_t)many, 1);
    double small = median_call(c, all_reduce, p, few), large = median_call(c, all_reduce, p, many);
    m->link_gbps = (double)(many - few) / (large - small) / 1e9;
    m->link_latency_us = small / 2 * 1e6;
    double near = median_call(c, there_and_back, p, few) / 2, far = median_call(c, there_and_back, p, many) / 2;
    m->message_gbps = (double)(many - few) / (far - near) / 1e9;
    free(p);
}

/* ---- all of it ---- */

static void write_down(const Machine *m, const char *path)
{
    char host[65] = "", day[32];
    time_t t = time(NULL);
    struct tm tm;
    gethostname(host, sizeof host - 1);
    strftime(day, sizeof day, "%Y-%m-%d", gmtime_r(&t, &tm));
    FILE *f = fopen(path, "w");
    if (f)
        machine_write(f, m, textf("# Measured by train plan --calibrate, %s, %s. The figures are the host's, which its ranks "
                                  "share.\n", day, config_build_id()));
    if (!f || fclose(f))
        die(EXIT_RESOURCE, "write", "cannot write %s: %s; change: --machine with a file that you may write", path, strerror(errno));
}

static double memory_gib(void)
{
    return (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGE_SIZE) / (1 << 30);
}

void calibrate(const Config *cfg, const char *path, int argc, char **argv)
{
    int rank, world = grid_launched(&rank);
    if (world == 1) {
        int code = launch_job(2, argc, argv, NULL, NULL, 0);
        if (code)
            die(code, "calibrate", "the two ranks that measure ended with %d; change: what they say above", code);
        return;
    }
    Grid g;
    GridSpec spec = {.size = {1, 1, 1, world, 1}};
    BUG_ON(!grid_parse_order("tp-cp-ep-dp-pp", spec.order));
    if (world != 2)
        die(EXIT_CONFIG, "usage", "train plan --calibrate measures with 2 ranks, not %d; change: scripts/launch -n 2, or start it alone",
            world);
    grid_open(&g, &spec, world, rank);
    Machine *m = machine_blank();
    m->name = rank ? "" : textf("a host of %d cores", pool_cores());
    m->shared = 1;
    m->ranks = 4096;
    m->overlap = 0;
    m->memory_gib = memory_gib();
    if (rank == 0)
        measure_device(m, cfg);
    g.all.barrier(&g.all);
    comm_threads(pool_cores() > 1 ? pool_cores() / 2 : 1);
    measure_links(m, &g.all);
    m->network_gbps = m->link_gbps;
    m->network_latency_us = m->link_latency_us;
    list_add(&m->memory_efficiency, "1");
    list_add(&m->memory_efficiency, "1");
    if (rank == 0)
        write_down(m, path);
    grid_close(&g);
}
