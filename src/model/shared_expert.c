/* shared_expert -- a narrow mlp beside the experts, which every token visits, times a gate of the token
 * (DeepSeek-AI 2024, arXiv:2401.06066, sec 3.2; the gate: Qwen2-MoE). Its width is split over the tensor
 * group. As with the experts, D computes its inner activations again, and its weight gradients. */
#include "model.h"

int shared_expert_exists(const Model *m)
{
    return m->cfg->moe_shared_expert_intermediate_size != CFG_ABSENT;
}

typedef struct {
    Mat h, a, y;               /* [T,SF] or [T,2SF]; [T,SF], SF of this rank; [R,H] output before the gate */
    Mat logit, gate;           /* real [R,1]; no rows without a gate */
    int32_t *choice;           /* [R] */
} Shared;

static const Routing gate_routing = {.topk = 1, .sigmoid = 1, .scale = 1};

/* Computes the shared expert's output before the gate, y [R,H]; the rest in scratch. */
static Shared shared_open(Model *m, int part, Mat ln2, Mat y)
{
    Device *d = m->dev;
    const Params *w = m->params;
    ActKind kind = (ActKind)m->cfg->activation;
    Mat none = {.type = m->dim.type}, gate = params_weight(w, part, P_SGATE);
    int64_t T = model_tokens(m), R = ln2.rows;
    int64_t F = m->cfg->moe_shared_expert_intermediate_size / m->tp.group.tp->size;
    Shared s = {.h = model_take(m, &m->scratch, T, act_width(kind, F)), .a = model_take(m, &m->scratch, T, F),
                .y = y};
    s.logit = mat_take(&m->scratch, R, gate.rows, m->dim.real);
    s.gate = mat_take(&m->scratch, R, gate.rows, m->dim.real);
    s.choice = arena_take(&m->scratch, (size_t)R * sizeof *s.choice);
    size_t mark = m->scratch.used;
    Mat x = tensor_room(&m->tp.group, &m->scratch, ln2);
    tensor_gather_linear_act(d, &m->tp.group, &m->scratch, x, s.a, s.h, ln2, params_weight(w, part, P_SFC1),
                             none, kind, model_precision(m, part, LINEAR_SFC1));
    arena_reset(&m->scratch, mark);
    row_linear_fwd(d, &m->tp.group, &m->scratch, s.y, s.a, params_weight(w, part, P_SFC2), none,
                   model_precision(m, part, LINEAR_SFC2));
    if (gate.rows) {
        Mat scores = mat_take(&m->scratch, R, 1, m->dim.real);
        d->linear(d, s.logit, ln2, gate, none);
        d->route_fwd(d, s.choice, s.gate, scores, s.logit, (Mat){.type = m->dim.real}, &gate_routing);
    }
    arena_reset(&m->scratch, mark);
    return s;
}

void shared_expert_fwd(Model *m, int part, LayerActs *a, Mat y)
{
    size_t mark = m->scratch.used;
    Shared s = shared_open(m, part, a->ln2, y);
    if (s.gate.cols)
        m->dev->scale_rows(m->dev, y, y, s.gate);
    arena_reset(&m->scratch, mark);
}

SharedGrads shared_expert_grads(Model *m, int64_t R)
{
    int exists = shared_expert_exists(m);
    return (SharedGrads){model_take(m, &m->scratch, exists ? R : 0, m->dim.H),
                         model_take(m, &m->scratch, exists && m->cfg->moe_shared_expert_gate ? R : 0, 1)};
}

/* The gradients of the gate's logit and weight; g = dy times the gate. */
static void gate_bwd(Model *m, int part, LayerActs *a, const Shared *s, Mat g, Mat dy, Mat gate)
{
    Device *d = m->dev;
    Mat none = {.type = m->dim.real};
    Mat dgate = mat_take(&m->scratch, dy.rows, 1, m->dim.real);
    Mat dlogit = mat_take(&m->scratch, dy.rows, 1, m->dim.real);
    d->row_dots(d, dgate, dy, s->y);
    d->route_bwd(d, dlogit, dgate, s->logit, s->choice, none, &gate_routing);
    d->copy(d, gate, dlogit);
    d->linear_bwd_w(d, params_grad(m->params, part, P_SGATE), none, gate, a->ln2, 1);
    d->scale_rows(d, g, dy, s->gate);
}

void shared_expert_bwd(Model *m, int part, LayerActs *a, Mat dy, SharedGrads out)
{
    Device *d = m->dev;
    const Params *w = m->params;
    TensorGroup *t = &m->tp.group;
    size_t mark = m->scratch.used;
    Shared s = shared_open(m, part, a->ln2, model_take(m, &m->scratch, dy.rows, m->dim.H));
    Mat none = {.type = m->dim.real}, g = dy;
    if (s.gate.cols) {
        g = model_take(m, &m->scratch, dy.rows, m->dim.H);
        gate_bwd(m, part, a, &s, g, dy, out.gate);
    }
    Mat all = tensor_room(t, &m->scratch, g), da = model_take(m, &m->scratch, s.a.rows, s.a.cols);
    Mat dh = model_take(m, &m->scratch, s.h.rows, s.h.cols);
    Precision fc1 = model_precision(m, part, LINEAR_SFC1), fc2 = model_precision(m, part, LINEAR_SFC2);
    tensor_gather_matmul_act(d, t, &m->scratch, all, dh, da, g, params_weight(w, part, P_SFC2), s.h,
                             (ActKind)m->cfg->activation, fc2);
    TensorRows x = tensor_gather(t, &m->scratch, a->ln2);
    TensorSum sum = column_linear_bwd_x(d, t, &m->scratch, out.dx, dh, params_weight(w, part, P_SFC1), fc1);
    tensor_bwd_w(d, &m->scratch, params_sum(w, part, P_SFC2), all, s.a, none, none, fc2);
    tensor_bwd_w(d, &m->scratch, params_sum(w, part, P_SFC1), dh, tensor_gathered(t, x), none, none, fc1);
    tensor_wait(t, sum);
    arena_reset(&m->scratch, mark);
}

void shared_expert_add(Model *m, int part, SharedGrads g, Mat dln)
{
    if (g.gate.rows)
        m->dev->matmul(m->dev, dln, g.gate, 0, params_weight(m->params, part, P_SGATE), 0, 1);
    if (g.dx.rows)
        m->dev->add(m->dev, dln, dln, g.dx);
}
