#include "tensor.h"

void column_linear_fwd(Device *d, Mat y, Mat x, Mat w, Mat b) { d->linear(d, y, x, w, b); }

Token column_linear_bwd_x(Device *d, Comm *tp, Mat dx, Mat dy, Mat w)
{
    d->matmul(d, dx, dy, 0, w, 0, 0);
    return tp->all_reduce(tp, dx.p, dx.rows * dx.cols, dx.type, OP_SUM);
}

void row_linear_fwd(Device *d, Comm *tp, Mat y, Mat x, Mat w, Mat b)
{
    if (tp->rank != 0)
        b.p = NULL;
    d->linear(d, y, x, w, b);
    tp->wait(tp, tp->all_reduce(tp, y.p, y.rows * y.cols, y.type, OP_SUM));
}

void row_linear_bwd_x(Device *d, Mat dx, Mat dy, Mat w) { d->matmul(d, dx, dy, 0, w, 0, 0); }

void linear_bwd_w(Device *d, Mat dw, Mat db, Mat dy, Mat x)
{
    d->matmul(d, dw, dy, 1, x, 0, 1);
    if (db.p)
        d->bias_bwd(d, db, dy);
}
