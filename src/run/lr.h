/* lr -- the learning rate as a function of consumed samples, Megatron-LM's OptimizerParamScheduler.
 *
 * Warm-up and decay are counted in samples: iterations times batch size, summed over the batch-size
 * schedule, without steps that fp16 skips. The rate of an update is the rate at the samples consumed before
 * it, so the first update of a warm-up uses lr_warmup_init. After the warm-up the rate is constant, decays
 * from lr to min_lr (linear, cosine, WSD), or falls with the inverse square root. WSD's closing decay: Hu et
 * al. 2024, arXiv:2404.06395. With lr_scaling the rate is multiplied by (batch size of this step /
 * lr_base_batch_size) or by the square root of that (Goyal et al. 2017, arXiv:1706.02677; Krizhevsky
 * 2014, arXiv:1404.5997). */
#ifndef LR_H
#define LR_H
#include "config.h"

/* Samples that the schedule counts for the steps so far, skipped ones included. Where lengths are given in
 * iterations, these are those of as many steps with the present batch sizes: lengths in iterations mean that
 * after a change of the sizes, too. */
int64_t lr_samples(const Config *cfg, int64_t iterations, int64_t consumed_samples);

/* moved: lr_samples, less those of skipped steps, less consumed_samples: 0 where none was skipped and the
 * batch sizes never changed. */
double lr_at(const Config *cfg, int64_t consumed_samples, int64_t moved);
#endif
