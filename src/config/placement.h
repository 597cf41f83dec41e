/* placement -- which virtual stage of the pipeline stands on which rank, and what it holds.
 *
 * A model in p pipeline ranks of v chunks each is p * v virtual stages, numbered in model order: stage 0
 * holds the embedding, the last one the loss, and the layers lie between them in order. A stage may be empty:
 * it passes on what it gets. Looped placement: stage s is chunk s / p of rank s mod p (Narayanan et al. 2021,
 * arXiv:2104.04473, sec 2.2). The V schedules turn round at the last rank: chunk 0 of rank s, then chunk 1 of
 * rank 2p - 1 - s (Qi et al. 2024, arXiv:2405.15362), so rank 0 holds both ends of the model.
 *
 * A layout string lists stages in model order, whatever the placement. For looped placement that is
 * Megatron-LM's order: its list index is vpp_rank * pp + pp_rank. */
#ifndef PLACEMENT_H
#define PLACEMENT_H
#include "config.h"
#include <stdio.h>

/* pp_rank, chunk: where it stands. first_layer: global number of its first layer (of the next one, when it
 * has none). embedding, loss: 1 where the model begins and ends. */
typedef struct { int pp_rank, chunk, first_layer, layers, embedding, loss; } StagePlace;

/* n = p * v, stages in model order. With one pipeline rank v is 1, whatever is configured. */
typedef struct { int p, v, n; StagePlace *stage; } Placement;

/* Follows a resolved configuration; every rank gets the same. Needs a split: with pipeline_balance cost, the
 * one that config_with_layout makes. Not collective; allocates. */
void placement_open(Placement *pl, const Config *cfg);
void placement_close(Placement *pl);

const StagePlace *placement_at(const Placement *pl, int pp_rank, int chunk);

/* The table printed at start: a line a stage, its rank, chunk, and what it holds. */
void placement_print(FILE *f, const Placement *pl);

/* pipeline_balance cost: the layout string of the split with the smallest largest cost, a rank's cost being
 * that of all its chunks. cost: of {embedding, one layer, loss} in any one unit, finite, >= 0, the layer's >
 * 0; the same on every rank of the job (measured values: rank 0's). Exact. Among equals the second largest
 * cost decides, and so on; then fewer layers lie where embedding and loss sit. On the heap. */
char *placement_balance(const Config *cfg, const double cost[3]);

/* Whether the pipeline turns round at its last rank: V schedules, and lists from a file that say so. */
int placement_turns(const Config *cfg);

/* The pipeline rank of virtual stage s of p * v. */
int placement_rank(const Config *cfg, int p, int s);
#endif
