/* tensor -- linear layers cut over the tensor group, with sequence parallelism and overlap */
#include "tensor.h"

/* ---- block by block: rank r's rows are block r ---- */

static Mat block(Mat m, const TensorGroup *g, int r)
{
    return mat_rows(m, r * (m.rows / g->rows->size), m.rows / g->rows->size);
}
static int64_t elements(Mat m) { return m.rows * m.cols; }

/* A product to be made block by block: y = x times f; act: then the activation, as linear_multiply_act. */
typedef struct { Factor f; Mat y, out, h; int act; ActKind kind; Arena *scratch; } Product;

/* Makes rows [first, first + x.rows) of the product, from rows x of the left-hand factor. */
static void multiply(Device *d, const Product *q, Mat x, int64_t first)
{
    size_t mark = q->scratch->used;
    int64_t n = x.rows;
    Rows rows = linear_rows(d, q->scratch, x, &q->f);
    if (q->act)
        linear_multiply_act(d, mat_rows(q->out, first, n), mat_rows(q->y, first, n), mat_rows(q->h, first, n),
                            rows, &q->f, q->kind);
    else
        linear_multiply(d, mat_rows(q->y, first, n), rows, &q->f);
    arena_reset(q->scratch, mark);
}

/* In step s every rank sends to the rank s places on: all links are in use, and blocks arrive in the order in
 * which they are multiplied. */
static void gather_by_blocks(Device *d, const TensorGroup *g, Mat all, Mat x, const Product *q)
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
    multiply(d, q, x, me * x.rows);
    for (int s = 1; s < n; s++) {
        int from = (me - s + n) % n;
        c->wait(c, g->come[s]);
        multiply(d, q, block(all, g, from), from * x.rows);
    }
    for (int s = 1; s < n; s++)
        c->wait(c, g->sent[s]);
}

/* In FP8 x is cast as a whole. */
static void scatter_by_blocks(Device *d, const TensorGroup *g, Arena *scratch, Mat y, Mat x, const Factor *f)
{
    Comm *c = g->rows;
    int n = c->size, me = c->rank;
    size_t mark = scratch->used;
    Mat room = mat_take(scratch, y.rows * n, y.cols, y.type),
        parts = mat_take(scratch, y.rows * n, y.cols, y.type);
    Rows rows = linear_rows(d, scratch, x, f);
    for (int s = 1; s < n; s++) {
        int to = (me + s) % n, from = (me - s + n) % n;
        linear_multiply(d, block(room, g, to), linear_rows_part(d, scratch, rows, to * y.rows, y.rows), f);
        comm_together(c, 1);
        g->sent[s] = c->send(c, block(room, g, to).p, elements(y), y.type, to);
        g->come[s] = c->recv(c, block(parts, g, from).p, elements(y), y.type, from);
        comm_together(c, 0);
    }
    linear_multiply(d, block(parts, g, me), linear_rows_part(d, scratch, rows, me * y.rows, y.rows), f);
    for (int s = 1; s < n; s++) {
        c->wait(c, g->come[s]);
        c->wait(c, g->sent[s]);
    }
    d->sum_parts(d, y, parts);
    arena_reset(scratch, mark);
}

/* ---- linear layers ---- */

static void gather_multiply(Device *d, const TensorGroup *g, Mat all, Mat x, Product q, size_t mark)
{
    if (g->overlap)
        gather_by_blocks(d, g, all, x, &q);
    else
        multiply(d, &q, tensor_gathered(g, tensor_gather_into(g, all, x)), 0);
    arena_reset(q.scratch, mark);
}

void tensor_gather_linear(Device *d, const TensorGroup *g, Arena *scratch, Mat all, Mat y, Mat x, Mat w,
                          Mat b, Precision p)
{
    size_t mark = scratch->used;
    Product q = {.f = linear_factor(d, scratch, w, b, 1, p), .y = y, .scratch = scratch};
    gather_multiply(d, g, all, x, q, mark);
}

void tensor_gather_matmul(Device *d, const TensorGroup *g, Arena *scratch, Mat all, Mat y, Mat x, Mat w,
                          Precision p)
{
    size_t mark = scratch->used;
    Product q = {.f = linear_factor(d, scratch, w, (Mat){.type = x.type}, 0, p), .y = y, .scratch = scratch};
    gather_multiply(d, g, all, x, q, mark);
}

void tensor_gather_linear_act(Device *d, const TensorGroup *g, Arena *scratch, Mat all, Mat a, Mat h, Mat x,
                              Mat w, Mat b, ActKind kind, Precision p)
{
    size_t mark = scratch->used;
    Product q = {.f = linear_factor(d, scratch, w, b, 1, p), .y = h, .out = a, .act = 1, .kind = kind,
                 .scratch = scratch};
    gather_multiply(d, g, all, x, q, mark);
}

void tensor_gather_matmul_act(Device *d, const TensorGroup *g, Arena *scratch, Mat all, Mat dh, Mat da,
                              Mat dy, Mat w, Mat h, ActKind kind, Precision p)
{
    size_t mark = scratch->used;
    Product q = {.f = linear_factor(d, scratch, w, (Mat){.type = dy.type}, 0, p), .y = da, .out = dh, .h = h,
                 .act = 1, .kind = kind, .scratch = scratch};
    gather_multiply(d, g, all, dy, q, mark);
}

void row_linear_fwd(Device *d, const TensorGroup *g, Arena *scratch, Mat y, Mat x, Mat w, Mat b, Precision p)
{
    size_t mark = scratch->used;
    Factor f = linear_factor(d, scratch, w, g->tp->rank == 0 ? b : (Mat){.type = b.type}, 1, p);
    if (g->overlap) {
        scatter_by_blocks(d, g, scratch, y, x, &f);
    } else {
        Mat room = tensor_room(g, scratch, y);
        linear_multiply(d, room, linear_rows(d, scratch, x, &f), &f);
        tensor_wait(g, tensor_sum(g, y, room));
    }
    arena_reset(scratch, mark);
}

TensorSum column_linear_bwd_x(Device *d, const TensorGroup *g, Arena *scratch, Mat dx, Mat dy, Mat w,
                              Precision p)
{
    Mat room = g->overlap ? dx : tensor_room(g, scratch, dx);      /* read until tensor_wait */
    size_t mark = scratch->used;
    Factor f = linear_factor(d, scratch, w, (Mat){.type = dx.type}, 0, p);
    if (g->overlap)
        scatter_by_blocks(d, g, scratch, dx, dy, &f);
    else
        linear_multiply(d, room, linear_rows(d, scratch, dy, &f), &f);
    arena_reset(scratch, mark);
    return g->overlap ? (TensorSum){0} : tensor_sum(g, dx, room);
}

void tensor_bwd_w(Device *d, Arena *scratch, Sum dw, Mat dy, Mat x, Mat db, Mat dyb, Precision p)
{
    int whole = dyb.rows == dy.rows;   /* no: a row linear's bias with sequence parallelism */
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
