/* router -- which experts a token goes to, with which weights, and the losses that spread the tokens (Shazeer
 * et al. 2017, arXiv:1701.06538; Fedus et al. 2021, arXiv:2101.03961, sec 2.2).
 *
 * Each rank routes its R rows, which no other rank of the stage has. */
#include "model.h"
#include <math.h>
#include <stdlib.h>
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

void router_update_bias(Model *m)
{
    Mat bias = m->balance.bias;
    const RouterStats *s = &m->routers;
    const int64_t E = s->experts;
    double rate = m->cfg->moe_router_bias_update_rate;
    void *x = m->balance.before;       /* the step's microbatches are done; the next one clears it */
    m->dev->get(m->dev, x, bias.p, mat_bytes(bias));
    for (int part = 0; part < bias.rows; part++) {
        int64_t sum = 0;
        if (!model_is_moe(m, part))
            continue;
        const int64_t *count = s->count + s->row[m->params->part[part].layer] * (E + 1);
        for (int64_t e = 0; e < E; e++)
            sum += count[e];
        for (int64_t e = 0; e < E; e++) {      /* the mean is sum / E */
            int sign = (sum > E * count[e]) - (sum < E * count[e]);
            if (bias.type == F64)
                ((double *)x)[part * E + e] += rate * sign;
            else
                ((float *)x)[part * E + e] += (float)rate * (float)sign;
        }
    }
    m->dev->put(m->dev, bias.p, x, mat_bytes(bias));
}

/* The factors of the input's jitter (Fedus et al. 2021, arXiv:2101.03961, sec 2.4), which are the token's in
 * every layout, as those of a dropout are. */
static Dropout jitter_of(const Model *m, const Pass *p, int part)
{
    Dropout s = model_dropout(m, p, SITE_ROUTER, m->params->part[part].layer);
    s.p = 0;
    s.jitter = m->now.evaluating || isnan(m->cfg->moe_input_jitter_eps) ? 0 : m->cfg->moe_input_jitter_eps;
    return s;
}

/* What the router reads: ln2, with jitter in scratch. */
static Mat input_of(Model *m, const Dropout *jitter, Mat ln2)
{
    Mat none = {.type = ln2.type}, x = ln2;
    if (jitter->jitter > 0) {
        x = model_take(m, &m->scratch, ln2.rows, ln2.cols);
        m->dev->dropout_fwd(m->dev, x, ln2, none, jitter);
    }
    return x;
}

void router_fwd(Model *m, const Pass *p, int part, LayerActs *a)
{
    Device *d = m->dev;
    Mat none = {.type = m->dim.type}, bias = {.type = m->dim.real};
    Routing r = routing_of(m);
    size_t mark = m->scratch.used;
    Dropout jitter = jitter_of(m, p, part);
    if (m->balance.bias.rows)
        bias = mat_rows(m->balance.bias, part, 1);
    Mat scores = mat_take(&m->scratch, a->logits.rows, a->logits.cols, m->dim.real);
    d->linear(d, a->logits, input_of(m, &jitter, a->ln2), params_weight(m->params, part, P_ROUTER), none);
    if (m->cfg->moe_router_force != MOE_ROUTER_FORCE_NONE) {
        force_choices(m, p, part, a->choice);
        r.given = 1;
    }
    d->route_fwd(d, a->choice, a->weight, scores, a->logits, bias, &r);
    arena_reset(&m->scratch, mark);
    model_watch(m, part, "mlp.router", a->logits);
}

/* ---- backward ---- */

static int has_balance(const Config *c)
{
    return c->moe_router_load_balancing_type != MOE_ROUTER_LOAD_BALANCING_TYPE_NONE &&
           c->moe_aux_loss_coeff != 0;
}

/* Whether the balance loss counts other pairs than those that the router has chosen. */
static int counts_apart(const Model *m)
{
    const Config *c = m->cfg;
    return has_balance(c) && c->moe_router_force == MOE_ROUTER_FORCE_NONE &&
           (c->moe_router_enable_expert_bias || c->moe_router_num_groups != CFG_ABSENT);
}

void router_open(Model *m, int64_t rows, Arena *run)
{
    int64_t n = m->cfg->micro_batch_size, dp = m->grid->size[AXIS_DP];
    m->balance.load = xcalloc((size_t)((n > dp ? n : dp) * m->cfg->num_moe_experts), sizeof(double));
    m->balance.before =
        xcalloc((size_t)(m->params->nparts * (m->cfg->num_moe_experts + 1)), sizeof(double));
    if (counts_apart(m))
        m->balance.plain = xcalloc((size_t)(rows * m->cfg->moe_router_topk), sizeof *m->balance.plain);
    if (!m->cfg->moe_router_enable_expert_bias)
        return;
    m->balance.bias = mat_take(run, m->params->nparts, m->cfg->num_moe_experts, m->dim.real);
    if (m->balance.bias.p)
        m->dev->zero(m->dev, m->balance.bias.p, mat_bytes(m->balance.bias));
}

void router_close(Model *m)
{
    free(m->balance.load);
    free(m->balance.before);
    free(m->balance.plain);
}

void router_begin(Model *m)
{
    if (m->balance.before)
        memset(m->balance.before, 0,
               (size_t)(m->params->nparts * (m->cfg->num_moe_experts + 1)) * sizeof(double));
}

/* Replaces the pairs of this microbatch, which lie at the place of its dp rank in balance.load, by the mean
 * over the microbatches of the global batch up to this one, in the order of their samples. A round of
 * microbatches is one of each dp rank, and comes to a layer's backward in order. Collective over dp. */
static void mean_so_far(Model *m, int part)
{
    Comm *dp = &m->grid->axis[AXIS_DP];
    int64_t E = m->experts.experts;
    double *load = m->balance.load, *before = m->balance.before + part * (E + 1);
    double n = before[E] + dp->rank + 1;       /* microbatches up to this one */
    dp->wait(dp, dp->all_gather(dp, load, load + dp->rank * E, E, F64));
    for (int64_t e = 0; e < E; e++) {
        double upto = before[e];
        for (int r = 0; r < dp->size; r++) {
            before[e] += load[r * E + e];
            upto += r <= dp->rank ? load[r * E + e] : 0;
        }
        load[e] = upto / n;
    }
    before[E] += dp->size;
}

/* The pairs that the balance loss counts: the topk experts of the largest scores, without bias and groups
 * (arXiv:2412.19437, eq. 18). Without these they are the choices, which the plan of the layer's dispatch has.
 * Returns [R k] on the host. */
static const int32_t *counted_pairs(Model *m, Mat logits)
{
    Device *d = m->dev;
    Mat none = {.type = m->dim.real};
    Routing r = routing_of(m);
    size_t mark = m->scratch.used;
    if (!counts_apart(m))
        return m->experts.choice;
    r.groups = r.group_topk = 0;
    size_t bytes = (size_t)(logits.rows * r.topk) * sizeof *m->balance.plain;
    int32_t *choice = arena_take(&m->scratch, bytes);
    Mat weight = mat_take(&m->scratch, logits.rows, r.topk, m->dim.real),
        scores = mat_take(&m->scratch, logits.rows, logits.cols, m->dim.real);
    d->route_fwd(d, choice, weight, scores, logits, none, &r);
    if (choice)
        d->get(d, m->balance.plain, choice, bytes);
    arena_reset(&m->scratch, mark);
    return m->balance.plain;
}

/* Counts the pairs of each expert, of the microbatch or of each of its n samples, and returns them in
 * balance.load. A counting run does not look at them. */
static double *count_pairs(Model *m, int part, Mat logits, int64_t n)
{
    const Experts *x = &m->experts;
    const int32_t *pair = counted_pairs(m, logits);
    int global = m->cfg->moe_router_load_balancing_type == MOE_ROUTER_LOAD_BALANCING_TYPE_GLOBAL_AUX_LOSS;
    int64_t E = x->experts, row0 = model_row0(m);
    double *load = m->balance.load + (global ? m->grid->index[AXIS_DP] * E : 0);
    Comm *rows = m->tp.group.rows, *cp = &m->grid->axis[AXIS_CP];
    memset(load, 0, (size_t)(n * E) * sizeof *load);
    for (int64_t i = 0; m->routers.sums && i < x->rows * x->topk; i++)
        load[(n > 1 ? (row0 + i / x->topk) / m->now.S : 0) * E + experts_chosen(pair[i])]++;
    rows->wait(rows, rows->all_reduce(rows, load, n * E, F64, OP_SUM));
    cp->wait(cp, cp->all_reduce(cp, load, n * E, F64, OP_SUM));
    if (global)
        mean_so_far(m, part);
    return m->balance.load;
}

/* What multiplies the gradients of the routers' losses: these are means over all tokens, masked or not. */
static double loss_scale(const Model *m) { return m->now.loss_scale * m->now.counted; }

/* The gradient of the balance loss with respect to the scores of a token: the share of the pairs that each
 * expert has got, of the microbatch or of each sample (Fedus et al. 2021, eq. 4; by sample: DeepSeek-AI
 * 2024, arXiv:2412.19437, sec 2.1.2), or of the global batch so far (Qiu et al. 2025, arXiv:2501.11873).
 * Returns real [1 or B, E] in scratch; absent: there is no such loss. */
static Mat balance_push(Model *m, int part, Mat logits)
{
    const Config *c = m->cfg;
    const Experts *x = &m->experts;
    int by_sample = c->moe_router_load_balancing_type == MOE_ROUTER_LOAD_BALANCING_TYPE_SEQ_AUX_LOSS;
    int64_t n = by_sample ? m->now.B : 1, E = x->experts;
    double tokens = (double)(m->now.context.positions * (by_sample ? 1 : m->now.B));
    double factor = c->moe_aux_loss_coeff * (double)E / ((double)x->topk * tokens) * loss_scale(m);
    if (!has_balance(c))
        return (Mat){.type = m->dim.real};
    double *load = count_pairs(m, part, logits, n);
    Mat push = mat_take(&m->scratch, n, E, m->dim.real);
    for (int64_t i = 0; i < n * E; i++) {      /* in place: a float is not larger than a double */
        double g = load[i] * factor;
        if (m->dim.real == F64)
            load[i] = g;
        else
            ((float *)load)[i] = (float)g;
    }
    if (push.p)
        m->dev->put(m->dev, push.p, load, mat_bytes(push));
    return push;
}

void router_bwd(Model *m, const Pass *p, int part, LayerActs *a, Mat dweight, Mat dln)
{
    Device *d = m->dev;
    const Params *w = m->params;
    size_t mark = m->scratch.used;
    int64_t R = a->logits.rows, E = a->logits.cols;
    Mat none = {.type = m->dim.real}, dlogits = mat_take(&m->scratch, R, E, m->dim.real),
        narrow = model_take(m, &m->scratch, R, E);
    Routing r = routing_of(m);
    Mat push = balance_push(m, part, a->logits);
    r.each = push.rows == 1 ? model_tokens(m) : m->now.S;
    r.z = isnan(m->cfg->moe_z_loss_coeff) ? 0 : m->cfg->moe_z_loss_coeff * loss_scale(m);
    router_stats_add(m, part, a->logits, push, &r);
    d->route_bwd(d, dlogits, dweight, a->logits, a->choice, push, &r);
    d->copy(d, narrow, dlogits);
    Dropout jitter = jitter_of(m, p, part);
    Mat x = input_of(m, &jitter, a->ln2), dx = dln;
    if (jitter.jitter > 0)
        dx = model_take(m, &m->scratch, R, dln.cols);
    d->matmul(d, dx, narrow, 0, params_weight(w, part, P_ROUTER), 0, jitter.jitter <= 0);
    if (jitter.jitter > 0)
        d->dropout_fwd(d, dln, dx, dln, &jitter);
    d->linear_bwd_w(d, params_grad(w, part, P_ROUTER), none, narrow, x, 1);
    arena_reset(&m->scratch, mark);
}
