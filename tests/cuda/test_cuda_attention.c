/* test_cuda_attention -- attention on a GPU, or on its emulation, against the CPU's in F32 from the same
 * numbers, rounded to the storage type. Outputs are poisoned first, columns beside them must keep the
 * poison, and a second run must give the same bits, except where dq may be added in any order. Shapes are
 * small, because an emulated warp is slow; each reaches another corner of the tiles. Keys and queries that
 * are far from every pair of the mask are NaN: a tile that the mask empties is not computed.
 *
 *   test_cuda_attention [CASE]         our own kernels
 *   test_cuda_attention cudnn [CASE]   cuDNN computes the calls that it can
 *
 * Calls of cuDNN have other last bits of lse and do not write delta, which the test checks. For the
 * emulated cuDNN (EMULATION_CUDNN) the test knows which calls these are; for the real library the last
 * line of the output says how many. */
#include "attention.h"
#include "context.h"
#include "ops.h"
#include "products.h"

typedef struct {
    Dtype type;
    int heads, kv, dim;
    int64_t batch, seq_q, seq_k, pos0;
    int64_t window;
    /* documents. 0: none; 1: in order; 2: some start behind their query; 3: the first third sees nothing */
    int docs;
    double dropout;
    int odd;                   /* bool: rows are not aligned to 16 bytes */
    /* ranks of context parallelism over seq_q positions. 0: one run each, keys from 0 on; SCATTERED: three
     * runs each of PIECED positions */
    int cp;
    int q0, qn, k0, kn;        /* ranks that the queries are from, and the keys */
    int real;                  /* bits: dq is real; dk and dv are; the gradient is added to dq */
} Case;
enum { SCATTERED = -1, PIECED = 400, TILE = 128 };
enum { REAL_Q = 1, REAL_KV = 2, ADD = 4 };

enum { Q, K, V, DOUT, O, LSE, DELTA, DQ, DK, DV, MATS };
static const char *const names[MATS] = {"q", "k", "v", "dout", "o", "lse", "delta", "dq", "dk", "dv"};

/* A matrix on the host: in F32, and in its storage type with columns of poison behind its own. */
typedef struct { Mat real, stored; } Pair;
typedef struct { Attention s; Pair m[MATS]; int32_t *doc; int64_t *sample; } Call;

static uint64_t stream;

/* Position and row of the r-th position of sample b, counted through the runs. */
static const PositionRun *run_of(const Positions *p, int64_t *r)
{
    const PositionRun *run = p->run;
    while (*r >= run->n)
        *r -= run++->n;
    return run;
}
static int64_t nth(const Positions *p, int64_t r) { return run_of(p, &r)->start + r; }
static int64_t row_of(const Positions *p, int64_t b, int64_t r)
{
    return b * p->stride + run_of(p, &r)->row + r;
}

static Mat matrix(int64_t rows, int64_t cols, int64_t ld, Dtype t)
{
    size_t bytes = (size_t)(rows * ld) * dtype_size(t);
    Mat m = {memset(xcalloc(bytes + 1, 1), 0xff, bytes), rows, cols, ld, t};
    return m;
}

/* n of PIECED positions, in three runs whose rows are in the other order. */
static Positions scattered(int64_t n, int64_t first)
{
    Positions p = {.stride = n, .count = 3};
    for (int i = 0; i < 3; i++) {
        int64_t at = n * i / 3, end = n * (i + 1) / 3;
        p.run[i] = (PositionRun){(int32_t)(first + PIECED * i / 3), (int32_t)(end - at), (int32_t)(n - end)};
    }
    return p;
}

static Positions positions_of(const Case *c, int keys)
{
    int64_t n = keys ? c->seq_k : c->seq_q;
    if (c->cp == SCATTERED)
        return scattered(n, keys ? 11 : 0);
    if (c->cp)
        return context_positions(c->seq_q, c->batch, c->cp, keys ? c->k0 : c->q0, keys ? c->kn : c->qn);
    return positions_one(keys ? 0 : c->pos0, n);
}

/* Whether the query at position i of sample b sees the key at position j. */
static int sees(const Attention *s, int64_t b, int64_t i, int64_t j)
{
    int64_t start = s->doc_start ? s->doc_start[b * s->seq + i] : 0;
    return j >= start && j <= i && (!s->window || j > i - s->window);
}
/* Makes the rows of m NaN that are more than a tile away from every row that has a pair.
 *   keys  in  bool: m has keys, the others are queries; else the other way */
static void poison(const Call *x, int i, int keys)
{
    const Attention *s = &x->s;
    const Positions *of = keys ? &s->k : &s->q, *other = keys ? &s->q : &s->k;
    char *near = xcalloc((size_t)(s->seq + 1 + 2 * TILE), 1);
    for (int64_t b = 0; b < s->batch; b++) {
        memset(near, 0, (size_t)(s->seq + 1 + 2 * TILE));
        for (int64_t r = 0; r < positions_rows(of) * positions_rows(other); r++) {
            int64_t at = nth(of, r / positions_rows(other)), to = nth(other, r % positions_rows(other));
            if (keys ? sees(s, b, to, at) : sees(s, b, at, to))
                near[TILE + at] = 1;
        }
        for (int64_t r = 0; r < positions_rows(of); r++) {
            int64_t at = nth(of, r), row = row_of(of, b, r);
            Mat m = x->m[i].stored;
            if (!memchr(near + at, 1, 2 * TILE + 1))
                for (int64_t c = 0; c < m.cols; c++)
                    put(x->m[i].real.p, row * m.cols + c, F32, NAN), put(m.p, row * m.ld + c, m.type, NAN);
        }
    }
    free(near);
}

static Call call_open(const Case *c)
{
    Positions q = positions_of(c, 0), keys = positions_of(c, 1);
    int64_t n = c->batch * positions_rows(&q), m = c->batch * positions_rows(&keys);
    int64_t a = (int64_t)c->heads * c->dim, k = (int64_t)c->kv * c->dim;
    int64_t P = c->cp == SCATTERED ? PIECED : c->pos0 + c->seq_q;
    if (P < c->seq_k)
        P = c->seq_k;
    Call x = {.s = {.batch = c->batch, .seq = P, .q = q, .k = keys, .heads = c->heads,
                    .kv_heads = c->kv, .dim = c->dim, .head0 = 3, .window = c->window,
                    .scale = 1 / sqrt(c->dim), .dropout = c->dropout, .key = 0x123456789abcdef0,
                    .add = !!(c->real & ADD)}};
    int64_t rows[MATS] = {n, m, m, n, n, n, n, n, m, m};
    int64_t cols[MATS] = {a, k, k, a, a, c->heads, c->heads, a, k, k};
    for (int i = 0; i < MATS; i++) {
        int real = i == LSE || i == DELTA || (i == DQ && c->real & REAL_Q) || (i > DQ && c->real & REAL_KV);
        Dtype t = real ? F32 : c->type;
        x.m[i].real = matrix(rows[i], cols[i], cols[i], F32);
        x.m[i].stored = matrix(rows[i], cols[i], cols[i] + (c->odd || i == LSE || i == DELTA ? 3 : 8), t);
        stream++;
        for (int64_t r = 0; (i <= DOUT || (i == DQ && c->real & ADD)) && r < rows[i]; r++)
            for (int64_t j = 0; j < cols[i]; j++) {
                double v = rounded(normal(stream, r * cols[i] + j) * (i < V ? 1.5 : 1), t);
                put(x.m[i].real.p, r * cols[i] + j, F32, v);
                put(x.m[i].stored.p, r * x.m[i].stored.ld + j, t, v);
            }
    }
    x.sample = xcalloc((size_t)c->batch, sizeof *x.sample);
    x.doc = xcalloc((size_t)(c->batch * P) + 1, sizeof *x.doc);
    for (int64_t b = 0; b < c->batch; b++) {
        x.sample[b] = 100000 + 7 * b;
        for (int64_t i = 0, start = 0; i < P - c->pos0; i++) {
            if (fabs(normal(99, b * 1000 + i)) > 2)
                start = c->pos0 + i;
            int64_t of = c->docs == 2 && i % 5 == 0 ? c->pos0 + i + 1 : start;
            x.doc[b * P + c->pos0 + i] = (int32_t)(c->docs == 3 ? (3 * i < P ? P : 0) : of);
        }
    }
    x.s.doc_start = c->docs ? x.doc : NULL;
    x.s.sample = x.sample;
    poison(&x, Q, 0), poison(&x, K, 1), poison(&x, V, 1);
    return x;
}

static void call_close(Call *x)
{
    for (int i = 0; i < MATS; i++)
        free(x->m[i].real.p), free(x->m[i].stored.p);
    free(x->sample);
    free(x->doc);
}

static void *to_device(Device *d, const void *p, size_t bytes)
{
    void *to = d->take(d, bytes);
    d->put(d, to, p, bytes);
    return to;
}

static void fwd(Device *d, const Mat m[MATS], const Attention *s)
{
    d->attention_fwd(d, m[O], m[LSE], m[Q], m[K], m[V], s);
}
static void bwd(Device *d, const Mat m[MATS], const Attention *s)
{
    d->attention_bwd(d, m[DQ], m[DK], m[DV], m[DOUT], m[O], m[LSE], m[DELTA], m[Q], m[K], m[V], s);
}

/* Runs another layer's forward, as it happens between a layer's forward and backward. Its output goes to
 * dq, which the backward then overwrites, its lse to new memory. */
static void other_layer(Device *d, const Mat m[MATS], const Attention *s)
{
    size_t bytes = (size_t)(m[LSE].rows * m[LSE].ld) * sizeof(float);
    Mat other[MATS];
    memcpy(other, m, sizeof other);
    other[Q] = m[DOUT];
    other[O] = m[DQ];
    other[LSE].p = d->take(d, bytes);
    fwd(d, other, s);
    d->sync(d);
    d->give(d, other[LSE].p, bytes);
}

/* The log-sum-exps of more keys than those of the call: the backward of a piece gets such ones. */
static void more_keys(const Case *c, void *lse, Mat m)
{
    for (int64_t i = 0; c->cp && i < m.rows; i++)
        for (int64_t j = 0; j < m.cols; j++) {
            double x = get(lse, i * m.ld + j, F32);
            put(lse, i * m.ld + j, F32, isfinite(x) ? x + 0.25 : 1);
        }
}

/* Runs x on the device. The matrices of x are copied there; out[i] gets the bytes of matrix i after the
 * run. */
static void run_device(Device *d, const Case *c, const Call *x, int back, void *out[MATS])
{
    Mat m[MATS];
    Attention s = x->s;
    size_t docs = (size_t)(c->batch * x->s.seq) * sizeof *x->doc,
           samples = (size_t)c->batch * sizeof *x->sample;
    int32_t *doc = to_device(d, x->doc, docs);
    int64_t *sample = to_device(d, x->sample, samples);
    s.doc_start = c->docs ? doc : NULL;
    s.sample = sample;
    for (int i = 0; i < MATS; i++) {
        m[i] = x->m[i].stored;
        m[i].p = to_device(d, m[i].p, (size_t)(m[i].rows * m[i].ld) * dtype_size(m[i].type));
    }
    fwd(d, m, &s);
    if (back) {
        size_t bytes = (size_t)(m[LSE].rows * m[LSE].ld) * sizeof(float);
        void *lse = xcalloc(bytes, 1);
        d->get(d, lse, m[LSE].p, bytes);
        more_keys(c, lse, m[LSE]);
        d->put(d, m[LSE].p, lse, bytes);
        free(lse);
        if (!c->real)
            other_layer(d, m, &s);
        bwd(d, m, &s);
    }
    for (int i = 0; i < MATS; i++) {
        size_t bytes = (size_t)(m[i].rows * m[i].ld) * dtype_size(m[i].type);
        out[i] = xcalloc(bytes + 1, 1);
        d->get(d, out[i], m[i].p, bytes);
        d->give(d, m[i].p, bytes);
    }
    d->give(d, doc, docs);
    d->give(d, sample, samples);
}

/* Largest difference within a row, divided by the row's largest value; by a tenth of the matrix's
 * largest value or of 0.3, if that is more. 0.3 is the size of the summed terms, for sums that cancel.
 * Each row has its own divisor: large values of one row do not hide an error in another. */
static double differ(const void *got, Mat as, Mat want)
{
    double worst = 0, top = 0.3;
    for (int64_t i = 0; i < want.rows * want.cols; i++)
        if (isfinite(get(want.p, i, F32)))
            top = fmax(top, fabs(get(want.p, i, F32)));
    for (int64_t r = 0; r < want.rows; r++) {
        double size = top / 10, most = 0;
        for (int64_t c = 0; c < want.cols; c++) {
            double x = get(got, r * as.ld + c, as.type), y = get(want.p, r * want.ld + c, F32);
            if (x == y)
                continue;
            if (!isfinite(x) || !isfinite(y))
                return INFINITY;
            most = fmax(most, fabs(x - y));
            size = fmax(size, fabs(y));
        }
        worst = fmax(worst, most / size);
    }
    return worst;
}

static int untouched(const void *p, Mat m)
{
    size_t e = dtype_size(m.type), width = (size_t)(m.ld - m.cols) * e;
    for (int64_t r = 0; r < m.rows; r++)
        for (size_t i = 0; i < width; i++)
            if (((const uint8_t *)p)[(size_t)(r * m.ld + m.cols) * e + i] != 0xff)
                return 0;
    return 1;
}

/* Limit of differ: sums are in F32; P, ds and the results are each rounded to the storage type once. lse
 * has a limit of its own, because it is F32 from exact products. */
static double tolerance(Dtype t) { return t == F32 ? 1e-5 : t == BF16 ? 1e-2 : 1.2e-3; }

/* ---- cuDNN ---- */

static int went, asked;        /* calls of all cases: computed by cuDNN; made */
static char refused[400];      /* first reason why a call was not computed by cuDNN */

/* Calls of a case that cuDNN computes. emulated: bool: by the emulated cuDNN. */
typedef struct { int forward, backward, emulated; } Fused;

static Fused expected(const Case *c, int back)
{
    const char *mode = getenv("EMULATION_CUDNN");
    int can = c->type != F32 && !c->odd && !c->docs && c->dropout == 0 && back && !c->cp && !c->real;
    int forward = !mode || strcmp(mode, "absent"), backward = !mode || !strcmp(mode, "few");
    return (Fused){can && forward, can && backward, 0};
}

/* Lets the device compute the calls of x with cuDNN where cuDNN can. Returns these calls. */
static Fused choose(Device *d, const Case *c, const Call *x, int back, int any_order)
{
    Device null;
    Products p = {.any_order = any_order};
    AttentionUse use;
    Mat m[MATS];
    for (int i = 0; i < MATS; i++)
        m[i] = x->m[i].stored, m[i].p = NULL;
    null_open(&null, F32);
    products_watch(&null, &p);
    fwd(&null, m, &x->s);
    fwd(&null, m, &x->s);
    if (back)
        bwd(&null, m, &x->s);
    CHECK(p.calls == 1 + back, "%ld calls noted", (long)p.calls);
    size_t before = d->left(d), room = attention_bytes(&p);
    cuda_attention(d, &p, 0, &use);
    int some = use.fused_forward + use.fused_backward;
    Fused got = {use.fused_forward, use.fused_backward, !strcmp(use.name, "emulated cuDNN")};
    Fused want = expected(c, back);
    if (c->docs)               /* documents' starts are not known before the call */
        got = want;
    if (got.emulated) {
        CHECK(got.forward == want.forward && got.backward == want.backward, "%d forward, %d backward: %s",
              got.forward, got.backward, use.why);
        CHECK(before - d->left(d) == (some ? room : 0), "takes %zu bytes, not %zu", before - d->left(d),
              room);
    }
    CHECK(use.forward + use.backward == some || *use.why, "no reason why cuDNN does not compute all calls");
    went += got.forward + got.backward;
    asked += use.forward + use.backward;
    if (*use.why && !*refused)
        snprintf(refused, sizeof refused, "%s: %s", use.name, use.why);
    products_close(&p);
    return got;
}

/* Checks that cuDNN computed the calls in `want`, and our own kernels the others. own: memory after the
 * same call of our own kernels. */
static void check_went(Fused want, int back, void *const got[MATS], void *const own[MATS], const Call *x,
                       const char *text)
{
    size_t n = (size_t)(x->m[LSE].stored.rows * x->m[LSE].stored.ld) * sizeof(float);
    CHECK((memcmp(got[LSE], own[LSE], n) != 0) == want.forward, "lse of %s: of the wrong kernel", text);
    if (back)
        CHECK((memcmp(got[DELTA], x->m[DELTA].stored.p, n) == 0) == want.backward,
              "delta of %s: of the wrong kernel", text);
}

/* Checks cuDNN's backward in any order: gradients are as accurate. The emulated cuDNN gives other bits of dq
 * each time, where a row has several keys, and the same ones of all else.
 *   want   in  [MATS]  the CPU's, F32
 *   fixed  in  [MATS]  what the backward in a fixed order gave */
static void check_any_order(Device *gpu, const Case *c, const Call *x, const Mat want[MATS],
                            void *const fixed[MATS], const char *text)
{
    void *got[MATS], *again[MATS];
    Fused fused = choose(gpu, c, x, 1, 1);
    run_device(gpu, c, x, 1, got);
    run_device(gpu, c, x, 1, again);
    cuda_attention_close(gpu);
    for (int i = DQ; i <= DV; i++) {
        double e = differ(got[i], x->m[i].stored, want[i]), most = tolerance(c->type);
        CHECK(e <= most, "%s in any order of %s: %g, at most %g", names[i], text, e, most);
    }
    for (int i = O; i < MATS && fused.emulated; i++) {
        Mat as = x->m[i].stored;
        size_t bytes = (size_t)(as.rows * as.ld) * dtype_size(as.type);
        int other = i == DQ && c->seq_q > 2 && c->window != 1;
        CHECK(!memcmp(got[i], again[i], bytes) == !other, "%s in any order of %s: %s bits twice", names[i],
              text, other ? "the same" : "other");
        CHECK(!memcmp(got[i], fixed[i], bytes) || i == DQ, "%s in any order of %s: other bits", names[i],
              text);
    }
    for (int i = 0; i < MATS; i++)
        free(got[i]), free(again[i]);
}

static void check_case(Device *gpu, Device *cpu, const Case *c, int cudnn)
{
    int back = c->cp || (c->seq_q == c->seq_k && c->pos0 == 0);
    Call x = call_open(c);
    Mat want[MATS];
    void *got[MATS], *again[MATS], *own[MATS];
    char text[200];
    Fused fused = {0};
    for (int i = 0; i < MATS; i++)
        want[i] = x.m[i].real;
    if (cudnn) {
        run_device(gpu, c, &x, back, own);
        fused = choose(gpu, c, &x, back, 0);
    }
    run_device(gpu, c, &x, back, got);
    run_device(gpu, c, &x, back, again);
    cuda_attention_close(gpu);
    fwd(cpu, want, &x.s);
    if (back)
        more_keys(c, want[LSE].p, want[LSE]);
    snprintf(text, sizeof text, "%s A%d K%d D%d B%ld S%ld of %ld pos0 %ld window %ld docs %d drop %g%s cp %d "
             "%d+%d %d+%d real %d", dtype_name(c->type), c->heads, c->kv, c->dim, (long)c->batch,
             (long)c->seq_q, (long)c->seq_k, (long)c->pos0, (long)c->window, c->docs, c->dropout,
             c->odd ? " odd" : "", c->cp, c->q0, c->qn, c->k0, c->kn, c->real);
    if (getenv("VERBOSE"))
        printf("# %s:", text);
    if (cudnn)
        check_went(fused, back, got, own, &x, text);
    for (int i = O; i < (back ? MATS : DELTA); i++) {
        Mat as = x.m[i].stored;
        if (i == DQ) {         /* the backward of both devices reads o as the GPU's forward stored it */
            Mat o = x.m[O].stored;
            for (int64_t j = 0; j < o.rows * o.cols; j++)
                put(want[O].p, j, F32, get(got[O], j / o.cols * o.ld + j % o.cols, o.type));
            bwd(cpu, want, &x.s);
        }
        double limit = i == LSE ? (fused.forward ? 1e-4 : 1e-5) : tolerance(c->type);
        double e = i == DELTA ? 0 : differ(got[i], as, want[i]);
        if (getenv("VERBOSE"))
            printf(" %s %.1e", names[i], e);
        CHECK(e <= limit, "%s of %s: %g, at most %g", names[i], text, e, limit);
        CHECK(untouched(got[i], as), "%s of %s: wrote past the columns", names[i], text);
        CHECK(!memcmp(got[i], again[i], (size_t)(as.rows * as.ld) * dtype_size(as.type)),
              "%s of %s: not twice the same bits", names[i], text);
    }
    if (getenv("VERBOSE"))
        printf("\n");
    if (fused.backward)
        check_any_order(gpu, c, &x, want, got, text);
    for (int i = 0; i < MATS; i++)
        free(got[i]), free(again[i]), free(cudnn ? own[i] : NULL);
    call_close(&x);
}

/* New cases go to the end: tests/cuda/barriers.sh names cases by their number. */
static const Case cases[] = {
    /* type, heads, kv, dim, batch, seq_q, seq_k, pos0, window, docs, dropout, odd */
    {BF16, 2, 1, 64, 1, 150, 150, 0, 0, 0, 0, 0},
    {F16, 1, 1, 80, 2, 97, 97, 0, 0, 1, 0, 0},
    {BF16, 4, 1, 96, 1, 70, 70, 0, 20, 0, 0, 0},
    {F16, 2, 1, 128, 1, 140, 140, 0, 0, 0, 0, 0},
    {BF16, 1, 1, 256, 1, 131, 131, 0, 0, 0, 0, 0},
    {F16, 1, 1, 256, 1, 70, 70, 0, 33, 2, 0.25, 0},
    {F16, 2, 2, 64, 1, 130, 130, 0, 0, 0, 0.2, 0},
    {BF16, 2, 1, 128, 1, 100, 100, 0, 33, 1, 0.2, 0},
    {F16, 1, 1, 80, 1, 65, 65, 0, 0, 2, 0.2, 0},
    {F16, 1, 1, 96, 1, 129, 129, 0, 1, 0, 0.5, 0},
    {F16, 1, 1, 64, 3, 1, 1, 0, 0, 0, 0, 0},
    {BF16, 1, 1, 64, 1, 128, 128, 0, 0, 2, 0, 0},
    {F16, 4, 2, 64, 2, 1, 101, 99, 0, 0, 0, 0},              /* a token behind a cache with unused rows */
    {F16, 2, 1, 128, 1, 5, 80, 60, 40, 1, 0.1, 0},
    {BF16, 1, 1, 80, 1, 20, 10, 0, 4, 0, 0, 0},              /* the last rows see nothing */
    {F16, 1, 1, 64, 30, 150, 10, 0, 4, 0, 0, 0},             /* a whole tile of rows sees nothing */
    {F16, 1, 1, 64, 11, 130, 8192, 0, 8, 0, 0, 0},           /* more heads than fit the L2 cache at a time */
    {BF16, 2, 1, 64, 1, 40, 40, 0, 0, 0, 0.1, 1},            /* from here on: shapes of the plain kernels */
    {F16, 1, 1, 80, 1, 37, 37, 0, 9, 0, 0, 1},
    {F32, 2, 2, 64, 1, 70, 70, 0, 0, 0, 0, 0},
    {F32, 4, 1, 8, 2, 50, 50, 0, 0, 1, 0.2, 0},
    {F32, 2, 1, 20, 1, 45, 45, 0, 7, 0, 0, 1},
    {F32, 1, 1, 128, 1, 35, 35, 0, 0, 2, 0.5, 0},
    {F32, 2, 1, 16, 2, 1, 41, 40, 0, 0, 0, 0},
    {F32, 1, 1, 16, 1, 7, 60, 50, 20, 1, 0.1, 0},
    /* pieces; from here on also: cp, ranks of queries, ranks of keys, real */
    {BF16, 2, 1, 64, 2, 256, 0, 0, 0, 0, 0, 0, 2, 0, 1, 0, 1, 0},        /* a ring: its own keys */
    {F16, 2, 1, 128, 1, 256, 0, 0, 0, 0, 0, 0, 2, 1, 1, 0, 1, 7},
    {F16, 1, 1, 64, 1, 256, 0, 0, 0, 0, 0.2, 0, 2, 0, 1, 1, 1, 7},       /* half of the queries see nothing */
    {BF16, 2, 2, 80, 2, 192, 0, 0, 0, 1, 0, 0, 4, 1, 1, 2, 1, 7},
    {F16, 1, 1, 64, 1, 1024, 0, 0, 64, 0, 0, 0, 4, 0, 1, 1, 1, 7},       /* half of both has no pair */
    {BF16, 1, 1, 64, 1, 64, 0, 0, 5, 0, 0, 0, 4, 0, 1, 2, 1, 3},         /* nothing is seen */
    {F16, 2, 2, 64, 4, 64, 0, 0, 5, 0, 0, 0, 4, 0, 1, 2, 1, 0},
    {F16, 2, 1, 96, 2, 160, 0, 0, 40, 0, 0.2, 0, 4, 2, 1, 0, 4, 2},      /* gathered keys */
    {BF16, 1, 1, 64, 2, 640, 0, 0, 0, 1, 0, 0, 4, 1, 1, 0, 4, 2},
    {F16, 2, 2, 64, 2, 40, 0, 0, 7, 0, 0.3, 0, 4, 3, 1, 0, 4, 3},        /* chunks of 5 */
    {BF16, 2, 1, 256, 1, 128, 0, 0, 0, 1, 0.2, 0, 2, 0, 2, 0, 2, 0},     /* heads for positions */
    {F16, 1, 1, 128, 2, 96, 0, 0, 0, 0, 0, 0, 4, 0, 2, 2, 2, 7},         /* both */
    {BF16, 2, 2, 64, 1, 100, 77, 0, 0, 2, 0.2, 0, SCATTERED, 0, 0, 0, 0, 0},
    {F16, 2, 1, 128, 2, 150, 130, 0, 60, 0, 0, 0, SCATTERED, 0, 0, 0, 0, 7},
    {BF16, 1, 1, 80, 1, 3, 90, 0, 0, 0, 0.1, 0, SCATTERED, 0, 0, 0, 0, 1},
    {F16, 2, 1, 96, 1, 130, 3, 0, 0, 0, 0, 0, SCATTERED, 0, 0, 0, 0, 2},
    {F16, 1, 1, 256, 1, 65, 70, 0, 100, 1, 0, 0, SCATTERED, 0, 0, 0, 0, 7},
    {BF16, 1, 1, 64, 1, 100, 90, 0, 0, 3, 0, 0, SCATTERED, 0, 0, 0, 0, 3},
    {F32, 2, 1, 16, 2, 96, 0, 0, 0, 1, 0.2, 0, 4, 1, 1, 2, 1, 7},
    {F32, 1, 1, 64, 1, 768, 0, 0, 30, 0, 0, 0, 3, 0, 1, 0, 3, 4},
    {F32, 2, 2, 20, 1, 60, 0, 0, 0, 1, 0, 1, 2, 0, 2, 0, 2, 0},
    {BF16, 2, 1, 64, 2, 64, 0, 0, 9, 0, 0.1, 1, 2, 1, 1, 0, 1, 7},
    {F32, 1, 1, 128, 1, 50, 60, 0, 0, 0, 0.1, 0, SCATTERED, 0, 0, 0, 0, 4},
    {BF16, 2, 1, 64, 6, 40, 40, 0, 0, 0, 0, 0},              /* cuDNN does them one by one on an H200 */
};

/* The kernel that makes dk and dv runs two blocks on each of an H200's 132 multiprocessors, all of equal
 * length. The shapes of configs/gpu leave less than 4 % of them unused. */
static void check_blocks(void)
{
    static const struct { int batch, heads, kv, dim, parts; } of[] = {
        {32, 14, 2, 64, 1}, {16, 12, 2, 128, 1}, {8, 16, 2, 128, 2}, {2, 28, 4, 128, 4}, {4, 28, 4, 128, 2},
        {64, 12, 12, 64, 1}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        Positions all = positions_one(0, 1024);
        Attention s = {.batch = of[i].batch, .q = all, .k = all, .heads = of[i].heads, .kv_heads = of[i].kv,
                       .dim = of[i].dim};
        int parts;
        int64_t blocks = attention_bwd_blocks(&s, &parts), turns = (blocks + 263) / 264;
        CHECK(parts == of[i].parts && (double)blocks > 0.96 * 264 * (double)turns,
              "%d heads of %d, batch %d: %d parts, %ld blocks", of[i].heads, of[i].dim, of[i].batch, parts,
              (long)blocks);
    }
}

int main(int argc, char **argv)
{
    Device gpu, cpu;
    int cudnn = argc > 1 && !strcmp(argv[1], "cudnn");
    argc -= cudnn, argv += cudnn;
    check_blocks();
    cuda_open(&gpu, F32, 0);
    cpu_open(&cpu, F32, test_isa(), 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        stream = 10 * i;
        if (argc < 2 || (size_t)atoi(argv[1]) == i)
            check_case(&gpu, &cpu, &cases[i], cudnn);
    }
    cpu_close(&cpu);
    cuda_close(&gpu);
    int failed = test_end();
    if (cudnn)
        printf("# cuDNN: %d of %d calls%s%s\n", went, asked, *refused ? "; " : "", refused);
    return failed;
}
