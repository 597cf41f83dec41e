/* sweep_smallest -- train sweep --smallest-world: the smallest world in which a model fits */
#ifndef SWEEP_SMALLEST_H
#define SWEEP_SMALLEST_H
#include "sweep.h"

/* Plans worlds in turn until a layout fits the machine's memory; prints them, the answer, and the fastest of
 * the layouts that need least memory. Dies when there is no answer.
 *   s      in  all that holds for every world
 *   c      in  the configuration
 *   world  in  [n] ranks to try; NULL: 1, 2, 4 and so on
 *   json   in  bool: prints one JSON object */
void sweep_smallest(const Sweep *s, const Config *c, const int *world, int n, int json);
#endif
