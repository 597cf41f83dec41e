/* optimizer -- update rules as rows of a table, the global gradient norm and clip, fp16's loss scale.
 *
 * Gradients arrive as sums over microbatches times a constant (loss scale / tokens of the batch). The
 * verdict on the step holds the factor that takes this constant out and clips; the update applies it, no
 * pass of its own. The verdict is made and used on the device: between the last gradient and the next
 * forward the host waits for nothing. Two-dimensional parameters decay. The padded rows of the
 * vocabulary are zero, have zero gradients and so stay zero in every rule.
 *
 * A norm is summed over the shards of all ranks, each parameter once. Sums of blocks of SUMSQ_BLOCK
 * elements are added exactly (exact.h), so a norm has the same bits however the parameters are spread
 * over pipeline and data ranks. */
#ifndef OPTIMIZER_H
#define OPTIMIZER_H
#include "exact.h"
#include "params.h"

/* Dynamic loss scale of fp16 (Micikevicius et al. 2018, arXiv:1710.03740, sec 3.2; rules of
 * Megatron-LM's DynamicGradScaler): halved when `hysteresis` overflows have come since the last growth,
 * doubled after a window of good steps. Constant for every other type. */
typedef struct {
    double scale;
    int64_t good;              /* steps since the last overflow or growth of the scale */
    int64_t tolerance;         /* overflows left before the scale is halved */
    int64_t overflows;         /* overflows in a row at a scale that cannot become smaller */
} LossScale;

typedef struct { Squares *list; int n; } SquaresList;

typedef struct {
    const Config *cfg;
    Params *params;
    Device *dev;
    int64_t updates;           /* updates so far: Adam's t. A held step counts until optimizer_held */
    LossScale loss_scale;
    /* in device memory */
    Verdict *verdict;          /* on this step */
    Exact *squares;            /* sum of squares over a SquaresList */
    double *trust;             /* [ratios] trust ratios of LAMB or LARS in this step */
    Exact *norms;              /* [ratios, 2] squares of the weight, and of its step or gradient */
    int ratios;                /* tensors with a trust ratio: those that decay; 0 with other rules */
    int dense;                 /* the first `dense` of these are not expert's */
    /* this rank's shards that a step reads or updates, listed once */
    SquaresList of_gradient;   /* gradients, summed into `squares` */
    SquaresList of_pairs;      /* masters and steps or gradients, summed into `norms` */
    SquaresList of_masters;    /* masters, summed into `squares` */
    Updated *updated;          /* shards by bucket: bucket b has [first[b], first[b + 1]) */
    int *first;                /* [buckets + 1] */
    int tied;                  /* pair in `norms` of the tensor that another stage also has; -1: none */
    char bad[96];              /* name that optimizer_blame or optimizer_largest has found */
} Optimizer;

/* How many moments the configured rule keeps: 1 or 2. */
int optimizer_moments(const Config *cfg);

/* Takes its work memory from `run`, which may only count. */
void optimizer_open(Optimizer *o, const Config *cfg, Params *params, Device *dev, Arena *run);
void optimizer_close(Optimizer *o);

/* Makes the verdict on this step. Call after data_wait_grads and data_tied. Waits for nothing;
 * collective over all ranks.
 *   sums     in  [2]  on the device: the losses and their masks, summed over all ranks
 *   nominal  in  tokens that the gradients were divided by
 *   stop     in  bool: nothing is updated when loss or norm are not finite
 *   limits   in  what holds the update of this step alone */
void optimizer_judge(Optimizer *o, const double *sums, double nominal, int stop, Limits limits);
/* Waits for the verdict and returns it. */
Verdict optimizer_verdict(Optimizer *o);

/* Lets updates happen again after a step without one. */
void optimizer_go(Optimizer *o);

/* The host has seen that a step was held: it does not count among the updates. */
void optimizer_held(Optimizer *o);

/* The name of the first tensor, in the model's order, whose gradient is not finite; "the sum over
 * all tensors" when each of them is finite; NULL when v has found nothing. Waits; collective over
 * all ranks.
 *   rank  out  the first rank in whose share of that gradient it is; -1: no tensor is named; may be NULL */
const char *optimizer_blame(Optimizer *o, const Verdict *v, int *rank);

/* The tensor of the whole model with the largest gradient, and the norm of that. gscale: the verdict's.
 * Waits; collective over all ranks. */
const char *optimizer_largest(Optimizer *o, double gscale, double *norm);

/* Updates this rank's shards as the verdict says, and writes their storage copies, which data_gather_all
 * then brings to the other ranks. Shards with moments in mapped memory are updated on the side stream,
 * bucket by bucket in the order of the next forward (data_updating). Overwrites the gradients. Waits for
 * nothing; collective over the shard, tensor and embedding groups. */
void optimizer_step(Optimizer *o, double lr);

/* How many elements of the whole gradient are 0, without padding, each parameter once. Call before the
 * update. Waits; collective over all ranks. */
double optimizer_zeros(const Optimizer *o);
/* The norm of the whole model after the updates so far, each parameter once. Waits; collective over all
 * ranks. */
double optimizer_params_norm(Optimizer *o);

/* Whether the scale follows the overflows: fp16 without a fixed one. */
int loss_scale_moves(const Config *cfg);
void loss_scale_open(LossScale *s, const Config *cfg);
/* Counts a step that did or did not overflow. Returns 0 when it overflows at the smallest or at a fixed scale
 * and the steps before it did so too, OVERFLOWS_MOST in all. */
enum { OVERFLOWS_MOST = 100 };
int loss_scale_update(LossScale *s, const Config *cfg, int overflow);
#endif
