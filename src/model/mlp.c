/* mlp -- the feed-forward half of a decoder layer; its width is split over the tensor group */
#include "model.h"

/* Room for fc1's output and the activation's. */
static void take_inner(Model *m, LayerActs *a, Arena *h, Arena *act)
{
    a->h = model_take(m, h, model_tokens(m), act_width((ActKind)m->cfg->activation, m->dim.F));
    a->a = model_take(m, act, model_tokens(m), m->dim.F);
}

/* Makes h and a. An activation that the backward makes again is made from h as stored here too, not from the
 * sums before they are rounded to h, so that both have the same bits. */
static void inner(Model *m, int part, LayerActs *a)
{
    Device *d = m->dev;
    const TensorGroup *g = &m->tp.group;
    ActKind kind = (ActKind)m->cfg->activation;
    Mat w = params_weight(m->params, part, P_FC1), b = params_weight(m->params, part, P_FC1B);
    Precision p = model_precision(m, part, LINEAR_FC1);
    p.xt = &a->ln2t;
    size_t mark = m->scratch.used;
    Mat x = tensor_room(g, &m->scratch, a->ln2);
    if (m->keep.act) {
        tensor_gather_linear_act(d, g, &m->scratch, x, a->a, a->h, a->ln2, w, b, kind, p);
    } else {
        tensor_gather_linear(d, g, &m->scratch, x, a->h, a->ln2, w, b, p);
        d->act_fwd(d, a->a, a->h, kind);
    }
    arena_reset(&m->scratch, mark);
    model_watch(m, part, "mlp.linear_fc1", a->h);
    model_watch(m, part, "mlp.activation", a->a);
}

void mlp_fwd(Model *m, const Pass *p, int part, LayerActs *a, Mat y)
{
    Arena *h = m->keep.mlp ? p->keep_w : &m->scratch, *act = m->keep.act ? h : &m->scratch;
    Precision precision = model_precision(m, part, LINEAR_FC2);
    precision.xt = &a->at;
    /* without fc2's product nothing makes the FP8 copy */
    a->at = model_turned(m, part, p, y.rows ? act : &m->scratch, model_tokens(m), m->dim.F);
    take_inner(m, a, h, a->at.room ? &m->scratch : act);
    model_keep_mask(m, p);
    inner(m, part, a);
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
    if (!m->keep.ln) {
        a->ln2 = model_take(m, p->late, a->x1.rows, m->dim.H);
        m->dev->norm_fwd(m->dev, a->ln2, a->stat2, a->x1, params_weight(m->params, part, P_LN2),
                         params_weight(m->params, part, P_LN2B), m->cfg->norm_epsilon, model_norm(m), 1);
    }
    if (model_is_moe(m, part))
        return;
    if (!m->keep.mlp) {
        take_inner(m, a, p->late, p->late);
        inner(m, part, a);
    } else if (!m->keep.act) {
        a->a = model_take(m, p->late, a->h.rows, m->dim.F);
        m->dev->act_fwd(m->dev, a->a, a->h, (ActKind)m->cfg->activation);
    }
}

/* Weight gradients of fc1 and fc2.
 *   x, dy, dh  in  all T rows of fc1's input, of the gradients of fc2's output and of fc1's output
 *   turned     in  [2] transposed FP8 copies of dy and dh; NULL: none */
static void weights_bwd(Model *m, int part, LayerActs *a, LayerGrads *g, Mat x, Mat dy, Mat dh,
                        Fp8Turned *turned)
{
    const Params *w = m->params;
    Precision fc2 = model_precision(m, part, LINEAR_FC2), fc1 = model_precision(m, part, LINEAR_FC1);
    fc2.dyt = turned;
    fc1.dyt = turned ? turned + 1 : NULL;
    fc2.xt = &a->at;
    fc1.xt = &a->ln2t;
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
    tensor_gather_matmul_act(d, &m->tp.group, &m->scratch, dout, dh, da, g->fc2,
                             params_weight(w, part, P_FC2), a->h, act, fc2);
    if (!apart)
        arena_reset(&m->scratch, mark);
    TensorRows x = {0};
    if (weights)
        x = tensor_gather(&m->tp.group, &m->scratch, a->ln2);
    Mat dln = model_take(m, &m->scratch, dy.rows, m->dim.H);
    TensorSum sum = column_linear_bwd_x(d, &m->tp.group, &m->scratch, dln, dh, params_weight(w, part, P_FC1),
                                        fc1);
    if (weights)
        weights_bwd(m, part, a, g, tensor_gathered(&m->tp.group, x), dout, dh, turned);
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
                NULL);
    arena_reset(&m->scratch, mark);
}
