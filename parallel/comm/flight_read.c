/* flight_read -- what a flight record says: who waits for whom, and for which rank all others wait */
#include "flight.h"
#include "comm.h"
#include <stdlib.h>
#include <string.h>

#define LOOKS 3 /* s: a thread that waits looks about more often than this */

/* A time of a clock that starts at 0, or the clock's own distance from 1970: at most some thousand years. */
static int is_time(double t)
{
    return t >= 0 && t < 1e11;
}

static int are_times(const FlightRank *r)
{
    int ok = is_time(r->progress) && is_time(r->since) && is_time(r->alive);
    for (int64_t k = 0; ok && k < r->instrs && k < FLIGHT_INSTRS; k++)
        ok = is_time(r->instr[k].start) && is_time(r->instr[k].begun) && is_time(r->instr[k].end);
    for (int64_t k = 0; ok && k < r->ops && k < FLIGHT_OPS; k++)
        ok = is_time(r->op[k].start) && is_time(r->op[k].end);
    return ok;
}

int flight_whole(const Flight *f, size_t bytes)
{
    int ok = bytes >= sizeof *f && !memcmp(f->magic, FLIGHT_MAGIC, sizeof f->magic) && f->ranks > 0 &&
             f->ranks < 1 << 20 && bytes == flight_bytes(f->ranks) && !f->run[sizeof f->run - 1] &&
             !f->dead[sizeof f->dead - 1] && is_time(f->wall);
    for (int i = 0; ok && i < f->ranks; i++) {
        const FlightRank *r = &f->rank[i];
        ok = !r->host[sizeof r->host - 1] && !r->where[sizeof r->where - 1] && !r->note[sizeof r->note - 1] &&
             !r->fate[sizeof r->fate - 1] && !r->calls[sizeof r->calls - 1] && r->instrs >= 0 &&
             r->ops >= 0 && are_times(r);
        for (int k = 0; ok && k < FLIGHT_GROUPS; k++)
            ok = !r->group[k].name[sizeof r->group[k].name - 1] && r->group[k].at >= -1;
    }
    return ok;
}

double flight_latest(const Flight *f)
{
    double latest = 0;
    for (int i = 0; i < f->ranks; i++) {
        const FlightRank *r = &f->rank[i];
        latest = r->progress > latest ? r->progress : latest;
        latest = r->waits && r->alive > latest ? r->alive : latest;
    }
    return latest;
}

/* The place of a world rank on this host; -1: it is on another. */
static int local_of(const Flight *f, int rank)
{
    for (int i = 0; i < f->ranks; i++)
        if (f->rank[i].pid && f->rank[i].rank == rank)
            return i;
    return -1;
}

int flight_dead(const Flight *f)
{
    int rank = atoi(f->dead);
    return f->dead[0] >= '0' && f->dead[0] <= '9' ? local_of(f, rank) : -1;
}

/* The rank's group of an operation; NULL: not in the list. */
static const FlightGroup *group_of(const FlightRank *r, const FlightOp *o)
{
    return o->group > 0 && o->group <= FLIGHT_GROUPS ? &r->group[o->group - 1] : NULL;
}

/* The operation that rank `local` waits for; NULL: it waits for none, or for the device. */
static const FlightOp *awaited(const Flight *f, int local)
{
    const FlightRank *r = &f->rank[local];
    int64_t n = r->waits;
    if (n <= 0)
        return NULL;
    const FlightOp *o = &r->op[(n - 1) % FLIGHT_OPS];
    return o->number == n && o->kind >= 0 && o->kind < COMM_KINDS ? o : NULL;
}

int flight_is_waiting(const Flight *f, int local, double t)
{
    const FlightRank *r = &f->rank[local];
    return r->waits && !r->fate[0] && (r->waits < 0 || t - r->alive < LOOKS);
}

/* Another rank's view of a group; NULL: it is not a member, or has not opened the group yet. */
static const FlightGroup *same_group(const FlightRank *r, const FlightGroup *g)
{
    for (int k = 0; k < FLIGHT_GROUPS; k++)
        if (r->group[k].open && r->group[k].id == g->id && r->group[k].first == g->first)
            return &r->group[k];
    return NULL;
}

/* The first member of g that has not called its collective `seq`; where all of this host have: a rank of
 * another host, or FLIGHT_UNKNOWN if the record has no list of members; -1: all have. */
static int missing(const Flight *f, const FlightRank *r, const FlightGroup *g, int64_t seq)
{
    int away = g->at < 0 ? FLIGHT_UNKNOWN : -1;
    for (int i = 0; g->at < 0 && i < f->ranks; i++) {
        const FlightGroup *its = same_group(&f->rank[i], g);
        if (its && its->calls < seq)
            return f->rank[i].rank;
    }
    for (int k = 0; g->at >= 0 && k < g->size && k < FLIGHT_MEMBERS - g->at; k++) {
        int rank = r->member[g->at + k], local = local_of(f, rank);
        const FlightGroup *its = local >= 0 ? same_group(&f->rank[local], g) : NULL;
        if (local < 0)
            away = away < 0 ? rank : away;
        else if (!its || its->calls < seq)
            return rank;
    }
    return away;
}

int flight_waits_for(const Flight *f, int local)
{
    const FlightRank *r = &f->rank[local];
    const FlightOp *o = awaited(f, local);
    const FlightGroup *g = o ? group_of(r, o) : NULL;
    if (o && o->peer >= 0)
        return o->peer;
    if (g)
        return missing(f, r, g, o->seq);
    int away = r->waits > 0 ? FLIGHT_UNKNOWN : -1; /* the operation, or its group, is not recorded any more */
    for (int k = 0; r->waits < 0 && k < FLIGHT_GROUPS; k++) { /* the device: whom do its groups lack? */
        int rank = r->group[k].open ? missing(f, r, &r->group[k], r->group[k].calls) : -1;
        if (rank >= 0 && local_of(f, rank) >= 0)
            return rank;
        away = rank == -1 ? away : FLIGHT_UNKNOWN;
    }
    return away;
}

void flight_print_wait(const Flight *f, int local, char *text, int size)
{
    const FlightOp *o = awaited(f, local);
    const FlightGroup *g = o ? group_of(&f->rank[local], o) : NULL;
    if (!o)
        snprintf(text, (size_t)size, f->rank[local].waits < 0 ? "its device" : "an operation");
    else if (o->peer >= 0)
        snprintf(text, (size_t)size, "%s %lld %s rank %d of group %.15s", comm_kind_name[o->kind],
                 (long long)o->seq, o->kind == COMM_SEND ? "to" : "from", o->peer, g ? g->name : "?");
    else
        snprintf(text, (size_t)size, "%s %lld of group %.15s", comm_kind_name[o->kind], (long long)o->seq,
                 g ? g->name : "?");
}

double flight_p99(const FlightRank *r)
{
    uint64_t n = 0, above = 0;
    double top = 1e-6;
    int b = FLIGHT_BINS;
    for (int k = 0; k < FLIGHT_BINS; k++)
        n += r->bin[k];
    while (n && b > 0 && above * 100 <= n)
        above += r->bin[--b];
    for (int k = 0; k <= b; k++)
        top *= 1.0905077326652577; /* 2^(1/8) */
    return n ? top : 0;
}

/* Whether the peer of a receive has sent the message that rank `local` waits for. */
static int is_sent(const Flight *f, int local)
{
    const FlightOp *o = awaited(f, local);
    int from = o && o->kind == COMM_RECV ? local_of(f, o->peer) : -1;
    const FlightGroup *g = from >= 0 ? group_of(&f->rank[local], o) : NULL;
    for (int k = 0; g && k < FLIGHT_OPS; k++) {
        const FlightOp *s = &f->rank[from].op[k];
        const FlightGroup *its = s->number ? group_of(&f->rank[from], s) : NULL;
        if (its && its->id == g->id && s->kind == COMM_SEND && s->peer == f->rank[local].rank &&
            s->seq >= o->seq && s->end > 0)
            return 1;
    }
    return 0;
}

/* The place of the rank that `local` waits for; -1: elsewhere, or nowhere. */
static int next_of(const Flight *f, int local)
{
    int rank = flight_waits_for(f, local);
    return rank < 0 ? -1 : local_of(f, rank);
}

/* Rank `at` is one of a circle of ranks that wait for each other. To blame is a rank that has sent the
 * message for which the next one waits, else the one that is waited for longest. */
static void blame_circle(const Flight *f, FlightBlame *b, int at)
{
    int sent = -1, oldest = at;
    for (int i = at, steps = 0; steps == 0 || (i != at && steps < f->ranks); steps++, i = next_of(f, i)) {
        sent = is_sent(f, i) ? i : sent;
        oldest = f->rank[i].since < f->rank[oldest].since ? i : oldest;
    }
    b->waiter = sent >= 0 ? sent : oldest;
    b->local = next_of(f, b->waiter);
    b->rank = f->rank[b->local].rank;
}

/* Follows who waits for whom from the rank that has waited longest: to a rank of another host, known or not,
 * to a rank whose operation all have joined, or into a circle. */
static void follow(const Flight *f, FlightBlame *b)
{
    int at = b->waiter;
    for (int steps = 0; steps <= f->ranks; steps++) {
        int rank = flight_waits_for(f, at), next = next_of(f, at);
        if (rank != -1 && next < 0) {
            b->rank = rank;
            return;
        }
        if (next < 0) {
            b->local = at;
            b->rank = f->rank[at].rank;
            b->lost = 1;
            return;
        }
        at = next;
    }
    b->lost = 1;
    blame_circle(f, b, at);
}

FlightBlame flight_blame(const Flight *f, double t, const char *skip, const char *first)
{
    FlightBlame b = {-1, -1, 0, -1, 0};
    int rushed = 0;
    for (int i = 0; i < f->ranks; i++) {
        const FlightRank *r = &f->rank[i];
        if (skip ? skip[i] : !r->pid || r->left)
            continue;
        if (flight_is_waiting(f, i, t) && !(first && first[i] == 'T')) {
            b.waiting++;
            if (b.waiter < 0 || r->since < f->rank[b.waiter].since)
                b.waiter = i;
        } else if (b.local < 0 || (first && first[i] && !rushed) ||
                   (r->progress < f->rank[b.local].progress && (!rushed || (first && first[i])))) {
            b.local = i;
            b.rank = r->rank;
            rushed = first && first[i];
        }
    }
    if (b.local < 0 && b.waiter >= 0)
        follow(f, &b);
    return b;
}
