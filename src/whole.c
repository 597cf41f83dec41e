#include "whole.h"
#include <stdlib.h>

int whole_boxes(const Params *p, const Param *t, Box box[MAX_BOXES])
{
    int64_t from, to;
    param_own(p, t, &from, &to);
    to = to < t->counted ? to : t->counted;
    return from < to ? param_boxes(p, t, from, to, box) : 0;
}

double whole_element(const Run *r, const Param *t, const Box *b, int64_t row, int64_t col)
{
    const Params *p = &r->params;
    const void *x = param_at(p, t, &p->data.grad, b->at + row * b->ld + col - t->offset);
    return (p->real == F64 ? *(const double *)x : (double)*(const float *)x) * r->gscale;
}

static const Param *find(const Params *p, int number)
{
    for (int i = 0; i < p->nparam; i++)
        if (p->param[i].number == number && !p->param[i].copy)
            return &p->param[i];
    return NULL;
}

static void place(double *out, int64_t cols, const int64_t head[4], const double *x)
{
    for (int64_t r = 0; r < head[2]; r++)
        for (int64_t c = 0; c < head[3]; c++)
            out[(head[0] + r) * cols + head[1] + c] = x[r * head[3] + c];
}

/* What one rank contributes goes to rank 0: the number of boxes, then each box's place and its elements. */
static void contribute(Run *r, int rank, int number, int64_t cols, double *out)
{
    Comm *all = &r->grid.all;
    Box box[MAX_BOXES];
    const Param *t = all->rank == rank ? find(&r->params, number) : NULL;
    int64_t n = t ? whole_boxes(&r->params, t, box) : 0, head[4];
    if (rank != 0)
        all->wait(all, all->rank == rank ? all->send(all, &n, 1, I64, 0) : all->recv(all, &n, 1, I64, rank));
    for (int64_t b = 0; b < n; b++) {
        if (t)
            head[0] = box[b].row0, head[1] = box[b].col0, head[2] = box[b].rows, head[3] = box[b].cols;
        if (rank != 0)
            all->wait(all, t ? all->send(all, head, 4, I64, 0) : all->recv(all, head, 4, I64, rank));
        int64_t size = head[2] * head[3];
        double *x = xcalloc((size_t)size, sizeof *x);
        for (int64_t i = 0; t && i < size; i++)
            x[i] = whole_element(r, t, &box[b], i / head[3], i % head[3]);
        if (rank != 0)
            all->wait(all, t ? all->send(all, x, size, F64, 0) : all->recv(all, x, size, F64, rank));
        if (all->rank == 0)
            place(out, cols, head, x);
        free(x);
    }
}

void whole_gradient(Run *r, int number, int64_t cols, double *out)
{
    for (int rank = 0; rank < r->grid.all.size; rank++)
        if (r->grid.all.rank == 0 || r->grid.all.rank == rank)
            contribute(r, rank, number, cols, out);
}
