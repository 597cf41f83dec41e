/* advise -- what changes of single keys would do to a predicted step */
#ifndef ADVISE_H
#define ADVISE_H
#include "config_table.h"
#include "machine.h"

typedef struct {
    char text[80];             /* "micro_batch_size=4": what to add to the command line */
    double step;               /* s of the step with it */
    int64_t memory;            /* bytes of the fullest rank with it */
} Advice;

/* The most changes that `advise` returns. */
#define ADVICES 3

/* Predicts a configuration (one whose model a checkpoint gives: none) with each of a list of changes that a
 * user would try next: the micro batch and the sizes of groups doubled or halved, more or fewer chunks, other
 * schedules, sharding strategies, recomputation, overlap. Returns the best ones that are legal, fit the
 * machine, and are faster.
 *
 *   best   out  [ADVICES]  in the order of their times
 *   path, nargs, args, world  in  as config_load takes them
 *   step   in              s of the step as it is
 *
 * Returns their number. Not collective. */
int advise(Advice best[ADVICES], const char *path, int nargs, char **args, int world, const Machine *m,
           double step);
/* Checks a configuration with `text` added, one change or two with a blank between. Returns whether it is
 * legal. *k lives until the caller's keep_mark is released. */
int advise_legal(Check *k, const char *path, int nargs, char **args, int world, const char *text);
/* Predicts a configuration with `text` added, as advise_legal takes it; fills *c. Returns 0
 * when that is not legal, or does not fit. */
int advise_try(Advice *c, const char *path, int nargs, char **args, int world, const Machine *m,
               const char *text);
#endif
