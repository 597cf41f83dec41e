/* train import -- makes a checkpoint of a Hugging Face directory: iteration 0, weights only, every
 * tensor in its own type.
 *
 * The files are mapped and the saver reads from the mapping, so that nothing but GPT-2's transposed
 * matrices takes memory. */
#define _GNU_SOURCE
#include "checkpoint.h"
#include "commands.h"
#include "convert.h"
#include "huggingface.h"
#include "safetensors.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct { StFile st; char *map; } HfFile;

/* A tensor of the directory. */
typedef struct { const char *name; const StTensor *t; const char *data; int used; } Found;

typedef struct {
    const char *path;
    int dir, nfile, n;
    HfFile *file;
    Found *found;               /* sorted by name */
} HfDir;

#define REFUSE(...) die(EXIT_CHECKPOINT, "import", __VA_ARGS__)

static void open_file(HfDir *d, const char *name)
{
    char why[WHY];
    d->file = xrealloc(d->file, (size_t)(d->nfile + 1) * sizeof *d->file);
    HfFile *f = &d->file[d->nfile++];
    if (!st_open(&f->st, d->dir, name, 0, why))
        REFUSE("%s: %s; change: fetch the file again", d->path, why);
    f->map = mmap(NULL, (size_t)f->st.size, PROT_READ, MAP_PRIVATE, f->st.fd, 0);
    if (f->map == MAP_FAILED)
        die(EXIT_RESOURCE, "memory", "cannot map %s/%s: %s; change: free memory on this machine", d->path,
            name, strerror(errno));
    madvise(f->map, (size_t)f->st.size, MADV_SEQUENTIAL);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const Found *)a)->name, ((const Found *)b)->name);
}

static Found *find(const HfDir *d, const char *name)
{
    Found key = {.name = name};
    return d->n ? bsearch(&key, d->found, (size_t)d->n, sizeof key, by_name) : NULL;
}

/* Opens the files of the directory's weights and lists their tensors. */
static void open_tensors(HfDir *d)
{
    char why[WHY];
    const char *name;
    size_t at;
    json_t *index, *v, *files = hf_files(d->dir, &index, why);
    if (!files)
        REFUSE("%s: %s", d->path, why);
    json_array_foreach(files, at, v)
        open_file(d, json_string_value(v));
    for (int i = 0; i < d->nfile; i++) {
        HfFile *f = &d->file[i];
        d->found = xrealloc(d->found, (size_t)(d->n + f->st.n) * sizeof *d->found);
        for (int k = 0; k < f->st.n; k++) {
            const StTensor *t = &f->st.tensor[k];
            d->found[d->n++] = (Found){t->name, t, f->map + t->at, 0};
        }
    }
    if (d->n)
        qsort(d->found, (size_t)d->n, sizeof *d->found, by_name);
    for (int i = 1; i < d->n; i++)
        if (!strcmp(d->found[i - 1].name, d->found[i].name))
            REFUSE("%s: tensor %.100s is in two files; change: remove one of them", d->path,
                   d->found[i].name);
    json_object_foreach(json_object_get(index, "weight_map"), name, v) {
        if (!find(d, name))
            REFUSE("%s: tensor %.100s is not in %.100s, where " HF_INDEX " says; change: fetch that file "
                   "again", d->path, name, json_string_value(v));
    }
    json_decref(files);
    json_decref(index);
}

/* Finds a tensor by its full name, or by the name without its first word: a model that was saved without
 * its head has no "model." in front. */
static Found *find_either(const HfDir *d, const char *name)
{
    Found *f = find(d, name);
    return f || !strchr(name, '.') ? f : find(d, strchr(name, '.') + 1);
}

/* Finds the Hugging Face tensors out [n] of one parameter and checks their shapes. Returns 1 and fills
 * found [n], or 0 and a reason. */
static int match(const HfDir *d, const Param *t, const HfTensor *out, int n, Found *found[], char why[WHY])
{
    for (int i = 0; i < n; i++) {
        int64_t rows = out[i].transposed ? t->cols : out[i].rows,
                cols = out[i].transposed ? out[i].rows : t->cols;
        Found *f = found[i] = find_either(d, out[i].name);
        if (!f)
            return file_why(why, "tensor %s is missing", out[i].name);
        if (f->t->type < 0 || f->t->type > F16)
            return file_why(why, "tensor %s has type %s, not F64, F32, BF16 or F16", out[i].name,
                            f->t->dtype);
        if (f->t->type != found[0]->t->type)
            return file_why(why, "tensors %s and %s have different types", out[0].name, out[i].name);
        if (f->t->ndim != t->ndim || f->t->shape[0] != rows || (t->ndim == 2 && f->t->shape[1] != cols))
            return file_why(why, "tensor %s is [%ld, %ld], config.json makes it [%ld, %ld]", out[i].name,
                            f->t->shape[0], f->t->ndim > 1 ? f->t->shape[1] : 1, rows, cols);
        f->used = 1;
    }
    return 1;
}

/* Returns 1 for a tensor that is no weight: masks and angles that older versions stored. */
static int ignored(const char *name)
{
    static const char *const ends[] = {".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        size_t n = strlen(name), m = strlen(ends[i]);
        if (n > m && !strcmp(name + n - m, ends[i]))
            return 1;
    }
    return 0;
}

/* Checks the tensors that no parameter has used: each must be one of `ignored`, or a tied lm_head with the
 * bytes of the embedding. */
static void check_rest(const HfDir *d, const Config *cfg, const Found *embedding)
{
    for (int i = 0; i < d->n; i++) {
        const Found *f = &d->found[i];
        if (f->used || ignored(f->name))
            continue;
        if (!cfg->untie_embeddings_and_output_weights && !strcmp(f->name, "lm_head.weight")) {
            if (f->t->bytes != embedding->t->bytes || memcmp(f->data, embedding->data, (size_t)f->t->bytes))
                REFUSE("%s: lm_head.weight is not the embedding's, but tie_word_embeddings is true; change: "
                       "set tie_word_embeddings to false in its config.json", d->path);
            continue;
        }
        REFUSE("%s: tensor %.120s has no place in this model; change: import another directory, or export "
               "this one without it", d->path, f->name);
    }
}

static void check_finite(const HfDir *d, const StTensor *t, const char *data)
{
    int64_t n = convert_count_not_finite(data, (Dtype)t->type, st_elements(t));
    if (n)
        die(EXIT_NUMERIC, "not-finite", "%s: tensor %s has %ld value%s NaN or infinite; change: another "
            "directory, or its right files", d->path, t->name, n, n == 1 ? " that is" : "s that are");
}

/* The piece of the bias of the router whose weight is t. name: the piece's, which the caller frees. */
static TensorPiece bias_piece(const HfDir *d, const Param *t, const HfTensor *hf, char *name)
{
    Param vector = *t;
    Found *found;
    char why[WHY];
    vector.ndim = 1;
    vector.cols = 1;
    if (!match(d, &vector, hf, 1, &found, why))
        REFUSE("%s: %s; change: another directory, or its whole and right files", d->path, why);
    check_finite(d, found->t, found->data);
    return (TensorPiece){.name = name, .type = (Dtype)found->t->type, .ndim = 1, .shape = {t->rows, 1},
                         .rows = t->rows, .cols = 1, .data = (char *)found->data, .ld = 1};
}

/* Makes the pieces for the saver from the directory's tensors; *kept: memory of the transposed matrices, and
 * names that are no parameter's. */
static TensorPiece *make_pieces(const HfDir *d, const Params *p, const HfFamily *family, int *n, char ***kept)
{
    TensorPiece *list = xcalloc((size_t)p->nparam * MAX_SEGMENTS, sizeof *list);
    Found *embedding = NULL;
    char why[WHY];
    int nkept = 0;
    *n = 0;
    *kept = xcalloc((size_t)p->nparam * MAX_SEGMENTS + 1, sizeof **kept);
    for (int i = 0; i < p->nparam; i++) {
        const Param *t = &p->param[i];
        HfTensor out[MAX_SEGMENTS], bias;
        Found *found[MAX_SEGMENTS];
        int k = hf_names(family, t, out);
        if (!match(d, t, out, k, found, why))
            REFUSE("%s: %s; change: another directory, or its whole and right files", d->path, why);
        if (t->id == P_WTE)
            embedding = found[0];
        for (int s = 0; s < k; s++) {
            const StTensor *st = found[s]->t;
            const char *data = found[s]->data;
            check_finite(d, st, data);
            if (out[s].transposed) {
                char *turned = xcalloc(1, (size_t)st->bytes);
                hf_transpose(turned, data, st->shape[0], st->shape[1], dtype_size((Dtype)st->type));
                data = (*kept)[nkept++] = turned;
            }
            list[(*n)++] = (TensorPiece){.name = t->name, .type = (Dtype)st->type, .ndim = t->ndim,
                                   .shape = {t->rows, t->cols}, .row0 = out[s].row0, .rows = out[s].rows,
                                   .cols = t->cols, .data = (char *)data, .ld = t->cols};
        }
        if (hf_bias(family, t, &bias)) {
            char *name = (*kept)[nkept++] = expert_bias_name(t->layer);
            list[(*n)++] = bias_piece(d, t, &bias, name);
        }
    }
    check_rest(d, p->cfg, embedding);
    return list;
}

static json_t *make_state(const Config *cfg, const HfFamily *family, const json_t *hf)
{
    char *text;
    size_t size;
    FILE *f = xmemstream(&text, &size);
    config_write(f, cfg);
    fclose(f);
    json_t *origin = hf_tokens(hf, family);
    json_object_set_new(origin, "model_type", json_string(family->type));
    json_t *state =
        json_pack("{s:i, s:i, s:b, s:o, s:s, s:s}", "iteration", 0, "consumed_samples", 0, "weights_only", 1,
                  "huggingface", origin, "config", text, "build", config_build_id());
    BUG_ON(!state);
    free(text);
    return state;
}

static void refuse_existing(const char *out)
{
    if (checkpoint_exists(out))
        REFUSE("%s holds a checkpoint already; change: -o another folder", out);
    char *config = xasprintf("%s/config.yaml", out);
    if (!access(config, F_OK))
        REFUSE("%s is there already; change: -o another folder", config);
    free(config);
}

static void close_dir(HfDir *d)
{
    for (int i = 0; i < d->nfile; i++) {
        munmap(d->file[i].map, (size_t)d->file[i].st.size);
        st_close(&d->file[i].st);
    }
    free(d->file);
    free(d->found);
    close(d->dir);
}

int command_import(int argc, char **argv)
{
    Args args = cli_open("import", argc, argv);
    const char *out = args_value(&args, "-o");
    const HfFamily *family;
    char why[WHY], **kept;
    HfDir d = {.path = cli_next(&args, "HF_DIR, the Hugging Face directory")};
    Params params;
    Grid grid;
    cli_end(&args);
    cli_needs(&args, out, "-o CKPT", "say where the checkpoint goes");
    free(args.v);
    refuse_existing(out);
    d.dir = file_open_dir(AT_FDCWD, d.path, 0, why);
    if (d.dir < 0)
        REFUSE("%s; change: give a Hugging Face directory", why);
    json_t *hf = hf_read_json(d.dir, "config.json", why);
    if (!hf)
        REFUSE("%s: %s; change: give a Hugging Face directory with its config.json", d.path, why);
    const Config *cfg = hf_read_config(hf, &family, why);
    if (!cfg)
        REFUSE("%s: config.json: the model cannot express %s; change: another model, or these settings",
               d.path, why);
    open_tensors(&d);
    hf_params(&params, &grid, cfg);
    int n;
    TensorPiece *pieces = make_pieces(&d, &params, family, &n, &kept);

    Config save = *cfg;
    Arena arena;
    save.async_save = 0;
    save.max_failed_saves = 1;
    arena_open(&arena, "import", 0);
    json_t *state = make_state(cfg, family, hf);
    Saver *s = saver_open(&save, out, &grid.all, pieces, n, &arena);
    saver_start(s);
    saver_save(s, 0, state);
    saver_close(s);
    arena_close(&arena);
    if (!config_save(out, cfg, config_write_model,
                     why)) /* what train, generate, eval and plan need to know of it */
        die(EXIT_RESOURCE, "import", "%s; change: free space, or -o another folder", why);
    char *to = text_shown(out), *from = text_shown(d.path);
    printf("%s: %s, %ld parameters in %d tensors, from %s\n", to, family->type, params_count(cfg),
           params.nparam, from);
    free(to);
    free(from);

    for (char **k = kept; *k; k++)
        free(*k);
    free(kept);
    free(pieces);
    json_decref(state);
    json_decref(hf);
    params_close(&params);
    grid_close(&grid);
    close_dir(&d);
    return EXIT_DONE;
}
