/* data -- data parallelism: gradients are added over the ranks that hold the same parameters, and ZeRO cuts
 * what those ranks would otherwise all hold into shards (Rajbhandari et al. 2020, arXiv:1910.02054, sec 5).
 *
 * A rank's parameters lie in one flat space of elements. The space is cut into buckets; one message carries
 * one bucket. The length of a bucket is a multiple of shards * SUMSQ_BLOCK; shard r of a bucket is the r-th
 * of `shards` equal parts. An array over the flat space is either whole, or sharded: then it holds this
 * rank's shard of every bucket, one behind the other. The buckets of experts are reduced and sharded over
 * groups of their own (DataGroups), so that their shards are another part of the bucket than those of others.
 *
 *   stage           weights            gradients          masters, moments     name in the paper
 *   SHARD_NONE      whole              whole              whole                 -
 *   SHARD_OPTIM     whole              whole              shard                 P_os
 *   SHARD_GRADS     whole              shard + window     shard                 P_os+g
 *   SHARD_PARAMS    shard + window     shard + window     shard                 P_os+g+p
 *
 * A gradient has two types: `kept`, in which a step's microbatches are added up, and `sent`, in which the
 * messages of the data groups carry it. They are the same, but for one case: kept in F32 and sent in BF16.
 * Then whole gradients are rounded into a window for their message, and what comes back is F32 again; sharded
 * ones are computed in a window of BF16. A bucket whose shard group has one rank has a place in these windows
 * too. Partial sums and the tied embedding are added up as they are kept.
 *
 * fp32 and fp64 weights are their own masters: the shard of the masters is a slice of the whole weights. A
 * bf16 weight holds half of its master (half.h): the array of masters has the other half, I16 remainders.
 *
 * A unit is a run of neighbouring parts of the model; its buckets are gathered and reduced together. Two
 * windows hold the whole buckets of one unit each: one unit is computed with while the other is under way.
 * Otherwise a bucket whose shard group has one rank has no place in a window: its shard is the bucket.
 *
 * A backward may run in two phases. D, the gradient of the input, completes the gradients of norms, embedding
 * and head; W, the gradient of the weights, those of linear layers. PHASE_ALL is both at once.
 *
 * One step, in every stage:
 *     data_begin
 *     before a unit's forward or D:   data_gather (ahead), data_ready;   after it: data_release
 *     before a unit's backward:       data_enter;                        after it: data_reduce
 *        (SHARD_NONE, SHARD_OPTIM: reduce only after the unit's last backward of the step)
 *     data_wait_grads, data_tied, the optimizer's update, data_gather_all
 * A function is collective over the group that its comment names: every member calls it in the same order
 * with the same arguments. Functions that name no group are local. Messages start as early as they can and
 * are waited for where their result is needed. Nothing is allocated after data_layout.
 *
 * Order of the sums, in every stage: over the shard group, then over its copies (hybrid sharding), then the
 * partial sums over the tensor group. A reduce_scatter is the slice of an all_reduce, so SHARD_NONE and
 * SHARD_OPTIM give the same bits. SHARD_GRADS and SHARD_PARAMS add reduced microbatches and give the same
 * bits as each other. */
#ifndef DATA_H
#define DATA_H
#include "grid.h"

typedef enum { SHARD_NONE, SHARD_OPTIM, SHARD_GRADS, SHARD_PARAMS } Sharding;    /* order of the option */
typedef enum { PHASE_ALL, PHASE_D, PHASE_W } GradPhase;

/* Flat elements [at, at + n): each member of `comm` holds a part of their gradient's sum. */
typedef struct { int64_t at, n; Comm *comm; } PartialSum;
#define BUCKET_SUMS 3

/* The groups of a bucket: the ranks whose gradients are added, those that share the optimizer's work, and
 * those with the same shard. */
typedef struct { Comm *data, *shard, *copies; } DataGroups;

typedef struct {
    int64_t at, n;             /* flat elements [at, at + n) */
    int64_t own;               /* where this rank's shard of the bucket starts in a sharded array */
    int expert;                /* bool: parameters of experts */
    GradPhase phase;           /* the phase that completes its gradients: PHASE_D or PHASE_W */
    int sums;                  /* entries of sum */
    PartialSum sum[BUCKET_SUMS];
    char *weight, *grad;       /* address of element `at`; NULL: not held */
    enum { NO_GATHER, PUT_OFF, UNDER_WAY } gather;     /* of the weights, after the update */
    int reduced;               /* reductions since data_begin */
    int64_t update;            /* ticket of an update on the side stream; 0: none, or ops wait already */
    Token token;               /* of the gather */
} Bucket;

/* Buckets [first, first + count), and bucket `also` that lies elsewhere; -1: none. */
typedef struct { int first, count, also; } Unit;

/* An array over the flat space, or over this rank's shards of it. Flat elements [0, resident) lie at p, the
 * others at `offloaded`; `resident` is the start of a bucket. p NULL: the array is counted, or absent. */
typedef struct {
    char *p, *offloaded;
    int64_t resident;
    int64_t n[2];              /* elements at p, and at offloaded */
    Dtype type;
    int sharded;
    int block; /* elements of the space that an entry of `type` is for: 1, or MOMENT_BLOCK */
} Flat;

/* One bucket's message: into a window, out of it, or of whole gradients at `at`. */
typedef struct { int bucket; char *at; Token token; } Transfer;
typedef struct {
    char *base;                /* window 0 grows up from here, window 1 down */
    int unit;                  /* whose buckets it holds; -1: free */
    int held;                  /* weights: data_gather calls not yet released */
    int n;                     /* entries of list */
    Transfer *list;            /* [buckets + 1] */
} UnitWindow;

/* Flat elements [at, at + n) of a bucket, whose gradient comes from matrix products: it is not cleared when a
 * step begins, the first product overwrites it. */
typedef struct {
    int64_t at, n;
    int bucket;
    char there;                /* bool: the gradient has a value in this step, or in this window */
} GradProduct;

/* Sees the calls of a model that computes: data_ready, data_enter and data_clear. begin comes before each of
 * them, end after it.
 *   at     in  unit; of data_clear the product
 *   phase  in  of data_enter */
typedef enum { DATA_READY, DATA_ENTER, DATA_CLEAR } DataCall;
typedef struct {
    void *ctx;
    void (*begin)(void *ctx, DataCall call, int at, GradPhase phase);
    void (*end)(void *ctx);
} DataWatch;

typedef struct {
    Sharding stage;
    Device *dev;
    const DataWatch *watch;    /* NULL: nobody sees the calls */
    Dtype type;                /* of weights */
    Dtype real;                /* of masters */
    MomentType stored[2];      /* how moments are stored; MOMENT_FP32: real */
    Dtype kept, sent;          /* of gradients: sums over microbatches; messages of the data groups */
    DataGroups groups[2];      /* of buckets that are not expert's, and that are */
    Comm *embedding;
    int copied;                /* bool: some shards have copies on other ranks */
    int64_t elems;             /* length of the flat space */
    int64_t own;               /* length of this rank's shards of it */
    int buckets, units;
    Bucket *bucket;            /* [buckets] in the order of the forward */
    Unit *unit;                /* [units] */
    int tied;                  /* the bucket that another stage has too; -1: none */
    int products;              /* entries of product */
    GradProduct *product;      /* [products] in the order of `at` */
    int64_t resident;          /* masters and moments of elements [0, resident) lie on the device */
    Arena *mapped;             /* host memory for the masters and moments of the others */
    int64_t cleared;           /* ticket of the zeroing of offloaded gradients; 0: as above */

    Flat weight, grad, moment[2];
    Flat scale[2];             /* of the blocks of moments that have scales (moments.h) */
    Flat master;               /* real; I16 with `halves`; weight's where weights are their own masters */
    int halves;                /* bool: a master is the bf16 weight and the remainder in `master` */
    int gradients;             /* bool: there are gradients and masters */
    int moments;               /* how many moments there are: 0 to 2 */
    int64_t window[2];         /* elements of the two largest units together: of weights, of gradients */
    UnitWindow in[2];          /* weights */
    UnitWindow out[2];         /* gradients; whole gradients sent as kept: out[0] lists their reductions */
    int turn;                  /* the window of out that the next data_enter takes */
    int open;                  /* bool: between data_begin and data_wait_grads */
    Token *token;              /* [buckets * BUCKET_SUMS] */
    int64_t bytes[3];          /* on the device, windows too: parameters; gradients; masters, moments */
} Data;

/* Sets up the buckets; nothing is laid out yet. Local.
 *   stage    in             SHARD_NONE is taken where all shard groups have one rank
 *   grid     in             its groups data, shard, copies, embedding and expert are kept, not copied
 *   type     in             of weights
 *   real     in             of masters, moments and gradients, unless data_moments and data_gradients say
 *                           otherwise
 *   bucket   in  [buckets]  on the heap, d's from now on; at, n, expert, phase and sums are set
 *   tied     in             the bucket that another stage has too; -1: none */
void data_open(Data *d, Sharding stage, Grid *grid, Dtype type, Dtype real, Bucket *bucket, int buckets,
               int tied);
void data_close(Data *d);

/* Sets the types of gradients, before data_units. kept: `real` or BF16. sent: kept, or BF16. */
void data_gradients(Data *d, Dtype kept, Dtype sent);
/* Sets how moments are stored, before data_layout. */
void data_moments(Data *d, MomentType first, MomentType second);
/* The type of what Bucket.grad points at: gradients as layers write them. */
Dtype data_written(const Data *d);

/* Sets or replaces the units, before data_layout.
 *   unit     in  [units]    on the heap, d's from now on */
void data_units(Data *d, Unit *unit, int units);

/* Says which gradients come from products, before data_layout. In a step each is cleared only where it was
 * asked for with data_clear, or nothing was written to it.
 *   product  in  [products]  in the order of `at`; on the heap, d's from now on */
void data_products(Data *d, GradProduct *product, int products);
/* Clears the gradient of a product that has no value yet: what comes next adds to it. */
void data_clear(const Data *d, int product);

/* Moves masters and moments of the last buckets to host memory, before data_layout. Weights that are their
 * own masters stay on the device.
 *   share    in             0 to 1: as few buckets move as hold at least this share of the elements
 *   mapped   in             arena of host memory that ops can use; may be counting */
void data_offload(Data *d, double share, Arena *mapped);

/* Takes all arrays and windows from `run`.
 *   run        in/out       arena on dev; may be counting
 *   gradients  in           bool; 0: weights alone
 *   moments    in           0 to 2 */
void data_layout(Data *d, Device *dev, Arena *run, int gradients, int moments);

/* The groups of a bucket. */
const DataGroups *data_groups(const Data *d, int bucket);
/* This rank's shard of a bucket: flat elements [*from, *to). */
void data_own(const Data *d, int bucket, int64_t *from, int64_t *to);
/* What this rank updates of a bucket: the whole of it with SHARD_NONE, else its shard. */
void data_updated(const Data *d, int bucket, int64_t *from, int64_t *to);
/* The address of flat element `at` of array f, in `bucket`, which this rank must hold; of the scales, that of
 * the block that starts there. NULL: counting. */
void *data_at(const Data *d, const Flat *f, int bucket, int64_t at);

/* Clears the gradients: a step starts. */
void data_begin(Data *d);

/* SHARD_GRADS, SHARD_PARAMS: gives the unit's buckets of this phase zeroed gradients in a window; may wait
 * for an earlier data_reduce. Collective over the shard groups. */
void data_enter(Data *d, int unit, GradPhase phase);

/* Starts the reduction of the unit's gradients of this phase: final ones where gradients are whole, those of
 * one microbatch in a window. Nobody may touch these gradients until data_wait_grads or the next data_enter.
 * Collective over the data groups. */
void data_reduce(Data *d, int unit, GradPhase phase);

/* The first bucket whose masters and moments lie in host memory; without one, the number of buckets. */
int data_first_offloaded(const Data *d);
/* Says that the side stream updates the bucket. Ops that read its weights or gradient are made to wait for
 * `ticket`, as late as possible. */
void data_updating(Data *d, int bucket, int64_t ticket);
/* Makes later ops wait for every update and every zeroing on the side stream. Call it before reading masters
 * or moments, or weights that data_ready has not made ready. */
void data_settle(Data *d);

/* Returns when all sums of the step are done, that of data_tied aside. Further calls do nothing. Collective
 * over the data and tensor groups. */
void data_wait_grads(Data *d);

/* Adds the two gradients of the bucket that lies on two stages. Collective over the embedding group. */
void data_tied(Data *d);

/* SHARD_PARAMS: starts to gather the unit's weights, or holds them once more where they are gathered already.
 * At most two units at a time. Other stages: does nothing. Collective over the shard groups. */
void data_gather(Data *d, int unit);
/* The unit's weights may be read when this returns. Collective over the shard groups. */
void data_ready(Data *d, int unit);
/* SHARD_PARAMS: takes back one data_gather; after the last one the window is free. */
void data_release(Data *d, int unit);

/* SHARD_OPTIM, SHARD_GRADS: starts to gather the updated weights of all buckets, in the order of the
 * forward. Collective over the shard groups.
 *   overlap  in             bool; 0: the weights are there on return; 1: data_ready waits for them, and
 *                           starts the gathers of buckets that the side stream still updates */
void data_gather_all(Data *d, int overlap);
/* Returns when these weights are there. Collective over the shard groups. */
void data_gathered(Data *d);
#endif
