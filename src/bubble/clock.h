/* clock -- a device that computes nothing: it shows how long a pipeline takes when each computation
 * takes a given time.
 *
 * The executor runs a rank's real list, and messages are real messages of the grid's pipeline group. The
 * device is as asynchronous as a GPU. It begins F, B, D or W when it is free and the input has arrived,
 * which is one hop after the device that made the input was done; then it is busy for the cost. Hops do
 * not occupy the device. The host sleeps until the computation ends, then sends the output and asks for
 * the next one. A late host (a sleep that overran, a late message, a core that was not free) delays the
 * device only where a computation would have ended before it was asked for, just as a GPU needs its
 * launch no later. So a step takes the schedule's time on a quiet machine and on a busy one, unless
 * lists or transport hold a rank up by more than a computation. Ranks of one host share now(); several
 * hosts are refused.
 *
 * GRIDIRON_CLOCK=virtual: no rank sleeps and nothing is late. Times are computed from those that the
 * messages carry. A step takes exactly the time of its lists and messages, on any machine.
 *
 * Ranks need hardly any processor time: 16 run on two cores. */
#ifndef CLOCK_H
#define CLOCK_H
#include "grid.h"
#include "pipeline.h"

typedef struct {
    Grid *grid;
    const PipeShape *shape;            /* with costs, ms */
    Schedule list;                     /* of this rank */
    Stage stage;
    double scale;                      /* s of a cost of 1; 0: the first run, without costs */
    int counts;                        /* bool: virtual time */
    double free;                       /* s on now(): when the device is free */
    double first;                      /* s on now(): when the device began its first computation */
    /* [0] of activations, [1] of gradients; each [v*m] by chunk * m + mb */
    double *in[2], *out[2];            /* s on now(): when the input, the output was ready */
    Token *arriving[2], *sent[2];      /* of the receive, of the send */
    uint8_t *due[2];                   /* bool: a posted receive brings the input */
} Clock;

/* A measured step, ms, the same on every rank. span: from the first start to the last end of all ranks.
 * cost: the longest of a rank's last end - first start. */
typedef struct { double span, cost; } ClockStep;

/* Runs the list once without costs, so that every connection exists. Dies with EXIT_CONFIG when the
 * ranks are on several hosts. Collective over grid.
 *   grid  in  its pp axis is the pipeline; must outlive the clock
 *   set   in  lists of the pipeline, with costs; must outlive the clock */
void clock_open(Clock *c, Grid *grid, const ScheduleSet *set);
void clock_close(Clock *c);

/* Runs the list once; all ranks begin at the same moment. Collective over grid. */
ClockStep clock_step(Clock *c);
#endif
