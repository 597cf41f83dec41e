/* train tokenize -- makes a Megatron corpus, PREFIX.bin and PREFIX.idx, of text
 *
 * A file ending in .jsonl, .ndjson or .json, in capitals too, has one JSON object a line, with a document in
 * its field --json-key; a byte-order mark before the first is skipped.
 * Any other file is one document; one with bytes 0 is taken with a warning. A folder stands for the regular
 * files in it and below, sorted by name, without hidden ones. Files that are known to hold no text end the
 * command: packed ones, Parquet, PDF, corpora. The end-of-document token follows each document; empty
 * documents are left out.
 *
 * The pair is written under temporary names (unfinished.h), flushed and renamed when it is complete; it
 * replaces a pair of that name. Of several at once into one PREFIX the last one stays, whole. Ids are u16 if
 * the vocabulary is below 65500, else i32. Input that cannot be read dies with EXIT_DATA and names file and
 * line; a failing write dies with EXIT_RESOURCE. */
#define _GNU_SOURCE
#include "commands.h"
#include "base.h"
#include "file.h"
#include "jsonl.h"
#include "pool.h"
#include "progress.h"
#include "tokenizer.h"
#include "unfinished.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define ITEM ((int64_t)1 << 20)     /* bytes of JSON lines that one thread takes at a time */
#define BATCH (32 * ITEM)           /* bytes read before the threads start; more for a longer line or file */

#define FREE_SPACE "; change: free space where PREFIX is"

/* from: byte of the file at which its text starts; behind the byte-order mark that some write before JSON. */
typedef struct { char *path; int64_t size, from; int json; } Input;

/* Whole documents for one thread: lines of one JSON file, or one text file. */
typedef struct {
    const Input *in;
    const char *text;
    int64_t bytes;
    char *out;                      /* [bytes + 1] tokens as the .bin has them */
    int64_t tokens, lines, empty;   /* tokens written; lines read; documents without a token */
    int binary;                     /* bool: a text file that has bytes 0 */
    int64_t at;                     /* index of the first token in the .bin */
    int32_t *length;                /* [documents] tokens of each document */
    int64_t documents, room;        /* documents; room of length */
    char *why;                      /* what is wrong with the input; NULL: nothing */
} Item;

typedef struct {
    const Tokenizer *tokenizer;
    const char *prefix, *key;
    int append, width, threads;     /* width: bytes of a token in the .bin */
    Input *input;
    int64_t inputs, bytes, done;
    char *bin, *bin_tmp, *idx, *idx_tmp;
    char *lock;                     /* the file that is locked; NULL: none */
    int fd;
    Item *item;                     /* [items] the batch */
    int64_t items, item_room;
    char *text, *out;               /* texts of all items, end to end; their tokens */
    int64_t text_room, out_room;
    struct Scratch { char *text; int32_t *ids; int64_t room; } *scratch;   /* one a thread */
    int32_t *length;                /* [documents] tokens of each document of the corpus */
    int64_t documents, length_room, tokens, empty, binary;
    const char *first_binary;       /* path of the first of `binary` text files that have bytes 0 */
} Job;

/* Removes the lock and dies. */
static _Noreturn void give_up(Job *j, int code, const char *id, char *why)
{
    if (j->lock)
        unlink(j->lock);
    die(code, id, "%s", why);
}

/* Makes room for `need` elements of `one` bytes at p and at least doubles *room when it grows. Returns
 * the memory. */
static void *grow(void *p, int64_t *room, int64_t need, size_t one)
{
    if (need <= *room)
        return p;
    *room = need > 2 * *room ? need : 2 * *room;
    return xrealloc(p, (size_t)*room * one);
}

/* ---- inputs ---- */

/* How files begin that hold no text. */
#define PACKED "a compressed file", "unpack it first"
#define SHARD "an llm.c shard, which is tokens already", "leave it out"
static const struct { const char *magic; size_t bytes; const char *what, *change; } no_text[] = {
    {"\x1f\x8b", 2, PACKED},
    {"\x28\xb5\x2f\xfd", 4, PACKED},
    {"BZh", 3, PACKED},
    {"\xfd" "7zX", 4, PACKED},
    {"PK\3\4", 4, PACKED},
    {"PAR1", 4, "a Parquet file", "write its column of text as JSON lines first"},
    {"%PDF-", 5, "a PDF file", "extract its text first"},
    {"MMIDIDX", 8, "the index of a corpus, which is tokens already", "leave it and its .bin out, and keep -o "
     "PREFIX apart from the texts"},
    {"\x88\xd8\x34\x01", 4, SHARD},        /* 20240520 */
    {"\xa1\xd9\x34\x01", 4, SHARD},        /* 20240801 */
};

static int ends_in(const char *path, const char *end)
{
    size_t n = strlen(path), m = strlen(end);
    return n > m && !strcasecmp(path + n - m, end);
}

/* Whether the file is the .bin of a Megatron pair: nothing in it says so, but its .idx does. */
static int has_index(const char *path)
{
    char why[WHY], h[7] = {0}, *index = ends_in(path, ".bin") ? xstrdup(path) : NULL;
    int64_t size;
    if (!index)
        return 0;
    memcpy(index + strlen(index) - 4, ".idx", 4);
    int fd = file_open(AT_FDCWD, index, 0, &size, why);
    int read = fd >= 0 && size >= (int64_t)sizeof h && file_read_at(fd, index, h, sizeof h, 0, why);
    if (fd >= 0)
        close(fd);
    free(index);
    return read && !memcmp(h, "MMIDIDX", sizeof h);
}

static void add_input(Job *j, const char *path)
{
    char why[WHY], h[8] = {0};
    int64_t size;
    int fd = file_open(AT_FDCWD, path, 0, &size, why);
    if (fd < 0)
        give_up(j, EXIT_DATA, "text", xasprintf("%s; change: name files of text, or folders of them", why));
    int read = file_read_at(fd, path, h, size < 8 ? size : 8, 0, why);
    close(fd);
    for (size_t i = 0; i < sizeof no_text / sizeof *no_text; i++)
        if (read && size >= (int64_t)no_text[i].bytes && !memcmp(h, no_text[i].magic, no_text[i].bytes))
            give_up(j, EXIT_DATA, "text",
                    xasprintf("%s: is %s; change: %s", path, no_text[i].what, no_text[i].change));
    if (has_index(path))
        give_up(j, EXIT_DATA, "text",
                xasprintf("%s: is the tokens of a corpus; change: leave it and its .idx out, and keep -o "
                          "PREFIX apart from the texts", path));
    int json = ends_in(path, ".jsonl") || ends_in(path, ".ndjson") || ends_in(path, ".json");
    j->input = xrealloc(j->input, sizeof *j->input * (size_t)(j->inputs + 1));
    int64_t from = json && read && !memcmp(h, "\xef\xbb\xbf", 3) ? 3 : 0;
    j->input[j->inputs++] = (Input){xstrdup(path), size, from, json};
    j->bytes += size - from;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The names in a folder, [*n] without hidden ones, sorted; all on the heap. */
static char **names_in(Job *j, const char *path, int64_t *n)
{
    char **name = NULL;
    DIR *dir = opendir(path);
    *n = 0;
    for (struct dirent *e; dir && (errno = 0, e = readdir(dir));)
        if (e->d_name[0] != '.') {
            name = xgrow(name, *n, sizeof *name);
            name[(*n)++] = xstrdup(e->d_name);
        }
    if (errno)
        give_up(j, EXIT_DATA, "text", xasprintf("%s: cannot read: %s; change: its permissions, or check the "
                                                "disk", path, strerror(errno)));
    closedir(dir);
    if (*n)
        qsort(name, (size_t)*n, sizeof *name, by_name);
    return name;
}

/* A folder that is being read, and those that it lies in. */
typedef struct Folder { struct stat s; const struct Folder *above; } Folder;

static void add_folder(Job *j, const char *path, const Folder *above)
{
    Folder here = {.above = above};
    struct stat s;
    int64_t n;
    char **name = names_in(j, path, &n);
    if (stat(path, &here.s))
        give_up(j, EXIT_DATA, "text", xasprintf("%s: %s; change: its permissions", path, strerror(errno)));
    for (const Folder *f = above; f; f = f->above)
        if (f->s.st_dev == here.s.st_dev && f->s.st_ino == here.s.st_ino)
            give_up(j, EXIT_DATA, "text",
                    xasprintf("%s: a link to a folder that it lies in; change: remove it", path));
    for (int64_t i = 0; i < n; i++) {
        char *in = xasprintf("%s%s%s", path, path[strlen(path) - 1] == '/' ? "" : "/", name[i]);
        int there = !stat(in, &s);
        if (!there && (errno == ENOENT || errno == ELOOP))
            give_up(j, EXIT_DATA, "text", xasprintf("%s: a link to nothing; change: remove it", in));
        if (!there)
            give_up(j, EXIT_DATA, "text", xasprintf("%s: %s; change: its permissions", in, strerror(errno)));
        if (S_ISDIR(s.st_mode))
            add_folder(j, in, &here);
        else if (S_ISREG(s.st_mode))
            add_input(j, in);
        free(in);
        free(name[i]);
    }
    free(name);
}

/* ---- one item, in a thread ---- */

static void put_ids(const Job *j, Item *it, const int32_t *ids, int64_t n)
{
    if (j->width == 2) {
        uint16_t *out = (uint16_t *)it->out + it->tokens;
        for (int64_t i = 0; i < n; i++)
            out[i] = (uint16_t)ids[i];
    } else {
        memcpy((int32_t *)it->out + it->tokens, ids, 4 * (size_t)n);
    }
    it->tokens += n;
}

static int add_document(const Job *j, Item *it, struct Scratch *s, const char *text, int64_t bytes)
{
    int64_t n = j->tokenizer->encode(j->tokenizer, text, bytes, s->ids);
    if (!n) {
        it->empty++;
        return 1;
    }
    if (j->append)
        s->ids[n++] = j->tokenizer->eod;
    if (n > INT32_MAX) {
        it->why = xasprintf("a document of %ld tokens, at most 2^31-1 fit; change: cut it", n);
        return 0;
    }
    put_ids(j, it, s->ids, n);
    it->length = grow(it->length, &it->room, it->documents + 1, 4);
    it->length[it->documents++] = (int32_t)n;
    return 1;
}

static int blank(const char *p, int64_t n)
{
    while (n > 0 && (*p == ' ' || *p == '\t' || *p == '\r'))
        p++, n--;
    return !n;
}

static void encode_lines(const Job *j, Item *it, struct Scratch *s)
{
    const char *what;
    for (const char *p = it->text, *end = p + it->bytes, *eol; p < end; p = eol + 1) {
        eol = memchr(p, '\n', (size_t)(end - p));
        eol = eol ? eol : end;
        it->lines++;
        if (blank(p, eol - p))
            continue;
        int64_t n = jsonl_text(p, eol - p, j->key, s->text, &what);
        if (n < 0)
            it->why = xasprintf("%s; change: one JSON object a line, its text in \"%s\" (--json-key)", what,
                                j->key);
        if (n < 0 || !add_document(j, it, s, s->text, n))
            return;
    }
}

static void encode_item(void *ctx, int64_t i, int thread)
{
    Job *j = ctx;
    Item *it = &j->item[i];
    struct Scratch *s = &j->scratch[thread];
    if (it->bytes + 1 > s->room) {
        s->room = it->bytes + 1;
        s->text = xrealloc(s->text, (size_t)s->room);
        s->ids = xrealloc(s->ids, 4 * (size_t)s->room);
    }
    if (it->in->json) {
        encode_lines(j, it, s);
        return;
    }
    it->binary = it->bytes && memchr(it->text, 0, (size_t)it->bytes);
    add_document(j, it, s, it->text, it->bytes);
}

static void write_item(void *ctx, int64_t i, int thread)
{
    Job *j = ctx;
    Item *it = &j->item[i];
    char why[WHY];
    (void)thread;
    if (!file_write_at(j->fd, j->bin_tmp, it->out, it->tokens * j->width, it->at * j->width, why))
        it->why = xstrdup(why);
}

/* ---- batches ---- */

/* Adds an item of `bytes` to the batch; its text lies at j->text + at. */
static void add_item(Job *j, const Input *in, int64_t at, int64_t bytes)
{
    j->item = grow(j->item, &j->item_room, j->items + 1, sizeof *j->item);
    j->item[j->items++] = (Item){.in = in, .at = at, .bytes = bytes};
}

/* Encodes and writes the items. lines: lines of the JSON file before them; returns that number after
 * them. */
static int64_t run_batch(Job *j, Pool *pool, int64_t lines)
{
    char *out;
    int64_t total = 0;
    for (int64_t i = 0; i < j->items; i++)
        total += j->item[i].bytes + 1;
    j->out = out = grow(j->out, &j->out_room, total * j->width, 1);
    for (int64_t i = 0; i < j->items; i++) {
        j->item[i].text = j->text + j->item[i].at;
        j->item[i].out = out;
        out += (j->item[i].bytes + 1) * j->width;
    }
    pool_run(pool, encode_item, j, j->items);
    for (int64_t i = 0; i < j->items; lines += j->item[i++].lines) {
        Item *it = &j->item[i];
        if (it->why && it->in->json)
            give_up(j, EXIT_DATA, "text", xasprintf("%s:%ld: %s", it->in->path, lines + it->lines, it->why));
        if (it->why)
            give_up(j, EXIT_DATA, "text", xasprintf("%s: %s", it->in->path, it->why));
        it->at = j->tokens;
        j->tokens += it->tokens;
        j->empty += it->empty;
        j->first_binary = it->binary && !j->binary ? it->in->path : j->first_binary;
        j->binary += it->binary;
        j->done += it->bytes;
        j->length = grow(j->length, &j->length_room, j->documents + it->documents, 4);
        if (it->documents)
            memcpy(j->length + j->documents, it->length, 4 * (size_t)it->documents);
        j->documents += it->documents;
        free(it->length);
    }
    pool_run(pool, write_item, j, j->items);
    for (int64_t i = 0; i < j->items; i++)
        if (j->item[i].why)
            give_up(j, EXIT_RESOURCE, "disk", xasprintf("%s" FREE_SPACE, j->item[i].why));
    j->items = 0;
    if (j->bytes)
        progress_bar("tokenize", j->done, j->bytes, "B");
    return lines;
}

static void read_into(Job *j, const Input *in, int fd, int64_t at, int64_t bytes, int64_t from)
{
    char why[WHY];
    j->text = grow(j->text, &j->text_room, at + bytes, 1);
    if (!file_read_at(fd, in->path, j->text + at, bytes, from, why))
        give_up(j, EXIT_DATA, "text", xasprintf("%s; change: check the file", why));
}

static int open_input(Job *j, const Input *in)
{
    char why[WHY];
    int64_t size;
    int fd = file_open(AT_FDCWD, in->path, 0, &size, why);
    if (fd < 0 || size != in->size)
        give_up(j, EXIT_DATA, "text", fd < 0 ? xasprintf("%s; change: check the file", why)
                                             : xasprintf("%s: has changed; change: run again", in->path));
    return fd;
}

/* Reads a JSON file in batches of whole lines; a batch without the end of a line grows until it has
 * one. */
static void run_json(Job *j, Pool *pool, const Input *in)
{
    int fd = open_input(j, in);
    int64_t lines = 0, kept = 0, from = in->from, want = BATCH;
    while (from < in->size || kept > 0) {
        int64_t more = in->size - from < want - kept ? in->size - from : want - kept, end = kept + more;
        read_into(j, in, fd, kept, more, from);
        from += more;
        const char *last = memrchr(j->text, '\n', (size_t)end);
        int64_t whole = from == in->size ? end : last ? last + 1 - j->text : 0;
        for (int64_t at = 0, cut; at < whole; at = cut) {
            const char *nl = NULL;
            if (whole - at > ITEM)
                nl = memchr(j->text + at + ITEM, '\n', (size_t)(whole - at - ITEM));
            cut = nl ? nl + 1 - j->text : whole;
            add_item(j, in, at, cut - at);
        }
        kept = end - whole;
        want = whole ? BATCH : 2 * want;
        if (!whole)
            continue;
        lines = run_batch(j, pool, lines);
        memmove(j->text, j->text + whole, (size_t)kept);
    }
    close(fd);
}

/* Reads text files [from, to), as many as fit into a batch at a time. */
static void run_text(Job *j, Pool *pool, int64_t from, int64_t to)
{
    int64_t at = 0;
    for (int64_t i = from; i < to; i++) {
        const Input *in = &j->input[i];
        int fd = open_input(j, in);
        read_into(j, in, fd, at, in->size, 0);
        close(fd);
        add_item(j, in, at, in->size);
        at += in->size;
        if (at >= BATCH || i + 1 == to) {
            run_batch(j, pool, 0);
            at = 0;
        }
    }
}

/* ---- the pair ---- */

/* The .idx, which is written in pieces. */
typedef struct {
    int fd, ok;                     /* ok, bool: nothing has failed so far */
    size_t n;
    char piece[1 << 16];
} Index;

static void put(Index *x, const void *p, size_t bytes)
{
    for (size_t part; bytes; bytes -= part, p = (const char *)p + part) {
        if (x->n == sizeof x->piece) {
            x->ok = x->ok && file_append(x->fd, x->piece, x->n);
            x->n = 0;
        }
        part = sizeof x->piece - x->n < bytes ? sizeof x->piece - x->n : bytes;
        memcpy(x->piece + x->n, p, part);
        x->n += part;
    }
}

static int write_index(const Job *j, int fd)
{
    static const char magic[9] = "MMIDIDX";
    static Index x;
    const unsigned char type = j->width == 2 ? 8 : 4;
    int64_t version = 1, n = j->documents, entries = n + 1, end = 0;
    x = (Index){.fd = fd, .ok = 1};
    put(&x, magic, 9);
    put(&x, &version, 8);
    put(&x, &type, 1);
    put(&x, &n, 8);
    put(&x, &entries, 8);
    put(&x, j->length, 4 * (size_t)n);
    for (int64_t i = 0; i < n; end += (int64_t)j->width * j->length[i++])
        put(&x, &end, 8);
    for (int64_t i = 0; i <= n; i++)
        put(&x, &i, 8);
    return x.ok && file_append(fd, x.piece, x.n);
}

static _Noreturn void no_commit(Job *j, const char *what)
{
    give_up(j, EXIT_RESOURCE, "disk",
            xasprintf("%s: %s: %s; change: PREFIX", j->prefix, what, strerror(errno)));
}

/* Waits until no other process renames files of PREFIX. The lock ends with its process. Its owner removes
 * the file PREFIX.lock: whoever waited for it then opens a new one. */
static int lock_names(Job *j)
{
    char *path = xasprintf("%s.lock", j->prefix);
    struct stat s;
    for (int fd;; close(fd)) {
        do
            fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
        while (fd < 0 && errno == EINTR);
        int r = fd < 0 ? -1 : flock(fd, LOCK_EX);
        if (r < 0 && fd >= 0 && errno == EINTR)
            continue;
        if (r < 0 || fstat(fd, &s))
            no_commit(j, "cannot lock PREFIX.lock");
        if (s.st_nlink) {
            j->lock = path;
            return fd;
        }
    }
}

/* Renames the files. An old .idx is removed first and the new one comes last, each of these steps on the disk
 * before the next, so that at no time a .bin and an .idx lie there that do not belong together. */
static void rename_pair(Job *j, int dir)
{
    char why[WHY];
    if (unlink(j->idx) && errno != ENOENT)
        no_commit(j, "cannot remove the old .idx");
    int ok = file_sync_dir(dir, j->prefix, why);
    if (ok && rename(j->bin_tmp, j->bin))
        no_commit(j, "cannot rename the .bin");
    ok = ok && file_sync_dir(dir, j->prefix, why);
    if (ok && rename(j->idx_tmp, j->idx))
        no_commit(j, "cannot rename the .idx");
    if (!ok || !file_sync_dir(dir, j->prefix, why))
        give_up(j, EXIT_RESOURCE, "disk", xasprintf("%s; change: PREFIX", why));
}

static void commit(Job *j)
{
    char why[WHY];
    if (!file_sync_close(j->fd, j->bin_tmp, why))
        give_up(j, EXIT_RESOURCE, "disk", xasprintf("%s" FREE_SPACE, why));
    int fd = file_create(AT_FDCWD, j->idx_tmp, 1, why);
    if (fd >= 0 && !write_index(j, fd)) {
        file_errno(why, "%s: cannot write", j->idx_tmp);
        close(fd);
        fd = -1;
    }
    if (fd < 0 || !file_sync_close(fd, j->idx_tmp, why))
        give_up(j, EXIT_RESOURCE, "disk", xasprintf("%s" FREE_SPACE, why));
    char *dir = file_parent(j->prefix);
    int folder = file_open_dir(AT_FDCWD, dir, 0, why);
    if (folder < 0)
        give_up(j, EXIT_RESOURCE, "disk", xasprintf("%s; change: PREFIX", why));
    int locked = lock_names(j);
    unfinished_commit();               /* signals come too late: the pair is whole in a moment */
    rename_pair(j, folder);
    unlink(j->lock);
    unfinished_end();
    close(locked);
    close(folder);
    free(dir);
}

/* Creates the folder of PREFIX. */
static int make_folder(const Job *j, char why[WHY])
{
    char *dir = file_parent(j->prefix);
    int ok = file_make_dirs(dir, why);
    free(dir);
    return ok;
}

static void open_output(Job *j)
{
    char why[WHY];
    uint64_t drawn = file_random();
    j->bin = xasprintf("%s.bin", j->prefix);
    j->idx = xasprintf("%s.idx", j->prefix);
    j->bin_tmp = unfinished_name(j->bin, drawn);
    j->idx_tmp = unfinished_name(j->idx, drawn);
    unfinished_add(j->bin_tmp);
    unfinished_add(j->idx_tmp);
    j->fd = make_folder(j, why) ? file_create(AT_FDCWD, j->bin_tmp, 1, why) : -1;
    if (j->fd < 0)
        give_up(j, EXIT_RESOURCE, "disk", xasprintf("%s; change: give -o PREFIX in a folder that is there "
                                                    "and that you may write to", why));
}

/* What to write for an argument that the command has not; Megatron-LM's preprocess_data has some of these. */
static const char *in_place_of(const char *flag)
{
    static const char *const others[][2] = {
        {"--input", "texts are named without a flag"},
        {"--output-prefix", "-o PREFIX"},
        {"--json-keys", "--json-key KEY, the field of the text; a corpus holds one field"},
        {"--append-eod", "leave it out: it is what happens without --no-append-eod"},
        {"--workers", "--threads N"},
        {"--tokenizer-type", "--tokenizer byte"},
        {"-", "the path of a file; write what comes through a pipe to one first"},
    };
    size_t n = strcspn(flag, "=");
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strlen(others[i][0]) == n && !strncmp(flag, others[i][0], n))
            return others[i][1];
    return "see `train help tokenize`";
}

static void parse(Job *j, int argc, char **argv)
{
    Args a = cli_open("tokenize", argc, argv);
    const char *name = args_value(&a, "--tokenizer"), *key = args_value(&a, "--json-key");
    j->prefix = args_value(&a, "-o");
    j->key = key ? key : "text";
    double threads = args_number(&a, "--threads");
    j->threads = isnan(threads) ? pool_cores() : (int)threads;
    j->append = !args_switch(&a, "--no-append-eod");
    for (int i = 0; i < a.n; i++)
        if (a.v[i][0] == '-')
            die(EXIT_CONFIG, "usage", "train tokenize: unexpected argument `%s`; change: %s", a.v[i],
                in_place_of(a.v[i]));
    if (!j->prefix || !a.n)
        die(EXIT_CONFIG, "usage", "train tokenize: %s; change: train tokenize IN... -o PREFIX",
            a.n ? "no -o PREFIX" : "nothing to read");
    const char *file = strrchr(j->prefix, '/') ? strrchr(j->prefix, '/') + 1 : j->prefix;
    if (!*file || !strcmp(file, ".") || !strcmp(file, ".."))
        die(EXIT_CONFIG, "usage", "train tokenize: -o %s names no files; change: -o PREFIX, for PREFIX.bin "
            "and PREFIX.idx", j->prefix);
    if (!(j->tokenizer = tokenizer_named(name ? name : "byte")))
        die(EXIT_CONFIG, "usage", "train tokenize: no tokenizer is named %s; change: --tokenizer byte", name);
    for (int i = 0; i < a.n; i++) {
        struct stat s;
        if (!stat(a.v[i], &s) && S_ISDIR(s.st_mode))
            add_folder(j, a.v[i], NULL);
        else
            add_input(j, a.v[i]);
    }
    free(a.v);
}

int command_tokenize(int argc, char **argv)
{
    static Job job;                    /* it lives as long as the process */
    Job *j = &job;
    double start = now();
    parse(j, argc, argv);
    j->width = j->tokenizer->vocab < 65500 ? 2 : 4;
    j->scratch = xcalloc((size_t)j->threads, sizeof *j->scratch);
    open_output(j);
    Pool *pool = pool_open(j->threads);
    if (j->bytes)
        progress_bar("tokenize", 0, j->bytes, "B");
    for (int64_t i = 0, next; i < j->inputs; i = next) {
        next = i + 1;
        if (j->input[i].json) {
            run_json(j, pool, &j->input[i]);
            continue;
        }
        while (next < j->inputs && !j->input[next].json)
            next++;
        run_text(j, pool, i, next);
    }
    pool_close(pool);
    if (!j->documents)
        give_up(j, EXIT_DATA, "text",
                xasprintf("%ld files hold no text; change: name files with text in them", j->inputs));
    commit(j);
    if (j->binary)
        warn("%ld file%s bytes 0, which text has not (pictures, programs and UTF-16 have), and %s in the "
             "corpus byte for byte; the first: %s; change: nothing if it is meant so, else name texts",
             j->binary, j->binary == 1 ? " has" : "s have", j->binary == 1 ? "is" : "are", j->first_binary);
    double seconds = now() - start;
    printf("%s.bin, %s.idx: %ld document%s, %ld tokens (%s, %s) from %ld file%s, ", j->prefix, j->prefix,
           j->documents, j->documents == 1 ? "" : "s", j->tokens, j->tokenizer->name,
           j->width == 2 ? "u16" : "i32", j->inputs, j->inputs == 1 ? "" : "s");
    double mb = 1e-6 * (double)j->bytes;
    printf("%.1f MB in %.1f s, %.0f MB/s", mb, seconds, mb / seconds);
    if (j->empty)
        printf("; %ld empty document%s left out", j->empty, j->empty == 1 ? "" : "s");
    printf("\n");
    return EXIT_DONE;
}
