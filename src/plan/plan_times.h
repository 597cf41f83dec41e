/* plan_times -- a prediction as text. */
#ifndef PLAN_TIMES_H
#define PLAN_TIMES_H
#include "predict.h"

/* The step and what it loses; with `explain`, where the time of every stage and pipeline rank goes. */
void plan_times(FILE *f, const Prediction *p, const Config *cfg, int explain);
#endif
