/* simulate -- replay with a clock: a rank computes in order, as soon as the input is there */
#include "base.h"
#include "schedule.h"
#include <math.h>
#include <stdlib.h>

typedef struct {
    const ScheduleSet *set;
    Simulation *sim;
    int stages;
    double *ready[2];          /* [stages*m] when the input of F, of D is there; -1: not known yet */
    double *end[2];            /* [stages*m] when F, D ended; only with spans */
    double *at;                /* [p] end of the rank's last instruction */
    int *next;                 /* [p] place in the list */
    int *todo, ntodo;          /* ranks that may go on */
    uint8_t *listed;           /* [p] stands in todo */
} Replay;

static double cost(const PipeShape *s, int k, int stage) { return s->cost[k] ? s->cost[k][stage] : 1; }

/* Time of F, D or W (k) of one microbatch. */
static double part(const PipeShape *s, int k, int stage, int mb)
{
    return s->each[k] ? s->each[k][(size_t)stage * (size_t)s->m + (size_t)mb] : cost(s, k, stage);
}

static double duration(const PipeShape *s, const Instr *i, int stage)
{
    switch (i->op) {
    case I_F: return part(s, 0, stage, i->mb);
    case I_B: return part(s, 1, stage, i->mb) + part(s, 2, stage, i->mb);
    case I_D: return part(s, 1, stage, i->mb);
    case I_W: return part(s, 2, stage, i->mb);
    default:  return 0;
    }
}

static void wake(Replay *p, int rank)
{
    if (!p->listed[rank])
        p->todo[p->ntodo++] = rank;
    p->listed[rank] = 1;
}

/* Instruction i has ended: its result is the input of the stage `by` further. */
static void feed(Replay *p, int rank, const Instr *i, int stage, int by, double end)
{
    const PipeShape *s = &p->set->shape;
    int peer, chunk, to = stage + by;
    if (to < 0 || to == p->stages)
        return;
    pipe_place(s, to, &peer, &chunk);
    p->ready[by < 0][(size_t)to * (size_t)s->m + i->mb] = end + (peer == rank ? 0 : pipe_hop(s, stage));
    if (peer != rank)
        wake(p, peer);
}

/* When the input of F, B, D or W is there; -1: not known yet. */
static double ready_at(const Replay *p, int rank, const Instr *i)
{
    const PipeShape *s = &p->set->shape;
    size_t at = (size_t)pipe_stage(s, rank, i->chunk) * (size_t)s->m + i->mb;
    return i->op == I_W ? 0 : p->ready[i->op != I_F][at];
}

/* Instruction i ends now: its pair does. */
static void finish(Replay *p, int rank, const Instr *i)
{
    int stage = pipe_stage(&p->set->shape, rank, i->chunk);
    if (i->op == I_W)
        return;
    if (p->sim->span)
        p->end[i->op != I_F][(size_t)stage * (size_t)p->set->shape.m + i->mb] = p->at[rank];
    feed(p, rank, i, stage, i->op == I_F ? 1 : -1, p->at[rank]);
}

/* The spans of a pair lie one behind the other, as its two halves share the rank. */
static void run_rank(Replay *p, int rank)
{
    const PipeShape *s = &p->set->shape;
    const InstrList *l = &p->set->rank[rank];
    for (; p->next[rank] < l->n; p->next[rank]++) {
        const Instr *i = &l->list[p->next[rank]];
        int n = instr_together(l->list, l->n, p->next[rank]);
        if (i->op > I_W)
            continue;
        for (int k = 0; k < n; k++) {
            double ready = ready_at(p, rank, &i[k]);
            if (ready < 0)
                return;
            p->at[rank] = fmax(p->at[rank], ready);
        }
        for (int k = 0; k < n; k++) {
            double start = p->at[rank];
            p->at[rank] += duration(s, &i[k], pipe_stage(s, rank, i[k].chunk));
            if (p->sim->span)
                p->sim->span[rank][p->next[rank] + k] = (Span){start, p->at[rank]};
        }
        for (int k = 0; k < n; k++)
            finish(p, rank, &i[k]);
        p->next[rank] += n - 1;
    }
}

/* Fills the spans of messages: a message starts when what it carries has ended. */
static void time_messages(Replay *p)
{
    const PipeShape *s = &p->set->shape;
    for (int r = 0; r < s->p; r++)
        for (int k = 0; k < p->set->rank[r].n; k++) {
            const Instr *i = &p->set->rank[r].list[k];
            if (i->op <= I_W)
                continue;
            int stage = pipe_stage(s, r, i->chunk) + (i->op == I_RG) - (i->op == I_RA);
            double start = p->end[i->op >= I_SG][(size_t)stage * (size_t)s->m + i->mb];
            p->sim->span[r][k] = (Span){start, start + pipe_hop(s, stage)};
        }
}

/* The peak of Simulation, which a rank reaches at an F. */
static double peak(const PipeShape *s, const InstrList *l)
{
    double most = 0;
    int f = 0, d = 0, w = 0;
    for (int i = 0; i < l->n; i++) {
        InstrKind op = l->list[i].op;
        f += op == I_F;
        if (op == I_F)
            most = fmax(most, f - d * (1 - s->weight_share) - w * s->weight_share);
        d += op == I_D || op == I_B;
        w += op == I_W || op == I_B;
    }
    return most / s->v;
}

/* The share of `time` that is not work; by rounding a rank's sum of work may be longer than its time. */
static double idle_share(double time, double work) { return time > work ? (time - work) / time : 0; }

static void find_rates(Replay *p)
{
    const PipeShape *s = &p->set->shape;
    Simulation *sim = p->sim;
    double longest = 0, work = 0, first = INFINITY, last = 0;
    for (int r = 0; r < s->p; r++) {
        double start = INFINITY, sum = 0;
        for (int c = 0; c < s->v; c++)
            for (int k = 0; k < (s->kind == SCHEDULE_FORWARD ? 1 : 3); k++)
                sum += cost(s, k, pipe_stage(s, r, c));
        work = fmax(work, sum * s->m);
        /* a rank's first compute is an F, which starts when its input is there */
        const Instr *i = p->set->rank[r].list;
        while (i->op > I_W)
            i++;
        start = p->ready[0][(size_t)pipe_stage(s, r, i->chunk) * (size_t)s->m + i->mb];
        longest = fmax(longest, p->at[r] - start);
        first = fmin(first, start);
        last = fmax(last, p->at[r]);
        sim->peak[r] = peak(s, &p->set->rank[r]);
    }
    sim->makespan = last - first;
    sim->rate = idle_share(longest, work);
    sim->step_rate = idle_share(sim->makespan, work);
}

static void open_spans(Simulation *sim, const ScheduleSet *set)
{
    size_t p = (size_t)set->shape.p, total = 0, at = 0;
    for (size_t r = 0; r < p; r++)
        total += (size_t)set->rank[r].n;
    sim->span = xcalloc(p, sizeof *sim->span);
    sim->span[0] = xcalloc(total, sizeof **sim->span);
    for (size_t r = 0; r < p; at += (size_t)set->rank[r++].n)
        sim->span[r] = sim->span[0] + at;
}

void simulate(const ScheduleSet *set, Simulation *sim, int spans)
{
    const PipeShape *s = &set->shape;
    size_t p = (size_t)s->p, stages = p * (size_t)s->v, all = stages * (size_t)s->m;
    Replay re = {.set = set, .sim = sim, .stages = (int)stages};
    *sim = (Simulation){.peak = xcalloc(p, sizeof *sim->peak)};
    if (spans)
        open_spans(sim, set);
    re.ready[0] = xcalloc((spans ? 4 : 2) * all, sizeof *re.ready[0]);
    re.ready[1] = re.ready[0] + all;
    re.end[0] = re.ready[1] + all;
    re.end[1] = re.end[0] + all;
    for (size_t i = 0; i < all - (size_t)s->m; i++)
        re.ready[0][i + (size_t)s->m] = re.ready[1][i] = -1;
    re.at = xcalloc(p, sizeof *re.at);
    re.next = xcalloc(2 * p, sizeof *re.next);
    re.todo = re.next + p;
    re.listed = xcalloc(p, 1);
    for (int r = s->p - 1; r >= 0; r--)
        wake(&re, r);
    while (re.ntodo) {
        int rank = re.todo[--re.ntodo];
        re.listed[rank] = 0;
        run_rank(&re, rank);
    }
    for (int r = 0; r < s->p; r++)
        BUG_ON(re.next[r] < set->rank[r].n);
    if (spans)
        time_messages(&re);
    find_rates(&re);
    free(re.ready[0]);
    free(re.at);
    free(re.next);
    free(re.listed);
}

void simulation_close(Simulation *sim)
{
    if (sim->span)
        free(sim->span[0]);
    free(sim->span);
    free(sim->peak);
    *sim = (Simulation){0};
}
