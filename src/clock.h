/* clock -- a device that computes nothing: what a pipeline does where every computation takes the time that it is said to.
 *
 * The executor runs a rank's real list; messages are real messages of the grid's pipeline group. F, B, D and W occupy
 * the device for their cost. The device begins one when it is free and the input is there, at the latest of: the end of
 * the one before, the end of what the message carries plus its hop, and, where this rank had to wait, the moment the
 * message came. So a host that wakes late from its sleep delays nobody as long as the next computation is handed to
 * the device before the one after it should have begun, as launches run ahead on a GPU; a message that comes late does.
 * Hops do not occupy the device. Ranks of one host share now(); ranks of several hosts are refused.
 *
 * p ranks need about p processes' memory and hardly any processor: 16 run on two cores. */
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
    double free, first;                /* when the device is free, when it began its first computation; on now() */
    /* [v*m] of chunk * m + mb, of activations and of gradients: */
    double *in[2], *out[2];            /* when what was received, and what is to be sent, was ready */
    Token *arriving[2], *sent[2];
    uint8_t *due[2];                   /* a message brings it */
} Clock;

/* One step as it was, in ms. span: from the first start to the last end of all ranks together. cost: the longest of last end -
 * first start over ranks. The same on every rank. */
typedef struct { double span, cost; } ClockStep;

/* set: the lists of the pipeline that the pp axis of grid is, with costs; both must stay. Runs the list once without costs, so
 * that every connection is there. Dies with EXIT_CONFIG when the ranks are on several hosts. Collective over grid. */
void clock_open(Clock *c, Grid *grid, const ScheduleSet *set);
void clock_close(Clock *c);

/* Runs the list once, beginning at the same moment on every rank. Collective. */
ClockStep clock_step(Clock *c);
#endif
