/* timeline_measure -- messages under computation and bubbles, from a timeline */
#include "timeline.h"
#include "base.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

int64_t timeline_step(const Timeline *t)
{
    int64_t step = -1;
    for (int r = 0; r < t->ranks; r++)
        for (int64_t i = 0; i < t->rank[r].n; i++)
            if (t->rank[r].event[i].kind == I_S && t->rank[r].event[i].step > step)
                step = t->rank[r].event[i].step;
    return step;
}

/* ---- overlap ---- */

static int counts(const TraceEvent *e, OverlapKind kind)
{
    if (kind == OVERLAP_CONTEXT)
        return timeline_is_comm(e) && timeline_stream(e) == STREAM_CP;
    if (kind == OVERLAP_EXPERT)
        return timeline_is_comm(e) && timeline_stream(e) == STREAM_EP;
    if (e->kind == SPAN_END + COMM_REDUCE_SCATTER)
        return e->group == GROUP_SHARD || e->group == GROUP_EDP_SHARD;
    return e->kind == SPAN_END + COMM_ALL_REDUCE &&
           (e->group == GROUP_DATA || e->group == GROUP_EDP || e->group == GROUP_COPIES ||
            e->group == GROUP_EDP_COPIES);
}

/* Seconds of [start, end) in which the rank computes. Instructions do not overlap. *first: the event
 * where the search begins; advances, so the starts of successive calls must not fall. */
static double under(const TimelineRank *r, double start, double end, int64_t *first)
{
    double sum = 0;
    while (*first < r->n && (!timeline_is_compute(&r->event[*first]) || r->event[*first].end <= start))
        (*first)++;
    for (int64_t i = *first; i < r->n && r->event[i].start < end; i++)
        if (timeline_is_compute(&r->event[i]))
            sum += fmax(0, fmin(end, r->event[i].end) - fmax(start, r->event[i].start));
    return sum;
}

Overlap timeline_overlap(const Timeline *t, OverlapKind kind, int64_t step, int rank)
{
    Overlap o = {0};
    for (int k = 0; k < t->ranks; k++) {
        const TimelineRank *r = &t->rank[k];
        int64_t first = 0;
        for (int64_t i = 0; i < r->n && (rank < 0 || k == rank); i++) {
            const TraceEvent *e = &r->event[i];
            if (!counts(e, kind) || (step >= 0 && e->step != step))
                continue;
            double seconds = e->end - e->start, part = under(r, e->start, e->end, &first);
            o.seconds += seconds;
            o.seconds_under += part;
            o.bytes += (double)e->moved;
            o.bytes_under += fmin((double)e->behind, seconds > 0 ? (double)e->moved * part / seconds : 0);
        }
    }
    return o;
}

/* ---- bubble ---- */

static Rates measured(const Timeline *t, const int *lane, int p, int64_t step, int *m)
{
    double busy = 0, cost = 0, first = INFINITY, last = -INFINITY;
    for (int k = 0; k < p; k++) {
        const TimelineRank *r = &t->rank[lane[k]];
        double from = INFINITY, to = -INFINITY, own = 0;
        for (int64_t i = 0; i < r->n; i++) {
            const TraceEvent *e = &r->event[i];
            if (e->step != step || !timeline_is_compute(e))
                continue;
            from = fmin(from, e->start);
            to = fmax(to, e->end);
            own += e->end - e->start;
            *m = e->mb + 1 > *m ? e->mb + 1 : *m;
        }
        busy = fmax(busy, own);
        cost = fmax(cost, to - from);
        first = fmin(first, from);
        last = fmax(last, to);
    }
    return cost > 0 ? (Rates){(cost - busy) / cost, (last - first - busy) / (last - first)} : NO_RATES;
}

/* The computations of a pipeline's ranks in one step. */
typedef struct {
    InstrList *list;                   /* [p] F, B, D, W of each rank in their order */
    char *seen;                        /* [p*v*m] bits 1 << I_F .. 1 << I_W that ran */
    double *each[3];                   /* [p*v*m] s of F, of D or B, of W */
} Ran;

/* Adds an event to a rank's list. Successive units of a chunk are one instruction. Returns 0 when the
 * event cannot belong to the pipeline: its chunk does not exist, or the instruction ran before. */
static int add_event(Ran *x, const PipeShape *s, int rank, const TraceEvent *e)
{
    InstrList *l = &x->list[rank];
    if (e->chunk >= s->v)
        return 0;
    Instr i = {.op = (uint8_t)e->kind, .chunk = e->chunk, .unit = WHOLE, .mb = e->mb};
    const Instr *last = l->n ? &l->list[l->n - 1] : &(Instr){.op = INSTR_KINDS};
    int more = last->op == i.op && last->chunk == i.chunk && last->mb == i.mb;
    size_t cell = (size_t)pipe_stage(s, rank, i.chunk) * (size_t)s->m + i.mb;
    char *seen = &x->seen[cell];
    if (!more && *seen & 1 << i.op)
        return 0;
    if (!more)
        l->list[l->n++] = i;
    *seen |= (char)(1 << i.op);
    x->each[i.op == I_F ? 0 : i.op == I_W ? 2 : 1][cell] += e->end - e->start;
    return 1;
}

/* Whether each microbatch ran once through each stage: F and B, or F, D and W. */
static int is_whole(const Ran *x, size_t cells)
{
    const char joined = 1 << I_F | 1 << I_B, halves = 1 << I_F | 1 << I_D | 1 << I_W;
    for (size_t i = 0; i < cells; i++)
        if (x->seen[i] != joined && x->seen[i] != halves)
            return 0;
    return 1;
}

/* Replays the lists that ran, in the order of their events, each instruction with its own time. Mean
 * times would not do: where ranks share cores an instruction takes longer while others run, and the mean
 * would lengthen those that ran alone at both ends of the step. No replayed step is longer than the one
 * that ran. Returns 0 when the recorded step is not complete. */
static int replay(PipelineTimes *x, PipeShape *s, const Timeline *t, const int *lane, int64_t step)
{
    int stages = s->p * s->v, ok = 1;
    size_t cells = (size_t)stages * (size_t)s->m;
    char why[WHY];
    Ran ran = {.list = xcalloc((size_t)s->p, sizeof *ran.list), .seen = xcalloc(cells, 1)};
    ran.each[0] = xcalloc(3 * cells, sizeof *ran.each[0]);
    ran.each[1] = ran.each[0] + cells;
    ran.each[2] = ran.each[1] + cells;
    Instr *all = xcalloc(4 * cells, sizeof *all);
    double *mean = xcalloc(3 * (size_t)stages, sizeof *mean);
    for (int k = 0; k < s->p; k++) {
        const TimelineRank *r = &t->rank[lane[k]];
        ran.list[k].list = all + 4 * cells / (size_t)s->p * (size_t)k;
        for (int64_t i = 0; i < r->n && ok; i++)
            if (r->event[i].step == step && timeline_is_compute(&r->event[i]))
                ok = add_event(&ran, s, k, &r->event[i]);
    }
    ok = ok && is_whole(&ran, cells);
    for (int k = 0; k < 3; k++) {
        for (size_t i = 0; i < cells; i++)
            mean[k * stages + (int)(i / (size_t)s->m)] += ran.each[k][i] / s->m;
        s->cost[k] = mean + k * stages;
        s->each[k] = ran.each[k];
    }
    if (ok)
        schedules_lower(&x->set, s, ran.list);
    ok = ok && schedules_check(&x->set, why, sizeof why);
    if (ok)
        simulate(&x->set, &x->sim, 1);
    memset(x->set.shape.each, 0, sizeof x->set.shape.each);
    memset(x->set.shape.cost, 0, sizeof x->set.shape.cost);
    free(mean);
    free(all);
    free(ran.each[0]);
    free(ran.seen);
    free(ran.list);
    return ok;
}

void timeline_times(PipelineTimes *x, const Timeline *t, const int *lane, int p, int64_t step)
{
    *x = (PipelineTimes){.schedule = NO_RATES};
    x->measured = measured(t, lane, p, step, &x->m);
    int vee = p > 1 && pipe_stage(&t->shape, 0, 1) == 2 * p - 1;
    PipeShape s = {
        .kind = SCHEDULE_CUSTOM, .p = p, .v = t->shape.v, .m = x->m, .vee = vee, .weight_share = 1};
    int known = t->shape.p == p && s.v >= 1 && (!vee || s.v == 2) && s.m >= 1 && s.m <= UINT16_MAX;
    if (known && replay(x, &s, t, lane, step))
        x->schedule = (Rates){x->sim.rate, x->sim.step_rate};
    else
        timeline_times_close(x);
}

void timeline_times_close(PipelineTimes *x)
{
    simulation_close(&x->sim);
    schedules_close(&x->set);
}

/* ---- in words ---- */

void timeline_say(const Timeline *t, char *text, int size)
{
    int64_t step = timeline_step(t), lost = 0;
    int *lane = xcalloc((size_t)t->ranks + 1, sizeof *lane), n = 0;
    *text = 0;
    static const struct { OverlapKind kind; const char *name; } messages[] = {
        {OVERLAP_CONTEXT, "context"}, {OVERLAP_EXPERT, "expert"}};
    Overlap o = timeline_overlap(t, OVERLAP_DATA, -1, -1);
    if (o.bytes > 0)
        n += snprintf(text + n, (size_t)(size - n), "%.0f %% of the reductions' bytes were moved under "
                      "computation (%.0f %% of their time was)", 100 * o.bytes_under / o.bytes,
                      100 * o.seconds_under / fmax(o.seconds, 1e-12));
    for (int i = 0; i < 2; i++) {
        Overlap c = timeline_overlap(t, messages[i].kind, -1, -1);
        if (c.bytes > 0)
            n += snprintf(text + n, (size_t)(size - n), "%s%.0f %% of the %s group's bytes were moved under "
                          "computation", n ? "; " : "", 100 * c.bytes_under / c.bytes, messages[i].name);
    }
    int p = t->ranks && step >= 0 ? timeline_pipeline(t, 0, lane) : 0;
    if (p > 1) {
        PipelineTimes x;
        timeline_times(&x, t, lane, p, step);
        if (isfinite(x.measured.step_rate))
            n += snprintf(text + n, (size_t)(size - n), "%sbubble of iteration %lld %.1f %%", n ? "; " : "",
                          (long long)step, 100 * x.measured.step_rate);
        if (isfinite(x.schedule.step_rate))
            n += snprintf(text + n, (size_t)(size - n), ", the schedule's with the same times %.1f %%",
                          100 * x.schedule.step_rate);
        timeline_times_close(&x);
    }
    for (int r = 0; r < t->ranks; r++)
        lost += t->rank[r].lost;
    if (lost)
        snprintf(text + n, (size_t)(size - n), "%sthe oldest %lld events found no room", n ? "; " : "",
                 (long long)lost);
    free(lane);
}
