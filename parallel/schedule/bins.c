/* bins -- a time that no partition of units beats, however many stages a rank has and wherever they lie
 *
 * Ranks are bins and units are what lies in them: a step takes at least the work of the fullest bin. How
 * small that can be is decided exactly: units of equal times and bytes are one kind, what is left to place
 * is a number of each kind, and the least number of bins for every such rest follows from that for smaller
 * rests. */
#include "base.h"
#include "partition.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { KINDS_MOST = 12, STEPS = 50 };
#define RESTS_MOST 2e5     /* rests and, */
#define PAIRS_MOST 1e9     /* with what one bin may take of them, pairs: more take too long */

/* Units of equal times and bytes; of unequal ones the least. */
typedef struct {
    int count, stride;         /* units; of the kind's number in the number of a rest */
    double work, fixed;        /* of one: F, D and W; bytes */
    double byte_time;          /* bytes of a microbatch times the least time that they are held */
} UnitKind;

typedef struct {
    const Units *u;
    int n, rests;              /* kinds; rests: products of counts + 1 */
    UnitKind kind[KINDS_MOST];
    int *least;                /* [rests] bins that a rest needs */
    int *fits, nfits;          /* [nfits][n] what one bin may take */
} Bins;

/* The least time from the start of unit i's F to the end of its D, and its W if it holds till then. */
static double held_for(const Units *u, int i)
{
    double time = u->cost[1][i] + u->shape.weight_share * u->cost[2][i];
    for (int k = i; k < u->n; k++)
        time += u->cost[0][k] + (k > i ? u->cost[1][k] : 0);
    return time;
}

static int near(double a, double b) { return fabs(a - b) <= 1e-9 * fmax(fabs(a), fabs(b)); }

/* Sorts units into kinds; 0: there are too many. */
static int bins_open(Bins *b, const Units *u)
{
    *b = (Bins){.u = u};
    for (int i = 0; i < u->n; i++) {
        double work = u->cost[0][i] + u->cost[1][i] + u->cost[2][i], fixed = u->fixed ? u->fixed[i] : 0;
        double byte_time = u->fixed ? u->held[i] * held_for(u, i) : 0;
        int k = 0;
        while (k < b->n && !(near(b->kind[k].work, work) && near(b->kind[k].fixed, fixed)))
            k++;
        if (k == KINDS_MOST)
            return 0;
        UnitKind *kind = &b->kind[k];
        if (k == b->n) {
            b->n++;
            *kind = (UnitKind){0, 0, work, fixed, byte_time};
        }
        kind->count++;
        kind->work = fmin(kind->work, work);
        kind->fixed = fmin(kind->fixed, fixed);
        kind->byte_time = fmin(kind->byte_time, byte_time);
    }
    double rests = 1;
    for (int k = 0; k < b->n; k++) {
        b->kind[k].stride = (int)rests;
        rests *= b->kind[k].count + 1;
        if (rests > RESTS_MOST)
            return 0;
    }
    b->rests = (int)rests;
    b->least = xcalloc((size_t)b->rests, sizeof *b->least);
    b->fits = xcalloc((size_t)b->rests * (size_t)b->n, sizeof *b->fits);
    return 1;
}

static int number_of(const Bins *b, int rest, int k)
{
    return rest / b->kind[k].stride % (b->kind[k].count + 1);
}

/* Whether one rank can hold and do what `take` has within `time`. A bin holds each microbatch of each of its
 * units for a time, and never more bytes than are left. */
static int one_bin(const Bins *b, int take, double time)
{
    double m = b->u->shape.m, work = 0, fixed = 0, byte_time = 0;
    for (int k = 0; k < b->n; k++) {
        int n = number_of(b, take, k);
        work += n * b->kind[k].work;
        fixed += n * b->kind[k].fixed;
        byte_time += n * b->kind[k].byte_time;
    }
    if (m * work > time)
        return 0;
    return !b->u->fixed || (fixed <= b->u->room && m * byte_time <= (b->u->room - fixed) * time);
}

/* Lists what one bin may take within `time`. Of what a bin may take only that counts to which nothing can be
 * added. Returns 0 if there is too much. */
static int list_bins(Bins *b, double time)
{
    b->nfits = 0;
    for (int take = 1; take < b->rests; take++) {
        if (!one_bin(b, take, time))
            continue;
        int whole = 1;
        for (int k = 0; k < b->n; k++)
            whole &= number_of(b, take, k) == b->kind[k].count || !one_bin(b, take + b->kind[k].stride, time);
        for (int k = 0; k < b->n && whole; k++)
            b->fits[b->nfits * b->n + k] = number_of(b, take, k);
        b->nfits += whole;
    }
    return (double)b->nfits * b->rests <= PAIRS_MOST / STEPS;
}

/* The bins that all units need within `time`; INT_MAX: one unit does not fit. */
static int bins_needed(Bins *b, double time)
{
    if (!list_bins(b, time))
        return 0;
    for (int rest = 1; rest < b->rests; rest++) {
        int least = INT32_MAX;
        for (int f = 0; f < b->nfits; f++) {
            int left = rest;
            for (int k = 0; k < b->n; k++) {
                int n = number_of(b, rest, k), take = b->fits[f * b->n + k];
                left -= (n < take ? n : take) * b->kind[k].stride;
            }
            if (left < rest && b->least[left] < least - 1)
                least = b->least[left] + 1;
        }
        b->least[rest] = least;
    }
    return b->least[b->rests - 1];
}

/* The bound of all ranks together: their work and what passes before their first F, of which the k-th to
 * begin has k units or more; their bytes; one microbatch's way. */
static double together(const Units *u)
{
    double all = 0, before = 0, way = 0, fixed = 0, byte_time = 0;
    int p = u->shape.p;
    for (int i = 0; i < u->n; i++) {
        all += u->shape.m * (u->cost[0][i] + u->cost[1][i] + u->cost[2][i]);
        before += i < p - 1 ? (p - 1 - i) * u->cost[0][i] : 0;
        way += u->cost[0][i] + u->cost[1][i];
        fixed += u->fixed ? u->fixed[i] : 0;
        byte_time += u->fixed ? u->shape.m * u->held[i] * held_for(u, i) : 0;
    }
    double time = fmax((all + before) / p, way), left = p * u->room - fixed;
    if (!u->fixed)
        return time;
    return left <= 0 ? INFINITY : fmax(time, byte_time / left);
}

double units_bound(const Units *u)
{
    Bins b;
    double low = together(u), high = low;
    if (isfinite(low) && bins_open(&b, u)) {
        while (high < 16 * low && bins_needed(&b, high) > u->shape.p)
            high *= 2;
        if (high >= 16 * low)
            low = high;
        for (int i = 0; i < STEPS && high > low; i++) {
            double middle = (low + high) / 2;
            *(bins_needed(&b, middle) > u->shape.p ? &low : &high) = middle;
        }
        free(b.least);
        free(b.fits);
    }
    return low;
}
