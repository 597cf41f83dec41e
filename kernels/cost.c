/* cost -- FLOPs and bytes of each op by the shapes of its arguments: a device that reports them */
#include "cost.h"
#include <math.h>
#pragma GCC diagnostic ignored "-Wunused-parameter"

const char *const op_name[OPKINDS] = {
#define X(name, params, names) #name,
    OPS(X)
#undef X
};

static const CostSink *sink_of(const Device *d) { return d->impl; }
static int unfused(const Device *d) { return sink_of(d)->unfused; }
static int separate(const Device *d) { return sink_of(d)->separate; }

static void add(Device *d, Cost c)
{
    const CostSink *s = sink_of(d);
    s->add(s->ctx, &c);
}

static double elements(Mat m) { return (double)m.rows * (double)m.cols; }
static double bytes_of(Mat m) { return elements(m) * (double)dtype_size(m.type); }
static double bytes_of8(Mat8 m) { return (double)fp8_bytes(m.rows, m.cols, m.scaling); }
/* What a cast writes: y, yt or both, which are counted where both are NULL. */
static double written8(int64_t rows, int64_t cols, const void *y, const void *yt, Fp8Scaling scaling)
{
    return (double)fp8_bytes(rows, cols, scaling) * (!!y + !!yt ? !!y + !!yt : 2);
}

/* Adds an op that only moves n bytes. */
#define MOVES(name, n) add(d, (Cost){.op = OPKIND_##name, .rate = 1, .bytes = (n)})
/* Adds an op that reads and writes n bytes and casts. */
#define CASTS(name, n) add(d, (Cost){.op = OPKIND_##name, .rate = 1, .bytes = (n), .cast = 1})
/* Adds a matrix product: output c, k terms a sum, factors of type t at r times its rate, n bytes. */
#define MULTIPLIES(name, c, k, t, r, n)                                                                      \
    add(d, (Cost){.op = OPKIND_##name, .type = t, .rate = r, .bytes = n,                                     \
                  .flops = cost_product((double)(c).rows, (double)(c).cols, (double)(k)),                    \
                  .rows = (double)(c).rows, .cols = (double)(c).cols, .terms = (double)(k)})

/* Bytes of dropout's mask, which is stored only where ops are not fused. */
static double mask_bytes(const Device *d, Mat x, const Dropout *s)
{
    return unfused(d) && s->p > 0 ? elements(x) : 0;
}

/* ---- attention ---- */

/* Sum of max(0, p + 1 - c) over positions p of a run: how many of the keys from position c on its queries
 * see without a window. */
static double seen_from(const PositionRun *q, double c)
{
    double end = (double)q->start + q->n, lo = fmax(q->start, c);
    return lo < end ? (end - lo) * (lo + 1 - c + end - c) / 2 : 0;
}

/* Pairs of a query and a key of one sample and head that the mask lets through, documents apart. */
static double seen_pairs(const Attention *s)
{
    double sum = 0;
    for (int i = 0; i < s->q.count; i++)
        for (int j = 0; j < s->k.count; j++) {
            const PositionRun *q = &s->q.run[i];
            double k0 = s->k.run[j].start, k1 = k0 + s->k.run[j].n, w = (double)s->window;
            sum += seen_from(q, k0) - seen_from(q, k1);
            sum -= s->window ? seen_from(q, k0 + w) - seen_from(q, k1 + w) : 0;
        }
    return sum;
}

/* Pairs of a query and a key, of all heads. causal: bool: only pairs that the mask lets through. */
static double pairs(const Attention *s, int causal)
{
    double all = (double)positions_rows(&s->q) * (double)positions_rows(&s->k);
    return (double)s->batch * s->heads * (causal ? seen_pairs(s) : all);
}

static void attention_fused(Device *d, OpKind op, const Attention *s, Dtype t, double forwards, double bytes)
{
    add(d, (Cost){op, t, forwards * cost_attention(pairs(s, 1), s->dim), 1, bytes});
}

/* Adds n products over all pairs of all heads, with stored scores; each product is one call. */
static void score_products(Device *d, OpKind op, const Attention *s, Dtype type, int n)
{
    double size = (double)dtype_size(type), rows = (double)s->batch * s->heads * s->dim * size,
           bytes = pairs(s, 0) * size + rows * (double)(positions_rows(&s->q) + positions_rows(&s->k));
    for (int i = 0; i < n; i++)
        add(d, (Cost){op, type, cost_product(pairs(s, 0), 1, s->dim), 1, bytes});
}

static void attention_fwd(Device *d, Mat o, Mat lse, Mat q, Mat k, Mat v, const Attention *s)
{
    double n = pairs(s, 0), size = (double)dtype_size(q.type);
    if (!unfused(d)) {
        attention_fused(d, OPKIND_attention_fwd, s, q.type, 1,
                        bytes_of(o) + bytes_of(lse) + bytes_of(q) + bytes_of(k) + bytes_of(v));
        return;
    }
    score_products(d, OPKIND_attention_fwd, s, q.type, 1);     /* q k^T */
    MOVES(attention_fwd, 2 * n * size);                        /* scale, mask and softmax in one kernel */
    MOVES(attention_fwd, n * (2 * size + 1));                  /* dropout, and its mask */
    score_products(d, OPKIND_attention_fwd, s, q.type, 1);     /* probabilities times v */
    MOVES(attention_fwd, 2 * bytes_of(o));                     /* transposes o: heads side by side */
}

static void attention_bwd(Device *d, Mat dq, Mat dk, Mat dv, Mat dout, Mat o, Mat q, Mat k, Mat v,
                          const Attention *s)
{
    double n = pairs(s, 0), size = (double)dtype_size(q.type);
    double grads = bytes_of(dq) + bytes_of(dk) + bytes_of(dv);
    if (!unfused(d)) {
        attention_fused(d, OPKIND_attention_bwd, s, q.type, 2.5,
                        grads + bytes_of(dout) + bytes_of(o) + bytes_of(q) + bytes_of(k) + bytes_of(v));
        return;
    }
    score_products(d, OPKIND_attention_bwd, s, q.type, 4);     /* gradients of v, probabilities, q, k */
    MOVES(attention_bwd, n * (2 * size + 1));                  /* dropout */
    MOVES(attention_bwd, 3 * n * size);                        /* softmax */
    MOVES(attention_bwd, 2 * grads);
}

/* ---- lists of arrays ---- */

/* Adds the cost of a list of arrays.
 *   n     in  [many]  numbers of elements, `step` bytes from one to the next
 *   each  in           bytes that an element moves in device memory
 *   bus   in           bytes that an element moves over the bus, in each direction */
static void arrays(Device *d, OpKind op, const int64_t *n, size_t step, int64_t many, double each, double bus)
{
    Cost all = {.op = op, .rate = 1};
    for (int64_t i = 0; i < many; i++) {
        double elements = (double)*(const int64_t *)((const char *)n + (size_t)i * step);
        if (sink_of(d)->apart)
            add(d, (Cost){.op = op, .rate = 1, .bytes = each * elements});
        all.bytes += each * elements;
        all.bus += bus * elements;
    }
    if (many && !sink_of(d)->apart)
        add(d, all);
}

/* Adds sums of squares: entry by entry, because a master with a remainder has four bytes whatever the type of
 * the others is. */
static void squares(Device *d, const Squares *list, int64_t count, Dtype type)
{
    double bytes = 0;
    for (int64_t i = 0; i < count; i++) {
        double each = (double)(list[i].rest ? sizeof(float) : dtype_size(type)) * (double)list[i].n;
        if (sink_of(d)->apart)
            add(d, (Cost){.op = OPKIND_squares, .rate = 1, .bytes = each});
        bytes += each;
    }
    if (count && !sink_of(d)->apart)
        add(d, (Cost){.op = OPKIND_squares, .rate = 1, .bytes = bytes});
}

/* Bytes of an element of a moment with its share of a scale. */
static double moment_bytes(const Device *d, MomentType type)
{
    double size = (double)dtype_size(moment_dtype(type, d->real));
    return size + (moment_scaled(type) ? 1.0 / MOMENT_BLOCK : 0);
}

/* Adds an optimizer update: it reads the gradient, reads and writes the master and `states` moments
 * (over the bus where these are in mapped memory), and writes the storage copy. A master in two halves is
 * read and written as storage copy and remainder. */
static void update(Device *d, OpKind op, const Update *u, int states)
{
    int halves = u->out_type == BF16;
    size_t real = dtype_size(d->real), master = halves ? sizeof(int16_t) : real,
           gradient = u->bf16_g ? sizeof(uint16_t) : real,
           copy = u->out_type == d->real ? 0 : (size_t)(halves ? 2 : 1) * dtype_size(u->out_type);
    double moments =
        (states > 0 ? moment_bytes(d, u->m_type) : 0) + (states > 1 ? moment_bytes(d, u->v_type) : 0);
    arrays(d, op, &u->list->n, sizeof *u->list, u->count,
           (double)(gradient + 2 * master + copy) + 2 * moments, u->mapped ? (double)master + moments : 0);
}

/* ---- one row per op: statements over its arguments ---- */

#define X(name, params, names) static void cost_##name params;
OPS(X)
#undef X

#define COST_copy                                                                                            \
    add(d, (Cost){.op = OPKIND_copy, .rate = 1, .bytes = bytes_of(dst) + bytes_of(src),                      \
                  .cast = dst.type != src.type})
#define COST_zero MOVES(zero, (double)bytes)
#define COST_normals MOVES(normals, bytes_of(y) + bytes_of(rest))
#define COST_add MOVES(add, bytes_of(y) + bytes_of(a) + bytes_of(b))
#define COST_sum_parts MOVES(sum_parts, bytes_of(y) + bytes_of(parts))
#define COST_matmul                                                                                          \
    MULTIPLIES(matmul, c, ta ? a.rows : a.cols, a.type, 1,                                                   \
               bytes_of(a) + bytes_of(b) + (acc ? 2 : 1) * bytes_of(c))
#define COST_linear MULTIPLIES(linear, y, x.cols, x.type, 1, bytes_of(x) + bytes_of(w) + bytes_of(y))
#define COST_bias_bwd MOVES(bias_bwd, bytes_of(db) + bytes_of(dy))
/* the fused ops of linear layers cost as much as their parts */
#define COST_linear_act_fwd cost_linear(d, h, x, w, bias), cost_act_fwd(d, a, h, kind)
#define COST_linear_act_bwd_x cost_matmul(d, da, dy, 0, w, 0, 0), cost_act_bwd(d, dh, da, h, kind)
#define COST_linear_bwd_w                                                                                    \
    cost_matmul(d, dw, dy, 1, x, 0, acc);                                                                    \
    if (db.rows)                                                                                             \
        cost_bias_bwd(d, db, dy)
/* reads x once to round it, and once more for its largest magnitude unless the scale is delayed or
 * of a block */
#define COST_fp8_cast                                                                                        \
    CASTS(fp8_cast, (scaling == FP8_OWN ? 2 : 1) * bytes_of(x) + written8(x.rows, x.cols, y, yt, scaling))
#define COST_fp8_act                                                                                         \
    MOVES(fp8_act, (scaling == FP8_OWN ? 2 : 1) * (bytes_of(h) + bytes_of(da)) +                             \
                       written8(h.rows, da.rows || !act_gated(kind) ? h.cols : h.cols / 2, y, yt, scaling))
/* with a delayed scale one pass, like add_norm_fwd; else statistics, and the largest magnitude, come first */
#define COST_fp8_norm                                                                                        \
    if (unfused(d) || separate(d)) {                                                                         \
        Mat ln = mat(NULL, x.rows, x.cols, x.type);                                                          \
        if (sum.rows)                                                                                        \
            cost_add_norm_fwd(d, sum, ln, stats, x, res, drop, gain, bias, eps, kind);                       \
        else                                                                                                 \
            cost_norm_fwd(d, ln, stats, x, gain, bias, eps, kind, 1);                                        \
        cost_fp8_cast(d, y, yt, ln, s, E4M3, scaling);                                                       \
    } else {                                                                                                 \
        MOVES(fp8_norm, bytes_of(sum) + bytes_of(stats) + bytes_of(x) + bytes_of(res) +                      \
                            (scaling == FP8_DELAYED ? 0 : bytes_of(x)) +                                     \
                            written8(x.rows, x.cols, y, yt, scaling));                                       \
    }
/* tensor cores multiply FP8 at twice BF16's FLOP/s, a CPU as F32 */
#define COST_fp8_matmul                                                                                      \
    MULTIPLIES(fp8_matmul, c, a.cols, sink_of(d)->fp8_as_f32 ? F32 : BF16, sink_of(d)->fp8_as_f32 ? 1 : 2,   \
               bytes_of8(a) + bytes_of8(b) + (acc ? 2 : 1) * bytes_of(c))
#define COST_fp8_next CASTS(fp8_next, (double)n * sizeof *s)
#define COST_norm_fwd MOVES(norm_fwd, bytes_of(y) + bytes_of(x) + bytes_of(stats))
/* one pass over memory where ops are fused */
#define COST_add_norm_fwd                                                                                    \
    if (unfused(d) || separate(d))                                                                           \
        cost_dropout_fwd(d, y, x, res, s), cost_norm_fwd(d, ln, stats, y, gain, bias, eps, kind, 1);         \
    else                                                                                                     \
        MOVES(add_norm_fwd, bytes_of(y) + bytes_of(ln) + bytes_of(stats) + bytes_of(x) + bytes_of(res))
/* one pass over x and dy where ops are fused; else one more for the gradients of gain and bias */
#define COST_norm_bwd                                                                                        \
    if (unfused(d))                                                                                          \
        MOVES(norm_bwd, bytes_of(dgain) + bytes_of(dy) + bytes_of(x) + bytes_of(stats));                     \
    MOVES(norm_bwd, bytes_of(dx) + bytes_of(dres) + bytes_of(dy) + bytes_of(x) + bytes_of(stats)             \
                        + (unfused(d) ? 0 : bytes_of(dgain) + bytes_of(dbias)))
#define COST_act_fwd MOVES(act_fwd, bytes_of(a) + bytes_of(h))
#define COST_act_bwd MOVES(act_bwd, bytes_of(dh) + bytes_of(da) + bytes_of(h))
#define COST_rope MOVES(rope, 2 * bytes_of(x))
#define COST_attention_fwd attention_fwd(d, o, lse, q, k, v, s)
#define COST_attention_merge MOVES(attention_merge, 2 * bytes_of(o) + 2 * bytes_of(lse) + bytes_of(piece) + \
                                                    bytes_of(plse))
#define COST_attention_bwd attention_bwd(d, dq, dk, dv, dout, o, q, k, v, s)
#define COST_embed_fwd MOVES(embed_fwd, 3 * bytes_of(y))
#define COST_embed_bwd                                                                                       \
    MOVES(embed_bwd, bytes_of(dy) + elements(dy) * (double)(2 * dtype_size((dwte.rows ? dwte : dwpe).type)))
#define COST_dropout_fwd MOVES(dropout_fwd, bytes_of(y) + bytes_of(x) + bytes_of(res) + mask_bytes(d, x, s))
#define COST_dropout_bwd MOVES(dropout_bwd, bytes_of(dx) + bytes_of(dy) + mask_bytes(d, dy, s))
#define COST_gather_rows MOVES(gather_rows, 2 * bytes_of(y))
#define COST_sum_rows MOVES(sum_rows, (1.0 + k) * bytes_of(y))
#define COST_scale_rows MOVES(scale_rows, bytes_of(y) + bytes_of(x) + bytes_of(w))
#define COST_row_dots MOVES(row_dots, bytes_of(dot) + bytes_of(x) + bytes_of(y))
#define COST_route_fwd                                                                                       \
    MOVES(route_fwd, bytes_of(logits) + bytes_of(scores) + bytes_of(weight)                                  \
                         + elements(weight) * sizeof *choice)
#define COST_route_bwd                                                                                       \
    MOVES(route_bwd, bytes_of(logits) + bytes_of(dlogits) + bytes_of(dweight)                                \
                         + elements(dweight) * sizeof *choice)
#define COST_route_stats MOVES(route_stats, bytes_of(stats) + bytes_of(logits))
/* Bytes that a loss of separate passes moves for a logit, as Megatron-Core's vocab_parallel_cross_entropy
 * does. Forward: to F32 (6), maximum (4), difference (8), exponential (8), sum (4), quotient (8); backward:
 * product (8), to BF16 (6). */
enum { PASSES_FORWARD = 38, PASSES_BACKWARD = 14 };
#define COST_xent_stats                                                                                      \
    MOVES(xent_stats, bytes_of(stats) + (separate(d) ? PASSES_FORWARD * elements(logits) : bytes_of(logits)))
#define COST_xent_combine MOVES(xent_combine, bytes_of(stats) + bytes_of(parts))
#define LOSSES ((double)logits.rows * (double)dtype_size(loss.type))
#define COST_xent_grad                                                                                       \
    MOVES(xent_grad, bytes_of(stats) + LOSSES +                                                              \
                         (separate(d) ? PASSES_BACKWARD * elements(logits)                                   \
                                      : bytes_of(dlogits) + bytes_of(logits)))
#define COST_xent                                                                                            \
    if (unfused(d) || separate(d))                                                                           \
        cost_xent_stats(d, stats, logits, label, rows, 0, valid),                                            \
            cost_xent_grad(d, loss, dlogits, logits, stats, label, mask, rows, 0, valid, scale);             \
    else                                                                                                     \
        MOVES(xent, bytes_of(dlogits) + bytes_of(logits) + LOSSES)
#define COST_sum MOVES(sum, bytes_of(x))
#define COST_squares squares(d, list, count, type)
#define COST_hash arrays(d, OPKIND_hash, &list->bytes, sizeof *list, count, 1, 0)
#define COST_carry MOVES(carry, 2.0 * (double)n * sizeof *s)
#define COST_verdict MOVES(verdict, sizeof *v + sizeof *squares)
#define COST_trust MOVES(trust, 2.0 * (double)n * sizeof *norms)
#define COST_adam update(d, OPKIND_adam, u, 2)
#define COST_sgd update(d, OPKIND_sgd, u, 1)
#define COST_lamb_direction update(d, OPKIND_lamb_direction, u, 2)
#define COST_lamb_apply update(d, OPKIND_lamb_apply, u, 0)
#define COST_lars update(d, OPKIND_lars, u, 1)

#define X(name, params, names)                                                                               \
    static void cost_##name params { COST_##name; }
OPS(X)
#undef X

void cost_open(Device *d, Dtype real, const CostSink *sink)
{
    null_open(d, real);
    d->impl = (void *)sink;
#define X(name, params, names) d->name = cost_##name;
    OPS(X)
#undef X
}
