/* grid -- rank <-> (tp, cp, ep, dp, pp), and the process groups of every axis.
 *
 * The order string names the axes, fastest first: "tp-cp-ep-dp-pp". rank = sum over axes of index * product
 * of the sizes of the axes to its left (Megatron-LM's RankGenerator). The dense grid has ep = 1 and dp =
 * world/(tp cp pp); the expert grid has tp = etp, cp = 1 and edp = world/(etp ep pp). Every group is a Comm;
 * groups of one are comm_self. */
#ifndef GRID_H
#define GRID_H
#include "comm.h"

typedef enum { AXIS_TP, AXIS_CP, AXIS_EP, AXIS_DP, AXIS_PP, AXES } Axis;
extern const char *const grid_axis_name[AXES];

/* How the world is cut. */
typedef struct {
    int size[AXES];                  /* dense grid: size[AXIS_EP] = 1; the product is the world */
    Axis order[AXES];                /* fastest first */
    int kv_share;  /* neighbours in tp that hold the same key/value heads: tp / heads when tp exceeds
                    * them, else 1 (0 stands for 1) */
    int instances; /* optimizer instances: parts of the data group that each hold the whole optimizer
                    * state, num_distributed_optimizer_instances (0 stands for 1) */
    int etp, ep;                     /* expert grid (0 stands for tp, and for 1) */
} GridSpec;

typedef struct {
    int world, rank;
    GridSpec spec;
    Axis order[AXES];                /* fastest first */
    int size[AXES], index[AXES];     /* dense grid: size[AXIS_EP] = 1 */
    Comm all;                        /* every rank */
    Comm axis[AXES];                 /* one group an axis of the dense grid */
    Comm model;                      /* tp and pp together: ranks that hold one copy of the model */
    Comm data;                       /* dp and cp together: ranks whose gradients are added */
    Comm embedding; /* first and last rank of my pipeline, on these two; elsewhere a group of one */
    Comm kv;                         /* the kv_share neighbours in tp with my key/value heads */
    Comm shard; /* my run of |data| / instances neighbours in data: one optimizer instance */
    Comm copies;                     /* the ranks with my place in each instance */
} Grid;

/* Lists the ranks of the group that varies over the axes in `mask` (bit 1 << axis) and contains `rank`; ranks
 * in the order of the order string. Returns their number. Pure: needs no communicator. */
int grid_group(const int size[AXES], const Axis order[AXES], unsigned mask, int rank, int *out);

/* The place of world rank `rank` on an axis. Pure. */
int grid_index(const GridSpec *spec, int rank, Axis axis);

/* Parses "tp-cp-ep-dp-pp" or any permutation of it. Returns 0 when it is none. */
int grid_parse_order(const char *text, Axis order[AXES]);

/* All ranks along one axis, in the usual order. Pure. */
GridSpec grid_along(Axis axis, int ranks);

/* The expert grid of a spec: tp = etp, cp = 1, dp = world / (etp ep pp). Returns 0 when it does not fit the
 * world, or when its pipelines would not be the dense grid's (pp not last in the order, pp > 1, and another
 * dp). */
int grid_expert_size(const GridSpec *spec, int world, int size[AXES]);
/* Like grid_group, in the expert grid. */
int grid_expert_group(const GridSpec *spec, int world, unsigned mask, int rank, int *out);

/* Opens all groups; those of one are comm_self. With world > 1 a launcher must have started this process,
 * which joins its job here. Collective. */
void grid_open(Grid *g, const GridSpec *spec, int world, int rank);
/* The same for any rank of any world, with groups that only count (comm_count_open). */
void grid_open_counting(Grid *g, const GridSpec *spec, int world, int rank);
/* The same with groups that `open` makes; member: world ranks of the group, this rank among them. */
typedef void (*GridOpener)(void *ctx, const Grid *g, Comm *c, const char *name, const int *member, int n);
void grid_open_by(Grid *g, const GridSpec *spec, int world, int rank, GridOpener open, void *ctx);
/* From here on buffers of the groups may also be memory of d. Not collective. */
void grid_device(Grid *g, Device *d);
/* Wraps every group over d, a cuda device, so that buffers may be its memory: through the host, or over NCCL
 * (comm_device.h). Collective over the world. Dies with EXIT_COMM; without CUDA there is no such device. */
void grid_staged(Grid *g, Device *d);
void grid_nccl(Grid *g, Device *d, double timeout);
void grid_close(Grid *g);

/* The cores that this rank of an open grid should compute on: those it may run on, divided by the ranks of
 * its host that may run on them as well; at least 1. */
int grid_cores(const Grid *g);
int grid_host_ranks(const Grid *g);  /* ranks on this host */
int grid_host_rank(const Grid *g);   /* which of them this is */
int grid_host(const Grid *g);        /* the lowest rank of this host: its name among hosts */
#endif
