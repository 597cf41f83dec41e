/* moe -- the feed-forward half of a layer with experts: a router (router.c) chooses experts for each token,
 * the token goes to the ranks that hold them, and the sum of what they return is the layer's output (Shazeer
 * et al. 2017, arXiv:1701.06538; Fedus et al. 2021, arXiv:2101.03961).
 *
 * A pair (a token and one of its experts) carries a weight, which multiplies the expert's activation before
 * fc2: so the layer's output is a plain sum, and the weight's gradient is computed where the expert is.
 *
 * How many rows an expert gets is known only when the router has chosen, so rows go in rounds of bounded
 * size, of which balanced experts need one. The first round's rows and their inner activations before act
 * stay until D, unless the layer is recomputed; D sends the rows of further rounds again and computes their
 * activations again. D computes the gradients of the experts' weights, too; W has nothing to do here. */
#include "expert.h"
#include "model.h"

/* The dispatch of a layer's rows: its index lists on the device, and the weights of the pairs. */
typedef struct {
    Experts *x;
    int32_t *place, *pair, *source;    /* as in Experts */
    Mat weight;                        /* real [R k, 1] */
} Dispatch;

/* Copies a list of n numbers; it takes the memory of `most`. */
static int32_t *to_device(Model *m, const int32_t *list, int64_t n, int64_t most)
{
    int32_t *at = arena_take(&m->scratch, (size_t)most * sizeof *at);
    if (at)
        m->dev->put(m->dev, at, list, (size_t)n * sizeof *at);
    return at;
}

static Dispatch dispatch_open(Model *m, const LayerActs *a)
{
    Experts *x = &m->experts;
    ExpertsLimit limit;
    Dispatch s = {.x = x, .weight = mat(a->weight.p, a->weight.rows * a->weight.cols, 1, m->dim.real)};
    experts_plan(m->dev, x, a->kept, a->weight.rows, a->weight.rows, capacity_limit(m, a, &limit));
    s.place = to_device(m, x->place, s.weight.rows, s.weight.rows);
    s.pair = to_device(m, x->pair, x->pairs, x->most_pairs);
    s.source = to_device(m, x->source, x->pairs, x->most_pairs);
    return s;
}

/* A round of the dispatch; n rows of memory for experts_room. */
typedef struct {
    ExpertRound r;
    ExpertActs acts;
    ExpertFlight to_x, to_weight;
    Mat narrow, a;             /* [n,1] the weights as storage; [n,F] act(h) */
} Round;

static Mat room(const Dispatch *s, Arena *from, int64_t n, int64_t cols, Dtype type)
{
    return mat_rows(mat_take(from, experts_room(s->x), cols, type), 0, n);
}

/* Begins a round: starts to send the rows ln2 and their weights, unless they have been kept.
 *   kept  in      the round's rows and activations; no columns: they are made
 *   from  in/out  arena that these are taken from then */
static Round round_start(Model *m, const Dispatch *s, int64_t number, Mat ln2, ExpertActs kept, Arena *from)
{
    Device *d = m->dev;
    int64_t F = m->dim.expert_F, width = act_width((ActKind)m->cfg->activation, F);
    Round r = {.r = experts_round(d, s->x, &m->scratch, number), .acts = kept};
    int64_t n = r.r.n;
    if (!kept.x.cols)
        r.acts = (ExpertActs){room(s, from, n, m->dim.H, m->dim.type),
                              room(s, from, n, width, m->dim.type), room(s, from, n, 1, m->dim.real)};
    r.narrow = room(s, &m->scratch, n, 1, m->dim.type);
    r.a = room(s, &m->scratch, n, F, m->dim.type);
    if (!kept.x.cols) {
        r.to_x = experts_send_start(d, s->x, &m->scratch, &r.r, r.acts.x, ln2, 1, s->source);
        r.to_weight = experts_send_start(d, s->x, &m->scratch, &r.r, r.acts.weight, s->weight, s->x->topk,
                                         s->pair);
    }
    return r;
}

/* Counts the scratch that products with a round's rows of one expert take. */
static void reserve(Model *m, int part)
{
    static const ParamId weight[] = {P_EFC1, P_EFC2};
    for (int i = 0; i < 2; i++)
        linear_reserve(&m->scratch, experts_room_of_one(&m->experts),
                       params_expert_weight(m->params, part, weight[i], 0),
                       model_precision(m, part, LINEAR_FC1 + i));
}

/* Receives the rows of a round and computes the activations of their experts, before the weight. Of kept rows
 * act alone is computed. */
static void round_end(Model *m, int part, const Dispatch *s, const Round *r)
{
    Device *d = m->dev;
    ActKind kind = (ActKind)m->cfg->activation;
    experts_send_end(d, s->x, &r->r, r->to_x);
    experts_send_end(d, s->x, &r->r, r->to_weight);
    d->copy(d, r->narrow, r->acts.weight);
    reserve(m, part);
    for (int e = 0; e < s->x->local && r->to_x.token; e++) {
        int64_t from, n = experts_part(s->x, r->r.number, e, &from);
        linear_act_fwd(d, &m->scratch, mat_rows(r->a, from, n), mat_rows(r->acts.h, from, n),
                       mat_rows(r->acts.x, from, n), params_expert_weight(m->params, part, P_EFC1, e),
                       params_expert_weight(m->params, part, P_EFC1B, e), kind,
                       model_precision(m, part, LINEAR_FC1));
    }
    if (!r->to_x.token)
        d->act_fwd(d, r->a, r->acts.h, kind);
}

/* What the experts of a round make of their rows: z [n,H]. The activations are multiplied by the weights. */
static void round_results(Model *m, int part, const Dispatch *s, const Round *r, Mat z)
{
    Device *d = m->dev;
    Mat none = {.type = m->dim.type};
    for (int e = 0; e < s->x->local; e++) {
        int64_t from, n = experts_part(s->x, r->r.number, e, &from);
        Mat bias = params_expert_weight(m->params, part, P_EFC2B, e), out = mat_rows(z, from, n);
        linear_fwd(d, &m->scratch, out, mat_rows(r->a, from, n),
                   params_expert_weight(m->params, part, P_EFC2, e), none,
                   model_precision(m, part, LINEAR_FC2));
        if (bias.rows && s->x->etp->rank == 0)         /* rank 0 alone: the outputs are summed */
            d->matmul(d, out, mat_rows(r->narrow, from, n), 0, bias, 0, 1);
    }
}

/* y [R,H] from ln2: the experts' sum. The results of a round travel while the next one begins.
 *   keep    in/out          arena for the first round's activations; the scratch: they are not kept
 *   shared  out     [R,H]   the shared expert's output, which is computed while the rows of the first round
 *                           travel; or absent */
static void experts_fwd(Model *m, int part, LayerActs *a, Mat y, Arena *keep, Mat shared)
{
    Device *d = m->dev;
    size_t mark = m->scratch.used;
    Dispatch s = dispatch_open(m, a);
    Mat back = experts_back(s.x, &m->scratch, 1, m->dim.H, m->dim.type);
    Mat z = experts_results_room(s.x, &m->scratch, back), leave = experts_return_room(s.x, &m->scratch, back);
    ExpertFlight to_back = {0};
    for (int64_t i = 0; i < s.x->rounds; i++) {
        size_t start = m->scratch.used;
        Round r = round_start(m, &s, i, a->ln2, (ExpertActs){0}, i == 0 ? keep : &m->scratch);
        if (i == 0 && shared.rows)
            shared_expert_fwd(m, part, a, shared);
        if (i == 0 && keep != &m->scratch)
            a->expert = r.acts;
        if (i == 0)
            experts_turn(s.x);
        round_end(m, part, &s, &r);
        d->scale_rows(d, r.a, r.a, r.acts.weight);
        experts_return_end(d, s.x, to_back);
        Mat out = experts_results(s.x, &r.r, back, z);
        round_results(m, part, &s, &r, out);
        to_back = experts_return_start(d, s.x, &m->scratch, &r.r, 1, back, out, leave);
        arena_reset(&m->scratch, start);
    }
    experts_turn(s.x);
    experts_return_end(d, s.x, to_back);
    experts_sum(d, s.x, y, 1, back, s.place);
    arena_reset(&m->scratch, mark);
}

void moe_fwd(Model *m, const Pass *p, int part, LayerActs *a, Mat y)
{
    int64_t R = a->ln2.rows, k = m->cfg->moe_router_topk;
    a->logits = mat_take(p->keep_d, R, m->cfg->num_moe_experts, m->dim.real);
    a->weight = mat_take(p->keep_d, R, k, m->dim.real);
    a->choice = arena_take(p->keep_d, (size_t)(R * k) * sizeof *a->choice);
    a->expert = (ExpertActs){0};
    model_keep_mask(m, p);
    router_fwd(m, p, part, a);
    capacity_drop(m, p, a);
    if (!y.rows)
        return;
    size_t mark = m->scratch.used;
    Mat shared = model_take(m, &m->scratch, shared_expert_exists(m) ? R : 0, m->dim.H);
    experts_fwd(m, part, a, y, m->keep.moe ? p->keep_d : &m->scratch, shared);
    if (shared.rows)
        m->dev->add(m->dev, y, y, shared);
    arena_reset(&m->scratch, mark);
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
    Mat none = {.type = m->dim.real}, a = mat_rows(r->a, from, n), h = mat_rows(r->acts.h, from, n),
        x = mat_rows(r->acts.x, from, n), gi = mat_rows(g, from, n), di = mat_rows(dw, from, n),
        weight = mat_rows(r->acts.weight, from, n), bias = params_expert_weight(w, part, P_EFC2B, e);
    int64_t most = experts_room_of_one(&m->experts);
    Mat da = mat_rows(model_take(m, &m->scratch, most, a.cols), 0, n),
        dh = mat_rows(model_take(m, &m->scratch, most, h.cols), 0, n);
    Precision fc1 = model_precision(m, part, LINEAR_FC1), fc2 = model_precision(m, part, LINEAR_FC2);
    reserve(m, part);
    linear_bwd_x(d, &m->scratch, da, gi, params_expert_weight(w, part, P_EFC2, e), fc2);
    d->row_dots(d, di, da, a);
    if (bias.rows && first)
        d->matmul(d, di, gi, 0, bias, 1, 1);
    d->scale_rows(d, da, da, weight);
    d->scale_rows(d, a, a, weight);
    linear_bwd_w(d, &m->scratch, params_expert_sum(w, part, P_EFC2, e), none, gi, a, fc2);
    if (bias.rows)
        d->matmul(d, params_expert_grad(w, part, P_EFC2B, e), mat_rows(r->narrow, from, n), 1, gi, 0, 1);
    d->act_bwd(d, dh, da, h, (ActKind)m->cfg->activation);
    linear_bwd_w(d, &m->scratch, params_expert_sum(w, part, P_EFC1, e),
                 params_expert_grad(w, part, P_EFC1B, e), dh, x, fc1);
    linear_bwd_x(d, &m->scratch, mat_rows(dx, from, n), dh, params_expert_weight(w, part, P_EFC1, e), fc1);
    arena_reset(&m->scratch, mark);
}

/* dln [R,H] and dweight real [R,k] from dy [R,H], the gradient of the layer's output. The shared expert's
 * part of dln is computed while the rows of the first round travel, and added by the caller. */
static void experts_bwd(Model *m, int part, LayerActs *a, Mat dy, Mat dln, Mat dweight, SharedGrads shared)
{
    Device *d = m->dev;
    size_t mark = m->scratch.used;
    Dispatch s = dispatch_open(m, a);
    int k = s.x->topk;
    Mat dx = experts_back(s.x, &m->scratch, 1, m->dim.H, m->dim.type),
        dw = experts_back(s.x, &m->scratch, k, 1, m->dim.real);
    Mat dx_room = experts_results_room(s.x, &m->scratch, dx),
        dw_room = experts_results_room(s.x, &m->scratch, dw),
        dx_leave = experts_return_room(s.x, &m->scratch, dx),
        dw_leave = experts_return_room(s.x, &m->scratch, dw);
    ExpertFlight dx_back = {0}, dw_back = {0};
    for (int64_t i = 0; i < s.x->rounds; i++) {
        size_t start = m->scratch.used;
        Round r = round_start(m, &s, i, a->ln2, i == 0 ? a->expert : (ExpertActs){0}, &m->scratch);
        Mat g = room(&s, &m->scratch, r.r.n, m->dim.H, m->dim.type);
        ExpertFlight to_g = experts_send_start(d, s.x, &m->scratch, &r.r, g, dy, 1, s.source);
        if (i == 0 && shared.dx.rows)
            shared_expert_bwd(m, part, a, dy, shared);
        if (i == 0)
            experts_turn(s.x);
        round_end(m, part, &s, &r);
        experts_send_end(d, s.x, &r.r, to_g);
        experts_return_end(d, s.x, dx_back);
        experts_return_end(d, s.x, dw_back);
        Mat dxi = experts_results(s.x, &r.r, dx, dx_room), dwi = experts_results(s.x, &r.r, dw, dw_room);
        for (int e = 0; e < s.x->local; e++) {
            int64_t from, n = experts_part(s.x, i, e, &from);
            expert_bwd(m, part, e, s.x->etp->rank == 0, &r, g, dxi, dwi, from, n);
        }
        dx_back = experts_return_start(d, s.x, &m->scratch, &r.r, 1, dx, dxi, dx_leave);
        dw_back = experts_return_start(d, s.x, &m->scratch, &r.r, k, dw, dwi, dw_leave);
        arena_reset(&m->scratch, start);
    }
    experts_turn(s.x);
    experts_return_end(d, s.x, dx_back);
    experts_return_end(d, s.x, dw_back);
    experts_sum(d, s.x, dln, 1, dx, s.place);
    experts_sum(d, s.x, mat(dweight.p, s.weight.rows, 1, m->dim.real), k, dw, s.place);
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
    SharedGrads shared = shared_expert_grads(m, R);
    experts_bwd(m, part, a, out, dln, dweight, shared);
    shared_expert_add(m, part, shared, dln);
    router_bwd(m, p, part, a, dweight, dln);
    d->norm_bwd(d, dx1, params_grad(w, part, P_LN2), params_grad(w, part, P_LN2B), dy, dln, a->x1, a->stat2,
                params_weight(w, part, P_LN2), model_norm(m), 1);
    arena_reset(&m->scratch, start);
}
