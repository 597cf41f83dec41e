/* lr -- the learning rate after a number of consumed samples */
#include "lr.h"
#include <math.h>

/* A length in samples, from one given in iterations or, for runs counted in samples, in samples. */
static double span(const Config *c, int64_t iters, int64_t samples)
{
    if (c->train_samples != CFG_ABSENT)
        return samples == CFG_ABSENT ? 0 : (double)samples;
    return iters == CFG_ABSENT ? 0 : (double)config_samples_after(c, iters);
}

/* Samples of WSD's closing decay, which ends with `decay`. */
static double closing(const Config *c, double decay)
{
    if (c->train_samples != CFG_ABSENT || c->lr_wsd_decay_iters == CFG_ABSENT)
        return span(c, c->lr_wsd_decay_iters, c->lr_wsd_decay_samples);
    int64_t before = c->lr_decay_iters - c->lr_wsd_decay_iters;
    return decay - (double)config_samples_after(c, before > 0 ? before : 0);
}

/* Share of lr - min_lr that is left at `ratio` (0 to 1) of the WSD decay. */
static double wsd_left(const Config *c, double ratio)
{
    switch (c->lr_wsd_decay_style) {
    case LR_WSD_DECAY_STYLE_LINEAR:      return 1 - ratio;
    case LR_WSD_DECAY_STYLE_COSINE:      return 0.5 * (cos(M_PI * ratio) + 1);
    case LR_WSD_DECAY_STYLE_EXPONENTIAL: return 2 * pow(0.5, ratio) - 1;
    default:                             return 1 - sqrt(ratio);
    }
}

static double unscaled(const Config *c, double steps)
{
    double decay = span(c, c->lr_decay_iters, c->lr_decay_samples);
    double warmup = isnan(c->lr_warmup_fraction) ? span(c, c->lr_warmup_iters, c->lr_warmup_samples)
                                                 : c->lr_warmup_fraction * decay;
    if (warmup > 0 && steps <= warmup)
        return c->lr_warmup_init + (c->lr - c->lr_warmup_init) * steps / warmup;
    if (c->lr_decay_style == LR_DECAY_STYLE_CONSTANT)
        return c->lr;
    if (steps > decay)
        return c->min_lr;
    if (c->lr_decay_style == LR_DECAY_STYLE_INVERSE_SQUARE_ROOT)
        return fmax(c->min_lr, c->lr * sqrt(fmax(warmup, 1)) / sqrt(fmax(steps, 1)));
    double ratio = (steps - warmup) / (decay - warmup), left;
    if (c->lr_decay_style == LR_DECAY_STYLE_LINEAR) {
        left = 1 - ratio;
    } else if (c->lr_decay_style == LR_DECAY_STYLE_COSINE) {
        left = 0.5 * (cos(M_PI * ratio) + 1);
    } else {
        double tail = closing(c, decay), start = decay - tail;
        left = steps <= start ? 1 : wsd_left(c, (steps - start) / tail);
    }
    return c->min_lr + left * (c->lr - c->min_lr);
}

int64_t lr_samples(const Config *c, int64_t iterations, int64_t consumed_samples)
{
    return c->train_samples == CFG_ABSENT ? config_samples_after(c, iterations) : consumed_samples;
}

double lr_at(const Config *c, int64_t consumed_samples, int64_t moved)
{
    double lr = unscaled(c, (double)(consumed_samples + moved));
    if (c->lr_scaling == LR_SCALING_NONE)
        return lr;
    double b = (double)config_batch_at(c, consumed_samples) / (double)c->lr_base_batch_size;
    return lr * (c->lr_scaling == LR_SCALING_LINEAR ? b : sqrt(b));
}
