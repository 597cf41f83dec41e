/* balance -- pipeline_balance cost: layers split over the stages by their measured times. */
#ifndef BALANCE_H
#define BALANCE_H
#include "config.h"
#include "loader.h"

/* Where cfg asks for a split by cost that is not made yet: rank 0 times the embedding, a layer of
 * each kind (dense or with experts, in FP8 or not) and the head, forward and backward, by itself, and all
 * ranks get cfg with the layout string of the best split. Otherwise returns cfg itself. Collective. */
const Config *balance_choose(const Config *cfg);
/* As balance_choose, with the times of this process, for a plan. Not collective. */
const Config *balance_here(const Config *cfg);

/* A microbatch of made-up tokens for a measurement: the time does not depend on the tokens.
 * Allocates. */
Batch balance_tokens_open(const Config *c);
void balance_tokens_close(Batch *b);
#endif
