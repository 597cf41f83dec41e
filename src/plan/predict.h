/* predict -- how long a step takes on a machine that is not here. The real layers, parameter table and
 * instruction lists are walked over a device that does no arithmetic and groups that move nothing: each
 * operation adds its time, by its shapes and the machine description, to a clock of the rank; each message
 * goes on beside it, until something waits for it. What F, B, D and W of every virtual stage take then goes
 * into the simulator, which finds when each instruction runs; a second walk of every pipeline rank, held back
 * to these times, finds what reductions and gathers are left over at the end.
 *
 * Messages: a ring of n ranks moves 2 (n-1)/n of an all-reduce's bytes past each of them, (n-1)/n of a
 * reduce-scatter's or an all-gather's; between nodes the k ranks of a group on a node carry it side by side;
 * the hierarchical way (inside each node, then between nodes, a k-th each) is taken where it is shorter
 * (Thakur et al. 2005, IJHPCA 19(1), sec 3; NCCL's names). */
#ifndef PREDICT_H
#define PREDICT_H
#include "cost.h"
#include "machine.h"
#include "run.h"

/* Where the time of an instruction goes, seconds. */
typedef struct { double work, tp; } Spent;     /* all of it; of it, waiting for the tensor group */

typedef struct {
    Spent forward, backward_x, backward_w; /* of one microbatch; without halves, backward_x is all of it */
} StageTime;

/* Seconds of one pipeline rank's step; they add up to total, the step. */
typedef struct {
    double forward,
        backward; /* computing: instructions F; B, D, W, less what they wait for the tensor group */
    double tp;                 /* waiting for the tensor group, inside them */
    double bubble;             /* waiting for other pipeline ranks, and for messages of theirs */
    double dp; /* waiting for the data group: reductions and gathers that computing has not hidden; and for
                * updates of what is offloaded */
    double optimizer;          /* norm and update, clearing of gradients */
    double total;
    double work[OPKINDS];        /* seconds of each operation in the whole step */
    double sent[AXES];         /* seconds that messages of each axis were under way */
} RankTime;

typedef struct {
    double step;               /* seconds */
    double bubble;             /* rate and step_rate of the simulation, with these times */
    double step_bubble;
    double hop;                /* seconds of a message between pipeline ranks */
    int p, n;                  /* pipeline ranks; virtual stages */
    StageTime *stage;          /* [n] */
    RankTime *rank;            /* [p] */
    Memory *memory;            /* [p] bytes of a rank of each pipeline rank */
    int fp8_recast;            /* as Run's, for the machine's memory */
    Traffic most[AXES];        /* of the rank that sends most on the axis */
    int m;
    ScheduleKind kind;
} Prediction;

/* Dies with EXIT_CONFIG where the description leaves out what this configuration's step takes time for. */
void predict_check(const Config *cfg, const Machine *m);
/* Predicts the last segment's step. Not collective; allocates. */
void predict(Prediction *out, const Config *cfg, const Machine *m);
/* The same where the lists are there already. */
void predict_over(Prediction *out, const Config *cfg, const Machine *m, const StepLists *lists);
void prediction_close(Prediction *p);

/* ---- the parts, for predict.c ---- */

/* Ranks of one host that are more than its cores take turns: of `crowd` ranks for each pipeline rank, all
 * that compute at a time share `cores`. Moves and stretches the spans of a simulation, whose costs are those
 * of a core of one's own; sets its makespan and rates, where a rank's work is what its spans last. */
void take_turns(const ScheduleSet *set, Simulation *sim, double crowd, double cores);

/* The last look-ups of curve_at, by size: a walk asks for the same few hundred sizes a hundred thousand
 * times. */
enum { LOOKUPS = 256 };
typedef struct { double size, share; } Lookup;

typedef struct {
    const Machine *m;
    CostSink sink;             /* of the device whose ops add to this clock */
    Lookup *matmul, *memory;   /* [LOOKUPS] of m's curves, zeros at first; NULL: every look-up is made */
    double share;              /* of the device that this rank has */
    int together;              /* others have their share as well */
    int crowd;                 /* there are more of them than cores: who waits sleeps */
    double met;                /* when its tensor group last met, later by what it has waited since */
    double now;                /* seconds */
    double work[OPKINDS];        /* so far */
    double waited[AXES];       /* for groups of each axis */
    double comm[AXES];
    double message;            /* seconds of the last message that was sent */
    double left, fetched;      /* when the last copy to the host, and from it, will be through, */
    double beside, meanwhile;  /* and the last operation aside; the time of the others */
    double scatter;            /* messages are cut into this many parts, sent side by side */
} Tally;

/* A device whose operations add to the clock. */
void predict_device(Device *d, Tally *k, Dtype real);
/* Its copies to and from its host's memory, and its operations aside: they go on beside the clock, until
 * something waits for them. Seconds of a copy. */
void predict_copies(Device *d);
double predict_bus(const Tally *k, double bytes);
/* A GridOpener of groups that add to the clock. */
void predict_group(void *tally, const Grid *g, Comm *c, const char *name, const int *member, int n);
#endif
