/* plan_times -- a prediction as text. */
#ifndef PLAN_TIMES_H
#define PLAN_TIMES_H
#include "losses.h"
#include "predict.h"

/* Where the step goes: the losses of the busiest pipeline rank. LOSS_OTHER: turns on shared cores, what the
 * update waits for; below 0: pairs overlap. */
Losses plan_losses(const Prediction *p);

/* Prints the time of the step. explain: bool, also the times of each stage, rank and operation. */
void plan_times(FILE *f, const Prediction *p, const Config *cfg, int explain);
#endif
