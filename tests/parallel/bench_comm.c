/* bench_comm [megabytes [rounds [checksums]]] -- two or more ranks of one host: all-reduce of 64 MB in turn
 * with MPI_Allreduce in the same run; then messages between ranks 0 and 1. Prints medians of 15 rounds.
 *     TRAIN=build/cpu/bench_comm scripts/launch -n 2
 * scripts/launch turns off MPI's copies between processes through the kernel. Plain mpirun with
 * OMPI_MCA_btl_vader_single_copy_mechanism=cma in the environment turns them on. */
#include "grid.h"
#include "job.h"
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *t, int n)
{
    qsort(t, (size_t)n, sizeof *t, by_value);
    return t[n / 2];
}

/* Seconds of one call on the slowest rank. */
static double timed(Comm *c, void (*fn)(Comm *c, void *buf, int64_t n), void *buf, int64_t n)
{
    c->barrier(c);
    double start = now(), took;
    fn(c, buf, n);
    took = now() - start;
    int64_t ns = (int64_t)(took * 1e9);
    c->wait(c, c->all_reduce(c, &ns, 1, I64, OP_MAX));
    return (double)ns * 1e-9;
}

static void ours(Comm *c, void *buf, int64_t n) { c->wait(c, c->all_reduce(c, buf, n, F32, OP_SUM)); }
static void theirs(Comm *c, void *buf, int64_t n)
{
    (void)c;
    MPI_Allreduce(MPI_IN_PLACE, buf, (int)n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void half(Comm *c, void *buf, int64_t n) { c->wait(c, c->all_reduce(c, buf, 2 * n, BF16, OP_SUM)); }

static void all_reduce(Comm *c, int64_t bytes, int rounds)
{
    double *t[3];
    float *buf = aligned_alloc(1 << 21, (size_t)bytes), *copy = aligned_alloc(1 << 21, (size_t)bytes);
    memset(buf, 0, (size_t)bytes);
    memset(copy, 0, (size_t)bytes);
    for (int i = 0; i < 3; i++)
        t[i] = calloc((size_t)rounds, sizeof **t);
    for (int i = -2; i < rounds; i++) {
        double one[3] = {timed(c, ours, buf, bytes / 4), timed(c, theirs, copy, bytes / 4),
                         timed(c, half, buf, bytes / 4)};
        for (int k = 0; k < 3 && i >= 0; k++)
            t[k][i] = one[k];
    }
    double a = median(t[0], rounds), b = median(t[1], rounds), h = median(t[2], rounds);
    if (c->rank == 0)
        printf("all_reduce of %lld bytes, %d ranks: ours %.2f ms (%.2f GB/s), MPI %.2f ms (%.2f GB/s), ratio "
               "%.2f; BF16 %.2f ms\n",
               (long long)bytes, c->size, a * 1e3, (double)bytes / a * 1e-9, b * 1e3,
               (double)bytes / b * 1e-9, b / a, h * 1e3);
}

static void ping_pong(Comm *c, int64_t bytes, int rounds)
{
    double *t = calloc((size_t)rounds, sizeof *t);
    char *buf = calloc(1, (size_t)bytes);
    for (int i = -3; i < rounds && c->rank < 2; i++) {
        double start = now();
        if (c->rank == 0)
            c->wait(c, c->send(c, buf, bytes / 8, I64, 1));
        c->wait(c, c->recv(c, buf, bytes / 8, I64, 1 - c->rank));
        if (c->rank == 1)
            c->wait(c, c->send(c, buf, bytes / 8, I64, 0));
        if (i >= 0)
            t[i] = (now() - start) / 2;
    }
    double s = median(t, rounds);
    if (c->rank == 0)
        printf("message of %8lld bytes: %9.2f us one way, %.2f GB/s\n", (long long)bytes, s * 1e6,
               (double)bytes / s * 1e-9);
}

int main(int argc, char **argv)
{
    int rank, world = job_launched(&rank);
    int64_t bytes = (int64_t)(argc > 1 ? atof(argv[1]) * 1e6 : 64e6) / 4096 * 4096;
    int rounds = argc > 2 ? atoi(argv[2]) : 15;
    GridSpec spec = {.size = {world, 1, 1, 1, 1}};
    Grid g;
    if (world < 2)
        die(EXIT_CONFIG, "usage",
            "two ranks at least; change: TRAIN=build/cpu/bench_comm scripts/launch -n 2");
    grid_parse_order("tp-cp-ep-dp-pp", spec.order);
    comm_checksums(argc > 3 && atoi(argv[3]));
    grid_open(&g, &spec, world, rank);
    comm_threads(1);
    all_reduce(&g.all, bytes, rounds);
    for (int64_t size = 8; size <= 64 << 20; size *= 8)
        ping_pong(&g.all, size, size < 1 << 20 ? 200 : 20);
    g.all.barrier(&g.all);
    grid_close(&g);
    return 0;
}
