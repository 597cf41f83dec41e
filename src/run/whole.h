/* whole -- a whole gradient on rank 0, put together from the ranks that hold its parts. */
#ifndef WHOLE_H
#define WHOLE_H
#include "run.h"

/* Copies a piece of a gradient to the host, dense, times the run's verdict.gscale. On the heap. */
double *whole_piece(const Run *r, const TensorPiece *p);

/* Puts the gradient called `name` together on rank 0. Collective.
 *   p    in   [n]             this rank's PIECES_GRADIENT
 *   out  out  [rows, cols]    the global gradient; may be NULL on the other ranks */
void whole_gradient(Run *r, const TensorPiece *p, int n, const char *name, int64_t cols, double *out);
#endif
