/* schedule -- what the ranks of a pipeline do in one step, as lists of instructions.
 *
 * A generator writes the compute of each rank in order: F, B or its halves D and W, by chunk and microbatch.
 * Lowering plays these lists forward in time. When an instruction that feeds another rank ends, its send is
 * appended to this rank's list and its receive to the other's. So all messages stand in one total order, and
 * every list is a part of it. The earliest message that is not done is at the head of both its lists, since
 * all before it is done, so it proceeds: no lists can deadlock, whatever the generator wrote and whatever
 * the costs were. Messages of one moment form a group (`join`).
 *
 * In a paired list an F and the B of another microbatch run by turns, so that the messages of one travel
 * while the other computes (DeepSeek-AI 2024, arXiv:2412.19437, sec 3.2.1). A pair begins when both inputs
 * are there, and both results leave at its end. No message stands between the two, so the order of messages
 * proves what it proves without pairs.
 *
 * Expanding makes a rank's list executable. It cuts chunks into units (embedding, a layer, head) where
 * something happens between them, gathers and releases parameters, reduces gradients, adds the optimizer's
 * step, and gives each microbatch a slot in memory. With one rank there are no messages, and the list is the
 * plain training loop: F0 B0 F1 B1 ... R S.
 *
 * Letters: p ranks of the pipeline, v chunks a rank, m microbatches a step; p*v virtual stages in model
 * order. The microbatches of a chunk run in order, in each of F, D or B, and W. All functions are local:
 * every rank makes all lists, and these are equal on all ranks because the shape is (compare
 * schedules_hash). */
#ifndef SCHEDULE_H
#define SCHEDULE_H
#include "kinds.h"
#include <stddef.h>

/* X(id, letters, is a message) */
#define INSTRS(X)                                                                                            \
    X(F, "F", 0)   /* forward */                                                                             \
    X(B, "B", 0)   /* backward, joined */                                                                    \
    X(D, "D", 0)   /* backward, gradient of the input only */                                                \
    X(W, "W", 0)   /* backward, gradient of the weights only */                                              \
    X(SA, "SA", 1) /* send activation */                                                                     \
    X(RA, "RA", 1) /* receive activation */                                                                  \
    X(SG, "SG", 1) /* send gradient */                                                                       \
    X(RG, "RG", 1) /* receive gradient */                                                                    \
    X(G, "G", 0)   /* gather a unit's parameters */                                                          \
    X(X, "X", 0)   /* release a unit's parameters */                                                         \
    X(R, "R", 0)   /* reduce a unit's gradients */                                                           \
    X(T, "T", 0)   /* add the two gradients of a tied embedding */                                           \
    X(S, "S", 0)   /* optimizer step */

typedef enum {
#define X(id, ...) I_##id,
    INSTRS(X)
#undef X
    INSTR_KINDS
} InstrKind;

extern const struct InstrInfo { const char *letters; int message; } instr_info[INSTR_KINDS];

#define WHOLE 0xffff       /* Instr.unit: the whole chunk */

typedef struct {
    uint8_t op;            /* InstrKind */
    uint8_t chunk;         /* of this rank, for messages too */
    uint8_t join;          /* bool: a message is in one group with the message before; a B runs beside the F
                            * before it, in a pair */
    uint8_t phase;         /* R: 0 all of the unit's gradients (after B, or after the last W), 1 those that D
                            * completes (norms, embedding, head), 2 those that W completes (linear layers) */
    uint16_t unit;         /* numbered through the rank; or WHOLE */
    uint16_t mb;           /* microbatch */
} Instr;
_Static_assert(sizeof(Instr) == 8, "no padding: schedules_hash reads the bytes");
typedef struct { int n; Instr *list; } InstrList;

/* Instructions that begin together at list[at]: 2, the F and the B of a pair; or 1. */
static inline int instr_together(const Instr *list, int n, int at)
{
    return list[at].op == I_F && at + 1 < n && list[at + 1].op == I_B && list[at + 1].join ? 2 : 1;
}

/* Writes an instruction as text: "F0.0", "F0.0/3", "SA0.0", "R/3", "R/3d", "R/3w", "S". */
void instr_print(const Instr *i, char *text, int size);

/* ---- the pipeline and its lists ---- */

typedef struct {
    ScheduleKind kind;
    int p;
    int v;                 /* V kinds: 2; INTERLEAVED, CUSTOM, FORWARD: any; else 1 */
    int m;                 /* at most MICROBATCHES_MOST */
    int group;             /* INTERLEAVED, FORWARD: microbatches run in a row for one chunk; 0: p */
    int vee;               /* bool, CUSTOM and FORWARD: stages are placed as in the V kinds */
    int paired;            /* bool: 1F1B, INTERLEAVED and DUALPIPEV write pairs; no other kind can */
    const InstrList *lists; /* [p] CUSTOM: compute of every rank. The caller's, as all pointers here */
    const double *cost[3]; /* [p*v] time of F, D, W of each virtual stage, any unit; B: D + W; NULL: 1 */
    const double *each[3]; /* [p*v*m] replay only: time of F, D, W at stage * m + microbatch, whose means are
                            * in cost; NULL: the microbatches of a stage take equal times */
    double hop;            /* time of a message, same unit; it does not occupy the device */
    const double *hops;    /* [p*v] the same by the virtual stage that sends; NULL: hop */
    double weight_share;   /* share of a microbatch's activations that is held until W; D frees the rest */
    int limit;             /* ZB_AUTO: microbatches whose activations a rank may hold, >= 1; 0: p */
} PipeShape;

/* The time of a message that `stage` sends. */
static inline double pipe_hop(const PipeShape *s, int stage) { return s->hops ? s->hops[stage] : s->hop; }

/* The virtual stage of a rank's chunk. Loop: chunk * p + rank. V: chunk 0 is stage rank, chunk 1 is stage
 * 2p - 1 - rank. */
int pipe_stage(const PipeShape *s, int rank, int chunk);
/* The rank and chunk of a virtual stage. */
void pipe_place(const PipeShape *s, int stage, int *rank, int *chunk);
/* The same without a shape: the rank of a stage; the stage of a rank's chunk. */
int place_rank(int vee, int p, int stage);
int place_stage(int vee, int p, int rank, int chunk);

/* The rank at the other end of message i in `rank`'s list; *chunk: its chunk there. */
int pipe_peer(const PipeShape *s, int rank, const Instr *i, int *chunk);

/* Writes the compute of every rank in order.
 *   out      out  [p]     empty lists with room for 3 * v * m instructions each (FORWARD: v * m) */
void schedule_generate(const PipeShape *s, InstrList *out);

typedef struct {
    PipeShape shape;
    InstrList *rank;       /* [p] compute and messages */
    Instr *all;            /* memory of these lists */
    int stuck;             /* a rank whose compute waits for ever; -1: none */
    Instr stuck_at;        /* the instruction at which it waits */
} ScheduleSet;

/* Generates and lowers the lists of all ranks, in O(n log p) for n instructions. Costs only decide the order;
 * FORWARD ignores them, so that a slow rank does not receive far ahead of its compute. */
void schedules_open(ScheduleSet *set, const PipeShape *shape);

/* Lowers any compute lists. Lists that wait for each other end where they are stuck; schedules_check says so.
 *   compute  in   [p] */
void schedules_lower(ScheduleSet *set, const PipeShape *shape, const InstrList *compute);
void schedules_close(ScheduleSet *set);

/* A hash of all lists, to compare between ranks: lists that differ would not fit together. */
uint64_t schedules_hash(const ScheduleSet *set);

/* Checks the lists that will run, in O(n). Every F stands once, and its B, or D and W, once; the microbatches
 * of a chunk are in order; no instruction stands before what it needs; every message has its other end.
 * Nothing deadlocks under the weakest promise of a transport: each rank does one thing at a time in order,
 * and a send ends when its receive is posted. Without wildcards one such run is a proof (Siegel, Avrunin
 * 2005). 1; 0: the reason is in why. */
int schedules_check(const ScheduleSet *set, char *why, int size);

/* ---- replay with a clock ---- */

typedef struct { double start, end; } Span;

typedef struct {
    double makespan;       /* last end - first start of all ranks together, in the unit of the costs */
    double rate;           /* bubble (cost - m T) / cost: T is the work of a microbatch on the slowest rank,
                            * cost the longest of last end - first start over ranks (Zero Bubble paper) */
    double step_rate;      /* the same with cost = makespan */
    double *peak;          /* [p] most activations held, in microbatches of a rank: F takes 1/v, the end of D
                            * frees (1 - weight_share)/v, the end of W the rest */
    Span **span;           /* [p][n] when each instruction runs, a message from the end of what it carries;
                            * NULL: not asked for */
} Simulation;

/* Replays checked lists with a clock. spans: bool, fill `span` too. */
void simulate(const ScheduleSet *set, Simulation *sim, int spans);
void simulation_close(Simulation *sim);

/* ---- one rank's executable list ---- */

typedef struct {
    const int *units;      /* [v] units of each chunk, numbered through the rank chunk by chunk; F runs them
                            * upward, B, D and W downward */
    int sharded_grads;     /* bool, ZeRO-2, 3: R of a unit after each of its backwards; 0: after the last */
    int overlap;           /* bool: that last R stands right behind the backward; 0: before S */
    int gather;            /* bool, ZeRO-3: F, B, D run by units; G stands one unit ahead, X behind, so that
                            * at most two units are gathered */
    int tied;              /* bool: this rank has an end of a tied embedding: T behind every R and message */
    int tied_unit;         /* the unit that T names */
} Expand;

/* Lifetimes of a microbatch's data in a chunk, first and last instruction included. Neighbouring stages on
 * one rank have no message between them: the model hands over. FORWARD has SLOT_FD only, which ends with SA,
 * or with the F of the next stage on the same rank; where that has no units, with the end of its SLOT_FD. */
enum {
    SLOT_FD,   /* from RA to D or B; first stage, or behind a neighbour on this rank: from F */
    SLOT_FW,   /* from F to W or B */
    SLOT_DW,   /* from RG to the later of W or B, and SG; last stage: from D or B; before a neighbour on this
                * rank: from that one's D or B */
    SLOT_KINDS
};
#define NO_SLOT (-1)

/* A lifetime begins or ends: of the data of `kind` at chunk * m + mb. */
typedef struct { uint32_t at; uint8_t kind, ends; } Life;

typedef struct {
    int n;
    Instr *list;
    int slots[SLOT_KINDS];       /* slots needed: the peak over the list, all chunks together */
    int *slot[SLOT_KINDS];       /* [v*m] slot at chunk * m + mb, the lowest that was free; NO_SLOT: none */
    int units, v, m;             /* units of the rank; chunks; microbatches */
    int lives;
    Life *life;                  /* [lives] beginnings and ends of lifetimes, in the order of the list */
    size_t *place[SLOT_KINDS];   /* [v*m] first byte of these data in one piece of memory; NULL: not packed */
    size_t bytes;                /* of that memory */
} Schedule;

/* Expands the list of one rank to a whole step: then R of the units not reduced before, from the last to the
 * first, T and S. FORWARD lists have no R, T and S. */
void schedule_open(Schedule *s, const ScheduleSet *set, int rank, const Expand *expand);
void schedule_close(Schedule *s);

/* Gives the data of each microbatch in each chunk a place in one piece of memory: slots of equal size for
 * each lifetime, or, where these take over 1 % more than is ever held at once, the best of three in less:
 * data of one lifetime as low as they fit at its beginning, all others as high; in lists not too long
 * the largest, or those of most bytes times instructions, first and as low as they fit. A gradient's place is
 * free an F, B, D or W later than its lifetime ends, so that nothing waits for its message to leave. May be
 * called again.
 *   bytes  in  [SLOT_KINDS][v] of a microbatch's data in a chunk */
void schedule_pack(Schedule *s, const size_t *const bytes[SLOT_KINDS]);
#endif
