/* pipeline -- the one executor. It does what this rank's list says, once, in order; GPipe, 1F1B and plain training differ
 * in the list. What the instructions mean is the Stage's, which the model fills. */
#ifndef PIPELINE_H
#define PIPELINE_H
#include "schedule.h"

typedef struct {
    void *model;
    void (*forward)(void *model, int chunk, int mb);
    void (*backward)(void *model, int chunk, int mb);
    void (*reduce)(void *model, int part);
    void (*step)(void *model);
    /* after each instruction: start and end on the clock of now(); NULL when nobody listens */
    void (*mark)(void *model, const Instr *i, double start, double end);
} Stage;

typedef struct {
    const Schedule *schedule;
    const Stage *stage;
    const Instr *pc;           /* where this rank is, for messages; NULL between steps */
} Pipeline;

/* One step. Collective over the pipeline and every group that the stage's functions use. */
void pipeline_run(Pipeline *p);
#endif
