/* whole -- gradients put together from the ranks that hold their parts. */
#ifndef WHOLE_H
#define WHOLE_H
#include "run.h"

/* Element (r, c) of a piece of a gradient, times the run's verdict.gscale. */
double whole_element(const Run *r, const Piece *p, int64_t row, int64_t col);

/* The gradient called `name` ([rows, cols], global), on rank 0; others may pass NULL. p[0..n): this rank's
 * PIECES_GRADIENT. Collective. */
void whole_gradient(Run *r, const Piece *p, int n, const char *name, int64_t cols, double *out);
#endif
