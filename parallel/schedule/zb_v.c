/* zb_v -- ZB-V where times are unequal: greedy in the times, with W as filler (Qi et al. 2023,
 * arXiv:2401.10241, sec 3, for the two chunks of arXiv:2405.15362)
 *
 * The first microbatch goes down the pipeline and back. Meanwhile a rank runs more F, as many as memory and
 * the time before its own first F of chunk 1 allow. Then all ranks take turns, a D and an F each. The chunk
 * nearer to the end of the microbatch comes first: D of chunk 0, F of chunk 1. W fills a wait that is as long
 * as W. It may also fill a shorter wait, if the rank would wait longer in all than every other rank has
 * waited. It runs where memory is full. The play is repeated with the waits of the last one as an allowance,
 * while that helps. */
#include "base.h"
#include "generators.h"
#include "vee.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { F, D };

typedef struct {
    const PipeShape *s;
    InstrList *out;
    int fill_f, fill_d;            /* bool: a short wait for F, for D of chunk 1, may be filled with W */
    double slack;                  /* > 0: times this close are equal; < 0: even equal times are not */
    double *end[2];                /* [2p*m] when F, D of a stage ended; -1: not yet */
    double *at, *held, *idle;      /* [p] clock; activations of chunks; time waited since the first F */
    double most;                   /* the longest of `idle` */
    double *before;                /* [p] `idle` of the play before; NULL: this is the first */
    double most_before;            /* the longest of these */
    int (*done)[2][2];             /* [p] F, D so far of each chunk */
    int *w;                        /* [p] place in `out` of the D whose W is next */
} Greedy;

static double cost(const Greedy *g, int k, int r, int chunk)
{
    return g->s->cost[k] ? g->s->cost[k][pipe_stage(g->s, r, chunk)] : 1;
}

static double *end_of(const Greedy *g, int op, int stage, int mb)
{
    return &g->end[op][(size_t)stage * (size_t)g->s->m + (size_t)mb];
}

/* When the input of the next F or D of a chunk is there; -1: not known yet. */
static double input(const Greedy *g, int r, int op, int chunk)
{
    int stage = pipe_stage(g->s, r, chunk), mb = g->done[r][op][chunk];
    int from = op == F ? stage - 1 : stage + 1, peer, its;
    if (from < 0)
        return 0;
    if (op == D && g->done[r][F][chunk] <= mb)
        return -1;
    if (from == 2 * g->s->p)
        return *end_of(g, F, stage, mb);
    double end = *end_of(g, op, from, mb);
    pipe_place(g->s, from, &peer, &its);
    return end < 0 ? -1 : end + (peer == r ? 0 : pipe_hop(g->s, from));
}

static int has_room(const Greedy *g, int r, int more) { return g->held[r] + more <= 2 * g->s->p + 1e-9; }

/* Runs the next F or D of a chunk. 0: it cannot run, or memory is full. */
static int put(Greedy *g, int r, int op, int chunk)
{
    int stage = pipe_stage(g->s, r, chunk), *mb = &g->done[r][op][chunk];
    if (*mb >= g->s->m || (op == F && !has_room(g, r, 1)))
        return 0;
    double ready = input(g, r, op, chunk), took = cost(g, op, r, chunk), end = g->at[r] + took;
    if (ready < 0)
        return 0;
    if (ready > g->at[r]) {
        if (g->done[r][F][0])
            g->most = fmax(g->most, g->idle[r] += ready + took - end);
        end = ready + took;
    }
    g->at[r] = *end_of(g, op, stage, *mb) = end;
    g->held[r] += op == F ? 1 : g->s->weight_share - 1;
    g->out[r].list[g->out[r].n++] = (Instr){.op = op == F ? I_F : I_D, .chunk = (uint8_t)chunk, .unit = WHOLE,
                                            .mb = (uint16_t)(*mb)++};
    return 1;
}

/* The D whose W is next; NULL: no W is left to run. */
static const Instr *pending(Greedy *g, int r)
{
    const InstrList *l = &g->out[r];
    while (g->w[r] < l->n && l->list[g->w[r]].op != I_D)
        g->w[r]++;
    return g->w[r] < l->n ? &l->list[g->w[r]] : NULL;
}

/* Runs the next W. 0: there is none. */
static int put_w(Greedy *g, int r)
{
    const Instr *d = pending(g, r);
    if (!d)
        return 0;
    Instr *i = &g->out[r].list[g->out[r].n++];
    *i = *d;
    i->op = I_W;
    g->w[r]++;
    g->at[r] += cost(g, 2, r, i->chunk);
    g->held[r] -= g->s->weight_share;
    return 1;
}

/* How much longer a rank may wait without making the step longer. */
static double allowance(const Greedy *g, int r)
{
    return fmax(g->most, g->before ? g->most_before - g->before[r] : 0) - g->idle[r];
}

/* Runs W while the input of an F or D lets the rank wait; then the F or D. */
static int fill_and_put(Greedy *g, int r, int op, int chunk, int fill)
{
    double ready = input(g, r, op, chunk);
    for (const Instr *d; (d = pending(g, r)) && ready + g->slack >= g->at[r] + cost(g, 2, r, d->chunk);)
        put_w(g, r);
    if (fill && ready - g->at[r] > allowance(g, r) + g->slack)
        put_w(g, r);
    return put(g, r, op, chunk);
}

/* The first microbatch's F, with what fits beside it. */
static int first_microbatch(Greedy *g)
{
    int p = g->s->p, ok = 1;
    for (int r = 0; r < p; r++)
        ok &= put(g, r, F, 0);
    for (int r = p - 1; r >= 0; r--) {
        double back = r < p - 1 ? input(g, r, F, 1) : 0;
        /* room for its F of chunk 1, and for both chunks of each rank above */
        while (ok && has_room(g, r, 2 * r + 2) && g->at[r] + cost(g, F, r, 0) <= back + g->slack &&
               g->done[r][F][0] < g->s->m)
            for (int up = 0; up <= r; up++)
                ok &= put(g, up, F, 0);
        ok = ok && put(g, r, F, 1);
    }
    return ok;
}

static int forwards(const Greedy *g, int r) { return g->done[r][F][0] + g->done[r][F][1]; }

/* Chunks in turn on all later ranks, until each rank has as many F as the one before it. */
static int level(Greedy *g)
{
    int chunk = 0, ok = 1, m = g->s->m;
    for (int r = 1; r < g->s->p; r++)
        while (ok && (forwards(g, r) < forwards(g, r - 1) ||
                      (g->done[r][F][1] <= g->done[r - 1][F][1] && g->done[r - 1][F][1] < m))) {
            for (int k = g->s->p - 1; k >= r; k--)
                if (g->done[k][F][chunk] < m)
                    ok &= put(g, k, F, chunk);
            chunk = 1 - chunk;
        }
    return ok;
}

/* Every rank runs a D. What each runs is decided before the first of them does. */
static int turn_d(Greedy *g, uint8_t *chunk)
{
    int p = g->s->p, ok = 1;
    for (int r = 0; r < p; r++) {
        const int *n = g->done[r][D];
        chunk[r] = n[0] >= n[1] || (r < p - 1 && n[1] < g->s->m && *end_of(g, D, r + 1, n[0]) < 0);
    }
    for (int r = p - 1; r >= 0; r--)
        if (!chunk[r])
            ok &= fill_and_put(g, r, D, 0, 1);
    for (int r = 0; r < p; r++)
        if (chunk[r])
            ok &= fill_and_put(g, r, D, 1, g->fill_d);
    return ok;
}

/* Every rank runs an F if one can run. */
static int turn_f(Greedy *g)
{
    int p = g->s->p, ok = 1;
    for (int r = 0; r < p; r++) {
        const int *n = g->done[r][F];
        if (n[1] >= g->s->m)
            continue;
        int chunk = n[1] < n[0] && (r == p - 1 || input(g, r, F, 1) >= 0);
        if (!chunk && n[1] < n[0] && (n[0] >= g->s->m || input(g, r, F, 0) < 0))
            continue;
        while (!has_room(g, r, 1))
            if (!put_w(g, r))
                return 0;
        ok &= fill_and_put(g, r, F, chunk, g->fill_f);
    }
    return ok;
}

static int play(Greedy *g)
{
    size_t p = (size_t)g->s->p, all = 2 * p * (size_t)g->s->m;
    uint8_t *chunk = xcalloc(p, 1);
    for (size_t i = 0; i < 2 * all; i++)
        g->end[0][i] = -1;
    g->most = 0;
    memset(g->at, 0, 3 * p * sizeof *g->at);
    memset(g->done, 0, p * sizeof *g->done);
    memset(g->w, 0, p * sizeof *g->w);
    for (size_t r = 0; r < p; r++)
        g->out[r].n = 0;
    int ok = first_microbatch(g) && level(g);
    for (int turn = 0; ok && turn < 2 * g->s->m; turn++)
        ok = turn_d(g, chunk) && turn_f(g);
    for (int r = 0; r < g->s->p; r++)
        while (put_w(g, r))
            ;
    free(chunk);
    return ok;
}

/* Writes the order. Returns the longest wait of a rank; -1: it does not fit into memory. */
static double greedy(const PipeShape *s, int fill_f, int fill_d, double slack, InstrList *out)
{
    size_t p = (size_t)s->p, all = 2 * p * (size_t)s->m;
    Greedy g = {.s = s, .out = out, .fill_f = fill_f, .fill_d = fill_d, .slack = slack};
    double *before = xcalloc(p, sizeof *before), least = -1;
    Instr *kept = xcalloc(3 * all, sizeof *kept);
    g.end[0] = xcalloc(2 * all, sizeof *g.end[0]);
    g.end[1] = g.end[0] + all;
    g.at = xcalloc(3 * p, sizeof *g.at);
    g.held = g.at + p;
    g.idle = g.held + p;
    g.done = xcalloc(p, sizeof *g.done);
    g.w = xcalloc(p, sizeof *g.w);
    while (play(&g)) {
        if (least >= 0 && g.most >= least - fabs(slack))
            break;
        least = g.most_before = g.most;
        for (size_t r = 0; r < p; r++)
            memcpy(kept + r * 6 * (size_t)s->m, out[r].list, 6 * (size_t)s->m * sizeof *kept);
        memcpy(before, g.idle, p * sizeof *before);
        g.before = before;
    }
    for (size_t r = 0; r < p; r++) {
        out[r].n = least < 0 ? 0 : 6 * s->m;
        memcpy(out[r].list, kept + r * 6 * (size_t)s->m, 6 * (size_t)s->m * sizeof *kept);
    }
    free(before);
    free(kept);
    free(g.end[0]);
    free(g.at);
    free(g.done);
    free(g.w);
    return least;
}

/* The four fillings, and the same with times that are nearly equal taken for equal in both ways. */
enum { FILLINGS = 4, WAYS = 3 * FILLINGS };

static double greedy_way(const PipeShape *s, int way, InstrList *out)
{
    static const double near[] = {0, 1e-9, -1e-9};
    double work = 0;
    for (int k = 0; k < 3; k++)
        work += s->cost[k] ? s->cost[k][0] : 1;
    return greedy(s, !(way & 1), !(way & 2), near[way / FILLINGS] * work, out);
}

void generate_zb_v(const PipeShape *s, InstrList *out)
{
    double least = -1;
    int best = -1;
    Vee v;
    generate_zb_v_equal(s, out);
    if (!vee_uneven(s))
        return;
    vee_open(&v, s, out);
    for (int way = 0; way < FILLINGS; way++) {
        double idle = greedy_way(s, way, v.trial);
        if (idle >= 0 && (best < 0 || idle < least))
            best = way, least = idle;
    }
    if (best >= 0) {
        greedy_way(s, best, v.trial);
        vee_publish(&v);
        vee_refill(&v, v.trial);
    }
    for (int way = 0; way < (vee_small(s) ? WAYS : FILLINGS); way++)
        if (greedy_way(s, way, v.trial) >= 0)
            vee_offer(&v);
    vee_clear(&v);
    generate_zb_v_equal(s, v.trial);
    vee_refill(&v, v.trial);
    vee_close(&v);
}
