#include "linear.h"

/* x in FP8, as it is or transposed. Until the scratch is reset. */
static Mat8 cast(Device *d, Arena *scratch, Mat x, int transposed, Fp8Scale *s, Fp8Format format, Precision p)
{
    void *at = arena_take(scratch, (size_t)x.rows * (size_t)x.cols);
    d->fp8_cast(d, transposed ? NULL : at, transposed ? at : NULL, x, s, format, p.delayed);
    return (Mat8){at, transposed ? x.cols : x.rows, transposed ? x.rows : x.cols, format, s};
}

void linear_fwd(Device *d, Arena *scratch, Mat y, Mat x, Mat w, Mat b, Precision p)
{
    size_t mark = scratch->used;
    if (!p.fp8) {
        d->linear(d, y, x, w, b);
        return;
    }
    Mat8 x8 = cast(d, scratch, x, 0, p.x, E4M3, p), w8 = cast(d, scratch, w, 0, p.w, E4M3, p);
    d->fp8_matmul(d, y, x8, w8, b, 0);
    arena_reset(scratch, mark);
}

void linear_act_fwd(Device *d, Arena *scratch, Mat a, Mat h, Mat x, Mat w, Mat b, ActKind kind, Precision p)
{
    if (!p.fp8) {
        d->linear_act_fwd(d, a, h, x, w, b, kind);
        return;
    }
    linear_fwd(d, scratch, h, x, w, b, p);
    d->act_fwd(d, a, h, kind);
}

void linear_bwd_x(Device *d, Arena *scratch, Mat dx, Mat dy, Mat w, Precision p)
{
    size_t mark = scratch->used;
    if (!p.fp8) {
        d->matmul(d, dx, dy, 0, w, 0, 0);
        return;
    }
    Mat8 dy8 = cast(d, scratch, dy, 0, p.dy, E5M2, p), wt8 = cast(d, scratch, w, 1, p.w, E4M3, p);
    d->fp8_matmul(d, dx, dy8, wt8, (Mat){.type = dx.type}, 0);
    arena_reset(scratch, mark);
}

void linear_act_bwd_x(Device *d, Arena *scratch, Mat dh, Mat da, Mat dy, Mat w, Mat h, ActKind kind, Precision p)
{
    if (!p.fp8) {
        d->linear_act_bwd_x(d, dh, da, dy, w, h, kind);
        return;
    }
    linear_bwd_x(d, scratch, da, dy, w, p);
    d->act_bwd(d, dh, da, h, kind);
}

void linear_bwd_w(Device *d, Arena *scratch, Mat dw, Mat db, Mat dy, Mat x, Precision p)
{
    size_t mark = scratch->used;
    if (!p.fp8) {
        d->linear_bwd_w(d, dw, db, dy, x);
        return;
    }
    Mat8 dyt8 = cast(d, scratch, dy, 1, p.dy, E5M2, p), xt8 = cast(d, scratch, x, 1, p.x, E4M3, p);
    d->fp8_matmul(d, dw, dyt8, xt8, (Mat){.type = dw.type}, 1);
    arena_reset(scratch, mark);
    if (db.rows)
        d->bias_bwd(d, db, dy);
}
