/* Attention, backward. With P = exp(score - lse), delta = rowsum(do * o) and M the dropout mask / (1 - p):
 *
 *   dv = (P M)^T do      ds = P ((do v^T) M - delta)      dq = ds k scale      dk = ds^T q scale
 *
 * (Dao 2023, arXiv:2307.08691, sec 3.1). P is made again from q, k and lse, one strip of queries and one
 * block of keys at a time. One loop nest, `range`, serves two ways to share the work:
 *
 *   whole   an item is one key/value head of one sample and makes its dq, dk and dv: five products
 *   parts   items that are blocks of keys make dk and dv, then items that are blocks of queries make dq: seven
 *           products, but many items, and sums of a block of keys only
 *
 * Every sum runs over the same strips and blocks in the same order both ways, so the bits are the same and
 * the choice may look at the number of threads. */
#include "attention_tile.h"

#define DELTA_ROWS 16            /* rows of one item of the delta pass */
#define PART_STRIPS 4            /* strips of one item that makes dq */

typedef struct {
    Device *d;
    const Attention *s;
    Mat dq, dk, dv, dout, o, lse, delta, q, k, v;
    int64_t keys;                /* keys of an item that makes dk, dv: all of them (whole), or one block */
    int whole;
} Backward;

/* What range() covers and makes. */
typedef struct {
    int64_t b;
    int kv, head0, head1;
    int64_t i0, i1, j0, j1;      /* queries and keys of the sample */
    int want_q, want_kv;
} Range;

/* Panels of a thread. STRIP and `ld` reals to a row where the shape says so. */
typedef struct {
    REAL *dk, *dv;               /* [j1 - j0][ld] sums */
    REAL *qt, *gt, *dqt;         /* [ld][STRIP] queries * scale * log2 e; do / (1 - p); sum of dq */
    REAL *q, *g;                 /* [STRIP][ld] the same two, q unscaled */
    REAL *k, *v;                 /* [block][ld] */
    REAL *p, *ds;                /* [block][STRIP] */
} Panels;

static void delta_rows(void *ctx, int64_t item, int thread)
{
    const Backward *f = ctx;
    int64_t dim = f->s->dim, ld = whole_vectors(dim), stop = (item + 1) * DELTA_ROWS;
    REAL *g = FN(row_buf)(f->d, thread, 0), *o = FN(row_buf)(f->d, thread, 1);
    for (int64_t r = item * DELTA_ROWS; r < stop && r < f->o.rows; r++)
        for (int head = 0; head < f->s->heads; head++) {
            pack(g, ld, 1, f->dout, r, 1, head * dim, dim);
            pack(o, ld, 1, f->o, r, 1, head * dim, dim);
            Vec sum = vset(0);
            for (int64_t c = 0; c < ld; c += VN)
                sum += vload(g + c) * vload(o + c);
            *(REAL *)mat_at(f->delta, r, head) = vsum(sum);
        }
}

/* Scores p and products ds = do v^T, both [n][STRIP] of keys j.., become P M (without 1/(1-p), which do carries)
 * and the gradient of the scores. lse in units of log 2. */
static void softmax_bwd(const Strip *t, const Drop *drop, REAL *p, REAL *ds, const REAL *lse, const REAL *delta,
                        int64_t j, int64_t n)
{
    int masked = strip_masked(t, j, j + n);
    for (int64_t v = 0; v < t->width; v += VN) {
        Vec l = vload(lse + v), d = vload(delta + v);
        IVec keep[4] = {{0}};
        for (int64_t i = 0; i < n; i++) {
            REAL *pi = p + i * STRIP + v, *di = ds + i * STRIP + v;
            Vec e = vexp2(vload(pi) - l), g = vload(di);
            if (masked)
                e = vselect(strip_sees(t, v, j + i), e, vset(0));
            if (drop->limit) {
                if (i == 0 || (j + i) % 4 == 0)
                    drop_masks(keep, drop, v, (j + i) & ~(int64_t)3);
                IVec kept = keep[(j + i) % 4];
                vstore(di, e * (vselect(kept, g, vset(0)) - d));
                vstore(pi, vselect(kept, e, vset(0)));
            } else {
                vstore(di, e * (g - d));
                vstore(pi, e);
            }
        }
    }
}

/* Queries and output gradients of a strip in both layouts; its lse and delta by lanes. */
static void load_strip(const Backward *f, const Panels *x, const Strip *t, int64_t b, int head, REAL *lse, REAL *delta)
{
    const Attention *s = f->s;
    int64_t dim = s->dim, ld = whole_vectors(dim), r = b * s->seq_q + t->i0;
    pack(x->q, ld, t->width, f->q, r, t->n, head * dim, dim);
    pack(x->g, ld, t->width, f->dout, r, t->n, head * dim, dim);
    if (s->dropout > 0)
        for (int64_t i = 0; i < t->n * ld; i += VN)
            vstore(x->g + i, vload(x->g + i) * (REAL)(1 / (1 - s->dropout)));
    transpose(x->qt, STRIP, x->q, ld, t->width, ld, (REAL)(s->scale * LOG2E));
    transpose(x->gt, STRIP, x->g, ld, t->width, ld, 1);
    for (int64_t i = 0; i < t->width; i++) {
        lse[i] = i < t->n ? *(REAL *)mat_at(f->lse, r + i, head) * (REAL)LOG2E : 0;
        delta[i] = i < t->n ? *(REAL *)mat_at(f->delta, r + i, head) : 0;
    }
}

/* One strip against the keys of the range. *packed is the block whose keys and values lie in x, so that a range
 * of one block packs once. */
static void strip_bwd(const Backward *f, const Range *a, const Panels *x, const Strip *t, int head, int64_t *packed)
{
    const Attention *s = f->s;
    int64_t dim = s->dim, ld = whole_vectors(dim), block = key_block(ld);
    int64_t first = t->first > a->j0 ? t->first : a->j0, end = t->end < a->j1 ? t->end : a->j1;
    REAL lse[STRIP], delta[STRIP];
    Drop drop = drop_open(s, a->b, head, t);
    load_strip(f, x, t, a->b, head, lse, delta);
    if (a->want_q)
        memset(x->dqt, 0, (size_t)(ld * STRIP) * sizeof(REAL));
    for (int64_t j = first / block * block; j < end; j += block) {
        int64_t from = j > first ? j : first, to = j + block < end ? j + block : end, n = to - from;
        if (*packed != j) {
            int64_t rows = j + block < s->seq_k ? block : s->seq_k - j;
            pack(x->k, ld, rows, f->k, a->b * s->seq_k + j, rows, a->kv * dim, dim);
            pack(x->v, ld, rows, f->v, a->b * s->seq_k + j, rows, a->kv * dim, dim);
            *packed = j;
        }
        REAL *k = x->k + (from - j) * ld, *v = x->v + (from - j) * ld;
        product(1, (Product){x->p, k, x->qt, STRIP, ld, STRIP}, n, t->width, dim, SET, NULL);
        product(1, (Product){x->ds, v, x->gt, STRIP, ld, STRIP}, n, t->width, dim, SET, NULL);
        softmax_bwd(t, &drop, x->p, x->ds, lse, delta, from, n);
        if (a->want_kv) {
            REAL *dk = x->dk + (from - a->j0) * ld, *dv = x->dv + (from - a->j0) * ld;
            product(1, (Product){dv, x->p, x->g, ld, STRIP, ld}, n, ld, t->n, ADD, NULL);
            product(1, (Product){dk, x->ds, x->q, ld, STRIP, ld}, n, ld, t->n, ADD, NULL);
        }
        if (a->want_q)
            product(0, (Product){x->dqt, k, x->ds, STRIP, ld, STRIP}, dim, t->width, n, ADD, NULL);
    }
    if (a->want_q) {
        transpose(x->q, ld, x->dqt, STRIP, ld, t->width, (REAL)s->scale);
        unpack(f->dq, a->b * s->seq_q + t->i0, t->n, head * dim, dim, x->q, ld);
    }
}

static void range(const Backward *f, const Range *a, int thread)
{
    const Attention *s = f->s;
    int64_t dim = s->dim, ld = whole_vectors(dim), block = key_block(ld), n = (a->j1 - a->j0) * ld, packed = -1;
    REAL *u = FN(row_buf)(f->d, thread, 2), *w = FN(row_buf)(f->d, thread, 3);
    Panels x = {.dk = FN(row_buf)(f->d, thread, 0), .dv = FN(row_buf)(f->d, thread, 1)};
    x.qt = u, x.gt = x.qt + ld * STRIP, x.dqt = x.gt + ld * STRIP, x.q = x.dqt + ld * STRIP;
    x.k = w, x.v = x.k + block * ld, x.g = x.v + block * ld, x.p = x.g + ld * STRIP, x.ds = x.p + block * STRIP;
    if (a->want_kv) {
        memset(x.dk, 0, (size_t)n * sizeof(REAL));
        memset(x.dv, 0, (size_t)n * sizeof(REAL));
    }
    for (int head = a->head0; head < a->head1; head++)
        for (int64_t i = a->i0; i < a->i1; i += STRIP) {
            Strip t;
            strip_open(&t, s, a->b, i, a->i1);
            if (a->want_q || (t.first < a->j1 && t.end > a->j0))
                strip_bwd(f, a, &x, &t, head, &packed);
        }
    if (a->want_kv) {
        int64_t r = a->b * s->seq_k + a->j0;
        for (int64_t i = 0; i < n; i += VN)
            vstore(x.dk + i, vload(x.dk + i) * (REAL)s->scale);
        unpack(f->dk, r, a->j1 - a->j0, a->kv * dim, dim, x.dk, ld);
        unpack(f->dv, r, a->j1 - a->j0, a->kv * dim, dim, x.dv, ld);
    }
}

static void bwd_kv(void *ctx, int64_t item, int thread)
{
    const Backward *f = ctx;
    const Attention *s = f->s;
    int64_t heads = s->batch * s->kv_heads, j = item / heads * f->keys;   /* the first keys have the longest columns */
    int kv = (int)(item % s->kv_heads), group = s->heads / s->kv_heads;
    Range a = {item % heads / s->kv_heads, kv, kv * group, (kv + 1) * group, 0, s->seq_q,
               j, j + f->keys < s->seq_k ? j + f->keys : s->seq_k, f->whole, 1};
    range(f, &a, thread);
}

static void bwd_q(void *ctx, int64_t item, int thread)
{
    const Backward *f = ctx;
    const Attention *s = f->s;
    int64_t heads = s->batch * s->heads, rows = PART_STRIPS * STRIP, blocks = (s->seq_q + rows - 1) / rows;
    int64_t i = (blocks - 1 - item / heads) * rows;
    int head = (int)(item % s->heads);
    Range a = {item % heads / s->heads, head / (s->heads / s->kv_heads), head, head + 1,
               i, i + rows < s->seq_q ? i + rows : s->seq_q, 0, s->seq_k, 1, 0};
    range(f, &a, thread);
}

void FN(cpu_attention_bwd)(Device *d, Mat dq, Mat dk, Mat dv, Mat dout, Mat o, Mat lse, Mat delta, Mat q, Mat k, Mat v,
                           const Attention *s)
{
    int64_t tokens = s->batch * s->seq_q, ld = whole_vectors(s->dim), block = key_block(ld), rows = PART_STRIPS * STRIP;
    int64_t items = s->batch * s->kv_heads, threads = pool_threads(d->pool);
    BUG_ON(s->dim < 1 || s->dim > HEAD_MAX || s->kv_heads < 1 || s->heads % s->kv_heads);
    BUG_ON(s->seq_q != s->seq_k || s->pos0 || q.rows != tokens || k.rows != tokens || v.rows != tokens);
    BUG_ON(dq.rows != tokens || dk.rows != tokens || dv.rows != tokens || dout.rows != tokens || o.rows != tokens);
    BUG_ON(lse.rows != tokens || delta.rows != tokens || lse.type != REAL_TYPE || delta.type != REAL_TYPE);
    BUG_ON(q.cols != s->heads * s->dim || k.cols != s->kv_heads * s->dim || v.cols != k.cols);
    Backward f = {d, s, dq, dk, dv, dout, o, lse, delta, q, k, v, s->seq_k, 1};
    pool_run(d->pool, delta_rows, &f, (tokens + DELTA_ROWS - 1) / DELTA_ROWS);
    /* whole costs 5/7 of parts when no thread idles in its last round */
    int64_t slots = (items + threads - 1) / threads * threads;
    f.whole = s->seq_k * ld <= ROW_MAX && items * 7 >= slots * 5;
    if (!f.whole)
        f.keys = block;
    pool_run(d->pool, bwd_kv, &f, items * ((s->seq_k + f.keys - 1) / f.keys));
    if (!f.whole)
        pool_run(d->pool, bwd_q, &f, s->batch * s->heads * ((s->seq_q + rows - 1) / rows));
}
