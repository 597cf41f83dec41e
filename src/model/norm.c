/* norm -- the two norms of a layer
 *
 * In FP8 a norm's result is not stored where nothing but products in FP8 reads it: not where its rows are
 * gathered over the tensor group, and not before experts. The norm writes its FP8 rows, for the product that
 * follows at once, and transposed, for that product's weight gradient. What is not kept is made again from
 * the norm's input. */
#include "model.h"

/* One of the norms of a layer: where its parts are. */
typedef struct {
    ParamId gain, bias;
    const char *name;
    Mat *ln, *stat, *x;
    Mat8 *rows;
    Fp8Turned *turned;
} Side;
static Side side_of(LayerActs *a, LinearId which)
{
    if (which == LINEAR_QKV)
        return (Side){P_LN1, P_LN1B, "input_layernorm", &a->ln1, &a->stat1, &a->x, &a->ln1r, &a->ln1t};
    return (Side){P_LN2, P_LN2B, "pre_mlp_layernorm", &a->ln2, &a->stat2, &a->x1, &a->ln2r, &a->ln2t};
}

/* Whether the norm of `rows` rows writes FP8 alone. */
static int unstored(const Model *m, int part, LinearId which, int64_t rows)
{
    return model_precision(m, part, which).fp8 && rows == model_tokens(m) &&
           (which == LINEAR_QKV || !model_is_moe(m, part));
}

static void take_rows(Model *m, int part, const Side *s, LinearId which, int64_t rows)
{
    Precision p = model_precision(m, part, which);
    void *at = arena_take(&m->scratch, fp8_bytes(rows, m->dim.H, p.scaling));
    *s->rows = mat8(at, rows, m->dim.H, E4M3, p.scaling, p.x);
}

void model_norm_take(Model *m, const Pass *p, int part, LayerActs *a, LinearId which)
{
    Side s = side_of(a, which);
    Arena *ln = m->keep.ln ? p->keep_w : &m->scratch;
    int64_t rows = a->x.rows;
    *s.rows = (Mat8){0};
    if (unstored(m, part, which, rows)) {
        *s.turned = p->redo
                        ? linear_turned(p->keep_w, rows, m->dim.H, model_precision(m, part, which).scaling)
                        : model_turned(m, part, p, ln, rows, m->dim.H);
        *s.ln = mat(NULL, rows, m->dim.H, m->dim.type);
        take_rows(m, part, &s, which, rows);
        return;
    }
    *s.turned = (Fp8Turned){0};
    *s.ln = model_take(m, ln, rows, m->dim.H);
}

/* Makes FP8 rows and the transposed ones, as far as there is room for them and they are not made. */
static void write_fp8(Model *m, int part, const Side *s, LinearId which, Mat sum, Mat x, Mat res,
                      const Dropout *drop)
{
    Device *d = m->dev;
    Precision p = model_precision(m, part, which);
    int turn = s->turned->room && !s->turned->there;
    d->fp8_norm(d, s->rows->p, turn ? s->turned->p : NULL, sum, *s->stat, x, res, drop,
                params_weight(m->params, part, s->gain), params_weight(m->params, part, s->bias),
                m->cfg->norm_epsilon, model_norm(m), p.x, p.scaling);
    if (turn)
        linear_turned_made(d, s->turned, p.x, p.scaling);
}

void model_norm_fwd(Model *m, int part, LayerActs *a, LinearId which, Mat sum, Mat x, Mat res,
                    const Dropout *drop)
{
    Device *d = m->dev;
    Side s = side_of(a, which);
    Mat gain = params_weight(m->params, part, s.gain), bias = params_weight(m->params, part, s.bias);
    double eps = m->cfg->norm_epsilon;
    Mat seen = *s.ln;
    size_t mark = m->scratch.used;
    if (!s.rows->cols && sum.rows) {
        d->add_norm_fwd(d, sum, *s.ln, *s.stat, x, res, drop, gain, bias, eps, model_norm(m));
    } else if (!s.rows->cols) {
        d->norm_fwd(d, *s.ln, *s.stat, x, gain, bias, eps, model_norm(m), 1);
    } else {
        write_fp8(m, part, &s, which, sum, x, res, drop);
        /* the plan has room for one that is watched */
        seen = model_take(m, &m->scratch, seen.rows, seen.cols);
        if (m->watch.see || m->fp8.watch)
            d->norm_fwd(d, seen, *s.stat, *s.x, gain, bias, eps, model_norm(m), 1);
        if (m->fp8.watch)
            m->fp8.watch->see(m->fp8.watch->ctx, d, s.rows->p, NULL, seen, NULL,
                              model_precision(m, part, which).x, E4M3, s.rows->scaling);
    }
    if (which == LINEAR_FC1)
        model_watch(m, part, "self_attention.linear_proj", *s.x);
    model_watch(m, part, s.name, seen);
    arena_reset(&m->scratch, mark);
}

void model_norm_restore(Model *m, const Pass *p, int part, LayerActs *a, LinearId which, int rows)
{
    Device *d = m->dev;
    Side s = side_of(a, which);
    Mat none = {.type = m->dim.type};
    if (unstored(m, part, which, s.x->rows)) {
        int turn = !s.turned->there;
        if (turn)
            *s.turned = linear_turned(p->late, s.x->rows, m->dim.H, model_precision(m, part, which).scaling);
        *s.rows = (Mat8){0};
        if (rows)
            take_rows(m, part, &s, which, s.x->rows);
        if (turn || rows)
            write_fp8(m, part, &s, which, none, *s.x, none, NULL);
    } else if (!m->keep.ln) {
        *s.ln = model_take(m, p->late, s.x->rows, m->dim.H);
        d->norm_fwd(d, *s.ln, *s.stat, *s.x, params_weight(m->params, part, s.gain),
                    params_weight(m->params, part, s.bias), m->cfg->norm_epsilon, model_norm(m), 1);
    }
}

Precision model_norm_precision(const Model *m, int part, LayerActs *a, LinearId which)
{
    Side s = side_of(a, which);
    Precision p = model_precision(m, part, which);
    p.xt = s.turned;
    p.x8 = s.rows->cols ? s.rows : NULL;
    return p;
}
