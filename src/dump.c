/* train dump -- loss, logits and gradients of the first global batch as one safetensors file, for checking against another
 * implementation. Tensors are whole and in global shape; padding of the vocabulary is removed. */
#include "args.h"
#include "commands.h"
#include "huggingface.h"
#include "run.h"
#include "safetensors.h"
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS, LABELS, MASK, LOSS, LOGITS, FIRST_GRAD };

typedef struct {
    Run *run;
    StTensor *tensor;
    int n;
    int *source;               /* index of its Param */
    int64_t *row0;             /* its first row of that, when Hugging Face keeps segments apart */
    int *transposed;
    StWriter w;
    int64_t rows;              /* rows of logits written */
} Dump;

static void put(Dump *d, int i, int64_t at, const void *p, int64_t bytes)
{
    char why[WHY];
    if (!st_put(&d->w, i, at, p, bytes, why))
        die(EXIT_RESOURCE, "dump", "%s; change: free space, or give another file", why);
}

static void add(Dump *d, const char *name, Dtype type, int ndim, int64_t a, int64_t b, int64_t c)
{
    d->tensor = xrealloc(d->tensor, (size_t)(d->n + 1) * sizeof *d->tensor);
    d->tensor[d->n++] = (StTensor){.name = name, .type = (int)type, .ndim = ndim, .shape = {a, b, c}};
}

static void add_gradients(Dump *d, const HfFamily *family)
{
    const Params *p = &d->run->params;
    size_t most = FIRST_GRAD + (size_t)p->nparam * MAX_SEGMENTS;
    d->source = xcalloc(most, sizeof *d->source);
    d->row0 = xcalloc(most, sizeof *d->row0);
    d->transposed = xcalloc(most, sizeof *d->transposed);
    for (int i = 0; i < p->nparam; i++) {
        const Param *t = &p->param[i];
        HfTensor part[MAX_SEGMENTS] = {{.rows = t->rows}};
        int parts = family ? hf_names(family, t, part) : 1;
        for (int k = 0; k < parts; k++) {
            int64_t rows = part[k].transposed ? t->cols : part[k].rows, cols = part[k].transposed ? part[k].rows : t->cols;
            d->source[d->n] = i;
            d->row0[d->n] = part[k].row0;
            d->transposed[d->n] = part[k].transposed;
            add(d, xasprintf("grad.%s", family ? part[k].name : t->name), p->real, t->ndim, rows, cols, 0);
        }
    }
}

/* The gradient of one tensor, times gscale, in the file's order. With one rank every box is dense and whole. */
static void put_gradient(Dump *d, int i)
{
    const Params *p = &d->run->params;
    const Param *t = &p->param[d->source[i]];
    int64_t rows = d->tensor[i].shape[0], cols = d->tensor[i].ndim == 2 ? d->tensor[i].shape[1] : 1, n = rows * cols;
    void *out = xcalloc((size_t)n, dtype_size(p->real)), *grad = param_at(p, t, &p->data.grad, 0);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            int64_t from = d->transposed[i] ? c * t->cols + r : (d->row0[i] + r) * t->cols + c;
            if (p->real == F64)
                ((double *)out)[r * cols + c] = ((const double *)grad)[from] * d->run->gscale;
            else
                ((float *)out)[r * cols + c] = (float)(((const float *)grad)[from] * d->run->gscale);
        }
    put(d, i, 0, out, n * (int64_t)dtype_size(p->real));
    free(out);
}

static Dump dump;          /* the callback below carries the model only */

/* Logits pass by once, a slice of rows at a time, before they turn into their gradient. */
static void see_logits(Model *m, int part, const char *where, Mat x)
{
    (void)part;
    if (strcmp(where, "logits"))
        return;
    int64_t row = x.cols * (int64_t)dtype_size(m->real);
    for (int64_t r = 0; r < x.rows; r++)
        put(&dump, LOGITS, dump.rows++ * row, mat_at(x, r, 0), row);
}

static void put_batch(Dump *d)
{
    Run *r = d->run;
    int64_t mbs = r->cfg->micro_batch_size, S = r->cfg->seq_length, batch = config_batch_at(r->cfg, 0);
    int64_t *wide = xcalloc((size_t)(mbs * S), sizeof *wide);
    for (int64_t first = 0; first < batch; first += mbs) {
        const Batch *b = loader_get(r->loader, first, mbs);
        for (int64_t i = 0; i < mbs * S; i++)
            wide[i] = b->tokens[i];
        put(d, TOKENS, first * S * 8, wide, mbs * S * 8);
        for (int64_t i = 0; i < mbs * S; i++)
            wide[i] = b->labels[i];
        put(d, LABELS, first * S * 8, wide, mbs * S * 8);
        put(d, MASK, first * S * 4, b->loss_mask, mbs * S * 4);
    }
    free(wide);
}

/* fp16 may overflow at the first loss scale, as training does: finds one that does not, then writes. */
static void gradients_in_range(Dump *d)
{
    Run *r = d->run;
    const char *bad = NULL;
    for (int tries = r->cfg->params_dtype == PARAMS_DTYPE_FP16 ? 40 : 0; tries; tries = bad ? tries - 1 : 0) {
        r->opt.loss_scale.scale /= bad ? 2 : 1;
        run_gradients(r);
        optimizer_norm(&r->opt, r->gscale, &bad);
    }
    r->model.watch = see_logits;
    run_gradients(r);
}

int command_dump(int argc, char **argv)
{
    Args a = args_open("dump", argc, argv);
    const char *file = args_value(&a, "-o"), *names = args_value(&a, "--names"), *path = args_next(&a, "CONFIG");
    char why[WHY];
    args_end(&a, 1);
    if (!file)
        die(EXIT_CONFIG, "usage", "train dump: -o FILE.safetensors is missing; change: say where to write");
    if (names && strcmp(names, "hf"))
        die(EXIT_CONFIG, "usage", "train dump: --names %s; change: --names hf, or leave it out", names);
    const Config *cfg = config_load(path, a.n, a.v, 0, USE_DATA);
    free(a.v);
    int64_t batch = config_batch_at(cfg, 0), S = cfg->seq_length;
    const HfFamily *family = names ? hf_family(cfg, NULL, why) : NULL;
    if (names && !family)
        die(EXIT_CONFIG, "hf-family", "train dump: no Hugging Face family computes this model: %s; change: leave out --names hf",
            why);
    Run r;
    run_open(&r, cfg, RUN_GRADIENT, 0, NULL);
    if (cfg->load)
        free(run_load(&r, cfg->load));
    /* the order of samples depends on how many the whole run takes */
    int64_t samples = cfg->train_iters == CFG_ABSENT && cfg->train_samples == CFG_ABSENT
                          ? batch : config_samples_after(cfg, config_iterations(cfg));
    r.loader = loader_open(cfg, SPLIT_TRAIN, samples, r.grid.index[AXIS_DP], r.grid.size[AXIS_DP]);
    dump.run = &r;
    add(&dump, "tokens", I64, 2, batch, S, 0);
    add(&dump, "labels", I64, 2, batch, S, 0);
    add(&dump, "loss_mask", F32, 2, batch, S, 0);
    add(&dump, "loss", F64, 0, 0, 0, 0);
    add(&dump, "logits", r.params.real, 3, batch, S, cfg->vocab_size);
    add_gradients(&dump, family);
    if (!st_create(&dump.w, AT_FDCWD, file, 0, dump.tensor, dump.n, (const char *const[]){"format", "pt", NULL}, why))
        die(EXIT_RESOURCE, "dump", "%s; change: give a file that can be written", why);
    gradients_in_range(&dump);
    put_batch(&dump);
    put(&dump, LOSS, 0, &r.loss, sizeof r.loss);
    for (int i = FIRST_GRAD; i < dump.n; i++)
        put_gradient(&dump, i);
    if (!st_finish(&dump.w, why))
        die(EXIT_RESOURCE, "dump", "%s; change: free space, or give another file", why);
    printf("%s: loss %.17g, %d tensors\n", file, r.loss, dump.n);
    loader_close(r.loader);
    run_close(&r);
    return EXIT_DONE;
}
