/* predict_turns -- processor sharing: a replay of the lists in which ranks share cores */
#include "predict.h"
#include <math.h>
#include <stdlib.h>

typedef struct {
    const ScheduleSet *set;
    Simulation *sim;
    double *ready[2];          /* [stages*m] s: arrival of the input of F, of B or D; INFINITY: unknown */
    double *left;              /* [p] s that the running instruction still needs on a core of its own */
    double *last;              /* [p] s: end of the instruction before */
    int *next;                 /* [p] place of the next or running compute instruction in the list */
    uint8_t *running;          /* [p] bool */
} Turns;

/* The place of the first compute instruction from i on; l->n: there is none. */
static int compute_from(const InstrList *l, int i)
{
    while (i < l->n && l->list[i].op > I_W)
        i++;
    return i;
}

/* When the rank's next instruction may begin, s; INFINITY: not known yet, or none is left. The F of a pair
 * waits for the input of its B, too. */
static double may_begin(const Turns *t, int r)
{
    const PipeShape *s = &t->set->shape;
    const InstrList *l = &t->set->rank[r];
    double begin = t->last[r];
    if (t->next[r] == l->n)
        return INFINITY;
    const Instr *i = &l->list[t->next[r]];
    for (int k = instr_together(l->list, l->n, t->next[r]); k; k--, i++) {
        size_t at = (size_t)pipe_stage(s, r, i->chunk) * (size_t)s->m + i->mb;
        begin = fmax(begin, i->op == I_W ? 0 : t->ready[i->op != I_F][at]);
    }
    return begin;
}

static void begin(Turns *t, int r, double now)
{
    Span *span = &t->sim->span[r][t->next[r]];
    t->left[r] = span->end - span->start;
    span->start = now;
    t->running[r] = 1;
}

/* The result of an instruction leaves for the next stage. */
static void deliver(Turns *t, int r, const Instr *i, double now)
{
    const PipeShape *s = &t->set->shape;
    int stage = pipe_stage(s, r, i->chunk), to = stage + (i->op == I_F ? 1 : -1), peer, chunk;
    if (i->op == I_W || to < 0 || to == s->p * s->v)
        return;
    pipe_place(s, to, &peer, &chunk);
    t->ready[i->op != I_F][(size_t)to * (size_t)s->m + i->mb] = now + (peer == r ? 0 : pipe_hop(s, stage));
}

/* The results of a pair leave when its B, the second, ends. */
static void end(Turns *t, int r, double now)
{
    const InstrList *l = &t->set->rank[r];
    int at = t->next[r], pair = at && instr_together(l->list, l->n, at - 1) == 2;
    t->sim->span[r][at].end = t->last[r] = now;
    t->running[r] = 0;
    t->next[r] = compute_from(l, at + 1);
    if (pair)
        deliver(t, r, &l->list[at - 1], now);
    if (instr_together(l->list, l->n, at) == 1)
        deliver(t, r, &l->list[at], now);
}

/* Advances *now to the next start or end of an instruction. Returns 0 when all are done. */
static int advance(Turns *t, double *now, double crowd, double cores)
{
    int p = t->set->shape.p, active = 0;
    double next = INFINITY;
    for (int r = 0; r < p; r++) {
        if (!t->running[r] && may_begin(t, r) <= *now)
            begin(t, r, *now);
        active += t->running[r];
    }
    double rate = active ? fmin(1, cores / (crowd * active)) : 1;
    for (int r = 0; r < p; r++)
        next = fmin(next, t->running[r] ? *now + t->left[r] / rate : may_begin(t, r));
    if (next == INFINITY)
        return 0;
    double done = (next - *now) * rate;
    *now = next;
    for (int r = 0; r < p; r++) {
        if (!t->running[r])
            continue;
        t->left[r] -= done;
        if (t->left[r] <= 1e-12)
            end(t, r, *now);
    }
    return 1;
}

static void find_rates(Turns *t)
{
    const ScheduleSet *set = t->set;
    Simulation *sim = t->sim;
    double longest = 0, work = 0, first = INFINITY, last = 0;
    for (int r = 0; r < set->shape.p; r++) {
        const InstrList *l = &set->rank[r];
        double busy = 0, start = INFINITY;
        for (int i = 0; i < l->n; i++)
            if (l->list[i].op <= I_W) {
                busy += sim->span[r][i].end - sim->span[r][i].start;
                start = fmin(start, sim->span[r][i].start);
            }
        work = fmax(work, busy);
        longest = fmax(longest, t->last[r] - start);
        first = fmin(first, start);
        last = fmax(last, t->last[r]);
    }
    sim->makespan = last - first;
    sim->rate = longest > 0 ? (longest - work) / longest : 0;
    sim->step_rate = sim->makespan > 0 ? (sim->makespan - work) / sim->makespan : 0;
}

void predict_turns(const ScheduleSet *set, Simulation *sim, double crowd, double cores)
{
    const PipeShape *s = &set->shape;
    size_t p = (size_t)s->p, m = (size_t)s->m, all = p * (size_t)s->v * m;
    Turns t = {.set = set, .sim = sim, .left = xcalloc(2 * p + 2 * all, sizeof(double))};
    t.last = t.left + p;
    t.ready[0] = t.last + p;
    t.ready[1] = t.ready[0] + all;
    t.next = xcalloc(p, sizeof *t.next);
    t.running = xcalloc(p, 1);
    for (size_t i = 0; i < all - m; i++)
        t.ready[0][i + m] = t.ready[1][i] = INFINITY;
    for (int r = 0; r < s->p; r++)
        t.next[r] = compute_from(&set->rank[r], 0);
    double now = 0;
    while (advance(&t, &now, crowd, cores))
        ;
    for (int r = 0; r < s->p; r++)
        BUG_ON(t.next[r] < set->rank[r].n);
    find_rates(&t);
    free(t.left);
    free(t.next);
    free(t.running);
}
