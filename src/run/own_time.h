/* own_time -- what the time of each rank goes to in training steps, and what the groups of ranks exchange.
 *
 * Own time is what the rank itself takes: waits for messages, the moving of messages and, where ranks share
 * cores, the waiting for a core are taken off each instruction. So a slow rank has a longer own time and the
 * ranks that wait for it have not. The part of it in which the main thread was on no core is kept beside it:
 * a thread that is stopped, throttled or waits for a disk is idle there, and one that computes hardly ever.
 * On a GPU instructions are only launched by the host: no own time is measured there.
 *
 * The sums travel with the metrics of a step, in the same collective (metrics_reduce). */
#ifndef OWN_TIME_H
#define OWN_TIME_H
#include "metrics.h"
#include "pace.h"
#include "trace.h"

/* X(id, name)
 *   DATA      waiting for the loader
 *   COMM      moving messages, and the instructions that send, reduce and gather
 *   SAVE      the part of a save that training waits for
 *   CORE      waiting for a core in any phase, where ranks times threads fit the cores; else not counted */
#define OWN_TIMES(X)                                                                                         \
    X(DATA, "data") X(FORWARD, "forward") X(BACKWARD, "backward") X(COMM, "communication")                   \
    X(OPTIMIZER, "optimizer") X(SAVE, "save") X(CORE, "waiting for a core")
typedef enum {
#define X(id, name) OWN_##id,
    OWN_TIMES(X)
#undef X
    OWN_PHASES
} OwnPhase;
extern const char *const own_phase_name[OWN_PHASES];

/* Of one rank, s. */
typedef struct { double took[OWN_PHASES], idle[OWN_PHASES]; } OwnSum;

/* Of one group on one rank. */
typedef struct { double waited, busy, bytes, members; } GroupSum;

typedef struct {
    int on;                        /* bool: own times are measured */
    int timed;                     /* bool: the host sees when operations end; a GPU does them else */
    Pace last;                     /* where the next stretch begins */
    double rest, rest_idle;        /* s of the stretches so far that belong to the next instruction */
    OwnSum own;                    /* since the last exchange */
    GroupSum before[GROUPS];       /* totals at the last exchange */
    double *sum;                   /* [METRIC_COUNT + OWN_ROOM(world)] of all ranks, for metrics_reduce */
    GroupTimes group[GROUPS];      /* of the step collected last */
    int groups;
} OwnTime;
#define OWN_GROUP_NUMBERS (GROUPS * (int)(sizeof(GroupSum) / sizeof(double)))
#define OWN_ROOM(world) (OWN_GROUP_NUMBERS + (world) * (int)(sizeof(OwnSum) / sizeof(double)))

void own_open(OwnTime *o, int world, int on, int timed);
void own_close(OwnTime *o);

/* A stretch begins now: what came before it belongs to no phase. */
void own_begin(OwnTime *o);
/* The stretch ends now and belongs to `phase`; the next one begins. */
void own_end(OwnTime *o, OwnPhase phase);
/* An instruction ends that ran from start to end, of which the loader took `loading` s. */
void own_instr(OwnTime *o, const Instr *i, double start, double end, double loading);

/* Reduces a step's metrics over all ranks, with what the groups did since the last exchange; with `all_own`
 * (global) also the own times, which begin anew. Returns [world] the own times of all ranks; NULL without
 * all_own. Collective over g->all. */
OwnSum *own_exchange(OwnTime *o, Metrics *m, Grid *g, int all_own);
#endif
