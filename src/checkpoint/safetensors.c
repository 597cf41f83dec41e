/* safetensors -- headers of safetensors files parsed and written, their data read */
#define _GNU_SOURCE
#include "safetensors.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#define HEADER_MAX 100000000            /* the format's own limit */
#define ALIGN 8                         /* spaces pad the header so that the data start at a multiple */

/* All types of the format with their bits; the first ones are ours, in the order of Dtype. */
static const struct { const char *name; int bits; } types[] = {
    {"F64", 64}, {"F32", 32}, {"BF16", 16}, {"F16", 16}, {"I32", 32}, {"I64", 64},
    {"I16", 16}, {"U8", 8}, {"BOOL", 8}, {"I8", 8}, {"U16", 16}, {"U32", 32}, {"U64", 64}, {"C64", 64},
    {"F4", 4}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8},
    {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8},
};
#define TYPES (sizeof types / sizeof *types)

static int by_name(const void *a, const void *b)
{
    return strcmp(((const StTensor *)a)->name, ((const StTensor *)b)->name);
}

static int by_place(const void *a, const void *b)
{
    const StTensor *s = *(const StTensor *const *)a, *t = *(const StTensor *const *)b;
    if (s->at != t->at)
        return s->at < t->at ? -1 : 1;
    return s->bytes < t->bytes ? -1 : s->bytes > t->bytes;
}

static int as_int64(const json_t *j, int64_t *v)
{
    if (!json_is_integer(j) || json_integer_value(j) < 0)
        return 0;
    *v = json_integer_value(j);
    return 1;
}

/* Parses one entry of the header. t->at counts from the start of the data until st_parse shifts it. */
static int parse_tensor(StTensor *t, const char *name, const json_t *j, char why[WHY])
{
    const json_t *shape = json_object_get(j, "shape"), *at = json_object_get(j, "data_offsets");
    int64_t end, bits;
    *t = (StTensor){.name = name, .dtype = json_string_value(json_object_get(j, "dtype")), .type = -1};
    if (!t->dtype || !json_is_array(shape) || json_array_size(at) != 2 || json_object_size(j) != 3)
        return file_why(why, "tensor '%.100s' must have dtype, shape and data_offsets, and nothing else",
                        name);
    if (json_array_size(shape) > ST_DIMS)
        return file_why(why, "tensor '%.100s' has %zu dimensions, more than %d", name, json_array_size(shape),
                        ST_DIMS);
    size_t k = 0;
    while (k < TYPES && strcmp(types[k].name, t->dtype))
        k++;
    if (k == TYPES)
        return file_why(why, "tensor '%.100s' has the unknown dtype '%.30s'", name, t->dtype);
    t->dtype = types[k].name;
    t->type = k < DTYPES ? (int)k : -1;
    t->ndim = (int)json_array_size(shape);
    bits = types[k].bits;
    for (int i = 0; i < t->ndim; i++)
        if (!as_int64(json_array_get(shape, (size_t)i), &t->shape[i]))
            return file_why(why, "tensor '%.100s': dimension %d is not a number >= 0", name, i);
    for (int i = 0; i < t->ndim; i++)
        if (__builtin_mul_overflow(bits, t->shape[i], &bits))
            return file_why(why, "tensor '%.100s': the product of its dimensions overflows", name);
    if (!as_int64(json_array_get(at, 0), &t->at) || !as_int64(json_array_get(at, 1), &end) || end < t->at)
        return file_why(why, "tensor '%.100s': data_offsets must be [begin, end], 0 <= begin <= end", name);
    t->bytes = end - t->at;
    if (bits % 8 || t->bytes != bits / 8)
        return file_why(why, "tensor '%.100s': its shape needs %lld bytes, its data_offsets give %lld", name,
                        (long long)((bits + 7) / 8), (long long)t->bytes);
    return 1;
}

/* Checks that the ranges tile [0, size) in the order of their offsets. */
static int check_ranges(const StFile *f, int64_t size, char why[WHY])
{
    const StTensor **order = xcalloc((size_t)f->n, sizeof *order);
    int64_t end = 0;
    int ok = 1;
    for (int i = 0; i < f->n; i++)
        order[i] = &f->tensor[i];
    qsort(order, (size_t)f->n, sizeof *order, by_place);
    for (int i = 0; i < f->n && ok; i++) {
        if (order[i]->at != end)
            ok = file_why(why, "tensor '%.100s' starts at data byte %lld; the one before it ends at %lld",
                          order[i]->name, (long long)order[i]->at, (long long)end);
        else if (__builtin_add_overflow(end, order[i]->bytes, &end))
            ok = file_why(why, "tensor '%.100s': its offsets overflow", order[i]->name);
    }
    free(order);
    if (ok && end != size)
        return file_why(why, "the tensors need %lld bytes of data, the file holds %lld", (long long)end,
                        (long long)size);
    return ok;
}

int st_parse(StFile *f, const char *text, int64_t n, int64_t size, char why[WHY])
{
    json_error_t error;
    const char *name;
    json_t *j;
    if (n < 1 || text[0] != '{')
        return file_why(why, "the header does not start with '{': not a safetensors file");
    f->size = size;
    f->data = 8 + n;
    f->header = json_loadb(text, (size_t)n, JSON_REJECT_DUPLICATES, &error);
    if (!f->header)
        return file_why(why, "the header is not valid JSON: %.200s at byte %d", error.text,
                        8 + error.position);
    f->tensor = xcalloc(json_object_size(f->header), sizeof *f->tensor);
    json_object_foreach(f->header, name, j) {
        if (!strcmp(name, "__metadata__")) {
            const char *key;
            json_t *v;
            if (!json_is_object(j))
                return file_why(why, "__metadata__ is not an object");
            json_object_foreach(j, key, v)
                if (!json_is_string(v))
                    return file_why(why, "__metadata__ '%.100s' is not a text", key);
        } else if (!parse_tensor(&f->tensor[f->n++], name, j, why)) {
            return 0;
        }
    }
    if (!check_ranges(f, size - f->data, why))
        return 0;
    for (int i = 0; i < f->n; i++)
        f->tensor[i].at += f->data;
    qsort(f->tensor, (size_t)f->n, sizeof *f->tensor, by_name);
    return 1;
}

/* Puts the file's name in front of a reason. Returns 0. */
static int named(const char *path, char why[WHY])
{
    char text[WHY];
    memcpy(text, why, WHY);
    return file_why(why, "%.200s: %.300s", path, text);
}

int st_open(StFile *f, int dir, const char *name, int nofollow, char why[WHY])
{
    uint8_t length[8];
    uint64_t n = 0;
    int64_t size;
    *f = (StFile){.fd = file_open(dir, name, nofollow, &size, why)};
    if (f->fd < 0)
        return 0;
    f->path = xstrdup(name);
    int ok = size >= 8 ? file_read_at(f->fd, name, length, 8, 0, why)
                       : file_why(why, "%.200s has %lld bytes, fewer than the 8 of a safetensors file", name,
                                  (long long)size);
    if (ok && !memcmp(length, "version ", 8))
        ok = file_why(why, "%.200s is a Git LFS pointer in the place of the file (`git lfs pull` fetches "
                      "that)", name);
    if (ok) {
        for (int i = 7; i >= 0; i--)
            n = n << 8 | length[i];
        if (n > HEADER_MAX || n > (uint64_t)size - 8)
            ok = file_why(why, "%.200s: a header of %llu bytes does not fit in a file of %lld (limit %d): "
                          "not a safetensors file, or cut short", name, (unsigned long long)n,
                          (long long)size, HEADER_MAX);
    }
    if (ok) {
        char *text = xcalloc(1, n + 1);
        ok = file_read_at(f->fd, name, text, (int64_t)n, 8, why);
        if (ok && !(ok = st_parse(f, text, (int64_t)n, size, why)))
            named(name, why);
        free(text);
    }
    if (!ok)
        st_close(f);
    return ok;
}

void st_close(StFile *f)
{
    if (f->fd >= 0)
        close(f->fd);
    json_decref(f->header);
    free(f->tensor);
    free(f->path);
    *f = (StFile){.fd = -1};
}

const StTensor *st_find(const StFile *f, const char *name)
{
    StTensor key = {.name = name};
    return f->n ? bsearch(&key, f->tensor, (size_t)f->n, sizeof key, by_name) : NULL;
}

const char *st_meta(const StFile *f, const char *key)
{
    return json_string_value(json_object_get(json_object_get(f->header, "__metadata__"), key));
}

int64_t st_elements(const StTensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++)
        n *= t->shape[i];
    return n;
}

int st_read(const StFile *f, const StTensor *t, int64_t at, void *p, int64_t bytes, char why[WHY])
{
    BUG_ON(at < 0 || bytes < 0 || at > t->bytes - bytes);
    return file_read_at(f->fd, f->path, p, bytes, t->at + at, why);
}

/* Sets at and bytes of all tensors by falling element size, otherwise in the given order, so that every
 * tensor is aligned to its type. Returns the bytes of all. */
static int64_t place(StTensor *t, int n)
{
    int64_t end = 0;
    for (int64_t size = 8; size; size /= 2)
        for (int i = 0; i < n; i++)
            if ((int64_t)dtype_size((Dtype)t[i].type) == size) {
                t[i].dtype = dtype_name((Dtype)t[i].type);
                t[i].at = end;
                end += t[i].bytes = st_elements(&t[i]) * size;
            }
    return end;
}

/* The header of the file, from malloc: length, JSON, spaces. */
static char *header_text(const StTensor *t, int n, const char *const *meta, int64_t *bytes)
{
    json_t *top = json_object(), *m = json_object();
    for (; meta && meta[0]; meta += 2)
        json_object_set_new(m, meta[0], json_string(meta[1]));
    json_object_set_new(top, "__metadata__", m);
    for (int i = 0; i < n; i++) {
        json_t *shape = json_array();
        for (int k = 0; k < t[i].ndim; k++)
            json_array_append_new(shape, json_integer(t[i].shape[k]));
        BUG_ON(json_object_get(top, t[i].name));
        json_object_set_new(top, t[i].name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", t[i].dtype, "shape", shape,
                                      "data_offsets", (json_int_t)t[i].at,
                                      (json_int_t)(t[i].at + t[i].bytes)));
    }
    char *text = json_dumps(top, JSON_COMPACT);
    json_decref(top);
    BUG_ON(!text);
    size_t length = strlen(text), padded = (length + ALIGN - 1) / ALIGN * ALIGN;
    char *p = xcalloc(1, 8 + padded);
    for (int i = 0; i < 8; i++)
        p[i] = (char)(padded >> (8 * i));
    memcpy(p + 8, text, length);
    memset(p + 8 + length, ' ', padded - length);
    free(text);
    *bytes = (int64_t)(8 + padded);
    return p;
}

/* Fills the writer's table. Returns the header's text (free it). */
static char *layout(StWriter *w, const char *name, const StTensor *t, int n, const char *const *meta)
{
    w->n = n;
    w->path = xstrdup(name);
    w->tensor = xcalloc((size_t)n, sizeof *t);
    if (n)
        memcpy(w->tensor, t, (size_t)n * sizeof *t);
    int64_t bytes = place(w->tensor, n);
    char *head = header_text(w->tensor, n, meta, &w->data);
    w->size = w->data + bytes;
    w->header_hash = XXH3_64bits(head, (size_t)w->data);
    for (int i = 0; i < n; i++)
        w->tensor[i].at += w->data;
    return head;
}

int st_create(StWriter *w, int dir, const char *name, int exclusive, const StTensor *t, int n,
              const char *const *meta, char why[WHY])
{
    *w = (StWriter){.fd = file_create(dir, name, exclusive, why)};
    if (w->fd < 0)
        return 0;
    char *head = layout(w, name, t, n, meta);
    int ok = file_write_at(w->fd, name, head, w->data, 0, why);
    free(head);
    if (!ok)
        st_discard(w);
    return ok;
}

int st_join(StWriter *w, int dir, const char *name, const StTensor *t, int n, const char *const *meta,
            char why[WHY])
{
    do
        *w = (StWriter){.fd = openat(dir, name, O_WRONLY | O_CLOEXEC)};
    while (w->fd < 0 && errno == EINTR);
    if (w->fd < 0)
        return file_errno(why, "cannot open %s", name);
    free(layout(w, name, t, n, meta));
    return 1;
}

int st_put(StWriter *w, int i, int64_t at, const void *p, int64_t bytes, char why[WHY])
{
    BUG_ON(i < 0 || i >= w->n || at < 0 || bytes < 0 || at > w->tensor[i].bytes - bytes);
    w->put += bytes;
    return file_write_at(w->fd, w->path, p, bytes, w->tensor[i].at + at, why);
}

int st_finish(StWriter *w, char why[WHY])
{
    BUG_ON(w->data + w->put != w->size);
    int ok = file_sync_close(w->fd, w->path, why);
    w->fd = -1;
    st_discard(w);
    return ok;
}

void st_discard(StWriter *w)
{
    if (w->fd >= 0)
        close(w->fd);
    free(w->tensor);
    free(w->path);
    *w = (StWriter){.fd = -1};
}
