/* train inspect -- what a corpus, checkpoint, run directory, safetensors file or Hugging Face directory
 * holds, and whether it is whole: every byte is read and compared with its hash where there is one. Exit
 * code 0 whole, 1 not. */
#define _GNU_SOURCE
#include "checkpoint.h"
#include "commands.h"
#include "convert.h"
#include "corpus.h"
#include "huggingface.h"
#include "json_number.h"
#include "source.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static int has(const char *dir, const char *name)
{
    char *p = xasprintf("%s/%s", dir, name);
    int ok = source_present(p);
    free(p);
    return ok;
}

/* Starts the report of any kind: kind and path. verdict adds whole and why at its end. */
static json_t *report(const char *kind, const char *path)
{
    return json_pack("{s:s, s:o}", "kind", kind, "path", json_text(path));
}

static json_t *verdict(json_t *o, int whole, const char *why)
{
    json_object_set_new(o, "whole", json_boolean(whole));
    json_object_set_new(o, "why", whole ? json_null() : json_text(why));
    return o;
}

static void count_type(json_t *types, const char *dtype, int64_t elements)
{
    json_int_t n = json_integer_value(json_object_get(types, dtype));
    json_object_set_new(types, dtype, json_integer(n + elements));
}

/* n: elements that are NaN or infinite; tensors: names of the tensors that have some. */
typedef struct { json_int_t n; json_t *tensors; } NotFinite;

static void count_odd(NotFinite *odd, const char *tensor, int64_t n)
{
    odd->n += n;
    if (n)
        json_array_append_new(odd->tensors, json_string(tensor));
}

static void report_odd(json_t *o, NotFinite *odd)
{
    json_object_set_new(o, "not_finite", json_integer(odd->n));
    json_object_set_new(o, "not_finite_tensors", odd->tensors);
}

/* ---- a checkpoint ---- */

/* Adds how many parameters a token visits, if the model is known and has experts. */
static void count_active(json_t *o, const Config *cfg)
{
    if (cfg && cfg->num_moe_experts != CFG_ABSENT)
        json_object_set_new(o, "active_parameters", json_integer(params_active(cfg)));
}

/* Reports on a checkpoint. *gone, if not NULL: 1 if a run in progress deleted it while it was read. */
static json_t *checkpoint(const char *path, int *gone)
{
    static const char *const keys[] = {"run_id", "consumed_samples", "weights_only", "build"};
    json_t *o = report("checkpoint", path), *files = json_array(), *types = json_object(), *v;
    json_int_t bytes = 0, weights = 0;
    char why[WHY];
    Source s;
    if (!source_open(&s, path, why)) {
        source_check_host(path);
        if (gone)
            *gone = source_gone(&s, path);
        json_decref(files);
        json_decref(types);
        return verdict(o, 0, why);
    }
    json_object_set_new(o, "iteration", json_integer(s.m.iteration));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if ((v = json_object_get(s.m.state, keys[i])))
            json_object_set(o, keys[i], v);
    for (int i = 0; i < s.m.ntensor; i++) {
        const StoredTensor *t = &s.m.tensor[i];
        const char *end = strrchr(t->name, '.');
        int64_t n = t->shape[0] * t->shape[1];
        /* scales and the biases of routers end in words of their own, as what the optimizer has */
        end = end ? end : "";
        if (!source_of_optimizer(t) && strcmp(end, FP8_SCALES) && strcmp(end, EXPERT_BIAS))
            weights += n;
        count_type(types, dtype_name(t->type), n);
    }
    for (int i = 0; i < s.m.nshard; i++) {
        json_array_append_new(files, json_pack("{s:s, s:I}", "name", s.m.shard[i].name, "bytes",
                                               (json_int_t)s.m.shard[i].bytes));
        bytes += s.m.shard[i].bytes;
    }
    json_object_update_new(o, json_pack("{s:I s:i s:o s:I s:o}", "parameters", weights, "tensors",
                                        s.m.ntensor, "elements", types, "bytes", bytes, "files", files));
    count_active(o, checkpoint_config(s.m.state, NULL));
    int whole = source_verify(&s, NULL, why);
    if (!whole)
        source_check_host(path);
    NotFinite odd = {0, json_array()};
    for (int i = 0; i < s.m.ntensor; i++)
        count_odd(&odd, s.m.tensor[i].name, s.not_finite[i]);
    report_odd(o, &odd);
    if (gone)
        *gone = !whole && source_gone(&s, path);
    source_close(&s);
    return verdict(o, whole, why);
}

/* ---- a run directory: its checkpoints, and leftovers of killed saves ---- */

/* Returns the reports of a run directory's checkpoints, newest first. One that a run in progress deletes
 * meanwhile is left out; if none is left the folder is listed again. *damaged: number of damaged ones;
 * why: reason of the first. */
static json_t *checkpoints(const char *path, int *damaged, char why[WHY])
{
    json_t *list = json_array();
    int lost = 1;
    for (int tries = 0; lost && !json_array_size(list) && tries < SOURCE_TRIES; tries++) {
        int n;
        char **dir = source_list(path, &n);
        lost = 0;
        for (int i = 0; i < n; i++) {
            int gone = 0;
            json_t *c = checkpoint(dir[i], &gone);
            lost += gone;
            if (gone) {
                json_decref(c);
                continue;
            }
            json_array_append_new(list, c);
            if (!json_is_true(json_object_get(c, "whole")) && (*damaged)++ == 0)
                file_why(why, "%.200s: %.200s", dir[i], json_string_value(json_object_get(c, "why")));
        }
        source_list_free(dir, n);
    }
    return list;
}

/* Returns the iteration of the newest checkpoint of the run `id`; NULL: it has none. */
static json_t *newest_of(const json_t *list, const char *id)
{
    size_t i;
    json_t *c;
    json_array_foreach(list, i, c) {
        const char *its = json_string_value(json_object_get(c, "run_id"));
        if (!id || !its || !strcmp(id, its))
            return json_incref(json_object_get(c, "iteration"));
    }
    return json_null();
}

static json_t *run_directory(const char *path)
{
    static const char *const parts[] = {"config.yaml", "metrics.jsonl", "trace.json", "report.html"};
    json_t *o = report("run", path), *left = json_array(), *holds = json_array();
    char *folder = xasprintf("%s/checkpoints", path), *id = source_run_id(path), why[WHY] = "";
    int damaged = 0;
    json_t *list = checkpoints(path, &damaged, why);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (has(path, parts[i]))
            json_array_append_new(holds, json_string(parts[i]));
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        int64_t it;
        char *sub = xasprintf("%s/%s", folder, e->d_name);
        if (!strncmp(e->d_name, "iter_", 5) && (!source_iteration(e->d_name, &it) || !has(sub, MANIFEST)))
            json_array_append_new(left, json_text(e->d_name));
        free(sub);
    }
    if (d)
        closedir(d);
    free(folder);
    json_object_update_new(o, json_pack("{s:o s:s? s:o* s:o s:o}", "holds", holds, "run_id", id, "newest",
                                        newest_of(list, id), "checkpoints", list, "unfinished", left));
    free(id);
    return verdict(o, !damaged, why);
}

/* ---- safetensors files and Hugging Face directories ---- */

/* Reads a tensor and counts its elements that are not finite. Returns 0 and a reason on a failing
 * read. */
static int count_values(const StFile *f, const StTensor *t, NotFinite *odd, char why[WHY])
{
    enum { PIECE = 1 << 20 };
    int ok = 1;
    int64_t n = 0;
    if (t->type < 0 || t->type > F16)
        return 1;
    char *piece = xcalloc(1, PIECE);
    for (int64_t at = 0; ok && at < t->bytes; at += PIECE) {
        int64_t bytes = t->bytes - at < PIECE ? t->bytes - at : PIECE;
        ok = st_read(f, t, at, piece, bytes, why);
        n += ok ? convert_count_not_finite(piece, (Dtype)t->type, bytes / (int64_t)dtype_size((Dtype)t->type))
                : 0;
    }
    count_odd(odd, t->name, n);
    free(piece);
    return ok;
}

/* Adds the tensors of a file to `types`, *tensors and *bytes. Returns 0 and a reason if it is
 * damaged. */
static int count_file(int dir, const char *name, json_t *types, json_int_t *tensors, json_int_t *bytes,
                      NotFinite *odd, char why[WHY])
{
    int whole = 1;
    StFile f;
    if (!st_open(&f, dir, name, 0, why))
        return 0;
    for (int i = 0; whole && i < f.n; i++) {
        count_type(types, f.tensor[i].dtype, st_elements(&f.tensor[i]));
        whole = count_values(&f, &f.tensor[i], odd, why);
    }
    *tensors += f.n;
    *bytes += f.size;
    st_close(&f);
    return whole;
}

static json_t *safetensors(const char *path)
{
    json_t *o = report("safetensors", path), *types = json_object(), *list = json_array();
    json_int_t tensors = 0, bytes = 0;
    NotFinite odd = {0, json_array()};
    char why[WHY];
    StFile f;
    int whole = count_file(AT_FDCWD, path, types, &tensors, &bytes, &odd, why);
    if (whole && (whole = st_open(&f, AT_FDCWD, path, 0, why))) {
        json_t *meta = json_object_get(f.header, "__metadata__");
        for (int i = 0; i < f.n; i++) {
            json_t *shape = json_array();
            for (int k = 0; k < f.tensor[i].ndim; k++)
                json_array_append_new(shape, json_integer(f.tensor[i].shape[k]));
            json_array_append_new(list, json_pack("{s:s, s:s, s:o}", "name", f.tensor[i].name, "dtype",
                                                  f.tensor[i].dtype, "shape", shape));
        }
        json_object_set_new(o, "metadata", meta ? json_incref(meta) : json_object());
        st_close(&f);
    }
    json_object_update_new(o, json_pack("{s:o s:I}", "elements", types, "bytes", bytes));
    report_odd(o, &odd);
    json_object_set_new(o, "tensors", list);
    return verdict(o, whole, why);
}

static int huggingface_files(const char *path, json_t *types, json_int_t *tensors, json_int_t *bytes,
                             NotFinite *odd, char why[WHY])
{
    json_t *index = NULL, *v;
    size_t at;
    int dir = file_open_dir(AT_FDCWD, path, 0, why);
    json_t *files = dir < 0 ? NULL : hf_files(dir, &index, why);
    int whole = files != NULL;
    json_array_foreach(files, at, v)
        whole = whole && count_file(dir, json_string_value(v), types, tensors, bytes, odd, why);
    json_decref(files);
    json_decref(index);
    if (dir >= 0)
        close(dir);
    return whole;
}

static json_t *huggingface(const char *path)
{
    json_t *o = report("huggingface", path), *types = json_object(), *hf = NULL;
    json_int_t tensors = 0, bytes = 0;
    NotFinite odd = {0, json_array()};
    char why[WHY], reason[WHY];
    const HfFamily *family = NULL;
    int64_t n;
    int whole = huggingface_files(path, types, &tensors, &bytes, &odd, why);
    char *file = xasprintf("%s/config.json", path),
         *text = file_read_text(AT_FDCWD, file, 0, 1 << 26, &n, reason);
    if (text)
        hf = json_loadb(text, (size_t)n, JSON_REJECT_DUPLICATES, NULL);
    if (whole && !json_is_object(hf))
        whole = file_why(why, "config.json is not a JSON object");
    const Config *cfg = json_is_object(hf) ? hf_read_config(hf, &family, reason) : NULL;
    json_t *type = json_object_get(hf, "model_type");
    json_object_set_new(o, "model_type", json_is_string(type) ? json_incref(type) : json_null());
    json_object_set_new(o, "can_import", json_boolean(cfg != NULL));
    if (!cfg && json_is_object(hf))
        json_object_set_new(o, "cannot_express", json_text(reason));
    if (cfg)
        json_object_set_new(o, "parameters", json_integer(params_count(cfg)));
    count_active(o, cfg);
    json_object_update_new(o, json_pack("{s:I s:o s:I}", "tensors", tensors, "elements", types, "bytes",
                                        bytes));
    report_odd(o, &odd);
    json_decref(hf);
    free(text);
    free(file);
    return verdict(o, whole, why);
}

/* ---- kind of a path, and output ---- */

/* Reports on what is no corpus; NULL: it is one, or an unknown file. */
static json_t *inspect(const char *path)
{
    size_t n = strlen(path);
    if (!is_dir(path))
        return n > 12 && !strcmp(path + n - 12, ".safetensors") ? safetensors(path) : NULL;
    if (has(path, MANIFEST) || has(path, "model-00000.safetensors"))
        return checkpoint(path, NULL);
    if (has(path, "config.json"))
        return huggingface(path);
    if (has(path, "checkpoints") || has(path, "metrics.jsonl"))
        return run_directory(path);
    char *corpus = xasprintf("%s.bin", path);        /* a folder may have the name of a corpus */
    int pair = path[n - 1] != '/' && source_present(corpus);
    free(corpus);
    if (!pair)
        die(EXIT_CONFIG, "usage", "train inspect: the folder %s is neither a checkpoint (no " MANIFEST "), a "
            "run directory (no checkpoints, no metrics.jsonl) nor of Hugging Face (no config.json); change: "
            "give one of these, a safetensors file, or a corpus (PREFIX of PREFIX.bin and PREFIX.idx)", path);
    return NULL;
}

/* Prints a text that somebody else may have written. */
static void put_text(FILE *f, const char *text)
{
    char *shown = text_shown(text);
    fputs(shown, f);
    free(shown);
}

/* Prints a value within a line: a list as [61, 20], an object as its values one after the other. */
static void put(FILE *f, const json_t *v)
{
    const char *key, *gap = "";
    json_t *e;
    size_t i;
    if (json_is_string(v))
        put_text(f, json_string_value(v));
    else if (json_is_integer(v))
        fprintf(f, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
    else if (json_is_boolean(v))
        fputs(json_is_true(v) ? "yes" : "no", f);
    if (json_is_array(v)) {
        fputc('[', f);
        json_array_foreach(v, i, e) {
            fputs(i ? ", " : "", f);
            put(f, e);
        }
        fputc(']', f);
    }
    json_object_foreach((json_t *)v, key, e) {
        fputs(gap, f);
        put(f, e);
        gap = "  ";
    }
}

/* Prints a report, one line a key: "elements  F32 1234, BF16 56". A list has one element a line; a
 * report within a report is indented. */
static void show(FILE *f, const json_t *o, int indent)
{
    const char *key, *k, *gap;
    json_t *v, *e;
    size_t i;
    fprintf(f, "%*s", indent, "");
    put_text(f, json_string_value(json_object_get(o, "path")));
    fputc('\n', f);
    indent += 2;
    json_object_foreach((json_t *)o, key, v) {
        int empty = json_is_null(v) || (json_is_array(v) && !json_array_size(v));
        if (empty || !strcmp(key, "path") || !strcmp(key, "why"))
            continue;
        if (json_object_get(json_array_get(v, 0), "whole")) {
            json_array_foreach(v, i, e)
                show(f, e, indent);
            continue;
        }
        fprintf(f, "%*s%-18s", indent, "", key);
        gap = "";
        if (json_is_object(v)) {
            json_object_foreach(v, k, e) {
                fputs(gap, f);
                put_text(f, k);
                fputc(' ', f);
                put(f, e);
                gap = ", ";
            }
        } else if (json_is_array(v)) {
            json_array_foreach(v, i, e) {
                fprintf(f, "%s%*s", gap, i ? indent + 18 : 0, "");
                put(f, e);
                gap = "\n";
            }
        } else {
            put(f, v);
        }
        if (!strcmp(key, "whole") && json_is_false(v)) {
            fputs(": ", f);
            put_text(f, json_string_value(json_object_get(o, "why")));
        }
        fputc('\n', f);
    }
}

/* Dies if the path is neither a file nor the PREFIX of a corpus. raw:FILE and patterns are left to
 * corpus_open. */
static void must_exist(const char *path)
{
    static const char *const ends[] = {"", ".bin", ".idx"};
    int found = !strncmp(path, "raw:", 4) || strpbrk(path, "*?[");
    for (size_t i = 0; i < sizeof ends / sizeof *ends && !found; i++) {
        char *file = xasprintf("%s%s", path, ends[i]);
        struct stat st;
        found = !lstat(file, &st) || (errno != ENOENT && errno != ENOTDIR);
        free(file);
    }
    if (!found)
        die(EXIT_CONFIG, "usage", "train inspect: %s: no such file or folder; change: give a corpus (PREFIX "
            "of PREFIX.bin and PREFIX.idx), a checkpoint, a run directory or a safetensors file", path);
}

int command_inspect(int argc, char **argv)
{
    Args args = cli_open("inspect", argc, argv);
    int json = args_switch(&args, "--json");
    const char *path = cli_next(&args, "PATH, a corpus, checkpoint, run directory or safetensors file");
    cli_end(&args);
    free(args.v);
    must_exist(path);
    json_t *o = inspect(path);
    if (!o)
        return corpus_inspect(path, stdout, json);
    int whole = json_is_true(json_object_get(o, "whole"));
    if (json) {
        json_dumpf(o, stdout, JSON_INDENT(2));
        putchar('\n');
    } else {
        show(stdout, o, 0);
    }
    json_decref(o);
    return whole ? EXIT_DONE : EXIT_COMPARE;
}
