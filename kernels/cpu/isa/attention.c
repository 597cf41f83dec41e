/* Attention, forward: a run of queries against block after block of keys, with the maximum and the sum of
 * each softmax row corrected as larger scores appear (Milakov, Gimelshein 2018, arXiv:1805.02867; Dao 2023,
 * arXiv:2307.08691). Scores are kept in units of log 2: the factor log2(e) comes free with `scale`.
 *
 * A query's result depends on the blocks of keys, which start at multiples of key_block(), and on nothing
 * else of its strip or item: a token generated with a cache gets the same bits as in a pass over the whole
 * text, and the length of an item may follow the number of threads. */
#include "attention_tile.h"

#define STRIPS 32                /* of one item at most: they share the conversion of keys and values */

typedef struct { Device *d; const Attention *s; Mat q, k, v, o, lse; int64_t strips, items; } Forward;
typedef struct { Strip t; Drop drop; REAL max[STRIP], sum[STRIP], alpha[STRIP]; } Rows;

/* Scores p [n][STRIP] of keys j.. become exp2(score - max); max, sum and alpha (by how much what was summed
 * so far shrinks) of the rows follow. Dropped elements count in the sum but not in p. A row that has seen
 * nothing keeps its finite start, so that exp2(-inf - max) is 0. */
static void softmax(Rows *w, REAL *p, int64_t j, int64_t n)
{
    int masked = strip_masked(&w->t, j, j + n);
    for (int64_t v = 0; v < w->t.width; v += VN) {
        Vec old = vload(w->max + v), top = old, sum = vset(0), none = vset(-INFINITY);
        REAL *x = p + v;
        for (int64_t i = 0; masked && i < n; i++)
            vstore(x + i * STRIP, vselect(strip_sees(&w->t, v, j + i), vload(x + i * STRIP), none));
        int64_t i = 0;
        for (; i + 4 <= n; i += 4) {    /* a tree: one link of the chain in four rows */
            Vec a = vmax(vload(x + i * STRIP), vload(x + (i + 1) * STRIP));
            Vec b = vmax(vload(x + (i + 2) * STRIP), vload(x + (i + 3) * STRIP));
            top = vmax(vmax(a, b), top);
        }
        for (; i < n; i++)
            top = vmax(vload(x + i * STRIP), top);
        IVec keep[4] = {{0}};
        for (i = 0; i < n; i++) {
            Vec e = vexp2(vload(x + i * STRIP) - top);
            sum += e;
            if (w->drop.limit) {
                if (i == 0 || (j + i) % 4 == 0)
                    drop_masks(keep, &w->drop, v, (j + i) & ~(int64_t)3);
                e = vselect(keep[(j + i) % 4], e, vset(0));
            }
            vstore(x + i * STRIP, e);
        }
        Vec alpha = vexp2(old - top);
        vstore(w->max + v, top);
        vstore(w->sum + v, vload(w->sum + v) * alpha + sum);
        vstore(w->alpha + v, alpha);
    }
}

/* A strip begins: q [ld][STRIP] scaled queries, out [ld][STRIP] zero; row is a buffer [STRIP][ld]. */
static void begin(const Forward *f, Rows *w, int64_t b, int head, REAL *q, REAL *out, REAL *row)
{
    const Attention *s = f->s;
    int64_t dim = s->dim, ld = whole_vectors(dim);
    w->drop = drop_open(s, b, head, &w->t);
    for (int i = 0; i < STRIP; i++) {
        w->max[i] = (REAL)-1e30;
        w->sum[i] = 0;
    }
    pack(row, ld, f->q, b * s->seq_q + w->t.i0, w->t.n, head * dim, dim);
    memset(row + w->t.n * ld, 0, (size_t)((w->t.width - w->t.n) * ld) * sizeof(REAL));
    transpose(q, STRIP, row, ld, w->t.width, ld, (REAL)(s->scale * LOG2E));
    memset(out, 0, (size_t)(ld * STRIP) * sizeof(REAL));
}

/* o and lse of a finished strip; out [ld][STRIP] are the unnormalised sums. */
static void finish(const Forward *f, Rows *w, int64_t b, int head, REAL *out, REAL *row)
{
    const Attention *s = f->s;
    int64_t dim = s->dim, ld = whole_vectors(dim), r = b * s->seq_q + w->t.i0;
    for (int64_t i = 0; i < w->t.width; i++) {
        REAL sum = w->sum[i], lse = sum == 0 ? -INFINITY : (w->max[i] + (REAL)log2(sum)) * (REAL)LN2;
        w->alpha[i] = sum == 0 ? 0 : (REAL)(1 / (1 - s->dropout)) / sum;
        if (i < w->t.n)
            *(REAL *)mat_at(f->lse, r + i, head) = lse;
    }
    for (int64_t c = 0; c < dim; c++)
        for (int64_t v = 0; v < w->t.width; v += VN)
            vstore(out + c * STRIP + v, vload(out + c * STRIP + v) * vload(w->alpha + v));
    transpose(row, ld, out, STRIP, ld, w->t.width, 1);
    unpack(f->o, r, w->t.n, head * dim, dim, row, ld);
}

static void forward(void *ctx, int64_t item, int thread)
{
    const Forward *f = ctx;
    const Attention *s = f->s;
    int64_t heads = s->batch * s->heads, b = item % heads / s->heads, dim = s->dim, ld = whole_vectors(dim);
    int64_t i0 = (f->items - 1 - item / heads) * f->strips * STRIP;     /* long rows first: an even finish */
    int64_t block = key_block(ld), panel = ld * STRIP, first = s->seq_k, end = 0;
    int head = (int)(item % s->heads), kv = head / (s->heads / s->kv_heads), n = 0;
    REAL *q = FN(row_buf)(f->d, thread, 0), *out = FN(row_buf)(f->d, thread, 1);
    REAL *k = FN(row_buf)(f->d, thread, 2), *v = k + block * ld, *p = v + block * ld;
    REAL *row = p + block * STRIP;
    Rows w[STRIPS];
    for (; n < f->strips && i0 + n * STRIP < s->seq_q; n++) {
        strip_open(&w[n].t, s, b, i0 + n * STRIP, s->seq_q);
        begin(f, &w[n], b, head, q + n * panel, out + n * panel, row);
        first = w[n].t.first < first ? w[n].t.first : first;
        end = w[n].t.end > end ? w[n].t.end : end;
    }
    for (int64_t j = first / block * block; j < end; j += block) {
        int64_t stop = j + block < end ? j + block : end;
        pack(k, ld, f->k, b * s->seq_k + j, stop - j, kv * dim, dim);
        pack(v, ld, f->v, b * s->seq_k + j, stop - j, kv * dim, dim);
        for (int i = 0; i < n; i++) {
            const Strip *t = &w[i].t;
            int64_t from = j > t->first ? j : t->first, to = stop < t->end ? stop : t->end, seen = to - from;
            if (seen <= 0)
                continue;
            REAL *qi = q + i * panel, *oi = out + i * panel;
            REAL *ki = k + (from - j) * ld, *vi = v + (from - j) * ld;
            product(1, (Product){p, ki, qi, STRIP, ld, STRIP}, seen, t->width, dim, SET, NULL);
            softmax(&w[i], p, from, seen);
            product(0, (Product){oi, vi, p, STRIP, ld, STRIP}, dim, t->width, seen, SCALE, w[i].alpha);
        }
    }
    for (int i = 0; i < n; i++)
        finish(f, &w[i], b, head, out + i * panel, row);
}

void FN(cpu_attention_fwd)(Device *d, Mat o, Mat lse, Mat q, Mat k, Mat v, const Attention *s)
{
    int64_t queries = s->batch * s->seq_q, keys = s->batch * s->seq_k, heads = s->batch * s->heads;
    int64_t dim = s->dim;
    BUG_ON(s->dim < 1 || s->dim > HEAD_MAX || s->kv_heads < 1 || s->heads % s->kv_heads);
    BUG_ON(q.rows != queries || o.rows != queries || lse.rows != queries || k.rows != keys || v.rows != keys);
    BUG_ON(q.cols != s->heads * dim || o.cols != q.cols || lse.cols != s->heads || lse.type != REAL_TYPE);
    BUG_ON(k.cols != s->kv_heads * dim || v.cols != k.cols || q.type != k.type || q.type != v.type);
    /* whole heads when there are enough of them for an even finish, and as far as a strip's panels fit */
    int64_t strips = (s->seq_q + STRIP - 1) / STRIP, room = ROW_MAX / (whole_vectors(dim) * STRIP);
    int64_t cuts = heads ? (8 * pool_threads(d->pool) + heads - 1) / heads : 1;
    int64_t each = (strips + cuts - 1) / cuts, most = room < STRIPS ? room : STRIPS;
    each = each < 1 ? 1 : each < most ? each : most;
    Forward f = {d, s, q, k, v, o, lse, each, (strips + each - 1) / each};
    pool_run(d->pool, forward, &f, f.items * heads);
}
