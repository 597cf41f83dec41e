/* routers -- what the routers of a step did, for metrics.jsonl, TensorBoard and the progress line */
#ifndef ROUTERS_H
#define ROUTERS_H
#include "metrics.h"
#include "tensorboard.h"

/* Makes *to, which begins as zeros, a copy of *from; what it holds is allocated once. The copy shares `layer`
 * and `balance`. */
void routers_copy(RouterMetrics *to, const RouterMetrics *from);
void routers_free(RouterMetrics *m);

/* Returns members of a JSON object, each with ", " before it; free it. */
char *routers_json(const RouterMetrics *m);
/* Writes the totals and each layer's numbers as scalars. */
void routers_scalars(const RouterMetrics *m, EventFile *f, double wall_time, int64_t step);
/* Writes Megatron-LM's fields of the losses, " NAME: 1.000000E+00 |", which are without their coefficients
 * and means over the layers. "": there are none. */
const char *routers_fields(const RouterMetrics *m, char text[160]);
#endif
