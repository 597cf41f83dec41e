/* pipeline -- the one executor. It does what this rank's list says, once, in order; GPipe, 1F1B, zero bubble
 * and plain training differ in the list. What the instructions mean is the Stage's, which the model fills. */
#ifndef PIPELINE_H
#define PIPELINE_H
#include "schedule.h"

typedef struct {
    void *ctx;
    void (*act[INSTR_KINDS])(void *ctx, const Instr *i);
    /* before each instruction, for the message of a rank that is lost; NULL when nobody listens */
    void (*note)(void *ctx, const Instr *i);
    /* before each instruction: returns when what another rank sends for it is here, so that the time until
     * then is not the instruction's; NULL where nothing arrives */
    void (*arrive)(void *ctx, const Instr *i);
    /* after each instruction: start and end on the clock of now(); NULL when nobody listens */
    void (*mark)(void *ctx, const Instr *i, double start, double end);
    /* between instructions: moves messages along */
    void (*progress)(void);
} Stage;

/* One step. Collective over the pipeline and every group that the stage's functions use. */
void pipeline_run(const Schedule *s, const Stage *stage);
#endif
