/* calibrate_links -- messages between ranks of this host, timed for a machine description */
#define _GNU_SOURCE
#include "calibrate_links.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void all_reduce(Comm *c, char *p, int64_t n) { c->wait(c, c->all_reduce(c, p, n / 4, F32, OP_SUM)); }

static void there_and_back(Comm *c, char *p, int64_t bytes)
{
    if (c->rank == 0)
        c->wait(c, c->send(c, p, bytes / 4, F32, 1));
    c->wait(c, c->recv(c, p, bytes / 4, F32, 1 - c->rank));
    if (c->rank == 1)
        c->wait(c, c->send(c, p, bytes / 4, F32, 0));
}

/* Median seconds of the calls that nothing disturbed: those of at most twice the fastest one's time. A
 * message needs both ranks to run. On a busy host they hardly ever do, except right after both have slept,
 * when the system lets them run first; so they sleep before every CALLS calls.
 *   call   in  a message of `bytes` at p
 *   range  in  bytes at p, which the messages go through */
static double calm_call(Comm *c, void (*call)(Comm *c, char *p, int64_t bytes), char *p, int64_t bytes,
                        int64_t range)
{
    enum { CALLS = 8, ROUNDS = 64 };
    double took[CALLS * ROUNDS];
    int64_t at = 0;
    int n = 0;
    for (int i = -1; i < ROUNDS; i++) {        /* the first round warms up */
        c->barrier(c);
        usleep(3000);
        for (int k = 0; k < CALLS; k++, at = at + 2 * bytes <= range ? at + bytes : 0) {
            c->barrier(c);
            double start = now();
            call(c, p + at, bytes);
            took[i < 0 ? 0 : n++] = now() - start;
        }
    }
    qsort(took, (size_t)n, sizeof *took, by_double);
    while (took[n - 1] > 2 * took[0])
        n--;
    return took[(n - 1) / 2];
}

/* Pieces are shorter than a turn on a core. cold: bytes, more than caches hold. */
void calibrate_links(Machine *m, Comm *c)
{
    const int64_t few = 4096, piece = 1 << 20, warm = 8 << 20, cold = 256 << 20;
    char *p = xcalloc((size_t)cold, 1);
    memset(p, 1, (size_t)cold);                /* pages that nobody has written are one */
    m->link_latency_us = calm_call(c, all_reduce, p, few, few) / 2 * 1e6;
    m->link_gbps = (double)piece / calm_call(c, all_reduce, p, piece, warm) / 1e9;
    m->link_cold_gbps = (double)piece / calm_call(c, all_reduce, p, piece, cold) / 1e9;
    m->message_gbps = 2 * (double)piece / calm_call(c, there_and_back, p, piece, warm) / 1e9;
    free(p);
}

void calibrate_sleepers(Machine *m, Comm *c)
{
    enum { CALLS = 32, ROUNDS = 64 };
    char few[4096] = {0};
    double took[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        c->barrier(c);
        double start = now();
        for (int k = 0; k < CALLS; k++)
            all_reduce(c, few, sizeof few);
        took[i] = (now() - start) / CALLS;
    }
    qsort(took, ROUNDS, sizeof *took, by_double);
    m->link_latency_crowded_us = took[ROUNDS / 4] / 2 * fmin(1, (double)m->cores / c->size) * 1e6;
}
