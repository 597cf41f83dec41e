/* samples -- steps of a meter, each beside the reference of log_reference */
#ifndef SAMPLES_H
#define SAMPLES_H
#include "drift.h"
#include "meter.h"

/* s of each step, and the reference beside it. calm, whole: as run_reference's. */
typedef struct { int n; double *took; ReferenceTime *calm, *whole; } Samples;

/* Runs steps and references for a turn of 0.4 s by rank 0's clock, at least one. Collective over the ranks of
 * the meter. */
void samples_turn(Samples *s, Meter *m);
/* The lower quartile of the reference, as the times of the operations are. */
Reference samples_quartile(const Samples *s);
/* Median step without the first, s, in units of the reference. */
double samples_typical(const Samples *s, Calibrated base);
void samples_close(Samples *s);
#endif
