/* partition -- a model's units shared out over the ranks of a pipeline together with the order of their work.
 *
 * Units are what cannot be cut: the embedding, each layer, the head, in model order, each with times and
 * bytes of its own. A stage is a row of successive units. A rank gets one stage, two that lie in a V, or
 * several in a loop, where a stage may be empty.
 *
 * With one stage a rank there is a time for every stage that no order of the step can beat (bound.h), which
 * depends on where the stage begins and ends, and on the first stage. So the least of all partitions' bounds
 * is found exactly. With two it is found likewise, with times of the ranks that depend on where their two
 * stages begin and end; with three in a loop, of not too many units, with their work. The search begins at
 * the partition that has the least bound and, with several stages a rank, at one whose ranks have work as
 * equal as moves make it. It moves units between stages as long as the order of the moved partition is
 * shorter (search.h). partition_improve then changes the partition and the rule of its order together, a rule
 * for each rank (greedy.h), by simulated annealing. */
#ifndef PARTITION_H
#define PARTITION_H
#include "schedule.h"

typedef struct {
    int n;                     /* units, at least as many as stages */
    const double *cost[3];     /* [n] time of F, D, W of each unit */
    const double *fixed;       /* [n] bytes that a unit takes the whole step; NULL: memory is not bounded */
    const double *held;        /* [n] bytes that a microbatch takes: `arrived`, and from its F to its W */
    const double *arrived;     /* [n] of these, bytes from the arrival of the input to D; NULL: 0 */
    const double *pending;     /* [n] bytes from the arrival of the gradient to W; NULL: 0 */
    const double *scratch;     /* [n] bytes while it computes: of a rank, the most of its units */
    double room;               /* bytes of a rank */
    int whole;                 /* bool: backwards are not split: D is all of one, and W takes no time */
    double beat;               /* a makespan that partition_search should beat: what begins far above it is
                                * left; 0: none */
    PipeShape shape;           /* p, m, limit, hop, weight_share; the rest is not read */
} Units;

typedef struct {
    int v, vee;                /* stages of a rank; bool, they lie in a V, else in a loop */
    int published;             /* bool: in the orders of zb-v, 1F1B or interleaved 1F1B, else in those of
                                * search.h */
    int *first;                /* [p * v + 1] first unit of each stage; n. In a loop a stage may be empty */
    double makespan;           /* of the order of these stages; INFINITY: nothing was found that fits */
    double hoped;              /* the same, before its lists had to fit into memory once they are packed */
    InstrList *list;           /* [p] that order: compute of every rank */
    Instr *all;                /* memory of the lists */
    double bound;              /* of partition_bound, for this placement */
    int tried;                 /* partitions that were ordered */
} Partition;

/* The least time of a step over all partitions and orders that hold at most shape.limit microbatches and
 * u->room bytes on a rank; INFINITY: none fits.
 *   v, vee  in  stages of a rank; bool: two lie in a V, else in a loop. With three, and more units than there
 *               is time for, and with more, the bound of units_bound */
double partition_bound(const Units *u, int v, int vee);

/* The same over all partitions in any number of stages a rank, wherever they lie, empty ones too: at most any
 * of these. */
double units_bound(const Units *u);

/* Finds a partition. Counts its work and does not time it: equal units give equal partitions. Allocates.
 *   v, vee, published  in  as in Partition; published: a V, or one stage a rank
 *   most               in  partitions that may be ordered */
void partition_search(Partition *out, const Units *u, int v, int vee, int published, int most);
/* Improves what was found, for which it takes some seconds, by other partitions in other orders. Leaves it as
 * it is where nothing better is found. */
void partition_improve(Partition *p, const Units *u);
/* The partition in v stages a rank with equal numbers of layers, in the order of interleaved 1F1B, or of 1F1B
 * with one stage. Its makespan is INFINITY where that does not fit. */
void partition_even(Partition *out, const Units *u, int v);
void partition_close(Partition *p);

/* The shape of a partition, with the costs of its stages in cost [3 * p * v]: F, D, W of each. Its lists are
 * the partition's. */
PipeShape partition_shape(const Units *u, const Partition *p, double *cost);
#endif
