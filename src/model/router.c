/* router -- which experts a token goes to, with which weights, and the losses that spread the tokens (Shazeer
 * et al. 2017, arXiv:1701.06538; Fedus et al. 2021, arXiv:2101.03961, sec 2.2).
 *
 * Each rank routes its R rows, which no other rank of the stage has. */
#include "model.h"
#include <math.h>
#include <string.h>

static Routing routing_of(const Model *m)
{
    const Config *c = m->cfg;
    int groups = c->moe_router_num_groups != CFG_ABSENT;
    double scale = c->moe_router_topk_scaling_factor;
    return (Routing){.topk = (int)c->moe_router_topk,
                     .sigmoid = c->moe_router_score_function == MOE_ROUTER_SCORE_FUNCTION_SIGMOID,
                     .pre_softmax = c->moe_router_pre_softmax,
                     .scale = isnan(scale) ? 1 : scale,
                     .groups = groups ? (int)c->moe_router_num_groups : 0,
                     .group_topk = groups ? (int)c->moe_router_group_topk : 0,
                     .row0 = model_row0(m), .each = m->now.S};
}

void router_fwd(Model *m, int part, LayerActs *a)
{
    Device *d = m->dev;
    Mat none = {.type = m->dim.type}, no_bias = {.type = m->dim.real};
    Routing r = routing_of(m);
    size_t mark = m->scratch.used;
    Mat scores = mat_take(&m->scratch, a->logits.rows, a->logits.cols, m->dim.real);
    d->linear(d, a->logits, a->ln2, params_weight(m->params, part, P_ROUTER), none);
    d->route_fwd(d, a->choice, a->weight, scores, a->logits, no_bias, &r);
    arena_reset(&m->scratch, mark);
    model_watch(m, part, "mlp.router", a->logits);
}

/* ---- backward ---- */

/* The gradient of the balance loss with respect to the scores of a token: the share of the pairs that each
 * expert has got, of the microbatch or of each sample. Fedus et al. 2021, eq. 4; by sample: DeepSeek-AI
 * 2024, arXiv:2412.19437, sec 2.1.2. The plan of the layer's dispatch has the choices.
 * Returns real [1 or B, E] in scratch; absent: there is no such loss. */
static Mat balance_push(Model *m)
{
    const Config *c = m->cfg;
    const Experts *x = &m->experts;
    int by_sample = c->moe_router_load_balancing_type == MOE_ROUTER_LOAD_BALANCING_TYPE_SEQ_AUX_LOSS;
    int64_t n = by_sample ? m->now.B : 1, E = x->experts, row0 = model_row0(m);
    double tokens = (double)(m->now.context.positions * (by_sample ? 1 : m->now.B));
    double factor = c->moe_aux_loss_coeff * (double)E / ((double)x->topk * tokens) * m->now.loss_scale;
    Comm *rows = m->tp.group.rows, *cp = &m->grid->axis[AXIS_CP];
    if (c->moe_router_load_balancing_type == MOE_ROUTER_LOAD_BALANCING_TYPE_NONE ||
        c->moe_aux_loss_coeff == 0)
        return (Mat){.type = m->dim.real};
    memset(m->load, 0, (size_t)(n * E) * sizeof *m->load);
    for (int64_t i = 0; i < x->rows * x->topk; i++)
        m->load[(by_sample ? (row0 + i / x->topk) / m->now.S : 0) * E + x->choice[i]]++;
    rows->wait(rows, rows->all_reduce(rows, m->load, n * E, F64, OP_SUM));
    cp->wait(cp, cp->all_reduce(cp, m->load, n * E, F64, OP_SUM));
    Mat push = mat_take(&m->scratch, n, E, m->dim.real);
    for (int64_t i = 0; i < n * E; i++) {      /* in place: a float is not larger than a double */
        double g = m->load[i] * factor;
        if (m->dim.real == F64)
            m->load[i] = g;
        else
            ((float *)m->load)[i] = (float)g;
    }
    if (push.p)
        m->dev->put(m->dev, push.p, m->load, mat_bytes(push));
    return push;
}

void router_bwd(Model *m, int part, LayerActs *a, Mat dweight, Mat dln)
{
    Device *d = m->dev;
    const Params *w = m->params;
    size_t mark = m->scratch.used;
    int64_t R = a->logits.rows, E = a->logits.cols;
    Mat none = {.type = m->dim.real}, dlogits = mat_take(&m->scratch, R, E, m->dim.real),
        narrow = model_take(m, &m->scratch, R, E);
    Routing r = routing_of(m);
    Mat push = balance_push(m);
    r.each = push.rows == 1 ? model_tokens(m) : m->now.S;
    r.z = isnan(m->cfg->moe_z_loss_coeff) ? 0 : m->cfg->moe_z_loss_coeff * m->now.loss_scale;
    d->route_bwd(d, dlogits, dweight, a->logits, a->choice, push, &r);
    d->copy(d, narrow, dlogits);
    d->matmul(d, dln, narrow, 0, params_weight(w, part, P_ROUTER), 0, 1);
    d->linear_bwd_w(d, params_grad(w, part, P_ROUTER), none, narrow, a->ln2);
    arena_reset(&m->scratch, mark);
}
