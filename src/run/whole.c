/* whole -- whole gradients on rank 0, put together from all ranks */
#include "whole.h"
#include "convert.h"
#include <stdlib.h>
#include <string.h>

double *whole_piece(const Run *r, const TensorPiece *p)
{
    int64_t n = p->rows * p->cols;
    double *x = xcalloc((size_t)n, sizeof *x);
    void *raw = xcalloc((size_t)n, dtype_size(p->type));
    BUG_ON(p->ld != p->cols && p->rows > 1);
    device_get(p->dev, raw, p->data, (size_t)n * dtype_size(p->type));
    convert(x, F64, raw, p->type, n);
    for (int64_t i = 0; i < n; i++)
        x[i] *= r->step.verdict.gscale;
    free(raw);
    return x;
}

/* Moves one box from `rank`, where p is the box, to rank 0, where out is the whole gradient. */
static void move(Run *r, int rank, const TensorPiece *p, int64_t cols, double *out)
{
    Comm *all = &r->grid.all;
    int64_t head[4] = {p ? p->row0 : 0, p ? p->col0 : 0, p ? p->rows : 0, p ? p->cols : 0};
    if (rank != 0)
        all->wait(all, p ? all->send(all, head, 4, I64, 0) : all->recv(all, head, 4, I64, rank));
    int64_t size = head[2] * head[3];
    double *x = p ? whole_piece(r, p) : xcalloc((size_t)size, sizeof *x);
    if (rank != 0)
        all->wait(all, p ? all->send(all, x, size, F64, 0) : all->recv(all, x, size, F64, rank));
    for (int64_t i = 0; out && i < size; i++)
        out[(head[0] + i / head[3]) * cols + head[1] + i % head[3]] = x[i];
    free(x);
}

/* Moves the boxes of one rank to rank 0: their number, then each. */
static void contribute(Run *r, int rank, const TensorPiece *p, int n, const char *name, int64_t cols,
                       double *out)
{
    Comm *all = &r->grid.all;
    int mine = all->rank == rank;
    int64_t boxes = 0;
    for (int i = 0; mine && i < n; i++)
        boxes += !strcmp(p[i].name, name);
    if (rank != 0)
        all->wait(all, mine ? all->send(all, &boxes, 1, I64, 0) : all->recv(all, &boxes, 1, I64, rank));
    for (int i = 0; mine && i < n; i++)
        if (!strcmp(p[i].name, name))
            move(r, rank, &p[i], cols, out);
    for (int64_t b = 0; !mine && b < boxes; b++)
        move(r, rank, NULL, cols, out);
}

void whole_gradient(Run *r, const TensorPiece *p, int n, const char *name, int64_t cols, double *out)
{
    for (int rank = 0; rank < r->grid.all.size; rank++)
        if (r->grid.all.rank == 0 || r->grid.all.rank == rank)
            contribute(r, rank, p, n, name, cols, r->grid.all.rank == 0 ? out : NULL);
}
