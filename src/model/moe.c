/* moe -- the feed-forward half of a layer with experts: a router (router.c) chooses experts for each token,
 * the token goes to the ranks that hold them, and the sum of what they return is the layer's output (Shazeer
 * et al. 2017, arXiv:1701.06538; Fedus et al. 2021, arXiv:2101.03961).
 *
 * A pair (a token and one of its experts) carries a weight, which multiplies the expert's activation before
 * fc2: so the layer's output is a plain sum, and the weight's gradient is computed where the expert is.
 *
 * How many rows an expert gets is known only when the router has chosen. So nothing of the experts is kept
 * from the forward to the backward: D sends the rows again, in rounds of bounded size, and computes the inner
 * activations again. D computes the gradients of the experts' weights, too; W has nothing to do here. */
#include "expert.h"
#include "model.h"

/* The dispatch of a layer's rows: its index lists on the device, and the weights of the sorted pairs. */
typedef struct {
    Experts *x;
    int32_t *place, *pair, *source;    /* [R k] as in Experts */
    Mat weight;                        /* real [R k, 1] */
    int64_t pairs;
} Dispatch;

static int32_t *to_device(Model *m, const int32_t *list, int64_t n)
{
    int32_t *at = arena_take(&m->scratch, (size_t)n * sizeof *at);
    if (at)
        m->dev->put(m->dev, at, list, (size_t)n * sizeof *at);
    return at;
}

static Dispatch dispatch_open(Model *m, const LayerActs *a)
{
    Experts *x = &m->experts;
    Dispatch s = {.x = x, .pairs = a->weight.rows * a->weight.cols};
    experts_plan(m->dev, x, a->choice, a->weight.rows, a->weight.rows);
    s.place = to_device(m, x->place, s.pairs);
    s.pair = to_device(m, x->pair, s.pairs);
    s.source = to_device(m, x->source, s.pairs);
    s.weight = mat_take(&m->scratch, s.pairs, 1, m->dim.real);
    m->dev->gather_rows(m->dev, s.weight, mat(a->weight.p, s.pairs, 1, m->dim.real), s.pair);
    return s;
}

/* Rows x [R, n] once for each pair, sorted, in scratch. */
static Mat sort_rows(Model *m, const Dispatch *s, Mat x)
{
    Mat sorted = mat_take(&m->scratch, s->pairs, x.cols, x.type);
    m->dev->gather_rows(m->dev, sorted, x, s->source);
    return sorted;
}

/* The rows of one round, in the order of experts; n rows of memory for experts_room. */
typedef struct {
    int64_t n;
    Mat x, weight, narrow;     /* [n,H]; real [n,1], and the same as storage */
    Mat h, a;                  /* [n, F] or [n, 2F]; [n,F], F of this rank's part of an expert */
} Round;

static Mat room(Model *m, const Dispatch *s, int64_t n, int64_t cols, Dtype type)
{
    return mat_rows(mat_take(&m->scratch, experts_room(s->x), cols, type), 0, n);
}

/* Receives the rows of a round and computes the activations of their experts, before the weight. */
static Round round_open(Model *m, int part, const Dispatch *s, int64_t round, Mat sorted)
{
    Device *d = m->dev;
    ActKind kind = (ActKind)m->cfg->activation;
    int64_t n = experts_rows(s->x, round), F = m->dim.expert_F;
    Round r = {n, room(m, s, n, m->dim.H, m->dim.type), room(m, s, n, 1, m->dim.real),
               room(m, s, n, 1, m->dim.type), room(m, s, n, act_width(kind, F), m->dim.type),
               room(m, s, n, F, m->dim.type)};
    experts_send(d, s->x, &m->scratch, round, r.x, sorted);
    experts_send(d, s->x, &m->scratch, round, r.weight, s->weight);
    d->copy(d, r.narrow, r.weight);
    for (int e = 0; e < s->x->local; e++) {
        int64_t from, rows = experts_part(s->x, round, e, &from);
        d->linear_act_fwd(d, mat_rows(r.a, from, rows), mat_rows(r.h, from, rows), mat_rows(r.x, from, rows),
                          params_expert_weight(m->params, part, P_EFC1, e),
                          params_expert_weight(m->params, part, P_EFC1B, e), kind);
    }
    return r;
}

/* y [R,H] from ln2. */
static void experts_fwd(Model *m, int part, LayerActs *a, Mat y)
{
    Device *d = m->dev;
    size_t mark = m->scratch.used;
    Mat none = {.type = m->dim.type};
    Dispatch s = dispatch_open(m, a);
    Mat sorted = sort_rows(m, &s, a->ln2), back = model_take(m, &m->scratch, s.pairs, m->dim.H);
    for (int64_t i = 0; i < s.x->rounds; i++) {
        size_t start = m->scratch.used;
        Round r = round_open(m, part, &s, i, sorted);
        Mat z = room(m, &s, r.n, m->dim.H, m->dim.type);
        d->scale_rows(d, r.a, r.a, r.weight);
        for (int e = 0; e < s.x->local; e++) {
            int64_t from, n = experts_part(s.x, i, e, &from);
            Mat bias = params_expert_weight(m->params, part, P_EFC2B, e), out = mat_rows(z, from, n);
            d->linear(d, out, mat_rows(r.a, from, n), params_expert_weight(m->params, part, P_EFC2, e), none);
            if (bias.rows && s.x->etp->rank == 0)      /* rank 0 alone: the outputs are summed */
                d->matmul(d, out, mat_rows(r.narrow, from, n), 0, bias, 0, 1);
        }
        experts_return(d, s.x, &m->scratch, i, back, z);
        arena_reset(&m->scratch, start);
    }
    d->sum_rows(d, y, back, s.place, s.x->topk);
    arena_reset(&m->scratch, mark);
}

void moe_fwd(Model *m, const Pass *p, int part, LayerActs *a, Mat y)
{
    int64_t R = a->ln2.rows, k = m->cfg->moe_router_topk;
    a->logits = mat_take(p->keep_d, R, m->cfg->num_moe_experts, m->dim.real);
    a->weight = mat_take(p->keep_d, R, k, m->dim.real);
    a->choice = arena_take(p->keep_d, (size_t)(R * k) * sizeof *a->choice);
    model_keep_mask(m, p);
    router_fwd(m, p, part, a);
    if (!y.rows)
        return;
    experts_fwd(m, part, a, y);
    if (shared_expert_exists(m))
        shared_expert_fwd(m, part, a, y);
    model_watch(m, part, "mlp.experts", y);
    p->fd->residual = (Residual){y, a->x1, model_dropout(m, p, SITE_MLP, m->params->part[part].layer), part};
}

/* ---- backward ---- */

/* The gradients of one expert's weights, and of its rows.
 *   r   in   the round, with activations before the weight
 *   g   in   [n,H]  gradient of the rows' outputs
 *   dx  out  [n,H]
 *   dw  out  real [n,1]  gradient of the weights; this rank's part of the sum over etp */
static void expert_bwd(Model *m, int part, int e, int first, const Round *r, Mat g, Mat dx, Mat dw,
                       int64_t from, int64_t n)
{
    Device *d = m->dev;
    const Params *w = m->params;
    size_t mark = m->scratch.used;
    Mat none = {.type = m->dim.real}, a = mat_rows(r->a, from, n), h = mat_rows(r->h, from, n),
        x = mat_rows(r->x, from, n), gi = mat_rows(g, from, n), di = mat_rows(dw, from, n),
        weight = mat_rows(r->weight, from, n), bias = params_expert_weight(w, part, P_EFC2B, e);
    int64_t most = experts_room(&m->experts);
    Mat da = mat_rows(model_take(m, &m->scratch, most, a.cols), 0, n),
        dh = mat_rows(model_take(m, &m->scratch, most, h.cols), 0, n);
    d->matmul(d, da, gi, 0, params_expert_weight(w, part, P_EFC2, e), 0, 0);
    d->row_dots(d, di, da, a);
    if (bias.rows && first)
        d->matmul(d, di, gi, 0, bias, 1, 1);
    d->scale_rows(d, da, da, weight);
    d->scale_rows(d, a, a, weight);
    d->linear_bwd_w(d, params_expert_grad(w, part, P_EFC2, e), none, gi, a);
    if (bias.rows)
        d->matmul(d, params_expert_grad(w, part, P_EFC2B, e), mat_rows(r->narrow, from, n), 1, gi, 0, 1);
    d->act_bwd(d, dh, da, h, (ActKind)m->cfg->activation);
    d->linear_bwd_w(d, params_expert_grad(w, part, P_EFC1, e), params_expert_grad(w, part, P_EFC1B, e), dh,
                    x);
    d->matmul(d, mat_rows(dx, from, n), dh, 0, params_expert_weight(w, part, P_EFC1, e), 0, 0);
    arena_reset(&m->scratch, mark);
}

/* dln [R,H] and dweight real [R,k] from dy [R,H], the gradient of the layer's output. */
static void experts_bwd(Model *m, int part, LayerActs *a, Mat dy, Mat dln, Mat dweight)
{
    Device *d = m->dev;
    size_t mark = m->scratch.used;
    Dispatch s = dispatch_open(m, a);
    Mat x = sort_rows(m, &s, a->ln2), g = sort_rows(m, &s, dy);
    Mat dx = model_take(m, &m->scratch, s.pairs, m->dim.H);
    Mat dw = mat_take(&m->scratch, s.pairs, 1, m->dim.real);
    for (int64_t i = 0; i < s.x->rounds; i++) {
        size_t start = m->scratch.used;
        Round r = round_open(m, part, &s, i, x);
        Mat gi = room(m, &s, r.n, m->dim.H, m->dim.type), dxi = room(m, &s, r.n, m->dim.H, m->dim.type),
            dwi = room(m, &s, r.n, 1, m->dim.real);
        experts_send(d, s.x, &m->scratch, i, gi, g);
        for (int e = 0; e < s.x->local; e++) {
            int64_t from, n = experts_part(s.x, i, e, &from);
            expert_bwd(m, part, e, s.x->etp->rank == 0, &r, gi, dxi, dwi, from, n);
        }
        experts_return(d, s.x, &m->scratch, i, dx, dxi);
        experts_return(d, s.x, &m->scratch, i, dw, dwi);
        arena_reset(&m->scratch, start);
    }
    d->sum_rows(d, dln, dx, s.place, s.x->topk);
    d->gather_rows(d, mat(dweight.p, s.pairs, 1, m->dim.real), dw, s.place);
    arena_reset(&m->scratch, mark);
}

void moe_bwd(Model *m, const Pass *p, int part, LayerActs *a, Mat dx1, Mat dy)
{
    Device *d = m->dev;
    const Params *w = m->params;
    size_t start = m->scratch.used;
    int64_t R = dy.rows;
    Mat out = dy;
    Dropout drop = model_dropout(m, p, SITE_MLP, w->part[part].layer);
    if (drop.p > 0) {
        out = model_take(m, &m->scratch, R, m->dim.H);
        d->dropout_bwd(d, out, dy, &drop);
    }
    Mat dln = model_take(m, &m->scratch, R, m->dim.H),
        dweight = mat_take(&m->scratch, R, a->weight.cols, m->dim.real);
    experts_bwd(m, part, a, out, dln, dweight);
    if (shared_expert_exists(m))
        shared_expert_bwd(m, part, a, out, dln);
    router_bwd(m, p, part, a, dweight, dln);
    d->norm_bwd_w(d, params_grad(w, part, P_LN2), params_grad(w, part, P_LN2B), dln, a->x1, a->stat2,
                  model_norm(m), 1);
    d->norm_bwd_x(d, dx1, dy, dln, a->x1, a->stat2, params_weight(w, part, P_LN2), model_norm(m), 1);
    arena_reset(&m->scratch, start);
}
