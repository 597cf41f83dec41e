/* optimizer -- update rules as rows of a table, the global gradient norm and clip, fp16's loss scale.
 *
 * Gradients arrive as sums over microbatches times a constant; the verdict on the step takes that constant
 * out (1 / loss scale, tokens of the batch) and clips; it is applied inside the update, never in a pass of
 * its own. The verdict is made and used on the device: between the last gradient and the next forward the
 * host waits for nothing. Two-dimensional parameters decay. The padded rows of the vocabulary are zero, have
 * zero gradients and so stay zero in every rule.
 *
 * Norms go over this rank's shards of what it counts; sums of blocks of SUMSQ_BLOCK elements are added
 * exactly (exact.h), so that a norm has the same bits however the parameters are spread over pipeline and
 * data ranks. */
#ifndef OPTIMIZER_H
#define OPTIMIZER_H
#include "exact.h"
#include "params.h"

/* Dynamic loss scale of fp16 (Micikevicius et al. 2018, arXiv:1710.03740, sec 3.2; rules of Megatron-LM's
 * DynamicGradScaler): halved when `hysteresis` overflows have come since the last growth, doubled after a
 * window of good steps. Constant for every other type. */
typedef struct { double scale; int64_t good, tolerance; } LossScale;

typedef struct { Squares *list; int n; } SquaresList;

typedef struct {
    const Config *cfg;
    Params *params;
    Device *dev;
    int64_t updates;           /* done so far: Adam's t */
    LossScale loss_scale;
    /* on the device */
    Verdict *verdict;          /* on this step */
    Exact *squares;            /* of the gradient */
    double *trust;             /* [ratios] LAMB's and LARS's ratio of this step */
    Exact *norms;              /* [ratios, 2] squares of the weight, and of its step or gradient */
    int ratios;                /* tensors that can have one: those that decay; 0 with other rules */
    /* what a step goes over of this rank's shards */
    SquaresList of_gradient, of_pairs, of_masters;     /* into `squares`; into `norms`; into `squares` */
    Updated *updated;          /* by bucket: those of bucket b from first[b] on, */
    int *first;                /* [buckets + 1] */
    int tied;                  /* the pair of the tensor that another stage has too, -1: none */
    char bad[96];              /* the tensor to blame */
} Optimizer;

/* First and second moments that the configured rule keeps: 1 or 2. */
int optimizer_moments(const Config *cfg);

/* Takes its work memory from `run` (which may be counting). */
void optimizer_open(Optimizer *o, const Config *cfg, Params *params, Device *dev, Arena *run);
void optimizer_close(Optimizer *o);

/* The verdict on this step: sums [2] (device) are those of the losses and of their masks, all ranks together,
 * nominal the tokens that the gradients were divided by; the norm counts every parameter of the model once.
 * stop: nothing is updated when loss or norm are not finite. After data_wait_grads and data_tied. Waits for
 * nothing; collective over all ranks. */
void optimizer_judge(Optimizer *o, const double *sums, double nominal, int stop);
/* Waits for it and returns it. */
Verdict optimizer_verdict(Optimizer *o);

/* Updates go on after a step that was left out. */
void optimizer_go(Optimizer *o);

/* Which tensor's gradient is not finite, the first in the model's order; "the sum over all tensors" when each
 * is; NULL when v has found nothing. Waits; collective over all ranks. */
const char *optimizer_blame(Optimizer *o, const Verdict *v);

/* One update of what this rank updates, as the verdict says; writes the storage copies, which data_gather_all
 * then brings to the others. What has its moments in mapped memory is updated beside the ops, bucket by
 * bucket in the order of the next forward (data_updating). The gradients are spent. Waits for nothing;
 * collective over the shard, tensor and embedding groups. */
void optimizer_step(Optimizer *o, double lr);

/* How many numbers of the whole gradient are 0, padding left out, each parameter of the model once; before
 * the update. Waits; collective over all ranks. */
double optimizer_zeros(const Optimizer *o);
/* The norm of the whole model, each parameter once, behind the updates so far. Waits; collective over all
 * ranks. */
double optimizer_params_norm(Optimizer *o);

void loss_scale_open(LossScale *s, const Config *cfg);
/* After a step. Returns 0 when an overflow comes although the scale is at its minimum. */
int loss_scale_update(LossScale *s, const Config *cfg, int overflow);
#endif
