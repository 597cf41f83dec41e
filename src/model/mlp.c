/* mlp -- the feed-forward half of a decoder layer; its width is split over the tensor group.
 *
 * In FP8 the activation's output is not stored: it is made from h where it is cast for fc2. So is the
 * gradient of h, where both products that read it follow at once and fc1 has no bias, whose gradient would
 * read it too. */
#include "model.h"

/* Room for fc1's output and the activation's; act NULL: that is not stored. */
static void take_inner(Model *m, LayerActs *a, Arena *h, Arena *act)
{
    a->h = model_take(m, h, model_tokens(m), act_width((ActKind)m->cfg->activation, m->dim.F));
    a->a = act ? model_take(m, act, model_tokens(m), m->dim.F)
               : mat(NULL, model_tokens(m), m->dim.F, m->dim.type);
}

/* Makes h, and a where it is stored. An activation that the backward makes again is made from h as stored
 * here too, not from the sums before they are rounded to h, so that both have the same bits. */
static void inner(Model *m, int part, LayerActs *a, int stored)
{
    Device *d = m->dev;
    const TensorGroup *g = &m->tp.group;
    ActKind kind = (ActKind)m->cfg->activation;
    Mat w = params_weight(m->params, part, P_FC1), b = params_weight(m->params, part, P_FC1B);
    Precision p = model_norm_precision(m, part, a, LINEAR_FC1);
    size_t mark = m->scratch.used;
    Mat x = tensor_room(g, &m->scratch, a->ln2), seen = a->a;
    if (stored && m->keep.act) {
        tensor_gather_linear_act(d, g, &m->scratch, x, a->a, a->h, a->ln2, w, b, kind, p);
    } else {
        tensor_gather_linear(d, g, &m->scratch, x, a->h, a->ln2, w, b, p);
        if (stored)
            d->act_fwd(d, a->a, a->h, kind);
    }
    arena_reset(&m->scratch, mark);
    model_watch(m, part, "mlp.linear_fc1", a->h);
    if (!stored) {             /* the plan has room for one that is watched */
        seen = model_take(m, &m->scratch, seen.rows, seen.cols);
        if (m->watch.see)
            d->act_fwd(d, seen, a->h, kind);
    }
    model_watch(m, part, "mlp.activation", seen);
    arena_reset(&m->scratch, mark);
}

void mlp_fwd(Model *m, const Pass *p, int part, LayerActs *a, Mat y)
{
    Arena *h = m->keep.mlp ? p->keep_w : &m->scratch, *act = m->keep.act ? h : &m->scratch;
    Precision precision = model_precision(m, part, LINEAR_FC2);
    precision.xt = &a->at;
    /* without fc2's product nothing makes the FP8 copy */
    a->at = model_turned(m, part, p, y.rows ? act : &m->scratch, model_tokens(m), m->dim.F);
    take_inner(m, a, h, precision.fp8 ? NULL : act);
    model_keep_mask(m, p);
    inner(m, part, a, !precision.fp8);
    const Unstored made = {.h = a->h, .kind = (ActKind)m->cfg->activation};
    precision.xa = precision.fp8 ? &made : NULL;
    if (!y.rows)
        return;
    row_linear_fwd(m->dev, &m->tp.group, &m->scratch, y, a->a, params_weight(m->params, part, P_FC2),
                   params_weight(m->params, part, P_FC2B), precision);
    p->fd->residual = (Residual){y, a->x1, model_dropout(m, p, SITE_MLP, m->params->part[part].layer), part};
}

void mlp_settle(Model *m, const Pass *p)
{
    Residual r = p->fd->residual;
    if (!r.res.rows)
        return;
    m->dev->dropout_fwd(m->dev, r.x, r.x, r.res, &r.drop);
    model_watch(m, r.part, "mlp.linear_fc2", r.x);
    p->fd->residual = (Residual){0};
}

void mlp_restore(Model *m, const Pass *p, int part, LayerActs *a)
{
    model_norm_restore(m, p, part, a, LINEAR_FC1, !m->keep.mlp);
    if (model_is_moe(m, part) || (m->keep.mlp && m->keep.act))
        return;
    int stored = !model_precision(m, part, LINEAR_FC2).fp8;
    if (!m->keep.mlp) {
        take_inner(m, a, p->late, stored ? p->late : NULL);
        inner(m, part, a, stored);
    } else if (stored) {
        a->a = model_take(m, p->late, a->h.rows, m->dim.F);
        m->dev->act_fwd(m->dev, a->a, a->h, (ActKind)m->cfg->activation);
    }
}

/* Makes the transposed FP8 copy of the activation, which a backward needs that writes over h. */
static void turn_activation(Model *m, int part, LayerActs *a, Arena *from)
{
    Precision fc2 = model_precision(m, part, LINEAR_FC2);
    const Unstored made = {.h = a->h, .kind = (ActKind)m->cfg->activation};
    a->at = linear_turned(from, a->h.rows, m->dim.F, fc2.scaling);
    fc2.xt = &a->at;
    fc2.xa = &made;
    linear_turn(m->dev, a->a, fc2);
}

/* Weight gradients of fc1 and fc2.
 *   x, dy, dh  in  all T rows of fc1's input, of the gradients of fc2's output and of fc1's output
 *   turned     in  [2] transposed FP8 copies of dy and dh; NULL: none
 *   made       in  what makes dh; NULL: it is stored */
static void weights_bwd(Model *m, int part, LayerActs *a, LayerGrads *g, Mat x, Mat dy, Mat dh,
                        Fp8Turned *turned, const Unstored *made)
{
    const Params *w = m->params;
    Precision fc2 = model_precision(m, part, LINEAR_FC2), fc1 = model_precision(m, part, LINEAR_FC1);
    fc2.dyt = turned;
    fc1.dyt = turned ? turned + 1 : NULL;
    fc1.dya = made;
    fc2.xt = &a->at;
    fc1.xt = &a->ln2t;
    const Unstored act = {.h = a->h, .kind = (ActKind)m->cfg->activation};
    fc2.xa = fc2.fp8 ? &act : NULL;
    tensor_bwd_w(m->dev, &m->scratch, params_sum(w, part, P_FC2), dy, a->a, params_grad(w, part, P_FC2B),
                 g->fc2, fc2);
    tensor_bwd_w(m->dev, &m->scratch, params_sum(w, part, P_FC1), dh, x, params_grad(w, part, P_FC1B), dh,
                 fc1);
}

void mlp_bwd(Model *m, const Pass *p, int part, LayerActs *a, LayerGrads *g, Mat dx1, Mat dy, int weights)
{
    Device *d = m->dev;
    const Params *w = m->params;
    Dropout drop = model_dropout(m, p, SITE_MLP, w->part[part].layer);
    g->fc2 = dy;
    if (drop.p > 0) {
        g->fc2 = model_take(m, p->late, dy.rows, m->dim.H);
        d->dropout_bwd(d, g->fc2, dy, &drop);
    }
    size_t start = m->scratch.used;
    int unstored = weights && model_precision(m, part, LINEAR_FC1).fp8 && !params_grad(w, part, P_FC1B).rows;
    if (model_precision(m, part, LINEAR_FC2).fp8 && !a->at.there && !unstored)
        turn_activation(m, part, a, weights ? &m->scratch : p->late);
    Mat dout = tensor_room(&m->tp.group, &m->scratch, g->fc2);
    Fp8Turned turned[] = {model_turned_gradient(m, part, a->h.rows, m->dim.H, weights),
                          model_turned_gradient(m, part, a->h.rows, a->h.cols, weights)};
    Precision fc2 = model_precision(m, part, LINEAR_FC2), fc1 = model_precision(m, part, LINEAR_FC1);
    fc2.dyt = &turned[0];
    fc1.dyt = &turned[1];
    size_t mark = m->scratch.used;
    /* a fused product and activation cannot write dh over h; with W later it must, at the price of a copy */
    ActKind act = (ActKind)m->cfg->activation;
    int apart = weights && !act_gated(act);
    Mat da = model_take(m, &m->scratch, a->a.rows, m->dim.F), dh = apart ? da : a->h;
    const Unstored made = {.h = a->h, .da = da, .kind = act};
    if (unstored) {
        dh = mat(NULL, a->h.rows, a->h.cols, m->dim.type);
        fc1.dya = &made;
        tensor_gather_matmul(d, &m->tp.group, &m->scratch, dout, da, g->fc2, params_weight(w, part, P_FC2),
                             fc2);
    } else {
        tensor_gather_matmul_act(d, &m->tp.group, &m->scratch, dout, dh, da, g->fc2,
                                 params_weight(w, part, P_FC2), a->h, act, fc2);
        if (!apart)
            arena_reset(&m->scratch, mark);
    }
    TensorRows x = {0};
    if (weights)
        x = tensor_gather(&m->tp.group, &m->scratch, a->ln2);
    Mat dln = model_take(m, &m->scratch, dy.rows, m->dim.H);
    TensorSum sum = column_linear_bwd_x(d, &m->tp.group, &m->scratch, dln, dh, params_weight(w, part, P_FC1),
                                        fc1);
    if (weights)
        weights_bwd(m, part, a, g, tensor_gathered(&m->tp.group, x), dout, dh, turned, fc1.dya);
    tensor_wait(&m->tp.group, sum);
    d->norm_bwd(d, dx1, params_grad(w, part, P_LN2), params_grad(w, part, P_LN2B), dy, dln, a->x1, a->stat2,
                params_weight(w, part, P_LN2), model_norm(m), 1);
    arena_reset(&m->scratch, start);
}

void mlp_bwd_w(Model *m, int part, LayerActs *a, LayerGrads *g)
{
    size_t mark = m->scratch.used;
    TensorRows x = tensor_gather(&m->tp.group, &m->scratch, a->ln2),
               dy = tensor_gather(&m->tp.group, &m->scratch, g->fc2);
    weights_bwd(m, part, a, g, tensor_gathered(&m->tp.group, x), tensor_gathered(&m->tp.group, dy), a->h,
                NULL, NULL);
    arena_reset(&m->scratch, mark);
}
