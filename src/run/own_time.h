/* own_time -- what the time of each rank goes to in training steps, and what the groups of ranks exchange.
 *
 * Own time is what the rank itself takes: waits for messages, the moving of messages and, where ranks share
 * cores, the waiting for a core are taken off each instruction. So a slow rank has a longer own time and the
 * ranks that wait for it have not. The part of it in which the main thread was on no core is kept beside it:
 * a thread that is stopped, throttled or waits for a disk is idle there, and one that computes hardly ever.
 *
 * The host only launches what a GPU does later. There an instruction's own time is the device's, from its
 * first op to its last, less the time in which ops waited for messages or, in a forward, for the loader
 * (DeviceWaits); where the host is too slow to launch them it is longer. The device's time tells nothing of
 * moving messages, of cores and of being idle.
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
/* What the groups of a rank have done so far, those of one name together. */
typedef struct { GroupSum of[GROUPS]; } GroupTotals;

/* What the ops of a late device have waited for in a step, ms by its clock (Device.stall). */
typedef struct { double message[OWN_PHASES], loader; } DeviceWaits;

typedef struct {
    int on;                        /* bool: own times are measured */
    int timed;                     /* bool: the host sees when operations end; a GPU does them else */
    Pace last;                     /* where the next stretch begins */
    double rest, rest_idle;        /* s of the stretches so far that belong to the next instruction */
    OwnSum own;                    /* since the last exchange */
    GroupTotals before;            /* of the last exchange, and what was left out since */
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
/* The phase that an instruction belongs to. */
OwnPhase own_phase(InstrKind op);
/* An instruction ends that ran from start to end, of which the loader took `loading` s. */
void own_instr(OwnTime *o, const Instr *i, double start, double end, double loading);
/* The same for all instructions of a step on a late device.
 *   ran    in  [OWN_PHASES]  ms by its clock that those of each phase took, waits included
 *   waits  in                what they waited for */
void own_device(OwnTime *o, const double *ran, const DeviceWaits *waits);

/* Writes what this rank's groups have done until now. */
void own_groups(Grid *g, GroupTotals *now);
/* Adds to t what the groups have done between two calls of own_groups. */
void own_add_groups(GroupTotals *t, const GroupTotals *from, const GroupTotals *to);
/* Reduces a step's metrics over all ranks, with what the groups did from the last exchange to `now`, the end
 * of the step's launch, without what was left out: of a late device the next step has been launched since.
 * With `all_own` (global) also the own times, which begin anew. Returns [world] the own times of all ranks;
 * NULL without all_own. Collective over g->all. */
OwnSum *own_exchange(OwnTime *o, const GroupTotals *now, Metrics *m, Grid *g, int all_own);
#endif
