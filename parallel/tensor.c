#include "tensor.h"

void column_linear_fwd(Device *d, Mat y, Mat x, Mat w, Mat b) { d->linear(d, y, x, w, b); }

TensorSum column_linear_bwd_x(Device *d, const TensorGroup *g, Arena *scratch, Mat dx, Mat dy, Mat w)
{
    Mat room = tensor_room(g, scratch, dx);
    d->matmul(d, room, dy, 0, w, 0, 0);
    return tensor_sum(g, dx, room);
}

void row_linear_fwd(Device *d, const TensorGroup *g, Arena *scratch, Mat y, Mat x, Mat w, Mat b)
{
    size_t mark = scratch->used;
    Mat room = tensor_room(g, scratch, y);
    if (g->tp->rank != 0)
        b.p = NULL;
    d->linear(d, room, x, w, b);
    tensor_wait(g, tensor_sum(g, y, room));
    arena_reset(scratch, mark);
}

void row_linear_bwd_x(Device *d, Mat dx, Mat dy, Mat w) { d->matmul(d, dx, dy, 0, w, 0, 0); }

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
