/* partition -- units shared out over the ranks: the least bound exactly, then a search by moves */
#include "partition.h"
#include "base.h"
#include "bound.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const Units *u;
    int n, p;
    double *sum[5];            /* [n + 1] of the units before one: F, D, W, bytes fixed, bytes held */
    double *least;             /* [p + 1][n + 1] best value of the first stages; in a V [p + 1][n + 1][n + 1],
                                * of the first ranks, by the units that are left; scratch */
    int *from;                 /* the same: where the last of these stages begins; in a V what was left before
                                * this rank; scratch */
    double *cost;              /* [3 * p * v] of a partition; scratch */
    int most;                  /* partitions that may be ordered */
} Share;

enum { FIXED = 3, HELD = 4 };

static double part(const Share *s, int k, int from, int to) { return s->sum[k][to] - s->sum[k][from]; }

/* The most microbatches that a rank of units [i, j) may hold. */
static double limit_of(const Share *s, int i, int j)
{
    const PipeShape *q = &s->u->shape;
    double limit = q->limit ? q->limit : q->p, held = part(s, HELD, i, j);
    if (s->u->fixed && held > 0)
        limit = fmin(limit, floor((s->u->room - part(s, FIXED, i, j)) / held + 1e-9));
    return s->u->fixed && part(s, FIXED, i, j) > s->u->room ? 0 : limit;
}

/* The bound of the rank of units [i, j), where stage 0 has the first `head` units: that of bound.c without
 * messages. */
static double rank_bound(const Share *s, int i, int j, int head)
{
    const PipeShape *q = &s->u->shape;
    double m = q->m, limit = limit_of(s, i, j);
    if (limit < 1)
        return INFINITY;
    double f = part(s, 0, i, j), d = part(s, 1, i, j), w = part(s, 2, i, j), up = s->sum[0][i];
    double round = part(s, 0, i, s->n) + part(s, 1, j, s->n);      /* from the start of an F to its D */
    double start = fmax(up, up + round - fmin(m * f, floor(limit + 1e-9) * f));
    double ends = fmax(m * (f + d + w), m * (f + d) + s->sum[1][i] + s->sum[2][head]);
    return fmax(start + ends, up + m * (round + d + q->weight_share * w) / limit);
}

/* What every partition takes: one microbatch's way, and stage 0's W. */
static double way(const Share *s, int head) { return s->sum[0][s->n] + s->sum[1][s->n] + s->sum[2][head]; }

/* The least over all partitions of stage k's rank bound and the best of what stands before it. */
static void extend(Share *s, int k, int j, int head, double most)
{
    int row = s->n + 1;
    for (int i = k == 1 ? 0 : k - 1; i < (k == 1 ? 1 : j); i++) {
        if (k == 1 ? j != head : !isfinite(s->least[(k - 1) * row + i]))
            continue;
        double b = rank_bound(s, i, j, head), before = k == 1 ? 0 : s->least[(k - 1) * row + i];
        double value = most > 0 ? b <= most * (1 + 1e-12) ? before + b * b : INFINITY : fmax(before, b);
        if (value < s->least[k * row + j]) {
            s->least[k * row + j] = value;
            s->from[k * row + j] = i;
        }
    }
}

/* Shares units out with stage 0 of `head` units: the largest bound of a rank becomes as small as possible;
 * with `most`, the sum of the squares of bounds that are at most that. Returns the value; fills first. */
static double share_out(Share *s, int head, double most, int *first)
{
    int n = s->n, p = s->p, row = n + 1;
    for (int i = 0; i < (p + 1) * row; i++)
        s->least[i] = INFINITY;
    for (int k = 1; k <= p; k++)
        for (int j = k; j <= n - (p - k); j++)
            extend(s, k, j, head, most);
    double value = s->least[p * row + n];
    for (int k = p, j = n; k > 0 && isfinite(value); k--) {
        first[k] = j;
        j = first[k - 1] = s->from[k * row + j];
    }
    return value;
}

/* The least bound of all partitions in one stage a rank; fills first with one that has it. */
static double least_bound(Share *s, int *first)
{
    double best = INFINITY;
    int *trial = xcalloc((size_t)s->p + 1, sizeof *trial), at = 1;
    for (int head = 1; head <= s->n - s->p + 1; head++) {
        double b = fmax(way(s, head), share_out(s, head, 0, trial));
        if (b < best) {
            best = b;
            at = head;
        }
    }
    if (isfinite(best))
        share_out(s, at, best, first);
    free(trial);
    return best;
}

/* ---- a V ---- */

static double work(const Share *s, int from, int to)
{
    return part(s, 0, from, to) + part(s, 1, from, to) + part(s, 2, from, to);
}

/* Slots of a rank of units [i, k) and [l, j): each has room for a microbatch of the larger stage. */
static double slots_of(const Share *s, int i, int k, int l, int j)
{
    const PipeShape *q = &s->u->shape;
    double slots = 2.0 * (q->limit ? q->limit : q->p), slot = fmax(part(s, HELD, i, k), part(s, HELD, l, j));
    double left = s->u->room - part(s, FIXED, i, k) - part(s, FIXED, l, j);
    if (s->u->fixed)
        slots = left < 0 ? 0 : slot > 0 ? fmin(slots, floor(left / slot + 1e-9)) : slots;
    return slots;
}

/* The bound of a rank of units [i, k) and [l, j) of a V: that of bound.c without messages. */
static double pair_bound(const Share *s, int i, int k, int l, int j)
{
    double m = s->u->shape.m, share = s->u->shape.weight_share, slots = slots_of(s, i, k, l, j);
    if (slots < 1)
        return INFINITY;
    double f = part(s, 0, i, k) + part(s, 0, l, j), d = part(s, 1, i, k) + part(s, 1, l, j);
    double w = part(s, 2, i, k) + part(s, 2, l, j), up = s->sum[0][i];
    double far = part(s, 0, l, s->n) + part(s, 1, j, s->n);        /* from an F to its D, of [l, j) */
    double near = part(s, 0, i, s->n) + part(s, 1, k, s->n);       /* of [i, k) */
    double before = fmin(m * f, slots * fmax(part(s, 0, i, k), part(s, 0, l, j)));
    double start = fmax(up, s->sum[0][l] + far - before);
    double ends = fmax(m * (f + d + w), m * (f + d) + s->sum[1][i] + s->sum[2][1]);
    return fmax(start + ends, up + m * (near + far + d + share * w) / slots);
}

/* Shares units out to rank r, where the ranks before it have all but [i, j). */
static void extend_pair(Share *s, int r, int i, int j, double most, int squares)
{
    int row = s->n + 1, left = 2 * (s->p - 1 - r);
    double m = s->u->shape.m;
    double before = s->least[((size_t)r * (size_t)row + (size_t)i) * (size_t)row + (size_t)j];
    for (int k = i + 1; k < j - left && s->sum[0][i] + m * work(s, i, k) <= most; k++)
        for (int l = left ? j - 1 : k; l >= k + left; l--) {
            if (s->sum[0][i] + m * (work(s, i, k) + work(s, l, j)) > most)
                break;                                     /* so is all that follows */
            double b = pair_bound(s, i, k, l, j), value = squares ? before + b * b : fmax(before, b);
            if (squares)                                   /* among equals stages of equal work */
                value += m * m * (pow(work(s, i, k), 2) + pow(work(s, l, j), 2));
            size_t to = ((size_t)(r + 1) * (size_t)row + (size_t)k) * (size_t)row + (size_t)l;
            if (b <= most && value < s->least[to]) {
                s->least[to] = value;
                s->from[to] = i * row + j;
            }
            if (!left)
                break;                                     /* the last rank takes all the rest */
        }
}

/* As share_out, for a V. squares: bool, the sum of squares of bounds, which are at most `most`. */
static double share_pairs(Share *s, double most, int squares, int *first)
{
    int n = s->n, p = s->p, row = n + 1, to = 0;
    double best = INFINITY;
    for (size_t i = 0; i < (size_t)(p + 1) * (size_t)row * (size_t)row; i++)
        s->least[i] = INFINITY;
    s->least[n] = 0;
    for (int r = 0; r < p; r++)
        for (int i = r; i < n; i++)
            for (int j = i + 2 * (p - r); j <= n - r; j++)
                if (isfinite(s->least[(r * row + i) * row + j]))
                    extend_pair(s, r, i, j, most, squares);
    for (int k = 0; k <= n; k++)
        if (s->least[(p * row + k) * row + k] < best) {
            best = s->least[(p * row + k) * row + k];
            to = k * row + k;
        }
    for (int r = p; r >= 0 && isfinite(best); r--) {
        first[r] = to / row;
        first[2 * p - r] = to % row;
        to = s->from[r * row * row + to];
    }
    return best;
}

/* The least bound of all partitions in a V; fills first with one that has it. The ranks together take at
 * least their work and what passes before their first F: rank r begins behind r stages of one unit or
 * more. */
static double vee_bound(Share *s, int *first)
{
    double m = s->u->shape.m, waits = 0, longest = 0, all = work(s, 0, s->n);
    for (int r = 0; r < s->p; r++)
        waits += s->sum[0][r];
    for (int i = 0; i < s->n; i++)
        longest = fmax(longest, work(s, i, i + 1));
    double best = share_pairs(s, s->sum[0][s->n] + m * (all / s->p + 2 * longest), 0, first);
    if (!isfinite(best))
        best = share_pairs(s, s->sum[0][s->n] + m * all, 0, first);
    if (isfinite(best))
        share_pairs(s, best * (1 + 1e-12), 1, first);
    return fmax(fmax((m * all + waits) / s->p, way(s, 1)), best);
}

static void share_open(Share *s, const Units *u, int v, int most)
{
    const double *each[5] = {u->cost[0], u->cost[1], u->cost[2], u->fixed, u->held};
    size_t n = (size_t)u->n, p = (size_t)u->shape.p;
    *s = (Share){.u = u, .n = u->n, .p = u->shape.p, .most = most};
    BUG_ON(s->p < 1 || u->n < s->p * v);
    for (int k = 0; k < 5; k++) {
        s->sum[k] = xcalloc(n + 1, sizeof *s->sum[k]);
        for (size_t i = 0; i < n; i++)
            s->sum[k][i + 1] = s->sum[k][i] + (each[k] ? each[k][i] : 0);
    }
    size_t states = (p + 1) * (n + 1) * (v > 1 ? n + 1 : 1);
    s->least = xcalloc(states, sizeof *s->least);
    s->from = xcalloc(states, sizeof *s->from);
    s->cost = xcalloc(3 * p * (size_t)v, sizeof *s->cost);
}

static void share_close(Share *s)
{
    for (int k = 0; k < 5; k++)
        free(s->sum[k]);
    free(s->least);
    free(s->from);
    free(s->cost);
}

double partition_bound(const Units *u, int v)
{
    Share s;
    int *first = xcalloc((size_t)(u->shape.p * v) + 1, sizeof *first);
    share_open(&s, u, v, 0);
    double bound = v > 1 ? vee_bound(&s, first) : least_bound(&s, first);
    share_close(&s);
    free(first);
    return bound;
}

/* ---- a partition, ordered ---- */

PipeShape partition_shape(const Units *u, const Partition *p, double *cost)
{
    int n = u->shape.p * p->v;
    PipeShape shape = {.kind = p->kind, .p = u->shape.p, .v = p->v, .m = u->shape.m, .limit = u->shape.limit,
                       .hop = u->shape.hop, .weight_share = u->shape.weight_share};
    memset(cost, 0, 3 * (size_t)n * sizeof *cost);
    for (int k = 0; k < 3; k++) {
        for (int s = 0; s < n; s++)
            for (int i = p->first[s]; i < p->first[s + 1]; i++)
                cost[k * n + s] += u->cost[k][i];
        shape.cost[k] = cost + k * n;
    }
    return shape;
}

/* Bytes of a stage's microbatch on rank r: all slots of a rank are as large as its largest stage needs. */
static double largest_slot(const Units *u, const Partition *out, int r)
{
    double most = 0;
    for (int c = 0; c < out->v; c++) {
        int stage = place_stage(out->v > 1, u->shape.p, r, c);
        double sum = 0;
        for (int i = out->first[stage]; i < out->first[stage + 1]; i++)
            sum += u->held[i];
        most = fmax(most, sum);
    }
    return most;
}

/* Bytes that rank r needs beside its slots. */
static double beside_slots(const Units *u, const Partition *out, int r)
{
    double sum = 0, most = 0;
    for (int c = 0; c < out->v; c++) {
        int stage = place_stage(out->v > 1, u->shape.p, r, c);
        for (int i = out->first[stage]; i < out->first[stage + 1]; i++) {
            sum += u->fixed[i];
            most = fmax(most, u->scratch[i]);
        }
    }
    return sum + most;
}

/* Whether every rank has room for its units and for `peak` [p] microbatches; NULL: for a stage's of one. */
static int fits(const Share *s, const Partition *out, const double *peak)
{
    const Units *u = s->u;
    for (int r = 0; r < s->p && u->fixed; r++)
        if (beside_slots(u, out, r) + largest_slot(u, out, r) * (peak ? peak[r] * out->v : 1) > u->room)
            return 0;
    return 1;
}

/* Orders a partition's work unless its bound is no better than what there is; returns its makespan, or
 * INFINITY. */
static double ordered(Share *s, Partition *out)
{
    const PipeShape *q = &s->u->shape;
    PipeShape shape = partition_shape(s->u, out, s->cost);
    ScheduleSet set;
    Simulation sim;
    double limit = out->v > 1 ? q->m : q->limit ? q->limit : q->p;
    if (out->tried >= s->most || !fits(s, out, NULL) ||
        step_bound(&shape, limit) >= out->makespan * (1 - 1e-9))
        return INFINITY;
    out->tried++;
    schedules_open(&set, &shape);
    simulate(&set, &sim, 0);
    double makespan = fits(s, out, sim.peak) ? sim.makespan : INFINITY;
    simulation_close(&sim);
    schedules_close(&set);
    return makespan;
}

/* ---- moves ---- */

/* Tries to move the beginnings of `count` successive stages from stage k on by `by` units. 1: that is
 * better. */
static int move(Share *s, Partition *out, int k, int count, int by)
{
    int *first = out->first, legal = 1;
    for (int i = 0; i < count; i++)
        first[k + i] += by;
    for (int r = k - 1; r < k + count; r++)
        legal &= first[r + 1] > first[r];
    double value = legal ? ordered(s, out) : INFINITY;
    if (value < out->makespan * (1 - 1e-9)) {
        out->makespan = value;
        return 1;
    }
    for (int i = 0; i < count; i++)
        first[k + i] -= by;
    return 0;
}

/* Tries all moves once. 1: some were better. */
static int improve(Share *s, Partition *out)
{
    int stages = s->p * out->v, better = 0;
    for (int count = 1; count < stages; count++)
        for (int k = 1; k + count <= stages; k++)
            for (int by = -2; by <= 2; by++)
                if (by)
                    better |= move(s, out, k, count, by);
    return better;
}

void partition_search(Partition *out, const Units *u, ScheduleKind kind, int most)
{
    Share s;
    int v = schedule_info[kind].place == PLACE_VEE ? 2 : 1;
    BUG_ON(v == 1 && kind != SCHEDULE_ZB_AUTO);
    *out = (Partition){.kind = kind, .v = v, .limit = u->shape.limit, .makespan = INFINITY,
                       .first = xcalloc((size_t)(u->shape.p * v) + 1, sizeof *out->first)};
    share_open(&s, u, v, most);
    out->bound = v > 1 ? vee_bound(&s, out->first) : least_bound(&s, out->first);
    if (isfinite(out->bound)) {
        out->makespan = ordered(&s, out);
        while (out->makespan > out->bound * (1 + 1e-9) && improve(&s, out))
            ;
    }
    share_close(&s);
}

void partition_close(Partition *p)
{
    free(p->first);
    *p = (Partition){0};
}
