/* optimizer -- update rules as rows of a table, the global gradient norm and clip, fp16's loss scale.
 *
 * Gradients arrive as sums over microbatches times a constant; `gscale` takes that constant out (1 / loss scale,
 * tokens of the batch) and is applied inside the norm and the update, never in a pass of its own. Two-dimensional
 * parameters decay. The padded rows of the vocabulary are zero, have zero gradients and so stay zero in every rule.
 *
 * Norms go over this rank's shards of what it counts; sums of blocks of SUMSQ_BLOCK elements are added exactly
 * (exact.h), so that a norm has the same bits however the parameters are spread over pipeline and data ranks. */
#ifndef OPTIMIZER_H
#define OPTIMIZER_H
#include "exact.h"
#include "params.h"

/* Dynamic loss scale of fp16 (Micikevicius et al. 2018, arXiv:1710.03740, sec 3.2; rules of Megatron-LM's
 * DynamicGradScaler): halved when `hysteresis` overflows have come since the last growth, doubled after a window of
 * good steps. Constant for every other type. */
typedef struct { double scale; int64_t good, tolerance; } LossScale;

typedef struct {
    const Config *cfg;
    Params *params;
    Device *dev;
    int64_t updates;           /* done so far: Adam's t */
    LossScale loss_scale;
    double *partial;           /* [most blocks of a tensor's shard] */
    double *trust;             /* [nparam] LAMB's and LARS's ratio of this step, 1 elsewhere */
    int ratios;                /* tensors that can have one */
    Exact *norms;              /* [ratios, 2] squares of the weight, and of its step or gradient */
    char bad[96];              /* the tensor to blame */
} Optimizer;

/* First and second moments that the configured rule keeps: 1 or 2. */
int optimizer_moments(const Config *cfg);

/* Takes its work memory from `run` (which may be counting). */
void optimizer_open(Optimizer *o, const Config *cfg, Params *params, Device *dev, Arena *run);

/* L2 norm of gscale * gradient over all parameters of the model, each once; after data_wait_grads and data_tied. Not
 * finite: *bad names the first tensor of the model's order that is to blame, else it is NULL. Collective over all
 * ranks. */
double optimizer_norm(Optimizer *o, double gscale, const char **bad);

/* One update of what this rank updates with the gradient times gscale; writes the storage copies, which data_gather_all
 * then brings to the others. The gradients are spent. Collective over the shard, tensor and embedding groups. */
void optimizer_step(Optimizer *o, double lr, double gscale);

/* Clip coefficient: clip_grad / (norm + 1e-6) where that is below 1 (Megatron-LM's clip_grads). */
double optimizer_clip(const Config *cfg, double norm);

void loss_scale_open(LossScale *s, const Config *cfg);
/* After a step. Returns 0 when an overflow comes although the scale is at its minimum. */
int loss_scale_update(LossScale *s, const Config *cfg, int overflow);
#endif
