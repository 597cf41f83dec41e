/* balance -- pipeline_balance cost: layers shared out by what they were measured to take. */
#ifndef BALANCE_H
#define BALANCE_H
#include "config.h"
#include "loader.h"

/* cfg itself, unless its layers are to be shared out by cost and have not been yet: then rank 0 times the
 * embedding, a layer and the head, forward and backward, and the result is cfg with the layout string of the
 * best split. The same on every rank. Collective. */
const Config *balance_choose(const Config *cfg);
/* The same by what this process measures, for a plan. Not collective. */
const Config *balance_here(const Config *cfg);

/* A microbatch of no corpus: any tokens take the same time. Allocates. */
Batch balance_tokens_open(const Config *c);
void balance_tokens_close(Batch *b);
#endif
