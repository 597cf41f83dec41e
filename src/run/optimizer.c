/* optimizer -- update rules, the norm of the gradient and its clip, the loss scale of fp16 */
#include "optimizer.h"
#include <math.h>
#include <stdlib.h>

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* This rank's share of t in a norm: its shard of the elements that are counted here; n = 0: none. */
static Squares squares_of(const Optimizer *o, Exact *sum, const Param *t, const Flat *f)
{
    int64_t from, to;
    param_own(o->params, t, &from, &to);
    to = least(to, t->counted);
    return from < to ? (Squares){sum, param_at(o->params, t, f, from), to - from, NULL} : (Squares){0};
}

/* The same of the masters of t. */
static Squares squares_of_masters(const Optimizer *o, Exact *sum, const Param *t)
{
    const Data *x = &o->params->data;
    Squares rest = squares_of(o, sum, t, &x->master), weight = squares_of(o, sum, t, &x->weight);
    weight.rest = rest.x;
    return x->halves ? weight : rest;
}

/* Whether this rank's shard of t is counted: with hybrid sharding every copy has the same shards, and only
 * the first one counts. */
static int counts(const Params *p, const Param *t) { return !data_groups(&p->data, t->bucket)->copies->rank; }

/* ---- the rules ---- */

typedef struct {
    int moments;                                   /* how many the rule keeps */
    void (*prepare)(Device *d, const Update *u);   /* before the norms of a trust ratio; NULL: nothing */
    enum { NO_TRUST, LAMB_TRUST, LARS_TRUST } trust;
    void (*apply)(Device *d, const Update *u);     /* the update */
} OptimizerRule;

static void adam(Device *d, const Update *u) { d->adam(d, u); }
static void sgd(Device *d, const Update *u) { d->sgd(d, u); }
static void lars(Device *d, const Update *u) { d->lars(d, u); }
static void lamb_direction(Device *d, const Update *u) { d->lamb_direction(d, u); }
static void lamb(Device *d, const Update *u) { d->lamb_apply(d, u); }

static const OptimizerRule rules[] = {
    [OPTIMIZER_ADAM] = {2, NULL, NO_TRUST, adam},
    [OPTIMIZER_SGD] = {1, NULL, NO_TRUST, sgd},
    [OPTIMIZER_LAMB] = {2, lamb_direction, LAMB_TRUST, lamb},
    [OPTIMIZER_LARS] = {1, NULL, LARS_TRUST, lars},
};

int optimizer_moments(const Config *cfg) { return rules[cfg->optimizer].moments; }

void optimizer_go(Optimizer *o) { o->dev->put(o->dev, o->verdict, &(Verdict){.go = 1}, sizeof *o->verdict); }

void optimizer_held(Optimizer *o) { o->updates--; }

/* ---- the lists ---- */

/* Sum `which` (0: weight, 1: step or gradient) of pair k; NULL while counting. */
static Exact *pair_of(const Optimizer *o, int k, int i) { return o->norms ? o->norms + 2 * k + i : NULL; }

static void list_squares(SquaresList *l, Squares s)
{
    l->list[l->n] = s;
    l->n += s.n > 0;
}

/* Whether moments are rounded by the numbers of their blocks. */
static int has_blocks(const Data *x)
{
    return x->stored[0] || x->stored[1];
}

/* What the update needs of elements [from, *end) of t, or of the first of them: *end is set back. LAMB's
 * direction overwrites the gradient, which is not needed any more.
 *   trust  in  the trust ratio of t, on the device; NULL: t has none */
static Updated updated_of(const Optimizer *o, const Param *t, const double *trust, int64_t from, int64_t *end)
{
    const Params *p = o->params;
    const Data *x = &p->data;
    BlockNumbers blocks = {0};
    if (has_blocks(x))
        blocks = param_blocks(p, t, from, end);
    int64_t to = *end;
    void *g = param_at(p, t, &x->grad, from);
    void *master = param_at(p, t, &x->master, from);
    return (Updated){.n = to - from,
                     .w = x->halves ? NULL : master,
                     .rest = x->halves ? master : NULL,
                     .g = g,
                     .dir = g,
                     .m = param_at(p, t, &x->moment[0], from),
                     .v = param_at(p, t, &x->moment[1], from),
                     .m_scale = param_at(p, t, &x->scale[0], from),
                     .v_scale = param_at(p, t, &x->scale[1], from),
                     .blocks = blocks,
                     .out = p->type == p->real ? NULL : param_at(p, t, &x->weight, from),
                     .trust = trust,
                     .wd = t->def->decay ? o->cfg->weight_decay : 0};
}

/* Fills o->updated and o->first: sorted by bucket, in the order of the parameters within a bucket. A
 * counting sort, because models have thousands of both.
 *   ratio  in  [nparam]  trust ratio of each parameter, NULL where it has none */
static void list_updated(Optimizer *o, const double *const *ratio)
{
    const Params *p = o->params;
    int buckets = p->data.buckets, *end = xcalloc((size_t)buckets + 1, sizeof *end), n = 0;
    int *order = xcalloc((size_t)p->nparam + 1, sizeof *order);
    for (int i = 0; i < p->nparam; i++)
        end[p->param[i].bucket + 1]++;
    for (int b = 0; b < buckets; b++)
        end[b + 1] += end[b];
    for (int i = 0; i < p->nparam; i++)        /* moves end[b] from the start of bucket b to its end */
        order[end[p->param[i].bucket]++] = i;
    for (int b = 0, k = 0; b < buckets; b++) {
        for (; k < end[b]; k++) {
            const Param *t = &p->param[order[k]];
            int64_t from, last;
            param_updated(p, t, &from, &last);
            for (int64_t to = last; from < last; from = to, to = last)
                o->updated[n++] = updated_of(o, t, ratio[order[k]], from, &to);
        }
        o->first[b + 1] = n;
    }
    free(order);
    free(end);
}

/* Lists what every step squares and updates, once: the arrays never move. */
static void make_lists(Optimizer *o, int trust)
{
    const Params *p = o->params;
    o->of_gradient.list = xcalloc((size_t)p->nparam + 1, sizeof *o->of_gradient.list);
    o->of_masters.list = xcalloc((size_t)p->nparam + 1, sizeof *o->of_masters.list);
    o->of_pairs.list = xcalloc(2 * (size_t)o->ratios + 1, sizeof *o->of_pairs.list);
    o->updated = xcalloc((size_t)p->nparam * MAX_SEGMENTS + 1, sizeof *o->updated);
    o->first = xcalloc((size_t)p->data.buckets + 1, sizeof *o->first);
    const double **ratio = xcalloc((size_t)p->nparam + 1, sizeof *ratio);
    o->tied = -1;
    for (int i = 0, next[2] = {0, o->dense}; i < p->nparam; i++) {
        const Param *t = &p->param[i];
        int *place = &next[p->data.bucket[t->bucket].expert], k = *place;
        int has = trust && t->def->decay;
        if (counts(p, t)) {
            list_squares(&o->of_gradient, squares_of(o, o->squares, t, &p->data.grad));
            list_squares(&o->of_masters, squares_of_masters(o, o->squares, t));
        }
        ratio[i] = has && o->trust ? &o->trust[k] : NULL;
        if (!has)
            continue;
        list_squares(&o->of_pairs, squares_of_masters(o, pair_of(o, k, 0), t));
        list_squares(&o->of_pairs, squares_of(o, pair_of(o, k, 1), t, &p->data.grad));
        if (t->bucket == p->data.tied)
            o->tied = k;
        ++*place;
    }
    list_updated(o, ratio);
    free(ratio);
}

void optimizer_open(Optimizer *o, const Config *cfg, Params *params, Device *dev, Arena *run)
{
    int trust = rules[cfg->optimizer].trust;
    *o = (Optimizer){.cfg = cfg, .params = params, .dev = dev};
    for (int i = 0; i < params->nparam && trust; i++) {
        const Param *t = &params->param[i];
        o->ratios += t->def->decay;
        o->dense += t->def->decay && !params->data.bucket[t->bucket].expert;
    }
    o->verdict = arena_take(run, sizeof *o->verdict);
    o->squares = arena_take(run, sizeof *o->squares);
    o->trust = arena_take(run, (size_t)o->ratios * sizeof *o->trust);
    o->norms = arena_take(run, (size_t)o->ratios * 2 * sizeof *o->norms);
    make_lists(o, trust);
    optimizer_go(o);
    loss_scale_open(&o->loss_scale, cfg);
}

void optimizer_close(Optimizer *o)
{
    free(o->of_gradient.list);
    free(o->of_pairs.list);
    free(o->of_masters.list);
    free(o->updated);
    free(o->first);
    *o = (Optimizer){0};
}

/* ---- the verdict ---- */

/* Adds up carried sums over a group. */
static void add_up(Comm *c, Exact *sums, int64_t n)
{
    c->wait(c, c->all_reduce(c, sums, n * EXACT_WORDS, I64, OP_SUM));
}

/* o->squares = the sum of squares over the lists of all ranks.
 *   type  in  of the arrays without remainders */
static void square(Optimizer *o, const SquaresList *l, Dtype type)
{
    Device *d = o->dev;
    d->zero(d, o->squares, sizeof *o->squares);
    if (l->n)
        d->squares(d, l->list, l->n, type);
    d->carry(d, o->squares, 1);
    add_up(&o->params->grid->all, o->squares, 1);
}

void optimizer_judge(Optimizer *o, const double *sums, double nominal, int stop, Limits limits)
{
    Device *d = o->dev;
    square(o, &o->of_gradient, o->params->data.grad.type);
    d->verdict(d, o->verdict, sums, o->squares, nominal, o->loss_scale.scale, o->cfg->clip_grad, stop,
               limits);
}

Verdict optimizer_verdict(Optimizer *o)
{
    Verdict v = {0};
    o->dev->get(o->dev, &v, o->verdict, sizeof v);
    return v;
}

/* Squares of this rank's share of the gradient of parameter i, in o->squares and on the host. */
static Exact gradient_of(Optimizer *o, int i)
{
    const Params *p = o->params;
    Device *d = o->dev;
    Exact sum = {0};
    Squares of = squares_of(o, o->squares, &p->param[i], &p->data.grad);
    if (!counts(p, &p->param[i]))
        return sum;
    d->zero(d, o->squares, sizeof *o->squares);
    if (of.n)
        d->squares(d, &of, 1, p->data.grad.type);
    d->carry(d, o->squares, 1);
    d->get(d, &sum, o->squares, sizeof sum);
    return sum;
}

const char *optimizer_blame(Optimizer *o, const Verdict *v, int *rank)
{
    Params *p = o->params;
    Comm *all = &p->grid->all;
    int64_t own = INT64_MAX, first, finder;
    if (rank)
        *rank = -1;
    if (!v->bad)
        return isfinite(v->norm) ? NULL : "the sum over all tensors";
    for (int i = 0; i < p->nparam; i++)
        if (gradient_of(o, i).bad)
            own = least(own, p->param[i].number);
    first = own;
    all->wait(all, all->all_reduce(all, &first, 1, I64, OP_MIN));
    finder = own == first ? all->rank : INT64_MAX;
    all->wait(all, all->all_reduce(all, &finder, 1, I64, OP_MIN));
    if (first == INT64_MAX)         /* the gradients are not those of v any more */
        return NULL;
    if (rank)
        *rank = (int)finder;
    param_name(p->cfg, first, o->bad, sizeof o->bad);
    return o->bad;
}

const char *optimizer_largest(Optimizer *o, double gscale, double *norm)
{
    Params *p = o->params;
    Comm *all = &p->grid->all;
    int64_t n = 0, most = 0;
    for (int i = 0; i < p->nparam; i++)
        n = p->param[i].number >= n ? p->param[i].number + 1 : n;
    all->wait(all, all->all_reduce(all, &n, 1, I64, OP_MAX));
    double *sum = xcalloc((size_t)n, sizeof *sum);
    for (int i = 0; i < p->nparam; i++) {
        Exact own = gradient_of(o, i);
        sum[p->param[i].number] += exact_round(&own);
    }
    all->wait(all, all->all_reduce(all, sum, n, F64, OP_SUM));
    for (int64_t i = 1; i < n; i++)
        most = sum[i] > sum[most] ? i : most;
    *norm = sqrt(sum[most]) * gscale;
    free(sum);
    param_name(p->cfg, most, o->bad, sizeof o->bad);
    return o->bad;
}

/* ---- numbers of a logged step ---- */

double optimizer_params_norm(Optimizer *o)
{
    Exact sum;
    data_settle(&o->params->data);
    square(o, &o->of_masters, o->params->real);
    o->dev->get(o->dev, &sum, o->squares, sizeof sum);
    return sqrt(exact_round(&sum));
}

/* Counts the zeros among n numbers of `type` at x, in device memory. */
static int64_t zeros(Device *d, const char *x, int64_t n, Dtype type)
{
    union { uint16_t u16[16384]; float f32[8192]; double f64[4096]; } part;
    int64_t found = 0, size = (int64_t)dtype_size(type), most = (int64_t)sizeof part / size;
    for (int64_t at = 0; at < n; at += most) {
        int64_t k = least(most, n - at);
        d->get(d, &part, x + at * size, (size_t)(k * size));
        for (int64_t i = 0; i < k; i++)
            found += type == F64   ? part.f64[i] == 0
                     : type == F32 ? part.f32[i] == 0
                                   : !(part.u16[i] & 0x7fff);      /* BF16, without the sign */
    }
    return found;
}

double optimizer_zeros(const Optimizer *o)
{
    const Params *p = o->params;
    Comm *all = &p->grid->all;
    int64_t found = 0, from, to;
    Box box[MAX_BOXES];
    Dtype type = p->data.grad.type;
    BUG_ON(type != F32 && type != F64 && type != BF16);
    for (int i = 0; i < p->nparam; i++) {
        const Param *t = &p->param[i];
        param_own(p, t, &from, &to);
        int64_t last = counts(p, t) ? least(to, t->counted) : 0;
        int boxes = from < last ? param_boxes(p, t, from, last, box) : 0;
        for (int b = 0; b < boxes; b++)        /* a box of several rows has whole rows, so it is dense */
            found += zeros(o->dev, param_at(p, t, &p->data.grad, box[b].at - t->offset),
                           box[b].rows * box[b].cols, type);
    }
    all->wait(all, all->all_reduce(all, &found, 1, I64, OP_SUM));
    return (double)found;
}

/* ---- the update ---- */

static Update update_of(const Optimizer *o, double lr)
{
    const Config *c = o->cfg;
    double step = (double)o->updates, before = step - 1;
    return (Update){.out_type = o->params->type,
                    .bf16_g = o->params->data.grad.type == BF16,
                    .m_type = o->params->data.stored[0],
                    .v_type = o->params->data.stored[1],
                    .turn = o->updates,
                    .verdict = o->verdict,
                    .lr = lr,
                    .beta1 = c->adam_beta1,
                    .beta2 = c->adam_beta2,
                    .eps = c->adam_eps,
                    .bias1 = 1 - pow(c->adam_beta1, step),
                    .bias2 = 1 - pow(c->adam_beta2, step),
                    .before1 = 1 - pow(c->adam_beta1, before),
                    .before2 = 1 - pow(c->adam_beta2, before),
                    .momentum = c->sgd_momentum,
                    .nesterov = c->sgd_nesterov};
}

/* Adds up pairs [from, to) over the ranks with a tensor's shards, then over those with its slices. */
static void sum_pairs(Optimizer *o, Comm *shards, Comm *slices, int from, int to)
{
    int n = 2 * (to - from);
    if (!n)
        return;
    o->dev->carry(o->dev, pair_of(o, from, 0), n);
    add_up(shards, pair_of(o, from, 0), n);
    o->dev->carry(o->dev, pair_of(o, from, 0), n);
    add_up(slices, pair_of(o, from, 0), n);
}

/* Finds the trust ratio of every tensor that decays from norms over all its shards and slices, one
 * message for all tensors of each grid. Biases and gains take the plain step, as in every published training
 * recipe of LAMB and LARS. */
static void find_trust(Optimizer *o, const OptimizerRule *rule)
{
    const Config *c = o->cfg;
    Params *p = o->params;
    Device *d = o->dev;
    d->zero(d, o->norms, 2 * (size_t)o->ratios * sizeof *o->norms);
    if (o->of_pairs.n)
        d->squares(d, o->of_pairs.list, o->of_pairs.n, p->data.grad.type);
    sum_pairs(o, p->data.groups[0].shard, &p->grid->axis[AXIS_TP], 0, o->dense);
    sum_pairs(o, p->data.groups[1].shard, &p->grid->expert[EXPERT_TP], o->dense, o->ratios);
    if (o->tied >= 0) {   /* the stage with the copy has counted 0 and needs the sums */
        d->carry(d, pair_of(o, o->tied, 0), 2);
        add_up(p->data.embedding, pair_of(o, o->tied, 0), 2);
    }
    d->trust(d, o->trust, o->norms, o->ratios, rule->trust == LARS_TRUST, c->lars_trust_coefficient,
             c->weight_decay, o->verdict);
}

/* Runs a rule's function over this rank's shards in buckets [from, to). rule NULL: nothing to do. */
static void go_over(const Optimizer *o, void (*rule)(Device *d, const Update *u), Update u, int from, int to)
{
    u.list = o->updated + o->first[from];
    u.count = o->first[to] - o->first[from];
    if (rule && u.count)
        rule(o->dev, &u);
}

void optimizer_step(Optimizer *o, double lr)
{
    const OptimizerRule *rule = &rules[o->cfg->optimizer];
    Data *x = &o->params->data;
    Device *d = o->dev;
    o->updates++;
    Update u = update_of(o, lr), mapped = u;
    int offloaded = data_first_offloaded(x);
    mapped.mapped = 1;
    go_over(o, rule->prepare, u, 0, offloaded);
    go_over(o, rule->prepare, mapped, offloaded, x->buckets);
    if (rule->trust)
        find_trust(o, rule);
    go_over(o, rule->apply, u, 0, offloaded);
    for (int b = offloaded; b < x->buckets; b++) {
        d->side_begin(d);
        go_over(o, rule->apply, mapped, b, b + 1);
        data_updating(x, b, d->side_end(d));
    }
}

int loss_scale_moves(const Config *cfg)
{
    return cfg->params_dtype == PARAMS_DTYPE_FP16 && isnan(cfg->loss_scale);
}

void loss_scale_open(LossScale *s, const Config *cfg)
{
    int fp16 = cfg->params_dtype == PARAMS_DTYPE_FP16, fixed = !isnan(cfg->loss_scale);
    *s = (LossScale){.scale = !fp16 ? 1 : fixed ? cfg->loss_scale : cfg->initial_loss_scale,
                     .tolerance = cfg->hysteresis};
}

int loss_scale_update(LossScale *s, const Config *cfg, int overflow)
{
    int moves = loss_scale_moves(cfg), lowest = !moves || s->scale <= cfg->min_loss_scale;
    s->overflows = overflow && lowest ? s->overflows + 1 : 0;
    if (moves && overflow) {
        s->good = 0;
        if (--s->tolerance <= 0)
            s->scale = fmax(s->scale / 2, cfg->min_loss_scale);
    } else if (moves && ++s->good >= cfg->loss_scale_window) {     /* more: it was larger before a resume */
        s->good = 0;
        s->tolerance = cfg->hysteresis;
        s->scale *= 2;
    }
    return s->overflows < OVERFLOWS_MOST;
}
