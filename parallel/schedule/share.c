/* share -- the least bound of all partitions, found exactly */
#include "share.h"
#include "base.h"
#include "partition.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TRIO = 3, TRIO_MOST = 40 };     /* stages a rank; units of which all partitions are looked at */

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

/* ---- three stages a rank in a loop ---- */

/* The bound of a rank of units [from[c], to[c]): its work, what its last D still has to run through, its
 * bytes times the least time that they are held. */
static double trio_bound(const Share *s, const int *from, const int *to)
{
    double m = s->u->shape.m, f = 0, d = 0, w = 0, fixed = 0, least = 0, held = 0, up = s->sum[0][from[0]];
    for (int c = 0; c < TRIO; c++) {
        int i = from[c], j = to[c];
        double round = part(s, 0, i, s->n) + part(s, 1, i, s->n);
        f += part(s, 0, i, j);
        d += part(s, 1, i, j);
        w += part(s, 2, i, j);
        fixed += part(s, FIXED, i, j);
        least += part(s, HELD, i, j);
        held += part(s, HELD, i, j) * (round + s->u->shape.weight_share * part(s, 2, i, j));
    }
    double room = s->u->fixed ? s->u->room - fixed : INFINITY;
    if (room * (1 + 1e-9) < least)
        return INFINITY;
    double ends = fmax(m * (f + d + w), m * (f + d) + s->sum[1][from[0]] + s->sum[2][1]);
    return up + fmax(ends, room > 0 && isfinite(room) ? m * held / room : 0);
}

/* Number of the state in which ranks have taken units up to at[c] of each turn. */
static size_t trio(const Share *s, int r, const int *at)
{
    size_t row = (size_t)s->n + 1;
    return (((size_t)r * row + (size_t)at[0]) * row + (size_t)at[1]) * row + (size_t)at[2];
}

/* Rank r takes units of each turn, whose ends are in `end`, from state `at` on. */
static void extend_trio(Share *s, int r, const int *at, const int *end, double most)
{
    double m = s->u->shape.m, before = s->least[trio(s, r, at)];
    int last = r == s->p - 1, to[TRIO];
    for (to[0] = last ? end[0] : at[0] + (r == 0); to[0] <= end[0]; to[0]++)
        for (to[1] = last ? end[1] : at[1]; to[1] <= end[1]; to[1]++) {
            double two = work(s, at[0], to[0]) + work(s, at[1], to[1]);
            if (m * two > most)
                break;
            for (to[2] = last ? end[2] : at[2]; to[2] <= end[2]; to[2]++) {
                if (m * (two + work(s, at[2], to[2])) > most)
                    break;
                double *least = &s->least[trio(s, r + 1, to)], b = fmax(before, trio_bound(s, at, to));
                *least = b < *least && b <= most ? b : *least;
            }
        }
}

/* The least bound of partitions whose turns end at `end`, of at most `most`; INFINITY: there is none. */
static double share_trio(Share *s, const int *end, double most)
{
    int at[TRIO];
    for (int r = 0; r <= s->p; r++)
        for (at[0] = 0; at[0] <= end[0]; at[0]++)
            for (at[1] = end[0]; at[1] <= end[1]; at[1]++)
                for (at[2] = end[1]; at[2] <= end[2]; at[2]++)
                    s->least[trio(s, r, at)] = INFINITY;
    s->least[trio(s, 0, (const int[]){0, end[0], end[1]})] = 0;
    for (int r = 0; r < s->p; r++)
        for (at[0] = 0; at[0] <= end[0]; at[0]++)
            for (at[1] = end[0]; at[1] <= end[1]; at[1]++)
                for (at[2] = end[1]; at[2] <= end[2] - (r == s->p - 1); at[2]++)
                    if (isfinite(s->least[trio(s, r, at)]))
                        extend_trio(s, r, at, end, most);
    return s->least[trio(s, s->p, end)];
}

/* The least bound of all partitions in a loop of three stages a rank; of too many units that of any. */
static double trio_least(Share *s)
{
    double any = units_bound(s->u), best = any * 2;
    if (s->n > TRIO_MOST)
        return any;
    for (int i = 1; i < s->n; i++)
        for (int j = i; j < s->n; j++)
            best = fmin(best, share_trio(s, (const int[]){i, j, s->n}, best * (1 - 1e-12)));
    return best < any * 2 ? fmax(any, best) : any;
}

void share_open(Share *s, const Units *u, int v, int vee, int most)
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
    states *= v == TRIO && n <= TRIO_MOST ? (n + 1) * (n + 1) : 1;
    s->least = xcalloc(states, sizeof *s->least);
    s->from = xcalloc(states, sizeof *s->from);
    s->cost = xcalloc(3 * p * (size_t)v, sizeof *s->cost);
    s->less = xcalloc(p, sizeof *s->less);
    s->room = xcalloc(p + SLOT_KINDS * p * (size_t)v, sizeof *s->room);
    for (size_t k = 0; k < SLOT_KINDS; k++)
        s->data[k] = s->room + p + k * p * (size_t)v;
}

void share_close(Share *s)
{
    for (int k = 0; k < 5; k++)
        free(s->sum[k]);
    free(s->least);
    free(s->from);
    free(s->cost);
    free(s->room);
    free(s->less);
}

double share_bound(Share *s, int v, int vee, int *first)
{
    if (v > TRIO)
        return units_bound(s->u);
    if (v == TRIO)
        return trio_least(s);
    return vee ? vee_bound(s, first) : v == 2 ? loop_bound(s, first) : least_bound(s, first);
}

double partition_bound(const Units *u, int v, int vee)
{
    Share s;
    int *first = xcalloc((size_t)(u->shape.p * v) + 1, sizeof *first);
    share_open(&s, u, v, vee, 0);
    double bound = share_bound(&s, v, vee, first);
    share_close(&s);
    free(first);
    return bound;
}
