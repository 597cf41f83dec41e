/* context -- attention over a sequence that the ranks of the context group share */
#include "context.h"
#include <string.h>

const char *const context_kind_name[CONTEXT_KINDS] = {"p2p", "allgather", "a2a", "a2a+p2p"};

ContextKind context_kind(const char *name)
{
    int k = 0;
    while (k < CONTEXT_KINDS && strcmp(name, context_kind_name[k]))
        k++;
    return (ContextKind)k;
}

void context_open(Context *c, Grid *g, Comm *one, int64_t positions)
{
    Comm *cp = &g->axis[AXIS_CP];
    *c = (Context){.positions = positions, .size = cp->size, .rank = cp->rank,
                   .way = {[CONTEXT_P2P] = {one, one, cp}, [CONTEXT_ALLGATHER] = {one, cp, one},
                           [CONTEXT_A2A] = {cp, one, one},
                           [CONTEXT_A2A_P2P] = {&g->context_heads, one, &g->context_ring}}};
}

void context_open_whole(Context *c, Comm *one, int64_t positions)
{
    *c = (Context){.positions = positions, .size = 1};
    for (int k = 0; k < CONTEXT_KINDS; k++)
        c->way[k] = (ContextWay){one, one, one};
}

/* ---- positions ---- */

/* Adds n positions from `start` on, at rows from `row` on; they join the run before where both go on. */
static void append(Positions *r, int64_t start, int64_t n, int64_t row)
{
    PositionRun *last = &r->run[r->count - 1];
    if (r->count && last->start + last->n == start && last->row + last->n == row) {
        last->n += (int32_t)n;
        return;
    }
    BUG_ON(r->count == POSITION_RUNS);
    r->run[r->count++] = (PositionRun){(int32_t)start, (int32_t)n, (int32_t)row};
}

Positions context_positions(int64_t positions, int64_t batch, int size, int first, int count)
{
    Positions r = {.stride = positions / size};
    for (int64_t i = 0; i < 2 * count; i++) {      /* the members' chunks, in order */
        int64_t member = i < count ? i : 2 * count - 1 - i,
                chunk = i < count ? first + member : 2 * size - 1 - first - member;
        int64_t start = positions * chunk / (2 * size), end = positions * (chunk + 1) / (2 * size);
        int64_t row = i < count ? 0 : r.stride - (end - start);
        append(&r, start, end - start, member * batch * r.stride + row);
    }
    return r;
}

Positions context_own(const Context *c) { return context_positions(c->positions, 1, c->size, c->rank, 1); }

/* ---- positions for heads ---- */

static int64_t count_of(Mat m) { return m.rows * m.cols; }

Mat context_after(const ContextWay *w, Arena *scratch, Mat before)
{
    int a = w->heads->size;
    return a == 1 ? before : mat_take(scratch, before.rows * a, before.cols / a, before.type);
}

Mat context_before(const ContextWay *w, Arena *scratch, Mat after)
{
    int a = w->heads->size;
    return a == 1 ? after : mat_take(scratch, after.rows / a, after.cols * a, after.type);
}

/* Copies between the columns of all heads, in groups, and the blocks of rows of the ranks that have them:
 * block i of `blocks` is [T, cols / a]. back: bool: from the blocks to the columns. */
static void regroup(Device *d, int a, Mat blocks, Mat x, const int64_t *cols, int n, int back)
{
    for (int i = 0; i < a; i++) {
        Mat block = mat_rows(blocks, i * x.rows, x.rows);
        int64_t at = 0, to = 0;
        for (int k = 0; k < n; at += cols[k], to += cols[k++] / a) {
            Mat in = mat_cols(x, at + i * (cols[k] / a), cols[k] / a), out = mat_cols(block, to, cols[k] / a);
            d->copy(d, back ? in : out, back ? out : in);
        }
    }
}

void context_to_heads(Device *d, const ContextWay *w, Arena *scratch, Mat after, Mat before,
                      const int64_t *cols, int n)
{
    Comm *c = w->heads;
    size_t mark = scratch->used;
    if (c->size == 1)
        return;
    Mat blocks = mat_take(scratch, after.rows, after.cols, after.type);
    regroup(d, c->size, blocks, before, cols, n, 0);
    c->wait(c, c->all_to_all(c, after.p, blocks.p, count_of(before) / c->size, after.type));
    arena_reset(scratch, mark);
}

void context_from_heads(Device *d, const ContextWay *w, Arena *scratch, Mat before, Mat after,
                        const int64_t *cols, int n)
{
    Comm *c = w->heads;
    size_t mark = scratch->used;
    if (c->size == 1)
        return;
    Mat blocks = mat_take(scratch, after.rows, after.cols, after.type);
    c->wait(c, c->all_to_all(c, blocks.p, after.p, count_of(before) / c->size, after.type));
    regroup(d, c->size, blocks, before, cols, n, 1);
    arena_reset(scratch, mark);
}

/* ---- keys and values ---- */

static Mat k_of(Mat kv) { return mat_cols(kv, 0, kv.cols / 2); }
static Mat v_of(Mat kv) { return mat_cols(kv, kv.cols / 2, kv.cols / 2); }

/* Starts to send a matrix to the next rank of the ring, and to receive another one from the rank before. */
static void pass_on(Comm *ring, Mat out, Mat in, Token *sent, Token *come)
{
    int next = (ring->rank + 1) % ring->size, before = (ring->rank + ring->size - 1) % ring->size;
    comm_together(ring, 1);
    *sent = ring->send(ring, out.p, count_of(out), out.type, next);
    *come = ring->recv(ring, in.p, count_of(in), in.type, before);
    comm_together(ring, 0);
}

ContextKeys context_keys(Device *d, const ContextWay *w, Arena *scratch, Mat k, Mat v)
{
    ContextKeys x = {.k = k, .v = v};
    Comm *gather = w->gather, *ring = w->ring;
    if (gather->size == 1 && ring->size == 1)
        return x;
    for (int i = 0; i < 2; i++)
        x.kv[i] = mat_take(scratch, k.rows * (i ? gather->size : 1), k.cols + v.cols, k.type);
    d->copy(d, k_of(x.kv[0]), k);
    d->copy(d, v_of(x.kv[0]), v);
    if (ring->size > 1)
        pass_on(ring, x.kv[0], x.kv[1], &x.sent, &x.come);
    else
        x.come = gather->all_gather(gather, x.kv[1].p, x.kv[0].p, count_of(x.kv[0]), k.type);
    return x;
}

/* Waits for gathered keys. In a ring a rank starts with its own keys. */
static void keys_gathered(const ContextWay *w, ContextKeys *x)
{
    if (w->gather->size == 1)
        return;
    w->gather->wait(w->gather, x->come);
    x->k = k_of(x->kv[1]);
    x->v = v_of(x->kv[1]);
}

/* Step t of the ring, 1 .. size - 1: waits for the piece of the rank t places before, which is then kv[0],
 * and sends it on, unless it has been everywhere. */
static void keys_turn(const ContextWay *w, ContextKeys *x, int t)
{
    Comm *ring = w->ring;
    ring->wait(ring, x->come);
    ring->wait(ring, x->sent);
    Mat come = x->kv[1];
    x->kv[1] = x->kv[0];
    x->kv[0] = come;
    x->come = x->sent = 0;
    if (t + 1 < ring->size)
        pass_on(ring, x->kv[0], x->kv[1], &x->sent, &x->come);
}

/* Sets the positions of the queries, and of the keys that come from t places before in the ring. */
static void place(const Context *c, const ContextWay *w, Attention *s, int t)
{
    int a = w->heads->size, each = a * w->gather->size, ring = w->ring->size;
    int from = (w->ring->rank + ring - t) % ring;
    s->q = context_positions(c->positions, s->batch, c->size, c->rank / a * a, a);
    s->k = context_positions(c->positions, s->batch, c->size, from * each, each);
}

/* ---- attention ---- */

void context_attention_fwd(Device *d, const Context *c, const ContextWay *w, Arena *scratch,
                           ContextKeys *keys, Mat o, Mat lse, Mat q, Attention *s)
{
    size_t mark = scratch->used;
    Mat sum = o, piece = {0}, plse = {0};
    keys_gathered(w, keys);
    place(c, w, s, 0);
    d->attention_fwd(d, o, lse, q, keys->k, keys->v, s);
    for (int t = 1; t < w->ring->size; t++) {
        if (t == 1) {
            piece = mat_take(scratch, o.rows, o.cols, o.type);
            plse = mat_take(scratch, lse.rows, lse.cols, lse.type);
            if (o.type != lse.type) {
                sum = mat_take(scratch, o.rows, o.cols, lse.type);
                d->copy(d, sum, o);
            }
        }
        keys_turn(w, keys, t);
        place(c, w, s, t);
        d->attention_fwd(d, piece, plse, q, k_of(keys->kv[0]), v_of(keys->kv[0]), s);
        d->attention_merge(d, sum, lse, piece, plse);
    }
    if (sum.type != o.type)
        d->copy(d, o, sum);
    arena_reset(scratch, mark);
}

/* Gradients of keys and values where they are gathered: made for all of them, then summed for their
 * owners. */
static void scatter(Device *d, Comm *gather, Arena *scratch, Mat dk, Mat dv, Mat all)
{
    Mat mine = mat_take(scratch, dk.rows, all.cols, all.type);
    gather->wait(gather, gather->reduce_scatter(gather, mine.p, all.p, count_of(mine), all.type, OP_SUM));
    d->copy(d, dk, k_of(mine));
    d->copy(d, dv, v_of(mine));
}

static void bwd_gathered(Device *d, const Context *c, const ContextWay *w, Arena *scratch, ContextKeys *keys,
                         Mat dq, Mat dk, Mat dv, Mat dout, Mat o, Mat lse, Mat delta, Mat q, Attention *s)
{
    keys_gathered(w, keys);
    place(c, w, s, 0);
    if (w->gather->size == 1) {
        d->attention_bwd(d, dq, dk, dv, dout, o, lse, delta, q, keys->k, keys->v, s);
        return;
    }
    Mat all = mat_take(scratch, keys->k.rows, 2 * keys->k.cols, lse.type);
    d->attention_bwd(d, dq, k_of(all), v_of(all), dout, o, lse, delta, q, keys->k, keys->v, s);
    scatter(d, w->gather, scratch, dk, dv, all);
}

/* The pieces of a ring, this rank's own last. The gradient of a piece of keys follows one step behind the
 * keys: each rank adds its share and sends the sum on, at last to the owner, which computes its own piece
 * meanwhile. */
static void bwd_ring(Device *d, const Context *c, const ContextWay *w, Arena *scratch, ContextKeys *keys,
                     Mat dq, Mat dk, Mat dv, Mat dout, Mat o, Mat lse, Mat delta, Mat q, Attention *s)
{
    Comm *ring = w->ring;
    Token sent = 0, come = 0;
    Mat sum = dq, mine[2], in = mat_take(scratch, dk.rows, dk.cols + dv.cols, lse.type);
    for (int i = 0; i < 2; i++)
        mine[i] = mat_take(scratch, dk.rows, dk.cols + dv.cols, lse.type);
    if (dq.type != lse.type)
        sum = mat_take(scratch, dq.rows, dq.cols, lse.type);
    for (int t = 1; t <= ring->size; t++) {
        Mat k = keys->k, v = keys->v, now = mine[t % 2];
        if (t < ring->size) {
            keys_turn(w, keys, t);
            k = k_of(keys->kv[0]), v = v_of(keys->kv[0]);
        }
        place(c, w, s, t);
        s->add = t > 1;
        d->attention_bwd(d, sum, k_of(now), v_of(now), dout, o, lse, delta, q, k, v, s);
        if (t > 1) {
            ring->wait(ring, come);
            ring->wait(ring, sent);
            d->add(d, now, now, in);
        }
        if (t < ring->size)
            pass_on(ring, now, in, &sent, &come);
        else
            d->copy(d, dk, k_of(now)), d->copy(d, dv, v_of(now));
    }
    if (sum.type != dq.type)
        d->copy(d, dq, sum);
}

void context_attention_bwd(Device *d, const Context *c, const ContextWay *w, Arena *scratch,
                           ContextKeys *keys, Mat dq, Mat dk, Mat dv, Mat dout, Mat o, Mat lse, Mat q,
                           Attention *s)
{
    size_t mark = scratch->used;
    Mat delta = mat_take(scratch, lse.rows, lse.cols, lse.type);
    s->add = 0;
    if (w->ring->size > 1)
        bwd_ring(d, c, w, scratch, keys, dq, dk, dv, dout, o, lse, delta, q, s);
    else
        bwd_gathered(d, c, w, scratch, keys, dq, dk, dv, dout, o, lse, delta, q, s);
    arena_reset(scratch, mark);
}
