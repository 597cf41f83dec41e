/* attention_bwd -- attention's backward: dq, dk and dv of strips of queries and blocks of keys.
 *
 * With P = exp(score - lse), delta = rowsum(do * o) and M the dropout mask / (1 - p):
 *
 *   dv = (P M)^T do      ds = P ((do v^T) M - delta)      dq = ds k scale      dk = ds^T q scale
 *
 * (Dao 2023, arXiv:2307.08691, sec 3.1). P is computed again from q, k and lse, for one strip and one
 * block at a time. One loop nest, `range`, serves two ways to cut the work into items:
 *
 *   whole   an item is one key/value head of one sample and makes its dq, dk and dv: five products
 *   parts   an item is a block of keys and makes dk and dv, or a group of strips and makes dq: seven
 *           products, but many items, and an item needs sums of one block of keys only
 *
 * Every sum runs over the same strips and blocks in the same order both ways, so both give the same
 * bits, and the choice may depend on the number of threads. */
#include "attention_tile.h"

#define DELTA_ROWS 16            /* rows of an item that makes delta */
#define GROUP 4                  /* most strips that share a packed block of keys and values */

typedef struct {
    Device *d;
    const Attention *s;
    Mat dq, dk, dv, dout, o, lse, delta, q, k, v;
    int64_t ld, block, group;    /* see attention_tile.h; keys of a block; strips of a group */
    int64_t keys;                /* keys of an item that makes dk and dv: all of them (whole), or one block */
    int whole;                   /* bool */
} Backward;

/* The part of the backward that one call of range() does. */
typedef struct {
    int64_t b;                   /* sample */
    int kv, head0, head1;        /* key/value head; its query heads [head0, head1) */
    int64_t i0, i1, j0, j1;      /* queries [i0, i1) and keys [j0, j1) of the sample */
    int want_q, want_kv;         /* bool: make dq; make dk and dv */
} Range;

/* Panels that the strips of a thread share. */
typedef struct {
    REAL *dk, *dv;               /* [j1 - j0][ld] sums */
    REAL *k, *v;                 /* [block][ld] keys and values of the packed block */
    REAL *p, *ds;                /* [block][STRIP] */
    int64_t packed;              /* first key of the packed block; -1: none */
} Panels;

/* One strip. */
typedef struct {
    Strip t;
    Drop drop;
    REAL lse[STRIP], delta[STRIP];     /* lse in units of log 2 */
    REAL *qt, *gt, *dqt;         /* [ld][STRIP] queries * scale * log2 e; do / (1 - p); sum of dq */
    REAL *q, *g;                 /* [STRIP][ld] queries; do / (1 - p) */
} Rows;

static void delta_rows(void *ctx, int64_t item, int thread)
{
    const Backward *f = ctx;
    int64_t dim = f->s->dim, ld = f->ld, stop = (item + 1) * DELTA_ROWS;
    REAL *g = FN(row_buf)(f->d, thread, 0), *o = FN(row_buf)(f->d, thread, 1);
    for (int64_t r = item * DELTA_ROWS; r < stop && r < f->o.rows; r++)
        for (int head = 0; head < f->s->heads; head++) {
            pack(g, ld, f->dout, r, 1, head * dim, dim);
            pack(o, ld, f->o, r, 1, head * dim, dim);
            Vec sum = vset(0);
            for (int64_t c = 0; c < ld; c += VN)
                sum += vload(g + c) * vload(o + c);
            *(REAL *)mat_at(f->delta, r, head) = vsum(sum);
        }
}

/* The softmax's part of the backward, for keys j .. j+n.
 *   p   in/out  [n][STRIP]  scores; becomes P times the mask, without 1/(1-p), which is part of do
 *   ds  in/out  [n][STRIP]  do v^T; becomes the gradient of the scores */
static void softmax_bwd(const Rows *w, REAL *p, REAL *ds, int64_t j, int64_t n)
{
    int masked = strip_masked(&w->t, j, j + n);
    for (int64_t v = 0; v < w->t.width; v += VN) {
        Vec lse = vload(w->lse + v), delta = vload(w->delta + v);
        IVec keep[4] = {{0}};
        for (int64_t i = 0; i < n; i++) {
            REAL *pi = p + i * STRIP + v, *di = ds + i * STRIP + v;
            Vec e = vexp2(vload(pi) - lse), g = vload(di);
            if (masked)
                e = vselect(strip_sees(&w->t, v, j + i), e, vset(0));
            if (w->drop.limit) {
                if (i == 0 || (j + i) % 4 == 0)
                    drop_masks(keep, &w->drop, v, (j + i) & ~(int64_t)3);
                IVec kept = keep[(j + i) % 4];
                vstore(di, e * (vselect(kept, g, vset(0)) - delta));
                vstore(pi, vselect(kept, e, vset(0)));
            } else {
                vstore(di, e * (g - delta));
                vstore(pi, e);
            }
        }
    }
}

/* Loads a strip: queries and do in both layouts, lse and delta by lanes. */
static void begin(const Backward *f, const Range *a, Rows *w, int head)
{
    const Attention *s = f->s;
    int64_t dim = s->dim, ld = f->ld, n = w->t.n, width = w->t.width, r = a->b * s->seq_q + w->t.i0;
    w->drop = drop_open(s, a->b, head, &w->t);
    pack(w->q, ld, f->q, r, n, head * dim, dim);
    pack(w->g, ld, f->dout, r, n, head * dim, dim);
    memset(w->q + n * ld, 0, (size_t)((width - n) * ld) * sizeof(REAL));
    memset(w->g + n * ld, 0, (size_t)((width - n) * ld) * sizeof(REAL));
    for (int64_t i = 0; s->dropout > 0 && i < n * ld; i += VN)
        vstore(w->g + i, vload(w->g + i) * (REAL)(1 / (1 - s->dropout)));
    transpose(w->qt, STRIP, w->q, ld, width, ld, (REAL)(s->scale * LOG2E));
    transpose(w->gt, STRIP, w->g, ld, width, ld, 1);
    for (int64_t i = 0; i < width; i++) {
        w->lse[i] = i < n ? *(REAL *)mat_at(f->lse, r + i, head) * (REAL)LOG2E : 0;
        w->delta[i] = i < n ? *(REAL *)mat_at(f->delta, r + i, head) : 0;
    }
    if (a->want_q)
        memset(w->dqt, 0, (size_t)(ld * STRIP) * sizeof(REAL));
}

/* Does the products of one strip with keys [from, to) of the packed block. */
static void tile_bwd(const Backward *f, const Range *a, const Panels *x, const Rows *w, int64_t from,
                     int64_t to)
{
    int64_t dim = f->s->dim, ld = f->ld, n = to - from, width = w->t.width;
    REAL *k = x->k + (from - x->packed) * ld, *v = x->v + (from - x->packed) * ld;
    product(1, (Product){x->p, k, w->qt, STRIP, ld, STRIP}, n, width, dim, SET, NULL);
    product(1, (Product){x->ds, v, w->gt, STRIP, ld, STRIP}, n, width, dim, SET, NULL);
    softmax_bwd(w, x->p, x->ds, from, n);
    if (a->want_kv) {
        REAL *dk = x->dk + (from - a->j0) * ld, *dv = x->dv + (from - a->j0) * ld;
        product(1, (Product){dv, x->p, w->g, ld, STRIP, ld}, n, ld, w->t.n, ADD, NULL);
        product(1, (Product){dk, x->ds, w->q, ld, STRIP, ld}, n, ld, w->t.n, ADD, NULL);
    }
    if (a->want_q)
        product(0, (Product){w->dqt, k, x->ds, STRIP, ld, STRIP}, dim, width, n, ADD, NULL);
}

/* Does a group of strips of one head with the keys of the range that they see. */
static void group_bwd(const Backward *f, const Range *a, Panels *x, Rows *w, int count, int head)
{
    const Attention *s = f->s;
    int64_t dim = s->dim, first = a->j1, end = a->j0, block = f->block;
    for (int i = 0; i < count; i++) {
        first = w[i].t.first < first ? w[i].t.first : first;
        end = w[i].t.end > end ? w[i].t.end : end;
    }
    first = first > a->j0 ? first : a->j0;
    end = end < a->j1 ? end : a->j1;
    if (first >= end && !a->want_q)
        return;
    for (int i = 0; i < count; i++)
        begin(f, a, &w[i], head);
    for (int64_t j = first / block * block; j < end; j += block) {
        int64_t stop = j + block < s->seq_k ? j + block : s->seq_k;
        if (x->packed != j) {
            pack(x->k, f->ld, f->k, a->b * s->seq_k + j, stop - j, a->kv * dim, dim);
            pack(x->v, f->ld, f->v, a->b * s->seq_k + j, stop - j, a->kv * dim, dim);
            x->packed = j;
        }
        for (int i = 0; i < count; i++) {
            int64_t from = j > w[i].t.first ? j : w[i].t.first, to = stop < w[i].t.end ? stop : w[i].t.end;
            if (from < to)
                tile_bwd(f, a, x, &w[i], from, to);
        }
    }
    for (int i = 0; a->want_q && i < count; i++) {
        transpose(w[i].q, f->ld, w[i].dqt, STRIP, f->ld, w[i].t.width, (REAL)s->scale);
        unpack(f->dq, a->b * s->seq_q + w[i].t.i0, w[i].t.n, head * dim, dim, w[i].q, f->ld);
    }
}

static void range(const Backward *f, const Range *a, int thread)
{
    const Attention *s = f->s;
    int64_t dim = s->dim, ld = f->ld, panel = ld * STRIP, sums = (a->j1 - a->j0) * ld;
    int64_t r = a->b * s->seq_k + a->j0;
    REAL *at = FN(row_buf)(f->d, thread, 2), *k = FN(row_buf)(f->d, thread, 3), *g;
    Panels x = {.dk = FN(sum_buf)(f->d, thread, 0), .dv = FN(sum_buf)(f->d, thread, 1), .packed = -1};
    x.k = k, x.v = x.k + f->block * ld, x.p = x.v + f->block * ld, x.ds = x.p + f->block * STRIP;
    g = x.ds + f->block * STRIP;
    Rows w[GROUP];
    for (int i = 0; i < f->group; i++, at += 4 * panel, g += panel)
        w[i].qt = at, w[i].gt = at + panel, w[i].dqt = at + 2 * panel, w[i].q = at + 3 * panel, w[i].g = g;
    if (a->want_kv) {
        memset(x.dk, 0, (size_t)sums * sizeof(REAL));
        memset(x.dv, 0, (size_t)sums * sizeof(REAL));
    }
    for (int head = a->head0; head < a->head1; head++)
        for (int64_t i = a->i0; i < a->i1;) {
            int count = 0;
            for (; count < f->group && i < a->i1; count++, i += STRIP)
                strip_open(&w[count].t, s, a->b, i, a->i1);
            group_bwd(f, a, &x, w, count, head);
        }
    if (a->want_kv) {
        for (int64_t i = 0; i < sums; i += VN)
            vstore(x.dk + i, vload(x.dk + i) * (REAL)s->scale);
        unpack(f->dk, r, a->j1 - a->j0, a->kv * dim, dim, x.dk, ld);
        unpack(f->dv, r, a->j1 - a->j0, a->kv * dim, dim, x.dv, ld);
    }
}

static void bwd_kv(void *ctx, int64_t item, int thread)
{
    const Backward *f = ctx;
    const Attention *s = f->s;
    int64_t heads = s->batch * s->kv_heads, j = item / heads * f->keys;   /* the longest items come first */
    int kv = (int)(item % s->kv_heads), group = s->heads / s->kv_heads;
    Range a = {item % heads / s->kv_heads, kv, kv * group, (kv + 1) * group, 0, s->seq_q,
               j, j + f->keys < s->seq_k ? j + f->keys : s->seq_k, f->whole, 1};
    range(f, &a, thread);
}

static void bwd_q(void *ctx, int64_t item, int thread)
{
    const Backward *f = ctx;
    const Attention *s = f->s;
    int64_t heads = s->batch * s->heads, rows = f->group * STRIP, runs = (s->seq_q + rows - 1) / rows;
    int64_t i = (runs - 1 - item / heads) * rows;
    int head = (int)(item % s->heads);
    Range a = {item % heads / s->heads, head / (s->heads / s->kv_heads), head, head + 1,
               i, i + rows < s->seq_q ? i + rows : s->seq_q, 0, s->seq_k, 1, 0};
    range(f, &a, thread);
}

void FN(cpu_attention_bwd)(Device *d, Mat dq, Mat dk, Mat dv, Mat dout, Mat o, Mat lse, Mat delta, Mat q,
                           Mat k, Mat v, const Attention *s)
{
    int64_t n = s->batch * s->seq_q, dim = s->dim, qcols = s->heads * dim, kcols = s->kv_heads * dim;
    int64_t items = s->batch * s->kv_heads, threads = pool_threads(d->pool), ld = whole_vectors(dim);
    BUG_ON(dim < 1 || dim > HEAD_MAX || s->kv_heads < 1 || s->heads % s->kv_heads);
    BUG_ON(s->seq_q != s->seq_k || s->pos0 || q.rows != n || k.rows != n || v.rows != n || dout.rows != n);
    BUG_ON(dq.rows != n || dk.rows != n || dv.rows != n || o.rows != n || lse.rows != n || delta.rows != n);
    BUG_ON(q.cols != qcols || dq.cols != qcols || dout.cols != qcols || o.cols != qcols);
    BUG_ON(k.cols != kcols || v.cols != kcols || dk.cols != kcols || dv.cols != kcols);
    BUG_ON(lse.type != REAL_TYPE || delta.type != REAL_TYPE);
    int64_t group = HEAD_MAX / ld < GROUP ? HEAD_MAX / ld : GROUP;
    Backward f = {d, s, dq, dk, dv, dout, o, lse, delta, q, k, v, ld, key_block(ld), group, s->seq_k, 1};
    pool_run(d->pool, delta_rows, &f, (n + DELTA_ROWS - 1) / DELTA_ROWS);
    /* whole takes 2/3 of the time of parts (measured), unless threads idle in its last round */
    int64_t slots = (items + threads - 1) / threads * threads, rows = f.group * STRIP;
    f.whole = s->seq_k * ld <= SUM_MAX && items * 3 >= slots * 2;
    if (!f.whole)
        f.keys = f.block;
    pool_run(d->pool, bwd_kv, &f, items * ((s->seq_k + f.keys - 1) / f.keys));
    if (!f.whole)
        pool_run(d->pool, bwd_q, &f, s->batch * s->heads * ((s->seq_q + rows - 1) / rows));
}
