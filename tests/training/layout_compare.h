/* layout_compare -- gradients or weights of the whole model from a layout, beside those of one rank. Rank 0
 * alone computes the one-rank results, once a family. */
#ifndef LAYOUT_COMPARE_H
#define LAYOUT_COMPARE_H
#include "layout_run.h"

/* The whole model as one array. at[number], n[number]: place and size of a tensor; elems: of all
 * together. */
typedef struct { int numbers; int64_t *at, *n, elems; } Whole;

static inline Whole whole_open(const Config *c)
{
    int of_row = c->num_moe_experts == CFG_ABSENT ? 1 : (int)c->num_moe_experts + 1;
    Whole w = {.numbers = ((int)c->num_layers + 2) * PARAM_KINDS * of_row};
    w.at = xcalloc((size_t)w.numbers * 2, sizeof *w.at);
    w.n = w.at + w.numbers;
    for (int number = 0; number < w.numbers; number++) {
        int layer = number / of_row / PARAM_KINDS - 1, id = number / of_row % PARAM_KINDS;
        int expert = number % of_row > 0;
        PartKind part = layer < 0 ? PART_EMBEDDING : layer == c->num_layers ? PART_HEAD : PART_LAYER;
        int64_t segment[MAX_SEGMENTS], cols, rows = 0;
        w.at[number] = w.elems;
        if (param_defs[id].part != part || !param_defs[id].exists(c, layer) ||
            expert != (id >= P_EFC1 && id <= P_EFC2B))
            continue;
        param_defs[id].shape(c, segment, &cols);
        for (int s = 0; s < MAX_SEGMENTS; s++)
            rows += segment[s];
        w.n[number] = rows * (cols ? cols : 1);
        w.elems += w.n[number];
    }
    return w;
}

/* Gradients or masters of the whole model, on every rank: the sum over ranks of the elements that each
 * owns. Collective. */
static inline double *gather(Run *r, const Whole *w, int weights)
{
    Params *p = &r->params;
    Comm *all = &r->grid.all;
    double *out = xcalloc((size_t)w->elems, sizeof *out);
    for (int i = 0; i < p->nparam; i++) {
        const Param *t = &p->param[i];
        int64_t from, to;
        Box box[MAX_BOXES];
        param_own(p, t, &from, &to);
        to = to < t->counted ? to : t->counted;
        int first = data_groups(&p->data, t->bucket)->copies->rank == 0 && !t->copy;
        int n = first && from < to ? param_boxes(p, t, from, to, box) : 0;
        for (int b = 0; b < n; b++)
            for (int64_t row = 0; row < box[b].rows; row++)
                for (int64_t col = 0; col < box[b].cols; col++) {
                    union { double f64; float f32; } x;
                    int64_t at = box[b].at + row * box[b].ld + col - t->offset;
                    if (weights)
                        masters_get(p, &r->dev, t, at, 1, &x);
                    else
                        r->dev.get(&r->dev, &x, param_at(p, t, &p->data.grad, at), dtype_size(p->real));
                    double value = p->real == F64 ? x.f64 : (double)x.f32;
                    out[w->at[t->number] + (box[b].row0 + row) * t->cols + box[b].col0 + col] +=
                        weights ? value : value * r->step.verdict.gscale;
                }
    }
    all->wait(all, all->all_reduce(all, out, w->elems, F64, OP_SUM));
    return out;
}

static int with_zeros;                 /* number of layouts with a zero in the gradient */

/* Compares num_zeros of a step with the zeros of the gathered gradient. One rank's number may differ,
 * because gradients that vanish in exact arithmetic are 0 in one layout and 1e-17 in another. */
static inline void check_zeros(Run *r, const Whole *w, double said)
{
    int64_t zeros = 0;
    if (r->cfg->optimizer != OPTIMIZER_ADAM && r->cfg->optimizer != OPTIMIZER_SGD)
        return;                        /* lamb, lars: the gradient is overwritten */
    double *x = gather(r, w, 0);
    for (int64_t i = 0; i < w->elems; i++)
        zeros += x[i] == 0;
    with_zeros += zeros > 0;
    CHECK(said == (double)zeros, "%.0f zeros of %lld, said %.0f\n#   %s", (double)zeros, (long long)w->elems,
          said, current);
    free(x);
}

static inline void check_params_norm(const Whole *w, const double *x, double said)
{
    double sum = 0;
    for (int64_t i = 0; i < w->elems; i++)
        sum += x[i] * x[i];
    CHECK(apart(sqrt(sum), said) < 1e-12 && said > 1, "norm %.17g, said %.17g\n#   %s", sqrt(sum), said,
          current);
}

static inline Result result_of(const Config *c, const Whole *w, int steps)
{
    static Run r;
    Result res = {0};
    r = (Run){0};
    open_run(&r, c, steps ? RUN_TRAIN : RUN_GRADIENT, NULL);
    train(&r, steps, &res);
    if (c->log_num_zeros_in_grad)
        check_zeros(&r, w, res.zeros);
    res.x = gather(&r, w, steps > 0);
    if (c->log_params_norm)
        check_params_norm(w, res.x, res.params_norm);
    run_close(&r);
    return res;
}

/* ---- against one rank ---- */

static inline double largest(const double *x, int64_t n)
{
    double m = 0;
    for (int64_t i = 0; i < n; i++)
        m = worse(m, fabs(x[i]));
    return m;
}

/* The largest relative difference of a tensor, *number. Its scale is the tensor's largest element, or
 * 1e-6 of the largest of all if that is larger, because some gradients are zero in exact arithmetic. */
static inline double furthest(const Whole *w, const double *one, const double *x, int *number)
{
    double most = largest(one, w->elems), worst = 0;
    *number = 0;
    for (int t = 0; t < w->numbers; t++) {
        double scale = fmax(largest(one + w->at[t], w->n[t]), 1e-6 * most);
        for (int64_t i = w->at[t]; i < w->at[t] + w->n[t]; i++) {
            double rel = fabs(x[i] - one[i]) / scale;
            if (!(rel <= worst) && !isnan(worst))
                worst = rel, *number = t;
        }
    }
    return worst;
}

/* The one-rank result of the family's model with the arguments `more`; computed on the first call, on
 * rank 0. */
static inline const Result *one_rank(int n, int family, const char *const *more, const Whole *w, int steps)
{
    enum { KEPT = 128 };
    static struct { char key[256]; Result res; } kept[KEPT];
    static int have;
    char key[256], running[sizeof current];
    int at = snprintf(key, sizeof key, "%d %d %d %g", layout_heads(n), family, steps, document_rate);
    for (const char *const *m = more; m && *m; m++)
        at += snprintf(key + at, sizeof key - (size_t)at, " %s", *m);
    for (int i = 0; i < have; i++)
        if (!strcmp(kept[i].key, key))
            return &kept[i].res;
    Words a;
    layout_model(&a, n, family);
    add_arg(&a, "micro_batch_size", "1");
    for (const char *const *m = more; m && *m; m++)
        set_arg(&a, *m);
    BUG_ON(have == KEPT);
    memcpy(running, current, sizeof current);
    kept[have].res = result_of(configure(&a, 1), w, steps);
    memcpy(current, running, sizeof current);
    memcpy(kept[have].key, key, sizeof key);
    return &kept[have++].res;
}

static double most_routers;            /* of all layouts: largest difference of a sum of the routers */

/* Compares the statistics of the routers: counts are the same, sums differ by rounding. */
static inline void check_routers(const Result *one, const Result *got)
{
    double worst = 0, scale[ROUTER_SUMS] = {0};
    for (int i = 0; i < one->sums; i++)
        scale[i % ROUTER_SUMS] = fmax(scale[i % ROUTER_SUMS], fabs(one->sum[i]));
    for (int i = 0; i < one->sums; i++)
        if (one->sum[i] != got->sum[i])
            worst = worse(worst, fabs(one->sum[i] - got->sum[i]) / scale[i % ROUTER_SUMS]);
    most_routers = fmax(most_routers, worst);
    CHECK(one->counts == got->counts && one->sums == got->sums &&
              !memcmp(one->count, got->count, (size_t)one->counts * sizeof *one->count),
          "the routers' counts differ\n#   %s", current);
    CHECK(worst <= 1e-12, "the routers' losses or entropies are apart by %.2g\n#   %s", worst, current);
}

static double most_apart, most_loss;   /* of all layouts: largest differences of a gradient and of the loss */

static inline void check(const Whole *w, const Config *c, const Result *one, const Result *got, int steps)
{
    int number;
    double worst = furthest(w, one->x, got->x, &number), loss = 0, norm = apart(one->norm, got->norm);
    char name[96];
    param_name(c, number, name, sizeof name);
    for (int i = 0; i < (steps ? steps : 1); i++)
        loss = fmax(loss, isfinite(got->loss[i]) ? apart(one->loss[i], got->loss[i]) : HUGE_VAL);
    most_apart = fmax(most_apart, worst);
    most_loss = fmax(most_loss, loss);
    if (!steps)
        check_routers(one, got);
    CHECK(worst <= (steps ? 1e-10 : 1e-11) && loss <= (steps ? 1e-11 : 1e-13) &&
              norm <= (steps ? 1e-10 : 1e-12) && got->loss[0] > 1 && got->norm > 0.1 &&
              apart(one->params_norm, got->params_norm) <= 1e-12,
          "%s apart by %.2g, loss by %.2g (%.17g), norm by %.2g (%.17g)\n#   %s", name, worst, loss,
          one->loss[0], norm, one->norm, current);
}

/* Runs a layout of `family` with these arguments; rank 0 compares its result with one rank's. */
static inline void compare(Words *a, int family, const char *const *more, int steps)
{
    const Config *c = configure(a, world);
    Whole w = whole_open(c);
    Result got = result_of(c, &w, steps);
    layouts++;
    if (rank == 0)
        check(&w, c, one_rank(world, family, more, &w, steps), &got, steps);
    free(got.x);
    free(w.at);
}

/* Prints the largest differences of all layouts. */
static inline void say_apart(void)
{
    if (rank == 0 && most_apart > 0)
        printf("# apart from one rank at most: tensors %.2g, loss %.2g\n", most_apart, most_loss);
}
#endif
