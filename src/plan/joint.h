/* joint -- layers, their order and recomputation chosen together, for the machine of a plan.
 *
 * Units of the model (embedding, each layer, head) are timed and weighed one by one: the planner walks a
 * pipeline in which each has a rank of its own. partition.h shares them out over the pipeline that the
 * configuration asks for, in one stage a rank, in two that lie in a V or in a loop, and in more in a loop
 * where fewer end far from the bound, with each way to recompute, the same on all ranks, and with backwards
 * whole and split. Interleaved 1F1B with equal numbers of layers is taken where nothing shorter is found.
 * What comes out is a configuration like any other, with its lists in a file, and is planned exactly before
 * it is told. */
#ifndef JOINT_H
#define JOINT_H
#include "partition.h"
#include "predict.h"
#include "sweep.h"

typedef struct {
    const char *path;          /* of the configuration */
    int nargs, world;
    char **args;               /* [nargs] key=value of the command line */
    const Machine *m;
    const char *lists;         /* file that gets the lists of the winner */
} JointAsk;

/* A configuration in one way to recompute, planned; step 0: none is legal and fits. */
typedef struct {
    int v;                     /* stages of a rank */
    int whole;                 /* bool: backwards are not split */
    Recompute recompute;
    double step;               /* s, of the planner */
    int64_t memory;            /* bytes of the fullest rank */
} Planned;

enum { PLACEMENTS = 9, JOINT_STAGES_MOST = 16 };   /* of a rank */

typedef struct {
    Partition best;
    PipeShape shape;           /* of best: costs and hop in s */
    double *cost;              /* [3 * stages] of shape */
    double bound;              /* s: no order takes less, of any partition that fits, in any number of
                                * stages a rank, wherever they lie, in any of the ways to recompute */
    double placed[PLACEMENTS]; /* s: the same for each placement searched */
    int tried;                 /* partitions ordered */
    Planned winner, even;      /* even: interleaved 1F1B with equal numbers of layers, the fastest that fits;
                                * 1F1B where interleaved is not legal */
    char *layout;              /* pipeline_model_parallel_layout of the winner */
} Joint;

/* Searches, and writes the winner's lists. cfg: what ask says, checked. Dies with EXIT_CONFIG where there is
 * nothing to search for, or where nothing fits. */
void joint_search(Joint *j, const JointAsk *ask, const Config *cfg);
void joint_close(Joint *j);

/* The bound of the winner's placement, s; of any, where that was not searched. */
double joint_placed(const Joint *j);

/* The keys that make a run use the winner, as arguments for a shell, on the heap. */
char *joint_keys(const Joint *j, const JointAsk *ask, const Config *cfg);
/* What `train bubble` needs beside these keys to measure the winner on the clock device: --m, and the times
 * of its stages, ms; on the heap. */
char *joint_clock(const Joint *j);
#endif
