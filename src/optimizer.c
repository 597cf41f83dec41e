#include "optimizer.h"
#include <math.h>
#include <string.h>

static int64_t blocks_of(int64_t n) { return (n + SUMSQ_BLOCK - 1) / SUMSQ_BLOCK; }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* What this rank squares of t for everybody: its shard of what is counted here. */
static void squared(const Optimizer *o, const Param *t, int64_t *from, int64_t *to)
{
    param_own(o->params, t, from, to);
    *to = least(*to, t->counted);
}

static void add_squares(Optimizer *o, Exact *sum, const Param *t, const Flat *f)
{
    int64_t from, to;
    squared(o, t, &from, &to);
    if (from >= to)
        return;
    o->dev->sumsq(o->dev, o->partial, param_at(o->params, t, f, from), to - from, f->type);
    if (o->partial)                    /* else only counting */
        exact_add(sum, o->partial, blocks_of(to - from));
}

/* ---- the rules ---- */

typedef struct {
    int moments;
    /* before the norms of a trust ratio: what they need. NULL: nothing */
    void (*prepare)(Device *d, const Update *u);
    /* the ratio from the norms of a weight and of its step or gradient; NULL: the rule has none */
    double (*trust)(const Optimizer *o, double gscale, double weight, double step);
    void (*apply)(Device *d, const Update *u);
} Rule;

static void adam(Device *d, const Update *u) { d->adam(d, u); }
static void sgd(Device *d, const Update *u) { d->sgd(d, u); }
static void lars(Device *d, const Update *u) { d->lars(d, u); }

/* LAMB's direction takes the place of the gradient, which nobody needs any more. */
static void lamb_direction(Device *d, const Update *u) { d->lamb_direction(d, u, (void *)u->g); }
static void lamb(Device *d, const Update *u) { d->lamb_apply(d, u, u->g); }

/* A zero norm on either side means a ratio of 1. */
static double lamb_trust(const Optimizer *o, double gscale, double weight, double step)
{
    (void)o, (void)gscale;
    return weight > 0 && step > 0 ? weight / step : 1;
}

static double lars_trust(const Optimizer *o, double gscale, double weight, double gradient)
{
    const Config *c = o->cfg;
    double g = gscale * gradient;
    return weight > 0 && g > 0 ? c->lars_trust_coefficient * weight / (g + c->weight_decay * weight) : 1;
}

static const Rule rules[] = {
    [OPTIMIZER_ADAM] = {2, NULL, NULL, adam},
    [OPTIMIZER_SGD] = {1, NULL, NULL, sgd},
    [OPTIMIZER_LAMB] = {2, lamb_direction, lamb_trust, lamb},
    [OPTIMIZER_LARS] = {1, NULL, lars_trust, lars},
};

int optimizer_moments(const Config *cfg) { return rules[cfg->optimizer].moments; }

void optimizer_open(Optimizer *o, const Config *cfg, Params *params, Device *dev, Arena *run)
{
    int64_t most = 0;
    *o = (Optimizer){.cfg = cfg, .params = params, .dev = dev};
    for (int i = 0; i < params->nparam; i++) {
        int64_t from, to;
        squared(o, &params->param[i], &from, &to);
        most = to - from > most ? to - from : most;
        o->ratios += params->param[i].def->decay;
    }
    o->partial = arena_take(run, (size_t)blocks_of(most) * sizeof *o->partial);
    o->trust = arena_take(run, (size_t)params->nparam * sizeof *o->trust);
    o->norms = rules[cfg->optimizer].trust ? arena_take(run, (size_t)o->ratios * 2 * sizeof *o->norms) : NULL;
    loss_scale_open(&o->loss_scale, cfg);
}

static void add_up(Comm *c, Exact *sums, int64_t n)
{
    c->wait(c, c->all_reduce(c, sums, n * EXACT_WORDS, I64, OP_SUM));
}

double optimizer_norm(Optimizer *o, double gscale, const char **bad)
{
    Params *p = o->params;
    Comm *all = (Comm *)&p->grid->all;
    Exact sum = {0};
    int64_t first = INT64_MAX;
    *bad = NULL;
    /* with hybrid sharding every copy has the same shards: the first one speaks */
    for (int i = 0; i < p->nparam && p->data.copies->rank == 0; i++) {
        int64_t before = sum.bad;
        add_squares(o, &sum, &p->param[i], &p->data.grad);
        if (sum.bad > before)
            first = least(first, p->param[i].number);
    }
    exact_carry(&sum);
    add_up(all, &sum, 1);
    double total = exact_round(&sum);
    if (sum.bad) {
        all->wait(all, all->all_reduce(all, &first, 1, I64, OP_MIN));
        param_name(p->cfg, (int)first, o->bad, sizeof o->bad);
        *bad = o->bad;
    } else if (!isfinite(total)) {
        *bad = "the sum over all tensors";
    }
    return sqrt(total) * gscale;
}

/* ---- the update ---- */

static Update update_of(const Optimizer *o, const Param *t, double lr, double gscale)
{
    const Config *c = o->cfg;
    const Params *p = o->params;
    const Data *x = &p->data;
    double step = (double)o->updates;
    int64_t from, to;
    param_updated(p, t, &from, &to);
    if (from >= to)
        return (Update){0};
    return (Update){.n = to - from, .w = param_at(p, t, &x->master, from), .g = param_at(p, t, &x->grad, from),
                    .m = param_at(p, t, &x->moment[0], from), .v = param_at(p, t, &x->moment[1], from),
                    .out = p->type == p->real ? NULL : param_at(p, t, &x->weight, from), .out_type = p->type,
                    .gscale = gscale, .lr = lr, .beta1 = c->adam_beta1, .beta2 = c->adam_beta2, .eps = c->adam_eps,
                    .wd = t->def->decay ? c->weight_decay : 0, .bias1 = 1 - pow(c->adam_beta1, step),
                    .bias2 = 1 - pow(c->adam_beta2, step), .momentum = c->sgd_momentum,
                    .trust = o->trust ? o->trust[t - p->param] : 1, .nesterov = c->sgd_nesterov};
}

/* What find_trust computes and sends, into nothing. */
static void count_trust(Optimizer *o)
{
    Params *p = o->params;
    Exact none = {0};
    for (int i = 0; i < p->nparam; i++)
        if (p->param[i].def->decay) {
            add_squares(o, &none, &p->param[i], &p->data.master);
            add_squares(o, &none, &p->param[i], &p->data.grad);
        }
    add_up(p->data.shard, NULL, o->ratios * 2);
    add_up((Comm *)&p->grid->axis[AXIS_TP], NULL, o->ratios * 2);
}

/* Norms of every tensor that decays, whole, over its shards and its slices: one message for all of them. Biases and
 * gains take the plain step, as in every published training recipe of LAMB and LARS. */
static void find_trust(Optimizer *o, const Rule *rule, double gscale)
{
    Params *p = o->params;
    Exact *e = o->norms, *tied = NULL;
    if (!e) {                          /* only counting */
        count_trust(o);
        return;
    }
    memset(e, 0, (size_t)o->ratios * 2 * sizeof *e);
    for (int i = 0; i < p->nparam; i++) {
        const Param *t = &p->param[i];
        if (!t->def->decay)
            continue;
        add_squares(o, &e[0], t, &p->data.master);
        add_squares(o, &e[1], t, &p->data.grad);
        exact_carry(&e[0]);
        exact_carry(&e[1]);
        if (t->bucket == p->data.tied)
            tied = e;
        e += 2;
    }
    add_up(p->data.shard, o->norms, o->ratios * 2);
    for (int i = 0; i < o->ratios * 2; i++)
        exact_carry(&o->norms[i]);
    add_up((Comm *)&p->grid->axis[AXIS_TP], o->norms, o->ratios * 2);
    if (tied)      /* the copy has counted nothing */
        add_up(p->data.embedding, tied, 2);
    e = o->norms;
    for (int i = 0; i < p->nparam; i++)
        if (p->param[i].def->decay) {
            o->trust[i] = rule->trust(o, gscale, sqrt(exact_round(&e[0])), sqrt(exact_round(&e[1])));
            e += 2;
        }
}

void optimizer_step(Optimizer *o, double lr, double gscale)
{
    const Rule *rule = &rules[o->cfg->optimizer];
    Params *p = o->params;
    o->updates++;
    for (int i = 0; i < p->nparam; i++) {
        if (o->trust)
            o->trust[i] = 1;
        Update u = update_of(o, &p->param[i], lr, gscale);
        if (rule->prepare && u.n)
            rule->prepare(o->dev, &u);
    }
    if (rule->trust)
        find_trust(o, rule, gscale);
    for (int i = 0; i < p->nparam; i++) {
        Update u = update_of(o, &p->param[i], lr, gscale);
        if (u.n)
            rule->apply(o->dev, &u);
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
    *s = (LossScale){.scale = !fp16 ? 1 : fixed ? cfg->loss_scale : cfg->initial_loss_scale,
                     .tolerance = cfg->hysteresis};
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
