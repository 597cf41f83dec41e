/* vee -- the shortest of several orders for two chunks a rank */
#include "vee.h"
#include "base.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static double cost(const PipeShape *s, int k, int stage) { return s->cost[k] ? s->cost[k][stage] : 1; }

int vee_uneven(const PipeShape *s)
{
    for (int stage = 0; stage < s->p * s->v; stage++)
        for (int k = 0; k < 3; k++)
            if (cost(s, k, stage) != cost(s, 0, 0) || pipe_hop(s, stage) > 0)
                return 1;
    return 0;
}

int vee_small(const PipeShape *s) { return (int64_t)s->p * s->p * s->m <= 1 << 21; }

/* Replays lists without messages. Returns the most that a rank holds. */
static double time_of(const PipeShape *s, InstrList *lists, double *makespan, double *rate)
{
    ScheduleSet set = {.shape = *s, .rank = lists};
    Simulation sim;
    double most = 0;
    simulate(&set, &sim, 0);
    for (int r = 0; r < s->p; r++)
        most = fmax(most, sim.peak[r]);
    *makespan = sim.makespan;
    *rate = sim.rate;
    simulation_close(&sim);
    return most;
}

void vee_clear(Vee *v)
{
    for (int r = 0; r < v->s->p; r++)
        v->trial[r].n = 0;
}

void vee_open(Vee *v, const PipeShape *s, InstrList *best)
{
    size_t p = (size_t)s->p, most = 6 * (size_t)s->m;
    *v = (Vee){.s = s, .best = best, .rate_most = INFINITY};
    v->trial = xcalloc(p, sizeof *v->trial);
    v->all = xcalloc(p * most, sizeof *v->all);
    for (size_t r = 0; r < p; r++)
        v->trial[r].list = v->all + r * most;
    v->peak_most = time_of(s, best, &v->makespan, &v->rate);
}

void vee_close(Vee *v)
{
    free(v->trial);
    free(v->all);
}

static void take(Vee *v, double makespan, double rate)
{
    v->makespan = makespan;
    v->rate = rate;
    for (int r = 0; r < v->s->p; r++) {
        v->best[r].n = v->trial[r].n;
        memcpy(v->best[r].list, v->trial[r].list, (size_t)v->trial[r].n * sizeof(Instr));
    }
}

void vee_publish(Vee *v)
{
    double makespan, rate, peak = time_of(v->s, v->trial, &makespan, &rate);
    if (makespan < v->makespan || v->rate > rate + 1e-9 || v->peak_most > peak + 1e-9)
        take(v, makespan, rate);
    v->rate_most = rate + 1e-9;
    v->peak_most = peak;
}

void vee_offer(Vee *v)
{
    double makespan, rate, peak = time_of(v->s, v->trial, &makespan, &rate), less = v->makespan - makespan;
    if (rate > v->rate_most || peak > v->peak_most + 1e-9)
        return;
    if (less > 1e-9 * makespan || (less >= -1e-9 * makespan && rate < v->rate - 1e-9))
        take(v, makespan, rate);
}

/* ---- W in other places ---- */

typedef struct {
    const PipeShape *s;
    InstrList *order;          /* [p] F and D in order */
    InstrList *out;
    double limit;              /* activations of chunks that a rank may hold */
    double patience;           /* a rank waits rather than run W for less than this share of W's time */
    double *ready[2];          /* [2p*m] when the input of F, of D is there; -1: not known yet */
    double *at, *held;         /* [p] when the rank is free; activations of chunks that it holds */
    int *next, *w;             /* [p] place in `order`; place in `out` of the D whose W is next */
    uint8_t *blocked;          /* [p] bool: the rank waits until it is fed */
} Refill;

static double *ready_of(const Refill *f, int r, const Instr *i)
{
    return &f->ready[i->op != I_F][(size_t)pipe_stage(f->s, r, i->chunk) * (size_t)f->s->m + i->mb];
}

/* The next F or D of a rank; NULL: none is left. */
static const Instr *next_of(const Refill *f, int r)
{
    const InstrList *l = &f->order[r];
    return f->next[r] < l->n ? &l->list[f->next[r]] : NULL;
}

/* The D whose W a rank would run next; NULL: none waits. */
static const Instr *pending(Refill *f, int r)
{
    const InstrList *l = &f->out[r];
    while (f->w[r] < l->n && l->list[f->w[r]].op != I_D)
        f->w[r]++;
    return f->w[r] < l->n ? &l->list[f->w[r]] : NULL;
}

static void put(Refill *f, int r, Instr i, double start)
{
    const PipeShape *s = f->s;
    int stage = pipe_stage(s, r, i.chunk), to = i.op == I_F ? stage + 1 : stage - 1, peer, chunk;
    f->out[r].list[f->out[r].n++] = i;
    f->at[r] = start + cost(s, i.op == I_F ? 0 : i.op == I_D ? 1 : 2, stage);
    f->held[r] += i.op == I_F ? 1 : i.op == I_D ? s->weight_share - 1 : -s->weight_share;
    if (i.op == I_W)
        return;
    if (i.op == I_F && to == 2 * s->p)
        f->ready[1][(size_t)stage * (size_t)s->m + i.mb] = f->at[r];
    if (to < 0 || to == 2 * s->p)
        return;
    pipe_place(s, to, &peer, &chunk);
    f->ready[i.op != I_F][(size_t)to * (size_t)s->m + i.mb] = f->at[r] + (peer == r ? 0 : pipe_hop(s, stage));
    f->blocked[peer] = 0;
    f->at[peer] = f->at[peer] > start ? f->at[peer] : start;
}

/* Lets a rank run one instruction, or blocks it. 0: it can never go on. */
static int step(Refill *f, int r)
{
    const Instr *i = next_of(f, r), *w = pending(f, r);
    double known = i ? *ready_of(f, r, i) : -1;
    int room = i && (i->op == I_D || f->held[r] + 1 <= f->limit + 1e-9);
    if (i && room && known >= 0 && known <= f->at[r]) {
        put(f, r, *i, f->at[r]);
        f->next[r]++;
    } else if (w && (!room || known < 0 ||
                     known - f->at[r] >= f->patience * cost(f->s, 2, pipe_stage(f->s, r, w->chunk)))) {
        Instr it = *w;
        it.op = I_W;
        f->w[r]++;
        put(f, r, it, f->at[r]);
    } else if (i && room && known >= 0) {
        put(f, r, *i, known);
        f->next[r]++;
    } else {
        f->blocked[r] = 1;
        return !i || room;
    }
    return 1;
}

/* Plays the order forward in time: the rank that is free first goes on. 0: it does not come to its end. */
static int play(Refill *f)
{
    const PipeShape *s = f->s;
    size_t p = (size_t)s->p, all = 2 * p * (size_t)s->m;
    for (size_t i = 0; i < all; i++)
        f->ready[0][i] = i < (size_t)s->m ? 0 : -1, f->ready[1][i] = -1;
    memset(f->at, 0, 2 * p * sizeof *f->at);
    memset(f->next, 0, 2 * p * sizeof *f->next);
    memset(f->blocked, 0, p);
    for (;;) {
        int first = -1, left = 0;
        for (int r = 0; r < s->p; r++) {
            left += f->out[r].n < 6 * s->m;
            if (!f->blocked[r] && (first < 0 || f->at[r] < f->at[first]))
                first = r;
        }
        if (first < 0)
            return !left;
        if (!step(f, first))
            return 0;
    }
}

/* Copies the F and D of a list. */
static void without_w(InstrList *to, const InstrList *from)
{
    to->n = 0;
    for (int i = 0; i < from->n; i++)
        if (from->list[i].op != I_W)
            to->list[to->n++] = from->list[i];
}

void vee_refill(Vee *v, const InstrList *order)
{
    static const double patience[] = {1, 0.5, 0, 0.25, 0.75};
    size_t p = (size_t)v->s->p, all = 2 * p * (size_t)v->s->m;
    if (!vee_small(v->s))
        return;
    Refill f = {.s = v->s, .out = v->trial, .limit = 2 * v->peak_most};
    f.order = xcalloc(p, sizeof *f.order);
    f.order[0].list = xcalloc(2 * all, sizeof(Instr));
    for (size_t r = 0; r < p; r++) {
        f.order[r].list = f.order[0].list + r * 4 * (size_t)v->s->m;
        without_w(&f.order[r], &order[r]);
    }
    f.ready[0] = xcalloc(2 * all, sizeof *f.ready[0]);
    f.ready[1] = f.ready[0] + all;
    f.at = xcalloc(2 * p, sizeof *f.at);
    f.held = f.at + p;
    f.next = xcalloc(2 * p, sizeof *f.next);
    f.w = f.next + p;
    f.blocked = xcalloc(p, 1);
    for (size_t i = 0; i < sizeof patience / sizeof *patience; i++) {
        f.patience = patience[i];
        vee_clear(v);
        if (play(&f))
            vee_offer(v);
    }
    free(f.order[0].list);
    free(f.order);
    free(f.ready[0]);
    free(f.at);
    free(f.next);
    free(f.blocked);
}
