/* test_roofline -- the MFU of one H200 by a model of each kernel, beside the planner's.
 *
 * The rehearsal of a step and the bytes of an op (kernels/cost.c) are those of the planner. The times have
 * nothing in common with it. A product is tiles over multiprocessors: the tensor cores' clocks along k, what
 * leaves a tile, full and partial waves. Attention is blocks of query tiles: clocks of tensor cores, of
 * exponentials and of shared memory. Every other op is bytes in flight, by its kernel's registers and
 * threads. Clocks come from published measurements (Gpu); the planner has efficiency curves
 * (configs/machines). No GPU has measured either.
 *
 *   test_roofline         all shapes; fails where the two differ by more than 15 %
 *   test_roofline NAME    one of them, and the time of each op in a step */
#include "predict.h"
#include "test.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- one GPU of the kind of Hopper ---- */

typedef struct {
    double hbm;                /* bytes/s of the data sheet */
    double reach;              /* share of it that a kernel with enough bytes in flight has: 3.0 of 3.35 TB/s
                                * in softmax, RMSNorm and cross-entropy on an H100 */
    double latency;            /* s of a load from device memory under load */
    double sms, registers, threads;            /* multiprocessors; their registers and threads */
    double clock;              /* 1/s at which the tensor cores' rated peak is reached: 989.4 TFLOP/s */
    double mma;                /* FLOPs a clock and multiprocessor, BF16, dense; FP8 twice that */
    double lower, lower8;      /* share of `clock` that steps of random numbers leave at 700 W, BF16 and FP8.
                                * Short runs of the best shapes have 794 of 989 and 1453 of 1979 TFLOP/s,
                                * transformers' shapes 600 to 720 in BF16: here 702, with which a peer's four
                                * rows on an H100 are met within 5 % */
    double fabric;             /* bytes a clock and multiprocessor to and from L2 */
    double exps;               /* exponentials a clock and multiprocessor */
    double gap, ramp;          /* s from a kernel's end to the next one's start; s of both ends of a kernel */
} Gpu;

static const Gpu h200 = {.hbm = 4.8e12, .reach = 0.895, .latency = 0.8e-6, .sms = 132, .registers = 65536,
                         .threads = 2048, .clock = 1.83e9, .mma = 4096, .lower = 0.71,
                         .lower8 = 0.68, .fabric = 64, .exps = 16, .gap = 1e-6, .ramp = 2e-6};

/* An H100 has slower memory. */
static Gpu h100(void)
{
    Gpu g = h200;
    g.hbm = 3.35e12;
    return g;
}

/* A walk's clock. */
typedef struct {
    CostSink sink;
    Gpu gpu;
    int own;                   /* bool: attention by our own kernels, else by the library's */
    double op[OPKINDS];        /* s of each op so far */
    double step[OPKINDS];      /* s of each op in the step */
} Roof;

static Roof *roof_of(const Device *d) { return cost_ctx(d); }

static void spend(Roof *r, OpKind op, double s) { r->op[op] += s; }

/* ---- kernels that are bound by memory ---- */

/* Threads of a block; registers of a thread (tests/BENCHMARKS.md); flying: bytes that a thread has under way;
 * reach: share of Gpu.reach that the kernel's accesses leave. */
typedef struct { const char *op; int threads, registers; double flying, reach; } Shape;
static const Shape shapes[] = {
    {"copy", 256, 40, 64, 1},
    {"zero", 256, 16, 64, 1},
    {"norm_fwd", 128, 70, 48, 1},
    {"add_norm_fwd", 128, 70, 48, 1},
    {"norm_bwd", 224, 111, 96, 0.85},
    {"bias_bwd", 256, 64, 64, 0.95},
    {"act_fwd", 256, 40, 64, 1},
    {"act_bwd", 256, 48, 96, 1},
    {"fp8_cast", 256, 35, 32, 0.85},      /* a transpose goes through shared memory */
    {"fp8_act", 256, 64, 64, 0.85},
    {"fp8_norm", 896, 64, 64, 0.85},
    {"xent", 512, 52, 64, 0.6},           /* rows of 152,000 are read twice */
    {"adam", 256, 72, 64, 1},
};

/* Seconds of a kernel that moves n bytes. */
static double memory_time(const Roof *r, OpKind op, double n)
{
    const Gpu *g = &r->gpu;
    Shape s = {op_name[op], 256, 40, 32, 0.95};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (!strcmp(shapes[i].op, op_name[op]))
            s = shapes[i];
    double blocks = floor(fmin(g->registers / (s.registers * s.threads), g->threads / s.threads));
    double flying = g->sms * blocks * s.threads * s.flying, wanted = g->hbm * g->latency;
    double speed = g->hbm * g->reach * s.reach * fmin(1, flying / wanted);
    return g->gap + g->ramp + n / speed;
}

static void add_cost(void *roof, const Cost *c)
{
    Roof *r = roof;
    const Gpu *g = &r->gpu;
    double t = memory_time(r, c->op, c->bytes);
    if (c->flops > 0)          /* a product whose shape is not known here */
        t = fmax(t, g->gap + g->ramp + c->flops / (c->rate * g->sms * g->mma * g->clock * g->lower * 0.9));
    spend(r, c->op, t);
}

/* ---- products ---- */

/* Tiles of the library's kernels: rows, columns, and whether two tiles share a multiprocessor by turns, so
 * that one leaves while the other multiplies. */
typedef struct { double m, n; int turns; } Tile;
static const Tile tiles[] = {{128, 256, 0}, {256, 128, 0}, {128, 192, 0},
                             {128, 128, 0}, {64, 256, 1},  {64, 128, 1}};

/* Clocks of all tiles of a product whose sums are cut into `split` parts. */
static double tile_clocks(const Gpu *g, const Tile *t, double m, double n, double k, int split, double bytes,
                          double out, int f8)
{
    double mma = 2 * t->m * t->n * 64 / (g->mma * (f8 ? 2 : 1)) * (f8 == 2 ? 1.12 : 1);
    /* two neighbours load the longer side once for both */
    double loads = (fmin(t->m, t->n) + fmax(t->m, t->n) / 2) * 64 * bytes / g->fabric;
    double loop = ceil(k / 64) * fmax(mma, loads), start = 700;
    double leave = t->m * t->n * (split > 1 ? 4 : out) / g->fabric;
    double waves = ceil(ceil(m / t->m) * ceil(n / t->n) * split / g->sms);
    return t->turns ? waves * fmax(loop, leave) + start + leave : waves * (loop + start + leave);
}

/* Seconds of c [m, n] of k terms a sum.
 *   bytes  in  of the operands' type
 *   out    in  bytes that leave or enter for each element of c
 *   f8     in  0, or in FP8: 1 sums in the tensor cores, 2 promoted to F32 on the way */
static double product_time(const Roof *r, double m, double n, double k, double bytes, double out, int f8)
{
    const Gpu *g = &r->gpu;
    double clock = g->clock * (f8 ? g->lower8 : g->lower), best = INFINITY;
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++)
        for (int split = 1; split <= 8; split *= 2) {
            double s = tile_clocks(g, &tiles[i], m, n, k / split, split, bytes, out, f8) / clock;
            if (split > 1)
                s += memory_time(r, OPKIND_sum_parts, m * n * (4 * split + out));
            best = fmin(best, s);
        }
    double moved = (m * k + n * k) * bytes + m * n * out;
    return g->gap + g->ramp + fmax(best, moved / (g->hbm * g->reach));
}

static void product(Device *d, OpKind op, Mat c, double k, Dtype type, int acc, int f8)
{
    double out = (double)dtype_size(c.type) * (acc ? 2 : 1);
    spend(roof_of(d), op, product_time(roof_of(d), (double)c.rows, (double)c.cols, k,
                                       f8 ? 1 : (double)dtype_size(type), out, f8));
}

static void roof_matmul(Device *d, Mat c, Mat a, int ta, Mat b, int tb, int acc)
{
    (void)b, (void)tb;
    product(d, OPKIND_matmul, c, (double)(ta ? a.rows : a.cols), a.type, acc, 0);
}

static void roof_linear(Device *d, Mat y, Mat x, Mat w, Mat bias)
{
    (void)w, (void)bias;
    product(d, OPKIND_linear, y, (double)x.cols, x.type, 0, 0);
}

/* The library's epilogues do GELU in its tanh form, beside the product but for the bytes; other activations
 * are a kernel of their own. */
static double beside(const Roof *r, Mat m) { return (double)mat_bytes(m) / (r->gpu.hbm * r->gpu.reach); }

static void roof_linear_act_fwd(Device *d, Mat a, Mat h, Mat x, Mat w, Mat bias, ActKind kind)
{
    roof_linear(d, h, x, w, bias);
    if (kind == ACT_GELU_TANH)
        spend(roof_of(d), OPKIND_linear, beside(roof_of(d), a));
    else
        d->act_fwd(d, a, h, kind);
}

static void roof_linear_act_bwd_x(Device *d, Mat dh, Mat da, Mat dy, Mat w, Mat h, ActKind kind)
{
    roof_matmul(d, da, dy, 0, w, 0, 0);
    if (kind == ACT_GELU_TANH)
        spend(roof_of(d), OPKIND_matmul, beside(roof_of(d), h));
    else
        d->act_bwd(d, dh, da, h, kind);
}

static void roof_linear_bwd_w(Device *d, Mat dw, Mat db, Mat dy, Mat x, int acc)
{
    roof_matmul(d, dw, dy, 1, x, 0, acc);
    if (db.rows)
        d->bias_bwd(d, db, dy);
}

static void roof_fp8_matmul(Device *d, Mat c, Mat8 a, Mat8 b, Mat bias, int acc)
{
    (void)bias;
    product(d, OPKIND_fp8_matmul, c, (double)a.cols, F16, acc, a.format == E4M3 && b.format == E4M3 ? 1 : 2);
}

/* ---- attention, causal over whole sequences ---- */

/* Seconds of `blocks` blocks for each of `items` heads of samples. Block i has each * (i + 1) tiles of `tile`
 * clocks, and `ends` clocks before and after them. `beside` blocks share a multiprocessor and its clocks.
 * Long blocks come first: at the end half of the longest is left. */
static double blocks_time(const Roof *r, double items, double blocks, double each, double tile, double ends,
                          double beside)
{
    double all = items * (each * blocks * (blocks + 1) / 2 * tile + blocks * ends) / r->gpu.sms;
    double longest = (each * blocks * tile + ends) * beside, clock = r->gpu.clock * 0.85;
    return r->gpu.gap + r->gpu.ramp + (all > longest ? all + longest / 2 : longest) / clock;
}

/* The library's: tiles of 128 queries and 128 keys, one block a multiprocessor, whose two groups of warps
 * take turns. */
static double library_forward(const Roof *r, double items, double s, double dim)
{
    double mma = 2 * 2 * 128 * 128 * dim / r->gpu.mma, exps = 128 * 128 / r->gpu.exps;
    return blocks_time(r, items, ceil(s / 128), 1, mma + 0.8 * exps, 1800, 1);
}
/* Five products a tile; sums of dq in a fixed order cost a tenth. */
static double library_backward(const Roof *r, double items, double s, double dim)
{
    double mma = 5 * 2 * 128 * 128 * dim / r->gpu.mma;
    return 1.1 * blocks_time(r, items, ceil(s / 128), 1, mma + 1500 + 14 * dim, 4000, 1)
           + memory_time(r, OPKIND_attention_bwd, items * s * dim * 8);
}

/* Ours: each warp reads each tile of 64 columns from shared memory by ldmatrix, and multiplies by mma.sync,
 * which has 0.62 of the rate of wgmma. Two blocks share a multiprocessor.
 *   products, reads  in  products and operands of a tile that come from shared memory */
static double own_time(const Roof *r, double items, double s, double dim, double rows, double warps,
                       double products, double reads)
{
    double mma = products * 2 * rows * 64 * dim / r->gpu.mma / 0.62, exps = rows * 64 / r->gpu.exps;
    double shared = warps * reads * 64 * dim * 2 / 128;
    return blocks_time(r, items, ceil(s / rows), rows / 64, fmax(mma, shared) + 0.5 * exps, 2500, 2);
}

static double queries(const Attention *s) { return (double)positions_rows(&s->q); }

static void roof_attention_fwd(Device *d, Mat o, Mat lse, Mat q, Mat k, Mat v, const Attention *s)
{
    (void)o, (void)lse, (void)q, (void)k, (void)v;
    Roof *r = roof_of(d);
    double items = (double)s->batch * s->heads, n = queries(s);
    spend(r, OPKIND_attention_fwd, r->own ? own_time(r, items, n, s->dim, 128, 4, 2, 2)
                                          : library_forward(r, items, n, s->dim));
}

static void roof_attention_bwd(Device *d, Mat dq, Mat dk, Mat dv, Mat dout, Mat o, Mat lse, Mat delta, Mat q,
                               Mat k, Mat v, const Attention *s)
{
    (void)dq, (void)dk, (void)dv, (void)dout, (void)o, (void)lse, (void)delta, (void)q, (void)k, (void)v;
    Roof *r = roof_of(d);
    double items = (double)s->batch * s->heads, n = queries(s), rows = s->dim > 64 ? 64 : 128;
    double ours = own_time(r, items, n, s->dim, 128, 4, 3, 3) + own_time(r, items, n, s->dim, rows, 4, 4, 4);
    spend(r, OPKIND_attention_bwd, r->own ? ours : library_backward(r, items, n, s->dim));
}

/* ---- a step ---- */

static void roof_open(Roof *r, Device *d, Gpu gpu, int own)
{
    *r = (Roof){.sink = {add_cost, r}, .gpu = gpu, .own = own};
    cost_open(d, F32, &r->sink);
    d->matmul = roof_matmul;
    d->linear = roof_linear;
    d->linear_act_fwd = roof_linear_act_fwd;
    d->linear_act_bwd_x = roof_linear_act_bwd_x;
    d->linear_bwd_w = roof_linear_bwd_w;
    d->fp8_matmul = roof_fp8_matmul;
    d->attention_fwd = roof_attention_fwd;
    d->attention_bwd = roof_attention_bwd;
}

static void one_step(void *roof, Run *run, const Lists *l)
{
    Roof *r = roof;
    memset(r->op, 0, sizeof r->op);
    run_rehearse_step(run, l);
    memcpy(r->step, r->op, sizeof r->step);
}

/* Seconds of a step; r->step: each op's. recast: as in Rehearsal. */
static double step_time(Roof *r, const Config *c, Gpu gpu, int own, int recast)
{
    Device d;
    Run run;
    double step = 0;
    roof_open(r, &d, gpu, own);
    run_plan_over(&run, c, RUN_TRAIN, 0, 0,
                  &(Rehearsal){.dev = &d, .step = one_step, .ctx = r, .apart = 1, .fp8_recast = recast});
    run_plan_close(&run);
    for (int i = 0; i < OPKINDS; i++)
        step += r->step[i];
    return step;
}

/* FLOPs of a step by the convention of the peers: 6 N + 6 L s h a token, N the weights that are used in a
 * product. */
static double model_flops(const Config *c)
{
    int64_t q = c->num_attention_heads * c->kv_channels, kv = c->num_query_groups * c->kv_channels;
    int64_t f = c->ffn_hidden_size + act_width((ActKind)c->activation, c->ffn_hidden_size);
    int64_t weights = (c->num_layers * (2 * q + 2 * kv + f) + c->vocab_size) * c->hidden_size;
    return 6. * (double)(c->global_batch_size * c->seq_length) *
           (double)(weights + c->num_layers * c->seq_length * q);
}

/* measured: MFU % on one H200 (tests/gpu); peer: of a trainer in C++ on one H100, as published. */
typedef struct { const char *name, *file, *micro, *fp8; double measured, peer; } Row;
static const Row models[] = {
    {"124M", "configs/gpu/gpt2-124m.yaml", "micro_batch_size=64", "fp8=none", 46.1, NAN},
    {"0.5B", "configs/gpu/0.5b.yaml", "micro_batch_size=32", "fp8=none", 47.8, 47},
    {"1.5B", "configs/gpu/1.5b.yaml", "micro_batch_size=16", "fp8=none", 56.2, 56.5},
    {"3B", "configs/gpu/3b.yaml", "micro_batch_size=8", "fp8=none", 58.7, 59.3},
    {"7B, micro batch 2", "configs/gpu/7b.yaml", "micro_batch_size=2", "fp8=none", 57.1, 60.3},
    {"7B, micro batch 4", "configs/gpu/7b.yaml", "micro_batch_size=4", "fp8=none", 59.4, 60.3},
    {"7B in FP8, micro batch 2", "configs/gpu/7b.yaml", "micro_batch_size=2", "fp8=hybrid", 84.4, NAN},
    {"7B in FP8, micro batch 4", "configs/gpu/7b.yaml", "micro_batch_size=4", "fp8=hybrid", 90.3, NAN},
};

static const Config *config_of(const Row *m)
{
    char *change[] = {(char *)m->micro, (char *)m->fp8};
    return config_load(m->file, 2, change, 1, USE_MODEL);
}

static void print_ops(const Roof *r, double step, const Prediction *p)
{
    printf("# op                         s     %%  planner, s\n");
    for (int i = 0; i < OPKINDS; i++)
        if (r->step[i] > 0.002 * step)
            printf("# %-20s %7.3f %5.1f %11.3f\n", op_name[i], r->step[i], 100 * r->step[i] / step,
                   p->rank[0].work[i]);
}

static void compare(const Row *m, int ops)
{
    const Config *c = config_of(m);
    Prediction p;
    Roof r;
    const double peak = 989.4e12, flops = model_flops(c);
    predict(&p, c, machine_load("h200"));
    double other = step_time(&r, c, h100(), 0, p.fp8_recast), own = step_time(&r, c, h200, 1, p.fp8_recast);
    double step = step_time(&r, c, h200, 0, p.fp8_recast);
    double mfu = 100 * flops / (step * peak), planned = 100 * flops / (p.step * peak);
    double differ = mfu / planned - 1;
    printf("# %-26s %8.1f %8.1f %7.1f %+8.1f %10.0f %14.1f", m->name, m->measured, mfu, planned, 100 * differ,
           (double)(c->global_batch_size * c->seq_length) / step, 100 * flops / (own * peak));
    printf(isnan(m->peer) ? "\n" : " %8.1f %5.1f\n", 100 * flops / (other * peak), m->peer);
    if (ops)
        print_ops(&r, step, &p);
    CHECK(fabs(differ) <= 0.15, "%s: %.1f %% MFU by the roofline, %.1f %% by the planner", m->name, mfu,
          planned);
    CHECK(fabs(mfu / m->measured - 1) <= 0.15 && fabs(planned / m->measured - 1) <= 0.15,
          "%s: %.1f %% MFU measured, %.1f %% by the roofline, %.1f %% by the planner", m->name, m->measured,
          mfu, planned);
    prediction_close(&p);
}

int main(int argc, char **argv)
{
    puts("# MFU % of one H200          measured roofline planner differ %   tokens/s  own attention  H100, "
         "peer");
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (argc < 2 || !strcmp(argv[1], models[i].name))
            compare(&models[i], argc > 1);
    return test_end();
}
