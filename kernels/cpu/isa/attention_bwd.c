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
    int64_t queries, keys;       /* of a sample */
    int whole;                   /* bool */
} Backward;

/* The part of the backward that one call of range() does. */
typedef struct {
    int64_t b;                   /* sample */
    int kv, head0, head1;        /* key/value head; its query heads [head0, head1) */
    int64_t i0, i1, j0, j1;      /* queries [i0, i1) and keys [j0, j1), counted through the sample's runs */
    int want_q, want_kv;         /* bool: make dq; make dk and dv */
} Range;

/* Panels that the strips of a thread share. */
typedef struct {
    REAL *dk, *dv;               /* [j1 - j0][ld] sums */
    Panel k, v;                  /* [block][ld] keys and values of the packed block */
    REAL *p, *ds, *ds_across;    /* [block][STRIP]; the third holds ds with k across the lanes */
    int64_t packed;              /* first key of the packed block, a position; -1: none */
} Panels;

/* One strip. */
typedef struct {
    Strip t;
    Drop drop;
    REAL lse[STRIP], delta[STRIP];     /* lse in units of log 2 */
    Elem *qt, *gt;               /* [ld / PER][STRIP] queries; do */
    REAL *dqt;                   /* [ld][STRIP] sum of dq */
    Panel q, g;                  /* [STRIP][ld] queries; do */
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

/* What softmax_bwd does for lanes [v, v + VN). masked, drop: bool, known when it is compiled: what they take
 * would else push what the loop needs out of the registers. */
INLINE void softmax_lanes(const Rows *w, const Panels *x, REAL factor, REAL grow, int64_t j, int64_t n,
                          int64_t v, const int masked, const int drop)
{
    Vec lse = vload(w->lse + v), delta = vload(w->delta + v);
    IVec keep[4] = {{0}};
    for (int64_t i = 0; i < n; i += PER) {
        Vec ds[PER] = {{0}};
#pragma GCC unroll 2
        for (int r = 0; r < PER; r++) {
            if (i + r == n)
                break;
            int64_t at = (i + r) * STRIP + v, key = j + i + r;
            Vec e = vexp2(vload(x->p + at) * factor - lse), g = vload(x->ds + at), kept = e;
            if (masked)
                kept = e = vselect(strip_sees(&w->t, v, key), e, vset(0));
            if (drop) {
                IVec mask = drop_mask(keep, &w->drop, v, key, i + r == 0);
                g = vselect(mask, g * grow, vset(0));
                kept = vselect(mask, e * grow, vset(0));
            }
            ds[r] = e * (g - delta);
            put_along(x->p, i + r, v, kept);
            put_along(x->ds, i + r, v, ds[r]);
        }
        if (PER > 1)
            put_across(x->ds_across, i, v, ds);
    }
}

/* The softmax's part of the backward, for keys j .. j+n.
 *   x.p     in/out  [n][STRIP]  products of queries and keys; becomes P M
 *   x.ds    in/out  [n][STRIP]  do v^T; becomes the gradient of the scores, in x.ds_across too
 *   factor  in                  scale * log2(e)
 *   grow    in                  1 / (1 - p) */
static void softmax_bwd(const Rows *w, const Panels *x, REAL factor, REAL grow, int64_t j, int64_t n)
{
    int masked = strip_masked(&w->t, j, j + n);
    for (int64_t v = 0; v < w->t.width; v += VN)
        if (w->drop.limit)
            softmax_lanes(w, x, factor, grow, j, n, v, masked, 1);
        else if (masked)
            softmax_lanes(w, x, factor, grow, j, n, v, 1, 0);
        else
            softmax_lanes(w, x, factor, grow, j, n, v, 0, 0);
}

/* Loads a strip: queries and do in both layouts, lse and delta by lanes. */
static void begin(const Backward *f, const Range *a, Rows *w, int head)
{
    const Attention *s = f->s;
    int64_t dim = s->dim, ld = f->ld, n = w->t.n, width = w->t.width, r = a->b * s->q.stride + w->t.row;
    w->drop = drop_open(s, a->b, head, &w->t);
    panel_rows(w->q, ld, f->q, r, n, width, head * dim, dim);
    panel_rows(w->g, ld, f->dout, r, n, width, head * dim, dim);
    transpose(w->qt, STRIP, w->q.along, ld / PER, width, ld / PER);
    transpose(w->gt, STRIP, w->g.along, ld / PER, width, ld / PER);
    panel_across(w->q, ld, width);
    panel_across(w->g, ld, width);
    for (int64_t i = 0; i < width; i++) {
        w->lse[i] = i < n ? *(REAL *)mat_at(f->lse, r + i, head) * (REAL)LOG2E : 0;
        w->delta[i] = i < n ? *(REAL *)mat_at(f->delta, r + i, head) : 0;
    }
    if (a->want_q)
        memset(w->dqt, 0, (size_t)(ld * STRIP) * sizeof(REAL));
}

/* Does the products of one strip with keys [from, to) of the packed block, of which `skip` are left out.
 * `at`: row of key `from` in the sums of dk and dv. */
static void tile_bwd(const Backward *f, const Range *a, const Panels *x, const Rows *w, int64_t from,
                     int64_t to, int64_t skip, int64_t at)
{
    const Attention *s = f->s;
    int64_t dim = s->dim, ld = f->ld, n = to - from, width = w->t.width;
    const Elem *k = x->k.along + skip * ld / PER, *v = x->v.along + skip * ld / PER;
    const Elem *p = (Elem *)x->p, *ds = (Elem *)x->ds;
    product(1, (Product){x->p, k, w->qt, STRIP, ld / PER, STRIP}, n, width, dim, SET, NULL);
    product(1, (Product){x->ds, v, w->gt, STRIP, ld / PER, STRIP}, n, width, dim, SET, NULL);
    softmax_bwd(w, x, (REAL)(s->scale * LOG2E), (REAL)(1 / (1 - s->dropout)), from, n);
    if (a->want_kv) {
        product(1, (Product){x->dv + at * ld, p, w->g.across, ld, STRIP, ld}, n, ld, w->t.n, ADD, NULL);
        product(1, (Product){x->dk + at * ld, ds, w->q.across, ld, STRIP, ld}, n, ld, w->t.n, ADD, NULL);
    }
    if (a->want_q) {
        zeros_across(x->ds_across, n);
        Product sums = across(w->dqt, x->k.across, skip, (Elem *)x->ds_across, ld, f->block);
        product(ACROSS, sums, dim, width, n, ADD, NULL);
    }
}

/* The part of positions [*from, *to) that a run and the range hold. `before`: keys of earlier runs. */
static void clip(const Range *a, const PositionRun *r, int64_t before, int64_t *from, int64_t *to)
{
    int64_t first = r->start + a->j0 - before, end = r->start + a->j1 - before;
    *from = *from > first ? *from : first;
    *to = *to < end ? *to : end;
    run_clip(r, from, to);
}

/* Does a group of strips with the keys [first, end), which a run and the range hold. */
static void run_bwd(const Backward *f, const Range *a, const PositionRun *r, int64_t before, Panels *x,
                    Rows *w, int count, int64_t first, int64_t end)
{
    const Attention *s = f->s;
    int64_t dim = s->dim, block = f->block;
    for (int64_t j = first / block * block; j < end; j += block) {
        int64_t base = j, stop = j + block;
        run_clip(r, &base, &stop);
        if (x->packed != base) {
            int64_t row = a->b * s->k.stride + r->row + base - r->start;
            panel_rows(x->k, f->ld, f->k, row, stop - base, stop - base, a->kv * dim, dim);
            panel_rows(x->v, f->ld, f->v, row, stop - base, stop - base, a->kv * dim, dim);
            panel_turn(x->k, f->ld, stop - base, block);
            x->packed = base;
        }
        for (int i = 0; i < count; i++) {
            int64_t from, to, skip = strip_keys(&w[i].t, base, stop, &from, &to);
            if (from < to)
                tile_bwd(f, a, x, &w[i], from, to, skip, before + from - r->start - a->j0);
        }
    }
}

/* Does a group of strips of one head with the keys of the range that they see. */
static void group_bwd(const Backward *f, const Range *a, Panels *x, Rows *w, int count, int head)
{
    const Attention *s = f->s;
    int64_t dim = s->dim, first = INT64_MAX, end = 0, before = 0;
    int begun = 0;
    for (int i = 0; i < count; i++) {
        first = w[i].t.first < first ? w[i].t.first : first;
        end = w[i].t.end > end ? w[i].t.end : end;
    }
    for (const PositionRun *r = s->k.run; r < s->k.run + s->k.count; before += r++->n) {
        int64_t from = first, to = end;
        clip(a, r, before, &from, &to);
        for (int i = 0; !begun && (from < to || a->want_q) && i < count; i++)
            begin(f, a, &w[i], head);
        begun |= from < to || a->want_q;
        if (from < to)
            run_bwd(f, a, r, before, x, w, count, from, to);
    }
    for (int i = 0; a->want_q && i < count; i++) {
        REAL *rows = (REAL *)w[i].q.along;
        int64_t row = a->b * s->q.stride + w[i].t.row, n = w[i].t.n, ld = f->ld;
        transpose((Elem *)rows, ld, (Elem *)w[i].dqt, STRIP, ld, w[i].t.width);
        for (int64_t k = 0; k < n * ld; k += VN)
            vstore(rows + k, vload(rows + k) * (REAL)s->scale);
        for (int64_t r = 0; s->add && r < n; r++)
            for (int64_t c = 0; c < dim; c++)
                rows[r * ld + c] += *(const REAL *)mat_at(f->dq, row + r, head * dim + c);
        unpack(f->dq, row, n, head * dim, dim, rows, ld);
    }
}

/* Writes dk and dv of the range from their sums. */
static void write_keys(const Backward *f, const Range *a, const Panels *x)
{
    const Attention *s = f->s;
    int64_t dim = s->dim, ld = f->ld, before = 0;
    for (int64_t i = 0; i < (a->j1 - a->j0) * ld; i += VN)
        vstore(x->dk + i, vload(x->dk + i) * (REAL)s->scale);
    for (const PositionRun *r = s->k.run; r < s->k.run + s->k.count; before += r++->n) {
        int64_t from = a->j0 - before, to = a->j1 - before;        /* within the run */
        from = from > 0 ? from : 0;
        to = to < r->n ? to : r->n;
        if (from >= to)
            continue;
        int64_t at = (before + from - a->j0) * ld, row = a->b * s->k.stride + r->row + from;
        unpack(f->dk, row, to - from, a->kv * dim, dim, x->dk + at, ld);
        unpack(f->dv, row, to - from, a->kv * dim, dim, x->dv + at, ld);
    }
}

static void range(const Backward *f, const Range *a, int thread)
{
    const Attention *s = f->s;
    int64_t ld = f->ld, panel = ld * STRIP, sums = (a->j1 - a->j0) * ld;
    REAL *at = FN(row_buf)(f->d, thread, 2), *k = FN(row_buf)(f->d, thread, 3), *g;
    Panels x = {.dk = FN(sum_buf)(f->d, thread, 0), .dv = FN(sum_buf)(f->d, thread, 1), .packed = -1};
    x.k = panel_at(k, f->block, ld), x.v = panel_at(k + f->block * ld, f->block, ld);
    x.p = k + 2 * f->block * ld, x.ds = x.p + f->block * STRIP;
    x.ds_across = x.ds + (PER - 1) * f->block * STRIP;
    g = x.ds_across + f->block * STRIP;
    Rows w[GROUP];
    units_begin();
    for (int i = 0; i < f->group; i++, at += 4 * panel, g += panel) {
        w[i].qt = (Elem *)at, w[i].gt = (Elem *)(at + panel), w[i].dqt = at + 2 * panel;
        w[i].q = panel_at(at + 3 * panel, STRIP, ld), w[i].g = panel_at(g, STRIP, ld);
    }
    if (a->want_kv) {
        memset(x.dk, 0, (size_t)sums * sizeof(REAL));
        memset(x.dv, 0, (size_t)sums * sizeof(REAL));
    }
    for (int head = a->head0; head < a->head1; head++)
        for (int64_t i = a->i0; i < a->i1;) {
            int count = 0;
            for (; count < f->group && i < a->i1; i += w[count++].t.n)
                strip_open(&w[count].t, s, a->b, i, a->i1);
            group_bwd(f, a, &x, w, count, head);
        }
    if (a->want_kv)
        write_keys(f, a, &x);
    units_end();
}

/* The keys of block n of a sample: blocks end at multiples of f->block and at the ends of runs. Returns 0
 * where there are fewer blocks. */
static int64_t block_at(const Backward *f, int64_t n, int64_t *j0, int64_t *j1)
{
    int64_t before = 0;
    for (const PositionRun *r = f->s->k.run; r < f->s->k.run + f->s->k.count; before += r++->n) {
        int64_t first = r->start / f->block, blocks = (r->start + r->n + f->block - 1) / f->block - first;
        if (n < blocks) {
            int64_t from = (first + n) * f->block, to = from + f->block;
            run_clip(r, &from, &to);
            *j0 = before + from - r->start;
            *j1 = before + to - r->start;
            return 1;
        }
        n -= blocks;
    }
    return 0;
}

static void bwd_kv(void *ctx, int64_t item, int thread)
{
    const Backward *f = ctx;
    const Attention *s = f->s;
    int64_t heads = s->batch * s->kv_heads, n = item / heads;      /* the longest items come first */
    int kv = (int)(item % s->kv_heads), group = s->heads / s->kv_heads;
    Range a = {item % heads / s->kv_heads, kv, kv * group, (kv + 1) * group, 0, f->queries, 0, f->keys,
               f->whole, 1};
    if (!f->whole)
        block_at(f, n, &a.j0, &a.j1);
    range(f, &a, thread);
}

static void bwd_q(void *ctx, int64_t item, int thread)
{
    const Backward *f = ctx;
    const Attention *s = f->s;
    int64_t heads = s->batch * s->heads, rows = f->group * STRIP, parts = (f->queries + rows - 1) / rows;
    int64_t i = (parts - 1 - item / heads) * rows;
    int head = (int)(item % s->heads);
    Range a = {item % heads / s->heads, head / (s->heads / s->kv_heads), head, head + 1,
               i, i + rows < f->queries ? i + rows : f->queries, 0, f->keys, 1, 0};
    range(f, &a, thread);
}

void OP(cpu_attention_bwd)(Device *d, Mat dq, Mat dk, Mat dv, Mat dout, Mat o, Mat lse, Mat delta, Mat q,
                           Mat k, Mat v, const Attention *s)
{
    if (PER == 2 && (q.type != BF16 || dout.type != BF16)) {
        FN(cpu_attention_bwd)(d, dq, dk, dv, dout, o, lse, delta, q, k, v, s);
        return;
    }
    int64_t queries = positions_rows(&s->q), keys = positions_rows(&s->k), n = s->batch * queries;
    int64_t dim = s->dim, qcols = s->heads * dim, kcols = s->kv_heads * dim, rows = s->batch * keys;
    int64_t items = s->batch * s->kv_heads, threads = pool_threads(d->pool), ld = whole_vectors(dim);
    BUG_ON(dim < 1 || dim > HEAD_MAX || s->kv_heads < 1 || s->heads % s->kv_heads);
    BUG_ON(q.rows != n || k.rows != rows || v.rows != rows || dout.rows != n || dk.rows != rows);
    BUG_ON(dq.rows != n || dv.rows != rows || o.rows != n || lse.rows != n || delta.rows != n);
    BUG_ON(q.cols != qcols || dq.cols != qcols || dout.cols != qcols || o.cols != qcols);
    BUG_ON(k.cols != kcols || v.cols != kcols || dk.cols != kcols || dv.cols != kcols);
    BUG_ON(lse.type != REAL_TYPE || delta.type != REAL_TYPE);
    BUG_ON(s->add && dq.type != REAL_TYPE);
    int64_t group = HEAD_MAX / ld < GROUP ? HEAD_MAX / ld : GROUP, parts = group * STRIP, blocks = 0, j0, j1;
    Backward f = {d, s, dq, dk, dv, dout, o, lse, delta, q, k, v, ld, key_block(ld), group, queries, keys, 1};
    pool_run(d->pool, delta_rows, &f, (n + DELTA_ROWS - 1) / DELTA_ROWS);
    /* whole takes 2/3 of the time of parts (measured), unless threads idle in its last round */
    int64_t slots = (items + threads - 1) / threads * threads;
    f.whole = keys * ld <= SUM_MAX && items * 3 >= slots * 2;
    while (!f.whole && block_at(&f, blocks, &j0, &j1))
        blocks++;
    pool_run(d->pool, bwd_kv, &f, items * (f.whole ? 1 : blocks));
    if (!f.whole)
        pool_run(d->pool, bwd_q, &f, s->batch * s->heads * ((queries + parts - 1) / parts));
}
