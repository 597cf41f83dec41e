/* source -- a checkpoint folder found, checked and read box by box */
#define _GNU_SOURCE
#include "source.h"
#include "convert.h"
#include "flight.h"
#include "jsonl.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

int source_iteration(const char *name, int64_t *iteration)
{
    const char *digits = name + 5;
    size_t n;
    if (strncmp(name, "iter_", 5))
        return 0;
    n = strlen(digits);
    if (n < 7 || n > 18 || strspn(digits, "0123456789") != n)
        return 0;
    *iteration = strtoll(digits, NULL, 10);
    return 1;
}

int source_newest_first(const void *a, const void *b)
{
    int64_t s = *(const int64_t *)a, t = *(const int64_t *)b;
    return (s < t) - (s > t);
}

void source_check_host(const char *path)
{
    if (errno == ENOMEM || errno == EMFILE || errno == ENFILE)
        die(EXIT_RESOURCE, "unreadable", "cannot read %s: %s; change: free memory on this host, or raise the "
            "limit on open files (ulimit -n)", path, strerror(errno));
}

/* Dies: errno is why the system does not tell what is at `path`. */
static _Noreturn void unreadable(const char *path)
{
    source_check_host(path);
    die(EXIT_CHECKPOINT, "unreadable", "cannot read %s: %s; change: let this user read it and search the "
        "folders above it (chmod), see to its file system, or name another", path, strerror(errno));
}

int source_present(const char *path)
{
    if (access(path, F_OK) == 0)
        return 1;
    if (errno != ENOENT && errno != ENOTDIR && errno != ESTALE)
        unreadable(path);
    return 0;
}

static int has_manifest(const char *dir)
{
    char *p = xasprintf("%s/" MANIFEST, dir);
    int ok = source_present(p);
    free(p);
    return ok;
}

/* Opens TOP/checkpoints; NULL: there is none. */
static DIR *open_checkpoints(const char *top)
{
    DIR *d = opendir(top);
    if (!d && errno != ENOENT && errno != ENOTDIR)
        unreadable(top);
    return d;
}

/* source_newest_first of folders. */
static int newest_first(const void *a, const void *b)
{
    int64_t s = 0, t = 0;
    source_iteration(strrchr(*(char *const *)a, '/') + 1, &s);
    source_iteration(strrchr(*(char *const *)b, '/') + 1, &t);
    return source_newest_first(&s, &t);
}

char **source_list(const char *path, int *n)
{
    char **list = xcalloc(1, sizeof *list), *top = xasprintf("%s/checkpoints", path);
    *n = 0;
    DIR *d = has_manifest(path) ? NULL : open_checkpoints(top);
    if (has_manifest(path))
        list[(*n)++] = xstrdup(path);
    for (struct dirent *e; d && (errno = 0, e = readdir(d));) {
        int64_t iteration;
        if (!source_iteration(e->d_name, &iteration))
            continue;
        char *dir = xasprintf("%s/%s", top, e->d_name);
        if (!has_manifest(dir)) {
            free(dir);
            continue;
        }
        list = xrealloc(list, (size_t)(*n + 1) * sizeof *list);
        list[(*n)++] = dir;
    }
    if (d && errno)                    /* of readdir: some may be missing from the list */
        unreadable(top);
    if (d) {
        closedir(d);
        qsort(list, (size_t)*n, sizeof *list, newest_first);
    }
    free(top);
    return list;
}

/* Whether path is the folder of checkpoints within a run directory. */
static int is_within_run(const char *path)
{
    static const char name[] = "checkpoints";
    size_t n = strlen(path), m = sizeof name - 1;
    int count;
    while (n && path[n - 1] == '/')
        n--;
    if (n < m || strncmp(path + n - m, name, m) || (n > m && path[n - m - 1] != '/'))
        return 0;
    char *run = xasprintf("%s/..", path);
    char **list = source_list(run, &count);
    source_list_free(list, count);
    free(run);
    return count > 0;
}

const char *source_instead(const char *path)
{
    static const struct { const char *file, *words; } known[] = {
        {"config.json", ": it is a Hugging Face directory, of which `train import` makes a checkpoint"},
        {"latest_checkpointed_iteration.txt",
         ": what Megatron-LM saved is read from a Hugging Face directory made of it, by `train import`"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        char *file = xasprintf("%s/%s", path, known[i].file);
        int there = access(file, F_OK) == 0;
        free(file);
        if (there)
            return known[i].words;
    }
    return is_within_run(path) ? ": those in it belong to the run directory, the folder above" : "";
}

char *source_run_id(const char *path)
{
    char *file = xasprintf("%s/run.json", path);
    json_t *run = json_of_file(file);
    const char *id = json_string_value(json_object_get(run, "id"));
    char *copy = id ? xstrdup(id) : NULL;
    json_decref(run);
    free(file);
    return copy;
}

int source_is_foreign(const Source *s, const char *id)
{
    const char *its = json_string_value(json_object_get(s->m.state, "run_id"));
    return id && its && strcmp(id, its);
}

int source_gone(const Source *s, const char *dir)
{
    struct stat st;
    return stat(dir, &st) < 0 ? errno == ENOENT
                              : s->inode && (st.st_dev != s->device || st.st_ino != s->inode);
}

void source_list_free(char **list, int n)
{
    for (int i = 0; i < n; i++)
        free(list[i]);
    free(list);
}

int source_open(Source *s, const char *dir, char why[WHY])
{
    struct stat st;
    errno = 0;
    *s = (Source){.fd = file_open_dir(AT_FDCWD, dir, 0, why)};
    if (s->fd < 0)
        return 0;
    if (fstat(s->fd, &st) == 0)
        s->device = st.st_dev, s->inode = st.st_ino;
    s->dir = xstrdup(dir);
    if (!manifest_open(&s->m, s->fd, why)) {
        source_close(s);
        return 0;
    }
    s->buffer = xcalloc(1, (size_t)HASH_BLOCK);
    s->not_finite = xcalloc((size_t)s->m.ntensor, sizeof *s->not_finite);
    s->shard = xcalloc((size_t)s->m.nshard, sizeof *s->shard);
    for (int i = 0; i < s->m.nshard; i++)
        s->shard[i].fd = -1;
    return 1;
}

void source_close(Source *s)
{
    for (int i = 0; s->shard && i < s->m.nshard; i++)
        st_close(&s->shard[i]);
    free(s->shard);
    free(s->buffer);
    free(s->not_finite);
    free(s->dir);
    manifest_close(&s->m);
    if (s->fd >= 0)
        close(s->fd);
    *s = (Source){.fd = -1, .device = s->device, .inode = s->inode};
}

/* A checkpoint may have more shards than a process may open files: where one more can't be opened, those that
 * are open are closed, and opened again at their next use. Returns whether it is worth to try again. */
static int make_room(Source *s)
{
    if (errno != EMFILE && errno != ENFILE)
        return 0;
    for (int i = 0; i < s->m.nshard; i++)
        st_close(&s->shard[i]);
    errno = 0;
    return 1;
}

int source_check_files(Source *s, char why[WHY])
{
    struct stat st;
    for (int i = 0; i < s->m.nshard; i++) {
        const Shard *f = &s->m.shard[i];
        if (fstatat(s->fd, f->name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            return file_errno(why, "%.100s is missing", f->name);
        if (!S_ISREG(st.st_mode))
            return file_why(why, "%.100s is not a regular file", f->name);
        if (st.st_size != f->bytes)
            return file_why(why, "%.100s has %" PRId64 " bytes, the manifest says %" PRId64 ": it is cut "
                            "short or from another checkpoint", f->name, (int64_t)st.st_size, f->bytes);
    }
    DIR *d = opendir(s->dir);
    if (!d && make_room(s))
        d = opendir(s->dir);
    if (!d)
        return file_errno(why, "cannot list the folder");
    int ok = 1;
    for (struct dirent *e; ok && (e = readdir(d));) {
        const char *dot = strrchr(e->d_name, '.');
        if (dot && !strcmp(dot, ".safetensors") && manifest_shard(&s->m, e->d_name) < 0)
            ok = file_why(why, "%.200s does not belong to this checkpoint: the manifest does not name it",
                          e->d_name);
    }
    closedir(d);
    return ok;
}

/* Opens a shard at first use, and checks its size, its header's hash and its iteration. */
static int open_shard(Source *s, int i, char why[WHY])
{
    const Shard *want = &s->m.shard[i];
    StFile *f = &s->shard[i];
    if (f->fd >= 0)
        return 1;
    if (!st_open(f, s->fd, want->name, 1, why) && !(make_room(s) && st_open(f, s->fd, want->name, 1, why)))
        return 0;
    const char *step = st_meta(f, "iteration");
    int ok = 1;
    if (f->size != want->bytes)
        ok = file_why(why, "%.100s has %" PRId64 " bytes, the manifest says %" PRId64, want->name, f->size,
                      want->bytes);
    else if (step && strtoll(step, NULL, 10) != s->m.iteration)
        ok = file_why(why, "%.100s is from iteration %.20s, this checkpoint is of iteration %" PRId64,
                      want->name, step, s->m.iteration);
    if (ok) {
        char *head = xcalloc(1, (size_t)f->data);
        ok = file_read_at(f->fd, want->name, head, f->data, 0, why);
        if (ok && XXH3_64bits(head, (size_t)f->data) != want->header)
            ok = file_why(why, "the header of %.100s is damaged: its hash is not the manifest's", want->name);
        free(head);
    }
    if (!ok)
        st_close(f);
    return ok;
}

/* Opens all shards at once, as far as the limit on open files lets: an open file stays readable when its name
 * is deleted. */
static int open_shards(Source *s, char why[WHY])
{
    file_limit_raise();
    int ok = 1;
    for (int i = 0; ok && i < s->m.nshard; i++)
        ok = open_shard(s, i, why);
    return ok;
}

int source_of_optimizer(const StoredTensor *t)
{
    const char *end = strrchr(t->name, '.');
    return end && (!strcmp(end, ".master") || !strncmp(end, ".exp_avg", 8));
}

/* Reads all that a model computes with and compares its hashes. */
static int verify_model(Source *s, char why[WHY])
{
    int ok = 1;
    for (int i = 0; ok && i < s->m.ntensor; i++)
        for (int k = 0; ok && !source_of_optimizer(&s->m.tensor[i]) && k < s->m.tensor[i].nbox; k++)
            ok = source_verify_box(s, &s->m.tensor[i], &s->m.tensor[i].box[k], why);
    return ok;
}

/* Opens a checkpoint; whole: bool: reads its model. Returns 1; 0 and a reason: damaged; -1: deleted
 * meanwhile. */
static int try_open(Source *s, const char *dir, int whole, char why[WHY])
{
    char reason[WHY];
    if (source_open(s, dir, reason) && source_check_files(s, reason) && open_shards(s, reason) &&
        (!whole || verify_model(s, reason)))
        return 1;
    source_check_host(dir);
    int gone = source_gone(s, dir);
    file_why(why, "%.200s: %.300s", dir, reason);
    source_close(s);
    return gone ? -1 : 0;
}

/* Which checkpoint open_newest takes. READABLE: the newest that opens; it reads no tensors and says nothing.
 * WHOLE: the newest whose model is whole; it warns of those that it passes over. */
typedef enum { TAKE_NEWEST, TAKE_READABLE, TAKE_WHOLE } Take;

/* As source_open_newest. */
static int open_newest(Source *s, const char *path, Take take, char why[WHY])
{
    char *id = source_run_id(path);
    int ok = -1;
    for (int tries = 0; ok < 0 && tries < SOURCE_TRIES; tries++) {
        int n, foreign = 1;
        char **list = source_list(path, &n);
        ok = n ? 1 : file_why(why, "%s holds no checkpoint%s", path, source_instead(path));
        for (int i = 0; ok > 0 && foreign && i < n; i++) {
            ok = try_open(s, list[i], take == TAKE_WHOLE, why);
            if (!ok && take != TAKE_NEWEST && i + 1 < n) {
                if (take == TAKE_WHOLE)
                    warn("%s; taking the checkpoint before it", why);
                ok = 1;
                continue;
            }
            foreign = ok > 0 && source_is_foreign(s, id);
            if (foreign)
                source_close(s);
        }
        if (ok > 0 && foreign)
            ok = file_why(why, "%s holds checkpoints of other runs only", path);
        source_list_free(list, n);
    }
    free(id);
    return ok > 0;
}

int source_open_newest(Source *s, const char *path, char why[WHY])
{
    return open_newest(s, path, TAKE_NEWEST, why);
}

int source_open_readable(Source *s, const char *path, char why[WHY])
{
    return open_newest(s, path, TAKE_READABLE, why);
}

int source_open_whole(Source *s, const char *path, char why[WHY])
{
    return open_newest(s, path, TAKE_WHOLE, why);
}

/* Rows [row0, row1) and columns [col0, col1) of a box that a region needs, from the start of the box. */
typedef struct { int64_t row0, row1, col0, col1; } Cross;

/* The overlap of box b and a region of the tensor. Returns 0 when they do not meet. */
static int cross(Cross *x, const StoredBox *b, int64_t row0, int64_t col0, int64_t rows, int64_t cols)
{
    int64_t row1 = row0 + rows, col1 = col0 + cols;
    x->row0 = (row0 > b->row0 ? row0 : b->row0) - b->row0;
    x->col0 = (col0 > b->col0 ? col0 : b->col0) - b->col0;
    x->row1 = (row1 < b->row0 + b->rows ? row1 : b->row0 + b->rows) - b->row0;
    x->col1 = (col1 < b->col0 + b->cols ? col1 : b->col0 + b->cols) - b->col0;
    return x->row0 < x->row1 && x->col0 < x->col1;
}

/* The reader's memory. data[0] is element (row0, col0) of the tensor, the first of the region. */
typedef struct { char *data; int64_t row0, col0, ld; Dtype to; } Sink;

/* Copies elements [begin, end) of the box, dense in `block`, into the sink, as far as x needs them. */
static void scatter(const Sink *k, const StoredBox *b, const Cross *x, const char *block, int64_t begin,
                    int64_t end, Dtype from)
{
    int64_t first = begin / b->cols, last = (end - 1) / b->cols;
    for (int64_t r = first > x->row0 ? first : x->row0; r <= last && r < x->row1; r++) {
        int64_t c0 = x->col0, c1 = x->col1, row = r * b->cols;
        c0 = row + c0 < begin ? begin - row : c0;
        c1 = row + c1 > end ? end - row : c1;
        if (c0 < c1)
            convert(k->data + ((b->row0 + r - k->row0) * k->ld + b->col0 + c0 - k->col0) *
                                  (int64_t)dtype_size(k->to),
                    k->to, block + (row + c0 - begin) * (int64_t)dtype_size(from), from, c1 - c0);
    }
}

/* Reads and verifies the blocks of box b that overlap x. k NULL: only verifies. */
static int read_box(Source *s, const StoredTensor *t, const StoredBox *b, const Cross *x, const Sink *k,
                    char why[WHY])
{
    const int64_t size = (int64_t)dtype_size(t->type), bytes = box_bytes(b, t->type);
    const char *file = s->m.shard[b->shard].name;
    char name[BOX_NAME];
    manifest_box_name(name, t->name, b->row0, b->col0, b->rows == t->shape[0] && b->cols == t->shape[1]);
    if (!open_shard(s, b->shard, why))
        return 0;
    const StTensor *st = st_find(&s->shard[b->shard], name);
    if (!st || st->type != (int)t->type || st->bytes != bytes)
        return file_why(why, "%.100s does not hold %.100s as the manifest says", file, name);
    int64_t first = (x->row0 * b->cols + x->col0) * size, end = ((x->row1 - 1) * b->cols + x->col1) * size;
    for (int64_t i = first / HASH_BLOCK; i * HASH_BLOCK < end; i++) {
        int64_t at = i * HASH_BLOCK, n = bytes - at < HASH_BLOCK ? bytes - at : HASH_BLOCK;
        if (!st_read(&s->shard[b->shard], st, at, s->buffer, n, why))
            return 0;
        flight_moved();
        if (XXH3_64bits(s->buffer, (size_t)n) != b->hash[i])
            return file_why(why, "%.100s is damaged: tensor %.100s, bytes %" PRId64 " to %" PRId64
                            " of the file", file, t->name, st->at + at, st->at + at + n);
        if (k)
            scatter(k, b, x, s->buffer, at / size, (at + n) / size, t->type);
        else if (s->not_finite)
            s->not_finite[t - s->m.tensor] += convert_count_not_finite(s->buffer, t->type, n / size);
    }
    return 1;
}

int source_read(Source *s, const StoredTensor *t, int64_t row0, int64_t col0, int64_t rows, int64_t cols,
                void *data, int64_t ld, Dtype to, char why[WHY])
{
    Sink k = {data, row0, col0, ld, to};
    Cross x;
    BUG_ON(row0 < 0 || col0 < 0 || row0 + rows > t->shape[0] || col0 + cols > t->shape[1]);
    for (int i = 0; i < t->nbox; i++)
        if (cross(&x, &t->box[i], row0, col0, rows, cols) && !read_box(s, t, &t->box[i], &x, &k, why))
            return 0;
    return 1;
}

int source_verify_box(Source *s, const StoredTensor *t, const StoredBox *b, char why[WHY])
{
    Cross whole = {0, b->rows, 0, b->cols};
    return read_box(s, t, b, &whole, NULL, why);
}

int source_verify(Source *s, int64_t *bytes, char why[WHY])
{
    if (!source_check_files(s, why))
        return 0;
    if (!open_shards(s, why))
        return 0;
    for (int i = 0; i < s->m.ntensor; i++)
        for (int k = 0; k < s->m.tensor[i].nbox; k++) {
            const StoredBox *b = &s->m.tensor[i].box[k];
            if (!source_verify_box(s, &s->m.tensor[i], b, why))
                return 0;
            if (bytes)
                *bytes += box_bytes(b, s->m.tensor[i].type);
        }
    return 1;
}
