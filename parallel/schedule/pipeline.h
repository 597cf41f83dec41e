/* pipeline -- the executor of a rank's list: it calls one function for each instruction, in order. GPipe,
 * 1F1B, zero bubble and plain training differ in the list. The model fills the Stage. */
#ifndef PIPELINE_H
#define PIPELINE_H
#include "schedule.h"

typedef struct {
    void *ctx;                     /* given to all functions */
    void (*act[INSTR_KINDS])(void *ctx, const Instr *i);   /* does the instruction */
    /* runs F and the B beside it by turns; NULL: pairs run one after the other
     *   took  out  [2]  s that F, B ran */
    void (*pair)(void *ctx, const Instr *f, const Instr *b, double took[2]);
    /* before each instruction: notes it for the error line of a lost rank; NULL: nobody listens */
    void (*note)(void *ctx, const Instr *i);
    /* before each instruction: returns when the message that it needs has arrived, so that mark does not
     * count the wait; NULL: no messages */
    void (*arrive)(void *ctx, const Instr *i);
    /* after each instruction: returns when the device has done it, so that mark gets the time that it took;
     * NULL: the device is not late, or it is not to be kept from running ahead */
    void (*settle)(void *ctx, const Instr *i);
    /* after each instruction: start and end in s on the clock of now(); NULL: nobody listens */
    void (*mark)(void *ctx, const Instr *i, double start, double end);
    /* between instructions: moves messages along */
    void (*progress)(void);
} Stage;

/* Runs one step. Collective over the pipeline and all groups that the functions of `stage` use. */
void pipeline_run(const Schedule *s, const Stage *stage);
#endif
