/* calibrate -- measures products, messages and memory of this machine for a machine description */
#define _GNU_SOURCE
#include "calibrate.h"
#include "calibrate_links.h"
#include "calibrate_turns.h"
#include "config_table.h"
#include "job.h"
#include "launch.h"
#include "result_file.h"
#include "samples.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A machine's speed changes for seconds at a time. So the measurements alternate: one rank alone and two
 * ranks that share the host, each with short and with long microbatches. */
#define SECONDS 12.0               /* of all turns, for models whose steps are short */
#define STEPS 16                   /* of each meter, for models whose steps are long, and on a busy host */
#define MOST 60.0                  /* s of all turns, whatever they gave by then */

/* ---- one rank alone ---- */

typedef struct { double size, bytes, seconds; } Amount;        /* sums or means of calls */

/* Writes the mean products of the linear layers to out, in order of size; sizes within a factor of 1.6
 * are one. Returns their number. */
static int gather_products(const Call *call, int n, Amount *out)
{
    int kept = 0;
    Amount *all = xcalloc((size_t)n + 1, sizeof *all);
    int products = 0;
    for (int i = 0; i < n; i++)
        if (call[i].work == OPKIND_matmul || call[i].work == OPKIND_linear)
            all[products++] = (Amount){call[i].size, call[i].bytes, call[i].seconds};
    qsort(all, (size_t)products, sizeof *all, by_double);      /* reads the first field, size */
    for (int i = 0; i < products;) {
        double first = all[i].size;
        Amount sum = {0};
        int same = 0;
        for (; i < products && all[i].size < 1.6 * first; i++, same++) {
            sum.size += all[i].size;
            sum.bytes += all[i].bytes;
            sum.seconds += all[i].seconds;
        }
        out[kept++] = (Amount){sum.size / same, sum.bytes / same, sum.seconds / same};
    }
    free(all);
    return kept;
}

static Amount total(const Call *call, int n, OpKind w)
{
    Amount sum = {0};
    for (int i = 0; i < n; i++)
        if (call[i].work == w) {
            sum.size += call[i].size;
            sum.seconds += call[i].seconds;
        }
    return sum;
}

static void list_add(List *l, const char *text)
{
    l->v = keep_grow(l->v, ((size_t)l->n + 1) * sizeof *l->v);
    l->v[l->n++] = text;
}

static const char *number(double x) { return textf("%.4g", x); }

/* Fits the time of products as x FLOPs + y bytes by least squares of the relative error. Returns y, s a
 * byte; 0: bytes make no product longer. A product of few rows takes longer than its arithmetic, because
 * it reads all weights, or adds to all their gradients, as one of many rows does. */
static double seconds_of_byte(const Call *call, int n)
{
    double ff = 0, fb = 0, bb = 0, f1 = 0, b1 = 0;
    for (int i = 0; i < n; i++)
        if (call[i].work == OPKIND_matmul || call[i].work == OPKIND_linear) {
            double f = call[i].size / call[i].seconds, b = call[i].bytes / call[i].seconds;
            ff += f * f, fb += f * b, bb += b * b;
            f1 += f, b1 += b;
        }
    double det = ff * bb - fb * fb;
    return det > 1e-9 * ff * bb ? fmax(0, (ff * b1 - fb * f1) / det) : 0;
}

/* Takes the time of their bytes off the products' times; at least half of each time is left as
 * arithmetic. Sets matmul_gbps. */
static void leave_arithmetic(Machine *m, const Call *call, int n, Amount *point, int points)
{
    double byte = seconds_of_byte(call, n);
    for (int i = 0; i < points; i++)
        byte = fmin(byte, point[i].seconds / point[i].bytes / 2);
    if (byte > 0)
        m->matmul_gbps = 1e-9 / byte;
    for (int i = 0; i < points; i++)
        point[i].seconds -= byte * point[i].bytes;
}

static void describe_products(Machine *m, const Call *call, int n, int fp64)
{
    Amount *point = xcalloc((size_t)n + 1, sizeof *point);
    int points = gather_products(call, n, point);
    double best = 0;
    leave_arithmetic(m, call, n, point, points);
    for (int i = 0; i < points; i++)
        best = fmax(best, point[i].size / point[i].seconds);
    m->matmul = (Curve){points, keep_alloc((size_t)points, sizeof(double)),
                        keep_alloc((size_t)points, sizeof(double))};
    for (int i = 0; i < points; i++) {
        m->matmul.size[i] = point[i].size;
        m->matmul.share[i] = point[i].size / point[i].seconds / best;
        list_add(&m->matmul_efficiency, number(m->matmul.size[i]));
        list_add(&m->matmul_efficiency, number(m->matmul.share[i]));
    }
    m->matmul_tflops = m->matmul_tflops_fp32 = best / 1e12 * (fp64 ? 2 : 1);
    Amount forward = total(call, n, OPKIND_attention_fwd), backward = total(call, n, OPKIND_attention_bwd);
    m->attention_forward = fmin(1, forward.size / forward.seconds / best);
    m->attention_backward = fmin(1, backward.size / backward.seconds / best);
    free(point);
}

static void describe_others(Machine *m, const Call *call, int n)
{
    Amount all = {0};
    for (int i = 0; i < n; i++)
        if (!meter_is_product(call[i].work)) {
            all.size += call[i].size;
            all.seconds += call[i].seconds;
        }
    m->memory_gbps = all.size / all.seconds / 1e9;
    for (int w = 0; w < OPKINDS; w++) {
        Amount a = total(call, n, (OpKind)w);
        m->speed[w] = 1;
        if (!(a.size > 0) || meter_is_product((OpKind)w))
            continue;
        m->speed[w] = a.size / a.seconds / 1e9 / m->memory_gbps;
        list_add(&m->op_speed, op_name[w]);
        list_add(&m->op_speed, number(m->speed[w]));
    }
}

/* ---- ranks that share the host ---- */

/* Time of a call by the description, s, on half of the host. */
static double expected(const Machine *m, const Call *c, int fp64)
{
    double peak = m->matmul_tflops * 1e12 / 2 / (fp64 ? 2 : 1);
    double beside = isnan(m->matmul_gbps) ? 0 : c->bytes / (m->matmul_gbps * 1e9 / 2);
    switch (c->work) {
    case OPKIND_matmul:
    case OPKIND_linear:        return c->size / peak / curve_at(&m->matmul, c->size) + beside;
    case OPKIND_attention_fwd: return c->size / peak / m->attention_forward;
    case OPKIND_attention_bwd: return c->size / peak / m->attention_backward;
    default:                 return c->size / (m->memory_gbps * 1e9 / 2 * m->speed[c->work]);
    }
}

static void describe_sharing(Machine *m, const Call *call, int n, int fp64)
{
    for (int w = 0; w < OPKINDS; w++) {
        double said = 0, took = 0;
        for (int i = 0; i < n; i++)
            if (call[i].work == (OpKind)w) {
                said += expected(m, &call[i], fp64);
                took += call[i].seconds;
            }
        if (!(took > 0))
            continue;
        list_add(&m->op_speed_shared, op_name[w]);
        list_add(&m->op_speed_shared, number(said / took));
    }
}

/* The share of products in the time of the calls. */
static double share_of_products(const Call *call, int n)
{
    double products = 0, all = 0;
    for (int i = 0; i < n; i++) {
        products += meter_is_product(call[i].work) ? call[i].seconds : 0;
        all += call[i].seconds;
    }
    return products / all;
}

static double computing(const Call *call, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += call[i].work == METER_MESSAGE ? 0 : call[i].seconds;
    return sum;
}

/* What a tensor group waits beyond the time of its messages, as a share of its computing. Other programs make
 * it look larger in two ways: rank 0's waits as the clock says, and the whole step in units of the reference
 * without its operations. The smaller counts.
 *   step  in  s of the step, in units of the reference
 *   idle  in  what a step of one rank alone takes beyond its operations, as a share of these
 *   sent  in  messages and bytes of the group in the step */
static double jitter_of(const Machine *m, const Call *call, int n, double step, double idle,
                        const int64_t sent[2])
{
    double computed = computing(call, n), waited = total(call, n, METER_MESSAGE).seconds;
    double messages =
        (double)sent[1] / (m->link_gbps * 1e9) + 2 * (double)sent[0] * m->link_latency_us * 1e-6;
    double whole = step - computed * (1 + idle);
    return sent[0] ? fmin(1, fmax(0, (fmin(waited, whole) - messages) / computed)) : 0;
}

/* ---- all of it ---- */
#define WRITTEN "# Measured by train plan --calibrate"

int calibrate_may_write(const char *path)
{
    char start[sizeof WRITTEN] = "";
    FILE *f = fopen(path, "r");
    int there = f || errno != ENOENT, ours = f && fgets(start, sizeof start, f) && !strcmp(start, WRITTEN);
    if (f)
        fclose(f);
    return !there || ours;
}

static void write_down(const Machine *m, const char *path)
{
    char host[65] = "", day[32];
    time_t t = time(NULL);
    struct tm tm;
    gethostname(host, sizeof host - 1);
    strftime(day, sizeof day, "%Y-%m-%d", gmtime_r(&t, &tm));
    FILE *f = result_open(path);
    machine_write(f, m, textf(WRITTEN ", %s, %s. The figures are the host's, which its ranks share.\n", day,
                              config_build_id()));
    result_close(f, path);
}

static Machine *blank(void)
{
    Machine *m = machine_blank();
    m->name = textf("a host of %d cores", pool_cores());
    m->shared = 1;
    m->cores = pool_cores();
    m->ranks = 4096;
    m->overlap = 0;
    m->memory_gib = (double)host_size() / (1 << 30);
    m->launch_us = 0;                          /* the measured times contain it */
    list_add(&m->memory_efficiency, "1");
    list_add(&m->memory_efficiency, "1");
    return m;
}

/* A meter for each size of a microbatch. */
typedef struct { int n; Meter *of[METER_SIZES]; } Meters;

/* alone, one: of one rank on all cores; both, two: of two ranks that share them; sent: messages and bytes of
 * their group in a step. */
typedef struct {
    Meters alone, both;
    Samples one[METER_SIZES], two[METER_SIZES];
    int64_t sent[METER_SIZES][2];
} Measured;

static Meters meters_open(const Config *cfg, int world)
{
    int64_t size[METER_SIZES];
    Meters m = {.n = meter_sizes(cfg, size)};
    for (int k = 0; k < m.n; k++)
        m.of[k] = meter_open(cfg, meter_splits(cfg, world) ? AXIS_TP : AXIS_DP, world, size[k]);
    return m;
}

static void meters_close(Meters *m)
{
    for (int k = 0; k < m->n; k++)
        meter_close(m->of[k]);
}

/* *out: the calls of all sizes, one after the other, on the heap. Returns their number.
 *   scale  in  [m->n] what the times of each size are multiplied by */
static int meters_calls(const Meters *m, const double *scale, Call **out)
{
    int n = 0;
    *out = NULL;
    for (int k = 0; k < m->n; k++) {
        Call *call;
        int more = meter_calls(m->of[k], &call);
        *out = xrealloc(*out, (size_t)(n + more) * sizeof **out);
        for (int i = 0; i < more; i++) {
            (*out)[n] = call[i];
            (*out)[n++].seconds *= scale[k];
        }
    }
    return n;
}

/* The lower quartile of the reference over the samples of all sizes. */
static Reference describe_reference(const Samples *s, int n, double *product, double *copy)
{
    Samples all = {0};
    for (int k = 0; k < n; k++)
        for (int i = 0; i < s[k].n; i++) {
            all.calm = xgrow(all.calm, all.n, sizeof *all.calm);
            all.calm[all.n++] = s[k].calm[i];
        }
    Reference r = samples_quartile(&all);
    *product = r.product;
    *copy = r.copy;
    free(all.calm);
    return r;
}

/* Describes one rank on all cores. The times of its operations are scaled so that they add up to its steps in
 * units of the reference, in which steps of layouts will be measured. Returns what a step takes beyond its
 * operations, as a share of these, least of all sizes, at least 0. */
static double describe_alone(Machine *m, const Measured *d, int fp64)
{
    Call *call;
    double scale[METER_SIZES] = {1, 1}, idle = INFINITY;
    int n = meters_calls(&d->alone, scale, &call);
    m->reference_products = share_of_products(call, n);
    free(call);
    Reference r = describe_reference(d->one, d->alone.n, &m->reference_product_ms, &m->reference_copy_ms);
    for (int k = 0; k < d->alone.n; k++) {
        n = meter_calls(d->alone.of[k], &call);
        scale[k] = samples_typical(&d->one[k], (Calibrated){r, m->reference_products}) / computing(call, n);
        idle = fmin(idle, fmax(0, scale[k] - 1));
    }
    n = meters_calls(&d->alone, scale, &call);
    describe_products(m, call, n, fp64);
    describe_others(m, call, n);
    free(call);
    return idle;
}

/* Describes ranks that share the host, and their jitter. Their operations, too, take no more than is left of
 * their steps. */
static void describe_both(Machine *m, const Measured *d, double idle, int fp64)
{
    Call *call;
    double scale[METER_SIZES], jitter = 1;
    Reference r = describe_reference(d->two, d->both.n, &m->reference_shared_product_ms,
                                     &m->reference_shared_copy_ms);
    for (int k = 0; k < d->both.n; k++) {
        int n = meter_calls(d->both.of[k], &call);
        double step = samples_typical(&d->two[k], (Calibrated){r, m->reference_products});
        scale[k] = fmin(1 + idle, step / computing(call, n));
        jitter = fmin(jitter, jitter_of(m, call, n, step, idle, d->sent[k]));
    }
    int n = meters_calls(&d->both, scale, &call);
    describe_sharing(m, call, n, fp64);
    m->jitter = jitter;
    free(call);
}

static void describe(Machine *m, const Measured *d, int fp64)
{
    double idle = describe_alone(m, d, fp64);
    describe_both(m, d, idle, fp64);
}

/* Runs a step; adds operations and bytes of the tensor group to sent. Collective over both ranks. */
static void count_sent(Meter *m, int64_t sent[2])
{
    Comm *tp = &meter_run(m)->grid.axis[AXIS_TP];
    int64_t ops = tp->ops, bytes = tp->bytes;
    meter_step(m);
    sent[0] += tp->ops - ops;
    sent[1] += tp->bytes - bytes;
}

/* Whether the turns are over: SECONDS have passed and each meter has STEPS, or MOST seconds have passed.
 * Rank 0 decides. Collective over the two ranks. */
static int enough(const Measured *d, double since, Comm *all)
{
    double passed = now() - since, least = STEPS;
    for (int k = 0; k < d->both.n; k++)
        least = fmin(least, meter_steps(d->both.of[k]));
    for (int k = 0; k < d->alone.n; k++)
        least = fmin(least, meter_steps(d->alone.of[k]));
    int64_t over = (passed > SECONDS && least >= STEPS) || passed > MOST;
    all->wait(all, all->broadcast(all, &over, 1, I64, 0));
    return (int)over;
}

/* Measures and writes the description. Rank 1 sleeps while rank 0 runs alone. Collective over both. */
static void measure(const Config *cfg, const char *path, int rank)
{
    Machine *m = blank();
    Measured d = {.both = meters_open(cfg, 2), .alone = rank ? (Meters){0} : meters_open(cfg, 1)};
    Comm *all = &meter_run(d.both.of[0])->grid.all;
    int fp64 = cfg->params_dtype == PARAMS_DTYPE_FP64;
    double start = now();
    comm_threads(pool_cores() > 1 ? pool_cores() / 2 : 1);
    for (int turn = 0; turn < 2 || !enough(&d, start, all); turn++) {
        for (int k = 0; k < d.alone.n; k++)
            samples_turn(&d.one[k], d.alone.of[k]);
        all->barrier(all);
        for (int k = 0; k < d.both.n; k++) {
            if (turn == 1)
                count_sent(d.both.of[k], d.sent[k]);
            samples_turn(&d.two[k], d.both.of[k]);
        }
    }
    calibrate_links(m, all);
    m->network_gbps = m->link_gbps;
    m->network_latency_us = m->link_latency_us;
    if (rank == 0) {
        describe(m, &d, fp64);
        write_down(m, path);
    }
    for (int k = 0; k < METER_SIZES; k++) {
        samples_close(&d.one[k]);
        samples_close(&d.two[k]);
    }
    meters_close(&d.alone);
    meters_close(&d.both);
}

/* Measures what taking turns costs and adds it to the description. Collective over the world. */
static void measure_turns(const Config *cfg, const char *path, int rank, int world)
{
    Machine m = *machine_load(path);
    calibrate_turns(&m, cfg, world);
    if (rank == 0)
        write_down(&m, path);
}

/* Starts the command again on so many ranks. Where they fail they have said why. */
static void on_ranks(int ranks, int argc, char **argv)
{
    int code = launch_job(ranks, argc, argv, NULL, NULL, 0);
    if (code)
        exit(code);
}

void calibrate(const Config *cfg, const char *path, int argc, char **argv)
{
    int rank, world = job_launched(&rank);
    if (world == 1) {
        on_ranks(2, argc, argv);
        if (turns_ranks())
            on_ranks(turns_ranks(), argc, argv);
    } else if (world == 2) {
        measure(cfg, path, rank);
    } else if (world == turns_ranks()) {
        measure_turns(cfg, path, rank, world);
    } else {
        die(EXIT_CONFIG, "usage", "train plan --calibrate measures with 2 ranks, and with 2 a core, not %d; "
            "change: start it alone", world);
    }
}
