/* test_cuda_rows -- row-wise and elementwise ops of a GPU against the CPU's, at sizes that take each of
 * the kernels' plans. Every type, rows 16-byte aligned and not, outputs poisoned with NaN first, twice
 * (bitwise equal), and once more for each aliasing that device.h allows (bitwise equal). What is exact
 * is compared bit for bit: initial values, dropout's masks, sums of squares, the verdict, trust. A case
 * is a row of `cases`.
 *
 *   test_cuda_rows [OP]     only this op; `sums`: the scalars; `beyond`: rows that no table has,
 *                           scores that are NaN */
#include "ops.h"

enum { MATS = 8, TOKENS = 700, TABLE = 64, SAMPLES = 16 };

/* Inputs of ops beside their matrices, the same on CPU and GPU. */
typedef struct {
    int32_t token[TOKENS], position[TOKENS];
    float mask[TOKENS];
    int64_t sample[SAMPLES];
    Verdict go, stop;
    double trust;
    float scratch[3 * 6];
} Given;

typedef struct {
    int kind, groups, dim, inverse, nesterov, nomask, stop;
    double p, jitter, wd, momentum;
    int64_t v0, valid, seq, col0;
} Arg;

/* One matrix of a case. Small letters of `role` have the storage type, capitals F32.
 *
 *   role     i, I input; o, O output; x, X input and output; - absent
 *   spread   standard deviation of the input; 0: all ones; negative: no number is below 0 */
typedef struct { char role; int64_t rows, cols; double spread; } Spec;

typedef struct Case Case;
struct Case {
    const char *name;
    void (*run)(Device *d, Mat *m, const Case *c, const Given *g);
    Spec spec[MATS];
    Arg a;
    int alias[4][2];           /* pairs of matrices, (output, input) + 1, that may share memory */
    double loose;              /* factor on the tolerance of arithmetic; 0: 1 */
    int exact;                 /* bool: the GPU has the bits of the CPU */
};

/* ---- the ops ---- */

#define EPS 1e-3
static void norm_run(Device *d, Mat *m, const Case *c, const Given *g)
{
    (void)g;
    d->norm_fwd(d, m[0], m[1], m[2], m[3], m[4], EPS, (NormKind)c->a.kind, c->a.groups);
}

static Dropout dropout_of(const Arg *a, const Given *g)
{
    static Positions runs;
    runs = positions_one(5, a->seq);
    return (Dropout){.p = a->p, .jitter = a->jitter, .key = 0x123456789abcdef1ull, .sample = g->sample,
                     .runs = &runs, .col0 = a->col0, .row0 = 2};
}

/* Matrices: 0 y, 1 ln, 2 stats, 3 x, 4 res, 5 gain, 6 bias. */
static void add_norm_run(Device *d, Mat *m, const Case *c, const Given *g)
{
    Dropout s = dropout_of(&c->a, g);
    d->add_norm_fwd(d, m[0], m[1], m[2], m[3], m[4], &s, m[5], m[6], EPS, (NormKind)c->a.kind);
}

/* wd: standard deviation; v0, seq: first and step. */
static void normals_run(Device *d, Mat *m, const Case *c, const Given *g)
{
    (void)g;
    d->normals(d, m[0], (Mat){0}, c->a.momentum, c->a.wd, 0x123456789abcdef1ull, c->a.v0,
               c->a.seq ? c->a.seq : m[0].cols);
}

/* Matrices: 0 dx, 1 dgain, 2 dbias, 3 dres, 4 dy, 5 x, 6 stats (any numbers), 7 gain. */
static void norm_bwd_run(Device *d, Mat *m, const Case *c, const Given *g)
{
    (void)g;
    d->norm_bwd(d, m[0], m[1], m[2], m[3], m[4], m[5], m[6], m[7], (NormKind)c->a.kind, c->a.groups);
}

static void bias_run(Device *d, Mat *m, const Case *c, const Given *g)
{
    (void)c, (void)g;
    d->bias_bwd(d, m[0], m[1]);
}
static void act_run(Device *d, Mat *m, const Case *c, const Given *g)
{
    (void)g;
    d->act_fwd(d, m[0], m[1], (ActKind)c->a.kind);
}
static void act_bwd_run(Device *d, Mat *m, const Case *c, const Given *g)
{
    (void)g;
    d->act_bwd(d, m[0], m[1], m[2], (ActKind)c->a.kind);
}
static void rope_run(Device *d, Mat *m, const Case *c, const Given *g)
{
    d->rope(d, m[0], c->a.dim, m[1], g->position, c->a.inverse);
}
static void embed_run(Device *d, Mat *m, const Case *c, const Given *g)
{
    d->embed_fwd(d, m[0], g->token, g->position, m[1], c->a.v0, m[2]);
}
static void embed_bwd_run(Device *d, Mat *m, const Case *c, const Given *g)
{
    d->embed_bwd(d, m[0], c->a.v0, m[1], m[2], g->token, g->position);
}
static void dropout_run(Device *d, Mat *m, const Case *c, const Given *g)
{
    Dropout s = dropout_of(&c->a, g);
    d->dropout_fwd(d, m[0], m[1], m[2], &s);
}
static void dropout_bwd_run(Device *d, Mat *m, const Case *c, const Given *g)
{
    Dropout s = dropout_of(&c->a, g);
    d->dropout_bwd(d, m[0], m[1], &s);
}

/* Matrices: 0 loss of the whole microbatch, 1 dlogits, 2 logits, 3 stats, 4 stats of three vocabulary
 * parts. */
static const RowMap map = {2, 1, 4};
static void xent_run(Device *d, Mat *m, const Case *c, const Given *g)
{
    const Arg *a = &c->a;
    const int64_t rows = m[2].rows, cut[] = {0, m[2].cols / 4 * 3, m[2].cols - 8, m[2].cols};
    for (int i = 0; i < 3; i++) {
        int64_t n = cut[i + 1] - cut[i], valid = a->valid - cut[i];
        valid = valid < 0 ? 0 : valid < n ? valid : n;
        d->xent_stats(d, mat_rows(m[4], i * rows, rows), mat_cols(m[2], cut[i], n), g->token, map,
                      a->v0 + cut[i], valid);
    }
    d->xent_combine(d, m[3], m[4]);
    d->xent_grad(d, m[0], m[1], m[2], m[3], g->token, a->nomask ? NULL : g->mask, map, a->v0, a->valid, 0.25);
}

/* Matrices: 0 loss of the whole microbatch, 1 dlogits, 2 logits. */
static void xent_whole_run(Device *d, Mat *m, const Case *c, const Given *g)
{
    Mat stats = mat((void *)g->scratch, m[2].rows, 3, F32);
    d->xent(d, m[0], m[1], m[2], stats, g->token, c->a.nomask ? NULL : g->mask, map, c->a.valid, 0.25);
}

/* Matrices: 0 w, 1 g, 2 m, 3 v, 4 out, 5 direction. */
static Update update_of(const Mat *m, const Case *c, const Given *g, int trust)
{
    static Updated x;
    x = (Updated){.n = m[0].cols, .w = m[0].p, .g = m[1].p, .m = m[2].p, .v = m[3].p, .dir = m[5].p,
                  .out = m[4].p, .trust = trust ? &g->trust : NULL, .wd = c->a.wd};
    return (Update){.list = &x, .count = 1, .out_type = m[4].type, .verdict = c->a.stop ? &g->stop : &g->go,
                    .lr = 0.1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-5, .bias1 = 1 - pow(0.9, 3),
                    .bias2 = 1 - pow(0.95, 3), .momentum = c->a.momentum, .nesterov = c->a.nesterov};
}
static void adam_run(Device *d, Mat *m, const Case *c, const Given *g)
{
    Update u = update_of(m, c, g, 0);
    d->adam(d, &u);
}
static void sgd_run(Device *d, Mat *m, const Case *c, const Given *g)
{
    Update u = update_of(m, c, g, 0);
    d->sgd(d, &u);
}
static void lars_run(Device *d, Mat *m, const Case *c, const Given *g)
{
    Update u = update_of(m, c, g, 1);
    d->lars(d, &u);
}
static void lamb_run(Device *d, Mat *m, const Case *c, const Given *g)
{
    Update u = update_of(m, c, g, 1);
    d->lamb_direction(d, &u);
    d->lamb_apply(d, &u);
}

/* ---- the cases ---- */

/* Cases of norm_fwd with rows of g groups of n columns. Their sizes take every plan of
 * norm.cu: part of a warp, a warp, a warp with four pieces a thread, a block with two and with four
 * pieces a thread, element by element. */
#define NORM(n, g, k, b)                                                                                     \
    {"norm_fwd",                                                                                             \
     norm_run,                                                                                               \
     {{'o', 5, (g) * (n)}, {'O', 5, 2 * (g)}, {'i', 5, (g) * (n), 2}, {'i', 1, n, 1}, {b, 1, n, 1}},         \
     {.kind = k, .groups = g},                                                                               \
     {{1, 3}}}
#define ADD_NORM(n, k, b, res, drop)                                                                         \
    {                                                                                                        \
        "add_norm_fwd", add_norm_run, {{'o', 6, n},    {'o', 6, n},    {'O', 6, 2}, {'i', 6, n, 1},          \
                                       {res, 6, n, 1}, {'i', 1, n, 1}, {b, 1, n, 1}},                        \
            {.kind = k, .p = drop, .seq = 3},                                                                \
        {                                                                                                    \
            {1, 4}, { 1, 5 }                                                                                 \
        }                                                                                                    \
    }
/* Enough rows that a team has several, and a last turn of a block without rows for all its teams. */
#define NORM_BWD(rows, n, g, k, res, b)                                                                      \
    {"norm_bwd",                                                                                             \
     norm_bwd_run,                                                                                           \
     {{'o', rows, (g) * (n)},                                                                                \
      {'X', 1, n, 1},                                                                                        \
      {b, 1, n, 1},                                                                                          \
      {res, rows, (g) * (n), 1},                                                                             \
      {'i', rows, (g) * (n), 1},                                                                             \
      {'i', rows, (g) * (n), 2},                                                                             \
      {'I', rows, 2 * (g), 1},                                                                               \
      {'i', 1, n, 1}},                                                                                       \
     {.kind = k, .groups = g},                                                                               \
     {{1, 4}, {1, 5}},                                                                                       \
     .loose = 4}
#define ACT(k, wide, n)                                                                                      \
    {"act_fwd", act_run, {{'o', 7, n}, {'i', 7, (wide) * (n), 2}}, {.kind = k}},                             \
    {                                                                                                        \
        "act_bwd", act_bwd_run, {{'o', 7, (wide) * (n)}, {'i', 7, n, 1}, {'i', 7, (wide) * (n), 2}},         \
            {.kind = k},                                                                                     \
        {                                                                                                    \
            {                                                                                                \
                1, 3                                                                                         \
            }                                                                                                \
        }                                                                                                    \
    }
#define ACTS(n)                                                                                              \
    ACT(ACT_GELU, 1, n), ACT(ACT_GELU_TANH, 1, n), ACT(ACT_SWIGLU, 2, n), ACT(ACT_GEGLU, 2, n),              \
        ACT(ACT_RELU, 1, n), ACT(ACT_SQUARED_RELU, 1, n)
#define XENT(n, in, from, mask, grad)                                                                        \
    {                                                                                                        \
        "xent", xent_run, {{'O', 12, 1}, {grad, 6, n}, {'I', 6, n, 4}, {'O', 6, 3}, {'O', 18, 3}},           \
            {.v0 = from, .valid = in, .nomask = mask},                                                       \
        {                                                                                                    \
            {                                                                                                \
                2, 3                                                                                         \
            }                                                                                                \
        }                                                                                                    \
    }
#define XENT_WHOLE(n, in, mask, grad)                                                                        \
    {                                                                                                        \
        "xent", xent_whole_run, {{'O', 12, 1}, {grad, 6, n}, {'I', 6, n, 4}}, {.valid = in, .nomask = mask}, \
        {                                                                                                    \
            {                                                                                                \
                2, 3                                                                                         \
            }                                                                                                \
        }                                                                                                    \
    }
#define UPDATE(name, run, moment1, moment2, out, dir, ...)                                                   \
    {                                                                                                        \
        name, run, {{'X', 1, 2061, 1},      {'I', 1, 2061, 1}, {moment1, 1, 2061, 1},                        \
                    {moment2, 1, 2061, -1}, {out, 1, 2061},    {dir, 1, 2061}},                              \
            {__VA_ARGS__},                                                                                   \
        {                                                                                                    \
            {                                                                                                \
                6, 2                                                                                         \
            }                                                                                                \
        }                                                                                                    \
    }

static const Case cases[] = {
    NORM(64, 3, NORM_RMS, '-'),
    NORM(128, 2, NORM_LAYER, 'i'),
    NORM(200, 1, NORM_LAYER, 'i'),
    NORM(264, 1, NORM_RMS, '-'),
    NORM(776, 1, NORM_LAYER, 'i'),
    NORM(1040, 1, NORM_LAYER, 'i'),
    NORM(2056, 1, NORM_RMS, '-'),
    NORM(4128, 1, NORM_LAYER, 'i'),
    NORM(8208, 1, NORM_LAYER, '-'),
    NORM(37, 3, NORM_LAYER, 'i'),
    NORM(1, 2, NORM_RMS, '-'),
    ADD_NORM(264, NORM_LAYER, 'i', 'i', 0.25),
    ADD_NORM(776, NORM_RMS, '-', 'i', 0),
    ADD_NORM(1040, NORM_LAYER, 'i', '-', 0.5),
    ADD_NORM(4128, NORM_LAYER, 'i', 'i', 0.1),
    ADD_NORM(37, NORM_RMS, '-', 'i', 0.25),
    NORM_BWD(70, 64, 3, NORM_RMS, '-', '-'),
    NORM_BWD(20, 128, 2, NORM_LAYER, 'i', 'X'),
    NORM_BWD(70, 200, 1, NORM_LAYER, '-', 'X'),
    NORM_BWD(30, 264, 1, NORM_RMS, 'i', '-'),
    NORM_BWD(43, 776, 1, NORM_LAYER, 'i', 'X'),
    NORM_BWD(11, 1040, 1, NORM_LAYER, 'i', 'X'),
    NORM_BWD(9, 2056, 1, NORM_RMS, 'i', '-'),
    NORM_BWD(5, 4128, 1, NORM_LAYER, '-', 'X'),
    NORM_BWD(7, 8208, 1, NORM_LAYER, 'i', '-'),
    NORM_BWD(33, 37, 3, NORM_LAYER, 'i', 'X'),
    NORM_BWD(5, 1, 2, NORM_RMS, '-', '-'),
    {"bias_bwd", bias_run, {{'X', 1, 264, 1}, {'i', 130, 264, 1}}, .loose = 4},
    {"bias_bwd", bias_run, {{'X', 1, 1, 1}, {'i', 1, 1, 1}}},
    ACTS(104),
    ACTS(37),
    ACT(ACT_SWIGLU, 2, 1032),
    {"rope", rope_run, {{'x', 9, 5 * 64, 1}, {'I', TABLE, 64, 1}}, {.dim = 64}},
    {"rope", rope_run, {{'x', 9, 4 * 128, 1}, {'I', TABLE, 128, 1}}, {.dim = 128, .inverse = 1}},
    {"rope", rope_run, {{'x', 70, 3 * 80, 1}, {'I', TABLE, 32, 1}}, {.dim = 80}},
    {"rope", rope_run, {{'x', 9, 2 * 20, 1}, {'I', TABLE, 10, 1}}, {.dim = 20, .inverse = 1}},
    /* of 16 bits: half a head's turned columns are a piece, but the second head starts within one */
    {"rope", rope_run, {{'x', 9, 2 * 20, 1}, {'I', TABLE, 16, 1}}, {.dim = 20}},
    {"embed_fwd", embed_run, {{'o', 90, 72}, {'i', 50, 72, 1}, {'i', TABLE, 72, 1}}},
    {"embed_fwd", embed_run, {{'o', 90, 37}, {'i', 20, 37, 1}, {'-'}}, {.v0 = 7}},
    {"embed_bwd", embed_bwd_run, {{'X', 50, 72, 1}, {'X', TABLE, 72, 1}, {'i', TOKENS, 72, 1}}, .loose = 8},
    {"embed_bwd", embed_bwd_run, {{'X', 20, 1100, 1}, {'-'}, {'i', 40, 1100, 1}}, {.v0 = 7}},
    {"embed_bwd", embed_bwd_run, {{'-'}, {'X', TABLE, 37, 1}, {'i', TOKENS, 37, 1}}},
    {"normals", normals_run, {{'O', 150, 264}}, {.wd = 0.02}, .exact = 1},
    {"normals", normals_run, {{'o', 3, 40013}}, {.wd = 1}, .exact = 1},
    {"normals", normals_run, {{'O', 41, 35}}, {.wd = 0.5, .v0 = 1ll << 40 | 13, .seq = 71}, .exact = 1},
    {"normals", normals_run, {{'o', 300, 1}}, {.momentum = 1, .seq = 1}, .exact = 1},
    {"dropout_fwd",
     dropout_run,
     {{'o', 9, 72}, {'i', 9, 72, 0}, {'-'}},
     {.p = 0.25, .seq = 4},
     {{1, 2}},
     .exact = 1},
    {"dropout_fwd",
     dropout_run,
     {{'o', 9, 37}, {'i', 9, 37, 0}, {'-'}},
     {.p = 0.9, .seq = 4, .col0 = 6},
     {{1, 2}},
     .exact = 1},
    {"dropout_fwd",
     dropout_run,
     {{'o', 9, 72}, {'i', 9, 72, 1}, {'i', 9, 72, 1}},
     {.p = 0.5, .seq = 7},
     {{1, 2}, {1, 3}}},
    {"dropout_fwd",
     dropout_run,
     {{'o', 9, 520}, {'i', 9, 520, 1}, {'i', 9, 520, 1}},
     {.seq = 7},
     {{1, 2}, {1, 3}}},
    {"dropout_fwd",
     dropout_run,
     {{'o', 9, 72}, {'i', 9, 72, 1}, {'i', 9, 72, 1}},
     {.jitter = 0.4, .seq = 7},
     {{1, 2}, {1, 3}}},
    {"dropout_fwd",
     dropout_run,
     {{'o', 9, 37}, {'i', 9, 37, 0}, {'-'}},
     {.jitter = 0.1, .seq = 4, .col0 = 6},
     {{1, 2}}},
    {"dropout_bwd",
     dropout_bwd_run,
     {{'o', 9, 72}, {'i', 9, 72, 1}},
     {.p = 0.1, .seq = 5, .col0 = 36},
     {{1, 2}},
     .exact = 1},
    /* every thread has three tiles of a part of the vocabulary */
    XENT(12000, 11987, 0, 0, 'o'),
    XENT(56, 50, 0, 1, 'o'),
    XENT(64, 30, 10, 0, 'o'),
    XENT(64, 64, 0, 0, '-'),
    /* half of 227 KB of shared memory holds seven tiles of F32 logits; the other tiles are read again. When
     * dlogits of 16 bits overwrites logits, the last tile is written where the first of these is read */
    XENT_WHOLE(60000, 50000, 0, 'o'),
    /* too wide: two launches */
    XENT_WHOLE(120000, 119987, 0, 'o'),
    XENT_WHOLE(8192, 8192, 1, 'o'),
    XENT_WHOLE(56, 50, 0, 'o'),
    XENT_WHOLE(12000, 12000, 0, '-'),
    UPDATE("adam", adam_run, 'X', 'X', 'o', '-', .wd = 0.1),
    UPDATE("adam", adam_run, 'X', 'X', '-', '-', .wd = 0),
    UPDATE("sgd", sgd_run, '-', '-', 'o', '-', .wd = 0.1),
    UPDATE("sgd", sgd_run, 'X', '-', 'o', '-', .wd = 0.1, .momentum = 0.9, .nesterov = 1),
    UPDATE("sgd", sgd_run, 'X', '-', '-', '-', .momentum = 0.9),
    UPDATE("lamb", lamb_run, 'X', 'X', 'o', 'O', .wd = 0.1),
    UPDATE("lars", lars_run, 'X', '-', 'o', '-', .wd = 0.1, .momentum = 0.9),
    UPDATE("adam", adam_run, 'X', 'X', 'x', '-', .stop = 1),
    UPDATE("lamb", lamb_run, 'X', 'X', 'x', 'X', .stop = 1),
};

/* ---- CPU and GPU ---- */

static int is_input(char role) { return role == 'i' || role == 'I' || role == 'x' || role == 'X'; }
static int is_output(char role) { return role == 'o' || role == 'O' || role == 'x' || role == 'X'; }

/* Matrices of a case on one device. They start `offset` elements behind a 16-byte boundary. */
typedef struct { Mat m[MATS]; char *memory[MATS]; size_t bytes[MATS]; } Set;

static void fill(const Case *c, int k, Dtype t, char *p, size_t bytes, int64_t offset, int64_t ld)
{
    const Spec *s = &c->spec[k];
    memset(p, 0xff, bytes);                            /* NaN in every type */
    for (int64_t r = 0; r < s->rows && is_input(s->role); r++)
        for (int64_t i = 0; i < s->cols; i++) {
            double x = normal((uint64_t)(c - cases) * MATS + (uint64_t)k, r * s->cols + i) * fabs(s->spread);
            put(p, offset + r * ld + i, t, s->spread == 0 ? 1 : s->spread < 0 ? fabs(x) : x);
        }
}

static void set_open(Set *s, Device *d, const Case *c, Dtype storage, int64_t gap, int64_t offset)
{
    *s = (Set){0};
    for (int k = 0; k < MATS; k++) {
        const Spec *p = &c->spec[k];
        if (!p->role || p->role == '-') {
            s->m[k].type = storage;
            continue;
        }
        Dtype t = p->role >= 'a' ? storage : F32;
        int64_t ld = p->rows == 1 ? p->cols : p->cols + gap;
        size_t bytes = (size_t)(offset + p->rows * ld) * dtype_size(t);
        char *host = xcalloc(1, bytes);
        fill(c, k, t, host, bytes, offset, ld);
        s->bytes[k] = bytes;
        s->memory[k] = d->take(d, bytes);
        d->put(d, s->memory[k], host, bytes);
        s->m[k] = (Mat){s->memory[k] + (size_t)offset * dtype_size(t), p->rows, p->cols, ld, t};
        free(host);
    }
}

static void set_close(Set *s, Device *d)
{
    for (int k = 0; k < MATS; k++)
        if (s->memory[k])
            d->give(d, s->memory[k], s->bytes[k]);
}

static char *fetched(Device *d, const void *p, size_t bytes)
{
    char *host = xcalloc(1, bytes);
    d->get(d, host, p, bytes);
    return host;
}

static double tolerance(Dtype t, double x, double largest)
{
    /* a unit of the last place: CPU and GPU may round to different neighbours */
    double unit = t == BF16 ? 0x1p-7 * fabs(x) : t == F16 ? fmax(0x1p-10 * fabs(x), 0x1p-24) : 0;
    return unit + 3e-6 * largest;
}

static void compare(const Case *c, const Set *a, int k, const char *cpu, const char *gpu, const char *what)
{
    Mat m = a->m[k];
    int64_t offset = ((char *)m.p - a->memory[k]) / (int64_t)dtype_size(m.type);
    int64_t n = (int64_t)(a->bytes[k] / dtype_size(m.type));
    double worst = 0, largest = 0;
    int wild = 0, stray = 0;
    for (int64_t i = 0; i < n; i++) {
        double z = get(cpu, i, m.type);
        largest = isfinite(z) ? fmax(largest, fabs(z)) : largest;
    }
    for (int64_t i = 0; i < n; i++) {
        double y = get(gpu, i, m.type), z = get(cpu, i, m.type);
        int inside = i >= offset && (i - offset) % m.ld < m.cols;
        if (!inside)
            stray += !isnan(y);
        else if (!isfinite(z) || !isfinite(y))
            wild += !(isnan(y) && isnan(z)) && y != z;
        else if (y != z)
            worst = fmax(worst, fabs(y - z) / tolerance(m.type, z, largest * (c->loose ? c->loose : 1)));
    }
    CHECK(worst <= 1 && !wild && !stray,
          "%s case %d %s tensor %d %s: %.3g times the tolerance (largest %g), %d not finite, %d beyond the "
          "row",
          c->name, (int)(c - cases), what, k, dtype_name(m.type), worst, largest, wild, stray);
    if (c->exact)
        CHECK(!memcmp(cpu, gpu, a->bytes[k]), "%s case %d %s tensor %d: not the CPU's bits", c->name,
              (int)(c - cases), what, k);
}

/* Runs the case once more for each pair that may share memory: the output lies in the input's memory,
 * and no bit changes. Both have one type, but for xent: there each output row starts where an input row
 * starts. plain: bytes of the outputs in memory of their own. */
static void aliased(const Case *c, Device *d, const Given *g, char *const *plain, Dtype storage, int64_t gap,
                    int64_t offset)
{
    for (int i = 0; i < 4 && c->alias[i][0] && !c->a.stop; i++) {
        int o = c->alias[i][0] - 1, in = c->alias[i][1] - 1, differ = 0;
        Set s;
        set_open(&s, d, c, storage, gap, offset);
        Mat own = s.m[o], input = s.m[in];
        size_t so = dtype_size(own.type), si = dtype_size(input.type);
        if (own.p && input.p && (own.type == input.type || !strcmp(c->name, "xent"))) {
            s.m[o].p = input.p;
            s.m[o].ld = input.ld * (int64_t)(si / so);
            c->run(d, s.m, c, g);
            char *bytes = fetched(d, s.memory[in], s.bytes[in]);
            for (int64_t r = 0; r < own.rows; r++)
                differ += memcmp(bytes + (offset * (int64_t)si + r * s.m[o].ld * (int64_t)so),
                                 plain[o] + (offset + r * own.ld) * (int64_t)so, (size_t)own.cols * so) != 0;
            CHECK(!differ, "%s case %d %s: %d rows differ when tensor %d lies on %d", c->name,
                  (int)(c - cases), dtype_name(storage), differ, o, in);
            free(bytes);
        }
        set_close(&s, d);
    }
}

static void run_case(const Case *c, Device *gpu, Device *cpu, const Given *on_gpu, const Given *on_cpu,
                     Dtype storage, int64_t gap, int64_t offset)
{
    Set a, b, again;
    char what[64], *plain[MATS] = {0};
    snprintf(what, sizeof what, "gap %d offset %d", (int)gap, (int)offset);
    set_open(&a, cpu, c, storage, gap, offset);
    set_open(&b, gpu, c, storage, gap, offset);
    set_open(&again, gpu, c, storage, gap, offset);
    c->run(cpu, a.m, c, on_cpu);
    c->run(gpu, b.m, c, on_gpu);
    c->run(gpu, again.m, c, on_gpu);
    for (int k = 0; k < MATS; k++) {
        if (!a.m[k].p || !is_output(c->spec[k].role))
            continue;
        char *second = fetched(gpu, again.memory[k], again.bytes[k]);
        plain[k] = fetched(gpu, b.memory[k], b.bytes[k]);
        compare(c, &a, k, a.memory[k], plain[k], what);
        CHECK(!memcmp(plain[k], second, b.bytes[k]), "%s case %d %s tensor %d: other bits the second time",
              c->name, (int)(c - cases), what, k);
        free(second);
    }
    aliased(c, gpu, on_gpu, plain, storage, gap, offset);
    for (int k = 0; k < MATS; k++)
        free(plain[k]);
    set_close(&a, cpu);
    set_close(&b, gpu);
    set_close(&again, gpu);
}

/* ---- scalars ---- */

enum { SUMS = 6 };

/* Runs squares, carry, sum, verdict and trust over n numbers x in memory of `type`. exact, v, trust,
 * sum: results. */
static void run_sums(Device *d, const float *x, int64_t n, Dtype type, int64_t offset, Exact *exact,
                     Verdict *v, double *trust, double *sum)
{
    size_t size = dtype_size(type), bytes = (size_t)(n + offset) * size;
    char *host = xcalloc(1, bytes), *memory = d->take(d, bytes);
    for (int64_t i = 0; i < n; i++)
        put(host, offset + i, type, x[i]);
    d->put(d, memory, host, bytes);
    Exact *e = d->take(d, SUMS * sizeof *e);
    double *scalars = d->take(d, 8 * sizeof *scalars), start[2] = {0.5, 3};
    Verdict *w = d->take(d, sizeof *w), before = {.go = 1};
    void *at = memory + (size_t)offset * size;
    d->put(d, scalars, start, sizeof start);
    d->put(d, w, &before, sizeof before);
    /* one launch adds to three sums, to one of them twice; a second launch adds to another sum */
    Squares list[] = {{&e[0], at, n}, {&e[1], at, n / 2}, {&e[0], at, n}, {&e[2], at, n < 3 ? n : 3}};
    d->squares(d, list, 4, type);
    d->squares(d, &(Squares){&e[3], at, n - 1}, 1, type);
    d->carry(d, e, SUMS - 1);
    d->sum(d, scalars, mat(at, n / 3, 3, type));
    d->verdict(d, w, scalars, &e[0], 7, 1.5, 0.25, 1, (Limits){INFINITY, INFINITY, 1});
    d->trust(d, scalars + 2, e, 3, 0, 0, 0, w);
    d->trust(d, scalars + 5, e, 3, 1, 0.001, 0.1, w);
    d->get(d, exact, e, SUMS * sizeof *e);
    d->get(d, v, w, sizeof *v);
    d->get(d, trust, scalars + 2, 6 * sizeof *trust);
    d->get(d, sum, scalars, sizeof *sum);
    d->give(d, memory, bytes);
    d->give(d, e, SUMS * sizeof *e);
    d->give(d, scalars, 8 * sizeof *scalars);
    d->give(d, w, sizeof *w);
    free(host);
}

static int same_bits(double a, double b) { return !memcmp(&a, &b, sizeof a) || (isnan(a) && isnan(b)); }

/* Results of run_sums have the same bits on CPU and GPU, but for the sum's last ones.
 *
 *   n       in   numbers
 *   wide    in   bool: the numbers are spread over 180 powers of two
 *   bad     in   numbers that are infinite or NaN
 *   offset  in   elements from a 16-byte boundary to the first */
static void sums_case(Device *gpu, Device *cpu, int64_t n, int wide, int bad, Dtype type, int64_t offset)
{
    float *x = xcalloc((size_t)n, sizeof *x);
    Exact a[SUMS], b[SUMS];
    Verdict v, w;
    double ta[6], tb[6], sa, sb, all = 0;
    for (int64_t i = 0; i < n; i++) {
        x[i] = (float)ldexp(normal(77, i), wide ? (int)(philox(3, (uint64_t)i, 0).v[0] % 180) - 120 : 0);
        all += fabs(x[i]);
    }
    for (int i = 0; i < bad; i++)
        x[n / 2 + i * 2000 % (n / 2)] = i % 2 ? NAN : INFINITY;
    run_sums(cpu, x, n, type, offset, a, &v, ta, &sa);
    run_sums(gpu, x, n, type, offset, b, &w, tb, &sb);
    CHECK(!memcmp(a, b, sizeof a), "squares of %d %s at %d: other digits", (int)n, dtype_name(type),
          (int)offset);
    CHECK(same_bits(v.norm, w.norm) && same_bits(v.multiplier, w.multiplier) && v.bad == w.bad &&
              v.go == w.go && same_bits(v.gscale, w.gscale) && same_bits(v.tokens, w.tokens),
          "verdict of %d: norm %.17g %.17g, multiplier %.17g %.17g, bad %d %d, go %d %d",
          (int)n, v.norm, w.norm, v.multiplier, w.multiplier, (int)v.bad, (int)w.bad, (int)v.go, (int)w.go);
    for (int i = 0; i < 6; i++)
        CHECK(same_bits(ta[i], tb[i]), "trust %d of %d: %.17g, %.17g", i, (int)n, ta[i], tb[i]);
    CHECK(bad || fabs(sa - sb) <= 1e-14 * all, "sum of %d: %.17g, %.17g", (int)n, sa, sb);
    CHECK(bad || type != F32 || sa != 0.5 || n < 3, "nothing was summed");
    free(x);
}

/* Rounding of exact sums whose digits no addition produces: ties that a far digit breaks or does not,
 * pending carries, subnormals, sums above the largest double. trust divides by the norm of a sum of 1:
 * its result is the root of the other sum. */
enum { ROUNDED = 240 };
static void round_run(Device *d, const Exact *host, double *out)
{
    Exact *e = d->take(d, 2 * ROUNDED * sizeof *e);
    double *trust = d->take(d, ROUNDED * sizeof *trust);
    Verdict *v = d->take(d, sizeof *v);
    d->put(d, e, host, 2 * ROUNDED * sizeof *e);
    d->trust(d, trust, e, ROUNDED, 0, 0, 0, v);
    d->get(d, out, trust, ROUNDED * sizeof *trust);
    d->give(d, e, 2 * ROUNDED * sizeof *e);
    d->give(d, trust, ROUNDED * sizeof *trust);
    d->give(d, v, sizeof *v);
}

static void round_case(Device *gpu, Device *cpu)
{
    Exact *e = xcalloc(2 * ROUNDED, sizeof *e);
    double a[ROUNDED], b[ROUNDED], one = 1;
    for (int i = 0; i < ROUNDED; i++) {
        Philox r = philox(5, (uint64_t)i, 0);
        int top = i < 8    ? i % 3
                  : i < 16 ? EXACT_DIGITS - 1 - i % 4
                           : 3 + (int)(r.v[0] % 60),
            bit = (int)(r.v[1] % 20);
        /* the digits below `top` hold the rest of 53 bits and half a unit of the last place */
        e[2 * i].digit[top] = (int64_t)1 << (bit + 20) % 32 | (r.v[2] & 0xfffff);
        if (top > 1) {
            int length = 64 - __builtin_clzll((uint64_t)e[2 * i].digit[top]), low = 53 - length;
            e[2 * i].digit[top - 1] = low >= 32 ? r.v[3]
                                    : (int64_t)(r.v[3] >> (32 - low)) << (32 - low) | 1ll << (31 - low);
            e[2 * i].digit[top - 2] = low > 32
                                          ? (int64_t)(r.v[1] >> (64 - low)) << (64 - low) | 1ll << (63 - low)
                                      : low == 32 ? 1ll << 31
                                                  : 0;
        }
        if (top > 4)
            e[2 * i].digit[top - 4] = i % 3 == 1 ? 1 : i % 3 == 2 ? (int64_t)7 << 33 : 0;
        exact_add(&e[2 * i + 1], &one, 1);
    }
    round_run(cpu, e, a);
    round_run(gpu, e, b);
    for (int i = 0; i < ROUNDED; i++)
        CHECK(same_bits(a[i], b[i]), "rounding %d: %.17g, %.17g", i, a[i], b[i]);
    free(e);
}

/* ---- odd logits ---- */

enum { ODD = 5 };

/* The rows of odd_logits: logit c of row r of n. */
static double odd_logit(int r, int64_t c, int64_t n)
{
    switch (r) {
    case 0:  return c % 20 == 7 ? NAN : 1;
    case 1:  return 1;
    case 2:  return c == n - 3 ? -INFINITY : 3e38f;
    case 3:  return c == n - 3 ? 0 : -INFINITY;
    default: return c == 7 ? NAN : 1;
    }
}

/* Masked rows, 0 and 2, have zeros for loss and gradient whatever their logits and labels are. Row 1, whose
 * logits are equal, has the loss ln n. Row 3, all of whose logits but the label's are -infinity, has zeros.
 * Row 4 has a NaN among its logits, and the loss NaN. Nothing is written behind a row.
 *   n, ld  in  columns and leading dimension of logits and gradients
 *   whole  in  bool: xent, else xent_stats and xent_grad */
static void odd_logits(Device *d, int64_t n, int64_t ld, Dtype type, int whole)
{
    const size_t bytes = (size_t)(ODD * ld) * dtype_size(type);
    const int32_t label[ODD] = {-100, 5, (int32_t)n - 3, (int32_t)n - 3, 3};
    const RowMap rows = {ODD, 0, 0};
    struct { float loss[ODD], stats[3 * ODD], mask[ODD]; int32_t label[ODD]; } host = {{0}, {0},
        {0, 1, 0, 1, 1}, {0}}, *at = d->take(d, sizeof *at);
    char *x = xcalloc(1, bytes), *logits = d->take(d, bytes), *gradient = d->take(d, bytes);
    double wrong = 0, beyond = 0;
    for (int64_t i = 0; i < ODD * ld; i++)
        put(x, i, type, i % ld < n ? odd_logit((int)(i / ld), i % ld, n) : 2);
    d->put(d, logits, x, bytes);
    memset(x, 0xff, bytes);
    d->put(d, gradient, x, bytes);
    memcpy(host.label, label, sizeof label);
    d->put(d, at, &host, sizeof host);
    Mat xm = {logits, ODD, n, ld, type}, dm = {gradient, ODD, n, ld, type}, sm = mat(at->stats, ODD, 3, F32);
    Mat lm = mat(at->loss, ODD, 1, F32);
    if (whole) {
        d->xent(d, lm, dm, xm, sm, at->label, at->mask, rows, n, 1);
    } else {
        d->xent_stats(d, sm, xm, at->label, rows, 0, n);
        d->xent_grad(d, lm, dm, xm, sm, at->label, at->mask, rows, 0, n, 1);
    }
    d->get(d, &host, at, sizeof host);
    d->get(d, x, gradient, bytes);
    for (int64_t i = 0; i < ODD * ld; i++) {
        int r = (int)(i / ld);
        beyond += i % ld >= n && !isnan(get(x, i, type));
        wrong += i % ld < n && (r == 0 || r == 2 || r == 3) && get(x, i, type) != 0;
    }
    const float *l = host.loss;
    CHECK(l[0] == 0 && fabs(l[1] - log((double)n)) < 1e-5 && l[2] == 0 && l[3] == 0 && isnan(l[4]),
          "odd logits of %d %s, whole %d: losses %g %g %g %g %g", (int)n, dtype_name(type), whole, l[0], l[1],
          l[2], l[3], l[4]);
    CHECK(wrong == 0 && beyond == 0, "odd logits of %d %s, whole %d: %g gradients are not 0, %g beyond a row",
          (int)n, dtype_name(type), whole, wrong, beyond);
    d->give(d, logits, bytes), d->give(d, gradient, bytes), d->give(d, at, sizeof *at);
    free(x);
}

/* ---- what no table has, and scores that are no numbers ---- */

/* Rows 0, 2 and 3 of four name a row before the first one of a table, or the one behind its last: they are
 * NaN. Row 1, which names the last one, is a number. All memory around the table is 1. */
static void beyond_tables(Device *d)
{
    enum { N = 16, ROWS = 4, ALL = 3 * ROWS };
    static const int32_t away[ROWS] = {-2, ROWS - 1, ROWS, -1};
    const size_t bytes = ALL * N * sizeof(float);
    float host[ALL * N];
    char *memory = d->take(d, bytes), *y = d->take(d, bytes);
    int32_t *index = d->take(d, sizeof away);
    Mat table = mat_rows(mat(memory, ALL, N, F32), ROWS, ROWS), ym = mat(y, ROWS, N, F32);
    d->put(d, index, away, sizeof away);
    for (int rope = 0; rope < 2; rope++) {
        int wrong = 0;
        for (int i = 0; i < ALL * N; i++)
            host[i] = 1;
        d->put(d, memory, host, bytes);
        d->put(d, y, host, bytes);
        if (rope)
            d->rope(d, ym, N, table, index, 0);
        else
            d->embed_fwd(d, ym, index, index, table, 0, table);
        d->get(d, host, y, bytes);
        for (int i = 0; i < ROWS * N; i++)
            wrong += !isnan(host[i]) != (i / N == 1);
        CHECK(!wrong, "rope %d: %d elements of rows that the table does not have are numbers, or others NaN",
              rope, wrong);
    }
    d->give(d, memory, bytes), d->give(d, y, bytes), d->give(d, index, sizeof away);
}

/* Logits that are NaN are chosen last, and every choice is an expert: the run then ends with its own line,
 * not with a memory fault. */
static void nan_logits(Device *d, int groups)
{
    enum { ROWS = 3, E = 8, K = 4 };
    struct {
        float logits[ROWS * E], scores[ROWS * E], weight[ROWS * K];
        int32_t choice[ROWS * K];
    } host, *at = d->take(d, sizeof host);
    int wrong = 0;
    memset(&host, 0, sizeof host);
    for (int i = 0; i < ROWS * E; i++)
        host.logits[i] = i / E == 0 || (i / E == 1 && i % E == 2) ? NAN : (float)(i % E);
    d->put(d, at, &host, sizeof host);
    const Routing r = {.topk = K, .scale = 1, .groups = groups, .group_topk = groups ? 2 : 0};
    d->route_fwd(d, at->choice, mat(at->weight, ROWS, K, F32), mat(at->scores, ROWS, E, F32),
                 mat(at->logits, ROWS, E, F32), (Mat){0}, &r);
    d->get(d, &host, at, sizeof host);
    for (int i = 0; i < ROWS; i++) {
        unsigned seen = 0;
        for (int k = 0; k < K; k++) {
            int32_t e = host.choice[i * K + k];
            wrong += e < 0 || e >= E || seen >> e & 1;
            seen |= e >= 0 && e < E ? 1u << e : 0;
        }
        wrong += i && seen != 0xf0;
    }
    CHECK(!wrong, "%d groups: %d of the choices are no experts, chosen twice, or NaN", groups, wrong);
    d->give(d, at, sizeof host);
}

/* A sigmoid that underflows takes no part in the entropy of a router's scores, which is 0 where one expert
 * has all of them. */
static void no_entropy(Device *d)
{
    enum { E = 40 };
    struct { float logits[E], stats[3]; } host, *at = d->take(d, sizeof host);
    for (int i = 0; i < E; i++)
        host.logits[i] = i == 33 ? 0 : -200;
    d->put(d, at, &host, sizeof host);
    d->route_stats(d, mat(at->stats, 3, 1, F32), mat(at->logits, 1, E, F32), (Mat){0},
                   &(Routing){.topk = 1, .sigmoid = 1, .scale = 1});
    d->get(d, &host, at, sizeof host);
    CHECK(fabs(host.stats[2]) < 1e-6, "entropy %g of one expert's scores", host.stats[2]);
    d->give(d, at, sizeof host);
}

/* ---- main ---- */

static void given(Given *g)
{
    for (int i = 0; i < TOKENS; i++) {
        /* a third of the tokens are equal: their rows are summed in more than one segment */
        g->token[i] = i % 3 == 1 ? 11 : (int32_t)(philox(1, (uint64_t)i, 0).v[0] % 50);
        g->position[i] = i % 4 == 3 ? 5 : (int32_t)(philox(2, (uint64_t)i, 0).v[0] % TABLE);
        g->mask[i] = i % 5 == 2 ? 0 : i % 5 == 3 ? 0.5f : 1;
    }
    for (int i = 0; i < SAMPLES; i++)
        g->sample[i] = 12345678901 + i * 7;
    g->go = (Verdict){.multiplier = 0.7, .go = 1};
    g->stop = (Verdict){.multiplier = 0.7};
    g->trust = 1.7;
}

int main(int argc, char **argv)
{
    Device gpu, cpu;
    const char *only = argc > 1 ? argv[1] : NULL;
    cuda_open(&gpu, F32, 0);
    cpu_open(&cpu, F32, test_isa(), 1);
    Given *on_cpu = xcalloc(1, sizeof *on_cpu), *on_gpu = gpu.take(&gpu, sizeof *on_gpu);
    given(on_cpu);
    gpu.put(&gpu, on_gpu, on_cpu, sizeof *on_cpu);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (Dtype t = F32; t <= F16 && (!only || !strcmp(only, cases[c].name)); t++) {
            run_case(&cases[c], &gpu, &cpu, on_gpu, on_cpu, t, 8, 0);
            run_case(&cases[c], &gpu, &cpu, on_gpu, on_cpu, t, 5, 1);
        }
    for (Dtype t = F32; t <= F16 && (!only || !strcmp(only, "sums")); t++)
        for (int64_t offset = 0; offset < 2; offset++) {
            sums_case(&gpu, &cpu, 133197, t != F16, 0, t, offset);
            sums_case(&gpu, &cpu, 1024, 0, 0, t, offset);
            sums_case(&gpu, &cpu, 5, 0, 0, t, offset);
            sums_case(&gpu, &cpu, 9001, t != F16, 3, t, offset);
        }
    if (!only || !strcmp(only, "sums"))
        round_case(&gpu, &cpu);
    for (int i = 0; i < 12 && (!only || !strcmp(only, "xent")); i++)
        odd_logits(&gpu, i % 3 ? 45 : 5000, i % 3 ? 47 + i % 3 : 5000, i / 3 % 2 ? BF16 : F32, i / 6);
    if (!only || !strcmp(only, "beyond"))
        beyond_tables(&gpu), nan_logits(&gpu, 0), nan_logits(&gpu, 4), no_entropy(&gpu), no_entropy(&cpu);
    gpu.give(&gpu, on_gpu, sizeof *on_gpu);
    free(on_cpu);
    cpu_close(&cpu);
    cuda_close(&gpu);
    return test_end();
}
