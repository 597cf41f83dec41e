/* hints -- what is likely to be a mistake in a layout, a line each */
#ifndef HINTS_H
#define HINTS_H
#include "machine.h"

enum { HINTS = 5 };
typedef struct { char text[320]; } Hint;

typedef struct {
    const char *path;          /* path, nargs, args, world: as config_load takes them */
    int nargs, world;
    char **args;
    const Config *c;           /* the same, loaded */
    const Machine *m;          /* NULL: only what needs no machine is looked at */
    int microbatches;          /* of a replica in a step */
    double bubble, step;       /* bubble rate; s of a step, with a machine */
} HintAsk;

/* Finds hints. Each of them is true of this configuration, and says what to change:
 *   a tensor group has ranks on several hosts
 *   a pipeline of p ranks has fewer than 4p microbatches, and more than 10 % bubble; zb-v is named where it
 *   is legal (where a checkpoint gives the model: nowhere)
 *   twice the micro batch fits, leaves 4p microbatches, and makes a step 1 % faster
 *   gradients are sharded and reduced after each of several microbatches, where a stage that reduces them
 *   once a step fits, and makes the step 1 % faster
 *   products of a rank of a GPU are no multiple of 64 wide
 * Returns their number. Not collective. */
int hints(Hint out[HINTS], const HintAsk *ask);
#endif
