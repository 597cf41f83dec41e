/* train verify -- compares the first step in this layout with one rank: loss, gradient norm, every
 * gradient */
#include "commands.h"
#include "huggingface.h"
#include "json_number.h"
#include "start.h"
#include "whole.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct { double loss, norm; } Sums;

typedef struct {
    Sums one, layout;
    int tensors, bitwise;
    char worst[96];
    double relative, tolerance;
} Result;

/* Returns the largest difference that a tensor may have, relative as in `compare`. It is some roundings
 * of the storage type, of E4M3 where products are in FP8, times 1.03 a layer (Megatron-LM's bound on the
 * growth of an error through a decoder layer). A missing or doubled sum gives tens of percent. */
static double tolerance_of(const Config *c)
{
    double depth = pow(1.03, (double)(c->num_layers + 1));
    if (c->fp8 != FP8_NONE)
        return 4 * depth * 0x1p-4;
    switch (c->params_dtype) {
    case PARAMS_DTYPE_FP64: return 1e-11;
    case PARAMS_DTYPE_FP32: return 64 * depth * 0x1p-23;
    case PARAMS_DTYPE_FP16: return 32 * depth * 0x1p-11;
    default:                return 32 * depth * 0x1p-8;
    }
}

/* The least size that a tensor counts with, as a share of the largest gradient. Some gradients are zero in
 * exact arithmetic (of a bias of keys, of queries that see one key), and what they hold is the rounding of
 * sums whose terms are as large as the largest gradient, or larger. So the least difference that counts, the
 * tolerance times this share, is a multiple of that rounding: some 8 units in the last place of the largest
 * gradient in fp64 and fp32, where 0.9 was seen in 200 runs of random weights, of up to 24 layers and 4
 * ranks; and 0.3 in 16 bits, where 0.08 was seen, because sums are taken in fp32 and the roundings of their
 * many terms average out. In FP8 it is 0.5 % of the largest gradient, where 0.06 % was seen. A sum that is
 * missing or doubled is found in every tensor above that: 2e-15 of the largest gradient in fp64, 8e-7 in
 * fp32. */
static double least_of(const Config *c)
{
    if (c->params_dtype == PARAMS_DTYPE_FP64 && c->fp8 == FP8_NONE)
        return 2e-4;
    return c->params_dtype == PARAMS_DTYPE_FP32 && c->fp8 == FP8_NONE ? 1e-1 : 2e-2;
}

/* Computes loss, norm and gradients of the first global batch; the gradients stay in the run. */
static Sums first_step(Run *r, const Config *cfg)
{
    int64_t batch = config_batch_at(cfg, 0);
    run_open(r, cfg, RUN_GRADIENT, 0, NULL);
    if (cfg->load)
        free(run_load(r, cfg->load));
    r->loader = start_loader(cfg, r, SPLIT_TRAIN, start_samples(cfg, batch));
    run_find_scale(r);
    run_gradients(r);
    return (Sums){r->step.verdict.loss, r->step.verdict.norm};
}

static double largest(const double *x, int64_t n)
{
    double m = 0;
    for (int64_t i = 0; i < n; i++)
        m = !(fabs(x[i]) <= m) ? fabs(x[i]) : m;
    return m;
}

/* Compares every tensor of the layout's run with that of one rank, which only rank 0 has. The relative
 * difference of a tensor is its largest difference over the larger of its largest element and `least` of
 * the largest gradient. */
static void compare(Result *res, Run *layout, Run *one, const Params *table, double least)
{
    double *diff = xcalloc((size_t)table->nparam, sizeof *diff),
           *size = xcalloc((size_t)table->nparam, sizeof *size);
    double most = 0;
    int here = layout->grid.all.rank == 0, n_layout, n_one = 0;
    TensorPiece *mine = pieces_open(&layout->params, PIECES_GRADIENT, &n_layout);
    TensorPiece *whole = here ? pieces_open(&one->params, PIECES_GRADIENT, &n_one) : NULL;
    res->bitwise = 1;
    for (int i = 0; i < table->nparam; i++) {
        const Param *t = &table->param[i];
        int64_t n = t->rows * t->cols;
        double *a = here ? xcalloc((size_t)n, sizeof *a) : NULL,
               *b = here ? xcalloc((size_t)n, sizeof *b) : NULL;
        whole_gradient(layout, mine, n_layout, t->name, t->cols, a);
        if (here) {
            whole_gradient(one, whole, n_one, t->name, t->cols, b);
            size[i] = largest(b, n);
            most = size[i] > most ? size[i] : most;
            res->bitwise &= !memcmp(a, b, (size_t)n * sizeof *a);
            for (int64_t k = 0; k < n; k++)
                a[k] -= b[k];
            diff[i] = largest(a, n);
        }
        free(a);
        free(b);
    }
    for (int i = 0; here && i < table->nparam; i++) {
        double scale = size[i] > least * most ? size[i] : least * most,
               rel = diff[i] > 0 ? diff[i] / scale : diff[i];
        if (i == 0 || !(rel <= res->relative)) {
            res->relative = rel;
            snprintf(res->worst, sizeof res->worst, "%s", table->param[i].name);
        }
    }
    res->tensors = table->nparam;
    pieces_close(mine, n_layout);
    if (here)
        pieces_close(whole, n_one);
    free(diff);
    free(size);
}

static double apart(double a, double b) { return a == b ? 0 : fabs(a - b) / fmax(fabs(a), fabs(b)); }

static void print(const Result *r, const Config *c, int ok, int json)
{
    char *dtype = config_text(c, OPT_params_dtype);
    if (json) {
        json_t *j = json_pack(
            "{s:b s:o s:s s:o s:{s:o s:o} s:{s:o s:o} s:i s:{s:s s:o} s:b}", "ok", ok, "layout",
            start_layout(c), "dtype", dtype, "tolerance", json_number(r->tolerance), "loss", "one_rank",
            json_number(r->one.loss), "layout", json_number(r->layout.loss), "grad_norm", "one_rank",
            json_number(r->one.norm), "layout", json_number(r->layout.norm), "tensors", r->tensors, "worst",
            "tensor", r->worst, "relative", json_number(r->relative), "bitwise", r->bitwise);
        json_print(stdout, j, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
        free(dtype);
        return;
    }
    printf("loss           one rank %.17g   layout %.17g   relative %.2g\n", r->one.loss, r->layout.loss,
           apart(r->one.loss, r->layout.loss));
    printf("gradient norm  one rank %.17g   layout %.17g   relative %.2g\n", r->one.norm, r->layout.norm,
           apart(r->one.norm, r->layout.norm));
    printf("gradients      %d tensors%s; worst: %s, relative %.2g (tolerance of %s: %.2g)\n", r->tensors,
           r->bitwise ? ", all bits equal" : "", r->worst, r->relative, c->fp8 == FP8_NONE ? dtype : "fp8",
           r->tolerance);
    free(dtype);
    printf("%s\n", ok ? "the layout computes the same model" : "the layout does NOT compute the same model");
    if (!ok && c->num_moe_experts != CFG_ABSENT && c->params_dtype > PARAMS_DTYPE_FP32)
        printf("of 16 bits this is no proof: a token whose experts are nearly equal takes another one after "
               "any rounding; params_dtype=fp32 decides\n");
}

int command_verify(int argc, char **argv)
{
    Args a = cli_open("verify", argc, argv);
    int json = args_switch(&a, "--json");
    const char *path = cli_next(&a, "CONFIG");
    cli_end(&a);
    const Config *cfg = start_config(path, &a, USE_DATA), *single = config_for_one_rank(cfg);
    static Run layout, one;            /* they live as long as the process */
    Result res = {.tolerance = tolerance_of(cfg)};
    Grid grid;
    Params table;
    hf_params(&table, &grid, single);
    res.layout = first_step(&layout, cfg);
    int here = layout.grid.all.rank == 0, ok = 1;
    if (here)
        res.one = first_step(&one, single);
    compare(&res, &layout, &one, &table, least_of(cfg));
    if (here) {
        ok = res.relative <= res.tolerance && apart(res.one.loss, res.layout.loss) <= res.tolerance / 100 &&
             apart(res.one.norm, res.layout.norm) <= res.tolerance;
        print(&res, cfg, ok, json);
        loader_close(one.loader);
        run_close(&one);
    }
    Comm *all = &layout.grid.all;
    int64_t agreed = ok;
    all->wait(all, all->broadcast(all, &agreed, 1, I64, 0));
    params_close(&table);
    loader_close(layout.loader);
    run_close(&layout);
    return agreed ? EXIT_DONE : EXIT_COMPARE;
}
