/* sweep_visits -- the launches of a sweep, and the file that keeps them, dir/sweep.jsonl */
#ifndef SWEEP_VISITS_H
#define SWEEP_VISITS_H
#include "sweep.h"

/* A launch of a layout.
 *   layout  its number in Sweep.layout
 *   step    [n] its steps without the first; n 0: it failed, see why
 *   beside  the reference: median over the steps
 *   code    the exit code of the job; LAUNCH_LATE: it timed out */
typedef struct {
    int layout, n, code;
    TimedStep *step;
    Reference beside;
    char why[sizeof((SweepLayout *)0)->why];
} Visit;
/* [n] in the order of the launches. */
typedef struct { Visit *v; int n; } Visits;

/* Adds a launch, whose steps then belong to *all. */
void visits_add(Visits *all, const Visit *v);
void visits_close(Visits *all);
/* Adds the launches of the file that count for this sweep: same model, batch, world and build; no fewer
 * steps; no timeout with less time; no failure that may pass (memory was short, a rank died). A line cut
 * off when the machine stopped is no JSON and is ignored; a newline is added after it.
 * fd: of the file, for appending. */
void visits_recall(Visits *all, const Sweep *s, int fd, const char *path);
/* Appends a launch to the file. */
void visits_keep(const Sweep *s, const Visit *v, int fd, const char *path);
/* Sets measured, raw, rounds, why and equal of every layout from the launches; and s->base, where no
 * calibration has set it. Launches that the calibration does not fit count only where there can't be another
 * calibration, or where a layout has no others and `last` is set. */
void visits_settle(Sweep *s, const Visits *all, int last);
/* Whether the calibration fits the last of the launches from `from` on, with those before it. */
int visits_fit(const Sweep *s, const Visits *all, int from);
#endif
