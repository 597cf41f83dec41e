/* schedule -- what the ranks of a pipeline do in one step, as lists of instructions.
 *
 * A generator writes compute only: F, B (or its halves D and W), by chunk and microbatch, in the order a rank
 * wants. Lowering plays these lists forward in time; when an instruction that feeds another rank finishes,
 * its send is appended here and its receive there in the same breath. So all messages stand in one total
 * order and every rank's list is a part of it. Take the earliest message that is not done: all before it is
 * done in both lists, so it is at the head of both, so it proceeds. No list can deadlock, whatever the
 * generator wrote and whatever the costs were. Messages of one moment form a group (`join`).
 *
 * Expanding makes of a rank's list what its executor runs: chunks cut into units (embedding, a layer, head)
 * where something happens between them, parameters gathered and released, gradients reduced, the optimizer's
 * step, and a place in memory for each microbatch. With one rank there are no messages, so the list is the
 * plain training loop: F0 B0 F1 B1 ... R S.
 *
 * Letters: p ranks of the pipeline, v chunks a rank, m microbatches a step; p*v virtual stages in model
 * order. Every chunk's microbatches run in order, forward, backward and weights. Nothing here is collective:
 * every rank makes all lists by itself, and they are equal because the shape is (compare schedules_hash). */
#ifndef SCHEDULE_H
#define SCHEDULE_H
#include "kinds.h"

/* X(id, letters, is a message) */
#define INSTRS(X)                                                                                            \
    X(F, "F", 0)   /* forward */                                                                             \
    X(B, "B", 0)   /* backward, joined */                                                                    \
    X(D, "D", 0)   /* backward of the input */                                                               \
    X(W, "W", 0)   /* backward of the weights */                                                             \
    X(SA, "SA", 1) /* activation sent, received; gradient sent, received */                                  \
    X(RA, "RA", 1)                                                                                           \
    X(SG, "SG", 1)                                                                                           \
    X(RG, "RG", 1)                                                                                           \
    X(G, "G", 0) /* gather a unit's parameters */                                                            \
    X(X, "X", 0) /* release them */                                                                          \
    X(R, "R", 0) /* a unit's gradients are final: reduce them */                                             \
    X(T, "T", 0) /* add the two gradients of a tied embedding */                                             \
    X(S, "S", 0) /* optimizer step */

typedef enum {
#define X(id, ...) I_##id,
    INSTRS(X)
#undef X
    INSTR_KINDS
} InstrKind;

extern const struct InstrInfo { const char *letters; int message; } instr_info[INSTR_KINDS];

#define WHOLE 0xffff       /* Instr.unit: the whole chunk */

/* chunk: of this rank, for messages too. join: in one group with the message before. phase, of R: 0 all of
 * the unit's gradients (after B, or after the last W), 1 those that D finishes (norms, embedding, head), 2
 * those that W finishes (linear layers). */
typedef struct { uint8_t op, chunk, join, phase; uint16_t unit, mb; } Instr;
_Static_assert(sizeof(Instr) == 8, "no padding: schedules_hash reads the bytes");
typedef struct { int n; Instr *list; } InstrList;

/* "F0.0", "F0.0/3", "SA0.0", "R/3", "R/3d", "R/3w", "S": the instruction as text. */
void instr_print(const Instr *i, char *text, int size);

/* ---- the pipeline and its lists ---- */

typedef struct {
    ScheduleKind kind;
    int p, v, m;           /* v is 2 for the V kinds, any for INTERLEAVED, CUSTOM and FORWARD, else 1; m <=
                              MICROBATCHES_MOST */
    int group;             /* INTERLEAVED, FORWARD: microbatches run in a row for one chunk; 0: p */
    int vee; /* CUSTOM, FORWARD: the placement is that of the V kinds, which have it without asking */
    const InstrList *lists; /* CUSTOM: compute of every rank [p], for m microbatches. The caller's */
    const double
        *cost[3]; /* time of F, D, W of each virtual stage [p*v], B takes D + W; NULL: 1. The caller's */
    const double *each[3]; /* replay only: the times of every F, D, W, [p*v*m] of stage * m + microbatch,
                            * whose means are in cost; NULL: all of a stage are equal. The caller's */
    double hop;            /* time of a message, same unit; does not occupy the device */
    const double *hops;    /* the same by the virtual stage that sends it [p*v]; NULL: hop. The caller's */
    double weight_share;   /* of a microbatch's activations: what is kept until W; the rest goes with D */
    int limit;             /* ZB_AUTO: microbatches' activations that a rank may hold, >= 1; 0: p */
} PipeShape;

/* The time of a message that `stage` sends. */
static inline double pipe_hop(const PipeShape *s, int stage) { return s->hops ? s->hops[stage] : s->hop; }

/* Looped placement: stage = chunk * p + rank. V: chunk 0 of a rank is stage `rank`, chunk 1 is stage 2p - 1 -
 * rank. */
int pipe_stage(const PipeShape *s, int rank, int chunk);
void pipe_place(const PipeShape *s, int stage, int *rank, int *chunk);
/* The same where no shape is at hand: the rank of a stage; the stage of a rank's chunk. */
int place_rank(int vee, int p, int stage);
int place_stage(int vee, int p, int rank, int chunk);

/* The rank at the other end of message i of `rank`'s list; *chunk: the chunk there. */
int pipe_peer(const PipeShape *s, int rank, const Instr *i, int *chunk);

/* The compute instructions of every rank in order. out[p]: lists without instructions, with room for v * m *
 * 3 each (FORWARD: v * m). */
void schedule_generate(const PipeShape *s, InstrList *out);

typedef struct {
    PipeShape shape;
    InstrList *rank;       /* [p] compute and messages */
    Instr *all;            /* their memory */
    int stuck;             /* a rank whose compute list waits for ever, -1: none; and where */
    Instr stuck_at;
} ScheduleSet;

/* Generates and lowers: O(n log p) for n instructions of all ranks. Costs only order the lists (FORWARD
 * ignores them, so that a slow rank does not pile up what it receives). */
void schedules_open(ScheduleSet *set, const PipeShape *shape);

/* Lowers any compute lists [p]. Lists that wait for each other end where they are stuck, which
 * schedules_check reports. */
void schedules_lower(ScheduleSet *set, const PipeShape *shape, const InstrList *compute);
void schedules_close(ScheduleSet *set);

/* Equal on all ranks, or they would not fit together. */
uint64_t schedules_hash(const ScheduleSet *set);

/* The check at start, on the very lists that will run: every F once and its B, or D and W, once; every
 * chunk's microbatches in order; nothing before what it needs; every message paired; no deadlock under the
 * weakest promise a transport makes: each rank does one thing at a time in order, and a send ends when its
 * receive is posted. For programs without wildcards one such run is a proof (Siegel, Avrunin 2005). 1, or 0
 * with the reason in why. O(n). */
int schedules_check(const ScheduleSet *set, char *why, int size);

/* ---- replay with a clock ---- */

typedef struct { double start, end; } Span;

typedef struct {
    double makespan;       /* last end - first start of all ranks together, in the unit of the costs */
    double rate; /* bubble: (cost - m T) / cost, T = the work of a microbatch on the slowest rank, cost = the
                  * longest of last end - first start over ranks (the Zero Bubble paper's) */
    double step_rate;      /* the same with cost = makespan */
    double *peak; /* [p] activations held, in microbatches of a rank's whole share: F takes 1/v, the end of D
                   * gives (1 - weight_share)/v back, the end of W the rest */
    Span **span;  /* [p][n] if asked for: when each runs; a message from the end of what it carries */
} Simulation;

/* Replays checked lists. spans: fill `span` too. */
void simulate(const ScheduleSet *set, Simulation *sim, int spans);
void simulation_close(Simulation *sim);

/* ---- one rank's executable list ---- */

typedef struct {
    const int *units;  /* of each chunk [v]; numbered through the rank, chunk by chunk; F runs them upward, B,
                        * D, W  downward */
    int sharded_grads; /* ZeRO-2, 3: R of every unit after each of its backwards; else once, after its last */
    int overlap;           /* that R right behind the unit's last backward, else all of them before S */
    int gather; /* ZeRO-3: F, B, D by units, G of the next one ahead, X behind: at most two are gathered */
    int tied;   /* this rank has one of the two ends of a tied embedding: T, behind every R and message */
    int tied_unit;         /* the unit that T names */
} Expand;

/* What of a microbatch lives in a chunk, and from when to when (both included). A stage whose neighbour is on
 * the same rank gets no message: the model hands over by itself. FORWARD has F-D only, to the end of its SA
 * (or of the F on the same rank). */
enum {
    SLOT_FD, /* from RA (F on the first stage, and behind a neighbour on the same rank) to D or B */
    SLOT_FW, /* from F to W or B */
    SLOT_DW, /* from RG (D, B on the last stage; those of a next stage on the same rank) to W or B, and SG */
    SLOT_KINDS
};
#define NO_SLOT 0xffff

typedef struct {
    int n;
    Instr *list;
    int slots[SLOT_KINDS];       /* places needed: the peak over the list, all chunks together */
    uint16_t *slot[SLOT_KINDS];  /* [chunk*m + mb] the lowest place that was free; NO_SLOT: none */
    int units, m;                /* of the rank; microbatches */
} Schedule;

/* A whole step of one rank: its list expanded, R of every unit from the last to the first where nothing said
 * earlier, T, S. FORWARD lists have none of these. Allocates. */
void schedule_open(Schedule *s, const ScheduleSet *set, int rank, const Expand *expand);
void schedule_close(Schedule *s);
#endif
