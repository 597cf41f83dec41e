/* Copies between a rank's memory and its host's, beside the operations: one after the other in each direction. */
#include "predict.h"
#include <math.h>
#include <string.h>

static Tally *tally_of(Device *d) { return d->impl; }

/* A ticket is the time of the end, whose bits grow with it; it is never zero. */
static int64_t ticket_of(double end)
{
    int64_t t;
    memcpy(&t, &end, sizeof t);
    return t;
}

static double end_of(int64_t ticket)
{
    double end;
    memcpy(&end, &ticket, sizeof end);
    return end;
}

double predict_bus(const Tally *k, double bytes) { return bytes / (k->m->host_gbps * 1e9); }

/* A host's own memory is where everything lies: the copy is one of its operations. */
static int64_t go(Device *d, size_t bytes, double *through, double after)
{
    Tally *k = tally_of(d);
    if (k->m->shared) {
        Mat all = {.rows = 1, .cols = (int64_t)(bytes / dtype_size(F32)), .type = F32};
        d->copy(d, all, all);
        return 0;
    }
    *through = fmax(fmax(*through, after), k->now) + predict_bus(k, (double)bytes);
    return ticket_of(*through);
}

static int64_t time_leave(Device *d, void *outer, const void *src, size_t bytes)
{
    (void)outer, (void)src;
    return go(d, bytes, &tally_of(d)->left, 0);
}

static int64_t time_fetch(Device *d, void *dst, const void *outer, size_t bytes, int64_t after)
{
    (void)dst, (void)outer;
    return go(d, bytes, &tally_of(d)->fetched, end_of(after));
}

static void time_arrived(Device *d, int64_t ticket)
{
    Tally *k = tally_of(d);
    k->now = fmax(k->now, end_of(ticket));
}

void predict_copies(Device *d)
{
    d->leave = time_leave;
    d->fetch = time_fetch;
    d->arrived = time_arrived;
}
