/* shape -- from a configuration to the pipeline that it asks for: its schedule, its costs, and how a rank's list is
 * expanded. */
#ifndef SHAPE_H
#define SHAPE_H
#include "placement.h"
#include "schedule.h"

/* The pipeline of a step of m microbatches. A pipeline of one rank has one chunk: a schedule that needs two is 1f1b
 * there. Costs are the clock_* times, ms; without them F, D and W of a rank take 1 each, shared evenly by its
 * chunks. Allocates. */
void shape_open(PipeShape *s, const Config *cfg, int m);
void shape_close(PipeShape *s);

/* How the list of pipeline rank `rank` is expanded: ZeRO stage, overlap, tied embedding. A unit is the embedding, a
 * layer or the loss. units: room for pl->v, as long as the Expand. */
Expand shape_expand(const Config *cfg, const Placement *pl, int rank, int *units);

/* Microbatches of a step of `batch` samples on one data-parallel rank. */
int shape_microbatches(const Config *cfg, int64_t batch);
#endif
