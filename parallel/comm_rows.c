/* comm_rows -- rows of a matrix over a group: the one place that knows that a group of one has them all already. */
#include "tensor.h"

Mat tensor_room(const TensorGroup *g, Arena *scratch, Mat y)
{
    return g->rows->size == 1 ? y : mat_take(scratch, y.rows * g->rows->size, y.cols, y.type);
}

TensorRows tensor_gather_into(const TensorGroup *g, Mat all, Mat x)
{
    TensorRows r = {.all = all};
    if (g->rows->size > 1)
        r.token = g->rows->all_gather(g->rows, r.all.p, x.p, x.rows * x.cols, x.type);
    return r;
}

TensorRows tensor_gather(const TensorGroup *g, Arena *scratch, Mat x)
{
    return tensor_gather_into(g, tensor_room(g, scratch, x), x);
}

int tensor_overlaps(const TensorGroup *g, int wanted) { return wanted && g->rows->size > 1; }
