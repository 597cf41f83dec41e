#include "tensor.h"

/* ---- block by block: rank r's rows are block r ---- */

static Mat block(Mat m, const TensorGroup *g, int r) { return mat_rows(m, r * (m.rows / g->rows->size), m.rows / g->rows->size); }
static int64_t elements(Mat m) { return m.rows * m.cols; }

/* What rows are multiplied by: w^T, and b added, or w. */
typedef struct { Mat w, b; int transposed; Arena *scratch; Precision p; } Factor;
static void multiply(Device *d, Mat y, Mat x, const Factor *f)
{
    if (f->transposed)
        linear_fwd(d, f->scratch, y, x, f->w, f->b, f->p);
    else
        linear_bwd_x(d, f->scratch, y, x, f->w, f->p);
}

/* In step s every rank sends to the one s places on, so that all links are in use and the blocks come in the order in which
 * they are multiplied. */
static void gather_by_blocks(Device *d, const TensorGroup *g, Mat all, Mat y, Mat x, const Factor *f)
{
    Comm *c = g->rows;
    int n = c->size, me = c->rank;
    for (int s = 1; s < n; s++) {
        int to = (me + s) % n, from = (me - s + n) % n;
        comm_together(c, 1);
        g->sent[s] = c->send(c, x.p, elements(x), x.type, to);
        g->come[s] = c->recv(c, block(all, g, from).p, elements(x), x.type, from);
        comm_together(c, 0);
    }
    d->copy(d, block(all, g, me), x);
    multiply(d, block(y, g, me), x, f);
    for (int s = 1; s < n; s++) {
        int from = (me - s + n) % n;
        c->wait(c, g->come[s]);
        multiply(d, block(y, g, from), block(all, g, from), f);
    }
    for (int s = 1; s < n; s++)
        c->wait(c, g->sent[s]);
}

static void scatter_by_blocks(Device *d, const TensorGroup *g, Mat y, Mat x, const Factor *f)
{
    Comm *c = g->rows;
    int n = c->size, me = c->rank;
    Arena *scratch = f->scratch;
    size_t mark = scratch->used;
    Mat room = mat_take(scratch, y.rows * n, y.cols, y.type), parts = mat_take(scratch, y.rows * n, y.cols, y.type);
    for (int s = 1; s < n; s++) {
        int to = (me + s) % n, from = (me - s + n) % n;
        multiply(d, block(room, g, to), block(x, g, to), f);
        comm_together(c, 1);
        g->sent[s] = c->send(c, block(room, g, to).p, elements(y), y.type, to);
        g->come[s] = c->recv(c, block(parts, g, from).p, elements(y), y.type, from);
        comm_together(c, 0);
    }
    multiply(d, block(parts, g, me), block(x, g, me), f);
    for (int s = 1; s < n; s++) {
        c->wait(c, g->come[s]);
        c->wait(c, g->sent[s]);
    }
    d->sum_parts(d, y, parts);
    arena_reset(scratch, mark);
}

/* ---- linear layers ---- */

static void gather_multiply(Device *d, const TensorGroup *g, Mat all, Mat y, Mat x, const Factor *f)
{
    if (g->overlap) {
        gather_by_blocks(d, g, all, y, x, f);
        return;
    }
    multiply(d, y, tensor_gathered(g, tensor_gather_into(g, all, x)), f);
}

void tensor_gather_linear(Device *d, const TensorGroup *g, Arena *scratch, Mat all, Mat y, Mat x, Mat w, Mat b,
                          Precision p)
{
    gather_multiply(d, g, all, y, x, &(Factor){w, b, 1, scratch, p});
}

void tensor_gather_matmul(Device *d, const TensorGroup *g, Arena *scratch, Mat all, Mat y, Mat x, Mat w, Precision p)
{
    gather_multiply(d, g, all, y, x, &(Factor){w, {.type = x.type}, 0, scratch, p});
}

void tensor_gather_linear_act(Device *d, const TensorGroup *g, Arena *scratch, Mat all, Mat a, Mat h, Mat x, Mat w,
                              Mat b, ActKind kind, Precision p)
{
    if (g->overlap) {
        gather_by_blocks(d, g, all, h, x, &(Factor){w, b, 1, scratch, p});
        d->act_fwd(d, a, h, kind);
        return;
    }
    linear_act_fwd(d, scratch, a, h, tensor_gathered(g, tensor_gather_into(g, all, x)), w, b, kind, p);
}

void tensor_gather_matmul_act(Device *d, const TensorGroup *g, Arena *scratch, Mat all, Mat dh, Mat da, Mat dy, Mat w,
                              Mat h, ActKind kind, Precision p)
{
    if (g->overlap) {
        gather_by_blocks(d, g, all, da, dy, &(Factor){w, {.type = dy.type}, 0, scratch, p});
        d->act_bwd(d, dh, da, h, kind);
        return;
    }
    linear_act_bwd_x(d, scratch, dh, da, tensor_gathered(g, tensor_gather_into(g, all, dy)), w, h, kind, p);
}

void row_linear_fwd(Device *d, const TensorGroup *g, Arena *scratch, Mat y, Mat x, Mat w, Mat b, Precision p)
{
    Factor f = {w, g->tp->rank == 0 ? b : (Mat){.type = b.type}, 1, scratch, p};
    if (g->overlap) {
        scatter_by_blocks(d, g, y, x, &f);
        return;
    }
    size_t mark = scratch->used;
    Mat room = tensor_room(g, scratch, y);
    multiply(d, room, x, &f);
    tensor_wait(g, tensor_sum(g, y, room));
    arena_reset(scratch, mark);
}

TensorSum column_linear_bwd_x(Device *d, const TensorGroup *g, Arena *scratch, Mat dx, Mat dy, Mat w, Precision p)
{
    Factor f = {w, {.type = dx.type}, 0, scratch, p};
    if (g->overlap) {
        scatter_by_blocks(d, g, dx, dy, &f);
        return (TensorSum){0};
    }
    Mat room = tensor_room(g, scratch, dx);
    multiply(d, room, dy, &f);
    return tensor_sum(g, dx, room);
}

void tensor_bwd_w(Device *d, Arena *scratch, Mat dw, Mat dy, Mat x, Mat db, Mat dyb, Precision p)
{
    int whole = dyb.rows == dy.rows;       /* with sequence parallelism a row linear's bias gets a rank's own rows */
    linear_bwd_w(d, scratch, dw, whole ? db : (Mat){.type = db.type}, dy, x, p);
    if (!whole && db.rows)
        d->bias_bwd(d, db, dyb);
}

TensorSum tensor_sum(const TensorGroup *g, Mat y, Mat room)
{
    int64_t n = y.rows * y.cols;
    Token rows = g->rows->reduce_scatter(g->rows, y.p, room.p, n, y.type, OP_SUM);
    return (TensorSum){rows, g->sum->all_reduce(g->sum, y.p, n, y.type, OP_SUM)};
}

void tensor_wait(const TensorGroup *g, TensorSum s)
{
    g->rows->wait(g->rows, s.rows);
    g->sum->wait(g->sum, s.sum);
}

Mat tensor_gathered(const TensorGroup *g, TensorRows r)
{
    g->rows->wait(g->rows, r.token);
    return r.all;
}
