/* test_attention [ISA] -- attention_fwd and _bwd of one instruction set against a plain O(T^2)
 * implementation in F64 and against finite differences. Numbers of threads, later keys and generation
 * with a cache must not change a bit.
 *
 *   test_attention emulated        in BF16, by AMX in software, on AVX-512
 *   test_attention bench [ISA]     prints GFLOP/s. A visible (query, key) pair takes 4 D operations
 *                                  in the forward and 10 D in the backward. */
#include "cpu.h"
#include <sys/wait.h>
#include <unistd.h>
#include "ops.h"

typedef struct {
    int64_t batch, seq_q, seq_k, pos0;
    int heads, kv, dim, docs;
    int64_t window;
    double dropout;
    int pieces;            /* bool: queries and keys are some positions of a longer sequence */
} Case;

/* Matrices of a case. q, k and v are columns of one matrix when they have the same number of rows; so are
 * their gradients. */
typedef struct {
    Attention s;
    Mat q, k, v, o, lse, dout, dq, dk, dv, delta;
    void *qkv, *dqkv, *kvs, *dkvs;
    int32_t *doc;
    int64_t sample[8];
} Call;

#ifdef __x86_64__
DECLARE_ATTENTION(emulated)
#endif
/* cpu_open; isa may be "emulated". */
static void open_isa(Device *d, Dtype real, const char *isa, int threads)
{
    int emulated = !strcmp(isa, "emulated");
    cpu_open(d, real, emulated ? "avx512" : isa, threads);
#ifdef __x86_64__
    if (emulated && real == F32) {
        d->bf16 = "amx";
        d->attention_fwd = cpu_attention_fwd_emulated, d->attention_bwd = cpu_attention_bwd_emulated;
    }
#endif
}

static uint64_t rng_state;
static double uniform(void) { return rng_uniform(77, 0, rng_state++); }
static int64_t pick(int64_t n) { return (int64_t)(uniform() * (double)n); }

static double at(Mat m, int64_t r, int64_t c) { return get(mat_at(m, r, c), 0, m.type); }
static void set(Mat m, int64_t r, int64_t c, double x) { put(mat_at(m, r, c), 0, m.type, x); }
static void more(Mat m, int64_t r, int64_t c, double x) { set(m, r, c, at(m, r, c) + x); }
static void fill(Mat m, double size)
{
    for (int64_t r = 0; r < m.rows; r++)
        for (int64_t c = 0; c < m.cols; c++)
            set(m, r, c, (uniform() * 2 - 1) * size);
}

/* Allocates rows x ld elements, every byte 0xff: a NaN in each type. */
static void *poisoned(int64_t rows, int64_t ld, Dtype t)
{
    size_t n = (size_t)(rows * ld) * dtype_size(t);
    return memset(xcalloc(n ? n : 1, 1), 0xff, n);
}
static Mat poisoned_mat(int64_t rows, int64_t cols, Dtype t)
{
    int64_t ld = cols + 3;
    Mat m = {poisoned(rows, ld, t), rows, cols, ld, t};
    return m;
}

/* Some n positions of a sequence of PIECED, in up to three runs, whose rows are in no order. */
enum { PIECED = 400 };
static Positions some_positions(int64_t n)
{
    Positions p = {.stride = n, .count = n < 3 ? 1 : 3};
    int64_t at = 0, row = n, gap = PIECED - n;
    for (int i = 0; i < p.count; i++) {
        int64_t take = i + 1 < p.count ? n / 3 : row, skip = pick(gap + 1);
        row -= take;
        p.run[i] = (PositionRun){(int32_t)(at + skip), (int32_t)take, (int32_t)row};
        at += skip + take;
        gap -= skip;
    }
    return p;
}

static Call call_open(const Case *c, Dtype type, Dtype real)
{
    Call x = {.s = {.batch = c->batch, .seq = c->pieces ? PIECED : c->pos0 + c->seq_q,
                    .q = c->pieces ? some_positions(c->seq_q) : positions_one(c->pos0, c->seq_q),
                    .k = c->pieces ? some_positions(c->seq_k) : positions_one(0, c->seq_k),
                    .heads = c->heads, .kv_heads = c->kv, .dim = c->dim, .head0 = 3, .window = c->window,
                    .scale = 1 / sqrt(c->dim), .dropout = c->dropout, .key = 0x123456789abcdef0}};
    int64_t a = (int64_t)c->heads * c->dim, k = (int64_t)c->kv * c->dim;
    int64_t ld = a + 2 * k + (c->seq_k % 2 ? 5 : 6);    /* pairs lie ready in rows of an even length alone */
    int64_t rq = c->batch * c->seq_q, rk = c->batch * c->seq_k;
    for (int64_t b = 0; b < c->batch; b++)
        x.sample[b] = 1000 + 7 * b;
    x.qkv = poisoned(rq, ld, type);
    x.dqkv = poisoned(rq, ld, type);
    x.kvs = poisoned(rk, ld, type);
    x.dkvs = poisoned(rk, ld, type);
    Mat kvs = {rq == rk ? x.qkv : x.kvs, rk, ld, ld, type};
    Mat dkvs = {rq == rk ? x.dqkv : x.dkvs, rk, ld, ld, type};
    Mat all = {x.qkv, rq, ld, ld, type}, d = {x.dqkv, rq, ld, ld, type};
    x.q = mat_cols(all, 0, a), x.k = mat_cols(kvs, a, k), x.v = mat_cols(kvs, a + k, k);
    x.dq = mat_cols(d, 0, a), x.dk = mat_cols(dkvs, a, k), x.dv = mat_cols(dkvs, a + k, k);
    x.o = poisoned_mat(rq, a, type);
    x.dout = poisoned_mat(rq, a, type);
    x.lse = poisoned_mat(rq, c->heads, real);
    x.delta = poisoned_mat(rq, c->heads, real);
    fill(x.q, 2), fill(x.k, 2), fill(x.v, 1), fill(x.dout, 1);
    if (c->docs) {      /* documents of random length (1), or all of `docs` positions; queries behind a cache
                         * belong to the last ones */
        int64_t P = x.s.seq;
        x.doc = xcalloc((size_t)(c->batch * P), sizeof *x.doc);
        for (int64_t b = 0; b < c->batch; b++)
            for (int64_t i = 0, start = 0; i < P; i++) {
                if (c->docs > 1 ? i % c->docs == 0 : i >= c->pos0 && pick(20) == 0)
                    start = i;
                x.doc[b * P + i] = (int32_t)start;
            }
    }
    return x;
}
static void call_close(Call *x)
{
    void *all[] = {x->qkv, x->dqkv, x->kvs, x->dkvs, x->doc, x->o.p, x->dout.p, x->lse.p, x->delta.p};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}
static void call_run(Device *d, Call *x, int bwd)
{
    x->s.doc_start = x->doc;
    x->s.sample = x->sample;
    d->attention_fwd(d, x->o, x->lse, x->q, x->k, x->v, &x->s);
    if (bwd)
        d->attention_bwd(d, x->dq, x->dk, x->dv, x->dout, x->o, x->lse, x->delta, x->q, x->k, x->v, &x->s);
}

/* sees, kept and plain compute attention by its definition, score by score. Outputs are dense F64. */
static int sees(const Attention *s, int64_t b, int64_t i, int64_t j)
{
    int64_t p = positions_at(&s->q, i), key = positions_at(&s->k, j);
    int64_t start = s->doc_start ? s->doc_start[b * s->seq + p] : 0;
    return key >= start && key <= p && (s->window <= 0 || key > p - s->window);
}
static double kept(const Attention *s, int64_t b, int h, int64_t i, int64_t j)
{
    uint64_t p = (uint64_t)positions_at(&s->q, i), key = (uint64_t)positions_at(&s->k, j);
    if (s->dropout <= 0)
        return 1;
    Philox r = philox(s->key, key / 4 | p << 32, (uint64_t)s->sample[b] << 16 | (uint64_t)(s->head0 + h));
    return r.v[key % 4] >= s->dropout * 0x1p32 ? 1 / (1 - s->dropout) : 0;
}
static void plain(const Call *x, Mat o, Mat lse, Mat dq, Mat dk, Mat dv)
{
    const Attention *s = &x->s;
    int64_t dim = s->dim, nq = positions_rows(&s->q), nk = positions_rows(&s->k);
    double *p = xcalloc((size_t)nk + 1, sizeof *p), *m = xcalloc((size_t)nk + 1, sizeof *m);
    for (int64_t row = 0; row < s->batch * nq * s->heads; row++) {
        int64_t h = row % s->heads, r = row / s->heads, b = r / nq, i = r % nq;
        int64_t kv = h / (s->heads / s->kv_heads), r0 = b * nk;
        double top = -INFINITY, sum = 0, delta = 0;
        for (int64_t j = 0; j < nk; j++) {
            p[j] = -INFINITY;
            if (sees(s, b, i, j)) {
                p[j] = 0;
                for (int64_t c = 0; c < dim; c++)
                    p[j] += at(x->q, r, h * dim + c) * at(x->k, r0 + j, kv * dim + c) * s->scale;
            }
            top = p[j] > top ? p[j] : top;
        }
        for (int64_t j = 0; j < nk; j++)
            sum += p[j] = top == -INFINITY ? 0 : exp(p[j] - top);
        set(lse, r, h, top + log(sum));
        for (int64_t j = 0; j < nk; j++) {
            p[j] /= sum ? sum : 1;
            m[j] = p[j] > 0 ? kept(s, b, (int)h, i, j) : 0;
            for (int64_t c = 0; p[j] > 0 && c < dim; c++)
                more(o, r, h * dim + c, p[j] * m[j] * at(x->v, r0 + j, kv * dim + c));
        }
        for (int64_t c = 0; c < dim; c++)       /* the op, too, gets o rounded to its storage type */
            delta += at(x->o, r, h * dim + c) * at(x->dout, r, h * dim + c);
        for (int64_t j = 0; dq.p && j < nk; j++) {
            double dp = 0;
            if (p[j] == 0)
                continue;
            for (int64_t c = 0; c < dim; c++) {
                double g = at(x->dout, r, h * dim + c);
                dp += g * m[j] * at(x->v, r0 + j, kv * dim + c);
                more(dv, r0 + j, kv * dim + c, g * p[j] * m[j]);
            }
            double ds = p[j] * (dp - delta) * s->scale;
            for (int64_t c = 0; c < dim; c++) {
                more(dq, r, h * dim + c, ds * at(x->k, r0 + j, kv * dim + c));
                more(dk, r0 + j, kv * dim + c, ds * at(x->q, r, h * dim + c));
            }
        }
    }
    free(p);
    free(m);
}

/* Largest difference of a and b, divided by the largest value of b or 0.3. 0.3 is the size of the summed
 * terms, for sums that cancel (one visible key: dq = 0). Returns infinity when an element is not finite,
 * unless both matrices hold the same infinity there. */
static double differ(Mat a, Mat b)
{
    double worst = 0, size = 0.3;
    for (int64_t r = 0; r < a.rows; r++)
        for (int64_t c = 0; c < a.cols; c++) {
            double x = at(a, r, c), y = at(b, r, c);
            if (x == y)
                continue;
            if (!isfinite(x) || !isfinite(y))
                return INFINITY;
            worst = fmax(worst, fabs(x - y));
            size = fmax(size, fabs(y));
        }
    return worst / size;
}

/* Of the largest element. vdpbf16ps and AMX take probabilities rounded to BF16. */
static double tolerance(const Device *d, Dtype t)
{
    double bf16 = strcmp(d->bf16, "f32") ? 8e-3 : 4e-3;
    return t == F64 ? 2e-13 : t == F32 ? 1e-5 : t == BF16 ? bf16 : 5e-4;
}

/* 1: the columns behind those of m hold their poison. */
static int untouched(Mat m)
{
    size_t e = dtype_size(m.type), width = (size_t)(m.ld - m.cols) * e;
    for (int64_t r = 0; r < m.rows; r++)
        for (size_t i = 0; i < width; i++)
            if (((uint8_t *)mat_at(m, r, m.cols))[i] != 0xff)
                return 0;
    return 1;
}

static Mat zeros(Mat like)
{
    return mat(xcalloc((size_t)(like.rows * like.cols) + 1, 8), like.rows, like.cols, F64);
}

static void check_case(Device *d, const Case *c, Dtype type)
{
    Call x = call_open(c, type, d->real);
    call_run(d, &x, 1);
    Mat want[5] = {zeros(x.o), zeros(x.lse), zeros(x.q), zeros(x.k), zeros(x.v)};
    Mat got[5] = {x.o, x.lse, x.dq, x.dk, x.dv};
    static const char *const names[5] = {"o", "lse", "dq", "dk", "dv"};
    plain(&x, want[0], want[1], want[2], want[3], want[4]);
    for (int i = 0; i < 5; i++) {
        double e = differ(got[i], want[i]), limit = tolerance(d, i == 1 ? d->real : type);
        CHECK(e <= limit, "%s %s %s: %g; B%ld S%ld of %ld pos0 %ld A%d K%d D%d window %ld docs %d "
              "drop %g pieces %d", d->isa, dtype_name(type), names[i], e, (long)c->batch, (long)c->seq_q,
              (long)c->seq_k, (long)c->pos0, c->heads, c->kv, c->dim, (long)c->window, c->docs, c->dropout,
              c->pieces);
    }
    CHECK(untouched(x.o) && untouched(x.lse), "wrote past the columns");
    int64_t a = (int64_t)c->heads * c->dim, kv = 2 * (int64_t)c->kv * c->dim;
    Mat all = {x.dqkv, x.q.rows, x.q.rows == x.k.rows ? a + kv : a, x.q.ld, type};
    CHECK(untouched(all), "gradients wrote past the columns");
    for (int i = 0; i < 5; i++)
        free(want[i].p);
    call_close(&x);
}

static void check_cases(Device *d, int count)
{
    static const int dims[] = {64, 80, 96, 128, 256, 1, 3, 16, 33, 72, 130};
    static const int groups[][2] = {{4, 4}, {4, 2}, {3, 1}, {1, 1}};
    static const int64_t seqs[] = {1, 2, 17, 31, 32, 33, 64, 97, 128, 129, 150}, windows[] = {0, 1, 5, 40};
    static const Dtype narrow[] = {F32, BF16, F16};
    rng_state = 0;
    for (int i = 0; i < count; i++) {
        int g = (int)pick(4);
        Case c = {.batch = 1 + pick(2), .heads = groups[g][0], .kv = groups[g][1], .dim = dims[i % 11],
                  .docs = (int)pick(2), .window = windows[pick(4)], .dropout = pick(2) ? 0.3 : 0};
        c.seq_k = c.seq_q = seqs[pick(11)];
        if (pick(3) == 0) {      /* generation: new tokens behind a cache, which may have unused rows */
            c.pos0 = pick(140);
            c.seq_q = 1 + pick(3) * pick(20);
            c.seq_k = c.pos0 + c.seq_q + pick(3);
        }
        if (pick(3) == 0) {
            c.pieces = 1;
            c.pos0 = 0;
            c.seq_k = seqs[pick(11)];
        }
        check_case(d, &c, d->real == F64 ? F64 : narrow[i % 3]);
    }
    check_case(d, &(Case){1, 40, 40, 0, 2, 1, 512, 0, 0, 0}, d->real);      /* the widest head */
    check_case(d, &(Case){1, 600, 600, 0, 1, 1, 16, 1, 0, 0.1}, d->real);   /* several groups of strips */
    check_case(d, &(Case){1, 20, 10, 0, 1, 1, 8, 0, 4, 0}, d->real);        /* the last rows see nothing */
}

/* Gradients of random elements of q, k and v against central differences. */
static void check_differences(Device *d)
{
    Case c = {2, 37, 37, 0, 4, 2, 20, 1, 25, 0.2};
    Call x = call_open(&c, F64, F64);
    call_run(d, &x, 1);
    Mat in[] = {x.q, x.k, x.v}, grad[] = {x.dq, x.dk, x.dv};
    for (int t = 0; t < 60; t++) {
        Mat m = in[t % 3];
        int64_t r = pick(m.rows), col = pick(m.cols);
        double was = at(m, r, col), h = 1e-5, loss[2] = {0, 0}, want = at(grad[t % 3], r, col);
        for (int side = 0; side < 2; side++) {
            set(m, r, col, was + (side ? h : -h));
            call_run(d, &x, 0);
            for (int64_t i = 0; i < x.o.rows; i++)
                for (int64_t j = 0; j < x.o.cols; j++)
                    loss[side] += at(x.o, i, j) * at(x.dout, i, j);
        }
        set(m, r, col, was);
        double slope = (loss[1] - loss[0]) / (2 * h), limit = 1e-6 * fmax(fabs(want), 0.1);
        CHECK(fabs(slope - want) <= limit, "element %d: slope %.9g gradient %.9g", t, slope, want);
    }
    call_close(&x);
}

static int same(Mat a, Mat b, int64_t r0, int64_t r1)
{
    for (int64_t r = r0; r < r1; r++)
        if (memcmp(mat_at(a, r, 0), mat_at(b, r, 0), (size_t)a.cols * dtype_size(a.type)))
            return 0;
    return 1;
}

/* The number of threads changes no bit: one thread computes whole heads, five share blocks of keys and
 * queries. */
static void check_threads(Device *one, const char *isa, Dtype type)
{
    static const int counts[] = {2, 5};
    Case c = {1, 200, 200, 0, 4, 2, 40, 1, 90, 0.1};
    for (int i = 0; i < 2; i++) {
        Device many;
        open_isa(&many, one->real, isa, counts[i]);
        rng_state = 5;
        Call x = call_open(&c, type, one->real);
        rng_state = 5;
        Call y = call_open(&c, type, one->real);
        call_run(one, &x, 1);
        call_run(&many, &y, 1);
        CHECK(same(x.o, y.o, 0, 200) && same(x.lse, y.lse, 0, 200), "forward, %d threads", counts[i]);
        CHECK(same(x.dq, y.dq, 0, 200) && same(x.dk, y.dk, 0, 200) && same(x.dv, y.dv, 0, 200),
              "backward, %d threads", counts[i]);
        call_close(&x);
        call_close(&y);
        cpu_close(&many);
    }
}

/* Properties that hold to the bit. Queries behind a cache give the rows of the whole pass. Keys and values
 * after a query do not change its row. A query that sees one key gives the key's value. */
static void check_exact(Device *d, Dtype type)
{
    Case c = {1, 150, 150, 0, 2, 1, type == BF16 ? 32 : 24, 0, 0, 0.1};
    Call x = call_open(&c, type, d->real), y;
    call_run(d, &x, 0);
    Mat o = poisoned_mat(150, 2 * c.dim, type), lse = poisoned_mat(150, 2, d->real);
    memcpy(o.p, x.o.p, (size_t)(150 * o.ld) * dtype_size(type));
    memcpy(lse.p, x.lse.p, (size_t)(150 * lse.ld) * dtype_size(d->real));
    for (int64_t pos = 0; pos < 150; pos += 1 + pos / 3) {
        int64_t n = 150 - pos < 3 ? 150 - pos : 3;
        Attention s = x.s;
        s.q = positions_one(pos, n);
        Mat oi = mat_rows(x.o, pos, n), li = mat_rows(x.lse, pos, n), qi = mat_rows(x.q, pos, n);
        d->attention_fwd(d, oi, li, qi, x.k, x.v, &s);
        CHECK(same(x.o, o, pos, pos + n) && same(x.lse, lse, pos, pos + n), "cache at %ld", (long)pos);
    }
    fill(mat_rows(x.k, 71, 79), 3), fill(mat_rows(x.v, 71, 79), 3);
    call_run(d, &x, 0);
    CHECK(same(x.o, o, 0, 71) && same(x.lse, lse, 0, 71), "later keys show");
    CHECK(!same(x.o, o, 71, 72), "a key that is seen does not show");
    call_close(&x);
    free(o.p);
    free(lse.p);

    c.window = 1, c.dropout = 0, c.kv = 2;
    y = call_open(&c, type, d->real);
    call_run(d, &y, 1);
    CHECK(same(y.o, y.v, 0, 150), "one key: not its value");
    CHECK(differ(y.dv, y.dout) <= tolerance(d, type), "one key: gradient of its value");
    call_close(&y);
}

/* Attention by pieces: the keys are cut in three, each piece is done alone, and the pieces are merged. The
 * first piece is seen by no query of the first positions. Gradients of pieces add up to those of the
 * whole. large, bool: scores whose exponentials overflow. */
static void check_merge(Device *d, int large)
{
    Dtype type = d->real;
    Case c = {2, 90, 90, 0, 4, 2, 24, 1, 30, 0.1, 0};
    Call x = call_open(&c, type, type);
    if (large)
        fill(x.q, 40), fill(x.k, 40);
    call_run(d, &x, 1);
    Mat o = poisoned_mat(180, 96, type), lse = poisoned_mat(180, 4, type);
    Mat piece = poisoned_mat(180, 96, type), plse = poisoned_mat(180, 4, type);
    Mat dq = poisoned_mat(180, 96, type), dk = poisoned_mat(180, 48, type), dv = poisoned_mat(180, 48, type);
    static const int32_t cut[] = {60, 20, 0};      /* pieces [60, 90), [20, 60), [0, 20) */
    for (int i = 0; i < 3; i++) {
        int32_t end = i ? cut[i - 1] : 90, n = end - cut[i];
        Attention s = x.s;
        s.k = (Positions){.stride = n, .count = 1, .run = {{cut[i], n, 0}}};
        s.add = i > 0;
        Mat k = poisoned_mat(2 * n, 48, type), v = poisoned_mat(2 * n, 48, type);
        Mat dki = poisoned_mat(2 * n, 48, type), dvi = poisoned_mat(2 * n, 48, type);
        for (int b = 0; b < 2; b++) {
            d->copy(d, mat_rows(k, b * n, n), mat_rows(x.k, b * 90 + cut[i], n));
            d->copy(d, mat_rows(v, b * n, n), mat_rows(x.v, b * 90 + cut[i], n));
        }
        d->attention_fwd(d, i ? piece : o, i ? plse : lse, x.q, k, v, &s);
        if (i)
            d->attention_merge(d, o, lse, piece, plse);
        d->attention_bwd(d, dq, dki, dvi, x.dout, x.o, x.lse, x.delta, x.q, k, v, &s);
        for (int b = 0; b < 2; b++) {
            d->copy(d, mat_rows(dk, b * 90 + cut[i], n), mat_rows(dki, b * n, n));
            d->copy(d, mat_rows(dv, b * 90 + cut[i], n), mat_rows(dvi, b * n, n));
        }
        free(k.p), free(v.p), free(dki.p), free(dvi.p);
    }
    double limit = (type == F64 ? 1e-13 : 1e-5) * (large ? 1000 : 1), most = 0;
    for (int64_t r = 0; r < x.lse.rows; r++)
        most = fmax(most, at(x.lse, r, 0));
    CHECK(!large || most > 1000, "the largest score is %g", most);
    CHECK(differ(o, x.o) <= limit && differ(lse, x.lse) <= limit, "pieces: %g %g", differ(o, x.o),
          differ(lse, x.lse));
    CHECK(differ(dq, x.dq) <= limit && differ(dk, x.dk) <= limit && differ(dv, x.dv) <= limit,
          "gradients of pieces: %g %g %g", differ(dq, x.dq), differ(dk, x.dk), differ(dv, x.dv));
    CHECK(untouched(o) && untouched(dq), "pieces wrote past the columns");
    free(o.p), free(lse.p), free(piece.p), free(plse.p), free(dq.p), free(dk.p), free(dv.p);
    call_close(&x);
}

/* Scores in the thousands give finite outputs and gradients. A NaN in a query shows in its row alone. */
static void check_extremes(Device *d, Dtype type)
{
    Case c = {1, 64, 64, 0, 1, 1, 32, 0, 0, 0};
    Call x = call_open(&c, type, d->real);
    fill(x.q, 100), fill(x.k, 100);
    call_run(d, &x, 1);
    for (int64_t r = 0; r < 64; r++)
        for (int64_t i = 0; i < 32; i++)
            CHECK(isfinite(at(x.o, r, i)) && isfinite(at(x.dq, r, i)) && isfinite(at(x.dk, r, i)),
                  "row %ld", (long)r);
    memset(mat_at(x.q, 7, 5), 0xff, dtype_size(type));
    call_run(d, &x, 1);
    CHECK(isnan(at(x.o, 7, 0)) && isnan(at(x.lse, 7, 0)) && isnan(at(x.dq, 7, 0)), "a NaN is lost");
    CHECK(isfinite(at(x.o, 6, 0)) && isfinite(at(x.o, 8, 0)), "NaN query spreads");
    call_close(&x);
}

static void bench(const char *isa)
{
    static const Case cases[] = {
        {4, 256, 256, 0, 12, 12, 64, 0, 0, 0}, {1, 1024, 1024, 0, 12, 12, 64, 0, 0, 0},
        {1, 4096, 4096, 0, 8, 2, 128, 0, 0, 0}, {4, 256, 256, 0, 12, 12, 64, 0, 0, 0.1},
        {8, 1, 1000, 999, 12, 12, 64, 0, 0, 0},
        {1, 8192, 8192, 0, 8, 8, 64, 0, 0, 0}, {1, 8192, 8192, 0, 8, 8, 64, 512, 0, 0},
    };
    static const Dtype types[] = {F32, BF16};
    for (int threads = 1; threads <= 2; threads++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            for (int t = 0; t < 2; t++) {
                const Case *c = &cases[i];
                int bwd = c->seq_q == c->seq_k;
                Device d;
                cpu_open(&d, F32, isa, threads);
                Call x = call_open(c, types[t], F32);
                double best[2] = {1e9, 1e9}, pairs = 0;
                for (int64_t j = 0; j < c->seq_q; j++)
                    pairs += (double)(c->batch * c->heads *
                                      (c->docs ? j % c->docs + 1 : c->pos0 + j + 1));
                for (int run = 0; run < 15; run++) {
                    double t0 = now();
                    call_run(&d, &x, 0);
                    double t1 = now();
                    if (bwd)
                        d.attention_bwd(&d, x.dq, x.dk, x.dv, x.dout, x.o, x.lse, x.delta, x.q, x.k, x.v,
                                        &x.s);
                    double t2 = now();
                    best[0] = fmin(best[0], t1 - t0), best[1] = fmin(best[1], t2 - t1);
                }
                printf("%s %d threads %s B%ld S%ld A%d K%d D%d dropout %g docs %d: fwd %.3f ms %.1f GFLOP/s",
                       d.isa, threads, dtype_name(types[t]), (long)c->batch, (long)c->seq_k, c->heads, c->kv,
                       c->dim, c->dropout, c->docs, best[0] * 1e3, 4 * c->dim * pairs / best[0] * 1e-9);
                if (bwd)
                    printf(", bwd %.3f ms %.1f GFLOP/s", best[1] * 1e3, 10 * c->dim * pairs / best[1] * 1e-9);
                printf("\n");
                call_close(&x);
                cpu_close(&d);
            }
}

/* 1: cpu_open accepts this instruction set. Tried in a child process, because cpu_open dies otherwise. */
static int runs(const char *isa)
{
    int status = 0;
    pid_t child = fork();
    if (!child) {
        Device d;
        if (!freopen("/dev/null", "w", stderr))
            _exit(EXIT_RESOURCE);
        open_isa(&d, F32, isa, 1);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status), "the child was lost");
    int code = WEXITSTATUS(status);
    CHECK(code == 0 || code == EXIT_CONFIG, "cpu_open ended with %d", code);
    return code == 0;
}

int main(int argc, char **argv)
{
    const char *isa = argc > 1 ? argv[1] : test_isa();
    if (!strcmp(isa, "bench")) {
        bench(argc > 2 ? argv[2] : test_isa());
        return 0;
    }
    if (!runs(isa)) {
        printf("# this CPU has no %s: nothing to test\n", isa);
        return 0;
    }
    static const Dtype reals[] = {F64, F32};
    for (int i = strcmp(isa, "emulated") ? 0 : 1; i < 2; i++) {
        Device d;
        open_isa(&d, reals[i], isa, 1);
        check_cases(&d, test_few() ? 30 : 110);
        if (reals[i] == F64)
            check_differences(&d);
        check_threads(&d, isa, reals[i]);
        check_exact(&d, reals[i]);
        check_extremes(&d, reals[i]);
        check_merge(&d, 0);
        check_merge(&d, 1);
        if (reals[i] == F32) {
            check_threads(&d, isa, BF16);
            check_exact(&d, BF16);
        }
        cpu_close(&d);
    }
    return test_end();
}
