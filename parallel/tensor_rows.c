/* tensor_rows -- rows gathered, and the loss over a split vocabulary: the one file of the tensor code that
 * asks whether a group is one rank, which has all rows already. */
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

void tensor_xent(Device *d, const TensorGroup *g, Arena *scratch, Mat loss, Mat dlogits, Mat logits,
                 const int32_t *label, const float *mask, RowMap rows, int64_t v0, int64_t valid,
                 double scale)
{
    Comm *tp = g->tp;
    size_t mark = scratch->used;
    Mat stats = mat_take(scratch, logits.rows, 3, loss.type);
    if (tp->size == 1) {
        d->xent(d, loss, dlogits, logits, stats, label, mask, rows, valid, scale);
    } else {
        Mat parts = mat_take(scratch, logits.rows * tp->size, 3, loss.type);
        d->xent_stats(d, stats, logits, label, rows, v0, valid);
        tp->wait(tp, tp->all_gather(tp, parts.p, stats.p, logits.rows * 3, loss.type));
        d->xent_combine(d, stats, parts);
        d->xent_grad(d, loss, dlogits, logits, stats, label, mask, rows, v0, valid, scale);
    }
    arena_reset(scratch, mark);
}

int tensor_overlaps(const TensorGroup *g, int wanted) { return wanted && g->rows->size > 1; }
