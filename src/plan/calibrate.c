/* calibrate -- measures products, messages and memory of this machine for a machine description */
#define _GNU_SOURCE
#include "calibrate.h"
#include "config_table.h"
#include "job.h"
#include "launch.h"
#include "meter.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A machine's speed changes for seconds at a time. So the measurements alternate: one rank alone and two
 * ranks that share the host, each with short and with long microbatches. */
#define SECONDS 12.0               /* of all turns, for models whose steps are short */
#define TURN 0.4                   /* s */

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

/* Sets jitter: the time that a tensor group waits beyond the time of its messages, as a share of its
 * computing. sent: operations and bytes of the group in a step. */
static void describe_jitter(Machine *m, const Call *call, int n, const int64_t sent[2])
{
    double computed = 0, waited = total(call, n, METER_MESSAGE).seconds;
    for (int i = 0; i < n; i++)
        computed += call[i].work == METER_MESSAGE ? 0 : call[i].seconds;
    double messages =
        (double)sent[1] / (m->link_gbps * 1e9) + 2 * (double)sent[0] * m->link_latency_us * 1e-6;
    m->jitter = fmin(1, fmax(0, (waited - messages) / computed));
}

/* ---- messages ---- */

static void all_reduce(Comm *c, char *p, int64_t n) { c->wait(c, c->all_reduce(c, p, n / 4, F32, OP_SUM)); }

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
    enum { ROUNDS = 31 };
    double took[ROUNDS];
    for (int i = -2; i < ROUNDS; i++) {
        c->barrier(c);
        double start = now();
        call(c, p, bytes);
        if (i >= 0)
            took[i] = now() - start;
    }
    qsort(took, ROUNDS, sizeof *took, by_double);
    return took[ROUNDS / 2];
}

/* Measures messages. cold: bytes, more than caches hold. Collective over the two ranks. */
static void measure_links(Machine *m, Comm *c)
{
    const int64_t few = 4096, many = 8 << 20, cold = 128 << 20;
    char *p = xcalloc((size_t)cold, 1);
    double small = median_call(c, all_reduce, p, few), large = median_call(c, all_reduce, p, many);
    m->link_gbps = (double)(many - few) / (large - small) / 1e9;
    m->link_latency_us = small / 2 * 1e6;
    m->link_cold_gbps = (double)(cold - few) / (median_call(c, all_reduce, p, cold) - small) / 1e9;
    double near = median_call(c, there_and_back, p, few) / 2,
           far = median_call(c, there_and_back, p, many) / 2;
    m->message_gbps = (double)(many - few) / (far - near) / 1e9;
    comm_threads(pool_cores());                /* more threads than cores: a rank that waits sleeps */
    m->link_latency_crowded_us = median_call(c, all_reduce, p, few) / 2 * 1e6;
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
        machine_write(f, m, textf("# Measured by train plan --calibrate, %s, %s. The figures are the host's, "
                                  "which its ranks share.\n", day, config_build_id()));
    if (!f || fclose(f))
        die(EXIT_RESOURCE, "write", "cannot write %s: %s; change: --machine with a file that you may write",
            path, strerror(errno));
}

/* Runs steps for a turn by rank 0's clock, at least one. Collective over the two ranks. */
static void turn_together(Meter *both, Comm *all)
{
    double left = TURN;
    do {
        double took = meter_step(both);
        left -= took;
        all->wait(all, all->broadcast(all, &left, 1, F64, 0));
    } while (left > 0);
}

static void turn_alone(Meter *alone)
{
    double left = TURN;
    do
        left -= meter_step(alone);
    while (left > 0);
}

static Machine *blank(void)
{
    Machine *m = machine_blank();
    m->name = textf("a host of %d cores", pool_cores());
    m->shared = 1;
    m->cores = pool_cores();
    m->ranks = 4096;
    m->overlap = 0;
    m->memory_gib = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGE_SIZE) / (1 << 30);
    m->launch_us = 0;                          /* the measured times contain it */
    list_add(&m->memory_efficiency, "1");
    list_add(&m->memory_efficiency, "1");
    return m;
}

/* A meter for each size of a microbatch. */
typedef struct { int n; Meter *of[METER_SIZES]; } Meters;

static Meters meters_open(const Config *cfg, int world)
{
    int64_t size[METER_SIZES];
    Meters m = {.n = meter_sizes(cfg, size)};
    for (int k = 0; k < m.n; k++)
        m.of[k] = meter_open(cfg, world, size[k]);
    return m;
}

static void meters_close(Meters *m)
{
    for (int k = 0; k < m->n; k++)
        meter_close(m->of[k]);
}

/* *out: the calls of all sizes, one after the other, on the heap. Returns their number. */
static int meters_calls(const Meters *m, Call **out)
{
    int n = 0;
    *out = NULL;
    for (int k = 0; k < m->n; k++) {
        Call *call;
        int more = meter_calls(m->of[k], &call);
        *out = xrealloc(*out, (size_t)(n + more) * sizeof **out);
        memcpy(*out + n, call, (size_t)more * sizeof **out);
        n += more;
    }
    return n;
}

static void describe(Machine *m, const Meters *alone, const Meters *both, const int64_t sent[2], int fp64)
{
    Call *call;
    int n = meters_calls(alone, &call);
    describe_products(m, call, n, fp64);
    describe_others(m, call, n);
    free(call);
    n = meters_calls(both, &call);
    describe_sharing(m, call, n, fp64);
    describe_jitter(m, call, n, sent);
    free(call);
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

/* Measures and writes the description. Rank 1 sleeps while rank 0 runs alone. Collective over both. */
static void measure(const Config *cfg, const char *path, int rank)
{
    Machine *m = blank();
    Meters both = meters_open(cfg, 2), alone = rank ? (Meters){0} : meters_open(cfg, 1);
    Comm *all = &meter_run(both.of[0])->grid.all;
    int fp64 = cfg->params_dtype == PARAMS_DTYPE_FP64;
    int64_t sent[2] = {0};
    double left = SECONDS;
    comm_threads(pool_cores() > 1 ? pool_cores() / 2 : 1);
    for (int turn = 0; turn < 2 || left > 0; turn++) {
        double start = now();
        for (int k = 0; k < alone.n; k++)
            turn_alone(alone.of[k]);
        all->barrier(all);
        for (int k = 0; k < both.n; k++) {
            if (turn == 1)
                count_sent(both.of[k], sent);
            turn_together(both.of[k], all);
        }
        left -= now() - start;
        all->wait(all, all->broadcast(all, &left, 1, F64, 0));
    }
    measure_links(m, all);
    m->network_gbps = m->link_gbps;
    m->network_latency_us = m->link_latency_us;
    if (rank == 0)
        describe(m, &alone, &both, sent, fp64);
    if (rank == 0)
        write_down(m, path);
    meters_close(&alone);
    meters_close(&both);
}

void calibrate(const Config *cfg, const char *path, int argc, char **argv)
{
    int rank, world = job_launched(&rank);
    if (world == 1) {
        int code = launch_job(2, argc, argv, NULL, NULL, 0);
        if (code)
            die(code, "calibrate", "the two ranks that measure ended with %d; change: what they say above",
                code);
        return;
    }
    if (world != 2)
        die(EXIT_CONFIG, "usage", "train plan --calibrate measures with 2 ranks, not %d; change: "
            "scripts/launch -n 2, or start it alone", world);
    measure(cfg, path, rank);
}
