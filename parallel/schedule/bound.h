/* bound -- a time that no order of a pipeline's stages can beat.
 *
 * Stages, their times, messages, microbatches and memory are given; the order of F, D and W on each rank is
 * not. So the bound holds for every schedule of these stages, backward split or joined, and tells how much a
 * better order could gain at most. */
#ifndef BOUND_H
#define BOUND_H
#include "schedule.h"

/* Returns the largest of these times of a step, from the first start to the last end of all ranks, in the
 * unit of the costs:
 *
 *   one microbatch's way through all stages and back;
 *   for each rank, what passes before its first F, and its whole work; or its F and D, what its last D still
 *   has to run through, and the W of stage 0;
 *   the same from the first F of any of its stages on, before which it runs F of earlier stages alone, and no
 *   more than memory holds;
 *   the same from its first D on, before which it runs no more F than memory holds;
 *   its activations times the least time that each is held, over the activations that memory holds.
 *
 *   peak  in   activations that a rank may hold, in microbatches of a rank, as Simulation.peak counts them */
double step_bound(const PipeShape *s, double peak);
#endif
