/* test_ops -- every row of the op table but matrix products, attention and optimizers, as cases.h runs it: a
 * case is a row of `cases`.
 *
 *   test_ops [ISA]      only this instruction set */
#include "cases.h"

/* ROWS: length of the cases' arrays; VOCAB: token ids are in [0, VOCAB). */
enum { ROWS = 512, VOCAB = 50 };
static int32_t token[ROWS], position[ROWS];
static float mask[ROWS];
static int64_t sample[] = {12345678901, 7, 8, 9, 10, 11, 12, 13};

/* ---- the ops in plain code ---- */

static void copy_run(Device *d, Mat *m, const Arg *a) { (void)a; d->copy(d, m[0], m[1]); }
static void copy_naive(Mat *m, const Arg *a) { (void)a; memcpy(m[0].p, m[1].p, mat_bytes(m[1])); }

static void add_run(Device *d, Mat *m, const Arg *a) { (void)a; d->add(d, m[0], m[1], m[2]); }
static void add_naive(Mat *m, const Arg *a)
{
    (void)a;
    for (int64_t i = 0; i < m[0].rows * m[0].cols; i++)
        AT(0, 0, i) = AT(1, 0, i) + AT(2, 0, i);
}

#define NORMALS_KEY 0x123456789abcdef1ull
static void normals_run(Device *d, Mat *m, const Arg *a)
{
    d->normals(d, m[0], (Mat){0}, a->lr, a->wd, NORMALS_KEY, a->v0, a->dim ? a->dim : m[0].cols);
}
static void normals_naive(Mat *m, const Arg *a)
{
    int64_t step = a->dim ? a->dim : m[0].cols;
    for (int64_t r = 0; r < m[0].rows; r++)
        for (int64_t c = 0; c < m[0].cols; c++)
            AT(0, r, c) = a->lr + a->wd * rng_normal(NORMALS_KEY, 0, (uint64_t)(a->v0 + r * step + c));
}

static void parts_run(Device *d, Mat *m, const Arg *a) { (void)a; d->sum_parts(d, m[0], m[1]); }
static void parts_naive(Mat *m, const Arg *a)
{
    (void)a;
    for (int64_t i = 0; i < m[0].rows * m[0].cols; i++) {
        AT(0, 0, i) = 0;
        for (int64_t p = 0; p < m[1].rows / m[0].rows; p++)
            AT(0, 0, i) += AT(1, p * m[0].rows, i);
    }
}

static void bias_run(Device *d, Mat *m, const Arg *a) { (void)a; d->bias_bwd(d, m[0], m[1]); }
static void bias_naive(Mat *m, const Arg *a)
{
    (void)a;
    for (int64_t r = 0; r < m[1].rows; r++)
        for (int64_t c = 0; c < m[1].cols; c++)
            AT(0, 0, c) += AT(1, r, c);
}

#define EPS 1e-3
static void norm_run(Device *d, Mat *m, const Arg *a)
{
    d->norm_fwd(d, m[0], m[1], m[2], m[3], m[4], EPS, (NormKind)a->kind, a->groups);
}
static void norm_naive(Mat *m, const Arg *a)
{
    int64_t n = m[2].cols / a->groups;
    for (int64_t r = 0; r < m[2].rows; r++)
        for (int g = 0; g < a->groups; g++) {
            double mean = 0, var = 0;
            for (int64_t c = g * n; c < (g + 1) * n && a->kind == NORM_LAYER; c++)
                mean += AT(2, r, c) / (double)n;
            for (int64_t c = g * n; c < (g + 1) * n; c++)
                var += (AT(2, r, c) - mean) * (AT(2, r, c) - mean) / (double)n;
            AT(1, r, 2 * g) = mean;
            AT(1, r, 2 * g + 1) = 1 / sqrt(var + EPS);
            for (int64_t c = 0; c < n; c++)
                AT(0, r, g * n + c) = (AT(2, r, g * n + c) - mean) / sqrt(var + EPS) * AT(3, 0, c)
                                      + (m[4].p ? AT(4, 0, c) : 0);
        }
}

/* Tensors: 0 dx, 1 dres, 2 dy, 3 x, 4 gain, 5 stats (computed here), 6 dgain, 7 dbias. */
static void norm_bwd_run(Device *d, Mat *m, const Arg *a)
{
    double *stats = xcalloc((size_t)(m[3].rows * 2 * a->groups), sizeof(double));
    void *y = xcalloc((size_t)(m[3].rows * m[3].cols), sizeof(double));
    Mat s = mat(stats, m[3].rows, 2 * a->groups, d->real);
    d->norm_fwd(d, mat(y, m[3].rows, m[3].cols, m[3].type), s, m[3], m[4], (Mat){0}, EPS, (NormKind)a->kind,
                a->groups);
    d->norm_bwd(d, m[0], m[6], m[7], m[1], m[2], m[3], s, m[4], (NormKind)a->kind, a->groups);
    free(stats);
    free(y);
}
/* The derivative of normalised element j by element i of x is rstd ((i == j) - mean / n - xh_i xh_j / n),
 * where mean is 1 for LayerNorm and 0 for RMSNorm. */
static void norm_bwd_naive(Mat *m, const Arg *a)
{
    const int64_t n = m[3].cols / a->groups;
    for (int64_t r = 0; r < m[3].rows; r++)
        for (int64_t g = 0; g < a->groups; g++) {
            const double *x = &AT(3, r, g * n), *dy = &AT(2, r, g * n), *gain = m[4].p;
            double mean = 0, var = 0;
            for (int64_t i = 0; i < n && a->kind == NORM_LAYER; i++)
                mean += x[i] / (double)n;
            for (int64_t i = 0; i < n; i++)
                var += (x[i] - mean) * (x[i] - mean) / (double)n;
            double rstd = 1 / sqrt(var + EPS);
            for (int64_t i = 0; i < n; i++) {
                double sum = m[1].p ? AT(1, r, g * n + i) : 0, xi = (x[i] - mean) * rstd;
                for (int64_t j = 0; j < n; j++)
                    sum += dy[j] * gain[j] * rstd *
                           ((i == j) - ((a->kind == NORM_LAYER) + xi * (x[j] - mean) * rstd) / (double)n);
                AT(0, r, g * n + i) = sum;
                AT(6, 0, i) += dy[i] * xi;
                if (m[7].p)
                    AT(7, 0, i) += dy[i];
            }
        }
}

static double value_of(int kind, double x)
{
    switch (kind) {
    case ACT_GELU:
    case ACT_GEGLU: return x * 0.5 * erfc(-x / sqrt(2));
    case ACT_GELU_TANH: return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case ACT_SWIGLU: return x / (1 + exp(-x));
    case ACT_RELU: return x > 0 ? x : 0;
    default: return x > 0 ? x * x : 0;
    }
}
static void act_run(Device *d, Mat *m, const Arg *a) { d->act_fwd(d, m[0], m[1], (ActKind)a->kind); }
static void act_naive(Mat *m, const Arg *a)
{
    int64_t f = m[0].cols;
    for (int64_t r = 0; r < m[0].rows; r++)
        for (int64_t c = 0; c < f; c++) {
            double up = act_gated((ActKind)a->kind) ? AT(1, r, f + c) : 1;
            AT(0, r, c) = value_of(a->kind, AT(1, r, c)) * up;
        }
}
static void act_bwd_run(Device *d, Mat *m, const Arg *a)
{
    d->act_bwd(d, m[0], m[1], m[2], (ActKind)a->kind);
}

static void rope_run(Device *d, Mat *m, const Arg *a)
{
    d->rope(d, m[0], a->dim, m[1], position, a->inverse);
}
static void rope_naive(Mat *m, const Arg *a)
{
    int64_t half = m[1].cols / 2;
    for (int64_t r = 0; r < m[0].rows; r++)
        for (int64_t h = 0; h < m[0].cols; h += a->dim)
            for (int64_t i = 0; i < half; i++) {
                double c = AT(1, position[r], i), s = AT(1, position[r], half + i) * (a->inverse ? -1 : 1);
                double u = AT(0, r, h + i), v = AT(0, r, h + half + i);
                AT(0, r, h + i) = u * c - v * s;
                AT(0, r, h + half + i) = v * c + u * s;
            }
}

static void embed_run(Device *d, Mat *m, const Arg *a)
{
    d->embed_fwd(d, m[0], token, position, m[1], a->v0, m[2]);
}
static void embed_naive(Mat *m, const Arg *a)
{
    for (int64_t r = 0; r < m[0].rows; r++)
        for (int64_t c = 0; c < m[0].cols; c++) {
            int64_t v = token[r] - a->v0;
            AT(0, r, c) = (v >= 0 && v < m[1].rows ? AT(1, v, c) : 0) + (m[2].p ? AT(2, position[r], c) : 0);
        }
}
static void embed_bwd_run(Device *d, Mat *m, const Arg *a)
{
    d->embed_bwd(d, m[0], a->v0, m[1], m[2], token, position);
}
static void embed_bwd_naive(Mat *m, const Arg *a)
{
    for (int64_t r = 0; r < m[2].rows; r++)
        for (int64_t c = 0; c < m[2].cols; c++) {
            int64_t v = token[r] - a->v0;
            if (m[0].p && v >= 0 && v < m[0].rows)
                AT(0, v, c) += AT(2, r, c);
            if (m[1].p)
                AT(1, position[r], c) += AT(2, r, c);
        }
}

#define KEY 0x123456789abcdef1ull
static Dropout dropout_of(const Arg *a)
{
    /* two runs of positions, with a gap between them */
    static Positions runs;
    int32_t half = (int32_t)a->seq / 2, rest = (int32_t)a->seq - half;
    runs = (Positions){.stride = a->seq, .count = 2, .run = {{5, half, 0}, {5 + 2 * half, rest, half}}};
    return (Dropout){.p = a->p, .jitter = a->jitter, .key = KEY, .sample = sample, .runs = &runs,
                     .col0 = a->col0};
}
static double dropout_naive_factor(const Arg *a, int64_t r, int64_t c)
{
    uint64_t col = (uint64_t)(a->col0 + c), row = (uint64_t)(r % a->seq), half = (uint64_t)a->seq / 2;
    uint64_t pos = 5 + row + (row < half ? 0 : half);
    uint32_t word = philox(KEY, col / 4 | pos << 32, (uint64_t)sample[r / a->seq]).v[col % 4];
    if (a->jitter > 0)
        return 1 - a->jitter + 2 * a->jitter * (double)(word >> 8) / 0x1p24;
    return word >= a->p * 0x1p32 ? 1 / (1 - a->p) : 0;
}
static void dropout_run(Device *d, Mat *m, const Arg *a)
{
    Dropout s = dropout_of(a);
    d->dropout_fwd(d, m[0], m[1], m[2], &s);
}
static void dropout_naive(Mat *m, const Arg *a)
{
    for (int64_t r = 0; r < m[0].rows; r++)
        for (int64_t c = 0; c < m[0].cols; c++)
            AT(0, r, c) = AT(1, r, c) * dropout_naive_factor(a, r, c) + (m[2].p ? AT(2, r, c) : 0);
}
static void dropout_bwd_run(Device *d, Mat *m, const Arg *a)
{
    Dropout s = dropout_of(a);
    d->dropout_bwd(d, m[0], m[1], &s);
}

/* Tensors: 0 y, 1 ln, 2 stats, 3 x, 4 res, 5 gain, 6 bias. The fused op has the bits of dropout_fwd
 * followed by norm_fwd. */
static void add_norm_run(Device *d, Mat *m, const Arg *a)
{
    Dropout s = dropout_of(a);
    Mat y = m[0], ln = m[1], stats = m[2];
    size_t bytes[] = {mat_bytes((Mat){NULL, y.rows, y.ld, y.ld, y.type}),
                      mat_bytes((Mat){NULL, ln.rows, ln.ld, ln.ld, ln.type})};
    y.p = memcpy(xcalloc(1, bytes[0]), m[0].p, bytes[0]);
    ln.p = memcpy(xcalloc(1, bytes[1]), m[1].p, bytes[1]);
    stats.p = xcalloc((size_t)(stats.rows * stats.ld), sizeof(double));
    d->dropout_fwd(d, y, m[3], m[4], &s);
    d->norm_fwd(d, ln, stats, y, m[5], m[6], EPS, (NormKind)a->kind, 1);
    d->add_norm_fwd(d, m[0], m[1], m[2], m[3], m[4], &s, m[5], m[6], EPS, (NormKind)a->kind);
    CHECK(!memcmp(y.p, m[0].p, bytes[0]) && !memcmp(ln.p, m[1].p, bytes[1]),
          "%s add_norm_fwd is not its parts", d->isa);
    free(y.p), free(ln.p), free(stats.p);
}
static void add_norm_naive(Mat *m, const Arg *a)
{
    dropout_naive((Mat[]){m[0], m[3], m[4]}, a);
    norm_naive((Mat[]){m[1], m[2], m[0], m[5], m[6]}, &(Arg){.kind = a->kind, .groups = 1});
}

/* RowMap of rows in the order of the microbatch. */
#define ALL ((RowMap){ROWS, 0, 0})

/* Tensors: 0 loss, 1 dlogits, 2 logits, 3 stats. */
static void xent_run(Device *d, Mat *m, const Arg *a)
{
    /* parts of the vocabulary of three ranks; the last part may be all padding */
    static double memory[3 * 3 * 64];
    const int64_t rows = m[2].rows, cut[] = {0, m[2].cols / 3, m[2].cols - 5, m[2].cols};
    Mat parts = mat(memory, 3 * rows, 3, m[3].type);
    for (int i = 0; i < 3; i++) {
        int64_t n = cut[i + 1] - cut[i], valid = a->valid - cut[i];
        valid = valid < 0 ? 0 : valid < n ? valid : n;
        d->xent_stats(d, mat_rows(parts, i * rows, rows), mat_cols(m[2], cut[i], n), token, ALL,
                      a->v0 + cut[i], valid);
    }
    d->xent_combine(d, m[3], parts);
    d->xent_grad(d, m[0], m[1], m[2], m[3], token, a->nomask ? NULL : mask, ALL, a->v0, a->valid, 0.25);
}
/* A dense matrix of x's shape and type in new memory; no memory when x has none. */
static Mat apart(Mat x)
{
    return mat(x.p ? xcalloc(1, mat_bytes(x)) : NULL, x.rows, x.cols, x.type);
}
static int same_rows(Mat a, Mat b)
{
    for (int64_t r = 0; r < a.rows && a.p; r++)
        if (memcmp(mat_at(a, r, 0), mat_at(b, r, 0), (size_t)a.cols * dtype_size(a.type)))
            return 0;
    return 1;
}
/* The fused op has the bits of xent_stats followed by xent_grad. */
static void xent_whole_run(Device *d, Mat *m, const Arg *a)
{
    Mat loss = apart(m[0]), dlogits = apart(m[1]), stats = apart(m[3]);
    d->xent_stats(d, stats, m[2], token, ALL, 0, a->valid);
    d->xent_grad(d, loss, dlogits, m[2], stats, token, a->nomask ? NULL : mask, ALL, 0, a->valid, 0.25);
    d->xent(d, m[0], m[1], m[2], m[3], token, a->nomask ? NULL : mask, ALL, a->valid, 0.25);
    CHECK(same_rows(loss, m[0]) && same_rows(dlogits, m[1]), "%s xent is not its parts", d->isa);
    free(loss.p);
    free(dlogits.p);
    free(stats.p);
}
static void xent_naive(Mat *m, const Arg *a)
{
    for (int64_t r = 0; r < m[2].rows; r++) {
        double max = -INFINITY, sum = 0, k = a->nomask ? 1 : mask[r];
        int64_t v = token[r] - a->v0;
        for (int64_t c = 0; c < a->valid; c++)
            max = fmax(max, AT(2, r, c));
        for (int64_t c = 0; c < a->valid; c++)
            sum += exp(AT(2, r, c) - max);
        AT(3, r, 0) = max;
        AT(3, r, 1) = sum;
        AT(3, r, 2) = v >= 0 && v < a->valid ? AT(2, r, v) : -INFINITY;
        AT(0, r, 0) = k == 0 ? 0 : k * (log(sum) + max - AT(3, r, 2));
        for (int64_t c = 0; c < m[2].cols && m[1].p; c++)
            AT(1, r, c) = c < a->valid ? (exp(AT(2, r, c) - max) / sum - (c == v)) * k * 0.25 : 0;
    }
}

/* ---- the table ---- */

#define LAYER(kind_, rows, cols, groups_, bias)                                                              \
    {"norm_fwd", {{'o', rows, cols, 0}, {'O', rows, 2 * groups_, 0}, {'i', rows, cols, 2},                   \
                  {'i', 1, cols / groups_, 1}, {bias, 1, cols / groups_, 1}},                                \
     norm_run, norm_naive, {{1, 3}}, {.kind = kind_, .groups = groups_}, 1}
#define LAYER_BWD(kind_, rows, cols, groups_, res, bias)                                                     \
    {"norm_bwd", {{'o', rows, cols, 0}, {res, rows, cols, 1}, {'i', rows, cols, 1}, {'i', rows, cols, 2},    \
                  {'i', 1, cols / groups_, 1}, {'-', 0, 0, 0}, {'A', 1, cols / groups_, 1},                  \
                  {bias, 1, cols / groups_, 1}},                                                             \
     norm_bwd_run, norm_bwd_naive, {{1, 2}, {1, 3}}, {.kind = kind_, .groups = groups_}, 4}
#define ACT(kind_, rows, cols, wide)                                                                         \
    {"act_fwd", {{'o', rows, cols, 0}, {'i', rows, wide * cols, 2}}, act_run, act_naive, {{0}},              \
     {.kind = kind_}, 1},                                                                                    \
    {"act_bwd", {{'o', rows, wide * cols, 0}, {'i', rows, cols, 1}, {'i', rows, wide * cols, 2}},            \
     act_bwd_run, NULL, {{1, 3}}, {.kind = kind_}, 1}

static const Case cases[] = {
    {"copy", {{'o', 150, 257, 0}, {'I', 150, 257, 1}}, copy_run, copy_naive, {{0}}, {0}, 1},
    {"copy", {{'O', 3, 9001, 0}, {'i', 3, 9001, 1}}, copy_run, copy_naive, {{0}}, {0}, 1},
    {"copy", {{'o', 5, 33, 0}, {'i', 5, 33, 1}}, copy_run, copy_naive, {{0}}, {0}, 1},
    {"normals", {{'O', 150, 257, 0}}, normals_run, normals_naive, {{0}}, {.wd = 0.02}, 1},
    {"normals", {{'o', 9, 4101, 0}}, normals_run, normals_naive, {{0}}, {.wd = 2, .v0 = 77, .dim = 5000}, 1},
    {"normals", {{'O', 300, 1, 0}}, normals_run, normals_naive, {{0}}, {.lr = 1, .dim = 1}, 1},
    {"add",
     {{'o', 150, 257, 0}, {'i', 150, 257, 1}, {'i', 150, 257, 1}},
     add_run,
     add_naive,
     {{1, 2}, {1, 3}},
     {0},
     1},
    {"add", {{'o', 3, 9001, 0}, {'i', 3, 9001, 1}, {'I', 3, 9001, 1}}, add_run, add_naive, {{1, 2}}, {0}, 1},
    {"sum_parts", {{'o', 100, 257, 0}, {'i', 300, 257, 1}}, parts_run, parts_naive, {{0}}, {0}, 1},
    {"sum_parts", {{'o', 3, 9001, 0}, {'i', 3, 9001, 1}}, parts_run, parts_naive, {{0}}, {0}, 1},
    {"bias_bwd", {{'A', 1, 777, 1}, {'i', 200, 777, 1}}, bias_run, bias_naive, {{0}}, {0}, 1},
    {"bias_bwd", {{'A', 1, 37, 1}, {'i', 130, 37, 1}}, bias_run, bias_naive, {{0}}, {0}, 1},
    LAYER(NORM_LAYER, 150, 257, 1, 'i'),
    LAYER(NORM_RMS, 150, 257, 1, '-'),
    LAYER(NORM_LAYER, 9, 93, 3, 'i'),
    LAYER(NORM_RMS, 9, 128, 4, '-'),
    LAYER(NORM_LAYER, 3, 20000, 1, '-'),
    LAYER(NORM_RMS, 9, 5, 1, 'i'),
    LAYER_BWD(NORM_LAYER, 150, 257, 1, 'i', 'A'),
    LAYER_BWD(NORM_RMS, 150, 257, 1, '-', '-'),
    LAYER_BWD(NORM_LAYER, 70, 93, 3, '-', 'A'),
    LAYER_BWD(NORM_RMS, 9, 128, 4, 'i', '-'),
    LAYER_BWD(NORM_LAYER, 70, 777, 1, 'i', '-'),
    LAYER_BWD(NORM_LAYER, 1, 5, 1, 'i', 'A'),
    ACT(ACT_GELU, 150, 257, 1),
    ACT(ACT_GELU_TANH, 150, 257, 1),
    ACT(ACT_SWIGLU, 150, 257, 2),
    ACT(ACT_GEGLU, 7, 37, 2),
    ACT(ACT_RELU, 7, 37, 1),
    ACT(ACT_SQUARED_RELU, 7, 37, 1),
    ACT(ACT_SWIGLU, 3, 9001, 2),
    ACT(ACT_GELU, 3, 9001, 1),
    {"rope", {{'x', 150, 3 * 46, 1}, {'I', 64, 46, 1}}, rope_run, rope_naive, {{0}}, {.dim = 46}, 1},
    {"rope",
     {{'x', 7, 5 * 48, 1}, {'I', 64, 10, 1}},
     rope_run,
     rope_naive,
     {{0}},
     {.dim = 48, .inverse = 1},
     1},
    /* rows wider than the kernels' buffer of a row */
    {"rope", {{'x', 2, 9 * 8192, 1}, {'I', 64, 10, 1}}, rope_run, rope_naive, {{0}}, {.dim = 8192}, 1},
    {"embed_fwd",
     {{'o', 150, 257, 0}, {'i', VOCAB, 257, 1}, {'i', 64, 257, 1}},
     embed_run,
     embed_naive,
     {{0}},
     {0},
     1},
    {"embed_fwd",
     {{'o', 9, 5001, 0}, {'i', 20, 5001, 1}, {'-', 0, 0, 0}},
     embed_run,
     embed_naive,
     {{0}},
     {.v0 = 11},
     1},
    {"embed_bwd",
     {{'A', VOCAB, 257, 1}, {'A', 64, 257, 1}, {'i', 150, 257, 1}},
     embed_bwd_run,
     embed_bwd_naive,
     {{0}},
     {0},
     1},
    {"embed_bwd",
     {{'A', 20, 37, 1}, {'-', 0, 0, 0}, {'i', 150, 37, 1}},
     embed_bwd_run,
     embed_bwd_naive,
     {{0}},
     {.v0 = 11},
     1},
    {"embed_bwd",
     {{'-', 0, 0, 0}, {'A', 64, 37, 1}, {'i', 150, 37, 1}},
     embed_bwd_run,
     embed_bwd_naive,
     {{0}},
     {0},
     1},
    {"dropout_fwd",
     {{'o', 150, 257, 0}, {'i', 150, 257, 1}, {'i', 150, 257, 1}},
     dropout_run,
     dropout_naive,
     {{1, 2}, {1, 3}},
     {.p = 0.3, .seq = 50, .col0 = 3},
     1},
    {"add_norm_fwd",
     {{'o', 60, 257, 0},
      {'o', 60, 257, 0},
      {'O', 60, 2, 0},
      {'i', 60, 257, 1},
      {'i', 60, 257, 1},
      {'i', 1, 257, 1},
      {'i', 1, 257, 1}},
     add_norm_run,
     add_norm_naive,
     {{0}},
     {.kind = NORM_LAYER, .p = 0.3, .seq = 20},
     2e4},
    {"add_norm_fwd",
     {{'o', 6, 1001, 0},
      {'o', 6, 1001, 0},
      {'O', 6, 2, 0},
      {'i', 6, 1001, 1},
      {'i', 6, 1001, 1},
      {'i', 1, 1001, 1},
      {'-', 0, 0, 0}},
     add_norm_run,
     add_norm_naive,
     {{0}},
     {.kind = NORM_RMS, .seq = 3},
     2e4},
    {"dropout_fwd",
     {{'o', 6, 9001, 0}, {'i', 6, 9001, 1}, {'-', 0, 0, 0}},
     dropout_run,
     dropout_naive,
     {{1, 2}},
     {.p = 0.9, .seq = 2, .col0 = 4096},
     1},
    {"dropout_fwd",
     {{'o', 6, 33, 0}, {'i', 6, 33, 1}, {'i', 6, 33, 1}},
     dropout_run,
     dropout_naive,
     {{1, 3}},
     {.p = 0, .seq = 6},
     1},
    {"dropout_fwd",
     {{'o', 90, 257, 0}, {'i', 90, 257, 1}, {'i', 90, 257, 1}},
     dropout_run,
     dropout_naive,
     {{1, 2}, {1, 3}},
     {.jitter = 0.3, .seq = 30, .col0 = 3},
     1},
    {"dropout_bwd",
     {{'o', 6, 33, 0}, {'i', 6, 33, 1}, {'-', 0, 0, 0}},
     dropout_bwd_run,
     dropout_naive,
     {{1, 2}},
     {.p = 0.5, .seq = 2, .col0 = 1},
     1},
    {"xent",
     {{'O', 40, 1, 0}, {'o', 40, VOCAB + 7, 0}, {'I', 40, VOCAB + 7, 3}, {'O', 40, 3, 0}},
     xent_run,
     xent_naive,
     {{2, 3}},
     {.valid = VOCAB},
     2},
    /* labels outside this rank's part of the vocabulary: the loss is infinite, unless masked */
    {"xent",
     {{'O', 40, 1, 0}, {'o', 40, VOCAB + 7, 0}, {'I', 40, VOCAB + 7, 3}, {'O', 40, 3, 0}},
     xent_run,
     xent_naive,
     {{2, 3}},
     {.v0 = 3, .valid = VOCAB - 10},
     2},
    {"xent",
     {{'O', 40, 1, 0}, {'o', 40, 5003, 0}, {'I', 40, 5003, 3}, {'O', 40, 3, 0}},
     xent_run,
     xent_naive,
     {{2, 3}},
     {.valid = 4990, .nomask = 1},
     4},
    {"xent",
     {{'O', 40, 1, 0}, {'o', 40, 5003, 0}, {'I', 40, 5003, 3}, {'O', 40, 3, 0}},
     xent_whole_run,
     xent_naive,
     {{2, 3}},
     {.valid = 4990},
     4},
    {"xent",
     {{'O', 40, 1, 0}, {'o', 40, VOCAB + 7, 0}, {'I', 40, VOCAB + 7, 3}, {'O', 40, 3, 0}},
     xent_whole_run,
     xent_naive,
     {{2, 3}},
     {.valid = VOCAB - 10, .nomask = 1},
     2},
    {"xent",
     {{'O', 9, 1, 0}, {'-', 0, 0, 0}, {'I', 9, 4096, 3}, {'O', 9, 3, 0}},
     xent_whole_run,
     xent_naive,
     {{0}},
     {.valid = 4096},
     4},
    {"xent",
     {{'O', 9, 1, 0}, {'-', 0, 0, 0}, {'I', 9, 4096, 3}, {'O', 9, 3, 0}},
     xent_run,
     xent_naive,
     {{0}},
     {.valid = 4096},
     4},
    /* logits in storage type */
    {"xent",
     {{'O', 40, 1, 0}, {'o', 40, 5003, 0}, {'i', 40, 5003, 3}, {'O', 40, 3, 0}},
     xent_run,
     xent_naive,
     {{2, 3}},
     {.valid = 4990},
     4},
    {"xent",
     {{'O', 40, 1, 0}, {'o', 40, VOCAB + 7, 0}, {'i', 40, VOCAB + 7, 3}, {'O', 40, 3, 0}},
     xent_whole_run,
     xent_naive,
     {{2, 3}},
     {.valid = VOCAB - 10, .nomask = 1},
     2},
};

/* A NaN stays one: an activation that made 0 of it would hide a weight that is none. */
static void check_nan(const char *isa)
{
    Device d;
    cpu_open(&d, F32, isa, 1);
    for (ActKind kind = ACT_GELU; kind <= ACT_SQUARED_RELU; kind++)
        for (Dtype type = F32; type <= F16; type++) {
            uint64_t room[2][8] = {{0}};
            Mat h = mat(room[0], 1, act_width(kind, 5), type), a = mat(room[1], 1, 5, type);
            for (int64_t i = 0; i < h.cols; i++)
                put(h.p, i, type, i == 3 ? NAN : 1);
            d.act_fwd(&d, a, h, kind);
            for (int64_t i = 0; i < 5; i++)
                CHECK(isnan(get(a.p, i, type)) == (i == 3), "%s activation %d %s: %g at %d", isa, (int)kind,
                      dtype_name(type), get(a.p, i, type), (int)i);
        }
    cpu_close(&d);
}

int main(int argc, char **argv)
{
    for (int i = 0; i < ISAS; i++)
        if (isa_wanted(i, argc, argv))
            check_nan(isa_names[i]);
    for (int i = 0; i < ROWS; i++) {
        token[i] = (int32_t)(philox(1, (uint64_t)i, 0).v[0] % VOCAB);
        position[i] = (int32_t)(philox(2, (uint64_t)i, 0).v[0] % 64);
        mask[i] = i % 5 == 2 ? 0 : i % 5 == 3 ? 0.5f : 1;
    }
    return run_cases(cases, sizeof cases / sizeof *cases, argc, argv);
}
