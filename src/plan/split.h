/* split -- pipeline_balance cost for a machine: layers split over the stages by their predicted times. */
#ifndef SPLIT_H
#define SPLIT_H
#include "predict.h"

/* Where cfg asks for a split by cost that is not made yet: returns cfg with the layout string of the best
 * split by the times that the machine's prediction gives the embedding, each layer and the head, forward and
 * backward. Otherwise returns cfg itself. It lasts as cfg does. Not collective.
 *   says  in  stream that is told the times and the split; NULL: none is */
const Config *split_predicted(const Config *cfg, const Machine *m, FILE *says);
#endif
