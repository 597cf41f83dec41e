/* run_costs -- what F, D and W of the stages take beside each other, for a schedule that is searched
 * (zb-auto).
 *
 * Nothing is measured: the layers of every stage are walked over a device that counts the FLOPs of matrix
 * products and attention, recomputed ones and this rank's share of the tensor group included. So all ranks
 * have the same costs and lists without a word between them (their hash is compared when a run starts), a
 * plan has those of the run, and a run that goes on from a checkpoint those it had before. What is bound by
 * memory (norms, activations, the embedding) counts nothing, and messages take no time. Costs order the work
 * and change no result: a chunk's microbatches accumulate in order in every schedule. */
#ifndef RUN_COSTS_H
#define RUN_COSTS_H
#include "run.h"

/* Sets shape->cost, of every virtual stage of pl, in units of a third of the mean work of a stage: where all
 * times are equal they are 1. On the heap. Not collective. */
void run_costs(PipeShape *shape, const Config *cfg, const Placement *pl);

/* "where ...": the costs that a replay of this shape takes. */
const char *run_costs_phrase(const PipeShape *shape);

/* "stage 0: 0.9 1.1 0.9, 1 to 6: ..": F, D and W; stages with the same costs together. */
void run_costs_print(FILE *f, const PipeShape *shape);

/* {"source", "forward": [..], "backward_input": [..], "backward_weight": [..]}; source: "flops", "equal",
 * "clock" (ms). */
json_t *run_costs_json(const PipeShape *shape, const char *source);
#endif
