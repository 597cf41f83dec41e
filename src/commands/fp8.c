/* train fp8 -- how far the FP8 operands of each product are from the matrices of 16 bits that they were cast
 * from */
#include "commands.h"
#include "fp8.h"
#include "half.h"
#include "json_number.h"
#include "start.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const linear_name[LINEARS] = {"self_attention.linear_qkv", "self_attention.linear_proj",
                                                 "mlp.linear_fc1",            "mlp.linear_fc2",
                                                 "shared_experts.linear_fc1", "shared_experts.linear_fc2"};
static const char *const operand_name[LINEAR_SCALES] = {"input", "weight", "output gradient"};

/* Sums over all elements of an operand that were cast in the step, x before and y after the cast. Doubles
 * alone: ranks add them up as one array. */
typedef struct { double n, squares, errors, zeroed, topped; } Sums;
enum { SUMS = sizeof(Sums) / sizeof(double) };

typedef struct {
    Run *run;
    Sums *sum;                 /* [num_layers][LINEARS][LINEAR_SCALES] */
} Errors;

/* The matrix on the host, dense: `made` is made first, in memory of the device. */
static uint16_t *original(Device *d, Mat x, const Unstored *made)
{
    int64_t n = x.rows * x.cols;
    uint16_t *host = xcalloc((size_t)n + 1, sizeof *host);
    Mat dense = mat(d->take(d, mat_bytes(x)), x.rows, x.cols, x.type);
    if (made && made->da.rows)
        d->act_bwd(d, dense, made->da, made->h, made->kind);
    else if (made)
        d->act_fwd(d, dense, made->h, made->kind);
    else
        d->copy(d, dense, x);
    d->get(d, host, dense.p, mat_bytes(x));
    d->give(d, dense.p, mat_bytes(x));
    return host;
}

static void see_cast(void *ctx, Device *d, const void *y, const void *yt, Mat x, const Unstored *made,
                     const Fp8Scale *s, Fp8Format format, Fp8Scaling scaling)
{
    Errors *e = ctx;
    const Model *m = &e->run->model;
    int64_t at = s - m->fp8.scale, part = at / (LINEARS * LINEAR_SCALES);
    int64_t rows = y ? x.rows : x.cols, cols = y ? x.cols : fp8_padded(x.rows, scaling);
    size_t bytes = fp8_bytes(rows, cols, scaling);
    BUG_ON(part < 0 || part >= m->params->nparts || (!y && !yt));
    if (!bytes)
        return;
    int64_t layer = m->params->part[part].layer;
    Sums *sum = &e->sum[layer * LINEARS * LINEAR_SCALES + at % (LINEARS * LINEAR_SCALES)];
    uint16_t *host = original(d, x, made);
    uint8_t *code = xcalloc(bytes, 1);
    Fp8Scale one;
    Mat8 cast = mat8(code, rows, cols, format, scaling, &one);
    int64_t pitch = fp8_pitch(rows, cols, scaling);
    d->get(d, code, y ? y : yt, bytes);
    d->get(d, &one.inverse, &s->inverse, sizeof one.inverse);
    for (int64_t i = 0; i < x.rows * x.cols; i++) {
        double was = x.type == BF16 ? bf16_to_f32(host[i]) : f16_to_f32(host[i]);
        int64_t r = y ? i / cols : i % x.cols, c = y ? i % cols : i / x.cols;
        float f8 = fp8_to_f32(code[r * cols + c], format),
              inverse = fp8_inverse_at(cast.inverse, pitch, scaling, r, c);
        double is = (double)f8 * (double)inverse;
        sum->n++;
        sum->squares += was * was;
        sum->errors += (was - is) * (was - is);
        sum->zeroed += was != 0 && f8 == 0;
        sum->topped += fabs((double)f8) == (double)fp8_largest(format) && fabs(was) > fabs(is) * (1 + 0x1p-4);
    }
    free(host);
    free(code);
}

/* Root of the mean square of the error over that of the matrix. */
static double relative(const Sums *s) { return s->squares > 0 ? sqrt(s->errors / s->squares) : 0; }

static void print(const Errors *e, const Config *cfg, int json)
{
    json_t *rows = json_array();
    const Sums *s = e->sum;
    if (!json)
        printf("%5s  %-26s %-16s %12s %10s %10s\n", "layer", "product", "operand", "error", "zeroed %",
               "topped %");
    for (int64_t layer = 0; layer < cfg->num_layers; layer++)
        for (int k = 0; k < LINEARS * LINEAR_SCALES; k++, s++) {
            const char *linear = linear_name[k / LINEAR_SCALES], *operand = operand_name[k % LINEAR_SCALES];
            if (s->n <= 0)
                continue;
            double zeroed = 100 * s->zeroed / s->n, topped = 100 * s->topped / s->n;
            if (json)
                json_array_append_new(
                    rows, json_pack("{s:I, s:s, s:s, s:o, s:o, s:o}", "layer", (json_int_t)layer, "product",
                                    linear, "operand", operand, "error", json_number(relative(s)),
                                    "zeroed_percent", json_number(zeroed), "topped_percent",
                                    json_number(topped)));
            else
                printf("%5ld  %-26s %-16s %12.3e %10.3f %10.3f\n", (long)layer, linear, operand, relative(s),
                       zeroed, topped);
        }
    char *recipe = config_text(cfg, OPT_fp8_recipe);
    if (json)
        json_print(stdout, json_pack("{s:s, s:o}", "fp8_recipe", recipe, "operands", rows),
                   JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    else
        json_decref(rows);
    free(recipe);
}

int command_fp8(int argc, char **argv)
{
    Args a = cli_open("fp8", argc, argv);
    int json = args_switch(&a, "--json");
    const char *path = cli_next(&a, "CONFIG");
    cli_end(&a);
    const Config *cfg = start_config(path, &a, USE_DATA);
    static Run r;                      /* lives as long as the process */
    if (cfg->fp8 == FP8_NONE)
        die(EXIT_CONFIG, "fp8", "train fp8: nothing is multiplied in FP8; change: fp8=hybrid");
    int64_t batch = config_batch_at(cfg, 0), n = cfg->num_layers * LINEARS * LINEAR_SCALES;
    Errors e = {.run = &r, .sum = xcalloc((size_t)n, sizeof *e.sum)};
    run_open(&r, cfg, RUN_GRADIENT, 0, NULL);
    if (cfg->load)
        free(run_load(&r, cfg->load));
    r.loader = start_loader(cfg, &r, SPLIT_TRAIN, start_samples(cfg, batch));
    run_find_scale(&r);
    r.model.fp8.watch = &(CastWatch){see_cast, &e};
    run_gradients(&r);
    Comm *all = &r.grid.all;
    all->wait(all, all->all_reduce(all, e.sum, n * SUMS, F64, OP_SUM));
    if (all->rank == 0)
        print(&e, cfg, json);
    r.model.fp8.watch = NULL;
    free(e.sum);
    loader_close(r.loader);
    run_close(&r);
    return EXIT_DONE;
}
