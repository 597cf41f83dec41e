/* data -- data parallelism: gradients added over the ranks that hold the same parameters, and ZeRO's shards
 * of what those ranks would otherwise hold in full (Rajbhandari et al. 2020, arXiv:1910.02054, sec 5).
 *
 * A rank's parameters lie in one flat space of elements, cut into buckets; a bucket is what one message
 * carries. Its length is a multiple of shards * SUMSQ_BLOCK, and shard r of it is the r-th of `shards` equal
 * parts. An array over the flat space is either whole, or holds only this rank's shard of every bucket, one
 * behind the other.
 *
 *   stage           weights            gradients          masters, moments     name in the paper
 *   SHARD_NONE      whole              whole              whole                 -
 *   SHARD_OPTIM     whole              whole              shard                 P_os
 *   SHARD_GRADS     whole              shard + window     shard                 P_os+g
 *   SHARD_PARAMS    shard + window     shard + window     shard                 P_os+g+p
 *
 * Where weights are their own masters (fp32, fp64) the shard of a master is a slice of the whole weights.
 *
 * A unit is what moves at a time: the buckets of some neighbouring parts of the model. Two windows hold a
 * unit each, whole: one that is computed with and one that is on its way.
 *
 * Two halves of a backward: D, the input's gradient, completes the gradients of some buckets (norms,
 * embedding, head), W those of the others (linear layers). PHASE_ALL is both at once.
 *
 * Life of a step, in every stage:
 *     data_begin
 *     before a unit's forward or D:   data_gather (ahead), data_ready;   after it: data_release
 *     before a unit's backward:       data_enter;                        after it: data_reduce
 *        (SHARD_NONE, SHARD_OPTIM: reduce only after the unit's last backward of the step)
 *     data_wait_grads, data_tied, the optimizer's update, data_gather_all
 * All functions are collective over the groups they name: every member calls them in the same order. Messages
 * are started where they can be and waited for where their result is needed. Nothing is allocated after
 * data_layout.
 *
 * Sums: reduction over the shard group, then over copies of it (hybrid sharding), then the partial sums over
 * the tensor group, in this order in every stage. A reduce_scatter is the slice of an all_reduce, so
 * SHARD_NONE and SHARD_OPTIM give the same bits, and so do SHARD_GRADS and SHARD_PARAMS, which add whole
 * microbatches up. */
#ifndef DATA_H
#define DATA_H
#include "grid.h"

typedef enum { SHARD_NONE, SHARD_OPTIM, SHARD_GRADS, SHARD_PARAMS } Sharding;    /* order of the option */
typedef enum { PHASE_ALL, PHASE_D, PHASE_W } GradPhase;

/* Elements whose gradient each member of `comm` holds a part of; flat. */
typedef struct { int64_t at, n; Comm *comm; } PartialSum;
#define BUCKET_SUMS 3

typedef struct {
    int64_t at, n;             /* elements of the flat space */
    GradPhase phase;               /* PHASE_D or PHASE_W: what completes its gradients */
    int sums;
    PartialSum sum[BUCKET_SUMS];
    /* where element `at` is now; NULL: not held */
    char *weight, *grad;
    enum { NO_GATHER, PUT_OFF, UNDER_WAY } gather;     /* of its weights, after the update */
    int reduced;               /* reductions since data_begin */
    int64_t update;            /* the ticket of an update beside the ops, until these wait for it; 0: none */
    Token token;               /* of that gather */
} Bucket;

/* Buckets [first, first + count), and one more that lies elsewhere, -1: none. */
typedef struct { int first, count, also; } Unit;

/* An array over the flat space, or over this rank's shards of it. Elements [0, resident) lie at p, the
 * others, from the start of a bucket on, at `offloaded`. p NULL: the array is only counted, or absent. */
typedef struct { char *p, *offloaded; int64_t resident; Dtype type; int sharded; } Flat;

/* A message of a window, or of whole gradients. */
typedef struct { int bucket; char *at; Token token; } Transfer;
typedef struct {
    char *base;
    int unit, held;            /* weights: whose, -1 free; by how many data_gather */
    int n;
    Transfer *list;
} UnitWindow;

typedef struct {
    Sharding stage;
    Device *dev;
    Dtype type, real;          /* of weights; of gradients, masters and moments */
    Comm *data, *shard, *copies, *embedding;
    int64_t elems;             /* of the flat space */
    int buckets, units;
    Bucket *bucket;            /* in the order of the forward */
    Unit *unit;
    int tied;                  /* the bucket that another stage has too, -1: none */
    int64_t resident;          /* elements whose masters and moments lie on the device */
    Arena *mapped;             /* host memory of the masters and moments of the other elements */
    int64_t cleared; /* ticket of the zeroing of offloaded gradients; 0 once ops have waited for it */

    Flat weight, grad, master, moment[2];
    int gradients, moments;    /* what there is */
    int64_t window;            /* elements of two units: the largest and the next */
    UnitWindow in[2], out[2];      /* weights; gradients (whole gradients: out[0] lists their reductions) */
    int turn;                  /* the gradients' next window */
    int open;                  /* between data_begin and data_wait_grads */
    Token *token;
    int64_t bytes[3]; /* parameters; gradients; masters and moments: with windows, without `mapped` */
} Data;

/* The groups are the grid's. bucket and unit become d's, on the heap; a change of units goes through
 * data_units. */
void data_open(Data *d, Sharding stage, Grid *grid, Dtype type, Dtype real, Bucket *bucket, int buckets,
               int tied);
void data_close(Data *d);

/* Sets the units (heap; d's from now on); before data_layout. */
void data_units(Data *d, Unit *unit, int units);

/* Masters and moments of the last buckets, as few as hold at least `share` of the elements, shall lie in
 * `mapped`, which may be counting: memory that ops can use. Where weights are their own masters these stay.
 * Before data_layout. */
void data_offload(Data *d, double share, Arena *mapped);

/* Takes the arrays from `run`, which may be counting. Without gradients there are weights alone. moments: 0
 * to 2. */
void data_layout(Data *d, Device *dev, Arena *run, int gradients, int moments);

/* This rank's shard of a bucket: flat elements [*from, *to). */
void data_own(const Data *d, int bucket, int64_t *from, int64_t *to);
/* What this rank updates of a bucket: everything with SHARD_NONE, else its shard. */
void data_updated(const Data *d, int bucket, int64_t *from, int64_t *to);
/* Flat element `at` of an array, which must be held; NULL while counting. */
void *data_at(const Data *d, const Flat *f, int bucket, int64_t at);

/* Clears the gradients: the start of a step. Not collective. */
void data_begin(Data *d);

/* Gives the unit zeroed gradients to add a backward to, in stages that do not keep them whole. May wait for
 * an earlier data_reduce. Collective over the shard group. */
void data_enter(Data *d, int unit, GradPhase phase);

/* The unit's gradients of this phase are final (whole gradients), or those of one microbatch are: starts
 * their reduction. They must not be read or written until data_wait_grads or the next data_enter. Collective
 * over the data group. */
void data_reduce(Data *d, int unit, GradPhase phase);

/* The first bucket whose masters and moments lie in mapped memory, or their number. */
int data_first_offloaded(const Data *d);
/* The bucket's update is under way beside the ops: what reads its weights or its gradient waits for the
 * ticket, at the last moment. */
void data_updating(Data *d, int bucket, int64_t ticket);
/* Ops from here on come behind every update and every zero: before masters, moments or weights are read that
 * no unit's forward or backward has made ready. */
void data_settle(Data *d);

/* All sums of the step are done, but for the tied one. May be called again. Collective over data and tensor
 * groups. */
void data_wait_grads(Data *d);

/* Adds the two gradients of a bucket that lies on two stages. Collective over the embedding group. */
void data_tied(Data *d);

/* SHARD_PARAMS: starts to gather the unit's weights; at most two units at a time, one gathered twice counts
 * once. Other stages: nothing. Collective over the shard group. */
void data_gather(Data *d, int unit);
/* The unit's weights may be read when this returns. Collective over the shard group. */
void data_ready(Data *d, int unit);
void data_release(Data *d, int unit);

/* After an update of the shards: starts to gather the weights of all buckets where they are held whole, in
 * the order of the forward. overlap: data_ready waits for them, and starts those whose update is under way
 * beside the ops; else they are there on return. Collective over the shard group. */
void data_gather_all(Data *d, int overlap);
#endif
