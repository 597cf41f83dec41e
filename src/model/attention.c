/* attention -- the attention half of a decoder layer
 *
 * Heads are split over the tensor group. q, k and v are columns of one matrix: (A | K | K) heads of D.
 * The sequence is split over the context group (context.h): where that exchanges positions for heads, q,
 * k and v of the layer's activations are those after the exchange, and o is what it was before. */
#include "model.h"
#include "tensor.h"
#include <math.h>

static int64_t q_cols(const Model *m) { return m->dim.A * m->dim.D; }
static int64_t kv_cols(const Model *m) { return m->dim.K * m->dim.D; }
static Mat q_of(const Model *m, Mat qkv) { return mat_cols(qkv, 0, q_cols(m)); }
static Mat k_of(const Model *m, Mat qkv) { return mat_cols(qkv, q_cols(m), kv_cols(m)); }
static Mat qk_of(const Model *m, Mat qkv) { return mat_cols(qkv, 0, q_cols(m) + kv_cols(m)); }

/* q, k and v after the exchange of heads for positions: A, K and K heads, divided by its ranks. */
typedef struct { Mat q, k, v; } Heads;
static Heads heads_of(const Model *m, const ContextWay *w, Mat qkv)
{
    int64_t q = q_cols(m) / w->heads->size, kv = kv_cols(m) / w->heads->size;
    return (Heads){mat_cols(qkv, 0, q), mat_cols(qkv, q, kv), mat_cols(qkv, q + kv, kv)};
}

/* How the layer's keys and queries come together. */
static const ContextWay *way_of(const Model *m, int layer)
{
    return &m->now.context.way[context_kind(config_context_kind(m->cfg, layer))];
}

/* The attention of a layer; its positions are those of the whole sequence of this list. */
static Attention shape_of(const Model *m, const Pass *p, const ContextWay *w, int layer)
{
    const Config *c = m->cfg;
    const Batch *b = p->batch;
    Dropout drop = model_dropout(m, p, SITE_ATTENTION, layer);
    int shares = w->heads->size, heads = (int)m->dim.A / shares;
    return (Attention){.batch = b->batch, .heads = heads, .kv_heads = (int)m->dim.K / shares,
                       .dim = (int)m->dim.D,
                       .head0 = (m->tp.group.tp->rank * shares + w->heads->rank) * heads,
                       .window = c->window_size, .scale = 1 / sqrt((double)m->dim.D),
                       .doc_start = b->doc_start, .seq = b->seq,
                       .dropout = m->now.evaluating ? 0 : c->attention_dropout, .key = drop.key,
                       .sample = b->sample};
}

/* Rotates q and k in one call: their heads lie side by side. back, bool: rotates gradients back. */
static void rotate(Model *m, const Pass *p, Mat qkv, int back)
{
    if (m->rope.rows)
        m->dev->rope(m->dev, qk_of(m, qkv), (int)m->dim.D, m->rope, p->batch->position, back);
}

/* Makes q, k and v from ln1, with QK norm and rotation, and exchanges their positions for heads. */
static void project(Model *m, const Pass *p, int part, LayerActs *a)
{
    Device *d = m->dev;
    const Params *w = m->params;
    const ContextWay *way = way_of(m, w->part[part].layer);
    const int64_t cols[] = {q_cols(m), kv_cols(m), kv_cols(m)};
    size_t mark = m->scratch.used;
    Mat qkv = context_before(way, &m->scratch, a->qkv);
    size_t gathered = m->scratch.used;
    Mat x = tensor_room(&m->tp.group, &m->scratch, a->ln1);
    Precision precision = model_norm_precision(m, part, a, LINEAR_QKV);
    tensor_gather_linear(d, &m->tp.group, &m->scratch, x, qkv, a->ln1, params_weight(w, part, P_QKV),
                         params_weight(w, part, P_QKVB), precision);
    arena_reset(&m->scratch, gathered);
    if (m->cfg->qk_layernorm) {
        Mat q = q_of(m, qkv), k = k_of(m, qkv);
        d->copy(d, a->qk, qk_of(m, qkv));
        d->norm_fwd(d, q, a->qstat, q, params_weight(w, part, P_QNORM), params_weight(w, part, P_QNORMB),
                    m->cfg->norm_epsilon, model_norm(m), (int)m->dim.A);
        d->norm_fwd(d, k, a->kstat, k, params_weight(w, part, P_KNORM), params_weight(w, part, P_KNORMB),
                    m->cfg->norm_epsilon, model_norm(m), (int)m->dim.K);
    }
    rotate(m, p, qkv, 0);
    model_watch(m, part, "self_attention.linear_qkv", qkv);
    context_to_heads(d, way, &m->scratch, a->qkv, qkv, cols, 3);
    arena_reset(&m->scratch, mark);
}

/* Attention of the new positions and all positions of the cache, which is on every context rank. */
static void cached_core(Model *m, LayerActs *a, Heads h, int layer, Attention *s)
{
    Device *d = m->dev;
    KvCache *c = m->now.cache;
    int64_t n = h.k.rows;
    d->copy(d, mat_rows(c->k[layer], c->length, n), h.k);
    d->copy(d, mat_rows(c->v[layer], c->length, n), h.v);
    s->q = positions_one(c->length, n);
    s->k = positions_one(0, c->length + n);
    d->attention_fwd(d, a->o, a->lse, h.q, mat_rows(c->k[layer], 0, c->length + n),
                     mat_rows(c->v[layer], 0, c->length + n), s);
}

static void core(Model *m, const Pass *p, int part, LayerActs *a)
{
    Device *d = m->dev;
    int layer = m->params->part[part].layer;
    const ContextWay *w = way_of(m, layer);
    Heads h = heads_of(m, w, a->qkv);
    Attention s = shape_of(m, p, w, layer);
    size_t mark = m->scratch.used;
    if (m->now.cache) {
        cached_core(m, a, h, layer, &s);
        return;
    }
    const int64_t cols[] = {q_cols(m)};
    Mat o = context_after(w, &m->scratch, a->o);
    ContextKeys keys = context_keys(d, w, &m->scratch, h.k, h.v);
    context_attention_fwd(d, &m->now.context, w, &m->scratch, &keys, o, a->lse, h.q, &s);
    context_from_heads(d, w, &m->scratch, a->o, o, cols, 1);
    arena_reset(&m->scratch, mark);
}

/* The first norm, in one pass with the pending Residual of the layer before. */
static void add_norm1(Model *m, const Pass *p, int part, LayerActs *a)
{
    Residual r = p->fd->residual;
    Mat none = {.type = m->dim.type};
    if (!r.res.rows) {
        model_norm_fwd(m, part, a, LINEAR_QKV, none, a->x, none, NULL);
        return;
    }
    BUG_ON(r.x.p != a->x.p);
    model_norm_fwd(m, part, a, LINEAR_QKV, a->x, r.x, r.res, &r.drop);
    model_watch(m, r.part, "mlp.linear_fc2", a->x);
    p->fd->residual = (Residual){0};
}

static void take_core(Model *m, int part, LayerActs *a, Arena *o, Arena *lse)
{
    int64_t shares = way_of(m, m->params->part[part].layer)->heads->size;
    a->o = model_take(m, o, model_tokens(m), q_cols(m));
    a->lse = mat_take(lse, model_tokens(m) * shares, m->dim.A / shares, m->dim.real);
    if (m->dev->keeps.scores) {
        size_t pairs = (size_t)(model_tokens(m) * m->dim.A * m->now.context.positions);
        size_t size = dtype_size(m->dim.type);
        arena_take(lse, pairs * (m->cfg->attention_dropout > 0 ? 2 * size + 1 : size));
    }
}

void attention_fwd(Model *m, const Pass *p, int part, LayerActs *a)
{
    Device *d = m->dev;
    const Params *w = m->params;
    int64_t R = a->x.rows, T = model_tokens(m);
    a->stat1 = mat_take(p->keep_d, R, 2, m->dim.real);
    model_norm_take(m, p, part, a, LINEAR_QKV);
    int64_t shares = way_of(m, w->part[part].layer)->heads->size;
    a->qkv = model_take(m, p->keep_d, T * shares, (q_cols(m) + 2 * kv_cols(m)) / shares);
    if (m->cfg->qk_layernorm) {
        a->qk = model_take(m, p->keep_d, T, q_cols(m) + kv_cols(m));
        a->qstat = mat_take(p->keep_d, T, 2 * m->dim.A, m->dim.real);
        a->kstat = mat_take(p->keep_d, T, 2 * m->dim.K, m->dim.real);
    }
    int output = m->keep.attn || m->dev->keeps.scores; /* keep o, proj's input, as Megatron-LM does */
    take_core(m, part, a, output ? p->keep_w : &m->scratch, m->keep.attn ? p->keep_d : &m->scratch);
    a->x1 = model_take(m, p->keep_d, R, m->dim.H);
    a->stat2 = mat_take(p->keep_d, R, 2, m->dim.real);
    model_norm_take(m, p, part, a, LINEAR_FC1);
    model_keep_mask(m, p);
    add_norm1(m, p, part, a);
    project(m, p, part, a);
    core(m, p, part, a);
    model_watch(m, part, "self_attention.core_attention", a->o);
    size_t mark = m->scratch.used;
    Mat out = model_take(m, &m->scratch, R, m->dim.H);
    row_linear_fwd(d, &m->tp.group, &m->scratch, out, a->o, params_weight(w, part, P_PROJ),
                   params_weight(w, part, P_PROJB), model_precision(m, part, LINEAR_PROJ));
    Dropout drop = model_dropout(m, p, SITE_PROJ, m->params->part[part].layer);
    model_norm_fwd(m, part, a, LINEAR_FC1, a->x1, out, a->x, &drop);
    arena_reset(&m->scratch, mark);
}

void attention_restore(Model *m, const Pass *p, int part, LayerActs *a)
{
    model_norm_restore(m, p, part, a, LINEAR_QKV, 0);
    if (!m->keep.attn) {
        take_core(m, part, a, p->late, &m->scratch);
        core(m, p, part, a);
    }
}

/* Takes the gradients of q and k back through rotation and QK norm, in place in dqkv. */
static void project_bwd(Model *m, const Pass *p, int part, LayerActs *a, Mat dqkv)
{
    Device *d = m->dev;
    const Params *w = m->params;
    Mat dq = q_of(m, dqkv), dk = k_of(m, dqkv), none = {.type = m->dim.type};
    rotate(m, p, dqkv, 1);
    if (m->cfg->qk_layernorm) {
        Mat q = mat_cols(a->qk, 0, q_cols(m)), k = mat_cols(a->qk, q_cols(m), kv_cols(m));
        d->norm_bwd(d, dq, params_grad(w, part, P_QNORM), params_grad(w, part, P_QNORMB), none, dq, q,
                    a->qstat, params_weight(w, part, P_QNORM), model_norm(m), (int)m->dim.A);
        d->norm_bwd(d, dk, params_grad(w, part, P_KNORM), params_grad(w, part, P_KNORMB), none, dk, k,
                    a->kstat, params_weight(w, part, P_KNORM), model_norm(m), (int)m->dim.K);
    }
}

/* Weight gradients of qkv and proj.
 *   x, dy  in  all T rows of qkv's input, and of the gradient of proj's output
 *   turned  in  [2] transposed FP8 copies of the gradients of proj's and qkv's output; NULL: none */
static void weights_bwd(Model *m, int part, LayerActs *a, LayerGrads *g, Mat x, Mat dy, Fp8Turned *turned)
{
    const Params *w = m->params;
    Precision proj = model_precision(m, part, LINEAR_PROJ), qkv = model_precision(m, part, LINEAR_QKV);
    proj.dyt = turned;
    qkv.dyt = turned ? turned + 1 : NULL;
    qkv.xt = &a->ln1t;
    tensor_bwd_w(m->dev, &m->scratch, params_sum(w, part, P_PROJ), dy, a->o, params_grad(w, part, P_PROJB),
                 g->proj, proj);
    tensor_bwd_w(m->dev, &m->scratch, params_sum(w, part, P_QKV), g->qkv, x, params_grad(w, part, P_QKVB),
                 g->qkv, qkv);
}

/* The gradient of q, k and v from that of proj's output; keys and values travel during proj's product.
 *   dy      out  [T, H]  tensor_room of g->proj: all its rows, on return
 *   turned  out          the transposed FP8 copy of dy, if there is room */
static void core_bwd(Model *m, const Pass *p, int part, LayerActs *a, LayerGrads *g, Mat dy,
                     Fp8Turned *turned)
{
    Device *d = m->dev;
    Arena *scratch = &m->scratch;
    int layer = m->params->part[part].layer;
    const ContextWay *w = way_of(m, layer);
    const int64_t cols[] = {q_cols(m), kv_cols(m), kv_cols(m)};
    size_t mark = scratch->used;
    Heads h = heads_of(m, w, a->qkv);
    ContextKeys keys = context_keys(d, w, scratch, h.k, h.v);
    Mat dout = model_take(m, scratch, model_tokens(m), q_cols(m));
    Precision precision = model_precision(m, part, LINEAR_PROJ);
    precision.dyt = turned;
    tensor_gather_matmul(d, &m->tp.group, scratch, dy, dout, g->proj, params_weight(m->params, part, P_PROJ),
                         precision);
    Mat o = context_after(w, scratch, a->o), dheads = context_after(w, scratch, dout),
        dqkv = context_after(w, scratch, g->qkv);
    context_to_heads(d, w, scratch, o, a->o, cols, 1);
    context_to_heads(d, w, scratch, dheads, dout, cols, 1);
    Heads dh = heads_of(m, w, dqkv);
    Attention s = shape_of(m, p, w, layer);
    context_attention_bwd(d, &m->now.context, w, scratch, &keys, dh.q, dh.k, dh.v, dheads, o, a->lse, h.q,
                          &s);
    context_from_heads(d, w, scratch, g->qkv, dqkv, cols, 3);
    arena_reset(scratch, mark);
}

void attention_bwd(Model *m, const Pass *p, int part, LayerActs *a, LayerGrads *g, Mat dx, Mat dx1,
                   int weights)
{
    Device *d = m->dev;
    const Params *w = m->params;
    int64_t T = model_tokens(m);
    int layer = w->part[part].layer;
    Dropout drop = model_dropout(m, p, SITE_PROJ, layer);
    g->proj = dx1;
    if (drop.p > 0) {
        g->proj = model_take(m, p->late, dx1.rows, m->dim.H);
        d->dropout_bwd(d, g->proj, dx1, &drop);
    }
    g->qkv = model_take(m, p->late, T, q_cols(m) + 2 * kv_cols(m));
    size_t start = m->scratch.used;
    Mat dy = tensor_room(&m->tp.group, &m->scratch, g->proj);
    Fp8Turned turned[] = {model_turned_gradient(m, part, T, m->dim.H, weights),
                          model_turned_gradient(m, part, T, g->qkv.cols, weights)};
    Precision qkv = model_precision(m, part, LINEAR_QKV);
    qkv.dyt = &turned[1];
    core_bwd(m, p, part, a, g, dy, &turned[0]);
    project_bwd(m, p, part, a, g->qkv);
    /* the weight gradients need all rows of ln1 again: gathered during the input gradient's product */
    TensorRows x = {0};
    if (weights)
        x = tensor_gather(&m->tp.group, &m->scratch, a->ln1);
    Mat dln = model_take(m, &m->scratch, dx.rows, m->dim.H);
    TensorSum sum = column_linear_bwd_x(d, &m->tp.group, &m->scratch, dln, g->qkv,
                                        params_weight(w, part, P_QKV), qkv);
    if (weights)
        weights_bwd(m, part, a, g, tensor_gathered(&m->tp.group, x), dy, turned);
    tensor_wait(&m->tp.group, sum);
    d->norm_bwd(d, dx, params_grad(w, part, P_LN1), params_grad(w, part, P_LN1B), dx1, dln, a->x, a->stat1,
                params_weight(w, part, P_LN1), model_norm(m), 1);
    arena_reset(&m->scratch, start);
}

void attention_bwd_w(Model *m, int part, LayerActs *a, LayerGrads *g)
{
    size_t mark = m->scratch.used;
    TensorRows x = tensor_gather(&m->tp.group, &m->scratch, a->ln1),
               dy = tensor_gather(&m->tp.group, &m->scratch, g->proj);
    weights_bwd(m, part, a, g, tensor_gathered(&m->tp.group, x), tensor_gathered(&m->tp.group, dy), NULL);
    arena_reset(&m->scratch, mark);
}
