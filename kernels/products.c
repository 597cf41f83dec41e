/* products -- records a run's matrix products and attention calls by shape, and does each product once */
#include "products.h"
#include <stdlib.h>
#include <string.h>

static int same(const Mat *a, const Mat *b)
{
    return a->rows == b->rows && a->cols == b->cols && a->ld == b->ld && a->type == b->type;
}

static int same_product(const Product *a, const Product *b)
{
    int is = a->op == b->op && a->ta == b->ta && a->tb == b->tb && a->acc == b->acc && a->kind == b->kind;
    is = is && a->a == b->a && a->b == b->b && a->scaling_a == b->scaling_a && a->scaling_b == b->scaling_b;
    for (size_t i = 0; is && i < PRODUCT_MATS; i++)
        is = same(&a->mat[i], &b->mat[i]);
    return is;
}

static void note(Device *d, Product one)
{
    Products *p = d->impl;
    for (int64_t i = 0; i < p->n; i++)
        if (same_product(&p->list[i], &one))
            return;
    p->list = xgrow(p->list, p->n, sizeof *p->list);
    p->list[p->n++] = one;
}

static void note_matmul(Device *d, Mat c, Mat a, int ta, Mat b, int tb, int acc)
{
    note(d, (Product){.op = PRODUCT_MATMUL, .mat = {c, a, b}, .ta = !!ta, .tb = !!tb, .acc = !!acc});
}

static void note_linear(Device *d, Mat y, Mat x, Mat w, Mat bias)
{
    note(d, (Product){.op = PRODUCT_LINEAR, .mat = {y, x, w, bias}});
}

static void note_act_fwd(Device *d, Mat a, Mat h, Mat x, Mat w, Mat bias, ActKind kind)
{
    note(d, (Product){.op = PRODUCT_LINEAR_ACT_FWD, .mat = {a, h, x, w, bias}, .kind = kind});
}

static void note_act_bwd(Device *d, Mat dh, Mat da, Mat dy, Mat w, Mat h, ActKind kind)
{
    note(d, (Product){.op = PRODUCT_LINEAR_ACT_BWD_X, .mat = {dh, da, dy, w, h}, .kind = kind});
}

static void note_bwd_w(Device *d, Mat dw, Mat db, Mat dy, Mat x, int acc)
{
    note(d, (Product){.op = PRODUCT_LINEAR_BWD_W, .mat = {dw, db, dy, x}, .acc = !!acc});
}

static void note_fp8(Device *d, Mat c, Mat8 a, Mat8 b, Mat bias, int acc)
{
    Mat x = mat(NULL, a.rows, a.cols, F16), w = mat(NULL, b.rows, b.cols, F16);
    note(d, (Product){.op = PRODUCT_FP8, .mat = {c, x, w, bias}, .acc = !!acc, .a = a.format, .b = b.format,
                      .scaling_a = a.scaling, .scaling_b = b.scaling});
}

/* ---- attention ---- */

static int same_positions(const Positions *a, const Positions *b)
{
    return a->stride == b->stride && a->count == b->count &&
           !memcmp(a->run, b->run, (size_t)a->count * sizeof *a->run);
}

static int same_call(const AttentionCall *a, const AttentionCall *b)
{
    const Attention *s = &a->shape, *t = &b->shape;
    int is = a->backward == b->backward && s->batch == t->batch && same_positions(&s->q, &t->q);
    is = is && same_positions(&s->k, &t->k) && s->dim == t->dim && s->add == t->add;
    is = is && s->heads == t->heads && s->kv_heads == t->kv_heads;
    is = is && s->window == t->window && s->scale == t->scale && s->dropout == t->dropout;
    for (size_t i = 0; is && i < sizeof a->mat / sizeof *a->mat; i++)
        is = same(&a->mat[i], &b->mat[i]);
    return is;
}

static void note_call(Device *d, AttentionCall one, const Attention *s)
{
    Products *p = d->impl;
    one.shape = *s;
    one.shape.key = 0;
    one.shape.sample = NULL;
    one.shape.doc_start = NULL;
    for (size_t i = 0; i < sizeof one.mat / sizeof *one.mat; i++)
        one.mat[i].p = NULL;
    for (int64_t i = 0; i < p->calls; i++)
        if (same_call(&p->call[i], &one))
            return;
    p->call = xgrow(p->call, p->calls, sizeof *p->call);
    p->call[p->calls++] = one;
}

int attention_fusible(const AttentionCall *c)
{
    const Attention *s = &c->shape;
    Dtype type = c->mat[0].type;
    int whole = s->q.count == 1 && s->q.run[0].start == 0 && same_positions(&s->q, &s->k);
    if (s->dropout > 0 || s->doc_start || !whole || s->add || (type != BF16 && type != F16))
        return 0;
    for (int i = 0; i < (c->backward ? 8 : 4); i++)
        if ((uintptr_t)c->mat[i].p % 16 || c->mat[i].ld % 8)
            return 0;
    return 1;
}

static size_t heads_rows(const Attention *s) { return (size_t)(s->batch * positions_rows(&s->q) * s->heads); }

size_t attention_room(const AttentionCall *c, int any_order)
{
    const Attention *s = &c->shape;
    size_t small = (size_t)16 << 20, rows = heads_rows(s), dim = (size_t)s->dim;
    size_t each = s->heads > s->kv_heads ? 2 * rows * dim * dtype_size(c->mat[0].type) : 0;
    size_t sums = rows * (dim + 1) * sizeof(float), seq = (size_t)positions_rows(&s->q);
    size_t square = (size_t)s->heads * seq * seq * dtype_size(c->mat[0].type), most = (size_t)256 << 20;
    size_t all = (size_t)s->batch * square, squares = square > most ? 0 : all < most ? all : most;
    sums = any_order || sums > squares ? sums : squares;
    return c->backward ? small + sums + each : small;
}

size_t attention_bytes(const Products *p)
{
    size_t most = 0;
    for (int64_t i = 0; i < p->calls; i++) {
        const AttentionCall *c = &p->call[i];
        size_t n = attention_up(heads_rows(&c->shape) * sizeof(float)) + attention_room(c, p->any_order);
        if (attention_fusible(c) && n > most)
            most = n;
    }
    return most;
}

static void note_attention_fwd(Device *d, Mat o, Mat lse, Mat q, Mat k, Mat v, const Attention *s)
{
    (void)lse;
    note_call(d, (AttentionCall){.mat = {q, k, v, o}}, s);
}

static void note_attention_bwd(Device *d, Mat dq, Mat dk, Mat dv, Mat dout, Mat o, Mat lse, Mat delta, Mat q,
                               Mat k, Mat v, const Attention *s)
{
    (void)lse, (void)delta;
    note_call(d, (AttentionCall){.backward = 1, .mat = {q, k, v, o, dout, dq, dk, dv}}, s);
}

void products_watch(Device *d, Products *p)
{
    BUG_ON(d->impl);
    d->impl = p;
    d->matmul = note_matmul;
    d->linear = note_linear;
    d->linear_act_fwd = note_act_fwd;
    d->linear_act_bwd_x = note_act_bwd;
    d->linear_bwd_w = note_bwd_w;
    d->fp8_matmul = note_fp8;
    d->attention_fwd = note_attention_fwd;
    d->attention_bwd = note_attention_bwd;
}

void products_close(Products *p)
{
    free(p->list);
    free(p->call);
    *p = (Products){0};
}

/* Gives m the next memory at a multiple of ARENA_ALIGN, as an arena would, `least` bytes or more. Returns
 * whether it fits. */
static int place(Mat *m, char *memory, size_t *used, size_t bytes, size_t least)
{
    size_t n = m->rows ? ((size_t)(m->rows - 1) * (size_t)m->ld + (size_t)m->cols) * dtype_size(m->type) : 0;
    m->p = n ? memory + *used : NULL;
    n = n < least ? least : n;
    *used += (n + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    return *used <= bytes;
}

/* Bytes that matrix k of a product takes at least: the tiles of scales of a few rows are more than their
 * numbers. */
static size_t least_bytes(const Product *q, size_t k)
{
    const Mat *m = &q->mat[k];
    if (q->op != PRODUCT_FP8 || (k != 1 && k != 2))
        return 0;
    return fp8_bytes(m->rows, m->cols, k == 1 ? q->scaling_a : q->scaling_b);
}

static void replay_fp8(const Product *q, Device *d, const Fp8Scale *scale)
{
    const Mat *m = q->mat;
    Mat8 a = mat8(m[1].p, m[1].rows, m[1].cols, q->a, q->scaling_a, scale),
         b = mat8(m[2].p, m[2].rows, m[2].cols, q->b, q->scaling_b, scale);
    d->fp8_matmul(d, m[0], a, b, m[3], q->acc);
}

void products_replay(const Products *p, Device *d, void *memory, size_t bytes, ProductReady *ready)
{
    const size_t scale = attention_up(sizeof(Fp8Scale));
    for (int64_t i = 0; i < p->n; i++) {
        Product q = p->list[i];
        Mat *m = q.mat;
        size_t used = scale;
        int fits = 1;
        for (size_t k = 0; k < PRODUCT_MATS; k++)
            fits = place(&m[k], memory, &used, bytes, least_bytes(&q, k)) && fits;
        if (!fits)
            continue;
        size_t stride = attention_up(used - scale);
        int64_t sets = (int64_t)((bytes - scale) / stride);
        if (ready)
            ready(d, &q, (char *)memory + scale, stride, sets > 1 ? sets : 1);
        switch (q.op) {
        case PRODUCT_MATMUL: d->matmul(d, m[0], m[1], q.ta, m[2], q.tb, q.acc); break;
        case PRODUCT_LINEAR: d->linear(d, m[0], m[1], m[2], m[3]);              break;
        case PRODUCT_LINEAR_ACT_FWD:
            d->linear_act_fwd(d, m[0], m[1], m[2], m[3], m[4], (ActKind)q.kind);
            break;
        case PRODUCT_LINEAR_ACT_BWD_X:
            d->linear_act_bwd_x(d, m[0], m[1], m[2], m[3], m[4], (ActKind)q.kind);
            break;
        case PRODUCT_LINEAR_BWD_W: d->linear_bwd_w(d, m[0], m[1], m[2], m[3], q.acc); break;
        case PRODUCT_FP8:    replay_fp8(&q, d, memory);                         break;
        }
    }
}
