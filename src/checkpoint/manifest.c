/* manifest -- manifest.json written, parsed and checked against its own hash */
#define _GNU_SOURCE
#include "manifest.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#define FORMAT "gridiron"
#define TAIL "\"hash\":\""              /* the self hash follows, then END, then nothing */
#define END "\"}\n"
#define HEX 16

static void hex_write(char out[HEX + 1], uint64_t v) { snprintf(out, HEX + 1, "%016" PRIx64, v); }

static int hex_read(const char *s, uint64_t *v)
{
    if (!s || strlen(s) != HEX || strspn(s, "0123456789abcdef") != HEX)
        return 0;
    *v = strtoull(s, NULL, 16);
    return 1;
}

static int natural(const json_t *object, const char *key, int64_t *v)
{
    const json_t *j = json_object_get(object, key);
    *v = json_integer_value(j);
    return json_is_integer(j) && *v >= 0;
}

void manifest_box_name(char out[BOX_NAME], const char *tensor, int64_t row0, int64_t col0, int whole)
{
    if (whole)
        snprintf(out, BOX_NAME, "%s", tensor);
    else
        snprintf(out, BOX_NAME, "%s-%" PRId64 "-%" PRId64, tensor, row0, col0);
}

/* ---- reading */

static int parse_shards(Manifest *m, char why[WHY])
{
    json_t *files = json_object_get(m->json, "files"), *j;
    size_t i;
    m->shard = xcalloc(json_array_size(files), sizeof *m->shard);
    m->index = json_object();
    json_array_foreach(files, i, j) {
        Shard *s = &m->shard[m->nshard++];
        s->name = json_string_value(json_object_get(j, "name"));
        if (!s->name || !file_name_ok(s->name) || !strcmp(s->name, MANIFEST))
            return file_why(why, "manifest.json: file name %zu is not made of [A-Za-z0-9_.-]", i);
        if (!natural(j, "bytes", &s->bytes) ||
            !hex_read(json_string_value(json_object_get(j, "header")), &s->header))
            return file_why(why, "manifest.json: %.100s has no valid size and hash", s->name);
        if (json_object_get(m->index, s->name))
            return file_why(why, "manifest.json names %.100s twice", s->name);
        json_object_set_new(m->index, s->name, json_integer((json_int_t)i));
    }
    return 1;
}

static int parse_box(const Manifest *m, const StoredTensor *t, StoredBox *b, const json_t *j, char why[WHY])
{
    const char *file = json_string_value(json_object_get(j, "file"));
    const json_t *hash = json_object_get(j, "hash"), *h;
    int64_t bytes;
    size_t i;
    b->shard = file ? manifest_shard(m, file) : -1;
    if (b->shard < 0)
        return file_why(why, "manifest.json: tensor %.100s lies in a file that is not listed", t->name);
    if (!natural(j, "row", &b->row0) || !natural(j, "col", &b->col0) || !natural(j, "rows", &b->rows) ||
        !natural(j, "cols", &b->cols) || !b->rows || !b->cols || b->rows > t->shape[0] ||
        b->cols > t->shape[1] || b->row0 > t->shape[0] - b->rows || b->col0 > t->shape[1] - b->cols)
        return file_why(why, "manifest.json: a box of tensor %.100s does not lie in it", t->name);
    bytes = box_bytes(b, t->type);
    if (json_array_size(hash) != (size_t)box_blocks(bytes) || bytes > m->shard[b->shard].bytes)
        return file_why(why, "manifest.json: a box of tensor %.100s does not have a hash for each block, or "
                        "does not fit in its file", t->name);
    b->hash = xcalloc(json_array_size(hash), sizeof *b->hash);
    json_array_foreach(hash, i, h)
        if (!hex_read(json_string_value(h), &b->hash[i]))
            return file_why(why, "manifest.json: tensor %.100s has a malformed hash", t->name);
    return 1;
}

static int by_row(const void *a, const void *b)
{
    const StoredBox *s = a, *t = b;
    if (s->row0 != t->row0)
        return s->row0 < t->row0 ? -1 : 1;
    return s->col0 < t->col0 ? -1 : s->col0 > t->col0;
}

/* Checks that the boxes tile the tensor: inside it, disjoint, and as large together. */
static int check_tiling(const StoredTensor *t, char why[WHY])
{
    int64_t sum = 0;
    qsort(t->box, (size_t)t->nbox, sizeof *t->box, by_row);
    for (int i = 0; i < t->nbox; i++) {
        const StoredBox *b = &t->box[i];
        /* no overflow: the boxes so far are disjoint, so the sum is at most the tensor's size */
        sum += b->rows * b->cols;
        for (int k = i + 1; k < t->nbox && t->box[k].row0 < b->row0 + b->rows; k++)
            if (t->box[k].col0 < b->col0 + b->cols && b->col0 < t->box[k].col0 + t->box[k].cols)
                return file_why(why, "manifest.json: boxes of tensor %.100s overlap", t->name);
    }
    if (sum != t->shape[0] * t->shape[1])
        return file_why(why, "manifest.json: the boxes of tensor %.100s hold %" PRId64 " of its %" PRId64
                        " elements", t->name, sum, t->shape[0] * t->shape[1]);
    return 1;
}

static int parse_tensor(Manifest *m, const char *name, const json_t *j, char why[WHY])
{
    StoredTensor *t = &m->tensor[m->ntensor];
    const char *type = json_string_value(json_object_get(j, "dtype"));
    const json_t *shape = json_object_get(j, "shape"), *boxes = json_object_get(j, "boxes"), *b;
    int64_t bytes;
    size_t i;
    if (!file_name_ok(name))
        return file_why(why, "manifest.json: tensor name %d is not made of [A-Za-z0-9_.-]", m->ntensor);
    *t = (StoredTensor){.name = name, .ndim = (int)json_array_size(shape), .shape = {1, 1}};
    m->ntensor++;
    for (t->type = 0; t->type < DTYPES && (!type || strcmp(dtype_name(t->type), type));)
        t->type++;
    if (t->type > F16 || t->ndim < 1 || t->ndim > 2)    /* a checkpoint holds real numbers */
        return file_why(why, "manifest.json: tensor %.100s needs a dtype that this build knows and 1 or 2 "
                        "dimensions", name);
    for (int k = 0; k < t->ndim; k++) {
        t->shape[k] = json_integer_value(json_array_get(shape, (size_t)k));
        if (t->shape[k] < 1)
            return file_why(why, "manifest.json: tensor %.100s has a dimension below 1", name);
    }
    if (__builtin_mul_overflow(t->shape[0], t->shape[1], &bytes) || __builtin_mul_overflow(bytes, 8, &bytes))
        return file_why(why, "manifest.json: the size of tensor %.100s overflows", name);
    t->box = xcalloc(json_array_size(boxes), sizeof *t->box);
    json_array_foreach(boxes, i, b)
        if (t->nbox++, !parse_box(m, t, &t->box[i], b, why))
            return 0;
    return check_tiling(t, why);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const StoredTensor *)a)->name, ((const StoredTensor *)b)->name);
}

/* Checks that the text ends in TAIL, 16 digits, END, and that the digits are the hash of all before
 * them. */
static int check_self(Manifest *m, const char *text, int64_t n, char why[WHY])
{
    char want[HEX + 1];
    int64_t at = n - HEX - (int64_t)strlen(END);
    if (at < (int64_t)strlen(TAIL) || memcmp(text + at - strlen(TAIL), TAIL, strlen(TAIL)) ||
        memcmp(text + at + HEX, END, strlen(END)))
        return file_why(why, "manifest.json is damaged or cut short: it does not end in its own hash");
    m->hash = XXH3_64bits(text, (size_t)at);
    hex_write(want, m->hash);
    if (memcmp(text + at, want, HEX))
        return file_why(why, "manifest.json is damaged: its hash is %.16s, its content gives %s", text + at,
                        want);
    return 1;
}

int manifest_parse(Manifest *m, const char *text, int64_t n, char why[WHY])
{
    json_error_t error;
    const char *format, *name;
    json_t *tensors, *j;
    int64_t version;
    *m = (Manifest){0};
    if (!check_self(m, text, n, why))
        return 0;
    m->json = json_loadb(text, (size_t)n, JSON_REJECT_DUPLICATES, &error);
    if (!m->json)
        return file_why(why, "manifest.json is not valid JSON: %.200s", error.text);
    format = json_string_value(json_object_get(m->json, "format"));
    if (!format || strcmp(format, FORMAT))
        return file_why(why, "manifest.json is not a " FORMAT " checkpoint's");
    if (!natural(m->json, "version", &version) || version < 1 || version > MANIFEST_VERSION)
        return file_why(why, "manifest.json has format version %" PRId64 "; this build reads up to %d",
                        version, MANIFEST_VERSION);
    m->state = json_object_get(m->json, "state");
    tensors = json_object_get(m->json, "tensors");
    if (!natural(m->json, "iteration", &m->iteration) || !json_is_object(m->state) ||
        !json_is_object(tensors) || !json_is_array(json_object_get(m->json, "files")))
        return file_why(why, "manifest.json lacks iteration, state, files or tensors");
    j = json_object_get(m->state, "iteration");
    if (j && (!json_is_integer(j) || json_integer_value(j) != m->iteration))
        return file_why(why, "manifest.json is of iteration %" PRId64 ", but its state is not", m->iteration);
    int ok = parse_shards(m, why);
    m->tensor = xcalloc(json_object_size(tensors), sizeof *m->tensor);
    json_object_foreach(tensors, name, j)
        if (!ok || !(ok = parse_tensor(m, name, j, why)))
            break;
    if (!ok)
        return 0;
    qsort(m->tensor, (size_t)m->ntensor, sizeof *m->tensor, by_name);
    return 1;
}

int manifest_open(Manifest *m, int dir, char why[WHY])
{
    int64_t n;
    char *text = file_read_text(dir, MANIFEST, 1, MANIFEST_MAX, &n, why);
    *m = (Manifest){0};
    if (!text)
        return 0;
    int ok = manifest_parse(m, text, n, why);
    free(text);
    if (!ok)
        manifest_close(m);
    return ok;
}

void manifest_close(Manifest *m)
{
    for (int i = 0; i < m->ntensor; i++) {
        for (int k = 0; k < m->tensor[i].nbox; k++)
            free(m->tensor[i].box[k].hash);
        free(m->tensor[i].box);
    }
    free(m->tensor);
    free(m->shard);
    json_decref(m->index);
    json_decref(m->json);
    *m = (Manifest){0};
}

int manifest_shard(const Manifest *m, const char *name)
{
    const json_t *i = json_object_get(m->index, name);
    return i ? (int)json_integer_value(i) : -1;
}

const StoredTensor *manifest_find(const Manifest *m, const char *name)
{
    StoredTensor key = {.name = name};
    return m->ntensor ? bsearch(&key, m->tensor, (size_t)m->ntensor, sizeof key, by_name) : NULL;
}

/* ---- writing */

json_t *manifest_part_new(void) { return json_pack("{s:[], s:{}}", "files", "tensors"); }

void manifest_part_file(json_t *part, const char *name, int64_t bytes, uint64_t header)
{
    char hex[HEX + 1];
    hex_write(hex, header);
    json_array_append_new(json_object_get(part, "files"), json_pack("{s:s, s:I, s:s}", "name", name, "bytes",
                                                                    (json_int_t)bytes, "header", hex));
}

void manifest_part_box(json_t *part, const char *file, const char *tensor, Dtype type, int ndim,
                       const int64_t shape[2], const StoredBox *box)
{
    json_t *tensors = json_object_get(part, "tensors"), *t = json_object_get(tensors, tensor),
           *hash = json_array();
    if (!t) {
        t = json_pack("{s:s, s:[I], s:[]}", "dtype", dtype_name(type), "shape", (json_int_t)shape[0],
                      "boxes");
        if (ndim == 2)
            json_array_append_new(json_object_get(t, "shape"), json_integer(shape[1]));
        json_object_set_new(tensors, tensor, t);
    }
    for (int64_t i = 0; i < box_blocks(box_bytes(box, type)); i++) {
        char hex[HEX + 1];
        hex_write(hex, box->hash[i]);
        json_array_append_new(hash, json_string(hex));
    }
    json_array_append_new(json_object_get(t, "boxes"),
                          json_pack("{s:s, s:I, s:I, s:I, s:I, s:o}", "file", file, "row",
                                    (json_int_t)box->row0, "col", (json_int_t)box->col0, "rows",
                                    (json_int_t)box->rows, "cols", (json_int_t)box->cols, "hash", hash));
}

/* Joins the tensors of all ranks in one object, with the boxes of a tensor in one list. */
static json_t *merge_tensors(json_t *const *part, int parts)
{
    json_t *all = json_object(), *t, *old;
    const char *name;
    for (int r = 0; r < parts; r++)
        json_object_foreach(json_object_get(part[r], "tensors"), name, t) {
            old = json_object_get(all, name);
            if (!old) {
                json_object_set_new(all, name, json_deep_copy(t));
                continue;
            }
            BUG_ON(!json_equal(json_object_get(old, "dtype"), json_object_get(t, "dtype")) ||
                   !json_equal(json_object_get(old, "shape"), json_object_get(t, "shape")));
            json_array_extend(json_object_get(old, "boxes"), json_object_get(t, "boxes"));
        }
    json_object_foreach(all, name, t) {
        int64_t sum = 0, size = 1;
        json_t *v;
        size_t i;
        json_array_foreach(json_object_get(t, "boxes"), i, v) {
            int64_t rows = json_integer_value(json_object_get(v, "rows"));
            sum += rows * json_integer_value(json_object_get(v, "cols"));
        }
        json_array_foreach(json_object_get(t, "shape"), i, v)
            size *= json_integer_value(v);
        BUG_ON(sum != size);
    }
    return all;
}

/* Writes `"NAME":` and one element a line, for people and diff. */
static void put_lines(FILE *f, json_t *container)
{
    const char *sep = "\n", *name;
    json_t *v;
    size_t i;
    fputc(json_is_array(container) ? '[' : '{', f);
    json_array_foreach(container, i, v) {
        fputs(sep, f);
        json_dumpf(v, f, JSON_COMPACT);
        sep = ",\n";
    }
    json_object_foreach(container, name, v) {
        fprintf(f, "%s\"%s\":", sep, name);
        json_dumpf(v, f, JSON_COMPACT);
        sep = ",\n";
    }
    fputs(json_is_array(container) ? "]" : "}", f);
}

char *manifest_text(json_t *const *part, int parts, int64_t iteration, const json_t *state, int64_t *bytes)
{
    char *text = NULL, hex[HEX + 1];
    size_t n = 0;
    FILE *f = xmemstream(&text, &n);
    json_t *files = json_array(), *tensors = merge_tensors(part, parts);
    for (int r = 0; r < parts; r++)
        json_array_extend(files, json_object_get(part[r], "files"));
    fprintf(f, "{\"format\":\"" FORMAT "\",\"version\":%d,\"iteration\":%" PRId64 ",\n\"state\":",
            MANIFEST_VERSION, iteration);
    json_dumpf(state, f, JSON_COMPACT);
    fputs(",\n\"files\":", f);
    put_lines(f, files);
    fputs(",\n\"tensors\":", f);
    put_lines(f, tensors);
    fputs(",\n" TAIL, f);
    fflush(f);
    hex_write(hex, XXH3_64bits(text, n));
    fprintf(f, "%s" END, hex);
    fclose(f);
    json_decref(files);
    json_decref(tensors);
    *bytes = (int64_t)n;
    return text;
}
