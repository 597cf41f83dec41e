/* account -- the time of a recorded step on this rank, by cause (losses.h), for the timeline.
 *
 * While a step of trace_steps runs on a CPU, every op of the device is timed. Waits are those that the
 * groups count. What is left of the rank's time is LOSS_OTHER: the host's own work between ops. An op's
 * time is made of
 *   launch       what the step's shortest op took, which every op takes whatever it does
 *   peak         of products and attention: their FLOPs at the speed of the step's fastest one
 *   below_peak, cast, memory   the rest, of products and attention, of casts, of all other ops
 * Waiting for a core is known for all own work together, and taken off its parts in proportion. On a GPU
 * the host only launches ops: nothing is kept. */
#ifndef ACCOUNT_H
#define ACCOUNT_H
#include "cost.h"
#include "losses.h"
#include <pthread.h>

/* Sums since the process began, s. */
typedef struct { double at, loader, starved, waits[LOSSES]; } AccountMark;

typedef struct {
    int on;                        /* bool: a step is being recorded */
    int untimed;                   /* > 0: ops are not timed: one runs already, or the step is over */
    pthread_t thread;              /* whose ops are timed */
    AccountMark begin, phase;      /* when the step, the phase began */
    double s[LOSSES];              /* s of the phases so far */
    double product, memory, cast;  /* s in products and attention; in other ops; in casts */
    double flops, fastest;         /* of products and attention; most FLOP/s of one */
    double shortest;               /* s of the shortest op */
    int64_t products, others, casts;       /* ops */
    Device plain, sizes;           /* the device as it was; one that reports what an op does to sink */
    CostSink sink;
} Account;

struct Run;
/* A step begins. Nothing is kept unless the timeline records it. */
void account_begin(struct Run *r);
/* Something that training waits for begins and ends between two steps; loss: LOSS_SAVE or LOSS_EVALUATION. */
void account_phase(struct Run *r);
void account_phase_end(struct Run *r, LossKind loss);
/* The step and what follows it are over: puts the losses into the timeline. */
void account_end(struct Run *r);
/* Forgets a step that is not whole. */
void account_drop(struct Run *r);
#endif
