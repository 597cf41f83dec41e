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
    Dtype type = gradient ? p->real : p->type;
    if (i < 0)
        return (Mat){.type = type};
    const Param *t = &p->param[i + expert];
    const Bucket *b = &d->bucket[t->bucket];
    char *base = gradient ? b->grad : b->weight;
    BUG_ON(!base && (gradient ? d->grad.p : d->weight.p) /* no data_enter or data_ready for its unit */);
    char *at = base ? base + (size_t)(t->offset - b->at) * dtype_size(type) : NULL;
    return t->ndim == 1 ? mat(at, 1, t->n, type) : mat(at, t->local_rows, t->local_cols, type);
}

Mat params_weight(const Params *p, int part, ParamId id) { return view(p, part, id, 0, 0); }
Mat params_grad(const Params *p, int part, ParamId id) { return view(p, part, id, 0, 1); }

Mat params_expert_weight(const Params *p, int part, ParamId id, int i) { return view(p, part, id, i, 0); }
Mat params_expert_grad(const Params *p, int part, ParamId id, int i) { return view(p, part, id, i, 1); }

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

typedef struct { const Param *t; Box box; void *at; Dtype type; uint64_t key; double std; } InitWork;

/* An item of work is INIT_ROWS rows: few enough to spread a tensor over the threads. */
#define INIT_ROWS 16
#define INIT_COLS 256                  /* numbers drawn at a time */
#define INIT_ROOM ((int64_t)1 << 22)   /* elements copied to the device at a time */

static void init_rows(void *ctx, int64_t item, int thread)
{
    const InitWork *w = ctx;
    double x[INIT_COLS];
    (void)thread;
    int64_t end = (item + 1) * INIT_ROWS < w->box.rows ? (item + 1) * INIT_ROWS : w->box.rows;
    for (int64_t r = item * INIT_ROWS; r < end; r++)
        for (int64_t c = 0; c < w->box.cols; c += INIT_COLS) {
            int64_t n = w->box.cols - c < INIT_COLS ? w->box.cols - c : INIT_COLS, at = r * w->box.ld + c;
            uint64_t index = (uint64_t)((w->box.row0 + r) * w->t->cols + w->box.col0 + c);
            if (w->t->def->init != INIT_ONE)
                rng_normals(w->key, 0, index, n, x);
            for (int64_t i = 0; i < n; i++) {
                double value = w->t->def->init == INIT_ONE ? 1 : w->std * x[i];
                if (w->type == F64)
                    ((double *)w->at)[at + i] = value;
                else
                    ((float *)w->at)[at + i] = (float)value;
            }
        }
}

/* Initialises a box, some rows at a time, through `room` on the host. */
static void init_box(Device *d, InitWork w, char *to, char *room)
{
    Box box = w.box;
    int64_t most = INIT_ROOM / box.cols > 1 ? INIT_ROOM / box.cols : 1;
    size_t size = dtype_size(w.type);
    BUG_ON(box.rows > 1 && box.ld != box.cols);
    w.at = room;
    for (int64_t r = 0; r < box.rows; r += most) {
        w.box.row0 = box.row0 + r;
        w.box.rows = box.rows - r < most ? box.rows - r : most;
        pool_run(d->pool, init_rows, &w, (w.box.rows + INIT_ROWS - 1) / INIT_ROWS);
        d->put(d, to + (size_t)(r * box.ld) * size, room, (size_t)(w.box.rows * box.cols) * size);
    }
}

static void init_param(Params *p, Device *d, const Param *t, char *room)
{
    double std = p->cfg->init_method_std;
    int64_t from, to;
    Box box[MAX_BOXES];
    if (t->def->init == INIT_ZERO)
        return;
    if (t->def->init == INIT_SCALED)
        std /= sqrt(2.0 * (double)p->cfg->num_layers);
    param_updated(p, t, &from, &to);
    int n = param_boxes(p, t, from, to, box);
    for (int b = 0; b < n; b++) {
        InitWork w = {t, box[b], NULL, p->real, rng_key((uint64_t)p->cfg->seed, t->name), std};
        init_box(d, w, param_at(p, t, &p->data.master, box[b].at - t->offset), room);
    }
}

void params_init(Params *p, Device *d)
{
    int64_t widest = INIT_ROOM;
    for (int b = 0; b < p->data.buckets; b++) {
        int64_t from, to;
        data_updated(&p->data, b, &from, &to);
        d->zero(d, data_at(&p->data, &p->data.master, b, from), (size_t)(to - from) * dtype_size(p->real));
    }
    for (int i = 0; i < p->nparam; i++)
        widest = p->param[i].local_cols > widest ? p->param[i].local_cols : widest;
    Arena room;
    host_arena(d, &room, "initial values", (size_t)widest * dtype_size(p->real));
    for (int i = 0; i < p->nparam; i++)
        init_param(p, d, &p->param[i], room.base);
    host_arena_close(d, &room);
    params_refresh(p, d);
}

void params_refresh(Params *p, Device *d)
{
    Data *x = &p->data;
    for (int b = 0; b < x->buckets && p->type != p->real; b++) {
        int64_t from, to;
        data_updated(x, b, &from, &to);
        int64_t rows = (to - from) / SUMSQ_BLOCK;
        d->copy(d, mat(data_at(x, &x->weight, b, from), rows, SUMSQ_BLOCK, p->type),
                mat(data_at(x, &x->master, b, from), rows, SUMSQ_BLOCK, p->real));
    }
    data_gather_all(x, 0);
}
