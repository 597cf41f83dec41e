/* train dump -- loss, logits and gradients of the first global batch as one safetensors file
 *
 * The file is for comparison with another implementation. Tensors have their global shape, without
 * padding of the vocabulary. Every rank writes the parts that it has into the one file. */
#include "commands.h"
#include "huggingface.h"
#include "result_file.h"
#include "safetensors.h"
#include "start.h"
#include "unfinished.h"
#include "whole.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { TOKENS, LABELS, MASK, LOSS, LOGITS, FIRST_GRAD };

/* A tensor of the file: rows [row0, row0 + rows) of a parameter's gradient; transposed: bool. */
typedef struct { const char *name; int transposed; int64_t row0, rows, cols; } Source;

typedef struct {
    Run *run;
    const char *file;
    char *path;                /* where it is written: an earlier file stays until this one is whole */
    int renamed;               /* bool: path is a temporary name; 0: it is `file`, a link or a device */
    int regular;               /* bool: a file, no device */
    StTensor *tensor;
    Source *source;
    int n;
    StWriter w;
} Dump;

static void put(Dump *d, int i, int64_t at, const void *p, int64_t bytes)
{
    char why[WHY];
    if (!st_put(&d->w, i, at, p, bytes, why))
        die(EXIT_RESOURCE, "dump", "%s; change: free space, or give another file", why);
}

static void add(Dump *d, Source source, const char *name, Dtype type, int ndim, int64_t a, int64_t b,
                int64_t c)
{
    d->tensor = xgrow(d->tensor, d->n, sizeof *d->tensor);
    d->source = xgrow(d->source, d->n, sizeof *d->source);
    d->source[d->n] = source;
    d->tensor[d->n++] = (StTensor){.name = name, .type = (int)type, .ndim = ndim, .shape = {a, b, c}};
}

/* Adds the gradients of the whole model to the file, also those that this rank does not hold. */
static void add_gradients(Dump *d, const Config *cfg, const HfFamily *family)
{
    Params table;
    Grid grid;
    hf_params(&table, &grid, config_for_one_rank(cfg));
    for (int i = 0; i < table.nparam; i++) {
        const Param *t = &table.param[i];
        HfTensor part[MAX_SEGMENTS] = {{.rows = t->rows}};
        int parts = family ? hf_names(family, t, part) : 1;
        for (int k = 0; k < parts; k++) {
            int64_t rows = part[k].transposed ? t->cols : part[k].rows,
                    cols = part[k].transposed ? part[k].rows : t->cols;
            add(d, (Source){xstrdup(t->name), part[k].transposed, part[k].row0, part[k].rows, t->cols},
                xasprintf("grad.%s", family ? part[k].name : t->name), d->run->params.real, t->ndim, rows,
                cols, 0);
        }
    }
    params_close(&table);
}

/* Writes rows [lo, hi) of a piece, whose values are g, to tensor i, one row of the file at a time. */
static void put_piece(Dump *d, int i, const TensorPiece *p, const double *g, int64_t lo, int64_t hi)
{
    const Source *s = &d->source[i];
    const Dtype type = d->run->params.real;
    int64_t size = (int64_t)dtype_size(type), width = s->transposed ? s->rows : s->cols;
    int64_t lines = s->transposed ? p->cols : hi - lo, n = s->transposed ? hi - lo : p->cols;
    double *x = xcalloc((size_t)n, sizeof *x);
    for (int64_t line = 0; line < lines; line++) {
        for (int64_t k = 0; k < n; k++) {
            double v = s->transposed ? g[(lo - p->row0 + k) * p->cols + line]
                                     : g[(lo - p->row0 + line) * p->cols + k];
            if (type == F64)
                x[k] = v;
            else
                ((float *)x)[k] = (float)v;
        }
        int64_t at =
            s->transposed ? (p->col0 + line) * width + lo - s->row0 : (lo - s->row0 + line) * width + p->col0;
        put(d, i, at * size, x, n * size);
    }
    free(x);
}

static void put_gradients(Dump *d)
{
    int n;
    TensorPiece *p = pieces_open(&d->run->params, PIECES_GRADIENT, &n);
    for (int k = 0; k < n; k++) {
        double *g = whole_piece(d->run, &p[k]);
        for (int i = FIRST_GRAD; i < d->n; i++) {
            const Source *s = &d->source[i];
            int64_t lo = p[k].row0 > s->row0 ? p[k].row0 : s->row0, end = p[k].row0 + p[k].rows;
            int64_t hi = end < s->row0 + s->rows ? end : s->row0 + s->rows;
            if (lo < hi && !strcmp(p[k].name, s->name))
                put_piece(d, i, &p[k], g, lo, hi);
        }
        free(g);
    }
    pieces_close(p, n);
}

/* Writes a slice of rows of the logits, in this rank's part of the vocabulary. The model calls it for
 * each slice, before the logits are overwritten by their gradient. */
static void see_logits(void *dump, Model *m, int part, const char *where, Mat x)
{
    (void)part;
    if (strcmp(where, "logits") || !x.cols)      /* a rank may have nothing but padding */
        return;
    Positions own = context_own(&m->now.context);
    int64_t size = (int64_t)dtype_size(m->dim.real), V = m->cfg->vocab_size;
    int64_t *sample = xcalloc((size_t)m->now.B, sizeof *sample);
    char *line = xcalloc((size_t)x.cols, (size_t)size);
    uint16_t *half = xcalloc((size_t)x.cols, sizeof *half);
    m->dev->get(m->dev, sample, m->watch.batch->sample, (size_t)m->now.B * sizeof *sample);
    for (int64_t r = 0; r < x.rows; r++) {
        int64_t row = mapped_row(m->watch.rows, r);
        int64_t first = sample[row / own.stride] * m->now.context.positions;
        int64_t at = first + positions_at(&own, row % own.stride);
        m->dev->get(m->dev, x.type == BF16 ? (char *)half : line, mat_at(x, r, 0),
                    (size_t)x.cols * dtype_size(x.type));
        for (int64_t c = 0; x.type == BF16 && c < x.cols; c++)     /* BF16 is the upper half of F32 */
            memcpy(line + c * size, &(uint32_t){(uint32_t)half[c] << 16}, sizeof(uint32_t));
        put(dump, LOGITS, (at * V + m->dim.vocab0) * size, line, x.cols * size);
    }
    free(sample);
    free(half);
    free(line);
}

/* Writes the positions of one run of a sample: its rows are those from `row` on in the batch, and its
 * tokens those from `at` on in the file. wide [n] is work memory. */
static void put_run(Dump *d, const Batch *b, int64_t row, int64_t at, int64_t n, int64_t *wide)
{
    for (int64_t i = 0; i < n; i++)
        wide[i] = b->tokens[row + i];
    put(d, TOKENS, at * 8, wide, n * 8);
    for (int64_t i = 0; i < n; i++)
        wide[i] = b->labels[row + i];
    put(d, LABELS, at * 8, wide, n * 8);
    put(d, MASK, at * 4, b->loss_mask + row, n * 4);
}

/* Writes this data and context rank's positions of its samples; the ranks of the first stage do so. */
static void put_batch(Dump *d)
{
    Run *r = d->run;
    int64_t S = r->cfg->seq_length, unit = r->cfg->micro_batch_size * r->grid.size[AXIS_DP];
    int64_t batch = config_batch_at(r->cfg, 0), *wide = xcalloc((size_t)S, sizeof *wide);
    for (int64_t first = 0; first < batch && r->grid.model.rank == 0; first += unit) {
        const Batch *b = loader_get(r->loader, first, unit);
        for (int64_t k = 0; k < b->batch; k++)
            for (const PositionRun *p = b->runs.run; p < b->runs.run + b->runs.count; p++)
                put_run(d, b, k * b->runs.stride + p->row, b->sample[k] * S + p->start, p->n, wide);
    }
    free(wide);
}

/* Agrees on the name under which the ranks write. Collective. */
static void name_file(Dump *d, Comm *all)
{
    int64_t said[2] = {result_renamed(d->file), (int64_t)file_random()};
    all->wait(all, all->broadcast(all, said, 2, I64, 0));
    d->renamed = said[0] != 0;
    d->path = d->renamed ? unfinished_name(d->file, (uint64_t)said[1]) : xstrdup(d->file);
    if (d->renamed)
        unfinished_add(d->path);
}

/* Creates the file. A pipe is refused, as it takes bytes in their order alone. */
static int create(Dump *d, const char *const *meta, char why[WHY])
{
    struct stat st;
    if (!d->renamed && stat(d->path, &st) == 0 && S_ISFIFO(st.st_mode))
        return file_why(why, "%s is a pipe, and ranks write their parts of the file in any order", d->path);
    return st_create(&d->w, AT_FDCWD, d->path, d->renamed, d->tensor, d->n, meta, why);
}

/* Opens the file: rank 0 creates it, then the other ranks open it, and see that it is the same. */
static void open_file(Dump *d)
{
    static const char *const meta[] = {"format", "pt", NULL};
    Comm *all = &d->run->grid.all;
    char why[WHY] = "", host[HOST_NAME];
    struct stat st = {0};
    name_file(d, all);
    int ok = all->rank != 0 || create(d, meta, why);
    all_ok(all, ok, EXIT_RESOURCE, "dump", "%s; change: give a file that can be written", why);
    ok = (all->rank == 0 || st_join(&d->w, AT_FDCWD, d->path, d->tensor, d->n, meta, why)) &&
         (fstat(d->w.fd, &st) == 0 || file_errno(why, "cannot see what %s is", d->path));
    d->regular = S_ISREG(st.st_mode);
    int64_t mine = d->regular ? (int64_t)st.st_ino : 0, file = mine;
    all->wait(all, all->broadcast(all, &file, 1, I64, 0));
    if (ok && mine != file)
        ok = file_why(why, "%s on host %s is not rank 0's file", d->path, host_name(host));
    all_ok(all, ok, EXIT_RESOURCE, "dump", "%s; change: give a file in a folder that all hosts share", why);
}

static void close_file(Dump *d)
{
    Comm *all = &d->run->grid.all;
    char why[WHY] = "";
    int64_t put = d->w.put;
    all->wait(all, all->all_reduce(all, &put, 1, I64, OP_SUM));
    d->w.put = put;
    int ok = !d->regular || st_finish(&d->w, why);     /* a device has nothing to flush */
    st_discard(&d->w);
    all_ok(all, ok, EXIT_RESOURCE, "dump", "%s; change: free space, or give another file", why);
    ok = all->rank != 0 || !d->renamed || rename(d->path, d->file) == 0 ||
         file_errno(why, "cannot rename %s", d->path);
    all_ok(all, ok, EXIT_RESOURCE, "dump", "%s; change: give a file that can be written", why);
    unfinished_end();
    free(d->path);
    for (int i = FIRST_GRAD; i < d->n; i++) {
        free((char *)d->source[i].name);
        free((char *)d->tensor[i].name);
    }
    free(d->source);
    free(d->tensor);
}

/* Warns of gradients that are not finite: the file has them as they are. Collective. */
static void warn_of_overflow(Run *r)
{
    const char *first = optimizer_blame(&r->opt, &r->step.verdict, NULL);
    int half = r->cfg->params_dtype == PARAMS_DTYPE_FP16;
    if (!first || r->grid.rank)
        return;
    if (half)
        warn("the gradient of %s is not finite even with a loss_scale of %g; change: a smaller loss_scale, "
             "or params_dtype=bf16", first, r->opt.loss_scale.scale);
    else
        warn("the gradient of %s is not finite; change: params_dtype=fp32, or other weights", first);
}

int command_dump(int argc, char **argv)
{
    Args a = cli_open("dump", argc, argv);
    const char *file = args_value(&a, "-o"), *names = args_value(&a, "--names"),
               *path = cli_next(&a, "CONFIG");
    char why[WHY];
    cli_end(&a);
    cli_needs(&a, file, "-o FILE.safetensors", "say where to write");
    cli_may_write("-o", file);
    if (names && strcmp(names, "hf"))
        die(EXIT_CONFIG, "usage", "train dump: --names %s; change: --names hf, or leave it out", names);
    const Config *cfg = start_config(path, &a, USE_DATA);
    int64_t batch = config_batch_at(cfg, 0), S = cfg->seq_length;
    const HfFamily *family = names ? hf_family(cfg, NULL, why) : NULL;
    if (names && !family)
        die(EXIT_CONFIG, "hf-family",
            "train dump: no Hugging Face family computes this model: %s; change: leave out --names hf", why);
    Run r;
    run_open(&r, cfg, RUN_GRADIENT, 0, NULL);
    if (cfg->load)
        free(run_load(&r, cfg->load));
    r.loader = start_loader(cfg, &r, SPLIT_TRAIN, start_samples(cfg, batch));
    Dump dump = {.run = &r, .file = file};
    add(&dump, (Source){0}, "tokens", I64, 2, batch, S, 0);
    add(&dump, (Source){0}, "labels", I64, 2, batch, S, 0);
    add(&dump, (Source){0}, "loss_mask", F32, 2, batch, S, 0);
    add(&dump, (Source){0}, "loss", F64, 0, 0, 0, 0);
    add(&dump, (Source){0}, "logits", r.params.real, 3, batch, S, cfg->vocab_size);
    add_gradients(&dump, cfg, family);
    open_file(&dump);
    run_find_scale(&r);                /* then the logits pass by once more, and are kept */
    r.model.watch = (ModelWatch){.see = see_logits, .ctx = &dump};
    run_gradients(&r);
    warn_of_overflow(&r);
    put_batch(&dump);
    if (r.grid.rank == 0)
        put(&dump, LOSS, 0, &r.step.verdict.loss, sizeof r.step.verdict.loss);
    put_gradients(&dump);
    close_file(&dump);
    if (r.grid.rank == 0)
        printf("%s: loss %.17g, %d tensors\n", file, r.step.verdict.loss, dump.n);
    loader_close(r.loader);
    run_close(&r);
    return EXIT_DONE;
}
