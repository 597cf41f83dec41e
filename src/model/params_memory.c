/* params_memory -- the arrays of the parameters: views, shards, initial values */
#include "params.h"
#include <math.h>

void params_offload(Params *p, double share, Arena *mapped) { data_offload(&p->data, share, mapped); }

void params_layout(Params *p, Device *dev, Arena *run, int gradients, int moments)
{
    data_layout(&p->data, dev, run, gradients, moments);
}

/* ---- views and ranges ---- */

static Mat view(const Params *p, int part, ParamId id, int expert, int gradient)
{
    int i = p->part[part].param[id];
    const Data *d = &p->data;
    Dtype type = gradient ? data_written(d) : p->type;
    if (i < 0)
        return (Mat){.type = type};
    const Param *t = &p->param[i + expert];
    const Bucket *b = &d->bucket[t->bucket];
    char *base = gradient ? b->grad : b->weight;
    BUG_ON(!base && (gradient ? d->grad.p : d->weight.p) /* no data_enter or data_ready for its unit */);
    char *at = base ? base + (size_t)(t->offset - b->at) * dtype_size(type) : NULL;
    return t->ndim == 1 ? mat(at, 1, t->n, type) : mat(at, t->local_rows, t->local_cols, type);
}

/* A gradient that anything may add to. */
static Mat added(const Params *p, int part, ParamId id, int expert)
{
    int i = p->part[part].param[id];
    if (i >= 0 && p->param[i + expert].product >= 0)
        data_clear(&p->data, p->param[i + expert].product);
    return view(p, part, id, expert, 1);
}

Mat params_weight(const Params *p, int part, ParamId id) { return view(p, part, id, 0, 0); }
Mat params_grad(const Params *p, int part, ParamId id) { return added(p, part, id, 0); }
Sum params_sum(const Params *p, int part, ParamId id) { return params_expert_sum(p, part, id, 0); }

Mat params_expert_weight(const Params *p, int part, ParamId id, int i) { return view(p, part, id, i, 0); }
Mat params_expert_grad(const Params *p, int part, ParamId id, int i) { return added(p, part, id, i); }
Sum params_expert_sum(const Params *p, int part, ParamId id, int i)
{
    int product = p->param[p->part[part].param[id] + i].product;
    BUG_ON(product < 0);
    return (Sum){view(p, part, id, i, 1), &p->data.product[product].there};
}

/* Turns flat elements [*from, *to) into elements of t. */
static void within(const Param *t, int64_t *from, int64_t *to)
{
    *from = *from > t->offset ? *from - t->offset : 0;
    *to = *to < t->offset + t->n ? *to - t->offset : t->n;
    *to = *to > *from ? *to : *from;
}

void param_own(const Params *p, const Param *t, int64_t *from, int64_t *to)
{
    data_own(&p->data, t->bucket, from, to);
    within(t, from, to);
}

void param_updated(const Params *p, const Param *t, int64_t *from, int64_t *to)
{
    data_updated(&p->data, t->bucket, from, to);
    within(t, from, to);
}

void param_held(const Params *p, const Param *t, const Flat *f, int64_t *from, int64_t *to)
{
    *from = 0;
    *to = t->n;
    if (f->sharded)
        param_own(p, t, from, to);
}

void *param_at(const Params *p, const Param *t, const Flat *f, int64_t from)
{
    return data_at(&p->data, f, t->bucket, t->offset + from);
}

/* ---- initial values ---- */

static void init_param(Params *p, Device *d, const Param *t)
{
    const Data *x = &p->data;
    Init init = t->def->init;
    double mean = init == INIT_ONE, std = init == INIT_ONE ? 0 : p->cfg->init_method_std;
    uint64_t key = rng_key((uint64_t)p->cfg->seed, t->name);
    int64_t from, to;
    Box box[MAX_BOXES];
    if (init == INIT_ZERO)
        return;
    if (init == INIT_SCALED)
        std /= sqrt(2.0 * (double)p->cfg->num_layers);
    param_updated(p, t, &from, &to);
    int n = param_boxes(p, t, from, to, box);
    for (int b = 0; b < n; b++) {
        Mat y = {param_at(p, t, &x->master, box[b].at - t->offset), box[b].rows, box[b].cols, box[b].ld,
                 x->master.type}, rest = {.type = I16};
        if (x->halves) {
            rest = y;
            y.p = param_at(p, t, &x->weight, box[b].at - t->offset);
            y.type = x->weight.type;
        }
        d->normals(d, y, rest, mean, std, key, box[b].row0 * t->cols + box[b].col0, t->cols);
    }
}

/* Flat elements [from, to) of bucket b become 0. */
static void zero_masters(const Params *p, Device *d, int b, int64_t from, int64_t to)
{
    const Data *x = &p->data;
    d->zero(d, data_at(x, &x->master, b, from), (size_t)(to - from) * dtype_size(x->master.type));
    if (x->halves)
        d->zero(d, data_at(x, &x->weight, b, from), (size_t)(to - from) * dtype_size(x->weight.type));
}

void params_init(Params *p, Device *d)
{
    for (int b = 0; b < p->data.buckets; b++) {
        int64_t from, to;
        data_updated(&p->data, b, &from, &to);
        zero_masters(p, d, b, from, to);
    }
    for (int i = 0; i < p->nparam; i++)
        init_param(p, d, &p->param[i]);
    params_refresh(p, d);
}

void params_refresh(Params *p, Device *d)
{
    Data *x = &p->data;
    for (int b = 0; b < x->buckets && p->type != p->real && !x->halves; b++) {
        int64_t from, to;
        data_updated(x, b, &from, &to);
        int64_t rows = (to - from) / SUMSQ_BLOCK;
        d->copy(d, mat(data_at(x, &x->weight, b, from), rows, SUMSQ_BLOCK, p->type),
                mat(data_at(x, &x->master, b, from), rows, SUMSQ_BLOCK, p->real));
    }
    data_gather_all(x, 0);
}
