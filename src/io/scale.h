/* scale -- the arithmetic of a plot: where a value lies on an axis, round ticks and their names, and which
 * of many points a picture needs. */
#ifndef SCALE_H
#define SCALE_H
#include <stdint.h>

typedef struct { double lo, hi; int log; } Scale;

/* Where v lies, 0 at lo, 1 at hi. */
double scale_at(Scale s, double v);

/* Round values within the scale, at least 1 and at most 12, about `want` of them; step is their distance, 0
 * when they are not equally far apart. */
int scale_ticks(Scale s, int want, double tick[12], double *step);

/* "0.25", "3e-4", "12,000", "1.5M": a tick's name, with as many digits as ticks `step` apart need; and any
 * value's, with four significant digits. Not finite: "n/a". */
const char *scale_tick_text(char text[32], double v, double step);
/* The same for the ticks of one axis, whose largest is `most`: all in one way of writing, "0.5M, 1.0M". A
 * logarithmic axis has ticks that are not equally far apart (step 0), and each is written by itself. */
const char *scale_axis_text(char text[32], double v, double step, double most);
const char *scale_number_text(char text[32], double v);

/* Which of n points a plot of about 1000 points needs: all extremes, and a gap where a whole column of the
 * picture has no finite value. keep has room for n. Returns how many. */
int64_t scale_thin(Scale x, const double *xs, const double *ys, int64_t n, int64_t *keep);
#endif
