/* test_grad -- backward ops against central finite differences in F64: every input of every case,
 * relative error of each gradient tensor below 1e-6. The loss of a case is the sum of its output times
 * fixed weights; the backward ops compute gradients from these weights. Gradients that accumulate start
 * from 0.5.
 *
 * Step 1e-5: the truncation error is about 1e-10 and the rounding error 1e-11 of the loss. */
#include "ops.h"

enum { T = 6, INPUTS = 3, MOST = 512 };
#define STEP 1e-5

typedef struct { int64_t rows, cols; int from_half; } Shape;

typedef struct Case Case;
struct Case {
    const char *name;
    Shape in[INPUTS];          /* shapes of the inputs that have gradients */
    int64_t out;               /* elements of the output */
    /* fwd computes y from x, bwd computes dx [INPUTS] from dy and x */
    void (*fwd)(Device *d, const Case *c, Mat y, Mat *x);
    void (*bwd)(Device *d, const Case *c, Mat *dx, Mat dy, Mat *x);
    int kind, groups, flag;
};

static double scratch[8][MOST * 4];
static const int32_t token[T] = {3, 11, 3, 0, 14, 7}, position[T] = {0, 1, 2, 0, 1, 1};
static const float mask[T] = {1, 1, 0, 0.5f, 1, 1};
static const int64_t sample[2] = {41, 17};

#define EPS 1e-5
static Mat stats_of(const Case *c) { return mat(scratch[0], T, 2 * c->groups, F64); }

static void norm_fwd(Device *d, const Case *c, Mat y, Mat *x)
{
    y = mat(y.p, T, x[0].cols, F64);
    d->norm_fwd(d, y, stats_of(c), x[0], x[1], x[2], EPS, (NormKind)c->kind, c->groups);
    if (c->flag)               /* the residual: y = norm(x) + 3 x */
        for (int64_t i = 0; i < c->out; i++)
            ((double *)y.p)[i] += 3 * ((double *)x[0].p)[i];
}
static void norm_bwd(Device *d, const Case *c, Mat *dx, Mat dy, Mat *x)
{
    Mat g = mat(dy.p, T, x[0].cols, F64), y = mat(scratch[1], T, x[0].cols, F64), res = {0};
    d->norm_fwd(d, y, stats_of(c), x[0], x[1], x[2], EPS, (NormKind)c->kind, c->groups);
    if (c->flag) {
        res = mat(scratch[2], T, x[0].cols, F64);
        for (int64_t i = 0; i < c->out; i++)
            scratch[2][i] = 3 * ((double *)dy.p)[i];
    }
    d->norm_bwd(d, dx[0], dx[1], dx[2], res, g, x[0], stats_of(c), x[1], (NormKind)c->kind, c->groups);
}

static void act_fwd(Device *d, const Case *c, Mat y, Mat *x)
{
    d->act_fwd(d, mat(y.p, T, c->out / T, F64), x[0], (ActKind)c->kind);
}
static void act_bwd(Device *d, const Case *c, Mat *dx, Mat dy, Mat *x)
{
    d->act_bwd(d, dx[0], mat(dy.p, T, c->out / T, F64), x[0], (ActKind)c->kind);
}

/* Rotary table [3 positions, columns] of a rope case. c->kind: head size; c->groups: rotary columns. */
static Mat table_of(const Case *c)
{
    Mat t = mat(scratch[0], 3, c->groups, F64);
    for (int64_t p = 0; p < 3; p++)
        for (int64_t i = 0; i < c->groups / 2; i++) {
            scratch[0][p * c->groups + i] = cos((double)p * pow(10, -(double)i));
            scratch[0][p * c->groups + c->groups / 2 + i] = sin((double)p * pow(10, -(double)i));
        }
    return t;
}
static void rope_fwd(Device *d, const Case *c, Mat y, Mat *x)
{
    memcpy(y.p, x[0].p, mat_bytes(x[0]));
    d->rope(d, mat(y.p, T, x[0].cols, F64), c->kind, table_of(c), position, 0);
}
static void rope_bwd(Device *d, const Case *c, Mat *dx, Mat dy, Mat *x)
{
    (void)x;
    memcpy(dx[0].p, dy.p, mat_bytes(dx[0]));
    d->rope(d, dx[0], c->kind, table_of(c), position, 1);
}

static void embed_fwd(Device *d, const Case *c, Mat y, Mat *x)
{
    d->embed_fwd(d, mat(y.p, T, x[0].cols, F64), token, position, x[0], c->kind, x[1]);
}
static void embed_bwd(Device *d, const Case *c, Mat *dx, Mat dy, Mat *x)
{
    d->embed_bwd(d, dx[0], c->kind, dx[1], mat(dy.p, T, x[0].cols, F64), token, position);
}

static Dropout dropout_of(void)
{
    static Positions runs;
    runs = positions_one(8, T / 2);
    return (Dropout){.p = 0.4, .key = 99, .sample = sample, .runs = &runs, .col0 = 5};
}
static void dropout_fwd(Device *d, const Case *c, Mat y, Mat *x)
{
    (void)c;
    Dropout s = dropout_of();
    d->dropout_fwd(d, mat(y.p, T, x[0].cols, F64), x[0], x[1], &s);
}
static void dropout_bwd(Device *d, const Case *c, Mat *dx, Mat dy, Mat *x)
{
    (void)c;
    Dropout s = dropout_of();
    d->dropout_bwd(d, dx[0], mat(dy.p, T, x[0].cols, F64), &s);
    d->copy(d, dx[1], mat(dy.p, T, x[0].cols, F64));
}

/* The cross-entropy cases cut the vocabulary in the halves of two ranks and combine their statistics as
 * tensor parallelism does. The second half ends in a column of padding. Row r has the weight mask[r]
 * dy[0]. */
static const int64_t halves[2] = {7, 9};
static const RowMap all_rows = {T, 0, 0};
static void xent_stats(Device *d, Mat *x, Mat all)
{
    Mat s[2] = {mat(scratch[1], T, 3, F64), mat(scratch[2], T, 3, F64)};
    int64_t at = 0;
    for (int h = 0; h < 2; at += halves[h++])
        d->xent_stats(d, s[h], mat_cols(x[0], at, halves[h]), token, all_rows, at,
                      h ? halves[1] - 1 : halves[0]);
    for (int64_t r = 0; r < T; r++) {
        const double *a = mat_at(s[0], r, 0), *b = mat_at(s[1], r, 0);
        double *o = mat_at(all, r, 0);
        o[0] = fmax(a[0], b[0]);
        o[1] = a[1] * exp(a[0] - o[0]) + b[1] * exp(b[0] - o[0]);
        o[2] = fmax(a[2], b[2]);
    }
}
static void xent_fwd(Device *d, const Case *c, Mat y, Mat *x)
{
    Mat s = mat(scratch[3], T, 3, F64), loss = mat(scratch[4], T, 1, F64);
    (void)c;
    xent_stats(d, x, s);
    d->xent_grad(d, loss, (Mat){0}, mat_cols(x[0], 0, halves[0]), s, token, mask, all_rows, 0, halves[0], 1);
    *(double *)y.p = 0;
    for (int r = 0; r < T; r++)
        *(double *)y.p += scratch[4][r];
}
static void xent_bwd(Device *d, const Case *c, Mat *dx, Mat dy, Mat *x)
{
    Mat s = mat(scratch[3], T, 3, F64), loss = mat(scratch[4], T, 1, F64);
    int64_t at = 0;
    (void)c;
    xent_stats(d, x, s);
    for (int h = 0; h < 2; at += halves[h++])
        d->xent_grad(d, loss, mat_cols(dx[0], at, halves[h]), mat_cols(x[0], at, halves[h]), s, token, mask,
                     all_rows, at, h ? halves[1] - 1 : halves[0], *(double *)dy.p);
}

/* Routing: the output is the weights, then the sums of scores over each row of push, then the z-loss.
 * c->kind: index of `routings`. c->flag: with a bias, which changes choices alone. The rows are rows 2..7 of
 * the microbatch. */
enum { WEIGHTS = T * 4, PUSHES = 3 };
static const Routing routings[] = {
    {.topk = 2, .scale = 1.5, .z = 1, .row0 = 2, .each = 3},
    {.topk = 2, .pre_softmax = 1, .scale = 1.5, .z = 1, .row0 = 2, .each = 3},
    {.topk = 2, .sigmoid = 1, .scale = 1.5, .z = 1, .row0 = 2, .each = 3},
    {.topk = 1, .scale = 2, .row0 = 2, .each = 3},
    {.topk = 1, .pre_softmax = 1, .scale = 2, .row0 = 2, .each = 3},
    {.topk = 1, .sigmoid = 1, .scale = 2, .row0 = 2, .each = 3},
    {.topk = 4, .scale = 1, .groups = 4, .group_topk = 2, .row0 = 2, .each = 3},
    {.topk = 4, .pre_softmax = 1, .scale = 1, .groups = 4, .group_topk = 2, .row0 = 2, .each = 3},
    {.topk = 4, .sigmoid = 1, .scale = 1, .groups = 3, .group_topk = 1, .row0 = 2, .each = 3},
};
static int32_t choice[WEIGHTS];
static void route(Device *d, const Case *c, Mat weight, Mat scores, Mat *x)
{
    Mat bias = mat(scratch[0], 1, x[0].cols, F64);
    for (int64_t e = 0; e < bias.cols; e++)
        scratch[0][e] = 0.3 * normal(30, e);
    d->route_fwd(d, choice, weight, scores, x[0], c->flag ? bias : (Mat){0}, &routings[c->kind]);
}
static void route_fwd(Device *d, const Case *c, Mat y, Mat *x)
{
    const Routing *r = &routings[c->kind];
    int64_t n = x[0].cols;
    double *sums = (double *)y.p + T * r->topk, *z = sums + PUSHES * n;
    route(d, c, mat(y.p, T, r->topk, F64), mat(scratch[1], T, n, F64), x);
    memset(sums, 0, (size_t)(PUSHES * n + 1) * sizeof *sums);
    for (int64_t i = 0; i < T; i++) {
        double sum = 0;
        for (int64_t e = 0; e < n; e++) {
            sums[(r->row0 + i) / r->each * n + e] += scratch[1][i * n + e];
            sum += exp(((double *)x[0].p)[i * n + e]);
        }
        *z += r->z * log(sum) * log(sum);
    }
}
static void route_bwd(Device *d, const Case *c, Mat *dx, Mat dy, Mat *x)
{
    Routing r = routings[c->kind];
    int64_t n = x[0].cols;
    double *push = (double *)dy.p + T * r.topk;
    route(d, c, mat(scratch[2], T, r.topk, F64), mat(scratch[1], T, n, F64), x);
    r.z *= push[PUSHES * n];
    d->route_bwd(d, dx[0], mat(dy.p, T, r.topk, F64), x[0], choice, mat(push, PUSHES, n, F64), &r);
}

static void bias_fwd(Device *d, const Case *c, Mat y, Mat *x)
{
    (void)d;
    for (int64_t i = 0; i < c->out; i++)
        ((double *)y.p)[i] = ((double *)x[0].p)[i % x[0].cols];
}
static void bias_bwd(Device *d, const Case *c, Mat *dx, Mat dy, Mat *x)
{
    (void)c;
    d->bias_bwd(d, dx[0], mat(dy.p, T, x[0].cols, F64));
}

#define NORM(kind, groups, cols, bias, res)                                                                  \
    {"norm", {{T, cols, 0}, {1, cols / groups, 1}, {bias, cols / groups, 1}}, T * cols, norm_fwd, norm_bwd,  \
     kind, groups, res}
#define ACT(kind, wide) {"act", {{T, wide * 37, 0}}, T * 37, act_fwd, act_bwd, kind, 0, 0}
#define ROUTE(kind, experts, topk, bias)                                                                     \
    {"route", {{T, experts, 0}}, T * topk + PUSHES * experts + 1, route_fwd, route_bwd, kind, 0, bias}

static const Case cases[] = {
    NORM(NORM_LAYER, 1, 37, 1, 0), NORM(NORM_RMS, 1, 37, 0, 0), NORM(NORM_LAYER, 3, 33, 1, 1),
    NORM(NORM_RMS, 4, 36, 0, 1),
    ACT(ACT_GELU, 1), ACT(ACT_GELU_TANH, 1), ACT(ACT_SWIGLU, 2), ACT(ACT_GEGLU, 2), ACT(ACT_RELU, 1),
    ACT(ACT_SQUARED_RELU, 1),
    {"rope", {{T, 3 * 10, 0}}, T * 30, rope_fwd, rope_bwd, 10, 10, 0},
    {"rope partial", {{T, 2 * 18, 0}}, T * 36, rope_fwd, rope_bwd, 18, 6, 0},
    {"embed", {{15, 21, 1}, {3, 21, 1}}, T * 21, embed_fwd, embed_bwd, 0, 0, 0},
    {"embed slice", {{8, 21, 1}, {0, 21, 0}}, T * 21, embed_fwd, embed_bwd, 5, 0, 0},
    {"dropout", {{T, 41, 0}, {T, 41, 0}}, T * 41, dropout_fwd, dropout_bwd, 0, 0, 0},
    {"xent", {{T, 16, 0}}, 1, xent_fwd, xent_bwd, 0, 0, 0},
    ROUTE(0, 12, 2, 0), ROUTE(1, 12, 2, 0), ROUTE(2, 12, 2, 0), ROUTE(0, 12, 2, 1), ROUTE(1, 12, 2, 1),
    ROUTE(2, 12, 2, 1), ROUTE(0, 2, 2, 0), ROUTE(1, 2, 2, 0), ROUTE(2, 2, 2, 0), ROUTE(3, 12, 1, 0),
    ROUTE(4, 12, 1, 0), ROUTE(5, 12, 1, 1), ROUTE(5, 1, 1, 0), ROUTE(6, 12, 4, 0), ROUTE(7, 12, 4, 1),
    ROUTE(8, 12, 4, 1),
    {"bias", {{1, 45, 1}}, T * 45, bias_fwd, bias_bwd, 0, 0, 0},
};

static double loss_of(Device *d, const Case *c, Mat *x, const double *dy)
{
    static double y[MOST];
    double sum = 0;
    c->fwd(d, c, mat(y, 1, c->out, F64), x);
    for (int64_t i = 0; i < c->out; i++)
        sum += y[i] * dy[i];
    return sum;
}

static void check(Device *d, const Case *c)
{
    static double values[INPUTS][MOST], grads[INPUTS][MOST], dy[MOST];
    Mat x[INPUTS] = {0}, dx[INPUTS] = {0};
    for (int64_t i = 0; i < c->out; i++)
        dy[i] = normal(20, i);
    for (int k = 0; k < INPUTS; k++) {
        int64_t n = c->in[k].rows * c->in[k].cols;
        if (!n)
            continue;
        x[k] = mat(values[k], c->in[k].rows, c->in[k].cols, F64);
        dx[k] = mat(grads[k], c->in[k].rows, c->in[k].cols, F64);
        for (int64_t i = 0; i < n; i++) {
            values[k][i] = normal((uint64_t)(10 + k), i);
            grads[k][i] = c->in[k].from_half ? 0.5 : NAN;
        }
    }
    c->bwd(d, c, dx, mat(dy, 1, c->out, F64), x);
    for (int k = 0; k < INPUTS; k++) {
        double worst = 0, largest = 0;
        for (int64_t i = 0; i < c->in[k].rows * c->in[k].cols; i++) {
            double keep = values[k][i], got = grads[k][i] - (c->in[k].from_half ? 0.5 : 0);
            values[k][i] = keep + STEP;
            double up = loss_of(d, c, x, dy);
            values[k][i] = keep - STEP;
            double want = (up - loss_of(d, c, x, dy)) / (2 * STEP);
            values[k][i] = keep;
            worst = worse(worst, fabs(got - want));
            largest = fmax(largest, fabs(want));
        }
        if (c->in[k].rows)
            CHECK(worst < 1e-6 * largest, "%s (kind %d) input %d: error %g, largest %g", c->name, c->kind, k,
                  worst, largest);
    }
}

int main(void)
{
    Device d;
    cpu_open(&d, F64, test_isa(), 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check(&d, &cases[i]);
    cpu_close(&d);
    return test_end();
}
