/* model -- a rank's chunks: how F, B, D and W go through their units, and the messages between stages */
#include "model.h"
#include <stdlib.h>

static int64_t rows_here(const Model *m) { return model_tokens(m) / m->tp.group.rows->size; }

Dropout model_dropout(const Model *m, const Pass *p, int site, int layer)
{
    static const char *const name[] = {"embedding", "attention", "proj", "mlp", "router"};
    uint64_t key = rng_key((uint64_t)m->cfg->seed, name[site]);
    return (Dropout){.p = m->now.evaluating ? 0 : m->cfg->hidden_dropout,
                     .key = hash64(&layer, sizeof layer, key), .sample = p->batch->sample,
                     .runs = &p->batch->runs, .row0 = model_row0(m)};
}

void model_keep_mask(const Model *m, const Pass *p)
{
    if (m->dev->keeps.mask && m->cfg->hidden_dropout > 0)
        arena_take(p->keep_d, (size_t)(rows_here(m) * m->dim.H));
}

int64_t model_row0(const Model *m) { return m->tp.group.rows->rank * rows_here(m); }

/* ---- slots ---- */

static Mat boundary(Model *m, Arena *from) { return model_take(m, from, rows_here(m), m->dim.H); }

static SlotFD *fd_of(Model *m, int chunk, int mb)
{
    return &m->slots.fd[m->now.schedule->slot[SLOT_FD][chunk * m->now.schedule->m + mb]];
}

static SlotDW *dw_of(Model *m, int chunk, int mb)
{
    return &m->slots.dw[m->now.schedule->slot[SLOT_DW][chunk * m->now.schedule->m + mb]];
}

void slot_count(Model *m, int kind, Slot *s)
{
    size_t *most = &m->slots.bytes.data[kind][s->chunk];
    *most = s->mem.peak > *most ? s->mem.peak : *most;
}

/* Waits for the message that is sent from a slot, if that lies over [from, to). */
static void slot_leave(Model *m, Slot *s, const char *from, const char *to)
{
    Comm *pp = &m->grid->axis[AXIS_PP];
    if (!s->sent || s->mem.base >= to || s->mem.base + s->mem.size <= from)
        return;
    pp->wait(pp, s->sent);
    s->sent = 0;
}

/* Empties a slot and gives it the place of a microbatch's data in a chunk, once the messages that are sent
 * from there have left. */
static void slot_enter(Model *m, int kind, Slot *s, int chunk, int mb)
{
    const Schedule *list = m->now.schedule;
    Comm *pp = &m->grid->axis[AXIS_PP];
    Arena place = {.name = "activations"};
    pp->wait(pp, s->sent);
    s->sent = s->arrived = 0;
    slot_count(m, kind, s);
    if (m->slots.all.base) {
        place.base = m->slots.all.base + list->place[kind][chunk * list->m + mb];
        place.size = m->slots.bytes.data[kind][chunk];
        for (int i = 0; i < m->slots.nfd; i++)
            slot_leave(m, &m->slots.fd[i].at, place.base, place.base + place.size);
        for (int i = 0; i < m->slots.ndw; i++)
            slot_leave(m, &m->slots.dw[i].at, place.base, place.base + place.size);
    }
    s->mem = place;
    s->chunk = chunk;
}

/* Takes the FD slot of a microbatch that enters a chunk. in[0] is room for the input. */
static SlotFD *fd_open(Model *m, int chunk, int mb)
{
    SlotFD *s = fd_of(m, chunk, mb);
    slot_enter(m, SLOT_FD, &s->at, chunk, mb);
    s->in[0] = boundary(m, &s->mem);
    s->residual = (Residual){0};
    return s;
}

/* Takes the DW slot of a gradient that enters a chunk. */
static SlotDW *dw_open(Model *m, int chunk, int mb)
{
    SlotDW *s = dw_of(m, chunk, mb);
    slot_enter(m, SLOT_DW, &s->at, chunk, mb);
    s->dy = boundary(m, &s->mem);
    s->dx = m->split ? (Mat){0} : boundary(m, &s->mem);
    return s;
}

/* The tables of a slot are made when a microbatch first takes it: a plan that walks two microbatches of
 * hundreds needs no others. */
static SlotFW *fw_of(Model *m, int slot)
{
    SlotFW *s = &m->slots.fw[slot];
    if (!s->layer) {
        s->layer = xcalloc((size_t)m->slots.layers + 1, sizeof *s->layer);
        s->grads = xcalloc((size_t)m->slots.layers + 1, sizeof *s->grads);
    }
    return s;
}

static Pass pass_of(Model *m, const Instr *i)
{
    const Schedule *s = m->now.schedule;
    int at = i->chunk * s->m + i->mb, forward = s->slots[SLOT_FW] == 0;
    SlotFD *fd = fd_of(m, i->chunk, i->mb);
    SlotFW *fw = fw_of(m, forward ? 0 : s->slot[SLOT_FW][at]);
    SlotDW *dw = forward ? NULL : dw_of(m, i->chunk, i->mb);
    return (Pass){.chunk = &m->held.chunk[i->chunk], .batch = &fd->batch, .fd = fd, .fw = fw, .dw = dw,
                  .keep_d = forward ? &m->scratch : &fd->mem, .keep_w = forward ? &m->scratch : &fw->mem,
                  .late = m->split && !forward ? &dw->mem : &m->scratch};
}

/* Copies 32-bit words of any type within the device. */
static void copy_words(Device *d, void *dst, const void *src, size_t bytes)
{
    int64_t n = (int64_t)bytes / 4;
    d->copy(d, mat(dst, 1, n, F32), mat((void *)src, 1, n, F32));
}

static void batch_layout(const Model *m, Batch *b, Arena *mem)
{
    size_t T = (size_t)model_tokens(m);
    *b = (Batch){.batch = m->now.B, .seq = m->now.context.positions, .runs = context_own(&m->now.context)};
    b->tokens = arena_take(mem, T * 4);
    b->labels = arena_take(mem, T * 4);
    b->position = arena_take(mem, T * 4);
    b->doc_start = m->cfg->reset_attention_mask ? arena_take(mem, (size_t)(b->batch * b->seq) * 4) : NULL;
    b->loss_mask = arena_take(mem, T * 4);
    b->sample = arena_take(mem, (size_t)m->now.B * 8);
}

/* Copies a microbatch into its slot, which outlives the loader's buffer.
 *   src   in  NULL: only counts memory
 *   slot  in  bool: src is a slot of this rank, on the device; else src is on the host */
static void batch_keep(const Model *m, SlotFD *s, const Batch *src, int slot)
{
    void (*keep)(Device *, void *, const void *, size_t) = slot ? copy_words : m->dev->put;
    Device *d = m->dev;
    Batch *b = &s->batch;
    size_t T = (size_t)model_tokens(m);
    batch_layout(m, b, &s->mem);
    if (!src || !src->tokens)
        return;
    BUG_ON(src->batch != m->now.B || src->seq != b->seq || src->runs.stride != m->now.S);
    b->runs = src->runs;
    keep(d, b->tokens, src->tokens, T * 4);
    keep(d, b->labels, src->labels, T * 4);
    keep(d, b->position, src->position, T * 4);
    keep(d, b->loss_mask, src->loss_mask, T * 4);
    keep(d, b->sample, src->sample, (size_t)m->now.B * 8);
    if (src->doc_start)
        keep(d, b->doc_start, src->doc_start, (size_t)(b->batch * b->seq) * 4);
    else
        b->doc_start = NULL;
}

/* ---- forward ---- */

static void layer_fwd(Model *m, const Pass *p, int part, LayerActs *a, Mat x, Mat y)
{
    a->x = x;
    attention_fwd(m, p, part, a);
    if (model_is_moe(m, part))
        moe_fwd(m, p, part, a, y);
    else
        mlp_fwd(m, p, part, a, y);
}

/* A group that will be recomputed keeps only its input. The Residual of a layer is left to the next
 * layer's norm where that layer is in this chunk and the summand lives until then. */
static void group_fwd(Model *m, const Pass *pass, const ModelUnit *u)
{
    Pass p = *pass;
    size_t mark = m->scratch.used;
    Mat x = p.fd->in[u->group];
    int leaves = m->dev->keeps.drop_sent && u->group == p.chunk->groups - 1 && p.chunk->next >= 0 &&
                 p.chunk->next_here < 0;
    p.fd->in[u->group + 1] = boundary(m, leaves ? &m->scratch : &p.fd->mem);
    if (u->recompute)
        p.keep_d = p.keep_w = &m->scratch;
    LayerWindow *w = offload_wanted(m, u) ? offload_enter(m) : NULL;
    if (w) {
        p.keep_d = &w->d;
        p.keep_w = &w->w;
    }
    for (int i = 0; i < u->count; i++) {
        Mat y = i == u->count - 1 ? p.fd->in[u->group + 1] : boundary(m, &m->scratch);
        size_t temporary = m->scratch.used;
        layer_fwd(m, &p, u->part + i, &p.fw->layer[u->layer + i], x, y);
        if (p.keep_d == &m->scratch || u->layer + i == p.chunk->layers - 1)
            mlp_settle(m, &p);
        arena_reset(&m->scratch, temporary);
        x = y;
    }
    arena_reset(&m->scratch, mark);
    if (w)
        offload_start(m, &p, u, w);
}

/* A microbatch enters a chunk: sets its input and copies its batch. */
static void enter(Model *m, const Instr *i, const Pass *p)
{
    const Chunk *c = p->chunk;
    if (c->prev < 0 || c->prev_here >= 0)
        fd_open(m, i->chunk, i->mb);
    if (c->prev_here >= 0)             /* the stage before is here and keeps its output long enough */
        p->fd->in[0] = fd_of(m, c->prev_here, i->mb)->in[m->held.chunk[c->prev_here].groups];
    /* in training the chunk before still holds the microbatch on the device */
    int again = i->chunk > 0 && m->now.schedule->slots[SLOT_FW] > 0;
    batch_keep(m, p->fd,
               again               ? &fd_of(m, i->chunk - 1, i->mb)->batch
               : m->now.next_batch ? m->now.next_batch(m->now.batch_ctx, i->mb)
                                   : NULL,
               again);
    if (m->now.schedule->slots[SLOT_FW])
        slot_enter(m, SLOT_FW, &p->fw->at, i->chunk, i->mb);
}

static void head_fwd(Model *m, const Pass *p, const ModelUnit *u)
{
    Mat x = p->fd->in[p->chunk->groups], none = {.type = m->dim.type};
    if (m->now.cache)
        head_logits(m, u->part, mat_rows(x, x.rows - 1, 1), m->now.logits);
    else if (m->now.evaluating) /* training makes the loss in D, with its gradient */
        head_run(m, p, u->part, x, none);
}

/* Units [*first, *end) of an instruction. */
static void units_of(const Model *m, const Instr *i, int *first, int *end)
{
    const Chunk *c = &m->held.chunk[i->chunk];
    *first = i->unit == WHOLE ? c->unit0 : i->unit;
    *end = i->unit == WHOLE ? c->unit0 + c->units : i->unit + 1;
}

void model_forward(void *model, const Instr *i)
{
    Model *m = model;
    Pass p = pass_of(m, i);
    int first, end, before = model_lane(m, !m->now.evaluating);
    units_of(m, i, &first, &end);
    if (first == p.chunk->unit0)
        enter(m, i, &p);
    for (int k = first; k < end; k++) {
        const ModelUnit *u = &m->held.unit[k];
        data_ready(m->data, k);
        if (u->kind == UNIT_EMBEDDING)
            embedding_fwd(m, &p, u->part, p.fd->in[0]);
        else if (u->kind == UNIT_LAYERS)
            group_fwd(m, &p, u);
        else
            head_fwd(m, &p, u);
    }
    model_lane(m, before);
}

/* ---- backward ---- */

static void layer_bwd(Model *m, const Pass *p, int part, LayerActs *a, LayerGrads *g, Mat dx, Mat dy)
{
    size_t mark = m->scratch.used;
    attention_restore(m, p, part, a);
    mlp_restore(m, p, part, a);
    Mat dx1 = boundary(m, p->late);
    if (model_is_moe(m, part))
        moe_bwd(m, p, part, a, dx1, dy);
    else
        mlp_bwd(m, p, part, a, g, dx1, dy, !m->split);
    attention_bwd(m, p, part, a, g, dx, dx1, !m->split);
    arena_reset(&m->scratch, mark);
}

/* Runs the forward of a group again and keeps what its backward reads. The output of the last layer is
 * not made. */
static void group_redo(Model *m, const Pass *pass, const ModelUnit *u)
{
    Pass p = *pass;
    Mat x = p.fd->in[u->group];
    p.keep_d = &m->scratch;
    p.keep_w = p.late;
    p.redo = 1;
    for (int i = 0; i < u->count; i++) {
        Mat y = i < u->count - 1 || m->dev->keeps.recomputed_output ? boundary(m, &m->scratch) : (Mat){0};
        layer_fwd(m, &p, u->part + i, &p.fw->layer[u->layer + i], x, y);
        x = y;
    }
    p.fd->residual = (Residual){0};
}

static void group_bwd(Model *m, const Pass *p, const ModelUnit *u)
{
    size_t mark = m->scratch.used;
    if (u->recompute)
        group_redo(m, p, u);
    for (int i = u->count - 1; i >= 0; i--) {
        SlotDW *s = p->dw;
        Mat dx = m->split ? boundary(m, &s->mem) : s->dx;      /* split: W reads dy again, so keep it */
        layer_bwd(m, p, u->part + i, &p->fw->layer[u->layer + i], &p->fw->grads[u->layer + i], dx, s->dy);
        s->dx = s->dy;
        s->dy = dx;
    }
    arena_reset(&m->scratch, mark);
}

/* Copies the gradient of a chunk's input to the chunk before, where that is on this rank. The list has a
 * message to any other rank. */
static void leave(Model *m, const Instr *i, const Pass *p)
{
    if (p->chunk->prev_here >= 0)
        m->dev->copy(m->dev, dw_open(m, p->chunk->prev_here, i->mb)->dy, p->dw->dy);
}

static void unit_bwd_w(Model *m, const Pass *p, const ModelUnit *u)
{
    for (int l = u->count - 1; u->kind == UNIT_LAYERS && l >= 0; l--) {
        if (!model_is_moe(m, u->part + l))
            mlp_bwd_w(m, u->part + l, &p->fw->layer[u->layer + l], &p->fw->grads[u->layer + l]);
        attention_bwd_w(m, u->part + l, &p->fw->layer[u->layer + l], &p->fw->grads[u->layer + l]);
    }
}

/* Runs D or B. In a list with both, B is D followed by W, unit by unit. */
static void backward(Model *m, const Instr *i)
{
    Pass p = pass_of(m, i);
    int first, end;
    units_of(m, i, &first, &end);
    if (p.chunk->next < 0 && (end == p.chunk->unit0 + p.chunk->units || p.chunk->units == 0))
        dw_open(m, i->chunk, i->mb);
    for (int k = end - 1; k >= first; k--) {
        const ModelUnit *u = &m->held.unit[k];
        offload_return(m, &p, k);
        data_ready(m->data, k);
        data_enter(m->data, k, i->op == I_D ? PHASE_D : PHASE_ALL);
        if (u->kind == UNIT_HEAD)
            head_run(m, &p, u->part, p.fd->in[p.chunk->groups], p.dw->dy);
        else if (u->kind == UNIT_LAYERS)
            group_bwd(m, &p, u);
        else
            embedding_bwd(m, &p, u->part, p.dw->dy);
        if (m->split && i->op == I_B)
            unit_bwd_w(m, &p, u);
    }
    if (first == p.chunk->unit0)
        leave(m, i, &p);
}

void model_backward(void *model, const Instr *i) { backward(model, i); }
void model_backward_x(void *model, const Instr *i) { backward(model, i); }

void model_backward_w(void *model, const Instr *i)
{
    Model *m = model;
    Pass p = pass_of(m, i);
    int first, end;
    units_of(m, i, &first, &end);
    for (int k = end - 1; k >= first; k--) {
        const ModelUnit *u = &m->held.unit[k];
        data_enter(m->data, k, PHASE_W);
        unit_bwd_w(m, &p, u);
    }
}

/* ---- messages ---- */

void model_arrive(void *model, const Instr *i)
{
    Model *m = model;
    Comm *pp = &m->grid->axis[AXIS_PP];
    Token *t = i->op == I_F ? &fd_of(m, i->chunk, i->mb)->arrived
               : i->op == I_B || i->op == I_D ? &dw_of(m, i->chunk, i->mb)->arrived : NULL;
    if (!t)
        return;
    pp->wait(pp, *t);
    *t = 0;
}

void model_send_activation(void *model, const Instr *i)
{
    Model *m = model;
    Comm *pp = &m->grid->axis[AXIS_PP];
    const Chunk *c = &m->held.chunk[i->chunk];
    SlotFD *s = fd_of(m, i->chunk, i->mb);
    Mat y = s->in[c->groups];
    for (; !c->groups && c->prev_here >= 0; c = &m->held.chunk[c->prev_here])      /* y is in that slot */
        s = fd_of(m, c->prev_here, i->mb);
    s->sent = pp->send(pp, y.p, y.rows * y.cols, y.type, m->held.chunk[i->chunk].next);
}

void model_recv_activation(void *model, const Instr *i)
{
    Model *m = model;
    Comm *pp = &m->grid->axis[AXIS_PP];
    SlotFD *s = fd_open(m, i->chunk, i->mb);
    Mat x = s->in[0];
    s->arrived = pp->recv(pp, x.p, x.rows * x.cols, x.type, m->held.chunk[i->chunk].prev);
}

void model_send_gradient(void *model, const Instr *i)
{
    Model *m = model;
    Comm *pp = &m->grid->axis[AXIS_PP];
    SlotDW *s = dw_of(m, i->chunk, i->mb);
    s->sent = pp->send(pp, s->dy.p, s->dy.rows * s->dy.cols, s->dy.type, m->held.chunk[i->chunk].prev);
}

void model_recv_gradient(void *model, const Instr *i)
{
    Model *m = model;
    Comm *pp = &m->grid->axis[AXIS_PP];
    SlotDW *s = dw_open(m, i->chunk, i->mb);
    s->arrived = pp->recv(pp, s->dy.p, s->dy.rows * s->dy.cols, s->dy.type, m->held.chunk[i->chunk].next);
}

/* ---- a list from its start to its end ---- */

void model_clear(Model *m)
{
    m->dev->zero(m->dev, m->sums, MODEL_SUMS * sizeof *m->sums);
    router_stats_clear(&m->routers, m->dev);
}

void model_begin(Model *m, const Schedule *schedule, int64_t B, int64_t positions, int share)
{
    Comm *tp = &m->grid->axis[AXIS_TP];
    int shared = share && m->cfg->sequence_parallel;
    if (share)
        context_open(&m->now.context, m->grid, &m->tp.one, positions);
    else
        context_open_whole(&m->now.context, &m->tp.one, positions);
    m->tp.group = (TensorGroup){.tp = tp, .rows = shared ? tp : &m->tp.one, .sum = shared ? &m->tp.one : tp,
                                .sent = m->tp.tokens, .come = m->tp.tokens + tp->size};
    m->tp.group.overlap = tensor_overlaps(&m->tp.group, m->cfg->tp_comm_overlap);
    precision_begin(m);
    router_begin(m);
    m->now.schedule = schedule;
    m->now.B = B;
    m->now.S = positions / m->now.context.size;
    BUG_ON(B * m->now.S % m->tp.group.rows->size);
    BUG_ON(schedule->slots[SLOT_FD] > m->slots.nfd || schedule->slots[SLOT_FW] > m->slots.nfw ||
           schedule->slots[SLOT_DW] > m->slots.ndw);
}

void model_end(Model *m)
{
    Comm *pp = &m->grid->axis[AXIS_PP];
    for (int i = 0; i < m->slots.nfd; i++) {
        pp->wait(pp, m->slots.fd[i].sent);
        m->slots.fd[i].sent = 0;
    }
    for (int i = 0; i < m->slots.ndw; i++) {
        pp->wait(pp, m->slots.dw[i].sent);
        m->slots.dw[i].sent = 0;
    }
}
