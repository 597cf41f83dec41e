/* What can be read off a timeline: reductions under computation, the pipeline's bubble. */
#include "timeline.h"
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

static int is_reduction(const TraceEvent *e)
{
    return (e->kind == SPAN_END + COMM_ALL_REDUCE && (e->group == GROUP_DATA || e->group == GROUP_COPIES)) ||
           (e->kind == SPAN_END + COMM_REDUCE_SCATTER && e->group == GROUP_SHARD);
}

/* Seconds of [start, end) in which the rank computes. Instructions do not overlap. first: where to begin to look;
 * moves on, for calls whose starts do not fall. */
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

Overlap timeline_overlap(const Timeline *t, int64_t step, int rank)
{
    Overlap o = {0};
    for (int k = 0; k < t->ranks; k++) {
        const TimelineRank *r = &t->rank[k];
        int64_t first = 0;
        for (int64_t i = 0; i < r->n && (rank < 0 || k == rank); i++) {
            const TraceEvent *e = &r->event[i];
            if (!is_reduction(e) || (step >= 0 && e->step != step))
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

/* What a rank of the pipeline did in the step: compute alone. */
typedef struct { double first, last, busy; int64_t forwards; } Lane;

static Lane lane_of(const TimelineRank *r, int64_t step, int *m)
{
    Lane l = {INFINITY, -INFINITY, 0, 0};
    for (int64_t i = 0; i < r->n; i++) {
        const TraceEvent *e = &r->event[i];
        if (e->step != step || !timeline_is_compute(e))
            continue;
        l.first = fmin(l.first, e->start);
        l.last = fmax(l.last, e->end);
        l.busy += e->end - e->start;
        *m = e->mb + 1 > *m ? e->mb + 1 : *m;
    }
    return l;
}

static Bubble measured(const Timeline *t, const int *lane, int p, int64_t step, int *m)
{
    double busy = 0, cost = 0, first = INFINITY, last = -INFINITY;
    for (int k = 0; k < p; k++) {
        Lane l = lane_of(&t->rank[lane[k]], step, m);
        busy = fmax(busy, l.busy);
        cost = fmax(cost, l.last - l.first);
        first = fmin(first, l.first);
        last = fmax(last, l.last);
    }
    return cost > 0 ? (Bubble){(cost - busy) / cost, (last - first - busy) / (last - first)} : (Bubble){NAN, NAN};
}

/* Mean times of every stage; whether every microbatch went forward and backward through every chunk, so that a
 * schedule of this shape is what ran. */
static int find_costs(PipelineTimes *x, const PipeShape *s, const Timeline *t, const int *lane, int64_t step)
{
    size_t stages = (size_t)s->p * (size_t)s->v, cells = stages * (size_t)x->m;
    char *seen = xcalloc(cells, 1);
    int whole = 1;
    for (int k = 0; k < 3; k++)
        x->cost[k] = xcalloc(stages, sizeof *x->cost[k]);
    for (int k = 0; k < s->p; k++) {
        const TimelineRank *r = &t->rank[lane[k]];
        for (int64_t i = 0; i < r->n && whole; i++) {
            const TraceEvent *e = &r->event[i];
            if (e->step != step || !timeline_is_compute(e))
                continue;
            if (e->chunk >= s->v) {
                whole = 0;
                break;
            }
            int stage = pipe_stage(s, k, e->chunk);
            x->cost[e->kind == I_F ? 0 : e->kind == I_W ? 2 : 1][stage] += (e->end - e->start) / x->m;
            seen[(size_t)stage * (size_t)x->m + e->mb] |= e->kind == I_F ? 1 : e->kind == I_W ? 0 : 2;
        }
    }
    for (size_t i = 0; i < cells; i++)
        whole &= seen[i] == 3;
    free(seen);
    return whole;
}

/* A schedule that the generators make. */
static int known(const PipeShape *s, int p, int m)
{
    int vee = s->kind == SCHEDULE_ZB_V || s->kind == SCHEDULE_V_HALF || s->kind == SCHEDULE_V_MIN;
    int chunks = s->kind == SCHEDULE_INTERLEAVED ? s->v >= 1 : s->v == (vee ? 2 : 1);
    return s->p == p && m > 0 && s->kind <= SCHEDULE_V_MIN && chunks;
}

void timeline_times(PipelineTimes *x, const Timeline *t, const int *lane, int p, int64_t step)
{
    *x = (PipelineTimes){.schedule = {NAN, NAN}};
    x->measured = measured(t, lane, p, step, &x->m);
    PipeShape s = t->shape;
    if (!known(&s, p, x->m) || !find_costs(x, &s, t, lane, step)) {
        timeline_times_close(x);
        return;
    }
    s.m = x->m;
    for (int k = 0; k < 3; k++)
        s.cost[k] = x->cost[k];
    schedules_open(&x->set, &s);
    simulate(&x->set, &x->sim, 1);
    x->schedule = (Bubble){x->sim.rate, x->sim.step_rate};
}

void timeline_times_close(PipelineTimes *x)
{
    if (x->set.rank) {
        simulation_close(&x->sim);
        schedules_close(&x->set);
    }
    x->set = (ScheduleSet){0};
    for (int k = 0; k < 3; k++) {
        free(x->cost[k]);
        x->cost[k] = NULL;
    }
}

/* ---- in words ---- */

static int64_t lost(const Timeline *t)
{
    int64_t n = 0;
    for (int r = 0; r < t->ranks; r++)
        n += t->rank[r].lost;
    return n;
}

void timeline_say(const Timeline *t, char *text, int size)
{
    int64_t step = timeline_step(t);
    int *lane = xcalloc((size_t)t->ranks + 1, sizeof *lane), n = 0;
    *text = 0;
    Overlap o = timeline_overlap(t, -1, -1);
    if (o.bytes > 0)
        n += snprintf(text + n, (size_t)(size - n),
                      "%.0f %% of the reductions' bytes were moved under computation (%.0f %% of their "
                      "time was)", 100 * o.bytes_under / o.bytes, 100 * o.seconds_under / fmax(o.seconds, 1e-12));
    int p = t->ranks && step >= 0 ? timeline_pipeline(t, 0, lane) : 0;
    if (p > 1) {
        PipelineTimes x;
        timeline_times(&x, t, lane, p, step);
        if (isfinite(x.measured.step_rate))
            n += snprintf(text + n, (size_t)(size - n), "%sbubble of iteration %lld %.1f %%", n ? "; " : "",
                          (long long)step,
                          100 * x.measured.step_rate);
        if (isfinite(x.schedule.step_rate))
            n += snprintf(text + n, (size_t)(size - n), ", the schedule's with the same times %.1f %%",
                          100 * x.schedule.step_rate);
        timeline_times_close(&x);
    }
    if (lost(t))
        snprintf(text + n, (size_t)(size - n), "%sthe oldest %lld events found no room", n ? "; " : "",
                 (long long)lost(t));
    free(lane);
}
