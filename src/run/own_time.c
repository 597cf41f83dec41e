/* own_time -- own time of a rank by phase, time of its groups, and their exchange */
#include "own_time.h"
#include "timeline.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const own_phase_name[OWN_PHASES] = {
#define X(id, name) name,
    OWN_TIMES(X)
#undef X
};

void own_open(OwnTime *o, int world, int on, int timed)
{
    *o = (OwnTime){.on = on, .timed = timed,
                   .sum = xcalloc((size_t)(METRIC_COUNT + OWN_ROOM(world)), sizeof *o->sum)};
}

void own_close(OwnTime *o)
{
    free(o->sum);
    *o = (OwnTime){0};
}

void own_begin(OwnTime *o)
{
    if (!o->on)
        return;
    o->last = pace_now();
    o->rest = o->rest_idle = 0;
}

/* Ends the stretch; returns the s of it that were the rank's own. idle: in which it was on no core. */
static double stretch(OwnTime *o, double *idle)
{
    Pace p = pace_now(), q = o->last;
    double starved = p.starved - q.starved, moving = p.moving - q.moving;
    o->last = p;
    o->own.took[OWN_COMM] += moving;
    o->own.took[OWN_CORE] += comm_cores_suffice() ? starved : 0;
    double own = fmax(0, p.wall - q.wall - (p.away - q.away) - starved);
    *idle = fmin(own, fmax(0, p.idle - q.idle));
    return own;
}

void own_end(OwnTime *o, OwnPhase phase)
{
    double idle;
    if (!o->on)
        return;
    o->own.took[phase] += stretch(o, &idle);
    o->own.idle[phase] += idle;
}

OwnPhase own_phase(InstrKind op)
{
    switch (op) {
    case I_F: return OWN_FORWARD;
    case I_B:
    case I_D:
    case I_W: return OWN_BACKWARD;
    case I_S: return OWN_OPTIMIZER;
    default:  return OWN_COMM;
    }
}

void own_instr(OwnTime *o, const Instr *i, double start, double end, double loading)
{
    if (!o->on)
        return;
    /* a pair of instructions ends as one: the second has what the first did not take */
    double idle, own = o->rest + stretch(o, &idle);
    double share = o->last.wall > start ? fmin(1, (end - start) / (o->last.wall - start)) : 1;
    double mine = own * share, mine_idle = (o->rest_idle + idle) * share;
    loading = fmin(loading, mine);
    o->own.took[OWN_DATA] += loading;
    o->own.took[own_phase(i->op)] += mine - loading;
    o->own.idle[own_phase(i->op)] += fmax(0, mine_idle - loading);
    o->rest = own - mine;
    o->rest_idle = o->rest_idle + idle - mine_idle;
}

void own_device(OwnTime *o, const double *ran, const DeviceWaits *waits)
{
    if (!o->on)
        return;
    for (int p = 0; p < OWN_PHASES; p++) {
        double others = waits->message[p] + (p == OWN_FORWARD ? waits->loader : 0);
        o->own.took[p] += fmax(0, ran[p] - others) * 1e-3;
    }
    o->own.took[OWN_DATA] += waits->loader * 1e-3;
}

/* ---- exchange ---- */

static int group_index(const char *name)
{
    int i = 0;
    while (i < GROUPS && strcmp(timeline_group_name[i], name))
        i++;
    BUG_ON(i == GROUPS);
    return i;
}

/* Adds what a group has done so far to those of its name. */
static void add_group(void *totals, Comm *c)
{
    GroupSum *g = &((GroupTotals *)totals)->of[group_index(c->name)];
    CommStats s = comm_stats(c);
    g->waited += s.waited;
    g->busy += s.busy;
    g->bytes += (double)c->bytes;
    g->members = c->stats ? 1 : g->members;        /* a group of one counts nothing */
}

void own_groups(Grid *g, GroupTotals *now)
{
    *now = (GroupTotals){{{0}}};
    grid_each(g, add_group, now);
}

void own_add_groups(GroupTotals *t, const GroupTotals *from, const GroupTotals *to)
{
    for (int i = 0; i < GROUPS; i++) {
        t->of[i].waited += to->of[i].waited - from->of[i].waited;
        t->of[i].busy += to->of[i].busy - from->of[i].busy;
        t->of[i].bytes += to->of[i].bytes - from->of[i].bytes;
    }
}

/* Writes this rank's numbers for the sum. */
static void put_groups(OwnTime *o, const GroupTotals *now, GroupSum *to)
{
    for (int i = 0; i < GROUPS; i++) {
        const GroupSum *n = &now->of[i], *b = &o->before.of[i];
        to[i] = (GroupSum){n->waited - b->waited, n->busy - b->busy, n->bytes - b->bytes, n->members};
    }
    o->before = *now;
}

/* Means over the ranks that are members of such a group. */
static void take_groups(OwnTime *o, const GroupSum *sum)
{
    o->groups = 0;
    for (int i = 0; i < GROUPS; i++) {
        double n = sum[i].members, ms = o->timed ? 1e3 : NAN;
        if (n > 0)
            o->group[o->groups++] = (GroupTimes){timeline_group_name[i], ms * sum[i].waited / n,
                                                 ms * sum[i].busy / n, sum[i].bytes / n};
    }
}

OwnSum *own_exchange(OwnTime *o, const GroupTotals *now, Metrics *m, Grid *g, int all_own)
{
    GroupSum *groups = (GroupSum *)(o->sum + METRIC_COUNT);
    OwnSum *own = (OwnSum *)(o->sum + METRIC_COUNT + OWN_GROUP_NUMBERS);
    put_groups(o, now, groups);
    if (all_own) {
        memset(own, 0, (size_t)g->world * sizeof *own);
        own[g->rank] = o->own;
        o->own = (OwnSum){{0}, {0}};
    }
    metrics_reduce(m, &g->all, o->sum, all_own ? OWN_ROOM(g->world) : OWN_GROUP_NUMBERS);
    take_groups(o, groups);
    return all_own ? own : NULL;
}
