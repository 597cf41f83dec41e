/* test_layouts -- every layout gives the results of one rank: many layouts of one world in one job.
 * Modes:
 *   cover             a set of layouts of this world in which every two choices meet
 *   all [K N [SEED]]  every tp x sp x pp x v x dp x ZeRO x schedule of this world, or part K of N of them;
 *                     the other choices are drawn
 *   bitwise FILE [all]  three steps with clipping; adds a line "what may change bits <tab> bits" a layout
 *                     to FILE: lines with the same first column must have the same bits in every world
 *                     (tests/training/layouts.sh compares them)
 *   optimizers        every rule with every ZeRO stage, three steps, against one rank
 *   bf16              fifty steps, loss against one rank at each
 *   one KEY=VALUE ..  this layout alone, with the words that a failure prints
 *
 * Rank 0 alone computes the one-rank results, once a family. A layout that fails prints one line with
 * its arguments. */
#include "layout_run.h"

/* The whole model as one array. at[number], n[number]: place and size of a tensor; elems: of all
 * together. */
typedef struct { int numbers; int64_t *at, *n, elems; } Whole;

static Whole whole_open(const Config *c)
{
    Whole w = {.numbers = ((int)c->num_layers + 2) * PARAM_KINDS};
    w.at = xcalloc((size_t)w.numbers * 2, sizeof *w.at);
    w.n = w.at + w.numbers;
    for (int number = 0; number < w.numbers; number++) {
        int layer = number / PARAM_KINDS - 1, id = number % PARAM_KINDS;
        PartKind part = layer < 0 ? PART_EMBEDDING : layer == c->num_layers ? PART_HEAD : PART_LAYER;
        int64_t segment[MAX_SEGMENTS], cols, rows = 0;
        w.at[number] = w.elems;
        if (param_defs[id].part != part || !param_defs[id].exists(c))
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
static double *gather(Run *r, const Whole *w, int weights)
{
    Params *p = &r->params;
    Comm *all = &r->grid.all;
    double *out = xcalloc((size_t)w->elems, sizeof *out);
    for (int i = 0; i < p->nparam; i++) {
        const Param *t = &p->param[i];
        const Flat *f = weights ? &p->data.master : &p->data.grad;
        int64_t from, to;
        Box box[MAX_BOXES];
        param_own(p, t, &from, &to);
        to = to < t->counted ? to : t->counted;
        int n = r->grid.copies.rank == 0 && !t->copy && from < to ? param_boxes(p, t, from, to, box) : 0;
        for (int b = 0; b < n; b++)
            for (int64_t row = 0; row < box[b].rows; row++)
                for (int64_t col = 0; col < box[b].cols; col++) {
                    const void *x = param_at(p, t, f, box[b].at + row * box[b].ld + col - t->offset);
                    double value = p->real == F64 ? *(const double *)x : (double)*(const float *)x;
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
static void check_zeros(Run *r, const Whole *w, double said)
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

static void check_params_norm(const Whole *w, const double *x, double said)
{
    double sum = 0;
    for (int64_t i = 0; i < w->elems; i++)
        sum += x[i] * x[i];
    CHECK(apart(sqrt(sum), said) < 1e-12 && said > 1, "norm %.17g, said %.17g\n#   %s", sqrt(sum), said,
          current);
}

static Result result_of(const Config *c, const Whole *w, int steps)
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

static double largest(const double *x, int64_t n)
{
    double m = 0;
    for (int64_t i = 0; i < n; i++)
        m = !(fabs(x[i]) <= m) ? fabs(x[i]) : m;
    return m;
}

/* The largest relative difference of a tensor, *number. Its scale is the tensor's largest element, or
 * 1e-6 of the largest of all if that is larger, because some gradients are zero in exact arithmetic. */
static double furthest(const Whole *w, const double *one, const double *x, int *number)
{
    double most = largest(one, w->elems), worst = 0;
    *number = 0;
    for (int t = 0; t < w->numbers; t++) {
        double scale = fmax(largest(one + w->at[t], w->n[t]), 1e-6 * most);
        for (int64_t i = w->at[t]; i < w->at[t] + w->n[t]; i++) {
            double rel = fabs(x[i] - one[i]) / scale;
            if (!(rel <= worst))
                worst = rel, *number = t;
        }
    }
    return worst;
}

/* The one-rank result of the family's model with the arguments `more`; computed on the first call, on
 * rank 0. */
static const Result *one_rank(int n, int family, const char *const *more, const Whole *w, int steps)
{
    static struct { char key[256]; Result res; } kept[64];
    static int have;
    char key[256], running[sizeof current];
    int at = snprintf(key, sizeof key, "%d %d %d", layout_heads(n), family, steps);
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
    BUG_ON(have == 64);
    memcpy(running, current, sizeof current);
    kept[have].res = result_of(configure(&a, 1), w, steps);
    memcpy(current, running, sizeof current);
    memcpy(kept[have].key, key, sizeof key);
    return &kept[have++].res;
}

static void check(const Whole *w, const Config *c, const Result *one, const Result *got, int steps)
{
    int number;
    double worst = furthest(w, one->x, got->x, &number), loss = 0, norm = apart(one->norm, got->norm);
    char name[96];
    param_name(c, number, name, sizeof name);
    for (int i = 0; i < (steps ? steps : 1); i++)
        loss = fmax(loss, isfinite(got->loss[i]) ? apart(one->loss[i], got->loss[i]) : HUGE_VAL);
    CHECK(worst <= (steps ? 1e-10 : 1e-11) && loss <= (steps ? 1e-11 : 1e-13) &&
              norm <= (steps ? 1e-10 : 1e-12) && got->loss[0] > 1 && got->norm > 0.1 &&
              apart(one->params_norm, got->params_norm) <= 1e-12,
          "%s apart by %.2g, loss by %.2g (%.17g), norm by %.2g (%.17g)\n#   %s", name, worst, loss,
          one->loss[0], norm, one->norm, current);
}

/* Runs a layout of `family` with these arguments; rank 0 compares its result with one rank's. */
static void compare(Words *a, int family, const char *const *more, int steps)
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

static void compare_list(const Layout *list, int n, int part, int parts)
{
    Words a;
    for (int i = 0; i < n; i++)
        if (layout_world(&list[i]) == world && i % parts == part) {
            layout_args(&a, &list[i]);
            compare(&a, list[i].is[FAMILY], NULL, 0);
        }
}

enum { MOST = 2048 };
static Layout list[MOST];

static void optimizers(void)
{
    static const char *const rules[] = {"optimizer=adam", "optimizer=sgd", "optimizer=lamb",
                                        "optimizer=lars"};
    int rest = world / 2;
    for (int rule = 0; rule < 4; rule++)
        for (int zero = 0; zero < 4; zero++)
            for (int way = 0; way < (rest > 1 ? 3 : 1); way++) {
                Layout l = {{0}};
                Words a;
                layout_draw(&l, (uint64_t)(100 * rule + 10 * zero + way));
                l.is[DP] = way == 2 ? world : 2;
                l.is[TP] = way == 0 ? rest : 1;
                l.is[PP] = way == 1 ? rest : 1;
                l.is[ZERO] = zero;
                l.is[INSTANCES] = way == 2 ? 2 : 1;
                l.is[FAMILY] = (rule + 4 * zero + way) % FAMILIES;
                BUG_ON(!layout_normal(&l));
                layout_args(&a, &l);
                const char *more[] = {rules[rule], "log_interval=1", "log_params_norm=true",
                                      "log_num_zeros_in_grad=true", NULL};
                for (const char **m = more; *m; m++)
                    add_arg(&a, *m, NULL);
                compare(&a, l.is[FAMILY], more, 3);
            }
    CHECK(with_zeros >= 4, "%d layouts had zeros to count", with_zeros);
}

/* ---- bitwise ---- */

static void one_bitwise(FILE *out, Layout *l, uint64_t key)
{
    static Run r;
    Words a;
    Result res = {0};
    int *is = l->is, dir = pick(key, 50, 4) == 0, vees = is[TP] > 1 || is[DP] > 1;
    char name[640];
    is[FAMILY] = (int[]){2, 4, 5}[(is[TP] + 2 * is[DP] + is[SP]) % 3];
    is[MICRO] = 1;
    is[PADDING] = vees % 3;
    is[INSTANCES] = 1;
    layout_normal(l);
    layout_args(&a, l);
    add_number(&a, "threads", 1 + pick(key, 51, 2));
    if (dir)
        add_arg(&a, "async_save", "true");
    const Config *c = configure(&a, world);
    Whole w = whole_open(c);
    r = (Run){0};
    snprintf(name, sizeof name, "%s/saved.%d", work_folder(), layouts);
    open_run(&r, c, RUN_TRAIN, dir ? name : NULL);
    train(&r, 1, &res);
    if (dir) {
        json_t *state = run_state(&r);
        saver_save(r.checkpoint.saver, r.progress.iteration, state);
        json_decref(state);
    }
    double first = res.loss[0], norm = res.norm;
    train(&r, 2, &res);
    res.x = gather(&r, &w, 1);
    if (rank == 0) {
        double sums[] = {first, norm, res.loss[0], res.loss[1], res.norm};
        fprintf(out, "family %d tp %d sp %d dp %d %s\t%016llx%016llx\t%s\n", is[FAMILY], is[TP], is[SP],
                is[DP], is[ZERO] < 2 ? "ZeRO 0 1" : "ZeRO 2 3",
                (unsigned long long)hash64(sums, sizeof sums, 1),
                (unsigned long long)hash64(res.x, (size_t)w.elems * 8, 2), current);
        CHECK(isfinite(res.loss[1]) && norm > 0.5, "clipping takes part: norm %g\n#   %s", norm, current);
    }
    layouts++;
    free(res.x);
    free(w.at);
    run_close(&r);
}

/* Writes the bits of this world's layouts: of all with `every` or below 4 ranks, else of a third. */
static void bitwise(const char *path, int every)
{
    FILE *out = rank == 0 ? fopen(path, "a") : NULL;
    if (rank == 0 && !out)
        die(EXIT_RESOURCE, "open", "%s; change: name a file that can be written", path);
    int n = layouts_all(world, list, MOST, 5);
    for (int i = 0; i < n; i++)
        if (every || world < 4 || pick(9, (uint64_t)i, 3) == 0)
            one_bitwise(out, &list[i], (uint64_t)i);
    if (out)
        fclose(out);
}

/* ---- bf16 ---- */

static void bf16(void)
{
    static const char *const more[] = {"params_dtype=bf16",   "lr=0.001",
                                       "hidden_size=64",      "ffn_hidden_size=128",
                                       "seq_length=16",       "global_batch_size=16",
                                       "init_method_std=0.1", NULL};
    static const int sizes[8][3] = {{4, 1, 1}, {1, 4, 1}, {1, 1, 4}, {2, 2, 1},
                                    {2, 1, 2}, {1, 2, 2}, {2, 2, 1}, {1, 2, 2}};
    double worst = 0;
    for (int i = 0; i < 8; i++) {
        Layout l;
        Words a;
        uint64_t draw = (uint64_t)(i + 700);
        do {                           /* until the schedule has enough microbatches */
            l = (Layout){{0}};
            layout_draw(&l, draw);
            memcpy(l.is, (int[]){sizes[i][0], sizes[i][1], sizes[i][2] * world / 4}, sizeof sizes[i]);
            l.is[FAMILY] = i % 4 == 3 ? 3 : i % 2 ? 0 : 2;
            draw += 100;
        } while (!layout_normal(&l));
        layout_args(&a, &l);
        for (const char *const *m = more; *m; m++)
            set_arg(&a, *m);
        const Config *c = configure(&a, world);
        Whole w = whole_open(c);
        Result got = result_of(c, &w, 50);
        layouts++;
        if (rank == 0) {
            const Result *one = one_rank(world, l.is[FAMILY], more, &w, 50);
            double most = 0;
            for (int s = 0; s < 50; s++)
                most = fmax(most, isfinite(got.loss[s]) ? apart(one->loss[s], got.loss[s]) : HUGE_VAL);
            worst = fmax(worst, most);
            CHECK(most <= 1e-2 && one->loss[49] < 0.8 * one->loss[0],
                  "losses apart by %.2g (%g to %g)\n#   %s", most, one->loss[0], one->loss[49], current);
        }
        free(got.x);
        free(w.at);
    }
    if (rank == 0)
        printf("# losses of 50 steps apart by %.2g at most\n", worst);
}

/* Runs one layout. arg: its arguments, those of the model included. */
static void one(int n, char **arg)
{
    Words a = {0};
    for (int i = 0; i < n; i++)
        add_arg(&a, arg[i], NULL);
    const Config *c = configure(&a, world);
    Whole w = whole_open(c);
    Result got = result_of(c, &w, 0);
    layouts++;
    if (rank == 0) {
        Result alone = result_of(config_for_one_rank(c), &w, 0);
        check(&w, c, &alone, &got, 0);
        free(alone.x);
    }
    free(got.x);
    free(w.at);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "cover";
    double start = now();
    layouts_open();
    if (!strcmp(mode, "cover"))
        compare_list(list, layouts_cover(world, list, MOST, 1), 0, 1);
    else if (!strcmp(mode, "all"))
        compare_list(list, layouts_all(world, list, MOST, argc > 4 ? (uint64_t)atoi(argv[4]) : 3),
                     argc > 2 ? atoi(argv[2]) : 0, argc > 3 ? atoi(argv[3]) : 1);
    else if (!strcmp(mode, "bitwise") && argc > 2)
        bitwise(argv[2], argc > 3);
    else if (!strcmp(mode, "optimizers"))
        optimizers();
    else if (!strcmp(mode, "bf16"))
        bf16();
    else if (!strcmp(mode, "one") && argc > 2)
        one(argc - 2, argv + 2);
    else
        CHECK(0, "no mode %s", mode);
    return layouts_close(start);
}
