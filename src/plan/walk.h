/* walk -- one pipeline rank's step: its instructions run over a device and groups that add up times; only
 * src/plan includes this. */
#ifndef WALK_H
#define WALK_H
#include "tape.h"

/* What the first walk of a pipeline rank has found, for walks of ranks that do the same. */
typedef struct {
    int rank;                  /* pipeline rank that was walked */
    uint64_t order;            /* what it does with which microbatch, without the order (order_of) */
    int done;                  /* bool: the walk has ended */
    RunPeaks peaks;
    int likes;                 /* sorts of microbatches (sort_microbatches) */
    int units, places;         /* units of the rank; units and chunks */
    Tape *tape;                /* [2][likes][RECORDED][places] the step before, the step; an instruction's
                                * place is its unit, or behind the units its chunk */
} Known;
enum { RECORDED = I_RG + 1 };

typedef struct Habit Habit;    /* walk.c */
#define WALKED 2               /* microbatches of a sort whose layers are walked */

/* A walk of one pipeline rank through its step. Its device and its groups add to tally. */
typedef struct {
    Tally tally;
    Lookup matmul[LOOKUPS], memory[LOOKUPS];
    Device dev;
    Prediction *out;
    int rank;                  /* pipeline rank */
    int64_t need;              /* bytes that it takes of a device, libraries included */
    void (*act[INSTR_KINDS])(void *run, const Instr *i);   /* the model's actions */
    PipeShape shape;
    Spent spent[4][256];       /* [F, B, D, W][chunk] sums over all microbatches */
    struct { double took, waited; } first;     /* F of a pair: s, and of them waiting for experts' rows */
    int runs[4][256];          /* [F, B, D, W][chunk] instructions of the list */
    Habit *habit;              /* [InstrKind up to RG][chunk] */
    uint8_t *cut;              /* [chunk][microbatch] bool: cut into units, or the first of a sort:
                                * nothing is skipped */
    uint8_t whole[256];        /* [chunk] bool: some of its microbatches are not cut */
    int before;                /* bool: this is the step before the one that counts */
    Known *known;              /* recorded by this walk, or played; NULL: all layers are walked */
    Recorder recorder;
    int *like;                 /* [microbatch] its sort, below known->likes */
    RankTime t;                /* the result */
    double alone;              /* share of the device in F, B, D, W: other pipeline ranks may wait */
    double crowded;            /* share of the device in all else: all ranks of the host compute */
    double base;               /* s: when the first instruction begins; -1: not yet */
    double grads;              /* s: when all gradients are reduced */
    /* of the second walk: when each compute instruction begins and ends */
    const ScheduleSet *set;    /* NULL: this is a first walk */
    const Span *span;          /* of this rank's list in set */
    int turns;                 /* bool: the host has more ranks than cores */
    int at;                    /* place in this rank's list in set; -1: before the first instruction */
} Walk;
_Static_assert(offsetof(Walk, tally) == 0, "the Walk of a Tally has its address");

/* The kinds of pipeline ranks: ranks of one kind differ in the order of their instructions only. */
typedef struct {
    const Config *cfg;
    const Placement *pl;
    const ScheduleSet *set;
    int n, off;                /* off: bool, every walk runs its layers */
    Known *known;              /* [n], room for all ranks */
    Walk *last;                /* a first walk of the rank with the loss, if it has been made; else NULL */
} Kinds;

/* real: bool: every walk runs its layers. So it does where activations are offloaded: a tape has no copies
 * between device and host. */
Kinds kinds_open(const Config *c, const Placement *pl, const StepLists *l, int real);
/* What is known of the kind of a pipeline rank; NULL: its walks run their layers. */
Known *known_of(Kinds *k, int rank);
void kinds_forget(Kinds *k);
void kinds_close(Kinds *k);

/* Walks pipeline rank `rank`. On the heap.
 *   known  in/out  of its kind; NULL: nothing is recorded or played
 *   span   in      when each instruction of its list runs; NULL: a first walk, which waits for no other */
Walk *walk(Prediction *out, const Config *c, const Machine *m, const StepLists *l, int rank, Known *known,
           const Span *span);

/* walk_kinds.c: sorts the microbatches of a list into w->like; returns the number of sorts. The first one is
 * alone: its gradients have no value yet. Others are of a sort where the same is done with them, cut
 * into units or not. Adds to w->cut those that are walked whole: what reads their slots is of a sort not
 * walked yet. */
int sort_microbatches(Walk *w, const Schedule *s);

/* The training lists of the last batch-size segment, made without times, as a run makes them. */
static inline const ScheduleSet *training(const StepLists *l) { return &l->train[l->n - 1]; }

/* Ranks on one node. */
static inline double ranks_here(const Config *c, const Machine *m)
{
    return c->world < m->ranks ? (double)c->world : (double)m->ranks;
}

/* Whether a host has more ranks than cores. */
static inline int crowded(const Config *c, const Machine *m)
{
    return m->shared && ranks_here(c, m) > (double)m->cores;
}
#endif
