#define _GNU_SOURCE
#include "calibrate.h"
#include "config_table.h"
#include "launch.h"
#include "meter.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A machine's speed wanders for seconds at a time: one rank with the host for itself, and two that share it, take
 * turns. */
#define SECONDS 12.0               /* in all, for models whose steps are short */
#define TURN 0.8

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- one rank alone ---- */

typedef struct { double size, seconds; } Amount;       /* of one or more calls */

/* Products of the model's linear layers, in order of size; sizes within a factor of 1.6 are one. */
static int gather_products(const Call *call, int n, Amount *out)
{
    int kept = 0;
    Amount *all = xcalloc((size_t)n + 1, sizeof *all);
    int products = 0;
    for (int i = 0; i < n; i++)
        if (call[i].work == WORK_matmul || call[i].work == WORK_linear)
            all[products++] = (Amount){call[i].size, call[i].seconds};
    qsort(all, (size_t)products, sizeof *all, by_size);        /* size comes first */
    for (int i = 0; i < products;) {
        double first = all[i].size;
        Amount sum = {0};
        int same = 0;
        for (; i < products && all[i].size < 1.6 * first; i++, same++) {
            sum.size += all[i].size;
            sum.seconds += all[i].seconds;
        }
        out[kept++] = (Amount){sum.size / same, sum.seconds / same};
    }
    free(all);
    return kept;
}

static Amount total(const Call *call, int n, Work w)
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

static void describe_products(Machine *m, const Call *call, int n, int fp64)
{
    Amount *point = xcalloc((size_t)n + 1, sizeof *point);
    int points = gather_products(call, n, point);
    double best = 0;
    for (int i = 0; i < points; i++)
        best = fmax(best, point[i].size / point[i].seconds);
    m->matmul = (Curve){points, keep_alloc((size_t)points, sizeof(double)), keep_alloc((size_t)points, sizeof(double))};
    for (int i = 0; i < points; i++) {
        m->matmul.size[i] = point[i].size;
        m->matmul.share[i] = point[i].size / point[i].seconds / best;
        list_add(&m->matmul_efficiency, number(m->matmul.size[i]));
        list_add(&m->matmul_efficiency, number(m->matmul.share[i]));
    }
    m->matmul_tflops = m->matmul_tflops_fp32 = best / 1e12 * (fp64 ? 2 : 1);
    Amount forward = total(call, n, WORK_attention_fwd), backward = total(call, n, WORK_attention_bwd);
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
    for (int w = 0; w < WORKS; w++) {
        Amount a = total(call, n, (Work)w);
        m->speed[w] = 1;
        if (!(a.size > 0) || meter_is_product((Work)w))
            continue;
        m->speed[w] = a.size / a.seconds / 1e9 / m->memory_gbps;
        list_add(&m->op_speed, work_name[w]);
        list_add(&m->op_speed, number(m->speed[w]));
    }
}

/* ---- ranks that share the host ---- */

/* What the description says of a call, on half of the host. */
static double expected(const Machine *m, const Call *c, int fp64)
{
    double peak = m->matmul_tflops * 1e12 / 2 / (fp64 ? 2 : 1);
    switch (c->work) {
    case WORK_matmul:
    case WORK_linear:        return c->size / peak / curve_at(&m->matmul, c->size);
    case WORK_attention_fwd: return c->size / peak / m->attention_forward;
    case WORK_attention_bwd: return c->size / peak / m->attention_backward;
    default:                 return c->size / (m->memory_gbps * 1e9 / 2 * m->speed[c->work]);
    }
}

static void describe_sharing(Machine *m, const Call *call, int n, int fp64)
{
    for (int w = 0; w < WORKS; w++) {
        double said = 0, took = 0;
        for (int i = 0; i < n; i++)
            if (call[i].work == (Work)w) {
                said += expected(m, &call[i], fp64);
                took += call[i].seconds;
            }
        if (!(took > 0))
            continue;
        list_add(&m->op_speed_shared, work_name[w]);
        list_add(&m->op_speed_shared, number(said / took));
    }
}

/* Waiting of a tensor group that messages do not explain, as a share of its computing. sent: operations and bytes of a
 * step. */
static void describe_jitter(Machine *m, const Call *call, int n, const int64_t sent[2])
{
    double computed = 0, waited = total(call, n, METER_MESSAGE).seconds;
    for (int i = 0; i < n; i++)
        computed += call[i].work == METER_MESSAGE ? 0 : call[i].seconds;
    double messages = (double)sent[1] / (m->link_gbps * 1e9) + 2 * (double)sent[0] * m->link_latency_us * 1e-6;
    m->jitter = fmin(1, fmax(0, (waited - messages) / computed));
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
    enum { ROUNDS = 31 };
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
        machine_write(f, m, textf("# Measured by train plan --calibrate, %s, %s. The figures are the host's, which its "
                                  "ranks share.\n", day, config_build_id()));
    if (!f || fclose(f))
        die(EXIT_RESOURCE, "write", "cannot write %s: %s; change: --machine with a file that you may write", path,
            strerror(errno));
}

static double memory_gib(void)
{
    return (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGE_SIZE) / (1 << 30);
}

/* Steps for the time of a turn, of rank 0's clock; at least one. */
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
    m->memory_gib = memory_gib();
    m->launch_us = 0;                          /* the operations' times hold it */
    list_add(&m->memory_efficiency, "1");
    list_add(&m->memory_efficiency, "1");
    return m;
}

/* Collective over the two ranks. The second has nothing to do while the first is alone: it sleeps. */
static void measure(const Config *cfg, const char *path, int rank)
{
    Machine *m = blank();
    Meter *both = meter_open(cfg, 2), *alone = rank ? NULL : meter_open(cfg, 1);
    Comm *all = &meter_run(both)->grid.all, *tp = &meter_run(both)->grid.axis[AXIS_TP];
    int fp64 = cfg->params_dtype == PARAMS_DTYPE_FP64, n;
    int64_t sent[2] = {0};
    Call *call;
    double left = SECONDS;
    comm_threads(pool_cores() > 1 ? pool_cores() / 2 : 1);
    for (int turn = 0; turn < 2 || left > 0; turn++) {
        double start = now();
        if (alone)
            turn_alone(alone);
        all->barrier(all);
        if (turn == 1) {
            sent[0] = -tp->ops, sent[1] = -tp->bytes;
            meter_step(both);
            sent[0] += tp->ops, sent[1] += tp->bytes;
        }
        turn_together(both, all);
        left -= now() - start;
        all->wait(all, all->broadcast(all, &left, 1, F64, 0));
    }
    measure_links(m, all);
    m->network_gbps = m->link_gbps;
    m->network_latency_us = m->link_latency_us;
    if (rank == 0) {
        n = meter_calls(alone, &call);
        describe_products(m, call, n, fp64);
        describe_others(m, call, n);
        n = meter_calls(both, &call);
        describe_sharing(m, call, n, fp64);
        describe_jitter(m, call, n, sent);
        write_down(m, path);
        meter_close(alone);
    }
    meter_close(both);
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
    if (world != 2)
        die(EXIT_CONFIG, "usage", "train plan --calibrate measures with 2 ranks, not %d; change: scripts/launch -n 2, "
            "or start it alone", world);
    measure(cfg, path, rank);
}
