/* optimizer -- update rules as rows of a table, the global gradient norm and clip, fp16's loss scale.
 *
 * Gradients arrive as sums over microbatches times a constant; `gscale` takes that constant out (1 / loss scale, tokens of
 * the batch) and is applied inside the norm and the update, never in a pass of its own. Two-dimensional parameters
 * decay. The padded rows of the vocabulary are zero, have zero gradients and so stay zero in every rule. */
#ifndef OPTIMIZER_H
#define OPTIMIZER_H
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
    double *partial;           /* [most blocks of a tensor] */
    double *square;            /* [nparam] sum of squares of each gradient, by optimizer_norm */
    void *direction;           /* real [largest tensor]; LAMB */
} Optimizer;

/* First and second moments that the configured rule keeps: 1 or 2. */
int optimizer_moments(const Config *cfg);

/* Takes its work memory from `run` (which may be counting). */
void optimizer_open(Optimizer *o, const Config *cfg, Params *params, Device *dev, Arena *run);

/* L2 norm of gscale * gradient over all parameters of the model, each once; F64 sums over fixed blocks in one global
 * order. Not finite: *bad names the first tensor that is to blame, else it is NULL. Collective over the model's ranks. */
double optimizer_norm(Optimizer *o, double gscale, const char **bad);

/* One update of every parameter with the gradient times gscale; writes the storage copies. */
void optimizer_step(Optimizer *o, double lr, double gscale);

/* Clip coefficient: clip_grad / (norm + 1e-6) where that is below 1 (Megatron-LM's clip_grads). */
double optimizer_clip(const Config *cfg, double norm);

void loss_scale_open(LossScale *s, const Config *cfg);
/* After a step. Returns 0 when an overflow comes although the scale is at its minimum. */
int loss_scale_update(LossScale *s, const Config *cfg, int overflow);
#endif
