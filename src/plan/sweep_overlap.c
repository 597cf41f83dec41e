/* sweep_overlap -- which layouts of a sweep overlap the data group's messages with computing
 *
 * With overlap a step is no shorter than without it, less all waiting for the data group: nothing else gets
 * faster. Nor is it shorter than the messages of this group. So in the order of that bound layouts are
 * predicted with each setting, until no further one can come among the best. */
#include "base.h"
#include "machine.h"
#include "sweep.h"
#include <math.h>
#include <stdlib.h>

enum { BATCH = 32 };           /* layouts between two looks at the best */
#define LEAST_GAIN 1e-3        /* share of a step: what brings less is left off */

typedef struct { const Sweep *s; const Machine *m; SweepLayout **layout; } Choice;

static double bound(const SweepLayout *l) { return fmax(l->predicted - l->exposed, l->sent); }

/* Whether another setting could make the layout faster. */
static int can_gain(const Sweep *s, const SweepLayout *l)
{
    int settings = 0;
    for (int o = 0; o < OVERLAPS; o++)
        settings += sweep_may_overlap(s, (Overlap)o);
    return l->state == LAYOUT_FITS && layout_shards(l) && settings > 1 &&
           l->exposed > LEAST_GAIN * l->predicted;
}

/* Predicts a layout with the other settings, and takes the fastest that is legal and fits. */
static void choose(void *choice, int i)
{
    const Choice *c = choice;
    SweepLayout *l = c->layout[i], best = *l;
    for (int o = (int)l->overlap + 1; o < OVERLAPS; o++) {
        SweepLayout other = *l;
        other.overlap = (Overlap)o;
        if (sweep_may_overlap(c->s, other.overlap) && sweep_predict(c->s, c->m, &other) &&
            other.state == LAYOUT_FITS && other.predicted < (1 - LEAST_GAIN) * best.predicted)
            best = other;
    }
    *l = best;
}

static int by_bound(const void *a, const void *b)
{
    double x = bound(*(SweepLayout *const *)a), y = bound(*(SweepLayout *const *)b);
    return x > y ? 1 : x < y ? -1 : 0;
}

/* ms of the k-th fastest layout that fits; there are more than k. */
static double kth(const SweepLayout *l, int n, int k, double *ms)
{
    int fit = 0;
    for (int i = 0; i < n; i++)
        if (l[i].state == LAYOUT_FITS)
            ms[fit++] = l[i].predicted;
    qsort(ms, (size_t)fit, sizeof *ms, by_double);
    return ms[k - 1];
}

void sweep_overlap(const Sweep *s, const Machine *m, SweepLayout *l, int n)
{
    int best = s->measure > OVERLAP_BEST ? s->measure : OVERLAP_BEST, open = 0, fit = 0;
    SweepLayout **layout = xcalloc((size_t)n + 1, sizeof(SweepLayout *));
    double *ms = xcalloc((size_t)n + 1, sizeof *ms);
    for (int i = 0; i < n; i++) {
        fit += l[i].state == LAYOUT_FITS;
        if (can_gain(s, &l[i]))
            layout[open++] = &l[i];
    }
    qsort(layout, (size_t)open, sizeof *layout, by_bound);
    for (int from = 0, batch; from < open; from += batch) {
        batch = open - from < BATCH ? open - from : BATCH;
        if (fit > best && bound(layout[from]) >= kth(l, n, best, ms))
            break;
        sweep_work(batch, choose, &(Choice){s, m, layout + from}, "layouts with overlap");
    }
    free(layout);
    free(ms);
}
