/* straggler -- finds ranks that take longer for their own work than others (own_time.h).
 *
 * Own times are compared once an interval: INTERVAL_STEPS steps, or as many as take INTERVAL_MS. In a phase a
 * rank is slow
 *   beside its peers  if its time is above (1 + threshold) x the median of the ranks with equal work: those
 *                     of its pipeline stage, where no experts are shared out. Only forward and backward: the
 *                     shards of an optimizer are not all of one size;
 *   beside its past   if its time, divided by the median of the other ranks, is above (1 + threshold) x the
 *                     median of the same in up to PAST earlier intervals. Of two ranks it must also have
 *                     grown, not divided, by threshold / 2. So a pipeline stage is found, whose work no other
 *                     rank has, and a rank with experts; a machine that is slower for all changes nothing;
 *   by being idle     if the time in which it was on no core has grown by more than threshold x the rest of
 *                     its time, by itself and beside the median of the others. That a core is faster now and
 *                     slower then, as those of a shared machine are, does not blur this.
 * What it loses must also be more than threshold / 4 of its time in a step, and than three times the usual
 * spread of that quotient or idle time (mean absolute deviation). The phases data, communication, save and
 * core have no usual length: in them a rank is slow if it loses more than the threshold of its time in a
 * step.
 *
 * A rank is reported when it was slow in a phase in ENOUGH of RECENT intervals, and stays reported
 * until it was in no phase for ENOUGH intervals. Waiting for a core and moving messages need LONG in a row:
 * another program may take a core for a while, also in the middle of a copy. */
#ifndef STRAGGLER_H
#define STRAGGLER_H
#include "own_time.h"

enum {
    INTERVAL_STEPS = 4, INTERVAL_MS = 20, PAST = 32, PAST_FIRST = 8, ENOUGH = 3, RECENT = 5, LONG = 12
};

#define STRAGGLER_THRESHOLD 0.1            /* where the configuration has none */

/* Of one rank. */
typedef struct {
    double past[OWN_PHASES][PAST]; /* of earlier intervals, not those when it was slow: its time over the
                                    * median of the others, or s a step in phases without a usual length */
    double took[OWN_PHASES][PAST]; /* s a step, in the same intervals */
    double idle[OWN_PHASES][PAST]; /* s a step on no core, in the same intervals */
    double idle_more[OWN_PHASES][PAST]; /* idle less the median of the others */
    int64_t known[OWN_PHASES];     /* how many there ever were */
    unsigned was[OWN_PHASES];      /* whether it was slow, a bit an interval, the newest lowest */
    int times[OWN_PHASES];         /* intervals it was slow in, since it was in none of RECENT */
    double lost[OWN_PHASES];       /* s a step beyond what was expected, in this interval */
    double excess[OWN_PHASES];     /* the same as a share: of what was expected, or of a step */
    int peers[OWN_PHASES];         /* peers that it was compared with; 0: its own past */
    int by_idling[OWN_PHASES];     /* bool: because it was on no core */
    int idled;                     /* bool: the same, in the phase that is judged */
    double others_idle;            /* s a step: median of the others in the phase that is judged */
    int reported, calm;            /* bool; intervals in a row in which it was slow in no phase */
    SlowRank slow;                 /* what is said of it */
} Judged;

typedef struct {
    int ranks;
    double threshold;
    const int *work;               /* [ranks] ranks of equal work have the same number; < 0: no peers */
    Judged *rank;                  /* [ranks] */
    int *order;                    /* [ranks] all ranks, those of equal work one behind the other */
    double *sorted;                /* [ranks] scratch */
    SlowRank *slow;                /* [ranks] those that are reported now */
    int n;
    int64_t intervals;             /* judged so far */
} Judge;

void judge_open(Judge *j, int ranks, double threshold, const int *work);
void judge_close(Judge *j);
/* Judges an interval: fills j->slow. Pure but for j.
 *   own    in  [ranks]  s a step */
void judge_interval(Judge *j, const OwnSum *own);

typedef struct {
    int on;                        /* bool: ranks are compared; the same on all ranks */
    int64_t steps, skip;           /* of this interval; intervals to leave out at the start */
    double ms;                     /* length of its steps */
    Judge judge;                   /* of rank 0 */
    int *work;                     /* [world] */
    char (*host)[64];              /* [world] names */
    char (*where)[64];             /* [world] "tp 0 cp 0 dp 1 pp 0" */
} Straggler;

/* Collective over g->all.
 *   threshold  in  global; 0: ranks are not compared
 *   explicit   in  global  bool: the user asked for it
 *   sharing    in          ranks on this rank's GPU, itself included; 0: it computes on the CPU */
void straggler_open(Straggler *s, Grid *g, double threshold, int explicit, int sharing);
void straggler_close(Straggler *s);
/* Reduces a step's metrics as own_exchange, and at the end of an interval compares the ranks; rank 0 warns of
 * those that are newly slow. Collective over g->all. */
void straggler_step(Straggler *s, OwnTime *o, const GroupTotals *now, Metrics *m, Grid *g);
#endif
