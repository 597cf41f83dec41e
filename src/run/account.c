/* account -- ops timed and waits counted in a recorded step */
#include "account.h"
#include "run.h"
#include "timeline.h"
#include <math.h>
#include <stddef.h>

/* ---- the device ---- */

static Account *account_of(Device *d) { return &((Run *)((char *)d - offsetof(Run, dev)))->account; }

/* Ops that the CPU composes of others, which are timed instead. */
static int is_composed(OpKind w)
{
    return w == OPKIND_linear_act_fwd || w == OPKIND_linear_act_bwd_x || w == OPKIND_linear_bwd_w;
}

static int is_timed(const Account *a, OpKind w)
{
    return !a->untimed && !is_composed(w) && pthread_equal(a->thread, pthread_self());
}

/* cost_open's sink: what an op that has been timed does. */
static void see(void *what, const Cost *c)
{
    Cost *sum = what;
    sum->flops += c->flops;
    sum->cast |= c->cast;
}

/* Adds an op by what it did: products and attention have FLOPs. */
static void add_op(Account *a, double took, const Cost *did)
{
    a->shortest = fmin(a->shortest, took);
    if (!(did->flops > 0)) {
        *(did->cast ? &a->cast : &a->memory) += took;
        *(did->cast ? &a->casts : &a->others) += 1;
        return;
    }
    a->product += took;
    a->products++;
    a->flops += did->flops;
    a->fastest = took > 0 ? fmax(a->fastest, did->flops / took) : a->fastest;
}

#define X(name, params, names) \
    static void timed_##name params \
    { \
        Account *times = account_of(d); \
        if (!is_timed(times, OPKIND_##name)) { \
            times->plain.name names; \
            return; \
        } \
        double start = now(); \
        times->untimed = 1; \
        times->plain.name names; \
        times->untimed = 0; \
        double took = now() - start; \
        Cost did = {0}; \
        times->sink.ctx = &did; \
        d = &times->sizes; \
        d->name names; \
        add_op(times, took, &did); \
    }
OPS(X)
#undef X

/* ---- sums ---- */

static LossKind loss_of(const char *group)
{
    switch (timeline_group_stream(group)) {
    case STREAM_TP: return LOSS_TENSOR;
    case STREAM_CP: return LOSS_CONTEXT;
    case STREAM_EP: return LOSS_EXPERT;
    case STREAM_PP: return LOSS_PIPELINE;
    case STREAM_DP: return LOSS_DATA;
    default:        return LOSS_SLOWEST;           /* all ranks: who waits there, waits for the last one */
    }
}

static void add_group(void *waits, Comm *c)
{
    CommStats s = comm_stats(c);
    ((double *)waits)[loss_of(c->name)] += s.waited + s.moving;
}

static AccountMark mark_now(Run *r)
{
    Pace p = pace_now();
    AccountMark m = {.at = p.wall, .starved = p.starved};
    m.loader = r->loader ? loader_wait_seconds(r->loader) : 0;
    grid_each(&r->grid, add_group, m.waits);
    return m;
}

/* ---- a step ---- */

/* The ops alone: a save reads other fields of the device in a thread of its own. */
void account_drop(Run *r)
{
    if (r->account.on) {
#define X(name, params, names) r->dev.name = r->account.plain.name;
        OPS(X)
#undef X
    }
    r->account.on = 0;
}

void account_begin(Run *r)
{
    Account *a = &r->account;
    account_drop(r);
    if (!r->trace.on || r->cfg->device == DEVICE_CUDA)
        return;
    *a = (Account){.on = 1, .thread = pthread_self(), .shortest = INFINITY, .sink = {.add = see}};
    cost_open(&a->sizes, r->dev.real, &a->sink);
    a->plain = r->dev;
#define X(name, params, names) r->dev.name = timed_##name;
    OPS(X)
#undef X
    a->begin = mark_now(r);
}

void account_phase(Run *r)
{
    if (!r->account.on)
        return;
    r->account.untimed++;
    r->account.phase = mark_now(r);
}

void account_phase_end(Run *r, LossKind loss)
{
    Account *a = &r->account;
    if (!a->on)
        return;
    AccountMark end = mark_now(r);
    a->untimed--;
    a->s[loss] += end.at - a->phase.at;
    a->begin.loader += end.loader - a->phase.loader;       /* these waits are part of the phase */
    a->begin.starved += end.starved - a->phase.starved;
    for (int i = 0; i < LOSSES; i++)
        a->begin.waits[i] += end.waits[i] - a->phase.waits[i];
}

/* Splits the rank's own work, s in all. */
static void split_work(Account *a, double own, double starved)
{
    double shortest = isfinite(a->shortest) ? a->shortest : 0, peak = 0;
    if (a->fastest > 0)
        peak = fmin(a->product, a->flops / a->fastest);
    double launched = fmin((double)a->products * shortest, a->product - peak),
           others = fmin((double)a->others * shortest, a->memory),
           casts = fmin((double)a->casts * shortest, a->cast);
    a->s[LOSS_PEAK] = peak;
    a->s[LOSS_PRODUCTS] = a->product - peak - launched;
    a->s[LOSS_MEMORY] = a->memory - others;
    a->s[LOSS_CAST] = a->cast - casts;
    a->s[LOSS_LAUNCH] = launched + others + casts;
    a->s[LOSS_OTHER] = own - a->product - a->memory - a->cast;
    a->s[LOSS_CORE] = fmin(fmax(0, starved), own);
    double share = own > 0 ? 1 - a->s[LOSS_CORE] / own : 0;
    for (int i = 0; i <= LOSS_LAUNCH; i++)
        a->s[i] *= share;
    a->s[LOSS_OTHER] *= share;
}

void account_end(Run *r)
{
    Account *a = &r->account;
    if (!a->on)
        return;
    AccountMark end = mark_now(r);
    account_drop(r);
    double own = end.at - a->begin.at;
    for (int i = 0; i < LOSSES; i++) {
        double waited = end.waits[i] - a->begin.waits[i];
        own -= waited + a->s[i];
        a->s[i] += waited;
    }
    a->s[LOSS_LOADER] = end.loader - a->begin.loader;
    own -= a->s[LOSS_LOADER];
    split_work(a, own, end.starved - a->begin.starved);
    trace_losses(&r->trace, a->begin.at, a->s);
}
