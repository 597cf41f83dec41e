/* straggler_judge -- which ranks are slow, from the own times of all ranks in one interval after the other */
#include "straggler.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Lists the ranks, those of equal work one behind the other. */
static void order_ranks(Judge *j)
{
    for (int first = 0, n = 0; n < j->ranks; first++) {
        int seen = 0;
        for (int r = 0; r < first && !seen; r++)
            seen = j->work[r] == j->work[first];
        for (int r = first; r < j->ranks && !seen; r++)
            if (j->work[r] == j->work[first])
                j->order[n++] = r;
    }
}

void judge_open(Judge *j, int ranks, double threshold, const int *work)
{
    size_t n = (size_t)ranks;
    *j = (Judge){.ranks = ranks, .threshold = threshold, .work = work,
                 .rank = xcalloc(n, sizeof *j->rank), .order = xcalloc(n, sizeof *j->order),
                 .sorted = xcalloc(n, sizeof *j->sorted), .slow = xcalloc(n, sizeof *j->slow)};
    order_ranks(j);
}

void judge_close(Judge *j)
{
    free(j->rank);
    free(j->order);
    free(j->sorted);
    free(j->slow);
    *j = (Judge){0};
}

/* The newest n intervals of `was`. */
#define LAST(n) ((1u << (n)) - 1)

/* ---- medians ---- */

static double middle(const double *sorted, int n)
{
    return n & 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

/* The median of sorted [n] without one entry of value v. n > 1. */
static double middle_of_others(const double *sorted, int n, double v)
{
    int at = 0, half = (n - 1) / 2;
    for (int end = n; at < end;)               /* at: the first entry that is not below v */
        if (sorted[(at + end) / 2] < v)
            at = (at + end) / 2 + 1;
        else
            end = (at + end) / 2;
    double high = sorted[half + (half >= at)];
    if ((n - 1) & 1)
        return high;
    return (sorted[half - 1 + (half - 1 >= at)] + high) / 2;
}

/* The median of n values, and how far they usually are from it. */
static double usual(const double *value, int64_t n, double *spread)
{
    double v[PAST], sum = 0;
    int m = n < PAST ? (int)n : PAST;
    memcpy(v, value, (size_t)m * sizeof *v);
    qsort(v, (size_t)m, sizeof *v, by_double);
    double base = middle(v, m);
    for (int i = 0; i < m; i++)
        sum += fabs(v[i] - base);
    /* of a normal distribution: its standard deviation, and more while few values tell it */
    *spread = 1.2533 * sum / m * (1 + 2. / m);
    return base;
}

/* ---- one phase ---- */

static int has_length(int phase)
{
    return phase == OWN_FORWARD || phase == OWN_BACKWARD || phase == OWN_OPTIMIZER;
}

/* Time of a rank in a step, for data and computing. */
static double whole(const OwnSum *own)
{
    double sum = 0;
    for (int phase = 0; phase < OWN_PHASES; phase++)
        sum += phase == OWN_DATA || has_length(phase) ? own->took[phase] : 0;
    return sum;
}

/* Whether a rank is slow that should have taken `expected`. Notes the worst of its reasons.
 *   spread  in  s: how far its times usually are from what is expected */
static int is_slow(const Judge *j, Judged *r, int phase, const OwnSum *own, double expected, double spread,
                   int peers)
{
    double lost = own->took[phase] - expected, all = whole(own);
    double share = has_length(phase) ? lost / expected : lost / all;
    if (!(share > j->threshold && lost > j->threshold / 4 * all && lost > 3 * spread))
        return 0;
    if (lost > r->lost[phase]) {
        r->lost[phase] = lost;
        r->excess[phase] = share;
        r->peers[phase] = peers;
        r->by_idling[phase] = 0;
    }
    return 1;
}

/* Writes what all ranks took in a phase, or how long they were idle, to j->sorted, in order. */
static void sort_ranks(Judge *j, const OwnSum *own, int phase, int idle)
{
    for (int r = 0; r < j->ranks; r++)
        j->sorted[r] = idle ? own[r].idle[phase] : own[r].took[phase];
    qsort(j->sorted, (size_t)j->ranks, sizeof *j->sorted, by_double);
}

/* Compares the ranks of equal work with each other; sets their `lost`. */
static void beside_peers(Judge *j, const OwnSum *own, int phase)
{
    double spread;
    for (int first = 0, n; first < j->ranks; first += n) {
        const int *peer = j->order + first, work = j->work[*peer];
        for (n = 0; first + n < j->ranks && j->work[peer[n]] == work; n++)
            j->sorted[n] = own[peer[n]].took[phase];
        if (work < 0 || n < 2)
            continue;
        qsort(j->sorted, (size_t)n, sizeof *j->sorted, by_double);
        for (int i = 0; i < n; i++) {
            Judged *it = &j->rank[peer[i]];
            const OwnSum *its = &own[peer[i]];
            if (it->known[phase] < PAST_FIRST)
                continue;
            double others = middle_of_others(j->sorted, n, its->took[phase]);
            double base = usual(it->past[phase], it->known[phase], &spread);
            is_slow(j, it, phase, its, others, spread / base * others, n - 1);
        }
    }
}

/* Compares a rank with its past.
 *   unit  in  s: what its times are divided by */
static int slower_than_before(const Judge *j, Judged *r, int phase, const OwnSum *own, double unit)
{
    double spread, unused;
    if (r->known[phase] < PAST_FIRST)
        return 0;
    /* of two ranks nobody else can tell whether one is slower or the other faster */
    if (j->ranks == 2 &&
        !(own->took[phase] > (1 + j->threshold / 2) * usual(r->took[phase], r->known[phase], &unused)))
        return 0;
    double base = usual(r->past[phase], r->known[phase], &spread);
    return is_slow(j, r, phase, own, base * unit, spread * unit, 0);
}

/* Whether a rank was on no core for longer than it usually is, and than it usually is more than others. */
static int idles(const Judge *j, Judged *r, int phase, const OwnSum *own, double others)
{
    double spread, unused, before = r->lost[phase];
    if (r->known[phase] < PAST_FIRST)
        return 0;
    double grown = own->idle[phase] - usual(r->idle[phase], r->known[phase], &unused);
    double beside = own->idle[phase] - others - usual(r->idle_more[phase], r->known[phase], &spread);
    double lost = fmin(grown, beside);
    int slow = is_slow(j, r, phase, own, own->took[phase] - lost, spread, 0);
    r->by_idling[phase] |= slow && r->lost[phase] > before;
    return slow;
}

/* Finds the ranks that are slow because they were on no core. */
static void by_idling(Judge *j, const OwnSum *own, int phase)
{
    sort_ranks(j, own, phase, 1);
    for (int r = 0; r < j->ranks; r++) {
        j->rank[r].others_idle = middle_of_others(j->sorted, j->ranks, own[r].idle[phase]);
        j->rank[r].idled = idles(j, &j->rank[r], phase, own + r, j->rank[r].others_idle);
    }
}

/* Compares the ranks with their past; keeps the times of those that are as ever. */
static void beside_past(Judge *j, const OwnSum *own, int phase)
{
    sort_ranks(j, own, phase, 0);
    for (int r = 0; r < j->ranks; r++) {
        Judged *it = &j->rank[r];
        double mine = own[r].took[phase];
        double unit = has_length(phase) ? middle_of_others(j->sorted, j->ranks, mine) : 1;
        if (!(unit > 0) || slower_than_before(j, it, phase, own + r, unit) || it->idled)
            continue;
        int64_t at = it->known[phase]++ % PAST;
        it->past[phase][at] = mine / unit;
        it->took[phase][at] = mine;
        it->idle[phase][at] = own[r].idle[phase];
        it->idle_more[phase][at] = own[r].idle[phase] - it->others_idle;
    }
}

static void judge_phase(Judge *j, const OwnSum *own, int phase)
{
    double sum = 0;
    for (int r = 0; r < j->ranks; r++)
        sum += own[r].took[phase];
    if (phase == OWN_SAVE && !(sum > 0))           /* no save in this interval */
        return;
    for (int r = 0; r < j->ranks; r++) {
        j->rank[r].lost[phase] = 0;
        j->rank[r].idled = 0;
    }
    if (phase == OWN_FORWARD || phase == OWN_BACKWARD)
        beside_peers(j, own, phase);
    if (has_length(phase))
        by_idling(j, own, phase);
    beside_past(j, own, phase);
    for (int r = 0; r < j->ranks; r++) {
        Judged *it = &j->rank[r];
        int slow = it->lost[phase] > 0;
        it->was[phase] = it->was[phase] << 1 | (unsigned)slow;
        it->times[phase] = it->was[phase] & LAST(RECENT) ? it->times[phase] + slow : 0;
    }
}

/* ---- all phases ---- */

static int enough(const Judged *r, int phase)
{
    unsigned was = r->was[phase];
    if (phase == OWN_CORE || phase == OWN_COMM)
        return (was & LAST(LONG)) == LAST(LONG);
    return was & 1 && __builtin_popcount(was & LAST(RECENT)) >= ENOUGH;
}

/* Writes what is said of a rank: the phase in which it loses most, and the others. */
static void say(Judged *r)
{
    SlowRank *s = &r->slow;
    int most = -1;
    for (int phase = 0; phase < OWN_PHASES; phase++)
        if (enough(r, phase) && (most < 0 || r->lost[phase] > r->lost[most]))
            most = phase;
    if (most < 0)
        return;
    s->phase = own_phase_name[most];
    s->excess = r->excess[most];
    s->of_phase = has_length(most);
    s->peers = r->peers[most];
    s->idle = r->by_idling[most];
    s->intervals = r->times[most];
    s->others = 0;
    for (int phase = 0; phase < OWN_PHASES; phase++)
        if (phase != most && enough(r, phase))
            s->other[s->others++] = own_phase_name[phase];
}

void judge_interval(Judge *j, const OwnSum *own)
{
    j->intervals++;
    j->n = 0;
    for (int phase = 0; phase < OWN_PHASES && j->ranks > 1; phase++)
        judge_phase(j, own, phase);
    for (int r = 0; r < j->ranks; r++) {
        Judged *it = &j->rank[r];
        int slow = 0, found = 0;
        for (int phase = 0; phase < OWN_PHASES; phase++) {
            slow |= it->was[phase] & 1;
            found |= enough(it, phase);
        }
        it->calm = slow ? 0 : it->calm + 1;
        it->slow.rank = r;
        it->slow.fresh = found && !it->reported;
        it->reported = found || (it->reported && it->calm < ENOUGH);
        if (!it->reported)
            continue;
        say(it);
        j->slow[j->n++] = it->slow;
    }
}
