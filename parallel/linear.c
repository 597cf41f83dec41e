/* linear -- the products of one linear layer, as stored or in FP8 */
#include "linear.h"

static Fp8Format gradients(Precision p) { return p.e4m3 ? E4M3 : E5M2; }

Fp8Turned linear_turned(Arena *from, int64_t rows, int64_t cols, Fp8Scaling scaling)
{
    const int64_t n = fp8_padded(rows, scaling);
    void *p = arena_take(from, fp8_bytes(cols, n, scaling));
    Fp8Turned t = {.p = p, .room = 1};
    if (fp8_blocked(scaling))
        t.inverse = mat((void *)mat8(p, cols, n, E4M3, scaling, NULL).inverse, 1, 1, F32);
    else
        t.inverse = mat_take(from, 1, 1, F32);
    return t;
}

static void to_fp8(Device *d, void *y, void *yt, Mat x, const Unstored *a, Fp8Scale *s, Fp8Format format,
                   Precision p)
{
    if (a)
        d->fp8_act(d, y, yt, a->da, a->h, a->kind, s, format, p.scaling);
    else
        d->fp8_cast(d, y, yt, x, s, format, p.scaling);
    if (p.watch)
        p.watch->see(p.watch->ctx, d, y, yt, x, a, s, format, p.scaling);
}

void linear_turned_made(Device *d, Fp8Turned *t, Fp8Scale *s, Fp8Scaling scaling)
{
    Mat inverse = mat(s ? &s->inverse : NULL, 1, 1, F32);
    if (scaling == FP8_DELAYED)
        t->inverse = inverse;
    else if (scaling == FP8_OWN)
        d->copy(d, t->inverse, inverse);
    BUG_ON(t->there);
    t->there = 1;
}

/* An FP8 copy of x in scratch, and with room in t a transposed one there, by one pass over x. */
static Mat8 cast(Device *d, Arena *scratch, Mat x, const Unstored *a, Fp8Scale *s, Fp8Format format,
                 Precision p, Fp8Turned *t)
{
    const int both = t && t->room;
    void *at = arena_take(scratch, fp8_bytes(x.rows, x.cols, p.scaling));
    to_fp8(d, at, both ? t->p : NULL, x, a, s, format, p);
    if (both)
        linear_turned_made(d, t, s, p.scaling);
    return mat8(at, x.rows, x.cols, format, p.scaling, s);
}

/* The transposed FP8 copy of x: that in t, or one in scratch. Its rows are filled up with zeros, for products
 * that sum over them. */
static Mat8 turned(Device *d, Arena *scratch, Mat x, const Unstored *a, Fp8Scale *s, Fp8Format format,
                   Precision p, Fp8Turned *t)
{
    const int64_t rows = fp8_padded(x.rows, p.scaling);
    if (t && t->there)
        return (Mat8){t->p, x.cols, rows, format, t->inverse.p, p.scaling};
    void *at = arena_take(scratch, fp8_bytes(x.cols, rows, p.scaling));
    to_fp8(d, NULL, at, x, a, s, format, p);
    return mat8(at, x.cols, rows, format, p.scaling, s);
}

void linear_turn(Device *d, Mat x, Precision p)
{
    to_fp8(d, NULL, p.xt->p, x, p.xa, p.x, E4M3, p);
    linear_turned_made(d, p.xt, p.x, p.scaling);
}

/* The FP8 copy of w: the kept one, or one in scratch. */
static Mat8 weight(Device *d, Arena *scratch, Mat w, int transposed, Precision p)
{
    Fp8Weight *k = p.kept;
    p.scaling = linear_weights(p.scaling);
    if (!k)
        return (transposed ? turned : cast)(d, scratch, w, NULL, p.w, E4M3, p, NULL);
    if (!k->there)
        to_fp8(d, k->plain, k->turned, w, NULL, p.w, E4M3, p);
    k->there = 1;
    return mat8(transposed ? k->turned : k->plain, transposed ? w.cols : w.rows,
                transposed ? w.rows : w.cols, E4M3, p.scaling, p.w);
}

Factor linear_factor(Device *d, Arena *scratch, Mat w, Mat b, int forward, Precision p)
{
    Factor f = {.w = w, .b = b, .forward = forward, .p = p};
    if (p.fp8)
        f.w8 = weight(d, scratch, w, !forward, p);
    return f;
}

Rows linear_rows(Device *d, Arena *scratch, Mat x, const Factor *f)
{
    Rows r = {.x = x};
    if (f->p.fp8 && f->forward && f->p.x8)
        r.x8 = *f->p.x8;
    else if (f->p.fp8)
        r.x8 = f->forward ? cast(d, scratch, x, f->p.xa, f->p.x, E4M3, f->p, f->p.xt)
                          : cast(d, scratch, x, f->p.dya, f->p.dy, gradients(f->p), f->p, f->p.dyt);
    return r;
}

/* Tiles of scales lie row by row. In floats other rows stand between those of a part, so they are copied. */
static const void *scales_part(Device *d, Arena *scratch, Mat8 x, int64_t first, int64_t n)
{
    int64_t blocks = fp8_blocks(x.cols);
    if (x.scaling == FP8_MX) {
        BUG_ON(first % FP8_BLOCK);
        return (const char *)x.inverse + first / FP8_BLOCK * fp8_pitch(x.rows, x.cols, x.scaling);
    }
    Mat part = mat_take(scratch, blocks, n, F32), all = mat((void *)x.inverse, blocks, x.rows, F32);
    d->copy(d, part, mat_cols(all, first, n));
    return part.p;
}

Rows linear_rows_part(Device *d, Arena *scratch, Rows x, int64_t first, int64_t n)
{
    if (fp8_blocked(x.x8.scaling))
        x.x8.inverse = scales_part(d, scratch, x.x8, first, n);
    x.x = mat_rows(x.x, first, n);
    x.x8.p = x.x8.p ? (char *)x.x8.p + first * x.x8.cols : NULL;
    x.x8.rows = n;
    return x;
}

void linear_multiply(Device *d, Mat y, Rows x, const Factor *f)
{
    if (f->p.fp8)
        d->fp8_matmul(d, y, x.x8, f->w8, f->forward ? f->b : (Mat){.type = y.type}, 0);
    else if (f->forward)
        d->linear(d, y, x.x, f->w, f->b);
    else
        d->matmul(d, y, x.x, 0, f->w, 0, 0);
}

void linear_multiply_act(Device *d, Mat out, Mat y, Mat h, Rows x, const Factor *f, ActKind kind)
{
    if (f->p.fp8) {
        linear_multiply(d, y, x, f);
        if (f->forward)
            d->act_fwd(d, out, y, kind);
        else
            d->act_bwd(d, out, y, h, kind);
    } else if (f->forward) {
        d->linear_act_fwd(d, out, y, x.x, f->w, f->b, kind);
    } else {
        d->linear_act_bwd_x(d, out, y, x.x, f->w, h, kind);
    }
}

void linear_fwd(Device *d, Arena *scratch, Mat y, Mat x, Mat w, Mat b, Precision p)
{
    size_t mark = scratch->used;
    if (!x.rows)
        return;
    Factor f = linear_factor(d, scratch, w, b, 1, p);
    linear_multiply(d, y, linear_rows(d, scratch, x, &f), &f);
    arena_reset(scratch, mark);
}

void linear_act_fwd(Device *d, Arena *scratch, Mat a, Mat h, Mat x, Mat w, Mat b, ActKind kind, Precision p)
{
    size_t mark = scratch->used;
    if (!x.rows)
        return;
    Factor f = linear_factor(d, scratch, w, b, 1, p);
    linear_multiply_act(d, a, h, h, linear_rows(d, scratch, x, &f), &f, kind);
    arena_reset(scratch, mark);
}

void linear_bwd_x(Device *d, Arena *scratch, Mat dx, Mat dy, Mat w, Precision p)
{
    size_t mark = scratch->used;
    if (!dy.rows)
        return;
    Factor f = linear_factor(d, scratch, w, (Mat){.type = dx.type}, 0, p);
    linear_multiply(d, dx, linear_rows(d, scratch, dy, &f), &f);
    arena_reset(scratch, mark);
}

void linear_bwd_w(Device *d, Arena *scratch, Sum dw, Mat db, Mat dy, Mat x, Precision p)
{
    size_t mark = scratch->used;
    if (!dy.rows)
        return;
    int acc = !dw.there || *dw.there;
    if (dw.there)
        *dw.there = 1;
    if (!p.fp8) {
        d->linear_bwd_w(d, dw.m, db, dy, x, acc);
        return;
    }
    BUG_ON(p.dya && db.rows);
    Mat8 dyt8 = turned(d, scratch, dy, p.dya, p.dy, gradients(p), p, p.dyt),
         xt8 = turned(d, scratch, x, p.xa, p.x, E4M3, p, p.xt);
    d->fp8_matmul(d, dw.m, dyt8, xt8, (Mat){.type = dw.m.type}, acc);
    arena_reset(scratch, mark);
    if (db.rows)
        d->bias_bwd(d, db, dy);
}

void linear_reserve(Arena *scratch, int64_t rows, Mat w, Precision p)
{
    const size_t mark = scratch->used;
    const int64_t n = fp8_padded(rows, p.scaling), in = w.cols, out = w.rows;
    const Fp8Scaling weights = linear_weights(p.scaling);
    if (!p.fp8)
        return;
    size_t x = fp8_bytes(n, in, p.scaling), y = fp8_bytes(n, out, p.scaling);
    size_t xt = fp8_bytes(in, n, p.scaling), yt = fp8_bytes(out, n, p.scaling);
    size_t plain = fp8_bytes(out, in, weights), turned_over = fp8_bytes(in, out, weights);
    arena_take(scratch, plain > turned_over ? plain : turned_over);
    arena_take(scratch, x > y ? x : y);
    arena_reset(scratch, mark);
    arena_take(scratch, yt);
    arena_take(scratch, xt);
    arena_reset(scratch, mark);
}
