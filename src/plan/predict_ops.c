/* What each operation of the table costs by its shapes: FLOPs, bytes read and written. */
#include "predict.h"
#include <math.h>
#include <string.h>

static Tally *tally_of(Device *d) { return d->impl; }

/* curve_at, whose logarithms would be a third of a walk. */
static double share_at(const Curve *c, Lookup *known, double size)
{
    uint64_t bits;
    if (!known)
        return curve_at(c, size);
    memcpy(&bits, &size, sizeof bits);
    Lookup *l = &known[(bits * 0x9e3779b97f4a7c15ull) >> 56];
    if (l->size != size || l->share <= 0)
        *l = (Lookup){size, curve_at(c, size)};
    return l->share;
}

/* An operation is as slow as the slower of its arithmetic (seconds) and its traffic. */
static void spend(Device *d, Work w, double arithmetic, double bytes)
{
    Tally *k = tally_of(d);
    const Machine *m = k->m;
    double memory =
        bytes / (m->memory_gbps * 1e9 * k->share * share_at(&m->memory, k->memory, bytes) * m->speed[w]);
    double t = m->launch_us * 1e-6 + (arithmetic > memory ? arithmetic : memory);
    if (k->together)
        t /= m->together[w];
    k->now += t;
    k->bytes = bytes;
    k->work[w] += t;
}

static double peak(const Tally *k, Dtype type)
{
    double flops =
        (type == BF16 || type == F16 ? k->m->matmul_tflops : k->m->matmul_tflops_fp32) * 1e12 * k->share;
    return type == F64 ? flops / 2 : flops;
}

static double product(const Tally *k, double flops, Dtype type)
{
    return flops / (peak(k, type) * share_at(&k->m->matmul, k->matmul, flops));
}

/* Where a product reads and writes beside its arithmetic, as a core does that packs what it multiplies. */
static double beside(const Tally *k, double bytes)
{
    return isnan(k->m->matmul_gbps) ? 0 : bytes / (k->m->matmul_gbps * 1e9 * k->share);
}

static double bytes_of(Mat m) { return (double)m.rows * (double)m.cols * (double)dtype_size(m.type); }
static double count(Mat m) { return (double)m.rows * (double)m.cols; }

static void time_copy(Device *d, Mat dst, Mat src) { spend(d, WORK_copy, 0, bytes_of(dst) + bytes_of(src)); }

static void time_zero(Device *d, void *p, size_t bytes)
{
    (void)p;
    spend(d, WORK_zero, 0, (double)bytes);
}

static void time_add(Device *d, Mat y, Mat a, Mat b)
{
    spend(d, WORK_add, 0, bytes_of(y) + bytes_of(a) + bytes_of(b));
}
static void time_sum_parts(Device *d, Mat y, Mat parts)
{
    spend(d, WORK_sum_parts, 0, bytes_of(y) + bytes_of(parts));
}

static void time_matmul(Device *d, Mat c, Mat a, int ta, Mat b, int tb, int acc)
{
    double K = (double)(ta ? a.rows : a.cols),
           bytes = bytes_of(a) + bytes_of(b) + (acc ? 2 : 1) * bytes_of(c);
    const Tally *k = tally_of(d);
    (void)tb;
    spend(d, WORK_matmul, product(k, 2 * count(c) * K, a.type) + beside(k, bytes), bytes);
}

static void time_linear(Device *d, Mat y, Mat x, Mat w, Mat bias)
{
    double flops = 2 * count(y) * (double)x.cols, bytes = bytes_of(x) + bytes_of(w) + bytes_of(y);
    const Tally *k = tally_of(d);
    (void)bias;
    spend(d, WORK_linear, product(k, flops, x.type) + beside(k, bytes), bytes);
}

static void time_bias_bwd(Device *d, Mat db, Mat dy)
{
    spend(d, WORK_bias_bwd, 0, bytes_of(db) + bytes_of(dy));
}

static void time_norm_fwd(Device *d, Mat y, Mat stats, Mat x, Mat gain, Mat bias, double eps, NormKind kind,
                          int groups)
{
    (void)gain, (void)bias, (void)eps, (void)kind, (void)groups;
    spend(d, WORK_norm_fwd, 0, bytes_of(y) + bytes_of(x) + bytes_of(stats));
}

static double mask_bytes(const Device *d, Mat m) { return tally_of((Device *)d)->m->unfused ? count(m) : 0; }

static void time_dropout_fwd(Device *d, Mat y, Mat x, Mat res, const Dropout *s)
{
    spend(d, WORK_dropout_fwd, 0,
          bytes_of(y) + bytes_of(x) + bytes_of(res) + (s->p > 0 ? mask_bytes(d, x) : 0));
}

/* One pass over memory, where it is fused. */
static void time_add_norm_fwd(Device *d, Mat y, Mat ln, Mat stats, Mat x, Mat res, const Dropout *s, Mat gain,
                              Mat bias, double eps, NormKind kind)
{
    if (!tally_of(d)->m->unfused) {
        spend(d, WORK_add_norm_fwd, 0,
              bytes_of(y) + bytes_of(ln) + bytes_of(stats) + bytes_of(x) + bytes_of(res));
        return;
    }
    time_dropout_fwd(d, y, x, res, s);
    time_norm_fwd(d, ln, stats, y, gain, bias, eps, kind, 1);
}

static void time_norm_bwd_x(Device *d, Mat dx, Mat dres, Mat dy, Mat x, Mat stats, Mat gain, NormKind kind,
                            int groups)
{
    (void)gain, (void)kind, (void)groups;
    spend(d, WORK_norm_bwd_x, 0,
          bytes_of(dx) + bytes_of(dres) + bytes_of(dy) + bytes_of(x) + bytes_of(stats));
}

static void time_norm_bwd_w(Device *d, Mat dgain, Mat dbias, Mat dy, Mat x, Mat stats, NormKind kind,
                            int groups)
{
    (void)dbias, (void)kind, (void)groups;
    spend(d, WORK_norm_bwd_w, 0, bytes_of(dgain) + bytes_of(dy) + bytes_of(x) + bytes_of(stats));
}

static void time_act_fwd(Device *d, Mat a, Mat h, ActKind kind)
{
    (void)kind;
    spend(d, WORK_act_fwd, 0, bytes_of(a) + bytes_of(h));
}

static void time_act_bwd(Device *d, Mat dh, Mat da, Mat h, ActKind kind)
{
    (void)kind;
    spend(d, WORK_act_bwd, 0, bytes_of(dh) + bytes_of(da) + bytes_of(h));
}

/* Linear layers with what belongs to them: counted as their parts. */
static void time_linear_act_fwd(Device *d, Mat a, Mat h, Mat x, Mat w, Mat bias, ActKind kind)
{
    time_linear(d, h, x, w, bias);
    time_act_fwd(d, a, h, kind);
}

static void time_linear_act_bwd_x(Device *d, Mat dh, Mat da, Mat dy, Mat w, Mat h, ActKind kind)
{
    time_matmul(d, da, dy, 0, w, 0, 0);
    time_act_bwd(d, dh, da, h, kind);
}

static void time_linear_bwd_w(Device *d, Mat dw, Mat db, Mat dy, Mat x)
{
    time_matmul(d, dw, dy, 1, x, 0, 1);
    if (db.rows)
        time_bias_bwd(d, db, dy);
}

static double fp8_bytes(Mat8 m) { return (double)m.rows * (double)m.cols; }

/* Rounded from one reading; where the scale is the matrix's own, that is found in another. */
static void time_fp8_cast(Device *d, void *y, void *yt, Mat x, Fp8Scale *s, Fp8Format format, int delayed)
{
    (void)s, (void)format;
    spend(d, WORK_fp8_cast, 0, (delayed ? 1 : 2) * bytes_of(x) + count(x) * (!!y + !!yt ? !!y + !!yt : 2));
}

/* Tensor cores multiply FP8 at twice the rate of BF16. */
static void time_fp8_matmul(Device *d, Mat c, Mat8 a, Mat8 b, Mat bias, int acc)
{
    (void)bias;
    spend(d, WORK_fp8_matmul, product(tally_of(d), 2 * count(c) * (double)a.cols, BF16) / 2,
          fp8_bytes(a) + fp8_bytes(b) + (acc ? 2 : 1) * bytes_of(c));
}

static void time_fp8_next(Device *d, Fp8Scale *s, int64_t n, int64_t length, int most_recent)
{
    (void)length, (void)most_recent;
    spend(d, WORK_fp8_next, 0, (double)n * sizeof *s);
}

static void time_rope(Device *d, Mat x, int dim, Mat table, const int32_t *position, int inverse)
{
    (void)dim, (void)table, (void)position, (void)inverse;
    spend(d, WORK_rope, 0, 2 * bytes_of(x));
}

/* ---- attention ---- */

/* Query-key pairs of all heads; causal: those that the mask lets through. */
static double pairs(const Attention *s, int causal)
{
    double q = (double)s->seq_q, seen = (double)s->pos0 + (q + 1) / 2;
    if (s->window && seen > (double)s->window)
        seen = (double)s->window;
    return (double)s->batch * s->heads * q * (causal ? seen : (double)s->seq_k);
}

/* One of the products of attention that stores its scores: over all pairs. A product of all heads is one
 * call. */
static void score_product(Device *d, Work w, const Attention *s, Dtype type)
{
    double n = pairs(s, 0), size = (double)dtype_size(type),
           rows = (double)s->batch * s->heads * s->dim * size;
    spend(d, w, product(tally_of(d), 2 * n * s->dim, type), n * size + rows * (double)(s->seq_q + s->seq_k));
}

static void time_attention_fwd(Device *d, Mat o, Mat lse, Mat q, Mat k, Mat v, const Attention *s)
{
    const Machine *m = tally_of(d)->m;
    double n = pairs(s, 0), size = (double)dtype_size(q.type);
    if (!m->unfused) {
        spend(d, WORK_attention_fwd,
              4 * pairs(s, 1) * s->dim / (peak(tally_of(d), q.type) * m->attention_forward),
              bytes_of(o) + bytes_of(lse) + bytes_of(q) + bytes_of(k) + bytes_of(v));
        return;
    }
    score_product(d, WORK_attention_fwd, s, q.type);               /* scores */
    spend(d, WORK_attention_fwd, 0, 2 * n * size); /* scale, mask and softmax are one kernel */
    spend(d, WORK_attention_fwd, 0, n * (2 * size + 1));           /* dropout, and its mask */
    score_product(d, WORK_attention_fwd, s, q.type);               /* times v */
    spend(d, WORK_attention_fwd, 0, 2 * bytes_of(o));              /* heads back side by side */
}

static void time_attention_bwd(Device *d, Mat dq, Mat dk, Mat dv, Mat dout, Mat o, Mat lse, Mat delta, Mat q,
                               Mat k, Mat v, const Attention *s)
{
    const Machine *m = tally_of(d)->m;
    double n = pairs(s, 0), size = (double)dtype_size(q.type);
    (void)delta, (void)lse;
    if (!m->unfused) {
        spend(d, WORK_attention_bwd,
              10 * pairs(s, 1) * s->dim / (peak(tally_of(d), q.type) * m->attention_backward),
              bytes_of(dq) + bytes_of(dk) + bytes_of(dv) + bytes_of(dout) + bytes_of(o) + bytes_of(q) +
                  bytes_of(k) + bytes_of(v));
        return;
    }
    for (int i = 0; i < 4; i++) /* of v, of the probabilities, of q, of k */
        score_product(d, WORK_attention_bwd, s, q.type);
    spend(d, WORK_attention_bwd, 0, n * (2 * size + 1));           /* dropout */
    spend(d, WORK_attention_bwd, 0, 3 * n * size);                 /* softmax */
    spend(d, WORK_attention_bwd, 0, 2 * (bytes_of(dq) + bytes_of(dk) + bytes_of(dv)));
}

/* ---- the ends of the model ---- */

static void time_embed_fwd(Device *d, Mat y, const int32_t *token, const int32_t *position, Mat wte,
                           int64_t v0, Mat wpe)
{
    (void)token, (void)position, (void)wte, (void)v0, (void)wpe;
    spend(d, WORK_embed_fwd, 0, 3 * bytes_of(y));
}

static void time_embed_bwd(Device *d, Mat dwte, int64_t v0, Mat dwpe, Mat dy, const int32_t *token,
                           const int32_t *position)
{
    (void)dwte, (void)v0, (void)dwpe, (void)token, (void)position;
    spend(d, WORK_embed_bwd, 0, bytes_of(dy) + 8 * count(dy));
}

static void time_dropout_bwd(Device *d, Mat dx, Mat dy, const Dropout *s)
{
    spend(d, WORK_dropout_bwd, 0, bytes_of(dx) + bytes_of(dy) + (s->p > 0 ? mask_bytes(d, dy) : 0));
}

static void time_xent_stats(Device *d, Mat stats, Mat logits, const int32_t *label, RowMap rows, int64_t v0,
                            int64_t valid)
{
    (void)label, (void)rows, (void)v0, (void)valid;
    spend(d, WORK_xent_stats, 0, bytes_of(stats) + bytes_of(logits));
}

static void time_xent_combine(Device *d, Mat stats, Mat parts)
{
    spend(d, WORK_xent_combine, 0, bytes_of(stats) + bytes_of(parts));
}

static void time_xent_grad(Device *d, Mat loss, Mat dlogits, Mat logits, Mat stats, const int32_t *label,
                           const float *mask, RowMap rows, int64_t v0, int64_t valid, double scale)
{
    (void)label, (void)mask, (void)rows, (void)v0, (void)valid, (void)scale;
    spend(d, WORK_xent_grad, 0,
          bytes_of(dlogits) + bytes_of(logits) + bytes_of(stats) +
              (double)logits.rows * (double)dtype_size(loss.type));
}

static void time_xent(Device *d, Mat loss, Mat dlogits, Mat logits, Mat stats, const int32_t *label,
                      const float *mask, RowMap rows, int64_t valid, double scale)
{
    if (tally_of(d)->m->unfused) {
        time_xent_stats(d, stats, logits, label, rows, 0, valid);
        time_xent_grad(d, loss, dlogits, logits, stats, label, mask, rows, 0, valid, scale);
        return;
    }
    spend(d, WORK_xent, 0,
          bytes_of(dlogits) + bytes_of(logits) + (double)logits.rows * (double)dtype_size(loss.type));
}

/* ---- sums and updates ---- */

/* Many arrays, whose numbers of elements lie `step` bytes apart from n on, `each` bytes an element: a GPU
 * goes over all in one launch, a host over one after the other. */
static void spend_list(Device *d, Work w, const int64_t *n, size_t step, int64_t count, double each)
{
    double all = 0;
    for (int64_t i = 0; i < count; i++) {
        double bytes = each * (double)*(const int64_t *)((const char *)n + (size_t)i * step);
        if (tally_of(d)->m->shared)
            spend(d, w, 0, bytes);
        all += bytes;
    }
    if (count && !tally_of(d)->m->shared)
        spend(d, w, 0, all);
}

static void time_squares(Device *d, const Squares *list, int64_t count, Dtype type)
{
    spend_list(d, WORK_squares, &list->n, sizeof *list, count, (double)dtype_size(type));
}

static void time_carry(Device *d, Exact *s, int64_t n)
{
    (void)s;
    spend(d, WORK_carry, 0, 2.0 * (double)n * sizeof *s);
}

static void time_verdict(Device *d, Verdict *v, const double *sums, const Exact *squares, double nominal,
                         double loss_scale, double clip_grad, int stop)
{
    (void)sums, (void)nominal, (void)loss_scale, (void)clip_grad, (void)stop;
    spend(d, WORK_verdict, 0, sizeof *v + sizeof *squares);
}

static void time_trust(Device *d, double *trust, const Exact *norms, int64_t n, int lars, double coefficient,
                       double wd, const Verdict *v)
{
    (void)trust, (void)lars, (void)coefficient, (void)wd, (void)v;
    spend(d, WORK_trust, 0, 2.0 * (double)n * sizeof *norms);
}

static void time_sum(Device *d, double *out, Mat x)
{
    (void)out;
    spend(d, WORK_sum, 0, bytes_of(x));
}

/* Gradient read; weight and `states` more read and written, over the bus both ways at once where they are
 * away; the storage copy written. */
static void update(Device *d, Work w, const Update *u, int states)
{
    const Tally *k = tally_of(d);
    size_t real = dtype_size(d->real), copy = u->out_type == d->real ? 0 : dtype_size(u->out_type);
    double each = (double)((size_t)(3 + 2 * states) * real + copy), n = 0;
    if (!u->mapped || k->m->shared) {
        spend_list(d, w, &u->list->n, sizeof *u->list, u->count, each);
        return;
    }
    for (int64_t i = 0; i < u->count; i++)
        n += (double)u->list[i].n;
    spend(d, w, predict_bus(k, n * (double)((size_t)(1 + states) * real)), n * each);
}

static void time_adam(Device *d, const Update *u) { update(d, WORK_adam, u, 2); }
static void time_sgd(Device *d, const Update *u) { update(d, WORK_sgd, u, 1); }
static void time_lars(Device *d, const Update *u) { update(d, WORK_lars, u, 1); }

static void time_lamb_direction(Device *d, const Update *u) { update(d, WORK_lamb_direction, u, 2); }
static void time_lamb_apply(Device *d, const Update *u) { update(d, WORK_lamb_apply, u, 0); }

void predict_device(Device *d, Tally *k, Dtype real)
{
    null_open(d, real);
    d->name = "planned";
    d->impl = k;
#define X(name, args) d->name = time_##name;
    OPS(X)
#undef X
    predict_copies(d);
    if (k->m->unfused)
        d->keeps = (Keeps){.mask = 1, .scores = 1, .logits = 1, .drop_sent = 1, .recomputed_output = 1};
}
