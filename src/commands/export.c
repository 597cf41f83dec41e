/* train export -- makes a Hugging Face directory of a checkpoint
 *
 * It writes config.json, generation_config.json and model.safetensors, or numbered files with an index
 * if there are more than --shard-bytes of weights. One tensor is in memory at a time. The directory is
 * written under a temporary name (unfinished.h) and renamed when it is whole. */
#define _GNU_SOURCE
#include "checkpoint.h"
#include "commands.h"
#include "convert.h"
#include "huggingface.h"
#include "source.h"
#include "unfinished.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One tensor to write. */
typedef struct {
    const StoredTensor *from;  /* NULL: zeros */
    HfTensor hf;
    Dtype type;
    int ndim;
    int64_t cols, bytes;
    int shard;
} Item;

#define REFUSE(...) die(EXIT_CHECKPOINT, "export", __VA_ARGS__)
#define DISK(why) die(EXIT_RESOURCE, "export", "%s; change: free space, or -o another folder", why)

/* The directory while it is written: its temporary name and descriptor. */
typedef struct { char *path; int fd; } Folder;

static void will_write(const Folder *to, const char *name)
{
    char *path = xasprintf("%s/%s", to->path, name);
    unfinished_add(path);
    free(path);
}

static void open_whole(Source *s, const char *path)
{
    char why[WHY];
    if (!source_open_whole(s, path, why))
        REFUSE("%s; change: give another checkpoint or run directory", why);
}

/* The stored tensor [rows, cols] with a name. */
static const StoredTensor *stored(const Source *s, const char *name, int ndim, int64_t rows, int64_t cols)
{
    const StoredTensor *t = manifest_find(&s->m, name);
    if (!t || t->type > F16 || t->ndim != ndim || t->shape[0] != rows || t->shape[1] != cols)
        REFUSE("%s: tensor %s is not there in the shape that its configuration says; change: give another "
               "checkpoint", s->dir, name);
    return t;
}

/* The bias of the router whose weight is t, in the checkpoint; NULL: the model has none. */
static const StoredTensor *stored_bias(const Source *s, const Params *p, const Param *t)
{
    char *name = expert_bias_name(t->layer);
    const StoredTensor *from =
        p->cfg->moe_router_enable_expert_bias ? stored(s, name, 1, t->rows, 1) : NULL;
    free(name);
    return from;
}

/* Lists the tensors in item [*n] and shares them out over files of at most `limit` bytes. Returns the
 * number of files. */
static int plan(const Source *s, const Params *p, const HfFamily *family, double limit, Item *item, int *n)
{
    int shard = 0;
    int64_t filled = 0;
    *n = 0;
    for (int i = 0; i < p->nparam; i++) {
        const Param *t = &p->param[i];
        const StoredTensor *weight = stored(s, t->name, t->ndim, t->rows, t->cols);
        HfTensor out[MAX_SEGMENTS + 1];
        int k = hf_names(family, t, out), all = k + hf_bias(family, t, out + k);
        for (int j = 0; j < all; j++) {
            const StoredTensor *from = j < k ? weight : stored_bias(s, p, t);
            Item to = {from, out[j], from ? from->type : weight->type, j < k ? t->ndim : 1,
                       j < k ? t->cols : 1, .shard = shard};
            to.bytes = to.hf.rows * to.cols * (int64_t)dtype_size(to.type);
            if (filled && (double)(filled + to.bytes) > limit)
                to.shard = ++shard, filled = 0;
            filled += to.bytes;
            item[(*n)++] = to;
        }
    }
    return shard + 1;
}

static void shard_name(char out[64], int shard, int shards)
{
    if (shards == 1)
        snprintf(out, 64, HF_SINGLE);
    else
        snprintf(out, 64, "model-%05d-of-%05d.safetensors", shard + 1, shards);
}

/* Writes item [n] to one file. */
static void write_shard(Source *s, const Folder *to, const char *name, const Item *item, int n)
{
    static const char *const meta[] = {"format", "pt", NULL};
    StTensor *t = xcalloc((size_t)n, sizeof *t);
    StWriter w;
    char why[WHY];
    for (int i = 0; i < n; i++) {
        int turn = item[i].hf.transposed;
        t[i] = (StTensor){.name = item[i].hf.name, .type = (int)item[i].type, .ndim = item[i].ndim};
        t[i].shape[turn] = item[i].hf.rows;
        t[i].shape[!turn] = item[i].cols;
    }
    will_write(to, name);
    if (!st_create(&w, to->fd, name, 1, t, n, meta, why))
        DISK(why);
    for (int i = 0; i < n; i++) {
        const Item *m = &item[i];
        int64_t cols = m->cols;
        char *data = xcalloc(1, (size_t)m->bytes);
        if (m->from && !source_read(s, m->from, m->hf.row0, 0, m->hf.rows, cols, data, cols, m->type, why))
            REFUSE("%s: %s; change: give another checkpoint", s->dir, why);
        int64_t odd = convert_count_not_finite(data, m->type, m->hf.rows * cols);
        if (odd)
            die(EXIT_NUMERIC, "not-finite", "%s: tensor %s has %ld value%s NaN or infinite; change: give an "
                "earlier checkpoint", s->dir, m->from->name, odd, odd == 1 ? " that is" : "s that are");
        if (m->hf.transposed) {
            char *turned = xcalloc(1, (size_t)m->bytes);
            hf_transpose(turned, data, m->hf.rows, cols, dtype_size(m->type));
            free(data);
            data = turned;
        }
        if (!st_put(&w, i, 0, data, m->bytes, why))
            DISK(why);
        free(data);
    }
    if (!st_finish(&w, why))
        DISK(why);
    free(t);
}

/* Returns JSON with reals of 15 digits if that loses nothing: 1e-06, not 9.9999999999999995e-07. */
static char *json_text(const json_t *j)
{
    char *text = json_dumps(j, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(15));
    BUG_ON(!text);
    json_t *back = json_loads(text, 0, NULL);
    if (!json_equal(back, j)) {
        free(text);
        text = json_dumps(j, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
    }
    json_decref(back);
    return text;
}

static void write_json(const Folder *to, const char *name, json_t *j)
{
    char why[WHY], *dump = json_text(j), *text = xasprintf("%s\n", dump);
    int64_t n = (int64_t)strlen(text);
    will_write(to, name);
    int fd = file_create(to->fd, name, 1, why);
    if (fd < 0 || !file_write_at(fd, name, text, n, 0, why) || !file_sync_close(fd, name, why))
        DISK(why);
    free(dump);
    free(text);
    json_decref(j);
}

static void write_index(const Folder *to, const Item *item, int n, int shards)
{
    json_t *map = json_object();
    json_int_t total = 0;
    char name[64];
    for (int i = 0; i < n; i++) {
        shard_name(name, item[i].shard, shards);
        json_object_set_new(map, item[i].hf.name, json_string(name));
        total += item[i].bytes;
    }
    write_json(to, HF_INDEX,
               json_pack("{s:{s:I}, s:o}", "metadata", "total_size", total, "weight_map", map));
}

/* Returns the special tokens of the directory that the checkpoint was imported from; else end-of-document of
 * its tokenizer, which stands before a document, too. */
static json_t *special_tokens(const json_t *state, const Config *cfg)
{
    json_t *origin = json_object_get(state, "huggingface");
    if (origin)
        return json_incref(origin);
    int bytes = cfg->tokenizer_type == TOKENIZER_TYPE_BYTE && cfg->vocab_size == 257;
    json_int_t eod = bytes ? 256 : cfg->null_tokenizer_eod_id;
    return eod == CFG_ABSENT ? json_object()
                             : json_pack("{s:I, s:I}", "bos_token_id", eod, "eos_token_id", eod);
}

static void write_configs(const Folder *to, const Config *cfg, const HfFamily *family, Dtype type,
                          const json_t *state)
{
    json_t *tokens = special_tokens(state, cfg), *v;
    json_t *generation = json_pack("{s:b}", "_from_model_config", 1);
    const char *key;
    write_json(to, "config.json", hf_write_config(cfg, family, type, tokens));
    json_object_foreach(tokens, key, v)
        if (strstr(key, "_token_id") && !json_is_null(v))
            json_object_set(generation, key, v);
    write_json(to, "generation_config.json", generation);
    json_decref(tokens);
}

/* Returns -o's value without slashes at its end, on the heap: what is unfinished lies beside OUT. */
static char *output(const char *value)
{
    char *out = xstrdup(value);
    for (size_t n = strlen(out); n > 1 && out[n - 1] == '/';)
        out[--n] = 0;
    return out;
}

/* Dies: OUT can be no new folder, as errno says. */
static _Noreturn void no_output(const char *out)
{
    char why[WHY];
    if (errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR)
        die(EXIT_CONFIG, "export", "%s is there already: %s; change: -o another folder, or remove it", out,
            strerror(errno));
    file_errno(why, "cannot make the folder %s", out);
    DISK(why);
}

/* Makes the folder that will be OUT. OUT itself must be missing or an empty folder. */
static Folder open_output(const char *out)
{
    char why[WHY];
    Folder to = {.path = unfinished_name(out, file_random())};
    if (rmdir(out) < 0 && errno != ENOENT)
        no_output(out);
    unfinished_add(to.path);
    if (!file_make_dirs(to.path, why) || (to.fd = file_open_dir(AT_FDCWD, to.path, 1, why)) < 0)
        DISK(why);
    return to;
}

/* Gives the folder its name. */
static void close_output(Folder *to, const char *out)
{
    char why[WHY];
    if (!file_sync_dir(to->fd, to->path, why))
        DISK(why);
    if (rename(to->path, out) < 0)
        no_output(out);
    unfinished_end();
    close(to->fd);
    free(to->path);
}

int command_export(int argc, char **argv)
{
    Args args = cli_open("export", argc, argv);
    const char *to_dir = args_value(&args, "-o"), *hint;
    double limit = args_number(&args, "--shard-bytes");
    const char *path = cli_next(&args, "CKPT, a checkpoint or run directory");
    char why[WHY], name[64];
    Source s;
    Params params;
    Grid grid;
    int n;
    cli_end(&args);
    cli_needs(&args, to_dir, "-o HF_DIR", "say where the directory goes");
    free(args.v);
    open_whole(&s, path);
    hint = json_string_value(json_object_get(json_object_get(s.m.state, "huggingface"), "model_type"));
    const Config *cfg = checkpoint_config(s.m.state, s.dir);
    if (!cfg)
        REFUSE("%s: its state holds no configuration; change: give another checkpoint", s.dir);
    const HfFamily *family = hf_family(cfg, hint, why);
    if (!family)
        REFUSE("%s: %s; change: train a model of one of the families " HF_FAMILIES, s.dir, why);

    hf_params(&params, &grid, cfg);
    Item *item = xcalloc((size_t)params.nparam * MAX_SEGMENTS, sizeof *item);
    int shards = plan(&s, &params, family, limit, item, &n), first = 0;
    char *out = output(to_dir);
    Folder folder = open_output(out);
    for (int i = 0; i < shards; i++) {
        int end = first;
        while (end < n && item[end].shard == i)
            end++;
        shard_name(name, i, shards);
        write_shard(&s, &folder, name, item + first, end - first);
        first = end;
    }
    if (shards > 1)
        write_index(&folder, item, n, shards);
    write_configs(&folder, cfg, family, item[0].type, s.m.state);
    close_output(&folder, out);
    char *to = text_shown(out), *from = text_shown(s.dir);
    printf("%s: %s, %ld parameters in %d file%s, from %s\n", to, family->type, params_count(cfg), shards,
           shards == 1 ? "" : "s", from);
    free(to);
    free(from);
    free(out);
    free(item);
    params_close(&params);
    grid_close(&grid);
    source_close(&s);
    return EXIT_DONE;
}
