/* test_route -- the ops of experts against plain code in F64 written from the header: rows that travel, the
 * router, and products of no rows. Each instruction set, real and storage type; 1 and 3 threads (bitwise
 * equal); rows wider apart than they are long; outputs poisoned with NaN. The router's gradient is compared
 * with the F64 device's, which test_grad checks.
 *
 *   test_route [ISA]      only this instruction set */
#include "ops.h"

enum { GAP = 3, MOST = 1 << 20 };
static double worst_rows, worst_route, worst_gradient;   /* largest deviations, as parts of what is allowed */

/* A matrix with a gap between its rows. Everything is NaN. */
static Mat wide(int64_t rows, int64_t cols, Dtype t)
{
    size_t bytes = (size_t)(rows * (cols + GAP)) * dtype_size(t);
    return (Mat){memset(xcalloc(1, bytes + 1), 0xff, bytes), rows, cols, cols + GAP, t};
}
static double at(Mat m, int64_t r, int64_t c) { return get(m.p, r * m.ld + c, m.type); }
static Mat filled(int64_t rows, int64_t cols, Dtype t, uint64_t seed, double spread)
{
    Mat m = wide(rows, cols, t);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            put(m.p, r * m.ld + c, t, spread * normal(seed, r * cols + c));
    return m;
}
static size_t span(Mat m) { return (size_t)(m.rows * m.ld) * dtype_size(m.type); }

/* Compares m with want [rows][cols]: arithmetic may lose `loose` units of the real's precision relative to
 * `size`, and storage half a unit of the last place. Gaps hold NaN. */
static void compare(const char *what, Mat m, const double *want, Dtype real, double size, double *worst)
{
    double most = 0;
    int stray = 0;
    for (int64_t r = 0; r < m.rows; r++) {
        for (int64_t c = 0; c < m.cols; c++) {
            double y = at(m, r, c), z = want[r * m.cols + c];
            double half = m.type == BF16  ? 0x1p-8 * fabs(z)
                          : m.type == F16 ? fmax(0x1p-11 * fabs(z), 0x1p-25)
                                          : 0;
            double off = fabs(y - z) / (half + size * (real == F64 ? 2e-15 : 1e-6) + 1e-300);
            most = isnan(off) ? INFINITY : fmax(most, off);
        }
        for (int64_t c = m.cols; c < m.ld; c++)
            stray += !isnan(at(m, r, c));
    }
    *worst = fmax(*worst, most);
    CHECK(most <= 1 && !stray, "%s %s: %.3g times the tolerance, %d beyond a row", what, dtype_name(m.type),
          most, stray);
}

/* ---- rows that travel ---- */

static double want[MOST];
static int32_t index_of[1 << 16];

static void run_rows(Device *d, Mat *out, Mat x, Mat y, Mat w, int k)
{
    d->gather_rows(d, out[0], x, index_of);
    d->sum_rows(d, out[1], x, index_of, k);
    d->scale_rows(d, out[2], x, w);
    d->row_dots(d, out[3], x, y);
}

static void check_rows(Device *d, Device *three, int64_t n, int64_t m, int64_t cols, int k, Dtype t)
{
    Mat x = filled(m, cols, t, 1, 1), y = filled(m, cols, t, 2, 1), w = filled(m, 1, d->real, 3, 1);
    Mat out[4], again[4];
    const int64_t shape[4][2] = {{n, cols}, {n, cols}, {m, cols}, {m, 1}};
    for (int i = 0; i < 4; i++) {
        out[i] = wide(shape[i][0], shape[i][1], i == 3 ? d->real : t);
        again[i] = wide(shape[i][0], shape[i][1], i == 3 ? d->real : t);
    }
    for (int64_t i = 0; i < n * k; i++)
        index_of[i] = (int32_t)(philox(5, (uint64_t)i, 0).v[0] % (uint64_t)(m + 1)) - 1;
    run_rows(d, out, x, y, w, k);
    run_rows(three, again, x, y, w, k);
    for (int i = 0; i < 4; i++)
        CHECK(!memcmp(out[i].p, again[i].p, span(out[i])), "rows: op %d: threads change bits", i);
    for (int64_t i = 0; i < n * cols; i++) {
        int32_t from = index_of[i / cols];
        want[i] = from < 0 ? 0 : at(x, from, i % cols);
    }
    compare("gather_rows", out[0], want, F64, 0, &worst_rows);
    for (int64_t i = 0; i < n * cols; i++) {
        want[i] = 0;
        for (int j = 0; j < k; j++) {
            int32_t from = index_of[i / cols * k + j];
            want[i] += from < 0 ? 0 : at(x, from, i % cols);
        }
    }
    compare("sum_rows", out[1], want, d->real, k, &worst_rows);
    for (int64_t i = 0; i < m * cols; i++)
        want[i] = at(x, i / cols, i % cols) * at(w, i / cols, 0);
    compare("scale_rows", out[2], want, d->real, 1, &worst_rows);
    for (int64_t r = 0; r < m; r++) {
        want[r] = 0;
        for (int64_t c = 0; c < cols; c++)
            want[r] += at(x, r, c) * at(y, r, c);
    }
    compare("row_dots", out[3], want, d->real, 8 * sqrt((double)cols), &worst_rows);
    d->scale_rows(d, x, x, w);
    CHECK(!memcmp(x.p, out[2].p, span(x)), "scale_rows in place: other bits");
    for (int i = 0; i < 4; i++)
        free(out[i].p), free(again[i].p);
    free(x.p), free(y.p), free(w.p);
}

/* ---- the router ---- */

typedef struct { Routing r; int64_t rows, experts; int bias; const char *logits; } Case;
#define SOFTMAX(k) .topk = k, .scale = 1
#define SIGMOID(k) .topk = k, .sigmoid = 1, .scale = 2.5
static const Case cases[] = {
    {{SOFTMAX(2)}, 130, 8, 0, "plain"},
    {{SOFTMAX(1)}, 67, 5, 0, "plain"},
    {{SOFTMAX(1)}, 3, 1, 0, "plain"},
    {{SOFTMAX(7)}, 9, 7, 0, "plain"},
    {{SOFTMAX(6)}, 65, 257, 1, "plain"},
    {{SOFTMAX(2), .pre_softmax = 1}, 130, 8, 0, "plain"},
    {{SOFTMAX(1), .pre_softmax = 1}, 4, 1, 1, "plain"},
    {{SOFTMAX(33), .pre_softmax = 1}, 9, 33, 1, "plain"},
    {{SOFTMAX(4), .groups = 4, .group_topk = 2}, 80, 36, 0, "plain"},
    {{SOFTMAX(6), .pre_softmax = 1, .groups = 8, .group_topk = 3}, 80, 160, 0, "plain"},
    {{SOFTMAX(6), .pre_softmax = 1, .groups = 3, .group_topk = 3}, 20, 6, 1, "plain"},
    {{SIGMOID(8), .groups = 8, .group_topk = 4}, 140, 256, 1, "plain"},
    {{SIGMOID(1)}, 64, 8, 1, "plain"},
    {{SIGMOID(1)}, 2, 1, 0, "plain"},
    {{SIGMOID(5)}, 33, 5, 0, "plain"},
    {{SIGMOID(4), .groups = 32, .group_topk = 4}, 40, 64, 0, "plain"},
    {{SOFTMAX(3)}, 5, 19, 0, "equal"},
    {{SIGMOID(4), .groups = 5, .group_topk = 2}, 5, 20, 0, "equal"},
    {{SOFTMAX(3)}, 40, 19, 0, "few"},
    {{SIGMOID(4), .groups = 5, .group_topk = 2}, 40, 20, 0, "few"},
    {{SIGMOID(3)}, 40, 19, 0, "few"},
    {{SOFTMAX(3), .given = 1}, 70, 19, 0, "plain"},
    {{SOFTMAX(2), .pre_softmax = 1, .given = 1}, 9, 8, 1, "plain"},
    {{SIGMOID(4), .groups = 5, .group_topk = 2, .given = 1}, 40, 20, 1, "plain"},
};

/* Logits are multiples of 1/16, so that rounding changes no choice and some are equal; "few": multiples of
 * 2; "equal": one number. */
static Mat logits_of(const Case *c, Dtype real)
{
    Mat x = wide(c->rows, c->experts, real);
    double step = *c->logits == 'p' ? 16 : *c->logits == 'f' ? 0.5 : 0;
    for (int64_t i = 0; i < c->rows * c->experts; i++)
        put(x.p, i / c->experts * x.ld + i % c->experts, real,
            step ? nearbyint(step * 2 * normal(7, i)) / step : 0.75);
    return x;
}

/* Whether expert a comes before b. */
static int first(const double *value, int64_t a, int64_t b)
{
    return value[a] > value[b] || (value[a] == value[b] && a < b);
}
/* order [n]: the numbers of values, best first, by insertion. */
static void sorted(const double *value, int64_t n, int64_t *order)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t k = i;
        for (; k && first(value, i, order[k - 1]); k--)
            order[k] = order[k - 1];
        order[k] = i;
    }
}

/* The header's formulas for one row. */
static void plain(const Case *c, const double *x, const double *bias, int64_t *choice, double *weight,
                  double *scores)
{
    const Routing *r = &c->r;
    int64_t n = c->experts, order[512], each = r->groups ? n / r->groups : n;
    double value[512], group[512], sum = 0, own[512], chosen = 0;
    for (int64_t e = 0; e < n; e++)
        sum += own[e] = r->sigmoid ? 1 / (1 + exp(-x[e])) : exp(x[e]);
    for (int64_t e = 0; e < n; e++) {
        scores[e] = own[e] / sum;
        value[e] = (r->sigmoid ? own[e] : bias || (r->groups && r->pre_softmax) ? scores[e] : x[e])
                   + (bias ? bias[e] : 0);
    }
    for (int g = 0; g < r->groups; g++) {
        sorted(value + g * each, each, order);
        group[g] = 0;
        for (int k = 0; k < r->topk / r->group_topk; k++)
            group[g] += value[g * each + order[k]];
    }
    sorted(group, r->groups, order);
    for (int g = r->group_topk; g < r->groups; g++)
        for (int64_t e = 0; e < each; e++)
            value[order[g] * each + e] = -INFINITY;
    sorted(value, n, order);
    for (int k = 0; k < r->topk; k++)
        chosen += own[choice[k] = r->given ? choice[k] : order[k]];
    for (int k = 0; k < r->topk; k++) {
        double w = r->pre_softmax ? scores[choice[k]] : own[choice[k]] / chosen;
        weight[k] = r->scale * (r->sigmoid && r->topk == 1 ? own[choice[k]] : w);
    }
}

/* The numbers of m in F64, without gaps. */
static Mat exactly(Mat m)
{
    Mat y = mat(xcalloc((size_t)(m.rows * m.cols) + 1, sizeof(double)), m.rows, m.cols, F64);
    for (int64_t i = 0; i < m.rows * m.cols; i++)
        put(y.p, i, F64, at(m, i / m.cols, i % m.cols));
    return y;
}

/* The gradient beside that of the F64 device, which test_grad checks by finite differences; in place too. */
static void check_gradient(Device *d, Device *three, Device *oracle, const Case *c, Mat x,
                           const int32_t *choice)
{
    Routing r = c->r;
    r.z = 0.01, r.row0 = 5, r.each = 7;
    int64_t pushes = (r.row0 + c->rows - 1) / r.each + 1;
    Mat dw = filled(c->rows, r.topk, d->real, 11, 1), push = filled(pushes, c->experts, d->real, 12, 1);
    Mat out = wide(c->rows, c->experts, d->real), again = wide(c->rows, c->experts, d->real);
    Mat from[] = {exactly(dw), exactly(x), exactly(push)}, to = exactly(x);
    d->route_bwd(d, out, dw, x, choice, push, &r);
    three->route_bwd(three, again, dw, x, choice, push, &r);
    CHECK(!memcmp(out.p, again.p, span(out)), "%s case %d: threads change bits", d->isa, (int)(c - cases));
    oracle->route_bwd(oracle, to, from[0], from[1], choice, from[2], &r);
    compare("dlogits", out, to.p, d->real, 1, &worst_gradient);
    three->route_bwd(three, x, dw, x, choice, push, &r);
    CHECK(!memcmp(out.p, x.p, span(out)), "%s case %d: in place: other bits", d->isa, (int)(c - cases));
    free(dw.p), free(push.p), free(out.p), free(again.p), free(to.p);
    for (int i = 0; i < 3; i++)
        free(from[i].p);
}

static double all_weights[MOST], all_scores[MOST];

/* Statistics of the rows beside the header's formulas, with and without a push. */
static void check_stats(Device *d, Device *three, const Case *c, Mat x)
{
    Routing r = c->r;
    r.z = 0.01, r.row0 = 5, r.each = 7;
    int64_t n = c->experts, R = c->rows, pushes = (r.row0 + R - 1) / r.each + 1;
    Mat push = filled(pushes, n, d->real, 12, 1), out = wide(3, R, d->real), again = wide(3, R, d->real);
    double *want = xcalloc((size_t)(3 * R), sizeof *want), largest = 0;
    for (int with = 0; with < 2; with++) {
        memset(want, 0, (size_t)(3 * R) * sizeof *want);
        for (int64_t i = 0; i < R; i++) {
            double exps = 0, sum = 0;
            for (int64_t e = 0; e < n; e++)
                exps += exp(at(x, i, e)), sum += r.sigmoid ? 1 / (1 + exp(-at(x, i, e))) : exp(at(x, i, e));
            want[R + i] = r.z * log(exps) * log(exps);
            for (int64_t e = 0; e < n; e++) {
                double p = (r.sigmoid ? 1 / (1 + exp(-at(x, i, e))) : exp(at(x, i, e))) / sum;
                want[i] += with ? p * at(push, (r.row0 + i) / r.each, e) : 0;
                want[2 * R + i] -= p * log(p);
            }
            largest = fmax(largest, fmax(want[R + i], want[2 * R + i] + log(exps) * log(exps)));
        }
        d->route_stats(d, out, x, with ? push : (Mat){0}, &r);
        three->route_stats(three, again, x, with ? push : (Mat){0}, &r);
        CHECK(!memcmp(out.p, again.p, span(out)), "%s case %d: threads change bits", d->isa,
              (int)(c - cases));
        compare("stats", out, want, d->real, largest, &worst_route);
    }
    free(push.p), free(out.p), free(again.p), free(want);
}

static void check_route(Device *d, Device *three, Device *oracle, const Case *c)
{
    int64_t k = c->r.topk, n = c->experts, bad = 0, moved = 0, chosen[512];
    Mat x = logits_of(c, d->real), bias = {0}, w[3], s[3];
    int32_t *choice[3];
    double row[512], b[512];
    for (int i = 0; i < 3; i++) {
        choice[i] = xcalloc((size_t)(c->rows * k), sizeof **choice);
        w[i] = wide(c->rows, k, d->real);
        s[i] = wide(c->rows, n, d->real);
        for (int64_t p = 0; p < c->rows * k && c->r.given; p++)
            choice[i][p] = (int32_t)((p / k * 5 + p % k * 3) % n);
    }
    if (c->bias)
        bias = filled(1, n, d->real, 9, 0.1);
    d->route_fwd(d, choice[0], w[0], s[0], x, bias, &c->r);
    three->route_fwd(three, choice[1], w[1], s[1], x, bias, &c->r);
    for (int64_t r = 0; r < c->rows; r++)      /* rows one by one, as other layouts hold them */
        d->route_fwd(d, choice[2] + r * k, mat_rows(w[2], r, 1), mat_rows(s[2], r, 1), mat_rows(x, r, 1),
                     bias, &c->r);
    for (int i = 1; i < 3; i++)
        CHECK(!memcmp(choice[0], choice[i], (size_t)(c->rows * k) * 4) && !memcmp(w[0].p, w[i].p, span(w[0]))
                  && !memcmp(s[0].p, s[i].p, span(s[0])),
              "%s case %d: %s change bits", d->isa, (int)(c - cases), i == 1 ? "threads" : "other rows");
    for (int64_t r = 0; r < c->rows; r++) {
        for (int64_t e = 0; e < n; e++)
            row[e] = at(x, r, e), b[e] = c->bias ? at(bias, 0, e) : 0;
        for (int64_t i = 0; i < k; i++)
            chosen[i] = (r * 5 + i * 3) % n;       /* read where choices are given */
        plain(c, row, c->bias ? b : NULL, chosen, all_weights + r * k, all_scores + r * n);
        for (int64_t i = 0; i < k; i++)
            bad += choice[0][r * k + i] != chosen[i];
        for (int64_t i = 0; i < k && c->logits[0] == 'e'; i++)
            moved += choice[0][r * k + i] != i;
    }
    CHECK(!bad && !moved, "%s %s case %d: %lld choices differ, %lld of equal logits", d->isa,
          dtype_name(d->real), (int)(c - cases), (long long)bad, (long long)moved);
    compare("weight", w[0], all_weights, d->real, c->r.scale, &worst_route);
    compare("scores", s[0], all_scores, d->real, 1, &worst_route);
    check_stats(d, three, c, x);
    check_gradient(d, three, oracle, c, x, choice[0]);
    for (int i = 0; i < 3; i++)
        free(choice[i]), free(w[i].p), free(s[i].p);
    free(x.p), free(bias.p);
}

/* Logits that are not numbers, or infinite, still choose topk different experts of the row. */
static void check_wild(Device *d)
{
    enum { N = 9, K = 4 };
    const double kind[][N] = {{NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN},
                              {NAN, 1, -INFINITY, NAN, -INFINITY, 3, NAN, NAN, -INFINITY},
                              {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY,
                               -INFINITY, 0},
                              {INFINITY, 0, -INFINITY, INFINITY, 1, 2, NAN, INFINITY, INFINITY}};
    static const int32_t first[][K] = {{0, 1, 2, 3}, {5, 1, 0, 2}, {8, 0, 1, 2}, {0, 3, 7, 8}};
    Mat x = wide(1, N, d->real), w = wide(1, K, d->real), s = wide(1, N, d->real);
    for (size_t i = 0; i < sizeof kind / sizeof *kind; i++)
        for (int groups = 0; groups <= 3; groups += 3) {
            int32_t choice[K] = {-1, -1, -1, -1};
            int seen[N] = {0}, twice = 0;
            for (int e = 0; e < N; e++)
                put(x.p, e, d->real, kind[i][e]);
            d->route_fwd(d, choice, w, s, x, (Mat){0},
                         &(Routing){SOFTMAX(K), .groups = groups, .group_topk = 2});
            for (int k = 0; k < K; k++)
                twice += choice[k] < 0 || choice[k] >= N || seen[choice[k]]++;
            CHECK(!twice && (groups || !memcmp(choice, first[i], sizeof choice)),
                  "%s row %zu, %d groups: choices %d %d %d %d", d->isa, i, groups, choice[0], choice[1],
                  choice[2], choice[3]);
        }
    free(x.p), free(w.p), free(s.p);
}

/* ---- no rows ---- */

/* Ops on the rows of an expert that has no token write nothing: gradients keep their bits, -0 too. */
static void check_none(Device *d, Dtype t)
{
    enum { IN = 37, OUT = 21 };
    Mat x = filled(4, IN, t, 1, 1), w = filled(OUT, IN, t, 2, 1), wh = filled(2 * OUT, IN, t, 5, 1);
    Mat bias = filled(1, OUT, t, 3, 1), h = filled(4, 2 * OUT, t, 4, 1), none = {0};
    Mat y = wide(4, OUT, t), dx = wide(4, IN, t), dw = wide(OUT, IN, d->real), db = wide(1, OUT, d->real);
    Mat out[] = {y, dx, h, dw, db};
    void *before[5];
    for (int64_t i = 0; i < OUT * IN; i++)
        put(dw.p, i / IN * dw.ld + i % IN, d->real, i % 2 ? -0.0 : 1);
    for (int64_t i = 0; i < OUT; i++)
        put(db.p, i, d->real, -0.0);
    for (int i = 0; i < 5; i++)
        before[i] = memcpy(xcalloc(1, span(out[i])), out[i].p, span(out[i]));
    for (int64_t r = 0; r <= 4; r += 4) {
        Mat x0 = mat_rows(x, r, 0), y0 = mat_rows(y, r, 0), h0 = mat_rows(h, r, 0), dx0 = mat_rows(dx, r, 0);
        d->linear(d, y0, x0, w, bias);
        d->linear(d, y0, x0, w, none);
        d->matmul(d, dx0, y0, 0, w, 0, 0);
        d->matmul(d, dx0, y0, 0, w, 0, 1);
        d->matmul(d, dw, y0, 1, x0, 0, 1);
        d->linear_bwd_w(d, dw, db, y0, x0, 1);
        d->linear_bwd_w(d, dw, none, y0, x0, 1);
        d->bias_bwd(d, db, y0);
        for (ActKind kind = ACT_GELU; kind <= ACT_SQUARED_RELU; kind++) {
            Mat hk = mat_cols(h0, 0, act_width(kind, OUT)), wk = mat_rows(wh, 0, hk.cols);
            d->act_fwd(d, y0, hk, kind);
            d->act_bwd(d, hk, y0, hk, kind);
            d->linear_act_fwd(d, y0, hk, x0, wk, none, kind);
            d->linear_act_bwd_x(d, hk, y0, dx0, mat(wh.p, IN, OUT, t), hk, kind);
        }
        d->gather_rows(d, y0, y0, NULL);
        d->sum_rows(d, y0, y0, NULL, 2);
        d->scale_rows(d, y0, y0, mat(db.p, 0, 1, d->real));
        d->row_dots(d, mat(db.p, 0, 1, d->real), y0, y0);
        Mat weight = mat(db.p, 0, 2, d->real), logits = mat(db.p, 0, 5, d->real);
        d->route_fwd(d, NULL, weight, logits, logits, none, &(Routing){SOFTMAX(2)});
        d->route_bwd(d, logits, weight, logits, NULL, none, &(Routing){SOFTMAX(2)});
        d->route_stats(d, mat(db.p, 3, 0, d->real), logits, none, &(Routing){SOFTMAX(2)});
    }
    for (int i = 0; i < 5; i++) {
        CHECK(!memcmp(before[i], out[i].p, span(out[i])), "%s %s: no rows, but matrix %d changed", d->isa,
              dtype_name(t), i);
        free(before[i]), free(out[i].p);
    }
    free(x.p), free(w.p), free(bias.p), free(wh.p);
}

int main(int argc, char **argv)
{
    Device oracle;
    cpu_open(&oracle, F64, "generic", 1);
    for (int i = 0; i < ISAS; i++)
        for (Dtype real = F64; real <= F32 && isa_wanted(i, argc, argv); real++) {
            Device d, three;
            cpu_open(&d, real, isa_names[i], 1);
            cpu_open(&three, real, isa_names[i], 3);
            for (Dtype t = real; t <= (real == F64 ? F64 : F16); t++) {
                check_rows(&d, &three, 150, 70, 257, 2, t);
                check_rows(&d, &three, 1, 1, 1, 1, t);
                check_rows(&d, &three, 37, 300, 33, 9, t);
                check_rows(&d, &three, 5, 3, 9001, 4, t);
                check_none(&d, t);
            }
            for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
                check_route(&d, &three, &oracle, &cases[c]);
            check_wild(&d);
            cpu_close(&d);
            cpu_close(&three);
        }
    cpu_close(&oracle);
    printf("# largest deviation, in tolerances: rows %.3f, router %.3f, its gradient %.3f\n", worst_rows,
           worst_route, worst_gradient);
    return test_end();
}
