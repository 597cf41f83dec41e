/* placement -- which pipeline rank holds which virtual stage, and which layers the stage has.
 *
 * A model on p pipeline ranks of v chunks each has p * v virtual stages, numbered in model order. Stage
 * 0 holds the embedding, the last stage the loss, and the layers lie between them in order. A stage may
 * be empty: it passes on what it receives. Looped placement: stage s is chunk s / p of rank s mod p
 * (Narayanan et al. 2021, arXiv:2104.04473, sec 2.2). V placement: stage s < p is chunk 0 of rank s,
 * stage s >= p is chunk 1 of rank 2p - 1 - s (Qi et al. 2024, arXiv:2405.15362). Rank 0 then holds both
 * ends of the model.
 *
 * A layout string lists stages in model order, whatever the placement. For looped placement that is
 * Megatron-LM's order: its list index is vpp_rank * pp + pp_rank. */
#ifndef PLACEMENT_H
#define PLACEMENT_H
#include "config.h"
#include <stdio.h>

/* A virtual stage. */
typedef struct {
    int pp_rank, chunk;          /* pipeline rank that holds the stage, and which of its chunks it is */
    int first_layer, layers;     /* global number of its first layer (the next one if empty); count */
    int experts;                 /* layers with experts among them */
    int embedding, loss;         /* bool: the stage holds the embedding, the loss */
} StagePlace;

/* n = p * v virtual stages; stage [n] lists them in model order. With one pipeline rank v is 1. */
typedef struct { int p, v, n; StagePlace *stage; } Placement;

/* Places the stages of a resolved configuration; the result is the same on every rank. The layers must
 * be split: with pipeline_balance cost, placement_share_out does it. Not collective; allocates. */
void placement_open(Placement *pl, const Config *cfg);
void placement_close(Placement *pl);

const StagePlace *placement_at(const Placement *pl, int pp_rank, int chunk);

/* Whether two stages hold as many layers, as many of them with experts, and both or none the embedding and
 * the loss. */
int placement_same(const StagePlace *a, const StagePlace *b);

/* Prints a table with one line a stage: its rank, its chunk and what it holds. */
void placement_print(FILE *f, const Placement *pl);

/* Splits the layers for pipeline_balance cost: the largest cost of a rank, over all its chunks, becomes
 * as small as possible. Returns cfg with the layout string of the split; it lasts as cfg does.
 *
 *   cost  in  [num_layers + 2]  ms of the embedding, of each layer (not all 0) and of the head; finite,
 *                               >= 0, the same on every rank of the job (measured costs are rank 0's)
 *   how   in                    added to the line that `says` is told: "", or ", predicted for NAME"
 *   says  in                    stream; NULL: none
 *
 * Where all layers cost the same the split is exact: among equal ones the second largest cost decides, and so
 * on; then the one with fewer layers beside the embedding and the loss. Where they differ it is the best that
 * was found: giving a layer to another stage makes it no better. */
const Config *placement_share_out(const Config *cfg, const double *cost, const char *how, FILE *says);

/* Returns 1 for V placement: V schedules, and a file of lists that says so. */
int placement_turns(const Config *cfg);

/* Returns the pipeline rank of virtual stage s, of p pipeline ranks. */
int placement_rank(const Config *cfg, int p, int s);
#endif
