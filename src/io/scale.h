/* scale -- arithmetic of a plot: round ticks and their labels, thinned points */
#ifndef SCALE_H
#define SCALE_H
#include <stdint.h>

/* Returns the smallest of 1, 2 or 5 times a power of ten that is not below `least`. */
double scale_step(double least);

/* Writes v as a label of an axis whose ticks are `step` apart and whose largest tick is `most`; all its
 * labels have one unit: "0.25", "3e-4", "12,000", "0.5M" and "1.0M". Returns text. */
const char *scale_label(char text[32], double v, double step, double most);

/* Picks the points that a plot needs whose x axis may be linear or logarithmic: at most about 2000, all
 * extremes, and one point as a gap where a whole column of the picture has no finite value. xs: never falls.
 * Writes their indices to keep [n] and returns their number. */
int64_t scale_thin(const double *xs, const double *ys, int64_t n, int64_t *keep);
#endif
