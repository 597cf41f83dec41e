/* The bubble of real computation: a few steps of the configuration's own model, recorded, and what the simulator makes of their
 * times.
 *
 * The simulator gets every computation's own time: the same work takes longer while the other ranks of a host compute. What
 * hands a message to the transport occupies the rank and counts to the computation behind which it stands. A message's
 * time is the median of what passed from then until the computation that waited for it began, by the stage that sends. */
#include "bubble.h"
#include "balance.h"
#include "base.h"
#include "start.h"
#include "timeline.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- one step, from the timeline ---- */

/* Of F (0) and of B or D (1) of each [stage*m + mb], s: when it began; when its output was handed over; when the rank was free
 * for it. */
typedef struct { double start, end, free; } Work;

typedef struct {
    const PipeShape *shape;
    Work *work[2];
    double *each[3];                   /* [p*v*m] of stage * m + mb, s; of B in each[1] */
    double *hop;                       /* [p*v] s of what the stage sends */
    double first, last, longest;       /* of all ranks; the longest of a rank's last end - first start */
} Step;

static void step_alloc(Step *x, const PipeShape *s)
{
    size_t stages = (size_t)s->p * (size_t)s->v, n = stages * (size_t)s->m;
    *x = (Step){.shape = s, .first = INFINITY, .last = -INFINITY, .hop = xcalloc(stages, sizeof(double))};
    for (int k = 0; k < 3; k++)
        x->each[k] = xcalloc(n, sizeof(double));
    for (int back = 0; back < 2; back++) {
        x->work[back] = xcalloc(n, sizeof(Work));
        for (size_t i = 0; i < n; i++)
            x->work[back][i] = (Work){INFINITY, -INFINITY, -INFINITY};
    }
}

static void step_free(Step *x)
{
    for (int k = 0; k < 3; k++)
        free(x->each[k]);
    free(x->work[0]);
    free(x->work[1]);
    free(x->hop);
}

/* What the rank at place k of the pipeline did. */
static void read_rank(Step *x, const TimelineRank *r, int k, int64_t step)
{
    const PipeShape *s = x->shape;
    double first = INFINITY, free_at = -INFINITY;
    for (int64_t i = 0; i < r->n; i++) {
        const TraceEvent *e = &r->event[i];
        int sends = e->kind == I_SA || e->kind == I_SG, back = e->kind == I_SG || (e->kind != I_F && e->kind != I_SA);
        if (e->step != step || !(timeline_is_compute(e) || sends) || e->chunk >= s->v || e->mb >= s->m)
            continue;
        int stage = pipe_stage(s, k, e->chunk);
        size_t at = (size_t)stage * (size_t)s->m + e->mb;
        Work *w = &x->work[back][at];
        x->each[e->kind == I_W ? 2 : back][at] += e->end - e->start;
        if (e->kind != I_W) {
            if (e->start < w->start)               /* a chunk may run in parts */
                *w = (Work){e->start, w->end, free_at};
            w->end = fmax(w->end, e->end);
        }
        first = fmin(first, e->start);
        free_at = e->end;
    }
    x->longest = fmax(x->longest, free_at - first);
    x->first = fmin(x->first, first);
    x->last = fmax(x->last, free_at);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, by_value);
    return n ? 0.5 * (x[(n - 1) / 2] + x[n / 2]) : NAN;
}

/* Of what `stage` sends, to both sides; NAN: nobody waited for any of it. A send may still be copying when its
 * receiver begins: then the message took no time of its own. */
static double message_time(const Step *x, int stage, double *room)
{
    const PipeShape *s = x->shape;
    int n = 0, rank, chunk, peer;
    pipe_place(s, stage, &rank, &chunk);
    for (int back = 0; back < 2; back++) {
        int to = stage + (back ? -1 : 1);
        if (to < 0 || to == s->p * s->v)
            continue;
        pipe_place(s, to, &peer, &chunk);
        for (int mb = 0; mb < s->m && peer != rank; mb++) {
            const Work *from = &x->work[back][(size_t)stage * (size_t)s->m + (size_t)mb],
                       *into = &x->work[back][(size_t)to * (size_t)s->m + (size_t)mb];
            if (from->end > into->free)
                room[n++] = fmax(0, into->start - from->end);
        }
    }
    return median(room, n);
}

/* Stages whose messages nobody waited for have what the others have in the middle: it matters little. */
static void find_hops(Step *x)
{
    int stages = x->shape->p * x->shape->v, n = 0;
    double *room = xcalloc(2 * (size_t)x->shape->m + (size_t)stages, sizeof *room), *known = xcalloc((size_t)stages,
                                                                                                     sizeof *known);
    for (int i = 0; i < stages; i++) {
        x->hop[i] = message_time(x, i, room);
        if (isfinite(x->hop[i]))
            known[n++] = x->hop[i];
    }
    double usual = n ? median(known, n) : 0;
    for (int i = 0; i < stages; i++)
        x->hop[i] = isfinite(x->hop[i]) ? x->hop[i] : usual;
    free(room);
    free(known);
}

static void step_read(Step *x, const Timeline *t, const PipeShape *s, const int *lane, int64_t step)
{
    step_alloc(x, s);
    for (int k = 0; k < s->p; k++)
        read_rank(x, &t->rank[lane[k]], k, step);
    find_hops(x);
}

/* ---- all steps ---- */

static int by_span(const void *a, const void *b)
{
    const Step *x = a, *y = b;
    return (x->last - x->first > y->last - y->first) - (x->last - x->first < y->last - y->first);
}

/* The step in the middle as a cell, whose times are means. */
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
    bubble_simulate_cell(c, shape);                /* the very lists that ran */
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

static const Batch *tokens(void *run, int mb)
{
    (void)mb;
    return &((Run *)run)->sequence;
}

static void mark(void *run, const Instr *i, double start, double end) { trace_instr(&((Run *)run)->trace, i, start, end); }

/* The numbers 2 .. steps + 1 as a list of the configuration. */
static List recorded(int steps)
{
    const char **v = xcalloc((size_t)steps, sizeof *v);
    for (int i = 0; i < steps; i++)
        v[i] = xasprintf("%d", i + 2);
    return (List){steps, v};
}

void bubble_real(Table *t, const Config *cfg, int steps)
{
    static Run r;                          /* as long as the process */
    Config c = *cfg;
    Timeline timeline;
    c.trace_steps = recorded(steps);
    Batch batch = tokens_open(&c);
    run_open(&r, &c, RUN_TRAIN, 0, NULL);
    r.sequence = batch;
    r.feed = tokens;
    r.stage.mark = mark;
    for (int i = 1; i <= steps + 1; i++) {         /* the first one is warm-up */
        trace_step(&r.trace, i);
        run_gradients(&r);
        r.iteration++;
    }
    PipeShape shape = r.shape;
    shape.m = run_lists(&r, config_batch_at(&c, 0))->m;
    timeline_gather(&timeline, &r.trace, &r.grid, &shape);
    if (r.grid.rank == 0)
        read_timeline(t, &timeline, &shape, steps);
    timeline_close(&timeline);
    run_close(&r);
    tokens_close(&batch);
}
