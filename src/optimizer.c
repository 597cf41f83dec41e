#include "optimizer.h"
#include <math.h>
#include <string.h>

static int64_t blocks_of(int64_t n) { return (n + SUMSQ_BLOCK - 1) / SUMSQ_BLOCK; }

static double square_of(Optimizer *o, const void *x, int64_t n)
{
    double total = 0;
    o->dev->sumsq(o->dev, o->partial, x, n, o->params->real);
    for (int64_t b = 0; b < blocks_of(n); b++)
        total += o->partial[b];
    return total;
}

/* ---- the rules ---- */

static void adam(Optimizer *o, const Param *t, Update *u) { (void)t, o->dev->adam(o->dev, u); }
static void sgd(Optimizer *o, const Param *t, Update *u) { (void)t, o->dev->sgd(o->dev, u); }

/* Layer-wise adaptation is for the tensors that decay; biases and gains take the plain step, as in every published
 * training recipe of LAMB and LARS. A zero norm on either side also means a ratio of 1. */
static void lamb(Optimizer *o, const Param *t, Update *u)
{
    o->dev->lamb_direction(o->dev, u, o->direction);
    u->trust = 1;
    if (t->def->decay) {
        double w = sqrt(square_of(o, u->w, u->n)), step = sqrt(square_of(o, o->direction, u->n));
        u->trust = w > 0 && step > 0 ? w / step : 1;
    }
    o->dev->lamb_apply(o->dev, u, o->direction);
}

static void lars(Optimizer *o, const Param *t, Update *u)
{
    u->trust = 1;
    if (t->def->decay) {
        double w = sqrt(square_of(o, u->w, u->n)), g = u->gscale * sqrt(o->square[t - o->params->param]);
        u->trust = w > 0 && g > 0 ? o->cfg->lars_trust_coefficient * w / (g + u->wd * w) : 1;
    }
    o->dev->lars(o->dev, u);
}

typedef struct {
    int moments, direction;
    void (*update)(Optimizer *o, const Param *t, Update *u);
} Rule;

static const Rule rules[] = {
    [OPTIMIZER_ADAM] = {2, 0, adam},
    [OPTIMIZER_SGD] = {1, 0, sgd},
    [OPTIMIZER_LAMB] = {2, 1, lamb},
    [OPTIMIZER_LARS] = {1, 0, lars},
};

int optimizer_moments(const Config *cfg) { return rules[cfg->optimizer].moments; }

void optimizer_open(Optimizer *o, const Config *cfg, Params *params, Device *dev, Arena *run)
{
    int64_t most = 0;
    *o = (Optimizer){.cfg = cfg, .params = params, .dev = dev};
    for (int i = 0; i < params->nparam; i++)
        most = params->param[i].n > most ? params->param[i].n : most;
    o->partial = arena_take(run, (size_t)blocks_of(most) * sizeof *o->partial);
    o->square = arena_take(run, (size_t)params->nparam * sizeof *o->square);
    if (rules[cfg->optimizer].direction)
        o->direction = arena_take(run, (size_t)most * dtype_size(params->real));
    loss_scale_open(&o->loss_scale, cfg);
}

double optimizer_norm(Optimizer *o, double gscale, const char **bad)
{
    Params *p = o->params;
    double total = 0;
    *bad = NULL;
    for (int i = 0; i < p->nparam; i++) {
        o->square[i] = square_of(o, param_at(p, &p->param[i], &p->data.grad, 0), p->param[i].n);
        total += o->square[i];
        if (!*bad && !isfinite(o->square[i]))
            *bad = p->param[i].name;
    }
    if (!*bad && !isfinite(total))
        *bad = "the sum over all tensors";
    return sqrt(total) * gscale;
}

void optimizer_step(Optimizer *o, double lr, double gscale)
{
    const Config *c = o->cfg;
    Params *p = o->params;
    double t = (double)++o->updates;
    for (int i = 0; i < p->nparam; i++) {
        const Param *q = &p->param[i];
        Update u = {.n = q->n, .w = param_at(p, q, &p->data.master, 0), .g = param_at(p, q, &p->data.grad, 0),
                    .m = param_at(p, q, &p->data.moment[0], 0), .v = param_at(p, q, &p->data.moment[1], 0),
                    .out = p->type == p->real ? NULL : param_at(p, q, &p->data.weight, 0), .out_type = p->type,
                    .gscale = gscale, .lr = lr, .beta1 = c->adam_beta1, .beta2 = c->adam_beta2, .eps = c->adam_eps,
                    .wd = q->def->decay ? c->weight_decay : 0, .bias1 = 1 - pow(c->adam_beta1, t),
                    .bias2 = 1 - pow(c->adam_beta2, t), .momentum = c->sgd_momentum, .trust = 1,
                    .nesterov = c->sgd_nesterov};
        rules[c->optimizer].update(o, q, &u);
    }
}

double optimizer_clip(const Config *cfg, double norm)
{
    double coefficient = cfg->clip_grad / (norm + 1e-6);
    return cfg->clip_grad > 0 && coefficient < 1 ? coefficient : 1;
}

void loss_scale_open(LossScale *s, const Config *cfg)
{
    int fp16 = cfg->params_dtype == PARAMS_DTYPE_FP16, fixed = !isnan(cfg->loss_scale);
    *s = (LossScale){.scale = !fp16 ? 1 : fixed ? cfg->loss_scale : cfg->initial_loss_scale, .tolerance = cfg->hysteresis};
}

int loss_scale_update(LossScale *s, const Config *cfg, int overflow)
{
    if (cfg->params_dtype != PARAMS_DTYPE_FP16 || !isnan(cfg->loss_scale))
        return 1;
    if (overflow) {
        int lowest = s->scale <= cfg->min_loss_scale;
        s->good = 0;
        if (--s->tolerance > 0)
            return 1;
        s->scale = fmax(s->scale / 2, cfg->min_loss_scale);
        return !lowest;
    }
    if (++s->good == cfg->loss_scale_window) {
        s->good = 0;
        s->tolerance = cfg->hysteresis;
        s->scale *= 2;
    }
    return 1;
}
