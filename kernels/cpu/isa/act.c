/* act -- activations of the feed-forward layer, forward and backward.
 *
 * GELU: Hendrycks, Gimpel 2016, arXiv:1606.08415. ACT_GELU is exact, by erf. ACT_GELU_TANH is x
 * sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3), which needs one exponential. SwiGLU, GEGLU: Shazeer
 * 2020, arXiv:2002.05202. Squared ReLU: So et al. 2021, arXiv:2109.08668. */
#include "work.h"

#define GELU_A ((REAL)1.5957691216057307117597842397375)     /* 2 sqrt(2/pi) */
#define GELU_B ((REAL)0.044715)
#define SQRT_HALF ((REAL)0.70710678118654752440084436210485)
#define INV_SQRT_2PI ((REAL)0.3989422804014326779399460599344)

typedef struct { Device *d; Mat a, da, h, dh; ActKind kind; } Job;

static inline Vec sigmoid(Vec x) { return 1 / (1 + vexp(-x)); }

/* Returns act(x) and writes act'(x) to *d, which shares its exponentials; d NULL: the value alone. Of
 * gated kinds it is the function of the gate. */
static inline Vec apply(ActKind kind, Vec x, Vec *d)
{
    Vec s, zero = {0};
    switch (kind) {
    case ACT_GELU:
    case ACT_GEGLU:
        s = (REAL)0.5 + (REAL)0.5 * verf(x * SQRT_HALF);
        if (d)
            *d = s + x * INV_SQRT_2PI * vexp((REAL)-0.5 * x * x);
        return x * s;
    case ACT_GELU_TANH:
        s = sigmoid(GELU_A * x * (1 + GELU_B * x * x));
        if (d)
            *d = s + x * s * (1 - s) * GELU_A * (1 + 3 * GELU_B * x * x);
        return x * s;
    case ACT_SWIGLU:
        s = sigmoid(x);
        if (d)
            *d = s * (1 + x * (1 - s));
        return x * s;
    case ACT_RELU:               /* not x > 0 ? x : 0, which makes 0 of a NaN and hides it */
        if (d)
            *d = vselect(x <= 0, zero, vset(1));
        return vselect(x <= 0, zero, x);
    case ACT_SQUARED_RELU:
        s = vselect(x <= 0, zero, x);
        if (d)
            *d = 2 * s;
        return s * s;
    }
    BUG_ON("unknown activation");
}

/* One row piece for a kind known at compile time: the switch above folds away. */
INLINE void fwd_piece(ActKind kind, REAL *a, const REAL *h, const REAL *up, int64_t n)
{
    for (int64_t i = 0; i < n; i += VN) {
        Vec y = apply(kind, vget(h + i, n - i), NULL);
        vput(a + i, act_gated(kind) ? y * vget(up + i, n - i) : y, n - i);
    }
}

INLINE void bwd_piece(ActKind kind, REAL *dh, REAL *dup, const REAL *da, const REAL *h, const REAL *up,
                      int64_t n)
{
    for (int64_t i = 0; i < n; i += VN) {
        Vec d, g = vget(da + i, n - i), y = apply(kind, vget(h + i, n - i), &d);
        if (act_gated(kind)) {
            Vec u = vget(up + i, n - i);
            vput(dup + i, g * y, n - i);
            g *= u;
        }
        vput(dh + i, g * d, n - i);
    }
}

#define KINDS(X) X(ACT_GELU) X(ACT_GELU_TANH) X(ACT_SWIGLU) X(ACT_GEGLU) X(ACT_RELU) X(ACT_SQUARED_RELU)

void FN(act_row)(ActKind kind, REAL *a, const REAL *h, const REAL *up, int64_t n)
{
    switch (kind) {
#define X(k) case k: fwd_piece(k, a, h, up, n); break;
    KINDS(X)
#undef X
    }
}

void FN(act_bwd_row)(ActKind kind, REAL *dh, REAL *dup, const REAL *da, const REAL *h, const REAL *up,
                     int64_t n)
{
    switch (kind) {
#define X(k) case k: bwd_piece(k, dh, dup, da, h, up, n); break;
    KINDS(X)
#undef X
    }
}

static void fwd_item(void *ctx, int64_t item, int thread)
{
    const Job *j = ctx;
    int64_t f = j->a.cols;
    Work t = work_at(j->a, item);
    Mat am = mat_cols(j->a, t.c0, t.cols), hm = mat_cols(j->h, t.c0, t.cols);
    Mat um = act_gated(j->kind) ? mat_cols(j->h, f + t.c0, t.cols) : hm;
    REAL *hbuf = FN(row_buf)(j->d, thread, 0), *ubuf = FN(row_buf)(j->d, thread, 1);
    for (int64_t r = t.r0; r < t.r1; r++) {
        const REAL *h = row_in(hm, r, hbuf), *up = act_gated(j->kind) ? row_in(um, r, ubuf) : NULL;
        REAL *a = row_out(am, r, hbuf);
        FN(act_row)(j->kind, a, h, up, t.cols);
        row_done(am, r, a);
    }
}

void FN(cpu_act_fwd)(Device *d, Mat a, Mat h, ActKind kind)
{
    BUG_ON(a.rows != h.rows || h.cols != act_width(kind, a.cols));
    Job j = {.d = d, .a = a, .h = h, .kind = kind};
    pool_run(d->pool, fwd_item, &j, work_items(a));
}

static void bwd_item(void *ctx, int64_t item, int thread)
{
    const Job *j = ctx;
    int gated = act_gated(j->kind);
    int64_t f = j->da.cols;
    Work t = work_at(j->da, item);
    Mat dam = mat_cols(j->da, t.c0, t.cols), hm = mat_cols(j->h, t.c0, t.cols), um = hm;
    Mat dhm = mat_cols(j->dh, t.c0, t.cols), dum = dhm;
    if (gated) {
        um = mat_cols(j->h, f + t.c0, t.cols);
        dum = mat_cols(j->dh, f + t.c0, t.cols);
    }
    REAL *hbuf = FN(row_buf)(j->d, thread, 0), *ubuf = FN(row_buf)(j->d, thread, 1);
    REAL *dabuf = FN(row_buf)(j->d, thread, 2);
    for (int64_t r = t.r0; r < t.r1; r++) {
        const REAL *da = row_in(dam, r, dabuf), *h = row_in(hm, r, hbuf);
        const REAL *up = gated ? row_in(um, r, ubuf) : NULL;
        REAL *dh = row_out(dhm, r, hbuf), *dup = gated ? row_out(dum, r, ubuf) : NULL;
        FN(act_bwd_row)(j->kind, dh, dup, da, h, up, t.cols);
        row_done(dhm, r, dh);
        if (gated)
            row_done(dum, r, dup);
    }
}

void FN(cpu_act_bwd)(Device *d, Mat dh, Mat da, Mat h, ActKind kind)
{
    BUG_ON(da.rows != h.rows || h.cols != act_width(kind, da.cols));
    BUG_ON(dh.rows != h.rows || dh.cols != h.cols);
    Job j = {.d = d, .da = da, .h = h, .dh = dh, .kind = kind};
    pool_run(d->pool, bwd_item, &j, work_items(da));
}
