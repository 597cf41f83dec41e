/* The head: final norm, output layer, cross-entropy.
 *
 * A slice of rows at a time, logits are made, turned into their own gradient in place, and used for the input's and the
 * weight's gradient while they are in cache: the [T, V] logits exist neither in F32 nor twice. This couples the two
 * gradients, so the head's bwd_w is part of its bwd_x. (Hsu et al. 2024, arXiv:2410.10989, sec 3.2, fuse likewise.) */
#include "model.h"
#include "tensor.h"

/* Bytes of one slice of logits. Larger slices read and write the weight's gradient [V,H] fewer times. */
#define SLICE_BYTES ((int64_t)128 << 20)

typedef struct { int part; Mat w, dw; } Head;

/* The output layer's weight: the head's own, or the embedding's when they are tied. */
static Head head_of(const Model *m)
{
    int part = m->params->nparts - 1, owner;
    ParamId id;
    params_head(m->params, &owner, &id);
    return (Head){part, params_weight(m->params, owner, id), params_grad(m->params, owner, id)};
}

static int64_t slice_rows(const Model *m, int64_t T)
{
    int64_t bytes = m->V * (int64_t)dtype_size(m->real), slices = (T * bytes + SLICE_BYTES - 1) / SLICE_BYTES;
    return (T + slices - 1) / slices;
}

static void final_norm(Model *m, int part, Mat y, Mat stats, Mat x)
{
    m->dev->norm_fwd(m->dev, y, stats, x, params_weight(m->params, part, P_LNF), params_weight(m->params, part, P_LNFB),
                     m->cfg->norm_epsilon, model_norm(m), 1);
}

/* dlogits lie where the logits were, row on row. */
static Mat over_logits(const Model *m, Mat logits)
{
    return (Mat){logits.p, logits.rows, logits.cols,
                 logits.ld * (int64_t)(dtype_size(m->real) / dtype_size(m->type)), m->type};
}

static void slice_bwd(Model *m, const Head *h, Mat dx, Mat x, Mat ln, Mat stat, Mat dlogits)
{
    Device *d = m->dev;
    Mat dln = mat_take(&m->scratch, x.rows, m->H, m->type), none = {.type = m->type};
    Token sum = column_linear_bwd_x(d, m->tp, dln, dlogits, h->w);
    linear_bwd_w(d, h->dw, none, dlogits, ln);
    m->tp->wait(m->tp, sum);
    d->norm_bwd_w(d, params_grad(m->params, h->part, P_LNF), params_grad(m->params, h->part, P_LNFB), dln, x, stat,
                  model_norm(m), 1);
    d->norm_bwd_x(d, dx, none, dln, x, stat, params_weight(m->params, h->part, P_LNF), model_norm(m), 1);
}

void head_run(Model *m, Slot *s, Mat x, Mat dx, Mat logits_out)
{
    Device *d = m->dev;
    Head h = head_of(m);
    int64_t step = slice_rows(m, x.rows);
    int backward = dx.rows > 0;
    for (int64_t r = 0; r < x.rows; r += step) {
        int64_t n = r + step < x.rows ? step : x.rows - r;
        size_t mark = m->scratch.used;
        Mat ln = mat_take(&m->scratch, n, m->H, m->type), stat = mat_take(&m->scratch, n, 2, m->real);
        Mat logits = mat_take(&m->scratch, n, m->V, m->real), xent = mat_take(&m->scratch, n, 3, m->real);
        Mat loss = mat_take(&m->scratch, n, 1, m->real), xs = mat_rows(x, r, n), none = {.type = m->type};
        const int32_t *label = s->batch.labels ? s->batch.labels + r : NULL;
        const float *mask = s->batch.loss_mask ? s->batch.loss_mask + r : NULL;
        final_norm(m, h.part, ln, stat, xs);
        model_watch(m, h.part, "final_layernorm", ln);
        column_linear_fwd(d, logits, ln, h.w, none);
        model_watch(m, h.part, "logits", mat_cols(logits, 0, m->Vvalid));
        if (logits_out.rows)
            d->copy(d, mat_rows(logits_out, r, n), mat_cols(logits, 0, logits_out.cols));
        d->xent_stats(d, xent, logits, label, m->vocab0, m->Vvalid);
        Mat dlogits = backward ? over_logits(m, logits) : none;
        d->xent_grad(d, loss, dlogits, logits, xent, label, mask, m->vocab0, m->Vvalid, m->loss_scale);
        d->sum(d, &m->loss_sum, loss);
        if (backward)
            slice_bwd(m, &h, mat_rows(dx, r, n), xs, ln, stat, dlogits);
        arena_reset(&m->scratch, mark);
    }
}

void head_logits(Model *m, Mat x, Mat logits)
{
    Head h = head_of(m);
    size_t mark = m->scratch.used;
    Mat ln = mat_take(&m->scratch, x.rows, m->H, m->type), stat = mat_take(&m->scratch, x.rows, 2, m->real);
    Mat all = mat_take(&m->scratch, x.rows, m->V, m->real), none = {.type = m->type};
    final_norm(m, h.part, ln, stat, x);
    column_linear_fwd(m->dev, all, ln, h.w, none);
    m->dev->copy(m->dev, logits, mat_cols(all, 0, logits.cols));
    arena_reset(&m->scratch, mark);
}
