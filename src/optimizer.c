#include "optimizer.h"
#include <math.h>

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* What this rank squares of t for everybody: its shard of what is counted here. */
static void squared(const Optimizer *o, const Param *t, int64_t *from, int64_t *to)
{
    param_own(o->params, t, from, to);
    *to = least(*to, t->counted);
}

/* sum (device) += squares of this rank's part of t */
static void add_squares(Optimizer *o, Exact *sum, const Param *t, const Flat *f)
{
    int64_t from, to;
    squared(o, t, &from, &to);
    if (from < to)
        o->dev->squares(o->dev, sum, param_at(o->params, t, f, from), to - from, f->type);
}

/* ---- the rules ---- */

typedef struct {
    int moments;
    /* before the norms of a trust ratio: what they need. NULL: nothing */
    void (*prepare)(Device *d, const Update *u);
    enum { NO_TRUST, LAMB_TRUST, LARS_TRUST } trust;
    void (*apply)(Device *d, const Update *u);
} Rule;

static void adam(Device *d, const Update *u) { d->adam(d, u); }
static void sgd(Device *d, const Update *u) { d->sgd(d, u); }
static void lars(Device *d, const Update *u) { d->lars(d, u); }

/* LAMB's direction takes the place of the gradient, which nobody needs any more. */
static void lamb_direction(Device *d, const Update *u) { d->lamb_direction(d, u, (void *)u->g); }
static void lamb(Device *d, const Update *u) { d->lamb_apply(d, u, u->g); }

static const Rule rules[] = {
    [OPTIMIZER_ADAM] = {2, NULL, NO_TRUST, adam},
    [OPTIMIZER_SGD] = {1, NULL, NO_TRUST, sgd},
    [OPTIMIZER_LAMB] = {2, lamb_direction, LAMB_TRUST, lamb},
    [OPTIMIZER_LARS] = {1, NULL, LARS_TRUST, lars},
};

int optimizer_moments(const Config *cfg) { return rules[cfg->optimizer].moments; }

void optimizer_go(Optimizer *o) { o->dev->put(o->dev, o->verdict, &(Verdict){.go = 1}, sizeof *o->verdict); }

void optimizer_open(Optimizer *o, const Config *cfg, Params *params, Device *dev, Arena *run)
{
    *o = (Optimizer){.cfg = cfg, .params = params, .dev = dev};
    for (int i = 0; i < params->nparam && rules[cfg->optimizer].trust; i++)
        o->ratios += params->param[i].def->decay;
    o->verdict = arena_take(run, sizeof *o->verdict);
    o->squares = arena_take(run, sizeof *o->squares);
    o->trust = arena_take(run, (size_t)o->ratios * sizeof *o->trust);
    o->norms = arena_take(run, (size_t)o->ratios * 2 * sizeof *o->norms);
    optimizer_go(o);
    loss_scale_open(&o->loss_scale, cfg);
}

/* Sums of this rank, carried, to those of a group. */
static void add_up(Comm *c, Exact *sums, int64_t n)
{
    c->wait(c, c->all_reduce(c, sums, n * EXACT_WORDS, I64, OP_SUM));
}

void optimizer_judge(Optimizer *o, const double *sums, double nominal, int stop)
{
    Params *p = o->params;
    Device *d = o->dev;
    d->zero(d, o->squares, sizeof *o->squares);
    /* with hybrid sharding every copy has the same shards: the first one speaks */
    for (int i = 0; i < p->nparam && p->data.copies->rank == 0; i++)
        add_squares(o, o->squares, &p->param[i], &p->data.grad);
    d->carry(d, o->squares, 1);
    add_up((Comm *)&p->grid->all, o->squares, 1);
    d->verdict(d, o->verdict, sums, o->squares, nominal, o->loss_scale.scale, o->cfg->clip_grad, stop);
}

Verdict optimizer_verdict(Optimizer *o)
{
    Verdict v = {0};
    o->dev->get(o->dev, &v, o->verdict, sizeof v);
    return v;
}

const char *optimizer_blame(Optimizer *o, const Verdict *v)
{
    Params *p = o->params;
    Device *d = o->dev;
    Comm *all = (Comm *)&p->grid->all;
    int64_t first = INT64_MAX;
    if (!v->bad)
        return isfinite(v->norm) ? NULL : "the sum over all tensors";
    for (int i = 0; i < p->nparam && p->data.copies->rank == 0; i++) {
        Exact sum = {0};
        d->zero(d, o->squares, sizeof *o->squares);
        add_squares(o, o->squares, &p->param[i], &p->data.grad);
        d->get(d, &sum, o->squares, sizeof sum);
        if (sum.bad)
            first = least(first, p->param[i].number);
    }
    all->wait(all, all->all_reduce(all, &first, 1, I64, OP_MIN));
    param_name(p->cfg, (int)first, o->bad, sizeof o->bad);
    return o->bad;
}

/* ---- the update ---- */

/* trust: the ratio of t on the device, NULL where it has none. */
static Update update_of(const Optimizer *o, const Param *t, double lr, const double *trust)
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
                    .verdict = o->verdict, .trust = trust, .lr = lr, .beta1 = c->adam_beta1, .beta2 = c->adam_beta2, .eps = c->adam_eps,
                    .wd = t->def->decay ? c->weight_decay : 0, .bias1 = 1 - pow(c->adam_beta1, step),
                    .bias2 = 1 - pow(c->adam_beta2, step), .momentum = c->sgd_momentum,
                    .nesterov = c->sgd_nesterov};
}

/* The k-th pair of sums; NULL while counting. */
static Exact *pair_of(const Optimizer *o, int k, int which) { return o->norms ? o->norms + 2 * k + which : NULL; }

/* Norms of every tensor that decays, whole, over its shards and its slices: one message for all of them. Biases and
 * gains take the plain step, as in every published training recipe of LAMB and LARS. */
static void find_trust(Optimizer *o, const Rule *rule)
{
    const Config *c = o->cfg;
    Params *p = o->params;
    Device *d = o->dev;
    int n = 2 * o->ratios, tied = -1, k = 0;
    d->zero(d, o->norms, (size_t)n * sizeof *o->norms);
    for (int i = 0; i < p->nparam; i++) {
        const Param *t = &p->param[i];
        if (!t->def->decay)
            continue;
        add_squares(o, pair_of(o, k, 0), t, &p->data.master);
        add_squares(o, pair_of(o, k, 1), t, &p->data.grad);
        if (t->bucket == p->data.tied)
            tied = k;
        k++;
    }
    d->carry(d, o->norms, n);
    add_up(p->data.shard, o->norms, n);
    d->carry(d, o->norms, n);
    add_up((Comm *)&p->grid->axis[AXIS_TP], o->norms, n);
    if (tied >= 0) {   /* the copy has counted nothing */
        d->carry(d, pair_of(o, tied, 0), 2);
        add_up(p->data.embedding, pair_of(o, tied, 0), 2);
    }
    d->trust(d, o->trust, o->norms, o->ratios, rule->trust == LARS_TRUST, c->lars_trust_coefficient, c->weight_decay,
             o->verdict);
}

void optimizer_step(Optimizer *o, double lr)
{
    const Rule *rule = &rules[o->cfg->optimizer];
    Params *p = o->params;
    o->updates++;
    for (int i = 0; i < p->nparam && rule->prepare; i++) {
        Update u = update_of(o, &p->param[i], lr, NULL);
        if (u.n)
            rule->prepare(o->dev, &u);
    }
    if (rule->trust)
        find_trust(o, rule);
    for (int i = 0, k = 0; i < p->nparam; i++) {
        const double *trust = NULL;
        if (rule->trust && p->param[i].def->decay && o->trust)
            trust = &o->trust[k++];
        Update u = update_of(o, &p->param[i], lr, trust);
        if (u.n)
            rule->apply(o->dev, &u);
    }
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
