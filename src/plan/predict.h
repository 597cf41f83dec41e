/* predict -- the time of a step on a machine that is not here, from its description.
 *
 * A walk runs the real layers, parameter table and instruction lists of a rank on a device that does no
 * arithmetic and on groups that move nothing. Each operation adds its time, from its shapes and the
 * machine description, to the clock of the rank. Each message runs beside the clock until something
 * waits for it. A first walk of every pipeline rank gives the times of F, B, D and W of each virtual
 * stage. The simulator finds from them when each instruction runs. A second walk of every pipeline rank,
 * held back to these times, finds how much of the reductions and gathers is not hidden.
 *
 * Messages: a ring of n ranks moves 2 (n-1)/n of an all-reduce's bytes past each rank, and (n-1)/n of
 * the bytes of a reduce-scatter or an all-gather. Between nodes the k ranks that a group has on a node
 * send side by side. The hierarchical algorithm (inside each node, then between nodes with 1/k of the
 * bytes for each rank) is taken where it is faster (Thakur et al. 2005, IJHPCA 19(1), sec 3; NCCL's
 * names). */
#ifndef PREDICT_H
#define PREDICT_H
#include "cost.h"
#include "machine.h"
#include "run.h"

/* Parts of the time that operations take: products and attention at the machine's peak; what they take
 * beyond that; memory traffic of all other operations; of casts; launches. They follow the operations in
 * arrays of WORKS times, and together are the sum of all operations. */
enum { WORK_PEAK = OPKINDS, WORK_BELOW_PEAK, WORK_MEMORY, WORK_CAST, WORK_LAUNCH, WORKS };

/* The time of an instruction, s. work: all of it. waits: the part spent waiting for the tensor group, the
 * context group and the expert group. */
typedef struct { double work, waits; } Spent;

typedef struct {
    Spent forward;             /* of one microbatch, as all three */
    Spent backward_x;          /* D; the whole backward B where it is not split */
    Spent backward_w;          /* W */
} StageTime;

/* Times of one pipeline rank's step, s; those from forward to slowest add up to total. */
typedef struct {
    double forward, backward;  /* computing F; B, D, W: without waiting for these groups */
    double tp, cp, ep;         /* waiting for the tensor, context, expert group, inside F, B, D, W */
    double bubble;             /* waiting for other pipeline ranks and for their messages */
    double dp;                 /* waiting for reductions and gathers of the data group that are not
                                * hidden, and for updates of offloaded parameters */
    double optimizer;          /* gradient norm, update, clearing of gradients */
    double host;               /* waiting for the host, which launches operations one after the other */
    double slowest;            /* waiting for the slowest rank of the job (straggle) */
    double total;              /* the step */
    double work[WORKS];        /* each operation in the whole step, and the parts of their sum */
    double sent[AXES];         /* messages of each axis under way, hidden or not */
} RankTime;

typedef struct {
    double step;               /* s */
    double bubble;             /* rate of the simulation with these times */
    double step_bubble;        /* its step_rate */
    double hop;                /* s of a message between pipeline ranks */
    int p, n;                  /* pipeline ranks; virtual stages */
    StageTime *stage;          /* [n] */
    RankTime *rank;            /* [p] */
    Memory *memory;            /* [p] bytes of one rank of each pipeline rank */
    int fp8_recast;            /* as in RunPlan, for the machine's memory */
    int64_t logits_rows;       /* likewise */
    Traffic most[AXES];        /* traffic of the rank that sends most on the axis */
    int m;                     /* microbatches */
    ScheduleKind kind;
    int walks;                 /* walks that ran their layers; the others played tapes */
} Prediction;

/* Dies with EXIT_CONFIG when the description lacks a speed that this configuration needs. */
void predict_check(const Config *cfg, const Machine *m);
/* Predicts a step of the last batch-size segment. Not collective. Allocates. */
void predict(Prediction *out, const Config *cfg, const Machine *m);
/* The same with lists that exist already. */
void predict_over(Prediction *out, const Config *cfg, const Machine *m, const StepLists *lists);
/* The same, where every walk runs its layers. predict_over plays for a pipeline rank what the first one of
 * its kind has run (tape.h): same result, fewer walks through the layers. For tests. */
void predict_walked(Prediction *out, const Config *cfg, const Machine *m, const StepLists *lists);
void prediction_close(Prediction *p);

/* ---- the parts, for predict.c ---- */

/* Adapts a simulation to a host that has more ranks than cores: all ranks that compute at a time share
 * them.
 *   sim    in/out  simulated with spans and with the costs of a rank on a core of its own. Spans are
 *                  moved and lengthened, makespan and rates set; a rank's work is the sum of its spans
 *   crowd  in      ranks of the host for each pipeline rank
 *   cores  in      cores of the host */
void predict_turns(const ScheduleSet *set, Simulation *sim, double crowd, double cores);

/* A cached result of curve_at: a walk asks for the same few hundred sizes a hundred thousand times. */
enum { LOOKUPS = 256 };
typedef struct { double size, share; } Lookup;         /* share 0: empty */

/* What an operation adds to a Tally, s. rest: what neither launch nor arithmetic at the peak takes, which is
 * of `part`: WORK_BELOW_PEAK, WORK_CAST or WORK_MEMORY. */
typedef struct { double t, launch, best, rest; int part; } OpTime;

/* The clock of a rank, and its time by kind; all times in s. */
typedef struct {
    const Machine *m;
    CostSink sink;             /* of the device whose ops add to this clock */
    Lookup *matmul, *memory;   /* [LOOKUPS] caches of m's curves, zeros at first; NULL: no cache */
    double share;              /* share of the device that this rank has, 0 to 1 */
    int together;              /* bool: other ranks use the device too */
    int crowd;                 /* bool: more ranks than cores on the host; a rank that waits sleeps */
    double met;                /* when the tensor or context group last met, plus what this rank has waited
                                * since */
    double now;                /* the clock */
    double host;               /* when the host will have launched the last operation */
    double hosted;             /* waiting for the host so far */
    double work[WORKS];        /* of each operation so far, and the parts of their sum */
    double waited[AXES];       /* waiting for groups of each axis so far */
    double comm[AXES];         /* messages of each axis under way so far, hidden or not */
    double message;            /* time of the message sent last */
    double left, fetched;      /* when the last offload, the last prefetch will have ended */
    double beside;             /* when the last operation on the side stream will have ended */
    double meanwhile;          /* between side_begin and side_end: the clock of the main stream */
    double scatter;            /* parts of a message that are sent side by side; 1: it is whole */
    struct Recorder *recorder; /* tape.h: what records the operations and messages; NULL: nothing does */
} Tally;

/* Adds an operation. */
void predict_op(Tally *k, OpKind op, const OpTime *t);
/* tape.c: what the device and the groups tell the recorder, which may be NULL: an operation; a message and
 * its token, which the function replaces; a wait for a token, whose first one it returns. recorder_records:
 * whether an instruction is recorded now. */
void recorder_op(struct Recorder *r, OpKind op, const OpTime *t);
Token recorder_message(struct Recorder *r, const Comm *c, const Operation *o, Token t);
Token recorder_wait(struct Recorder *r, const Comm *c, Token t);
int recorder_records(const struct Recorder *r);

/* Lets the host go on by `launches` s of launching; what is launched last does not begin before. */
void predict_launch(Tally *k, double launches);
/* Opens a device whose operations add their times to k. */
void predict_device(Device *d, Tally *k, Dtype real);
/* Gives the device offloads, prefetches and a side stream; they run beside the clock until something
 * waits for them. */
void predict_copies(Device *d);
/* Seconds of an offload or a prefetch. */
double predict_bus(const Tally *k, double bytes);
/* A ticket or token is the bit pattern of the end time, s, which is never 0. */
int64_t ticket_of(double end);
double end_of(int64_t ticket);
/* A GridOpener of groups whose operations add their times to a Tally. */
void predict_group(void *tally, const Grid *g, Comm *c, const char *name, const int *member, int n);
#endif
