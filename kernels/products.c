#include "products.h"
#include <stdlib.h>
#include <string.h>

static int same(const Mat *a, const Mat *b)
{
    return a->rows == b->rows && a->cols == b->cols && a->ld == b->ld && a->type == b->type;
}

static int same_product(const Product *a, const Product *b)
{
    int is = a->op == b->op && a->ta == b->ta && a->tb == b->tb && a->acc == b->acc;
    for (size_t i = 0; is && i < sizeof a->mat / sizeof *a->mat; i++)
        is = same(&a->mat[i], &b->mat[i]);
    return is;
}

static void note(Device *d, Product one)
{
    Products *p = d->impl;
    for (int64_t i = 0; i < p->n; i++)
        if (same_product(&p->list[i], &one))
            return;
    if (p->n == p->room) {
        p->room = p->room ? 2 * p->room : 32;
        p->list = xrealloc(p->list, (size_t)p->room * sizeof *p->list);
    }
    p->list[p->n++] = one;
}

static void note_matmul(Device *d, Mat c, Mat a, int ta, Mat b, int tb, int acc)
{
    note(d, (Product){PRODUCT_MATMUL, {c, a, b}, !!ta, !!tb, !!acc});
}

static void note_linear(Device *d, Mat y, Mat x, Mat w, Mat bias)
{
    note(d, (Product){PRODUCT_LINEAR, {y, x, w, bias}, 0, 0, 0});
}

void products_watch(Device *d, Products *p)
{
    BUG_ON(d->impl);
    d->impl = p;
    d->matmul = note_matmul;
    d->linear = note_linear;
}

void products_close(Products *p)
{
    free(p->list);
    *p = (Products){0};
}

/* Operands lie as in an arena: at multiples of ARENA_ALIGN. */
static int place(Mat *m, char *memory, size_t *used, size_t bytes)
{
    size_t n = m->rows ? ((size_t)(m->rows - 1) * (size_t)m->ld + (size_t)m->cols) * dtype_size(m->type) : 0;
    m->p = n ? memory + *used : NULL;
    *used += (n + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    return *used <= bytes;
}

void products_replay(const Products *p, Device *d, void *memory, size_t bytes)
{
    for (int64_t i = 0; i < p->n; i++) {
        Product q = p->list[i];
        Mat *m = q.mat;
        size_t used = 0;
        int fits = 1;
        for (size_t k = 0; k < sizeof q.mat / sizeof *q.mat; k++)
            fits = place(&m[k], memory, &used, bytes) && fits;
        if (!fits)
            continue;
        switch (q.op) {
        case PRODUCT_MATMUL: d->matmul(d, m[0], m[1], q.ta, m[2], q.tb, q.acc); break;
        case PRODUCT_LINEAR: d->linear(d, m[0], m[1], m[2], m[3]);              break;
        }
    }
}
