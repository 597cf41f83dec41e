/* plan_times -- a prediction as text. */
#ifndef PLAN_TIMES_H
#define PLAN_TIMES_H
#include "predict.h"

/* Where the step of the busiest pipeline rank goes, s; all of them add up to the step. */
typedef enum {
    LOSS_PEAK,                 /* products and attention, if they ran at the machine's peak: no loss */
    LOSS_PRODUCTS,             /* what products and attention take beyond that */
    LOSS_MEMORY,               /* memory traffic of other operations, the optimizer's too */
    LOSS_LAUNCH, LOSS_TENSOR, LOSS_CONTEXT, LOSS_EXPERT, LOSS_PIPELINE, LOSS_DATA, LOSS_SLOWEST,
    LOSS_OTHER,                /* turns on shared cores, what the update waits for; below 0: pairs overlap */
    LOSSES
} LossKind;
extern const char *const loss_name[LOSSES];    /* as --json has them */
void plan_losses(const Prediction *p, double loss[LOSSES]);

/* Prints the time of the step. explain: bool, also the times of each stage, rank and operation. */
void plan_times(FILE *f, const Prediction *p, const Config *cfg, int explain);
#endif
