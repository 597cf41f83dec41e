/* clock -- a device that computes nothing: what a pipeline does where every computation takes the time it is
 * said to.
 *
 * The executor runs a rank's real list, messages are real messages of the grid's pipeline group. The device
 * is as asynchronous as a GPU: it begins F, B, D or W when it is free and the input is there, which is a hop
 * after the device that made the input was done; then it is busy for the cost. The host follows it: it sleeps
 * until the end, then sends and asks for the next. What it does late (a sleep that overran, a message that
 * came late, a core that was not free) delays the device only where a computation would have ended before it
 * was asked for: no later than that a launch must come on a GPU. So the time of a step is the schedule's on a
 * quiet machine and on a busy one, unless lists or transport hold a rank up by more than a computation. Hops
 * do not occupy the device. Ranks of one host share now(); several hosts are refused.
 *
 * GRIDIRON_CLOCK=virtual: nobody sleeps and nothing is late; times are counted, by the messages that ranks
 * exchange. A step then takes exactly what its lists and messages make it take, on any machine.
 *
 * Ranks need hardly any processor: 16 run on two cores. */
#ifndef CLOCK_H
#define CLOCK_H
#include "grid.h"
#include "pipeline.h"

typedef struct {
    Grid *grid;
    const PipeShape *shape;            /* with costs, in ms */
    Schedule list;                     /* of this rank */
    Stage stage;
    double scale;                      /* s of a cost of 1 */
    int counts;                        /* bool: virtual time */
    double free, first; /* when the device is free, when it began its first computation; on now() */
    /* [v*m] of chunk * m + mb, of activations and of gradients: */
    double *in[2], *out[2];            /* when what was received, and what is to be sent, was ready */
    Token *arriving[2], *sent[2];
    uint8_t *due[2];                   /* a message brings it */
} Clock;

/* One step as it was, in ms. span: from the first start to the last end of all ranks together. cost: the
 * longest of last end - first start over ranks. The same on every rank. */
typedef struct { double span, cost; } ClockStep;

/* set: the lists of the pipeline that the pp axis of grid is, with costs; both must stay. Runs the list once
 * without costs, so that every connection is there. Dies with EXIT_CONFIG when the ranks are on several
 * hosts. Collective over grid. */
void clock_open(Clock *c, Grid *grid, const ScheduleSet *set);
void clock_close(Clock *c);

/* Runs the list once, beginning at the same moment on every rank. Collective. */
ClockStep clock_step(Clock *c);
#endif
