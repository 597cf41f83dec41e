/* predict_bus -- times of offloads, prefetches and offloaded updates, beside the operations
 *
 * Copies of one direction run one after the other. Norms of offloaded masters (LAMB, LARS) count as if
 * the masters were on the device. */
#include "predict.h"
#include <math.h>
#include <string.h>

static Tally *tally_of(Device *d) { return cost_ctx(d); }

/* A ticket is the bit pattern of the end time, s. It grows with the time and is never 0. */
int64_t ticket_of(double end)
{
    int64_t t;
    memcpy(&t, &end, sizeof t);
    return t;
}

double end_of(int64_t ticket)
{
    double end;
    memcpy(&end, &ticket, sizeof end);
    return end;
}

double predict_bus(const Tally *k, double bytes) { return bytes / (k->m->host_gbps * 1e9); }

/* Adds a copy. *through: in/out, when the last copy of the direction ends. after: when the copy may
 * begin. Returns its ticket. Where the device is the host itself the copy is one of its operations. */
static int64_t go(Device *d, size_t bytes, double *through, double after)
{
    Tally *k = tally_of(d);
    BUG_ON(recorder_records(k->recorder) && !k->m->shared /* a tape has no tickets */);
    if (k->m->shared) {
        Mat all = {.rows = 1, .cols = (int64_t)(bytes / dtype_size(F32)), .type = F32};
        d->copy(d, all, all);
        return 0;
    }
    *through = fmax(fmax(*through, after), k->now) + predict_bus(k, (double)bytes);
    return ticket_of(*through);
}

static int64_t time_offload(Device *d, void *mapped, const void *src, size_t bytes)
{
    (void)mapped, (void)src;
    return go(d, bytes, &tally_of(d)->left, 0);
}

static int64_t time_prefetch(Device *d, void *dst, const void *mapped, size_t bytes, int64_t after)
{
    (void)dst, (void)mapped;
    return go(d, bytes, &tally_of(d)->fetched, end_of(after));
}

/* Operations of the side stream begin no earlier than now, and not before the last of them has ended. */
static void time_side_begin(Device *d)
{
    Tally *k = tally_of(d);
    if (k->m->shared)
        return;
    BUG_ON(recorder_records(k->recorder) /* a tape has no side stream */);
    k->meanwhile = k->now;
    k->now = fmax(k->now, k->beside);
}

/* Returns a ticket below 0, which tells an update from a copy. */
static int64_t time_side_end(Device *d)
{
    Tally *k = tally_of(d);
    if (k->m->shared)
        return 0;
    k->beside = k->now;
    k->now = k->meanwhile;
    return -ticket_of(k->beside);
}

/* Waiting for an update is counted as waiting for the data group: both occur once a step. */
static void time_stream_wait(Device *d, int64_t ticket)
{
    Tally *k = tally_of(d);
    double end = end_of(ticket < 0 ? -ticket : ticket), wait = fmax(0, end - k->now);
    k->now += wait;
    if (ticket < 0)
        k->waited[AXIS_DP] += wait;
}

void predict_copies(Device *d)
{
    d->offload = time_offload;
    d->prefetch = time_prefetch;
    d->stream_wait = time_stream_wait;
    d->side_begin = time_side_begin;
    d->side_end = time_side_end;
}
