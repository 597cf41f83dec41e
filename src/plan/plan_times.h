/* plan_times -- a prediction as text. */
#ifndef PLAN_TIMES_H
#define PLAN_TIMES_H
#include "predict.h"

/* Prints the time of the step. explain: bool, also the times of each stage, rank and operation. */
void plan_times(FILE *f, const Prediction *p, const Config *cfg, int explain);
#endif
