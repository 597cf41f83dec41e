#include "tensor.h"

/* ---- block by block: rank r's rows are block r ---- */

static Mat block(Mat m, const TensorGroup *g, int r) { return mat_rows(m, r * (m.rows / g->rows->size), m.rows / g->rows->size); }
static int64_t elements(Mat m) { return m.rows * m.cols; }

typedef void (*Multiply)(Device *d, Mat y, Mat x, Mat w, Mat b);
static void with_transposed(Device *d, Mat y, Mat x, Mat w, Mat b) { d->linear(d, y, x, w, b); }

static void with_plain(Device *d, Mat y, Mat x, Mat w, Mat b)
{
    (void)b;
    d->matmul(d, y, x, 0, w, 0, 0);
}

/* In step s every rank sends to the one s places on, so that all links are in use and the blocks come in the order in which
 * they are multiplied. */
static void gather_by_blocks(Device *d, const TensorGroup *g, Mat all, Mat y, Mat x, Mat w, Mat b, Multiply multiply)
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
    multiply(d, block(y, g, me), x, w, b);
    for (int s = 1; s < n; s++) {
        int from = (me - s + n) % n;
        c->wait(c, g->come[s]);
        multiply(d, block(y, g, from), block(all, g, from), w, b);
    }
    for (int s = 1; s < n; s++)
        c->wait(c, g->sent[s]);
}

static void scatter_by_blocks(Device *d, const TensorGroup *g, Arena *scratch, Mat y, Mat x, Mat w, Mat b, Multiply multiply)
{
    Comm *c = g->rows;
    int n = c->size, me = c->rank;
    size_t mark = scratch->used;
    Mat room = mat_take(scratch, y.rows * n, y.cols, y.type), parts = mat_take(scratch, y.rows * n, y.cols, y.type);
    for (int s = 1; s < n; s++) {
        int to = (me + s) % n, from = (me - s + n) % n;
        multiply(d, block(room, g, to), block(x, g, to), w, b);
        comm_together(c, 1);
        g->sent[s] = c->send(c, block(room, g, to).p, elements(y), y.type, to);
        g->come[s] = c->recv(c, block(parts, g, from).p, elements(y), y.type, from);
        comm_together(c, 0);
    }
    multiply(d, block(parts, g, me), block(x, g, me), w, b);
    for (int s = 1; s < n; s++) {
        c->wait(c, g->come[s]);
        c->wait(c, g->sent[s]);
    }
    d->sum_parts(d, y, parts);
    arena_reset(scratch, mark);
}

/* ---- linear layers ---- */

static void gather_multiply(Device *d, const TensorGroup *g, Mat all, Mat y, Mat x, Mat w, Mat b, Multiply multiply)
{
    if (g->overlap) {
        gather_by_blocks(d, g, all, y, x, w, b, multiply);
        return;
    }
    multiply(d, y, tensor_gathered(g, tensor_gather_into(g, all, x)), w, b);
}

void tensor_gather_linear(Device *d, const TensorGroup *g, Mat all, Mat y, Mat x, Mat w, Mat b)
{
    gather_multiply(d, g, all, y, x, w, b, with_transposed);
}

void tensor_gather_matmul(Device *d, const TensorGroup *g, Mat all, Mat y, Mat x, Mat w)
{
    gather_multiply(d, g, all, y, x, w, (Mat){.type = x.type}, with_plain);
}

void row_linear_fwd(Device *d, const TensorGroup *g, Arena *scratch, Mat y, Mat x, Mat w, Mat b)
{
    if (g->tp->rank != 0)
        b.p = NULL;
    if (g->overlap) {
        scatter_by_blocks(d, g, scratch, y, x, w, b, with_transposed);
        return;
    }
    size_t mark = scratch->used;
    Mat room = tensor_room(g, scratch, y);
    d->linear(d, room, x, w, b);
    tensor_wait(g, tensor_sum(g, y, room));
    arena_reset(scratch, mark);
}

TensorSum column_linear_bwd_x(Device *d, const TensorGroup *g, Arena *scratch, Mat dx, Mat dy, Mat w)
{
    if (g->overlap) {
        scatter_by_blocks(d, g, scratch, dx, dy, w, (Mat){.type = dx.type}, with_plain);
        return (TensorSum){0};
    }
    Mat room = tensor_room(g, scratch, dx);
    d->matmul(d, room, dy, 0, w, 0, 0);
    return tensor_sum(g, dx, room);
}

void linear_bwd_w(Device *d, Mat dw, Mat dy, Mat x, Mat db, Mat dyb)
{
    d->matmul(d, dw, dy, 1, x, 0, 1);
    if (db.rows)
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
