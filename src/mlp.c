/* The feed-forward half of a decoder layer; its width is split over the tensor group. */
#include "model.h"
#include "tensor.h"

static void norm2(Model *m, int part, LayerActs *a)
{
    m->dev->norm_fwd(m->dev, a->ln2, a->stat2, a->x1, params_weight(m->params, part, P_LN2),
                     params_weight(m->params, part, P_LN2B), m->cfg->norm_epsilon, model_norm(m), 1);
}

static void take_inner(Model *m, LayerActs *a, Arena *from)
{
    ActKind act = (ActKind)m->cfg->activation;
    a->h = mat_take(from, a->x1.rows, act_gated(act) ? 2 * m->F : m->F, m->type);
    a->a = mat_take(from, a->x1.rows, m->F, m->type);
}

static void inner(Model *m, int part, LayerActs *a)
{
    Device *d = m->dev;
    column_linear_fwd(d, a->h, a->ln2, params_weight(m->params, part, P_FC1), params_weight(m->params, part, P_FC1B));
    model_watch(m, part, "mlp.linear_fc1", a->h);
    d->act_fwd(d, a->a, a->h, (ActKind)m->cfg->activation);
    model_watch(m, part, "mlp.activation", a->a);
}

void mlp_fwd(Model *m, Slot *s, int part, LayerActs *a, Arena *keep, Mat y)
{
    Device *d = m->dev;
    int64_t T = a->x1.rows;
    a->stat2 = mat_take(keep, T, 2, m->real);
    a->ln2 = mat_take(m->keep_ln ? keep : &m->scratch, T, m->H, m->type);
    take_inner(m, a, m->keep_mlp ? keep : &m->scratch);
    norm2(m, part, a);
    model_watch(m, part, "pre_mlp_layernorm", a->ln2);
    inner(m, part, a);
    size_t mark = m->scratch.used;
    Mat out = mat_take(&m->scratch, T, m->H, m->type);
    row_linear_fwd(d, m->tp, out, a->a, params_weight(m->params, part, P_FC2), params_weight(m->params, part, P_FC2B));
    Dropout drop = model_dropout(m, s, SITE_MLP, m->params->part[part].layer);
    d->dropout_fwd(d, y, out, a->x1, &drop);
    arena_reset(&m->scratch, mark);
    model_watch(m, part, "mlp.linear_fc2", y);
}

void mlp_restore(Model *m, int part, LayerActs *a)
{
    if (!m->keep_ln) {
        a->ln2 = mat_take(&m->scratch, a->x1.rows, m->H, m->type);
        norm2(m, part, a);
    }
    if (!m->keep_mlp) {
        take_inner(m, a, &m->scratch);
        inner(m, part, a);
    }
}

void mlp_bwd(Model *m, Slot *s, int part, LayerActs *a, LayerGrads *g, Mat dx1, Mat dy, int weights)
{
    Device *d = m->dev;
    const Params *p = m->params;
    int64_t T = a->x1.rows;
    Dropout drop = model_dropout(m, s, SITE_MLP, p->part[part].layer);
    g->fc2 = dy;
    if (drop.p > 0) {
        g->fc2 = mat_take(&m->scratch, T, m->H, m->type);
        d->dropout_bwd(d, g->fc2, dy, &drop);
    }
    size_t mark = m->scratch.used;
    Mat da = mat_take(&m->scratch, T, m->F, m->type);
    row_linear_bwd_x(d, da, g->fc2, params_weight(p, part, P_FC2));
    d->act_bwd(d, a->h, da, a->h, (ActKind)m->cfg->activation);
    arena_reset(&m->scratch, mark);
    Mat dln = mat_take(&m->scratch, T, m->H, m->type);
    Token sum = column_linear_bwd_x(d, m->tp, dln, a->h, params_weight(p, part, P_FC1));
    if (weights)
        mlp_bwd_w(m, part, a, g);
    m->tp->wait(m->tp, sum);
    d->norm_bwd_w(d, params_grad(p, part, P_LN2), params_grad(p, part, P_LN2B), dln, a->x1, a->stat2, model_norm(m), 1);
    d->norm_bwd_x(d, dx1, dy, dln, a->x1, a->stat2, params_weight(p, part, P_LN2), model_norm(m), 1);
    arena_reset(&m->scratch, mark);
}

void mlp_bwd_w(Model *m, int part, LayerActs *a, LayerGrads *g)
{
    const Params *p = m->params;
    linear_bwd_w(m->dev, params_grad(p, part, P_FC2), params_grad(p, part, P_FC2B), g->fc2, a->a);
    linear_bwd_w(m->dev, params_grad(p, part, P_FC1), params_grad(p, part, P_FC1B), a->h, a->ln2);
}
