/* grid -- rank <-> (tp, cp, ep, dp, pp), and the process groups of every axis.
 *
 * The order string names the axes, fastest first: "tp-cp-ep-dp-pp". rank = sum over axes of index * product
 * of the sizes of the axes to its left (Megatron-LM's RankGenerator). The dense grid has ep = 1 and
 * dp = world/(tp cp pp). The expert grid has tp = etp, cp = 1 and dp = world/(etp ep pp). Every group is a
 * Comm; groups of one are comm_self. */
#ifndef GRID_H
#define GRID_H
#include "comm.h"

typedef enum { AXIS_TP, AXIS_CP, AXIS_EP, AXIS_DP, AXIS_PP, AXES } Axis;
extern const char *const grid_axis_name[AXES];

/* Groups in the expert grid: ranks that hold different experts; the slices of the same experts; the same
 * slices of the same experts, whose gradients are added; of these, a run of |data| / instances neighbours,
 * which share an optimizer instance; the ranks with this rank's place in each instance. Where one rank has
 * all gradients of its experts, these have one instance. */
typedef enum { EXPERT_EP, EXPERT_TP, EXPERT_DATA, EXPERT_SHARD, EXPERT_COPIES, EXPERT_GROUPS } ExpertGroup;

/* How the world is cut; global: the same on every rank. */
typedef struct {
    int size[AXES];          /* dense grid: size[AXIS_EP] = 1; the product is the world */
    Axis order[AXES];        /* fastest first */
    int kv_share;            /* neighbours in tp with the same key/value heads: max(1, tp / heads); 0: 1 */
    int instances;           /* num_distributed_optimizer_instances: parts of the data group that each hold
                              * the whole optimizer state; divides the expert grid's, too, where that has
                              * several ranks; 0: 1 */
    int context_heads;       /* a2a+p2p: ranks of cp that exchange positions for heads; 0: no such groups */
    int experts;             /* bool: the model has experts, so that the expert grid has groups */
    int etp;                 /* expert grid: size of tp; 0: as the dense grid */
    int ep;                  /* expert grid: size of ep; 0: 1 */
} GridSpec;

typedef struct {
    int world, rank;
    GridSpec spec;
    Axis order[AXES];        /* fastest first */
    int size[AXES];          /* dense grid: size[AXIS_EP] = 1 */
    int index[AXES];         /* this rank's place on each axis */
    Comm all;                /* every rank, in world order */
    Comm axis[AXES];         /* this rank's group along each axis of the dense grid */
    Comm model;              /* tp and pp together: the ranks of this rank's copy of the model */
    Comm data;               /* dp and cp together: the ranks whose gradients are added */
    Comm embedding;          /* first and last rank of a pipeline: these two; others: a group of one */
    Comm kv;                 /* the kv_share neighbours in tp with this rank's key/value heads */
    Comm context_heads;      /* the neighbours in cp that exchange positions for heads; else a group of one */
    Comm context_ring;       /* the ranks in cp with this rank's place among them; else a group of one */
    Comm shard;              /* a run of |data| / instances neighbours in data: one optimizer instance */
    Comm copies;             /* the ranks with this rank's place in each instance */
    Comm expert[EXPERT_GROUPS]; /* this rank's groups in the expert grid; groups of one without experts */
} Grid;

/* Functions marked pure only compute: local, no communicator needed. */

/* Lists the group that contains `rank` and varies over some axes; returns its size. Pure.
 *   size     in   [AXES]
 *   order    in   [AXES]      fastest first
 *   mask     in               bit 1 << axis: the group varies over the axis
 *   out      out  [size]      ranks, in the order of the order string */
int grid_group(const int size[AXES], const Axis order[AXES], unsigned mask, int rank, int *out);

/* The place of world rank `rank` on an axis. Pure. */
int grid_index(const GridSpec *spec, int rank, Axis axis);
/* The lowest world rank at place `index` of an axis. Pure. */
int grid_first(const GridSpec *spec, Axis axis, int index);

/* Parses "tp-cp-ep-dp-pp" or a permutation of it. 1; 0: the text is something else. Pure. */
int grid_parse_order(const char *text, Axis order[AXES]);

/* The spec of a world that lies along one axis, in the order "tp-cp-ep-dp-pp". Pure. */
GridSpec grid_along(Axis axis, int ranks);

/* The sizes of the axes of a spec's expert grid. 1; 0: etp ep pp does not divide the world, or a rank
 * would have another pipeline stage than in the dense grid: the axes before pp in the order have other sizes.
 * Pure. */
int grid_expert_size(const GridSpec *spec, int world, int size[AXES]);
/* grid_group in the expert grid. Pure. */
int grid_expert_group(const GridSpec *spec, int world, unsigned mask, int rank, int *out);

/* Opens all groups. With world > 1 a launcher must have started this process, which joins its job here.
 * Collective over the world.
 *   spec     in   global
 *   world    in   global      number of ranks: the product of spec->size
 *   rank     in   local       of this process */
void grid_open(Grid *g, const GridSpec *spec, int world, int rank);
/* The same for any rank of any world, with groups that only count (comm_count_open). Local. */
void grid_open_counting(Grid *g, const GridSpec *spec, int world, int rank);
/* Opens one group.
 *   ctx      in               as given to grid_open_by
 *   c        out              the group
 *   name     in               of the group, for messages; a constant
 *   member   in   [n]         world ranks of the group, in group order, this rank among them */
typedef void (*GridOpener)(void *ctx, const Grid *g, Comm *c, const char *name, const int *member, int n);
/* The same with groups that `open` makes, called in the same order on every rank. */
void grid_open_by(Grid *g, const GridSpec *spec, int world, int rank, GridOpener open, void *ctx);
/* Calls fn for every group, in an order that is the same on all ranks. Local. */
void grid_each(Grid *g, void (*fn)(void *ctx, Comm *c), void *ctx);
/* Lets buffers of the groups be memory of d, too. Local. */
void grid_device(Grid *g, Device *d);
/* Wrap every group so that buffers may lie in the memory of d, a cuda device: through the host, or over NCCL
 * (comm_device.h). Die with EXIT_COMM. Collective over the world.
 *   d        in   local
 *   timeout  in   global      seconds that an operation may take */
void grid_staged(Grid *g, Device *d);
void grid_nccl(Grid *g, Device *d, double timeout);
/* Closes all groups. Local. */
void grid_close(Grid *g);

/* Of an open grid, local: the number of cores that this rank should compute on. The cores that it may run on
 * are divided by the ranks of its host that may run on them as well, in a plan by all ranks; at least 1. */
int grid_cores(const Grid *g);
int grid_host_ranks(const Grid *g);  /* ranks on this host */
int grid_host_rank(const Grid *g);   /* this rank's place among them */
int grid_host(const Grid *g);        /* the lowest rank of this host, which names the host */
#endif
