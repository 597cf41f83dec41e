/* loss -- the head: final norm, output layer, cross-entropy
 *
 * The vocabulary is split over the tensor group; logits are never gathered. Logits are made for a slice
 * of rows at a time, turned into their own gradient in place, and used for the gradients of input and
 * weight: the [T, V] logits never exist at once, but where a slice is all of them. How many rows make a
 * slice: src/run/room.c. This couples the two gradients, so the head's bwd_w is part of its bwd_x. (Hsu et
 * al. 2024, arXiv:2410.10989, sec 3.2, fuse likewise.) */
#include "model.h"

typedef struct { int part; Mat w; Sum dw; } Head;

/* Rows [first, first + n) of the R rows of this rank. With sequence parallelism the same rows of every
 * tensor rank are in the slice: N rows of T. */
typedef struct {
    const Batch *batch;
    int64_t first, n;
    RowMap rows;               /* from a row of the slice to its row of T */
    Mat x, ln, stat;           /* [n,H], [n,H], real [n,2]: rows of this rank */
    Mat all, logits;           /* [N,H], logits' type [N,V]: rows of all tensor ranks */
} Slice;

/* The output layer's weight (the embedding's when they are tied) and, in a backward, its gradient. */
static Head head_of(const Model *m, int part, int backward)
{
    int owner;
    ParamId id;
    params_head(m->params, &owner, &id);
    return (Head){part, params_weight(m->params, owner, id),
                  backward ? params_sum(m->params, owner, id) : (Sum){.there = NULL}};
}

static void final_norm(Model *m, int part, Mat y, Mat stats, Mat x)
{
    m->dev->norm_fwd(m->dev, y, stats, x, params_weight(m->params, part, P_LNF),
                     params_weight(m->params, part, P_LNFB), m->cfg->norm_epsilon, model_norm(m), 1);
}

/* View of dlogits, of storage type, over the memory of the logits, row on row. */
static Mat over_logits(const Model *m, Mat logits)
{
    return (Mat){logits.p, logits.rows, logits.cols,
                 logits.ld * (int64_t)(dtype_size(logits.type) / dtype_size(m->dim.type)), m->dim.type};
}

/* Chooses the rows of a slice and takes memory for it. */
static Slice slice_open(Model *m, const Batch *b, Mat x, int64_t first, int64_t n)
{
    int64_t ranks = m->tp.group.rows->size, N = n * ranks;
    Slice s = {.batch = b, .first = first, .n = n, .rows = {n, first, x.rows}, .x = mat_rows(x, first, n)};
    s.ln = model_take(m, &m->scratch, n, m->dim.H);
    s.stat = mat_take(&m->scratch, n, 2, m->dim.real);
    s.logits = mat_take(&m->scratch, N, m->dim.V, m->dim.logits);
    return s;
}

/* Makes the logits of this rank's part of the vocabulary. */
static void slice_fwd(Model *m, const Head *h, Slice *s)
{
    Device *d = m->dev;
    Mat none = {.type = m->dim.type};
    final_norm(m, h->part, s->ln, s->stat, s->x);
    s->all = tensor_gathered(&m->tp.group, tensor_gather(&m->tp.group, &m->scratch, s->ln));
    d->linear(d, s->logits, s->all, h->w, none);
    m->watch.rows = s->rows;
    m->watch.batch = s->batch;
    model_watch(m, h->part, "logits", mat_cols(s->logits, 0, m->dim.Vvalid));
}

static void slice_bwd(Model *m, const Head *h, const Slice *s, Mat dx, Mat dlogits)
{
    Device *d = m->dev;
    Mat dln = model_take(m, &m->scratch, s->n, m->dim.H), none = {.type = m->dim.real};
    TensorSum sum = column_linear_bwd_x(d, &m->tp.group, &m->scratch, dln, dlogits, h->w, as_stored);
    tensor_bwd_w(d, &m->scratch, h->dw, dlogits, s->all, none, none, as_stored);
    tensor_wait(&m->tp.group, sum);
    d->norm_bwd(d, dx, params_grad(m->params, h->part, P_LNF), params_grad(m->params, h->part, P_LNFB),
                (Mat){.type = m->dim.type}, dln, s->x, s->stat, params_weight(m->params, h->part, P_LNF),
                model_norm(m), 1);
}

void head_run(Model *m, const Pass *p, int part, Mat x, Mat dx)
{
    Device *d = m->dev;
    Head h = head_of(m, part, dx.rows > 0);
    int64_t step = m->dev->keeps.logits ? x.rows : m->logits_rows / m->tp.group.rows->size;
    int64_t T = model_tokens(m);
    size_t start = m->scratch.used;
    /* losses of all tokens, summed in the order of tokens, so that the slices change no bit */
    Mat loss = mat_take(&m->scratch, T, 1, m->dim.real), none = {.type = m->dim.type};
    for (int64_t r = 0; r < x.rows; r += step) {
        size_t mark = m->scratch.used;
        Slice s = slice_open(m, p->batch, x, r, r + step < x.rows ? step : x.rows - r);
        slice_fwd(m, &h, &s);
        Mat dlogits = dx.rows ? over_logits(m, s.logits) : none;
        tensor_xent(d, &m->tp.group, &m->scratch, loss, dlogits, s.logits, p->batch->labels,
                    p->batch->loss_mask, s.rows, m->dim.vocab0, m->dim.Vvalid, m->now.loss_scale);
        if (dx.rows)
            slice_bwd(m, &h, &s, mat_rows(dx, s.first, s.n), dlogits);
        arena_reset(&m->scratch, mark);
    }
    /* every tensor rank has the losses; rank 0 alone counts them */
    if (m->tp.group.tp->rank == 0) {
        d->sum(d, m->sums, loss);
        d->sum(d, m->sums ? m->sums + 1 : NULL, mat(p->batch->loss_mask, T, 1, F32));
    }
    arena_reset(&m->scratch, start);
}

void head_logits(Model *m, int part, Mat x, Mat logits)
{
    Head h = head_of(m, part, 0);
    Comm *tp = m->tp.group.tp;
    size_t mark = m->scratch.used;
    Mat ln = model_take(m, &m->scratch, x.rows, m->dim.H),
        stat = mat_take(&m->scratch, x.rows, 2, m->dim.real);
    Mat mine = mat_take(&m->scratch, x.rows, m->dim.V, m->dim.real), none = {.type = m->dim.type};
    Mat all = mat_take(&m->scratch, 1, m->dim.V * tp->size, m->dim.real);
    final_norm(m, h.part, ln, stat, x);
    m->dev->linear(m->dev, mine, ln, h.w, none);
    tp->wait(tp, tp->all_gather(tp, all.p, mine.p, m->dim.V, m->dim.real));
    m->dev->copy(m->dev, logits, mat_cols(all, 0, logits.cols));
    arena_reset(&m->scratch, mark);
}
