/* partition -- units shared out over the ranks: the least bound exactly, then a search by moves */
#include "partition.h"
#include "base.h"
#include "bound.h"
#include "search.h"
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
    double *room;              /* [p] bytes of each rank for microbatches; scratch */
    double *data[SLOT_KINDS];  /* [p * v] bytes of a microbatch in each stage; scratch */
    double *less;              /* [p] bytes left free for messages that arrive early, as they turned out */
    int most;                  /* partitions that may be ordered before the search turns to other ones */
    uint64_t seed;             /* of the kicks */
} Share;

enum { FIXED = 3, HELD = 4 };
enum { REFINE = 8000000 };    /* instructions played to improve the order of what was found */
enum { SETTLES = 8 };          /* attempts to make an order fit */

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

/* The most time that at most m microbatches of each of two stages take which fit into `room`.
 *   time, bytes  in  of one microbatch of each; bytes above 0 */
static double most_time(double m, double room, const double time[2], const double bytes[2])
{
    int first = time[1] * bytes[0] > time[0] * bytes[1];           /* more time for its bytes */
    double n = fmin(m, room / bytes[first]), rest = fmin(m, (room - n * bytes[first]) / bytes[!first]);
    return n * time[first] + rest * time[!first];
}

/* The bound of a rank of units [i, k) and [l, j) of a V: that of bound.c without messages. */
static double pair_bound(const Share *s, int i, int k, int l, int j)
{
    const PipeShape *q = &s->u->shape;
    double m = q->m, share = q->weight_share, bytes[2] = {1, 1}, room = 2.0 * (q->limit ? q->limit : q->p);
    if (s->u->fixed) {
        bytes[0] = fmax(1, part(s, HELD, i, k));
        bytes[1] = fmax(1, part(s, HELD, l, j));
        room = s->u->room - part(s, FIXED, i, k) - part(s, FIXED, l, j);
    }
    if (room * (1 + 1e-9) < bytes[0] + bytes[1])
        return INFINITY;
    double f = part(s, 0, i, k) + part(s, 0, l, j), d = part(s, 1, i, k) + part(s, 1, l, j);
    double w = part(s, 2, i, k) + part(s, 2, l, j), up = s->sum[0][i];
    double time[2] = {part(s, 0, i, k), part(s, 0, l, j)};
    double far = part(s, 0, l, s->n) + part(s, 1, j, s->n);        /* from an F to its D, of [l, j) */
    double near = part(s, 0, i, s->n) + part(s, 1, k, s->n);       /* of [i, k) */
    double start = fmax(up, s->sum[0][l] + far - most_time(m, room, time, bytes));
    start = fmax(start, s->sum[0][l] - fmin(m, room / bytes[0]) * time[0]);    /* till then that alone runs */
    double ends = fmax(m * (f + d + w), m * (f + d) + s->sum[1][i] + s->sum[2][1]);
    double held = (near + part(s, 1, i, k) + share * part(s, 2, i, k)) * bytes[0] +
                  (far + part(s, 1, l, j) + share * part(s, 2, l, j)) * bytes[1];
    return fmax(start + ends, up + m * held / room);
}

/* Number of the state in which ranks before r have all units but those from i on and from (V: up to) j. */
static size_t state(const Share *s, int r, int i, int j)
{
    return ((size_t)r * (size_t)(s->n + 1) + (size_t)i) * (size_t)(s->n + 1) + (size_t)j;
}

/* A rank takes units [i, k) and [l, j) between two states, if its bound is at most `most`. squares: bool, the
 * sum of squares of bounds counts; among equals stages of equal work. */
static void take(Share *s, size_t from, size_t to, int i, int k, int l, int j, double most, int squares)
{
    double m = s->u->shape.m, before = s->least[from], b = pair_bound(s, i, k, l, j);
    double value = fmax(before, b);
    if (squares)
        value = before + b * b + m * m * (pow(work(s, i, k), 2) + pow(work(s, l, j), 2));
    if (b <= most && value < s->least[to]) {
        s->least[to] = value;
        s->from[to] = (int)(from % ((size_t)(s->n + 1) * (size_t)(s->n + 1)));
    }
}

/* Shares units out to rank r of a V, where the ranks before it have all but [i, j). */
static void extend_pair(Share *s, int r, int i, int j, double most, int squares)
{
    int left = 2 * (s->p - 1 - r);
    double m = s->u->shape.m;
    for (int k = i + 1; k < j - left && s->sum[0][i] + m * work(s, i, k) <= most; k++)
        for (int l = left ? j - 1 : k; l >= k + left; l--) {
            if (s->sum[0][i] + m * (work(s, i, k) + work(s, l, j)) > most)
                break;                                     /* so is all that follows */
            take(s, state(s, r, i, j), state(s, r + 1, k, l), i, k, l, j, most, squares);
            if (!left)
                break;                                     /* the last rank takes all the rest */
        }
}

static void forget(Share *s)
{
    for (size_t i = 0; i < state(s, s->p + 1, 0, 0); i++)
        s->least[i] = INFINITY;
}

/* As share_out, for a V. squares: bool, the sum of squares of bounds, which are at most `most`. */
static double share_pairs(Share *s, double most, int squares, int *first)
{
    int n = s->n, p = s->p, row = n + 1, to = 0;
    double best = INFINITY;
    forget(s);
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

/* As share_pairs, for two stages a rank in a loop, whose second turn begins at unit `half`. Only the first
 * and the last stage must have a unit. */
static double share_loop(Share *s, int half, double most, int squares, int *first)
{
    int n = s->n, p = s->p, row = n + 1;
    double m = s->u->shape.m;
    forget(s);
    s->least[state(s, 0, 0, half)] = 0;
    for (int r = 0; r < p; r++)
        for (int i = 0; i <= half; i++)
            for (int j = half; j <= n; j++) {
                if (!isfinite(s->least[state(s, r, i, j)]))
                    continue;
                int last = r == p - 1;
                for (int k = last ? half : i + (r == 0); k <= half && m * work(s, i, k) <= most; k++)
                    for (int l = last ? n : j; l <= n && m * (work(s, i, k) + work(s, j, l)) <= most; l++)
                        if (!last || j < n)
                            take(s, state(s, r, i, j), state(s, r + 1, k, l), i, k, j, l, most, squares);
            }
    double value = s->least[state(s, p, half, n)];
    for (int r = p, at = half * row + n; r >= 0 && isfinite(value); r--) {
        first[r] = at / row;
        first[p + r] = at % row;
        at = s->from[state(s, r, at / row, at % row)];
    }
    return value;
}

/* The least bound of all partitions in a loop of two stages a rank; fills first with one that has it. */
static double loop_bound(Share *s, int *first)
{
    double m = s->u->shape.m, all = work(s, 0, s->n), longest = 0;
    for (int i = 0; i < s->n; i++)
        longest = fmax(longest, work(s, i, i + 1));
    double best = s->sum[0][s->n] + m * (all / s->p + 2 * longest), found = INFINITY;
    int at = 0;
    for (int half = 1; half < s->n; half++) {
        double b = share_loop(s, half, best * (1 - 1e-12), 0, first);
        if (b < best) {
            found = best = b;
            at = half;
        }
    }
    if (at)
        share_loop(s, at, best * (1 + 1e-12), 1, first);
    return fmax(found, way(s, 1));
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

static void share_open(Share *s, const Units *u, int v, int vee, int most)
{
    const double *each[5] = {u->cost[0], u->cost[1], u->cost[2], u->fixed, u->held};
    size_t n = (size_t)u->n, p = (size_t)u->shape.p;
    *s = (Share){.u = u, .n = u->n, .p = u->shape.p, .most = most};
    BUG_ON(s->p < 1 || u->n < 2 || (v == 1 || vee ? u->n < s->p * v : 0));
    for (int k = 0; k < 5; k++) {
        s->sum[k] = xcalloc(n + 1, sizeof *s->sum[k]);
        for (size_t i = 0; i < n; i++)
            s->sum[k][i + 1] = s->sum[k][i] + (each[k] ? each[k][i] : 0);
    }
    size_t states = (p + 1) * (n + 1) * (v == 2 ? n + 1 : 1);
    s->least = xcalloc(states, sizeof *s->least);
    s->from = xcalloc(states, sizeof *s->from);
    s->cost = xcalloc(3 * p * (size_t)v, sizeof *s->cost);
    s->less = xcalloc(p, sizeof *s->less);
    s->room = xcalloc(p + SLOT_KINDS * p * (size_t)v, sizeof *s->room);
    for (size_t k = 0; k < SLOT_KINDS; k++)
        s->data[k] = s->room + p + k * p * (size_t)v;
}

static void share_close(Share *s)
{
    for (int k = 0; k < 5; k++)
        free(s->sum[k]);
    free(s->least);
    free(s->from);
    free(s->cost);
    free(s->room);
    free(s->less);
}

/* Fills first with a partition that has the bound. */
static double bound_of(Share *s, int v, int vee, int *first)
{
    return vee ? vee_bound(s, first) : v == 2 ? loop_bound(s, first) : least_bound(s, first);
}

double partition_bound(const Units *u, int v, int vee)
{
    Share s;
    int *first = xcalloc((size_t)(u->shape.p * v) + 1, sizeof *first);
    share_open(&s, u, v, vee, 0);
    double bound = bound_of(&s, v, vee, first);
    share_close(&s);
    free(first);
    return bound;
}

/* ---- several stages a rank in a loop ---- */

/* How uneven a partition is: the largest work of a rank; among equals, how uneven stages are. */
static double unevenness(const Share *s, const Partition *out)
{
    double most = 0, squares = 0, all = work(s, 0, s->n);
    for (int r = 0; r < s->p; r++) {
        double sum = 0;
        for (int c = 0; c < out->v; c++) {
            int i = place_stage(out->vee, s->p, r, c);
            double w = work(s, out->first[i], out->first[i + 1]);
            sum += w;
            squares += w * w;
        }
        most = fmax(most, sum);
    }
    return most + 1e-3 * squares / (all > 0 ? all : 1);
}

/* Whether stages begin in order, with a unit at least in the first and in the last one. */
static int in_order(const Share *s, const Partition *out)
{
    int stages = s->p * out->v;
    for (int i = 0; i < stages; i++)
        if (out->first[i + 1] < out->first[i] + (i == 0 || i == stages - 1))
            return 0;
    return 1;
}

static void shift(Partition *out, int k, int count, int by)
{
    for (int i = 0; i < count; i++)
        out->first[k + i] += by;
}

/* Shares units out by their work, evenly over the stages, then over the ranks as evenly as moves of units
 * from stage to stage allow. A stage may be empty. */
static void spread(Share *s, Partition *out)
{
    int stages = s->p * out->v, better = 1;
    double all = work(s, 0, s->n);
    for (int k = 1, i = 1; k <= stages; k++) {
        while (i < s->n - 1 && work(s, 0, i) < all * k / stages - work(s, i, i + 1) / 2)
            i++;
        out->first[k] = k == stages ? s->n : i;
    }
    double value = unevenness(s, out);
    while (better--)
        for (int count = 1; count < stages; count++)
            for (int k = 1; k + count <= stages; k++)
                for (int by = -1; by <= 1; by += 2) {
                    shift(out, k, count, by);
                    double moved = in_order(s, out) ? unevenness(s, out) : INFINITY;
                    if (moved < value * (1 - 1e-12)) {
                        value = moved;
                        better = 1;
                    } else {
                        shift(out, k, count, -by);
                    }
                }
}

/* ---- a partition, ordered ---- */

PipeShape partition_shape(const Units *u, const Partition *p, double *cost)
{
    int n = u->shape.p * p->v;
    PipeShape shape = {.kind = SCHEDULE_CUSTOM, .p = u->shape.p, .v = p->v, .m = u->shape.m, .vee = p->vee,
                       .lists = p->list, .hop = u->shape.hop, .weight_share = u->shape.weight_share};
    memset(cost, 0, 3 * (size_t)n * sizeof *cost);
    for (int k = 0; k < 3; k++) {
        for (int s = 0; s < n; s++)
            for (int i = p->first[s]; i < p->first[s + 1]; i++)
                cost[k * n + s] += u->cost[k][i];
        shape.cost[k] = cost + k * n;
    }
    return shape;
}

/* Bytes that rank r takes beside those of microbatches. */
static double beside(const Share *s, const Partition *out, int r)
{
    double fixed = 0, scratch = 0;
    for (int c = 0; c < out->v; c++) {
        int stage = place_stage(out->vee, s->p, r, c);
        for (int i = out->first[stage]; i < out->first[stage + 1]; i++) {
            fixed += s->u->fixed[i];
            scratch = fmax(scratch, s->u->scratch[i]);
        }
    }
    return fixed + scratch;
}

/* Fills room and data. Where memory is not bounded it is microbatches that count. */
static void weigh(Share *s, const Partition *out)
{
    const Units *u = s->u;
    double limit = out->v * (u->shape.limit ? u->shape.limit : u->shape.p), w = u->shape.weight_share;
    for (int r = 0; r < s->p; r++)
        s->room[r] = u->fixed ? u->room - beside(s, out, r) - s->less[r] : limit;
    for (int stage = 0; stage < s->p * out->v; stage++) {
        double held = 0, arrived = 0, pending = 0;
        for (int i = out->first[stage]; i < out->first[stage + 1] && u->fixed; i++) {
            held += u->held[i];
            arrived += u->arrived ? u->arrived[i] : 0;
            pending += u->pending ? u->pending[i] : 0;
        }
        s->data[SLOT_FD][stage] = u->fixed ? arrived : 1 - w;
        s->data[SLOT_FW][stage] = u->fixed ? held - arrived : w;
        s->data[SLOT_DW][stage] = pending;
    }
}

/* Microbatches of a rank, as Simulation.peak counts them, that no rank has room for more of. */
static double most_held(const Share *s, const Partition *out)
{
    double most = 0;
    for (int r = 0; r < s->p; r++) {
        double least = INFINITY;
        for (int c = 0; c < out->v; c++) {
            int i = place_stage(out->vee, s->p, r, c);
            least = fmin(least, s->data[SLOT_FD][i] + s->data[SLOT_FW][i]);
        }
        most = fmax(most, least > 0 ? s->room[r] / least : INFINITY);
    }
    return fmin(most / out->v, s->u->shape.m);
}

/* Bytes that rank r's list takes. */
static double bytes_of(const Share *s, const Partition *out, const ScheduleSet *set, int r)
{
    int *units = xcalloc((size_t)out->v, sizeof *units);
    size_t *bytes = xcalloc(SLOT_KINDS * (size_t)out->v, sizeof *bytes);
    const size_t *of[SLOT_KINDS];
    for (int k = 0; k < SLOT_KINDS; k++) {
        of[k] = bytes + k * out->v;
        for (int c = 0; c < out->v; c++)
            bytes[k * out->v + c] = (size_t)s->data[k][place_stage(out->vee, s->p, r, c)];
    }
    for (int c = 0; c < out->v; c++)
        units[c] = 1;
    Schedule list;
    schedule_open(&list, set, r, &(Expand){.units = units});
    schedule_pack(&list, of);
    double all = beside(s, out, r) + (double)list.bytes;
    schedule_close(&list);
    free(bytes);
    free(units);
    return all;
}

/* The makespan of a V in zb-v's order, of one stage a rank in 1F1B's; INFINITY: it does not fit. lists: as in
 * ordered. */
static double as_published(const Share *s, const Partition *out, PipeShape shape, InstrList *lists)
{
    ScheduleSet set;
    Simulation sim;
    int fits = 1;
    shape.kind = out->vee ? SCHEDULE_ZB_V : SCHEDULE_1F1B;
    shape.weight_share = 1;                    /* so that W does not wait for ever */
    schedules_open(&set, &shape);
    for (int r = 0; r < s->p && s->u->fixed; r++)
        fits &= bytes_of(s, out, &set, r) <= s->u->room;
    simulate(&set, &sim, 0);
    double makespan = sim.makespan;
    simulation_close(&sim);
    schedules_close(&set);
    if (lists)
        schedule_generate(&shape, lists);
    return fits ? makespan : INFINITY;
}

/* Orders a partition's work unless its bound is no better than what there is; returns its makespan, or
 * INFINITY.
 *   budget, lists  in out  as search_order */
static double ordered(Share *s, Partition *out, Favourites *known, int64_t budget, InstrList *lists)
{
    PipeShape shape = partition_shape(s->u, out, s->cost);
    weigh(s, out);
    for (int r = 0; r < s->p; r++)
        if (s->room[r] < 0)
            return INFINITY;
    if (!lists && step_bound(&shape, most_held(s, out)) >= out->makespan * (1 - 1e-9))
        return INFINITY;
    out->tried++;
    if (out->published)
        return as_published(s, out, shape, lists);
    Held held = {s->room, {s->data[SLOT_FD], s->data[SLOT_FW], s->data[SLOT_DW]}, s->u->fixed != NULL};
    return search_order(&shape, &held, known, budget, lists);
}

/* ---- moves ---- */

/* Tries to move the beginnings of `count` successive stages from stage k on by `by` units. 1: that is
 * better. */
static int move(Share *s, Partition *out, Favourites *known, int k, int count, int by)
{
    shift(out, k, count, by);
    double value = out->tried < s->most && in_order(s, out) ? ordered(s, out, known, 0, NULL) : INFINITY;
    if (value < out->makespan * (1 - 1e-9)) {
        out->makespan = value;
        return 1;
    }
    shift(out, k, count, -by);
    return 0;
}

/* Moves units between stages as long as that helps, until `most` partitions in all have been ordered. */
static void descend(Share *s, Partition *out, Favourites *known, int most)
{
    int stages = s->p * out->v, better = 1;
    s->most = most;
    while (better--)
        for (int count = 1; count < stages; count++)
            for (int k = 1; k + count <= stages && out->tried < most; k++)
                for (int by = -2; by <= 2; by++)
                    if (by && move(s, out, known, k, count, by))
                        better = 1;
}

/* Moves some units of a partition at random. */
static void kick(Share *s, Partition *out)
{
    int stages = s->p * out->v;
    for (int left = 1 + draw(&s->seed, 3), tries = 0; left && tries < 100; tries++) {
        int k = 1 + draw(&s->seed, stages - 1), count = 1 + draw(&s->seed, stages - k), by = draw(&s->seed, 2) ? 1 : -1;
        shift(out, k, count, by);
        if (in_order(s, out))
            left--;
        else
            shift(out, k, count, -by);
    }
}

/* Descends from `trial`, whose boundaries are given, and keeps in `out` what is shorter. */
static void try_from(Share *s, Partition *out, Partition *trial, Favourites *known, int most)
{
    trial->makespan = INFINITY;
    trial->tried = out->tried;
    trial->makespan = ordered(s, trial, known, 0, NULL);
    descend(s, trial, known, most);
    out->tried = trial->tried;
    if (trial->makespan < out->makespan) {
        out->makespan = trial->makespan;
        memcpy(out->first, trial->first, (size_t)(s->p * out->v + 1) * sizeof *out->first);
    }
}

/* Lowers and times the lists of a partition. Returns 0, and leaves more free, where a rank needs more than it
 * has. */
static int settles(Share *s, Partition *out)
{
    ScheduleSet set;
    Simulation sim;
    PipeShape shape = partition_shape(s->u, out, s->cost);
    int over = 0;
    schedules_open(&set, &shape);
    for (int r = 0; r < s->p && s->u->fixed; r++) {
        double more = bytes_of(s, out, &set, r) - s->u->room;
        if (more <= 0)
            continue;
        s->less[r] += more;
        over = 1;
    }
    simulate(&set, &sim, 0);
    out->makespan = sim.makespan;              /* the search rounds times to ticks */
    simulation_close(&sim);
    schedules_close(&set);
    return !over;
}

/* Orders the partition with all rules and writes the lists, with more left free until they fit. */
static void finish(Share *s, Partition *out)
{
    size_t p = (size_t)s->p, most = 3 * (size_t)out->v * (size_t)s->u->shape.m;
    int fits = 0;
    free(out->list);
    free(out->all);
    out->list = xcalloc(p, sizeof *out->list);
    out->all = xcalloc(p * most, sizeof *out->all);
    Favourites best = {0};
    for (int i = 0; i < SETTLES && !fits; i++) {
        best.n = i % 2 || i > 2 ? best.n : 0;  /* all rules, then the best of them */
        for (size_t r = 0; r < p; r++)
            out->list[r] = (InstrList){0, out->all + r * most};
        if (isinf(ordered(s, out, &best, REFINE, out->list)))
            break;
        fits = settles(s, out);
    }
    if (!fits)
        out->makespan = INFINITY;
}

void partition_search(Partition *out, const Units *u, int v, int vee, int published, int most)
{
    Share s;
    Favourites known = {0};
    *out = (Partition){.v = v, .vee = vee, .published = published, .makespan = INFINITY,
                       .first = xcalloc((size_t)(u->shape.p * v) + 1, sizeof *out->first)};
    BUG_ON((vee && v != 2) || (published && !vee && v != 1));
    share_open(&s, u, v, vee, most);
    Partition trial = *out;
    size_t bytes = ((size_t)(s.p * v) + 1) * sizeof *trial.first;
    trial.first = xcalloc(1, bytes);
    out->bound = v > 2 ? units_bound(u) : bound_of(&s, v, vee, trial.first);
    if (v <= 2 && isfinite(out->bound))
        try_from(&s, out, &trial, &known, most / 4);
    if (v > 1 && isfinite(out->bound)) {
        Favourites others = {0};
        double before = out->makespan;
        spread(&s, &trial);
        try_from(&s, out, &trial, &others, out->tried + most / 4);
        known = out->makespan < before ? others : known;
    }
    if (isfinite(out->makespan))
        finish(&s, out);
    while (isfinite(out->makespan) && out->makespan > out->bound * (1 + 1e-4) && out->tried < most) {
        int before = out->tried;
        memcpy(trial.first, out->first, bytes);
        kick(&s, &trial);
        try_from(&s, out, &trial, &known, before + most / 16 < most ? before + most / 16 : most);
        out->tried += out->tried == before;
    }
    free(trial.first);
    if (isfinite(out->makespan))
        finish(&s, out);
    share_close(&s);
}

void partition_close(Partition *p)
{
    free(p->first);
    free(p->list);
    free(p->all);
    *p = (Partition){0};
}
