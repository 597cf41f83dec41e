/* drift -- step times measured on a machine whose speed changes, in units of a reference.
 *
 * Beside every step of a launch a fixed product and a fixed copy are timed (log_reference). A step counts
 * as long as it would have taken had they taken what they took during the calibration. So layouts that were
 * measured minutes apart compare with each other and with their predictions. One factor is right only as
 * long as product and copy become slower alike; where they do not, the calibration no longer describes the
 * machine, and has to be made again. */
#ifndef DRIFT_H
#define DRIFT_H

/* ms of the reference's product and copy. Of a copy of 0 or less nothing is known. */
typedef struct { double product, copy; } Reference;
/* The reference during the calibration, and the share of a step's time that products take; 0: not known. */
typedef struct { Reference reference; double products; } Calibrated;
/* A step's time, ms, and the reference before and after it. */
typedef struct { double ms; Reference beside; } TimedStep;
/* ms of a layout's step: median of its launches, the fastest, the slowest. With one launch: of its steps. */
typedef struct { double ms, low, high; } Spread;

/* Times a common factor cannot explain: product and copy have changed apart by more than this. */
#define DRIFT_BOUND 1.5

/* Median of the reference beside n > 0 steps, product and copy each. */
Reference drift_median(const Reference *r, int n);
/* The spread of n > 0 steps in units of base: a step counts 1/f of its time where the reference beside it
 * takes f times as long. Where base or the reference is not known, f is 1. */
Spread drift_steps(const TimedStep *step, int n, Calibrated base);
/* The spread of launches, n > 0. One launch: its own. */
Spread drift_launches(const Spread *launch, int n);
/* Whether a layout is as fast as the best one, as far as their spreads can tell. */
int drift_equal(Spread a, Spread best);
/* Whether the calibration at `base` describes the machine during launch `at`: the median over the launches
 * around it, those four before and four after it, of how far
 * product and copy have changed apart is within DRIFT_BOUND. Too few launches, or a base that is not known:
 * nothing speaks against it.
 *   beside  in  [n]  the reference beside each launch, in the order of the launches */
int drift_fits(const Reference *beside, int n, int at, Calibrated base);
#endif
