/* run_costs -- FLOPs of a rank, and relative costs of F, D and W of the stages, for a schedule that is
 * searched (zb-auto).
 *
 * Nothing is measured: every stage runs over a device that counts the FLOPs of matrix products and
 * attention, recomputed ones and this rank's share of the tensor group included. So all ranks have the
 * same costs and lists without a message (the hash of the lists is compared when a run starts), a plan
 * has the costs of the run, and a resumed run those it had before. Ops that are bound by memory (norms,
 * activations, the embedding) count 0, and messages take no time. Costs order the work and change no
 * result: a chunk's microbatches accumulate in order in every schedule. */
#ifndef RUN_COSTS_H
#define RUN_COSTS_H
#include "run.h"

/* Sets shape->cost for every virtual stage of pl, on the heap. The unit is a third of a stage's mean
 * work: all costs are 1 where all times are equal. Not collective. */
void run_costs(PipeShape *shape, const Config *cfg, const Placement *pl);

/* FLOPs of matrix products and attention in one rank's step of the last segment of batch sizes: recomputed
 * ones too, in attention only pairs that the mask lets through, documents apart. Not collective.
 *   lists  in  of cfg */
double run_flops(const Config *cfg, int rank, const StepLists *lists);

/* Says which costs a replay of this shape assumes: "where ...". */
const char *run_costs_phrase(const PipeShape *shape);

/* Prints F, D and W of the stages, those with equal costs together: "stage 0: 0.9 1.1 0.9, 1 to 6:
 * ..". */
void run_costs_print(FILE *f, const PipeShape *shape);

/* {"source", "forward": [..], "backward_input": [..], "backward_weight": [..]}.
 *   source  in  "flops", "equal" or "clock" (ms) */
json_t *run_costs_json(const PipeShape *shape, const char *source);
#endif
