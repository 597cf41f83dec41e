/* bubble_real -- the bubble of real computation: steps of the model recorded, and simulated with their
 * times
 *
 * Some time passes between two computations of a rank. If the second computation's input has not arrived
 * yet, that time belongs to the message. Otherwise the rank sent messages, received messages or woke up,
 * and the time counts as the second computation's. The simulator gets each computation's own time,
 * because the same work takes longer while other ranks of the host compute. It gets one message time for
 * each sending stage, the median. */
#include "bubble.h"
#include "balance.h"
#include "base.h"
#include "config_table.h"
#include "progress.h"
#include "start.h"
#include "timeline.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- one step, from the timeline ---- */

/* A computation. kind: 0 F, 1 B or D, 2 W. start, end: s. */
typedef struct { int kind, stage, mb; double start, end; } Op;

typedef struct {
    const PipeShape *shape;
    Op **op;                           /* [p][nop] computations of each rank in order of time */
    int *nop;                          /* [p] */
    double *made[2];                   /* [stage*m + mb] s: end of F, of B or D */
    double *each[3];                   /* [stage*m + mb] s: time of F, of B or D, of W */
    double *hop;                       /* [p*v] s: time of a message that the stage sends */
    double *waits;                     /* [p*v][2m] s: times of messages that a computation waited for */
    double *slack;                     /* [p*v][2m] s: by how much other messages were early */
    int *nwaits, *nslack;              /* [p*v] entries of waits and slack */
    double first, last;                /* s: first start and last end of all ranks */
    double longest;                    /* s: longest of a rank's last end - first start */
} Step;

static void step_alloc(Step *x, const PipeShape *s)
{
    size_t p = (size_t)s->p, stages = p * (size_t)s->v, n = stages * (size_t)s->m;
    *x = (Step){.shape = s, .first = INFINITY, .last = -INFINITY, .op = xcalloc(p, sizeof *x->op)};
    x->nop = xcalloc(p + 2 * stages, sizeof *x->nop);
    x->nwaits = x->nop + p;
    x->nslack = x->nwaits + stages;
    for (size_t r = 0; r < p; r++)
        x->op[r] = xcalloc(3 * (size_t)s->v * (size_t)s->m, sizeof **x->op);
    x->made[0] = xcalloc(9 * n + stages, sizeof(double));
    x->made[1] = x->made[0] + n;
    for (size_t k = 0; k < 3; k++)
        x->each[k] = x->made[0] + (2 + k) * n;
    x->waits = x->made[0] + 5 * n;
    x->slack = x->waits + 2 * n;
    x->hop = x->slack + 2 * n;
}

static void step_free(Step *x)
{
    for (int r = 0; r < x->shape->p; r++)
        free(x->op[r]);
    free(x->op);
    free(x->nop);
    free(x->made[0]);
}

/* Reads the computations of pipeline rank r. Successive units of a chunk are one computation. */
static void read_rank(Step *x, const TimelineRank *t, int r, int64_t step)
{
    const PipeShape *s = x->shape;
    int *n = &x->nop[r], most = 3 * s->v * s->m;
    for (int64_t i = 0; i < t->n; i++) {
        const TraceEvent *e = &t->event[i];
        if (e->step != step || !timeline_is_compute(e))
            continue;
        BUG_ON(e->chunk >= s->v || e->mb >= s->m);
        int kind = e->kind == I_F ? 0 : e->kind == I_W ? 2 : 1;
        Op op = {kind, pipe_stage(s, r, e->chunk), e->mb, e->start, e->end};
        Op *last = *n ? &x->op[r][*n - 1] : NULL;
        if (last && last->kind == op.kind && last->stage == op.stage && last->mb == op.mb) {
            last->end = op.end;
        } else {
            BUG_ON(*n == most);
            x->op[r][(*n)++] = op;
        }
        if (op.kind < 2)
            x->made[op.kind][(size_t)op.stage * (size_t)s->m + (size_t)op.mb] = op.end;
    }
    BUG_ON(!*n);
    double first = x->op[r][0].start, end = x->op[r][*n - 1].end;
    x->longest = fmax(x->longest, end - first);
    x->first = fmin(x->first, first);
    x->last = fmax(x->last, end);
}

/* Finds the times of rank r's computations and of the messages that it waited for. */
static void split_times(Step *x, int r)
{
    const PipeShape *s = x->shape;
    for (int i = 0; i < x->nop[r]; i++) {
        const Op *op = &x->op[r][i];
        size_t m = (size_t)s->m, mb = (size_t)op->mb;
        int from = op->kind == 2 ? -1 : op->stage + (op->kind ? 1 : -1),
            there = from >= 0 && from < s->p * s->v;
        double ready = there ? x->made[op->kind][(size_t)from * m + mb] : -INFINITY;
        double before = i ? op[-1].end : -INFINITY, begins = op->start;
        if (ready > before)                        /* clocks of several hosts differ a little */
            x->waits[2 * (size_t)from * m + (size_t)x->nwaits[from]++] = fmax(0, op->start - ready);
        else if (i)
            begins = before;
        if (there && ready < before)
            x->slack[2 * (size_t)from * m + (size_t)x->nslack[from]++] = before - ready;
        x->each[op->kind][(size_t)op->stage * m + mb] = op->end - begins;
    }
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, by_double);
    return n ? 0.5 * (x[(n - 1) / 2] + x[n / 2]) : NAN;
}

/* The median time of the messages that the stage sends; NAN: no computation waited for any. An early
 * message counts with at most the time by which it was early: without early messages only slow ones
 * would count. */
static double message_time(const Step *x, int stage)
{
    size_t at = 2 * (size_t)stage * (size_t)x->shape->m;
    int n = x->nwaits[stage], early = n ? x->nslack[stage] : 0;
    double usual = median(x->waits + at, n);
    for (int i = 0; i < early; i++)
        x->waits[at + (size_t)(n + i)] = fmin(x->slack[at + (size_t)i], usual);
    return median(x->waits + at, n + early);
}

/* Finds the message time of each stage; the others' median where nobody waited for its messages. */
static void find_hops(Step *x)
{
    int stages = x->shape->p * x->shape->v, n = 0;
    double *known = xcalloc((size_t)stages, sizeof *known);
    for (int i = 0; i < stages; i++) {
        x->hop[i] = message_time(x, i);
        if (isfinite(x->hop[i]))
            known[n++] = x->hop[i];
    }
    double usual = n ? median(known, n) : 0;
    for (int i = 0; i < stages; i++)
        x->hop[i] = isfinite(x->hop[i]) ? x->hop[i] : usual;
    free(known);
}

static void step_read(Step *x, const Timeline *t, const PipeShape *s, const int *lane, int64_t step)
{
    step_alloc(x, s);
    for (int r = 0; r < s->p; r++)
        read_rank(x, &t->rank[lane[r]], r, step);
    for (int r = 0; r < s->p; r++)
        split_times(x, r);
    find_hops(x);
}

/* ---- all steps ---- */

static int by_span(const void *a, const void *b)
{
    const Step *x = a, *y = b;
    return (x->last - x->first > y->last - y->first) - (x->last - x->first < y->last - y->first);
}

/* Adds the step of median length as a cell, whose times are means over the microbatches. */
static void add_middle(Table *t, Step *step, int n, const PipeShape *shape)
{
    int stages = shape->p * shape->v, m = shape->m;
    PipeShape timed = *shape;
    Times time[TIMES];
    Cell *c;
    qsort(step, (size_t)n, sizeof *step, by_span);
    const Step *x = &step[(n - 1) / 2];
    for (int k = 0; k < TIMES; k++) {
        time[k] = (Times){stages, xcalloc((size_t)stages, sizeof(double))};
        for (int i = 0; i < stages * m && k < TIME_HOP; i++)
            time[k].ms[i / m] += (x->each[k][i] *= 1e3) / m;
        for (int i = 0; i < stages && k == TIME_HOP; i++)
            time[k].ms[i] = 1e3 * x->hop[i];
        if (k < TIME_HOP)
            timed.each[k] = x->each[k];
    }
    char *why = bubble_add(t, &timed, time, &c);
    if (why)
        die(EXIT_BUG, "bubble", "what has run is no pipeline: %s; change: report this", why);
    c->steps = n;
    c->measured_span = 1e3 * (x->last - x->first);
    c->least = 1e3 * (step[0].last - step[0].first);
    c->most = 1e3 * (step[n - 1].last - step[n - 1].first);
    c->measured = bubble_rates(&c->shape, c->measured_span, 1e3 * x->longest);
    bubble_simulate_cell(c, shape);                /* with the lists that ran */
    memset(c->shape.each, 0, sizeof c->shape.each);
    c->closed_form = NO_RATES;
    for (int k = 0; k < TIMES; k++)
        free(time[k].ms);
}

static void read_timeline(Table *t, const Timeline *timeline, const PipeShape *shape, int steps)
{
    int *lane = xcalloc((size_t)timeline->ranks + 1, sizeof *lane);
    Step *step = xcalloc((size_t)steps, sizeof *step);
    BUG_ON(timeline_pipeline(timeline, 0, lane) != shape->p);
    for (int i = 0; i < steps; i++)
        step_read(&step[i], timeline, shape, lane, i + 2);
    add_middle(t, step, steps, shape);
    for (int i = 0; i < steps; i++)
        step_free(&step[i]);
    free(step);
    free(lane);
}

/* ---- the run ---- */

static void mark(void *run, const Instr *i, double start, double end)
{
    trace_instr(&((Run *)run)->trace, i, start, end);
}

/* trace_steps for the measured steps: 2 .. steps + 1. */
static List recorded(int steps)
{
    const char **v = keep_alloc((size_t)steps, sizeof *v);
    for (int i = 0; i < steps; i++)
        v[i] = textf("%d", i + 2);
    return (List){steps, v};
}

/* Shows on rank 0 how many steps of this pipeline are done. */
static void say_step(const Run *r, int done, int all)
{
    const Config *c = r->cfg;
    char label[96];
    if (r->grid.rank)
        return;
    snprintf(label, sizeof label, "%s, p %d, v %d, m %d", schedule_name(r->plan.shape.kind), r->plan.shape.p,
             r->plan.shape.v, run_lists(r, config_batch_at(c, 0))->m);
    progress_bar(label, done, all, "steps");
}

void bubble_real(Table *t, const Config *cfg, int steps)
{
    static Run r;                          /* lives as long as the process */
    Config c = *cfg;
    Timeline timeline;
    c.trace_steps = recorded(steps);
    Batch batch = balance_tokens_open(&c);
    run_open(&r, &c, RUN_TRAIN, 0, NULL);
    r.generation.sequence = batch;
    r.step.feed = run_sequence;
    r.stage.mark = mark;
    r.stage.settle = r.dev.late ? step_settle : NULL;
    for (int i = 1; i <= steps + 1; i++) {         /* the first one is warm-up */
        trace_step(&r.trace, i);
        run_gradients(&r);
        r.progress.iteration++;
        say_step(&r, i, steps + 1);
    }
    PipeShape shape = r.plan.shape;
    shape.m = run_lists(&r, config_batch_at(&c, 0))->m;
    timeline_gather(&timeline, &r.trace, &r.grid, &shape);
    if (r.grid.rank == 0)
        read_timeline(t, &timeline, &shape, steps);
    timeline_close(&timeline);
    run_close(&r);
    balance_tokens_close(&batch);
}
