/* whole -- gradients put together from the ranks that hold their parts. */
#ifndef WHOLE_H
#define WHOLE_H
#include "run.h"

/* A piece of a gradient on the host, dense, times the run's verdict.gscale. On the heap. */
double *whole_piece(const Run *r, const TensorPiece *p);

/* The gradient called `name` ([rows, cols], global), on rank 0; others may pass NULL. p[0..n): this rank's
 * PIECES_GRADIENT. Collective. */
void whole_gradient(Run *r, const TensorPiece *p, int n, const char *name, int64_t cols, double *out);
#endif
