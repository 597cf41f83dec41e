/* test_layouts -- every layout gives the results of one rank: many layouts of one world in one job.
 * Modes:
 *   cover             a set of layouts of this world in which every two choices meet
 *   experts [MOST]    the same of models with experts, over ep and etp too; MOST: the first of them
 *   all [K N [SEED]]  every tp x sp x cp (each kind) x pp x v x dp x ZeRO x schedule of this world, or part K
 *                     of N of them; the other choices are drawn
 *   all-experts [..]  every tp x sp x cp x ep x etp x pp x v x dp x ZeRO x schedule, in the same way
 *   bitwise FILE [all]  three steps with clipping; adds a line "what may change bits <tab> bits" a layout
 *                     to FILE: lines with the same first column must have the same bits in every world
 *                     (tests/training/layouts.sh compares them)
 *   optimizers        every rule with every ZeRO stage, three steps, against one rank
 *   bf16, fp8, blocks, mx  fifty steps, or six (with FEW too), loss against one rank at each, and gradients
 *   one KEY=VALUE ..  this layout alone, with the words that a failure prints
 *
 * Rank 0 alone computes the one-rank results, once a family. A layout that fails prints one line with
 * its arguments. */
#include "layout_compare.h"

/* Whether item i of a list is tried: with FEW (test.h) every eighth. */
static int tried(int i) { return !test_few() || i % 8 == 0; }

/* Compares layouts with one rank. The balance of experts and their capacity are a microbatch's: one rank gets
 * the same ones. */
static void compare_list(const Layout *list, int n, int part, int parts)
{
    Words a;
    for (int i = 0; i < n; i++)
        if (layout_world(&list[i]) == world && i % parts == part && tried(i / parts)) {
            char micro[32];
            const char *const *dropped = layout_capacity[list[i].is[CAPACITY]];
            const char *more[] = {list[i].is[EP] ? micro : NULL, dropped[0], dropped[0] ? dropped[1] : NULL,
                                  NULL};
            snprintf(micro, sizeof micro, "micro_batch_size=%d", list[i].is[MICRO]);
            layout_args(&a, &list[i]);
            compare(&a, list[i].is[FAMILY], more, 0);
        }
}

enum { MOST = 8192 };
static Layout list[MOST];

/* A layout for a rule of the optimizer and a ZeRO stage. way: the axis that half of the ranks lie on: tensor,
 * pipeline, data with two instances, context; 4: experts, over ranks of dp or over those of tp. Returns 0
 * when it is not legal. */
static int optimizer_layout(Layout *l, int rule, int zero, int way, int draw)
{
    int rest = world / 2;
    *l = (Layout){{0}};
    layout_draw(l, (uint64_t)(1000 * draw + 100 * rule + 10 * zero + way));
    l->is[DP] = way == 2 ? world : 2;
    l->is[TP] = way == 0 ? rest : 1;
    l->is[PP] = way == 1 ? rest : 1;
    l->is[CP] = way == 3 ? rest : 1;
    l->is[KIND] = zero % 2;
    l->is[ZERO] = zero;
    l->is[INSTANCES] = way == 2 ? 2 : 1;
    l->is[FAMILY] = (rule + 4 * zero + way) % FAMILIES;
    if (way == 4) {
        l->is[FAMILY] = FAMILIES + (rule + zero) % EXPERT_FAMILIES;
        l->is[DP] = rule % 2 ? world : 2;
        l->is[TP] = world / l->is[DP];
        l->is[EP] = 2;
        l->is[ETP] = zero % 2 && world % 4 == 0 && world > 4 ? 2 : 1;
    }
    return layout_normal(l);
}

static void optimizers(void)
{
    static const char *const rules[] = {"optimizer=adam", "optimizer=sgd", "optimizer=lamb",
                                        "optimizer=lars"};
    for (int rule = 0; rule < 4; rule++)
        for (int zero = 0; zero < 4; zero++)
            for (int way = 0, draw = 0; way < (world > 3 ? 5 : 1); way++, draw = 0) {
                if (!tried(rule + zero + way))
                    continue;
                Layout l;
                Words a;
                while (!optimizer_layout(&l, rule, zero, way, draw))
                    BUG_ON(++draw == 100);
                layout_args(&a, &l);
                char micro[32];
                snprintf(micro, sizeof micro, "micro_batch_size=%d", l.is[MICRO]);
                const char *const *dropped = layout_capacity[l.is[CAPACITY]];
                const char *more[] = {rules[rule], "log_interval=1", "log_params_norm=true",
                                      "log_num_zeros_in_grad=true", l.is[EP] ? micro : NULL, dropped[0],
                                      dropped[0] ? dropped[1] : NULL, NULL};
                for (const char **m = more; *m; m++)
                    add_arg(&a, *m, NULL);
                compare(&a, l.is[FAMILY], more, 3);
            }
    CHECK(with_zeros >= (test_few() ? 0 : 4), "%d layouts had zeros to count", with_zeros);
}

/* ---- bitwise ---- */

static void one_bitwise(FILE *out, Layout *l, uint64_t key)
{
    static Run r;
    Words a;
    Result res = {0};
    int *is = l->is, dir = pick(key, 50, 4) == 0;
    char name[640];
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
        /* gradients of dp x cp are added in the order of the ranks; "first": dp is before cp in it. The order
         * of the ranks says, too, which of them share experts. */
        fprintf(out, "family %d capacity %d tp %d sp %d cp %d by %d %d dp %d ep %d %d by %d%s%s %s\t%016llx"
                "%016llx\t%s\n",
                is[FAMILY], is[CAPACITY], is[TP], is[SP], is[CP], is[KIND], is[HEADS], is[DP], is[EP],
                is[ETP], is[EP] && is[ORDER] > 1 ? is[ORDER] : 0, is[GATHER] ? " gathered" : "",
                is[CP] > 1 && is[DP] > 1 && is[ORDER] > 1 ? " first" : "",
                is[ZERO] < 2 ? "ZeRO 0 1" : "ZeRO 2 3",
                (unsigned long long)hash64(sums, sizeof sums, 1),
                (unsigned long long)hash64(res.x, (size_t)w.elems * 8, 2), current);
        CHECK(isfinite(res.loss[1]) && norm > 0.5, "clipping takes part: norm %g\n#   %s", norm, current);
    }
    layouts++;
    free(res.x);
    free(w.at);
    run_close(&r);
}

/* Replaces the choices that change bits, but for those of the line's first column. Returns 0 when the
 * layout is not legal then. */
static int bitwise_normal(Layout *l)
{
    int *is = l->is;
    is[FAMILY] = is[EP] ? (int[]){FAMILIES, FAMILIES + 1, FAMILIES + 3}[(is[TP] + is[DP] + is[EP]) % 3]
                        : (int[]){2, 4, 5}[(is[TP] + 2 * is[DP] + is[SP]) % 3];
    is[KIND] = is[EP] ? 0 : is[KIND];
    is[CAPACITY] = 0;
    is[MICRO] = 1;
    is[PADDING] = is[TP] > 1 || is[DP] > 1;
    is[CAPACITY] = is[EP] ? (is[TP] + is[CP] + is[ETP]) % CAPACITIES : 0;
    is[INSTANCES] = 1;
    return layout_normal(l);
}

/* Whether layout i of those with experts is run: of an eighth of the kinds of arithmetic, the same in every
 * world, some layouts. */
static int bitwise_drawn(const Layout *l, int i)
{
    const int *is = l->is;
    int kind[] = {is[TP], is[SP], is[CP], is[DP], is[EP], is[ETP]};
    return pick(hash64(kind, sizeof kind, 1), 0, 8) == 0 && pick(9, (uint64_t)i, 2 * world) == 0;
}

/* Writes the bits of this world's layouts: of all with `every` or below 4 ranks, else of a third, and of
 * fewer where the context is shared. */
static void bitwise(const char *path, int every)
{
    FILE *out = rank == 0 ? fopen(path, "a") : NULL;
    if (rank == 0 && !out)
        die(EXIT_RESOURCE, "open", "%s; change: name a file that can be written", path);
    int n = layouts_all(world, 0, list, MOST, 5);
    for (int i = 0; i < n; i++)
        if (tried(i) && (every || world < 4 || pick(9, (uint64_t)i, list[i].is[CP] > 1 ? world : 3) == 0) &&
            bitwise_normal(&list[i]))
            one_bitwise(out, &list[i], (uint64_t)i);
    n = layouts_all(world, 1, list, MOST, 5);
    for (int i = 0; i < n; i++)
        if (tried(i) && (every || bitwise_drawn(&list[i], i)) && bitwise_normal(&list[i]))
            one_bitwise(out, &list[i], (uint64_t)i);
    if (out)
        fclose(out);
}

/* ---- bf16 and fp8 ---- */

/* How far apart the gradients of the first batch are from those of one rank, as a share of their norm. Losses
 * hide a wrong part of attention; collective, the result is rank 0's. */
static double gradients_apart(const Config *c, const Whole *w)
{
    Result got = result_of(c, w, 0), one = {0};
    double off = 0, all = 0;
    if (rank == 0)
        one = result_of(config_for_one_rank(c), w, 0);
    for (int64_t i = 0; rank == 0 && i < w->elems; i++) {
        off += (got.x[i] - one.x[i]) * (got.x[i] - one.x[i]);
        all += one.x[i] * one.x[i];
    }
    free(got.x);
    free(one.x);
    return sqrt(off / all);
}

/* fp8: products in FP8, with one scale a matrix (1), a block of 128 (2) or one of 32 (3); 0: in BF16 */
static void halves(int fp8)
{
    static const char *const in_bf16[] = {"params_dtype=bf16",   "lr=0.001",
                                          "hidden_size=64",      "ffn_hidden_size=128",
                                          "seq_length=16",       "global_batch_size=16",
                                          "init_method_std=0.1", NULL},
                      *const in_fp8[] = {"params_dtype=bf16",   "lr=0.001",
                                         "hidden_size=64",      "ffn_hidden_size=128",
                                         "kv_channels=32",      "seq_length=32",
                                         "micro_batch_size=2",  "global_batch_size=16",
                                         "init_method_std=0.1", "fp8=hybrid", NULL},
                      *const in_blocks[] = {"params_dtype=bf16",   "lr=0.0002",
                                            "hidden_size=192",     "ffn_hidden_size=512",
                                            "kv_channels=128",     "rotary_percent=0.75",
                                            "seq_length=32",
                                            "micro_batch_size=2",  "global_batch_size=16",
                                            "init_method_std=0.1", "fp8=hybrid",
                                            "fp8_recipe=blockwise", NULL},
                      *const in_mx[] = {"params_dtype=bf16",   "lr=0.0005",
                                        "hidden_size=64",      "ffn_hidden_size=128",
                                        "kv_channels=32",      "seq_length=32",
                                        "micro_batch_size=4",  "global_batch_size=32",
                                        "init_method_std=0.1", "fp8=hybrid",
                                        "fp8_recipe=mxfp8",    "tp_comm_overlap=false", NULL},
                      *const *const kinds[] = {in_bf16, in_fp8, in_blocks, in_mx};
    const char *const *more = kinds[fp8];
    const int few = fp8 || test_few(), steps = few ? 6 : 50;
    const double gradients = (double[]){0.03, 0.3, 0.4, 0.15}[fp8], limit = fp8 ? 2e-2 : 1e-2;
    const double falls = few ? 0.95 : 0.8;
    static const int sizes[][4] = {{4, 1, 1, 1}, {1, 4, 1, 1}, {1, 1, 1, 4}, {2, 2, 1, 1}, {2, 1, 1, 2},
                                   {1, 2, 1, 2}, {2, 2, 1, 1}, {1, 2, 1, 2}, {1, 1, 4, 1}, {2, 1, 2, 1},
                                   {1, 2, 2, 1}, {1, 1, 2, 2}};
    double worst = 0;
    for (int i = 0; i < (int)(sizeof sizes / sizeof *sizes); i += test_few() ? 4 : 1) {
        Layout l;
        Words a;
        uint64_t draw = (uint64_t)(i + 700);
        do {                           /* until microbatches and heads are enough for schedule and kind */
            l = (Layout){{0}};
            layout_draw(&l, draw);
            memcpy(l.is, sizes[i], sizeof sizes[i]);
            l.is[DP] *= world / 4;
            l.is[FAMILY] = i % 4 == 3 ? 3 : i % 2 ? 0 : 2;
            draw += 100;
        } while (!layout_normal(&l));
        layout_args(&a, &l);
        for (const char *const *m = more; *m; m++)
            set_arg(&a, *m);
        const Config *c = configure(&a, world);
        Whole w = whole_open(c);
        double away = gradients_apart(c, &w);
        Result got = result_of(c, &w, steps);
        layouts++;
        if (rank == 0) {
            CHECK(away < gradients, "gradients apart by %.3g\n#   %s", away, current);
            const Result *one = one_rank(world, l.is[FAMILY], more, &w, steps);
            double most = 0;
            for (int s = 0; s < steps; s++)
                most = fmax(most, isfinite(got.loss[s]) ? apart(one->loss[s], got.loss[s]) : HUGE_VAL);
            worst = fmax(worst, most);
            CHECK(most <= limit && one->loss[steps - 1] < falls * one->loss[0],
                  "losses apart by %.2g (%g to %g)\n#   %s", most, one->loss[0], one->loss[steps - 1],
                  current);
        }
        free(got.x);
        free(w.at);
    }
    if (rank == 0)
        printf("# losses of %d steps apart by %.2g at most\n", steps, worst);
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
    int experts = strstr(mode, "experts") != NULL;
    if (!strcmp(mode, "cover") || !strcmp(mode, "experts"))
        compare_list(list, layouts_cover(world, experts, list, argc > 2 ? atoi(argv[2]) : MOST, 1), 0, 1);
    else if (!strcmp(mode, "all") || !strcmp(mode, "all-experts"))
        compare_list(list, layouts_all(world, experts, list, MOST, argc > 4 ? (uint64_t)atoi(argv[4]) : 3),
                     argc > 2 ? atoi(argv[2]) : 0, argc > 3 ? atoi(argv[3]) : 1);
    else if (!strcmp(mode, "bitwise") && argc > 2)
        bitwise(argv[2], argc > 3);
    else if (!strcmp(mode, "optimizers"))
        optimizers();
    else if (!strcmp(mode, "bf16") || !strcmp(mode, "fp8") || !strcmp(mode, "blocks") || !strcmp(mode, "mx"))
        halves(!strcmp(mode, "mx") ? 3 : !strcmp(mode, "blocks") ? 2 : !strcmp(mode, "fp8"));
    else if (!strcmp(mode, "one") && argc > 2)
        one(argc - 2, argv + 2);
    else
        CHECK(0, "no mode %s", mode);
    say_apart();
    return layouts_close(start);
}
