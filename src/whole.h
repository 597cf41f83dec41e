/* whole -- tensors put together from the ranks that hold their parts. */
#ifndef WHOLE_H
#define WHOLE_H
#include "run.h"

/* The parts of tensor t's gradient that this rank contributes to the whole: over all ranks each element once. Not
 * collective. Returns how many. */
int whole_boxes(const Params *p, const Param *t, Box box[MAX_BOXES]);

/* Element i of `box` row r, as a number times the run's gscale. */
double whole_element(const Run *r, const Param *t, const Box *box, int64_t row, int64_t col);

/* The gradient of the tensor with number `number` ([rows, cols], global), on rank 0; others may pass NULL. Collective. */
void whole_gradient(Run *r, int number, int64_t cols, double *out);
#endif
