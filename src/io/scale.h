/* scale -- arithmetic of a plot: positions on an axis, round ticks and their labels, thinned points */
#ifndef SCALE_H
#define SCALE_H
#include <stdint.h>

/* lo, hi: ends of the axis; log: 1 if it is logarithmic. */
typedef struct { double lo, hi; int log; } Scale;

/* Returns the position of v on the axis: 0 at lo, 1 at hi. */
double scale_at(Scale s, double v);

/* Finds about `want` round values on the axis, at least 1 and at most 12, and returns their number.
 * *step: distance from one to the next; 0: the distances differ. */
int scale_ticks(Scale s, int want, double tick[12], double *step);

/* The three write v as a label, "0.25", "3e-4", "12,000", "1.5M", or "n/a" if v is not finite, and
 * return text. */
/* One tick, with the digits that ticks `step` apart need. */
const char *scale_tick_text(char text[32], double v, double step);
/* A tick of an axis whose largest tick is `most`: all its ticks get one unit, "0.5M, 1.0M". With step 0,
 * as a logarithmic axis has it, each tick is written by itself. */
const char *scale_axis_text(char text[32], double v, double step, double most);
/* Any value, with four significant digits. */
const char *scale_number_text(char text[32], double v);

/* Picks the points that a plot of about 1000 points needs: all extremes, and one point as a gap where a
 * whole column of the picture has no finite value. Writes their indices to keep [n] and returns their
 * number. */
int64_t scale_thin(Scale x, const double *xs, const double *ys, int64_t n, int64_t *keep);
#endif
