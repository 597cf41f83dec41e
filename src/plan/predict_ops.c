/* predict_ops -- the time of each op on a machine, from what it costs */
#include "predict.h"
#include <math.h>
#include <string.h>

/* curve_at with a cache, as its logarithms would take a third of a walk's time. known NULL: no cache. */
static double share_at(const Curve *c, Lookup *known, double size)
{
    uint64_t bits;
    if (!known)
        return curve_at(c, size);
    memcpy(&bits, &size, sizeof bits);
    Lookup *l = &known[(bits * 0x9e3779b97f4a7c15ull) >> 56];
    if (l->size != size || l->share <= 0)
        *l = (Lookup){size, curve_at(c, size)};
    return l->share;
}

static double peak(const Tally *k, Dtype type)
{
    double flops =
        (type == BF16 || type == F16 ? k->m->matmul_tflops : k->m->matmul_tflops_fp32) * 1e12 * k->share;
    return type == F64 ? flops / 2 : flops;
}

/* Tiles that libraries have kernels for, and their speed beside that of the largest: smaller ones load more
 * for each product. */
static const struct { double rows, cols, speed; } tiles[] = {
    {128, 256, 1}, {256, 128, 1}, {128, 128, 0.92}, {64, 128, 0.75}, {64, 64, 0.5}};
enum { SPLITS = 8 };                   /* parts that a long sum is cut into, at most */

/* Time of a product whose tiles go over the multiprocessors in waves, s: of the best tile and split. A split
 * product's parts are written, and read to be added up. */
static double tiled(const Tally *k, const Cost *c)
{
    const Machine *m = k->m;
    double sm = peak(k, c->type) * m->tile_share * c->rate / (double)m->sms, best = INFINITY;
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++)
        for (int split = 1; split <= SPLITS; split *= 2) {
            double n = ceil(c->rows / tiles[i].rows) * ceil(c->cols / tiles[i].cols) * split;
            double terms = c->terms / split + m->tile_fill;
            double t = ceil(n / (double)m->sms) * cost_product(tiles[i].rows, tiles[i].cols, terms) /
                       (sm * tiles[i].speed);
            if (split > 1)
                t += 8 * split * c->rows * c->cols / (m->memory_gbps * 1e9 * k->share);
            best = fmin(best, t);
        }
    return best;
}

/* Time of an op's arithmetic, or of its copy between device and host, s. */
static double arithmetic(const Tally *k, const Cost *c)
{
    const Machine *m = k->m;
    if (c->bus > 0)
        return predict_bus(k, c->bus);
    if (!(c->flops > 0))
        return 0;
    if (c->op == OPKIND_attention_fwd && !m->unfused)
        return c->flops / (peak(k, c->type) * m->attention_forward);
    if (c->op == OPKIND_attention_bwd && !m->unfused)
        return c->flops / (peak(k, c->type) * m->attention_backward);
    if (m->sms && c->rows > 0)
        return tiled(k, c);
    double t = c->flops / (peak(k, c->type) * share_at(&m->matmul, k->matmul, c->flops)) / c->rate;
    /* A core packs its operands, so a product's traffic adds to its arithmetic. */
    int packs = c->op == OPKIND_matmul || c->op == OPKIND_linear || c->op == OPKIND_fp8_matmul;
    if (packs && !isnan(m->matmul_gbps))
        t += c->bytes / (m->matmul_gbps * 1e9 * k->share);
    return t;
}

void predict_launch(Tally *k, double launches)
{
    k->host += launches;
    double wait = k->host > k->now ? k->host - k->now : 0;
    k->now += wait;
    k->hosted += wait;
}

void predict_op(Tally *k, OpKind op, const OpTime *t)
{
    predict_launch(k, k->m->host_us * 1e-6);
    k->now += t->t;
    k->work[op] += t->t;
    k->work[WORK_LAUNCH] += t->launch;
    k->work[WORK_PEAK] += t->best;
    k->work[t->part] += t->rest;
}

/* Adds an op to the Tally: the longer of its arithmetic and its memory traffic, plus the launch. */
static void spend(void *tally, const Cost *c)
{
    Tally *k = tally;
    const Machine *m = k->m;
    double memory = c->bytes / (m->memory_gbps * 1e9 * k->share * share_at(&m->memory, k->memory, c->bytes) *
                                m->speed[c->op]);
    double launch = m->launch_us * 1e-6, slow = k->together ? 1 / m->together[c->op] : 1;
    double t = slow * (launch + fmax(arithmetic(k, c), memory));
    double best = c->flops > 0 ? c->flops / peak(k, c->type) / c->rate : 0;
    int beyond = c->flops > 0 ? WORK_BELOW_PEAK : c->cast ? WORK_CAST : WORK_MEMORY;
    OpTime all = {t, slow * launch, best, t - slow * launch - best, beyond};
    recorder_op(k->recorder, c->op, &all);
    predict_op(k, c->op, &all);
}

void predict_device(Device *d, Tally *k, Dtype real)
{
    k->sink = (CostSink){spend, k, .unfused = k->m->unfused, .separate = k->m->separate,
                         .apart = k->m->shared, .fp8_as_f32 = k->m->shared};
    cost_open(d, real, &k->sink);
    d->name = "planned";
    predict_copies(d);
    if (k->m->separate)
        d->keeps = (Keeps){.logits = 1, .recomputed_output = 1};
    if (k->m->unfused)
        d->keeps = (Keeps){.mask = 1, .scores = 1, .logits = 1, .drop_sent = 1, .recomputed_output = 1};
}
