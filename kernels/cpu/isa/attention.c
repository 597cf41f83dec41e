/* attention -- attention's forward: strips of queries against block after block of keys.
 *
 * The maximum and the sum of each softmax row are corrected when a larger score appears (Milakov,
 * Gimelshein 2018, arXiv:1805.02867; Dao 2023, arXiv:2307.08691). A row's maximum is that of its
 * products of queries and keys before the scale: with one key, exp2(0) is 1 and the result is its value.
 *
 * The bits of a query's result depend on the blocks of keys, which start at multiples of key_block(),
 * and not on the query's strip or item. So a token generated with a cache gets the same bits as in a
 * pass over the whole text, and the length of an item may depend on the number of threads. */
#include "attention_tile.h"

#define STRIPS 32                /* most strips of an item: they share the conversion of keys and values */

typedef struct {
    Device *d;
    const Attention *s;
    Mat q, k, v, o, lse;
    int64_t queries, strips, items;    /* queries of a sample; strips of an item; items of a head */
} Forward;
typedef struct { Strip t; Drop drop; REAL max[STRIP], sum[STRIP], alpha[STRIP]; } Rows;

/* Makes the exponentials of lanes [v, v + VN) below `top`, with k across the lanes, and returns their sums.
 * drop: bool, known when it is compiled: masks of dropout would else push what the loop needs out of the
 * registers. */
INLINE Vec exponentials(const Rows *w, REAL *p, Vec factor, Vec top, int64_t j, int64_t n, int64_t v,
                        const int drop)
{
    Vec sum = vset(0);
    IVec keep[4] = {{0}};
    for (int64_t i = 0; i < n; i += PER) {
        Vec e[PER] = {{0}};
#pragma GCC unroll 2
        for (int r = 0; r < PER; r++) {
            if (i + r == n)
                break;
            e[r] = vexp2((vload(p + (i + r) * STRIP + v) - top) * factor);
            sum += e[r];
            if (drop)
                e[r] = vselect(drop_mask(keep, &w->drop, v, j + i + r, i + r == 0), e[r], vset(0));
        }
        put_across(p, i, v, e);
    }
    return sum;
}

/* Softmax of one block of keys. Dropped elements are in the sum but 0 in p. A row that has seen no key
 * keeps its finite first maximum, so that exp2(-inf - max) is 0.
 *   w       in/out              max and sum of the rows so far; alpha: what earlier sums are multiplied by
 *   p       in/out  [n][STRIP]  products of queries and keys j .. j+n; becomes the exponentials, with k
 *                               across the lanes (put_across)
 *   factor  in                  scale * log2(e) */
static void softmax(Rows *w, REAL *p, REAL factor, int64_t j, int64_t n)
{
    int masked = strip_masked(&w->t, j, j + n);
    for (int64_t v = 0; v < w->t.width; v += VN) {
        Vec old = vload(w->max + v), none = vset(-INFINITY), top = none, sum;
        REAL *x = p + v;
        for (int64_t i = 0; masked && i < n; i++)
            vstore(x + i * STRIP, vselect(strip_sees(&w->t, v, j + i), vload(x + i * STRIP), none));
        int64_t i = 0;
        for (; i + 4 <= n; i += 4) {    /* a tree: the chain of maxima has one link in four rows */
            Vec a = vmax(vload(x + i * STRIP), vload(x + (i + 1) * STRIP));
            Vec b = vmax(vload(x + (i + 2) * STRIP), vload(x + (i + 3) * STRIP));
            top = vmax(vmax(a, b), top);
        }
        for (; i < n; i++)
            top = vmax(vload(x + i * STRIP), top);
        top = vmax(top, old);
        sum = w->drop.limit ? exponentials(w, p, vset(factor), top, j, n, v, 1)
                            : exponentials(w, p, vset(factor), top, j, n, v, 0);
        Vec alpha = vexp2((old - top) * factor);
        vstore(w->max + v, top);
        vstore(w->sum + v, vload(w->sum + v) * alpha + sum);
        vstore(w->alpha + v, alpha);
    }
}

/* Starts a strip.
 *   q    out  [ld / PER][STRIP]  the strip's queries
 *   out  out  [ld][STRIP]        zeros
 *   row  out  [STRIP][ld]        scratch */
static void begin(const Forward *f, Rows *w, int64_t b, int head, Elem *q, REAL *out, REAL *row)
{
    const Attention *s = f->s;
    int64_t dim = s->dim, ld = whole_vectors(dim);
    w->drop = drop_open(s, b, head, &w->t);
    for (int i = 0; i < STRIP; i++) {
        w->max[i] = (REAL)-1e30;
        w->sum[i] = 0;
    }
    Panel rows = panel_at(row, STRIP, ld);
    panel_rows(rows, ld, f->q, b * s->q.stride + w->t.row, w->t.n, w->t.width, head * dim, dim);
    transpose(q, STRIP, rows.along, ld / PER, w->t.width, ld / PER);
    memset(out, 0, (size_t)(ld * STRIP) * sizeof(REAL));
}

/* Writes o and lse of a finished strip. out [ld][STRIP] are the sums, not yet divided; row is scratch. */
static void finish(const Forward *f, Rows *w, int64_t b, int head, REAL *out, REAL *row)
{
    const Attention *s = f->s;
    int64_t dim = s->dim, ld = whole_vectors(dim), r = b * s->q.stride + w->t.row;
    for (int64_t i = 0; i < w->t.width; i++) {
        REAL sum = w->sum[i], lse = sum == 0 ? -INFINITY : w->max[i] * (REAL)s->scale + (REAL)log(sum);
        w->alpha[i] = sum == 0 ? 0 : (REAL)(1 / (1 - s->dropout)) / sum;
        if (i < w->t.n)
            *(REAL *)mat_at(f->lse, r + i, head) = lse;
    }
    for (int64_t c = 0; c < dim; c++)
        for (int64_t v = 0; v < w->t.width; v += VN)
            vstore(out + c * STRIP + v, vload(out + c * STRIP + v) * vload(w->alpha + v));
    transpose((Elem *)row, ld, (Elem *)out, STRIP, ld, w->t.width);
    unpack(f->o, r, w->t.n, head * dim, dim, row, ld);
}

/* The panels of a thread. */
typedef struct {
    REAL *q, *out;               /* [strips][ld][STRIP] queries (Elem); sums of values */
    Panel k, v;                  /* [block][ld] keys and values of a block */
    REAL *p;                     /* [block][STRIP] */
    REAL *row;                   /* [STRIP][ld] scratch */
} Panels;

/* Adds the keys [first, end) of a run to n strips of a head. */
static void add_run(const Forward *f, const PositionRun *r, const Panels *x, Rows *w, int n, int64_t b,
                    int head, int64_t first, int64_t end)
{
    const Attention *s = f->s;
    int64_t dim = s->dim, ld = whole_vectors(dim), block = key_block(ld), panel = ld * STRIP;
    int kv = head / (s->heads / s->kv_heads);
    run_clip(r, &first, &end);
    for (int64_t j = first / block * block; j < end; j += block) {
        int64_t base = j > r->start ? j : r->start, stop = j + block < end ? j + block : end;
        int64_t at = b * s->k.stride + r->row + base - r->start;
        int64_t rows = stop - base;
        Panel k = panel_of(x->k, ld, f->k, at, rows, kv * dim, dim, n);
        Panel v = panel_of(x->v, ld, f->v, at, rows, kv * dim, dim, n);
        panel_turn(v, ld, rows, block);
        for (int i = 0; i < n; i++) {
            const Strip *t = &w[i].t;
            int64_t from, to, skip = strip_keys(t, base, stop, &from, &to);
            if (from >= to)
                continue;
            const Elem *qi = (const Elem *)(x->q + i * panel), *p = (const Elem *)x->p;
            Product scores = {x->p, k.along + skip * k.step, qi, STRIP, k.step, STRIP};
            product(1, scores, to - from, t->width, dim, SET, NULL);
            softmax(&w[i], x->p, (REAL)(s->scale * LOG2E), from, to - from);
            zeros_across(x->p, to - from);
            Product sums = across(x->out + i * panel, v.across, skip, p, ld, block);
            product(ACROSS, sums, dim, t->width, to - from, SCALE, w[i].alpha);
        }
    }
}

static void forward(void *ctx, int64_t item, int thread)
{
    const Forward *f = ctx;
    const Attention *s = f->s;
    int64_t heads = s->batch * s->heads, b = item % heads / s->heads, ld = whole_vectors(s->dim);
    int64_t i = (f->items - 1 - item / heads) * f->strips * STRIP;      /* longest items first */
    int64_t stop = i + f->strips * STRIP, block = key_block(ld), panel = ld * STRIP;
    int head = (int)(item % s->heads);
    Panels x = {.q = FN(row_buf)(f->d, thread, 0), .out = FN(row_buf)(f->d, thread, 1),
                .p = FN(row_buf)(f->d, thread, 2)};
    x.row = x.p + block * STRIP;
    x.k = panel_at(x.row + panel, block, ld);
    x.v = panel_at(x.row + panel + block * ld, block, ld);
    Rows w[STRIPS];
    units_begin();
    for (stop = stop < f->queries ? stop : f->queries; i < stop;) {
        int64_t first = INT64_MAX, end = 0;
        int n = 0;
        for (; n < f->strips && i < stop; i += w[n++].t.n) {
            strip_open(&w[n].t, s, b, i, stop);
            begin(f, &w[n], b, head, (Elem *)(x.q + n * panel), x.out + n * panel, x.row);
            first = w[n].t.first < first ? w[n].t.first : first;
            end = w[n].t.end > end ? w[n].t.end : end;
        }
        for (int r = 0; r < s->k.count; r++)
            add_run(f, &s->k.run[r], &x, w, n, b, head, first, end);
        for (int k = 0; k < n; k++)
            finish(f, &w[k], b, head, x.out + k * panel, x.row);
    }
    units_end();
}

#if PER == 1
/* ---- two pieces of keys ---- */

typedef struct { Device *d; Mat o, lse, piece, plse; } Merge;

static void merge_row(void *ctx, int64_t r, int thread)
{
    const Merge *m = ctx;
    int64_t heads = m->lse.cols, dim = m->o.cols / heads;
    REAL *piece = FN(row_buf)(m->d, thread, 0);
    for (int64_t h = 0; h < heads; h++) {
        REAL *lse = mat_at(m->lse, r, h), *o = mat_at(m->o, r, h * dim);
        REAL b = *(REAL *)mat_at(m->plse, r, h), top = *lse > b ? *lse : b;
        if (b == -INFINITY)
            continue;
        REAL wa = (REAL)exp(*lse - top), wb = (REAL)exp(b - top), sum = wa + wb;
        pack(piece, dim, m->piece, r, 1, h * dim, dim);
        for (int64_t c = 0; c < dim; c++)
            o[c] = (o[c] * wa + piece[c] * wb) / sum;
        *lse = top + (REAL)log(sum);
    }
}

void FN(cpu_attention_merge)(Device *d, Mat o, Mat lse, Mat piece, Mat plse)
{
    BUG_ON(o.rows != lse.rows || o.rows != piece.rows || o.rows != plse.rows || o.cols != piece.cols);
    BUG_ON(o.type != REAL_TYPE || lse.type != REAL_TYPE || plse.type != REAL_TYPE || lse.cols != plse.cols);
    BUG_ON(o.cols % lse.cols || o.cols / lse.cols > HEAD_MAX);
    Merge m = {d, o, lse, piece, plse};
    pool_run(d->pool, merge_row, &m, o.rows);
}
#endif

void OP(cpu_attention_fwd)(Device *d, Mat o, Mat lse, Mat q, Mat k, Mat v, const Attention *s)
{
    int64_t queries = positions_rows(&s->q), heads = s->batch * s->heads, dim = s->dim;
    if (PER == 2 && q.type != BF16) {
        FN(cpu_attention_fwd)(d, o, lse, q, k, v, s);
        return;
    }
    BUG_ON(s->dim < 1 || s->dim > HEAD_MAX || s->kv_heads < 1 || s->heads % s->kv_heads);
    BUG_ON(q.rows != s->batch * queries || o.rows != q.rows || lse.rows != q.rows);
    BUG_ON(k.rows != s->batch * positions_rows(&s->k) || v.rows != k.rows);
    BUG_ON(q.cols != s->heads * dim || o.cols != q.cols || lse.cols != s->heads || lse.type != REAL_TYPE);
    BUG_ON(k.cols != s->kv_heads * dim || v.cols != k.cols || q.type != k.type || q.type != v.type);
    /* an item is a whole head if that makes eight items a thread, or else a part of one; at most as many
     * strips as fit the row buffers */
    int64_t strips = (queries + STRIP - 1) / STRIP, room = ROW_MAX / (whole_vectors(dim) * STRIP);
    int64_t cuts = heads ? (8 * pool_threads(d->pool) + heads - 1) / heads : 1;
    int64_t each = (strips + cuts - 1) / cuts, most = room < STRIPS ? room : STRIPS;
    each = each < 1 ? 1 : each < most ? each : most;
    Forward f = {d, s, q, k, v, o, lse, queries, each, (strips + each - 1) / each};
    pool_run(d->pool, forward, &f, f.items * heads);
}
