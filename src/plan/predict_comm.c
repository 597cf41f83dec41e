/* predict_comm -- groups whose operations move nothing and take the time of the machine's links */
#include "predict.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    Tally *k;
    Axis axis;                 /* the axis that its times are added to */
    int nodes, per;            /* nodes with members; members on each node */
    int *member;               /* [size] world ranks */
    struct { CommKind kind; double S, share, seconds; } known[16];     /* times of collectives; S 0: none */
    double free;               /* s: when the operation started last will have ended */
    double line[2][2];         /* s: when the messages of an expert group so far will have ended, on the line
                                * out and in, inside the node and between nodes */
} Timed;

/* Latency of `steps` successive messages inside a node, s. A rank that sleeps while it waits finds all
 * of them when it is woken, so they cost one latency. */
static double latency(const Tally *k, double steps)
{
    double asleep = k->m->link_latency_crowded_us;
    if (k->crowd && !isnan(asleep))
        return steps > 0 ? 1e-6 * asleep : 0;
    return 1e-6 * k->m->link_latency_us * steps;
}

/* Bytes/s of a ring inside a node. A tensor group sends data that has just been computed and is in the
 * caches; gradients and parameters of a whole step are not. */
static double ring_speed(const Timed *t)
{
    double cold = t->k->m->link_cold_gbps;
    return 1e9 * (t->axis == AXIS_DP && !isnan(cold) ? cold : t->k->m->link_gbps);
}

/* Time of a collective, s. S: bytes of the whole buffer. passes: 2 for an all-reduce, 1 for the others.
 * Where ranks take turns on the cores of their host, moving bytes slows down with them. In an all-to-all
 * every pair of ranks exchanges a block of its own, so ranks of a node cannot share what crosses nodes. */
static double moving(const Timed *t, const Comm *c, CommKind kind, double S, int passes)
{
    const Machine *m = t->k->m;
    double turns = m->shared ? fmin(1, t->k->share * (double)m->cores) : 1;
    double link = ring_speed(t) * turns, net = m->network_gbps * 1e9, n = c->size, k = t->per, g = t->nodes;
    double near = latency(t->k, k - 1) / turns, far = m->network_latency_us * 1e-6;
    if (t->nodes == 1)
        return passes * ((n - 1) / n * S / link + near);
    if (kind == COMM_ALL_TO_ALL)
        return fmax((k - 1) / n * S / link + near, (n - k) / n * S / net + (g - 1) * far);
    double ring = passes * ((n - 1) / n * S / fmin(link, k * net) + g * (near + far));
    double inside = (k - 1) / k * S / link + near, between = (g - 1) / g * S / k / net + ceil(log2(g)) * far;
    double levels = passes * (inside + between);
    return fmin(ring, levels);
}

/* The same, no less than the floor that the machine's library has: half of an all-reduce's for one pass. A
 * group has messages of few sizes. */
static double collective(Timed *t, const Comm *c, CommKind kind, double S, int passes)
{
    uint64_t bits, at;
    memcpy(&bits, &S, sizeof bits);
    at = ((bits ^ (uint64_t)kind) * 0x9e3779b97f4a7c15ull) >> 60;
    if (t->known[at].kind != kind || t->known[at].S != S || t->known[at].share != t->k->share) {
        double seconds =
            fmax(moving(t, c, kind, S, passes), passes * t->k->m->all_reduce_floor_us * 1e-6 / 2);
        t->known[at].kind = kind;
        t->known[at].S = S;
        t->known[at].share = t->k->share;
        t->known[at].seconds = seconds;
    }
    return t->known[at].seconds;
}

static Token start(Comm *c, CommKind kind, int64_t n, Dtype type, double seconds)
{
    Timed *t = c->impl;
    Tally *k = t->k;
    c->ops++;
    c->bytes += comm_payload(c, kind, n, type, c->rank);
    if (!n)
        return 0;
    predict_launch(k, k->m->host_us * 1e-6);
    k->comm[t->axis] += seconds;
    if (t->axis == AXIS_TP || t->axis == AXIS_CP) {    /* the last rank arrives later than this one */
        double late = k->m->jitter * (k->now - k->met);
        k->now += late;
        k->waited[t->axis] += late;
        k->met = k->now;
    }
    double taken = (1 - k->m->overlap) * seconds;
    k->now += taken;
    k->waited[t->axis] += taken;
    t->free = fmax(t->free, k->now) + seconds - taken;
    return ticket_of(t->free);
}

static double bytes_of(int64_t n, Dtype type) { return (double)n * (double)dtype_size(type); }

/* Time of a message of S bytes between two ranks, s. near: bool, they are on one node. */
static double message_time(const Tally *k, int near, double S)
{
    const Machine *m = k->m;
    return near ? latency(k, 1) + S / (m->message_gbps * 1e9)
                : m->network_latency_us * 1e-6 + S / (m->network_gbps * 1e9);
}

/* Messages between pipeline ranks do not add to the clock: the simulation decides when they arrive. */
static Token message(Comm *c, int64_t n, Dtype type, int peer)
{
    Timed *t = c->impl;
    Tally *k = t->k;
    const Machine *m = k->m;
    int here = t->member[c->rank] / (int)m->ranks == t->member[peer] / (int)m->ranks;
    double link = m->link_gbps * 1e9, S = bytes_of(n, type), part = S / k->scatter;
    c->ops++;
    c->bytes += comm_payload(c, COMM_SEND, n, type, peer);
    k->message = message_time(k, here, part);
    if (k->scatter > 1)        /* the tensor group gathers the parts */
        k->message += (S - part) / link + latency(k, k->scatter - 1);
    k->comm[t->axis] += k->message;
    return 0;
}

/* A message to or from a rank of an expert group. A rank sends to all of them at once, so that messages
 * follow each other on each of its lines, and only the first latency counts. What a rank receives takes its
 * time, too: where one rank has all experts in use, its line in is the slow one. */
static Token exchange(Comm *c, const Operation *o)
{
    Timed *t = c->impl;
    Tally *k = t->k;
    int in = o->kind == COMM_RECV, node = (int)k->m->ranks;
    int far = t->member[c->rank] / node != t->member[o->root] / node;
    double none = message_time(k, !far, 0), seconds = message_time(k, !far, bytes_of(o->n, o->type)) - none;
    double *line = &t->line[in][far];
    c->ops++;
    c->bytes += in ? 0 : comm_payload(c, COMM_SEND, o->n, o->type, o->root);
    k->comm[t->axis] += in ? 0 : seconds;
    double taken = in ? 0 : (1 - k->m->overlap) * seconds;
    k->now += taken;
    k->waited[t->axis] += taken;
    *line = fmax(*line, k->now + none) + seconds - taken;
    return ticket_of(*line);
}

/* In a ring of the context group all ranks send and receive at the same time, and the slowest link
 * decides for all of them: what this rank receives arrives when its own message does. */
static Token send(Comm *c, Operation o)
{
    int whole = o.kind == COMM_ALL_REDUCE || o.kind == COMM_BROADCAST;         /* n is of the whole group */
    double bytes = bytes_of(o.n, o.type) * (whole ? 1 : c->size);
    int passes = o.kind == COMM_ALL_REDUCE ? 2 : 1;
    Timed *t = c->impl;
    if (t->axis == AXIS_EP && (o.kind == COMM_SEND || o.kind == COMM_RECV))
        return exchange(c, &o);
    if (o.kind == COMM_SEND && t->axis == AXIS_CP)
        return start(c, o.kind, o.n, o.type, message_time(t->k, t->nodes == 1, bytes_of(o.n, o.type)));
    if (o.kind == COMM_SEND)
        return message(c, o.n, o.type, o.root);
    if (o.kind != COMM_RECV)
        return start(c, o.kind, o.n, o.type, collective(t, c, o.kind, bytes, passes));
    BUG_ON(o.root == c->rank);
    c->ops++;
    return t->axis == AXIS_CP ? ticket_of(t->free) : 0;
}

static Token timed(Comm *c, Operation o)
{
    struct Recorder *r = ((Timed *)c->impl)->k->recorder;
    return recorder_message(r, c, &o, send(c, o));
}

static void timed_barrier(Comm *c) { (void)c; }

static void timed_wait(Comm *c, Token token)
{
    Timed *t = c->impl;
    token = t->k->recorder ? recorder_wait(t->k->recorder, c, token) : token;
    double end = end_of(token);
    if (token && end > t->k->now) {
        t->k->waited[t->axis] += end - t->k->now;
        t->k->met += end - t->k->now;          /* waiting is no computing since the last meeting */
        t->k->now = end;
    }
}

static void timed_close(Comm *c)
{
    free(((Timed *)c->impl)->member);
    free(c->impl);
}

static Axis account_of(const char *name)
{
    static const struct { const char *name; Axis axis; } accounts[] = {
        {"tp", AXIS_TP}, {"kv", AXIS_TP}, {"cp", AXIS_CP}, {"cp-heads", AXIS_CP},
        {"cp-ring", AXIS_CP}, {"ep", AXIS_EP}, {"etp", AXIS_EP}, {"pp", AXIS_PP},
        {"embedding", AXIS_PP}};
    for (size_t i = 0; i < sizeof accounts / sizeof *accounts; i++)
        if (!strcmp(name, accounts[i].name))
            return accounts[i].axis;
    return AXIS_DP;
}

void predict_group(void *tally, const Grid *g, Comm *c, const char *name, const int *member, int n)
{
    Tally *k = tally;
    int place = 0, per = 0, ranks = (int)k->m->ranks, node = g->rank / ranks * ranks;
    if (n == 1) {
        comm_self_open(c, name);
        return;
    }
    Timed *t = xcalloc(1, sizeof *t);
    t->member = xcalloc((size_t)n, sizeof *t->member);
    memcpy(t->member, member, (size_t)n * sizeof *member);
    while (member[place] != g->rank)
        place++;
    for (int i = 0; i < n; i++)
        per += member[i] >= node && member[i] < node + ranks;
    t->k = k;
    t->axis = account_of(name);
    t->per = per;
    t->nodes = (n + per - 1) / per;
    *c = (Comm){.name = name, .rank = place, .size = n, .impl = t, .barrier = timed_barrier,
                .wait = timed_wait, .close = timed_close};
    comm_operations(c, timed);
}
