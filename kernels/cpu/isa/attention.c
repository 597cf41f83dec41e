/* Attention, forward: a block of queries against block after block of keys, with the maximum and the sum of
 * each softmax row corrected as larger scores appear (Milakov, Gimelshein 2018, arXiv:1805.02867; Dao 2023,
 * arXiv:2307.08691). Scores are kept in units of log 2: the factor log2(e) comes free with `scale`.
 *
 * A query's result depends on the blocks of keys, which start at multiples of key_block(), and on nothing
 * else of its strip: a token generated with a cache gets the same bits as in a pass over the whole text. */
#include "attention_tile.h"

#define STRIPS 4                 /* of one work item: they share the conversion of keys and values */

typedef struct { Device *d; const Attention *s; Mat q, k, v, o, lse; int64_t blocks; } Forward;
typedef struct { Strip t; Drop drop; REAL max[STRIP], sum[STRIP], alpha[STRIP]; } Rows;

/* Scores p [n][STRIP] of keys j.. become exp2(score - max); max, sum and alpha (by how much what was summed so far
 * shrinks) of the rows follow. Dropped elements count in the sum but not in p. A row that has seen nothing keeps
 * its finite start, so that exp2(-inf - max) is 0. */
static void softmax(Rows *w, REAL *p, int64_t j, int64_t n)
{
    int masked = strip_masked(&w->t, j, j + n);
    for (int64_t v = 0; v < w->t.width; v += VN) {
        Vec old = vload(w->max + v), top = old, sum = vset(0);
        REAL *x = p + v;
        if (masked)
            for (int64_t i = 0; i < n; i++)
                vstore(x + i * STRIP, vselect(strip_sees(&w->t, v, j + i), vload(x + i * STRIP), vset(-INFINITY)));
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

/* o and lse of a finished strip; out [dim][STRIP] are the unnormalised sums, row a buffer [STRIP][ld]. */
static void finish(const Forward *f, Rows *w, int64_t b, int head, REAL *out, REAL *row)
{
    const Attention *s = f->s;
    int64_t ld = whole_vectors(s->dim), r = b * s->seq_q + w->t.i0;
    for (int64_t i = 0; i < w->t.width; i++) {
        REAL sum = w->sum[i];
        w->alpha[i] = sum == 0 ? 0 : (REAL)(1 / (1 - s->dropout)) / sum;
        if (i < w->t.n)
            *(REAL *)mat_at(f->lse, r + i, head) = sum == 0 ? -INFINITY : (w->max[i] + (REAL)log2(sum)) * (REAL)LN2;
    }
    for (int64_t c = 0; c < s->dim; c++)
        for (int64_t v = 0; v < w->t.width; v += VN)
            vstore(out + c * STRIP + v, vload(out + c * STRIP + v) * vload(w->alpha + v));
    transpose(row, ld, out, STRIP, ld, w->t.width, 1);
    unpack(f->o, r, w->t.n, (int64_t)head * s->dim, s->dim, row, ld);
}

static void forward(void *ctx, int64_t item, int thread)
{
    const Forward *f = ctx;
    const Attention *s = f->s;
    int64_t heads = s->batch * s->heads, b = item % heads / s->heads;
    int head = (int)(item % s->heads), kv = head / (s->heads / s->kv_heads);
    int64_t i0 = (f->blocks - 1 - item / heads) * STRIPS * STRIP;     /* the longest rows first: even finish */
    int64_t dim = s->dim, ld = whole_vectors(dim), block = key_block(ld), first = s->seq_k, end = 0;
    REAL *q = FN(row_buf)(f->d, thread, 0), *out = FN(row_buf)(f->d, thread, 1), *p = FN(row_buf)(f->d, thread, 3);
    REAL *row = FN(row_buf)(f->d, thread, 2), *k = row + PANEL, *v = k + block * ld;
    Rows w[STRIPS];
    int n = 0;
    for (; n < STRIPS && i0 + n * STRIP < s->seq_q; n++) {
        Strip *t = &w[n].t;
        strip_open(t, s, b, i0 + n * STRIP, s->seq_q);
        w[n].drop = drop_open(s, b, head, t);
        first = t->first < first ? t->first : first;
        end = t->end > end ? t->end : end;
        for (int i = 0; i < STRIP; i++) {
            w[n].max[i] = (REAL)-1e30;
            w[n].sum[i] = 0;
        }
        pack(row, ld, t->width, f->q, b * s->seq_q + t->i0, t->n, head * dim, dim);
        transpose(q + n * ld * STRIP, STRIP, row, ld, t->width, ld, (REAL)(s->scale * LOG2E));
        memset(out + n * ld * STRIP, 0, (size_t)(ld * STRIP) * sizeof(REAL));
    }
    for (int64_t j = first / block * block; j < end; j += block) {
        int64_t stop = j + block < end ? j + block : end;
        pack(k, ld, stop - j, f->k, b * s->seq_k + j, stop - j, kv * dim, dim);
        pack(v, ld, stop - j, f->v, b * s->seq_k + j, stop - j, kv * dim, dim);
        for (int i = 0; i < n; i++) {
            const Strip *t = &w[i].t;
            int64_t from = j > t->first ? j : t->first, to = stop < t->end ? stop : t->end, seen = to - from;
            if (seen <= 0)
                continue;
            REAL *oi = out + i * ld * STRIP, *ki = k + (from - j) * ld, *vi = v + (from - j) * ld;
            product(1, (Product){p, ki, q + i * ld * STRIP, STRIP, ld, STRIP}, seen, t->width, dim, SET, NULL);
            softmax(&w[i], p, from, seen);
            product(0, (Product){oi, vi, p, STRIP, ld, STRIP}, dim, t->width, seen, SCALE, w[i].alpha);
        }
    }
    for (int i = 0; i < n; i++)
        finish(f, &w[i], b, head, out + i * ld * STRIP, row);
}

void FN(cpu_attention_fwd)(Device *d, Mat o, Mat lse, Mat q, Mat k, Mat v, const Attention *s)
{
    int64_t queries = s->batch * s->seq_q, keys = s->batch * s->seq_k, dim = s->dim;
    BUG_ON(s->dim < 1 || s->dim > HEAD_MAX || s->kv_heads < 1 || s->heads % s->kv_heads);
    BUG_ON(q.rows != queries || o.rows != queries || lse.rows != queries || k.rows != keys || v.rows != keys);
    BUG_ON(q.cols != s->heads * dim || o.cols != q.cols || lse.cols != s->heads || lse.type != REAL_TYPE);
    BUG_ON(k.cols != s->kv_heads * dim || v.cols != k.cols || q.type != k.type || q.type != v.type);
    Forward f = {d, s, q, k, v, o, lse, (s->seq_q + STRIPS * STRIP - 1) / (STRIPS * STRIP)};
    pool_run(d->pool, forward, &f, f.blocks * s->batch * s->heads);
}
