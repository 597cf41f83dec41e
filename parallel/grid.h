/* grid -- rank <-> (tp, cp, ep, dp, pp), and the process groups of every axis.
 *
 * The order string names the axes, fastest first: "tp-cp-ep-dp-pp". rank = sum over axes of index * product of the
 * sizes of the axes to its left (Megatron-LM's RankGenerator). The dense grid has ep = 1 and dp = world/(tp cp pp); the
 * expert grid has tp = etp, cp = 1 and edp = world/(etp ep pp). Every group is a Comm; groups of one are comm_self. */
#ifndef GRID_H
#define GRID_H
#include "comm.h"

typedef enum { AXIS_TP, AXIS_CP, AXIS_EP, AXIS_DP, AXIS_PP, AXES } Axis;
extern const char *const axis_name[AXES];

typedef struct {
    int world, rank;
    Axis order[AXES];                /* fastest first */
    int size[AXES], index[AXES];     /* dense grid: size[AXIS_EP] = 1 */
    Comm all;                        /* every rank */
    Comm axis[AXES];                 /* one group an axis of the dense grid */
    Comm model;                      /* tp and pp together: ranks that hold one copy of the model */
    Comm data;                       /* dp and cp together: ranks whose gradients are added */
    Comm shard, copies;              /* slices of data that share out state, and the ranks of the same place in each */
    Comm kv;                         /* slices of tp that hold the same key/value head */
    Comm embedding;                  /* first and last rank of the pipeline */
} Grid;

/* Lists the ranks of the group that varies over the axes in `mask` (bit 1 << axis) and contains `rank`; ranks in
 * the order of the order string. Returns their number. Pure: needs no communicator. */
int grid_group(const int size[AXES], const Axis order[AXES], unsigned mask, int rank, int *out);

/* Parses "tp-cp-ep-dp-pp" or any permutation; absent axes follow at the end. Returns 0 when it is malformed. */
int grid_parse_order(const char *text, Axis order[AXES]);

/* Opens all groups. size: product over the axes = world. Collective. */
void grid_open(Grid *g, const int size[AXES], const Axis order[AXES], int world, int rank);
void grid_close(Grid *g);

/* The ranks that a launcher (mpirun, srun) started, by its environment, and which of them this process is. */
int grid_launched(int *rank);

/* "rank 3 tp 1 pp 1 dp 0" for messages; NULL with one rank. */
const char *grid_where(void);
#endif
