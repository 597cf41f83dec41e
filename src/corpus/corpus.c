/* corpus -- token files: opened, checked, read by position */
#define _GNU_SOURCE
#include "corpus.h"
#include "base.h"
#include "file.h"
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK ((int64_t)1 << 20)          /* bytes of one sequential read */
#define PIECE ((int64_t)1 << 30)          /* tokens: longest sequence of a stream; offsets are < 2^31 */
#define IDX_HEAD 34                       /* bytes of the .idx before its lengths */
#define SHARD_HEAD 1024                   /* bytes of an llm.c shard before its tokens */
#define REMAKE "; change: make the pair again"

int fail(char **why, const char *fmt, ...)
{
    char text[4096];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    *why = xstrdup(text);
    return 0;
}

static int type_bytes(TokenType t) { return t == TOKEN_U8 ? 1 : t == TOKEN_U16 ? 2 : 4; }

const char *corpus_type_name(TokenType t)
{
    return t == TOKEN_U8 ? "u8" : t == TOKEN_U16 ? "u16" : t == TOKEN_I32 ? "i32" : "u32";
}

const char *corpus_sequence_name(const Corpus *c)
{
    return c->documents == c->sequences ? "document" : "sequence";
}

/* ---- one file ---- */

static int64_t stamp(const struct stat *s) { return s->st_mtim.tv_sec * 1000000000 + s->st_mtim.tv_nsec; }

static int token_open(TokenFile *f, const char *path, char **why)
{
    struct stat s;
    char text[WHY];
    int64_t size;
    int fd = file_open(AT_FDCWD, path, 0, &size, text);
    *f = (TokenFile){.fd = fd};
    if (fd < 0 && (errno == EMFILE || errno == ENFILE))
        die(EXIT_RESOURCE, "data", "%s; change: raise the limit on open files (ulimit -Hn), since every "
            "file of a corpus stays open, or tokenize into fewer corpora", text);
    if (fd < 0)
        return fail(why, "%s; change: correct the path or the file's permissions", text);
    *f = (TokenFile){.path = xstrdup(path), .fd = fd, .size = size, .changed = fstat(fd, &s) ? 0 : stamp(&s)};
    return 1;
}

static void token_close(TokenFile *f)
{
    if (f->fd >= 0)
        close(f->fd);
    free(f->path);
    *f = (TokenFile){.fd = -1};
}

static int token_unchanged(const TokenFile *f, char **why)
{
    struct stat s;
    const char *what = NULL;
    if (f->fd < 0)
        return 1;
    if (fstat(f->fd, &s))
        what = strerror(errno);
    else if (!s.st_nlink)
        what = "was deleted or replaced";
    else if (s.st_size != f->size)
        what = s.st_size < f->size ? "was truncated" : "has grown";
    else if (stamp(&s) != f->changed)
        what = "was written to";
    return !what || fail(why, "%s: %s since the run opened it; change: restore it and resume", f->path, what);
}

static int token_bytes(const TokenFile *f, void *to, int64_t at, int64_t bytes, char **why)
{
    char text[WHY];
    return file_read_at(f->fd, f->path, to, bytes, at, text) ||
           fail(why, "%s; change: restore the file, or check the disk or the network mount", text);
}

/* ---- opening ---- */

static uint64_t u64_at(const void *p) { uint64_t v; memcpy(&v, p, 8); return v; }
static uint32_t u32_at(const void *p) { uint32_t v; memcpy(&v, p, 4); return v; }

#define PEEK 64                     /* bytes that a file is known by */
#define RAW_TOKENS "raw tokens, such as a .bin"

/* Whether the first n bytes are numbers of 32 bits below 2^16, and not all of them 0. */
static int looks_wide(const unsigned char *h, int64_t n)
{
    uint32_t high = 0, low = 0;
    for (int64_t i = 0; i + 4 <= n; i += 4) {
        high |= u32_at(h + i) >> 16;
        low |= u32_at(h + i);
    }
    return n >= 32 && !high && low;
}

/* Whether the first n bytes are UTF-8 without control characters. The last character may be cut. */
static int is_text(const unsigned char *h, int64_t n)
{
    json_t *t = NULL;
    for (int64_t i = 0; i < n; i++)
        if (h[i] < 32 && h[i] != '\n' && h[i] != '\t' && h[i] != '\r')
            return 0;
    for (int64_t cut = 0; !t && cut < 4 && cut < n; cut++)
        t = json_stringn((const char *)h, (size_t)(n - cut));
    json_decref(t);
    return t != NULL;
}

/* Returns what a file seems to be, from its first n bytes, for a message. */
static const char *looks_like(const unsigned char *h, int64_t n)
{
    if (n >= 9 && !memcmp(h, "MMIDIDX\0\0", 9))
        return "a Megatron .idx file";
    if (n >= 6 && !memcmp(h, "TNTIDX", 6))
        return "a fairseq index (TNTIDX), a dead format: tokenize the text again with `train tokenize`";
    if (n >= 4 && (u32_at(h) == 20240520 || u32_at(h) == 20240801))
        return "an llm.c token shard";
    if (n >= 4 && u32_at(h) == 20240522)
        return "an llm.c evaluation file, not tokens";
    if (n >= 4 && (u32_at(h) == 20240326 || u32_at(h) == 20240327))
        return "an llm.c model file, not tokens";
    if (n >= 4 && !memcmp(h, "\x1f\x8b\x08", 3) && h[3] < 32)       /* the only method; its flags */
        return "a gzip file: unpack it first";
    if (n >= 4 && !memcmp(h, "\x28\xb5\x2f\xfd", 4))
        return "a zstd file: unpack it first";
    if (n >= 6 && !memcmp(h, "\x93NUMPY", 6))
        return "a NumPy array";
    return is_text(h, n) ? "text: tokenize it first with `train tokenize`" : RAW_TOKENS;
}

/* Reads the first *n bytes of a file into h; *n is at most PEEK. */
static int peek(const TokenFile *f, unsigned char h[PEEK], int64_t *n, char **why)
{
    *n = f->size < PEEK ? f->size : PEEK;
    return token_bytes(f, h, 0, *n, why);
}

/* Checks the header of the .idx and its counts against the file's size. */
static int idx_header(Corpus *c, char **why)
{
    TokenFile *x = &c->index, *bin = &c->file[0];
    unsigned char h[PEEK];
    int64_t n, s, d, need;
    if (!peek(x, h, &n, why))
        return 0;
    if (x->size < 9)
        return fail(why, "%s: needs at least %d bytes, has %ld" REMAKE, x->path, IDX_HEAD, x->size);
    if (memcmp(h, "MMIDIDX\0\0", 9))
        return fail(why, "%s: does not start with MMIDIDX as a Megatron index; it looks like %s; change: "
                    "data_path", x->path, looks_like(h, n));
    if (n < IDX_HEAD)
        return fail(why, "%s: needs at least %d bytes, has %ld" REMAKE, x->path, IDX_HEAD, x->size);
    if (u64_at(h + 9) != 1)
        return fail(why, "%s: index version %lu, only 1 is known" REMAKE, x->path, u64_at(h + 9));
    static const char *const other[] = {"none", "u8", "i8", "i16", "i32", "i64", "f64", "f32", "u16"};
    if (h[17] != TOKEN_U8 && h[17] != TOKEN_U16 && h[17] != TOKEN_I32)
        return fail(why, "%s: dtype code %d (%s) is not one of token ids: 1 u8, 8 u16, 4 i32; change: "
                    "tokenize into one of these", x->path, h[17], h[17] < 9 ? other[h[17]] : "unknown");
    bin->type = h[17];
    if (u64_at(h + 18) > INT64_MAX || u64_at(h + 26) > INT64_MAX ||
        __builtin_mul_overflow(s = (int64_t)u64_at(h + 18), 12, &need) ||
        __builtin_mul_overflow(d = (int64_t)u64_at(h + 26), 8, &n) ||
        __builtin_add_overflow(need, n, &need) || __builtin_add_overflow(need, IDX_HEAD + s, &n))
        return fail(why, "%s: its header names %lu sequences and %lu documents, too many for a file" REMAKE,
                    x->path, u64_at(h + 18), u64_at(h + 26));
    need += IDX_HEAD;
    if (x->size != need && x->size != need + s)   /* s: multimodal files have one mode byte a sequence */
        return fail(why, "%s: needs %ld bytes for %ld sequences, has %ld" REMAKE, x->path, need, s, x->size);
    if (s > INT32_MAX || d < 1)
        return fail(why, "%s: %ld sequences and %ld document entries; at most 2^31-1 and at least 1" REMAKE,
                    x->path, s, d);
    c->sequences = s;
    c->documents = d - 1;
    return 1;
}

/* Checks every length and pointer of the .idx. Writers lay sequences end to end: anything else is a
 * damaged file, or a .bin and an .idx that do not belong together. */
static int idx_sequences(Corpus *c, char **why)
{
    TokenFile *x = &c->index, *bin = &c->file[0];
    int64_t rows = c->sequences < BLOCK / 12 ? c->sequences + 1 : BLOCK / 12, end = 0,
            width = type_bytes(bin->type);
    int32_t *length = xcalloc((size_t)rows, 4);
    int64_t *at = xcalloc((size_t)rows, 8);
    int ok = 1;
    for (int64_t i = 0; ok && i < c->sequences; i += rows) {
        int64_t n = c->sequences - i < rows ? c->sequences - i : rows;
        ok = token_bytes(x, length, IDX_HEAD + 4 * i, 4 * n, why) &&
             token_bytes(x, at, IDX_HEAD + 4 * c->sequences + 8 * i, 8 * n, why);
        for (int64_t k = 0; ok && k < n; k++) {
            if (length[k] < 0)
                ok = fail(why, "%s: sequence %ld has length %d" REMAKE, x->path, i + k, length[k]);
            else if (at[k] != end)
                ok = fail(why, "%s: sequence %ld starts at byte %ld of the .bin, but the one before it "
                          "ends at %ld" REMAKE, x->path, i + k, at[k], end);
            else if (length[k] > (bin->size - end) / width)
                ok = fail(why, "%s: needs %ld bytes for sequence %ld of its index, has %ld: it was truncated"
                          REMAKE, bin->path, end + (int64_t)length[k] * width, i + k, bin->size);
            else
                end += (int64_t)length[k] * width;
            c->longest = ok && length[k] > c->longest ? length[k] : c->longest;
        }
    }
    if (ok && end != bin->size)
        ok = fail(why, "%s: has %ld bytes, its index names %ld: the two files do not belong together" REMAKE,
                  bin->path, bin->size, end);
    bin->tokens = c->tokens = end / width;
    free(length);
    free(at);
    return ok;
}

/* Checks the document entries of the .idx: from 0 to `sequences`, none below the one before it. */
static int idx_documents(Corpus *c, char **why)
{
    int64_t d = c->documents + 1, rows = d < BLOCK / 8 ? d : BLOCK / 8, before = 0,
            from = IDX_HEAD + 12 * c->sequences;
    int64_t *doc = xcalloc((size_t)rows, 8);
    int ok = 1;
    for (int64_t i = 0; ok && i < d; i += rows) {
        int64_t n = d - i < rows ? d - i : rows;
        ok = token_bytes(&c->index, doc, from + 8 * i, 8 * n, why);
        for (int64_t k = 0; ok && k < n; before = doc[k++])
            if (doc[k] < before || doc[k] > c->sequences || (i + k == 0 && doc[k]) ||
                (i + k == d - 1 && doc[k] != c->sequences))
                ok = fail(why, "%s: document entry %ld is %ld after %ld; entries go from 0 to %ld" REMAKE,
                          c->index.path, i + k, doc[k], before, c->sequences);
    }
    free(doc);
    return ok;
}

static int open_megatron(Corpus *c, const char *prefix, char **why)
{
    char *idx = xasprintf("%s.idx", prefix), *bin = xasprintf("%s.bin", prefix);
    c->kind = "megatron";
    c->files = 1;
    int ok = token_open(&c->index, idx, why) && token_open(&c->file[0], bin, why) && idx_header(c, why) &&
             idx_sequences(c, why) && idx_documents(c, why);
    free(idx);
    free(bin);
    return ok;
}

/* Adds one file to a stream. */
static int open_stream(Corpus *c, const char *path, int raw, char **why)
{
    c->file = xrealloc(c->file, sizeof *c->file * (size_t)(c->files + 1));
    TokenFile *f = &c->file[c->files];
    unsigned char h[PEEK] = {0};
    if (!token_open(f, path, why))
        return 0;
    c->files++;
    int64_t n, count;
    if (!peek(f, h, &n, why))
        return 0;
    if (raw) {
        f->type = TOKEN_U16;
        count = f->size / 2;
        const char *seems = looks_like(h, n);
        if (n >= 9 && (!memcmp(h, "MMIDIDX\0\0", 9) || u32_at(h) == 20240520 || u32_at(h) == 20240801))
            return fail(why, "%s: looks like %s; change: drop `raw:`", path, seems);
        if (n == PEEK && strcmp(seems, RAW_TOKENS))
            return fail(why, "%s: looks like %s; change: name a file of bare u16 tokens", path, seems);
        if (looks_wide(h, n))
            return fail(why, "%s: looks like tokens of 32 bits: every second u16 is 0; change: write them as "
                        "u16, or as an llm.c shard", path);
        if (f->size % 2)
            return fail(why, "%s: has %ld bytes, an odd number, so not u16 tokens; change: correct the path",
                        path, f->size);
    } else {
        uint32_t magic = n >= 12 ? u32_at(h) : 0, version = u32_at(h + 4);
        f->start = SHARD_HEAD;
        count = (int32_t)u32_at(h + 8);
        if (magic != 20240520 && magic != 20240801)
            return fail(why, "%s: has no .idx beside it and no llm.c header; it looks like %s; change: name "
                        "a corpus, or write raw:%s if these are bare u16 tokens", path, looks_like(h, n),
                        path);
        if (version != (magic == 20240520 ? 1 : 7))
            return fail(why, "%s: llm.c shard %u of version %u; known are 20240520 version 1 and 20240801 "
                        "version 7; change: make the shard again", path, magic, version);
        f->type = magic == 20240520 ? TOKEN_U16 : TOKEN_U32;
        int64_t need = SHARD_HEAD + count * type_bytes(f->type);
        if (count < 0 || f->size != need)
            return fail(why, "%s: needs %ld bytes for %ld tokens, has %ld; change: make the shard "
                        "again", path, need, count, f->size);
    }
    f->tokens = count;
    c->tokens += count;
    c->documents++;
    c->longest = count > c->longest ? count : c->longest;
    return 1;
}

static int exists(const char *prefix, const char *tail)
{
    struct stat s;
    char *path = xasprintf("%s%s", prefix, tail);
    int yes = !stat(path, &s);
    free(path);
    return yes;
}

/* Returns the prefix of the megatron pair that a spec names, on the heap; NULL: it names none. */
static char *pair_prefix(const char *spec)
{
    size_t n = strlen(spec);
    char *prefix = xstrdup(spec);
    if (exists(spec, ".idx") || exists(spec, ".bin"))
        return prefix;
    if (n > 4 && (!strcmp(spec + n - 4, ".idx") || !strcmp(spec + n - 4, ".bin"))) {
        prefix[n - 4] = 0;
        if (exists(prefix, ".idx") && exists(prefix, ".bin"))
            return prefix;
    }
    free(prefix);
    return NULL;
}

int corpus_is_stream(const char *spec)
{
    char *prefix = pair_prefix(spec);
    int stream = !prefix && (!strncmp(spec, "raw:", 4) || strpbrk(spec, "*?[") || exists(spec, ""));
    free(prefix);
    return stream;
}

/* Whether spec is a weight and more behind it, as Megatron-LM's command line has them. */
static int starts_with_weight(const char *spec)
{
    char *end;
    strtod(spec, &end);
    return end > spec && *end == ' ';
}

static int open_streams(Corpus *c, const char *spec, char **why)
{
    int raw = !strncmp(spec, "raw:", 4), ok = 1;
    const char *pattern = spec + (raw ? 4 : 0), *kind = raw ? "raw" : "llm.c";
    if (c->kind && strcmp(c->kind, kind))
        return fail(why, "%s: %s and %s files cannot form one stream; change: give them weights", spec,
                    c->kind, kind);
    c->kind = kind;
    if (!raw && !exists(spec, "") && errno == ENOENT && !strpbrk(pattern, "*?["))
        return starts_with_weight(spec)
                   ? fail(why, "%s: No such file or directory; change: weights and paths as a list, "
                          "[0.3, a, 0.7, b]", spec)
                   : fail(why, "%s: No such file or directory, and no %s.bin with its %s.idx; change: "
                          "correct the path, or make the corpus: `train tokenize TEXT -o %s`", spec, spec,
                          spec, spec);
    if (exists(pattern, "") || !strpbrk(pattern, "*?["))
        return open_stream(c, pattern, raw, why);
    glob_t g;
    int rc = glob(pattern, GLOB_ERR, NULL, &g);
    if (rc == GLOB_NOMATCH)
        return fail(why, "%s: the pattern matches no file; change: correct the path", spec);
    if (rc)
        return fail(why, "%s: cannot expand the pattern: %s; change: correct the path or permissions", spec,
                    rc == GLOB_ABORTED ? strerror(errno) : "out of memory");
    for (size_t i = 0; ok && i < g.gl_pathc; i++)
        ok = open_stream(c, g.gl_pathv[i], raw, why);
    globfree(&g);
    return ok;
}

Corpus *corpus_open(int specs, const char *const *spec, char **why)
{
    Corpus *c = xcalloc(1, sizeof *c);
    *why = NULL;
    file_limit_raise();
    c->name = xstrdup(spec[0]);
    c->file = xcalloc(1, sizeof *c->file);
    c->file[0].fd = c->index.fd = -1;
    int ok = 1;
    for (int i = 0; ok && i < specs; i++) {
        char *prefix = pair_prefix(spec[i]);
        if (prefix && specs > 1)
            ok = fail(why, "%s: a Megatron pair cannot be part of a stream; change: give weights", spec[i]);
        else
            ok = prefix ? open_megatron(c, prefix, why) : open_streams(c, spec[i], why);
        free(prefix);
    }
    if (ok && !c->tokens)
        ok = fail(why, "%s: holds no tokens; change: name a corpus with text in it", c->name);
    if (!ok) {
        corpus_close(c);
        return NULL;
    }
    return c;
}

void corpus_close(Corpus *c)
{
    for (int i = 0; i < c->files; i++)
        token_close(&c->file[i]);
    token_close(&c->index);
    free(c->file);
    free(c->name);
    free(c);
}

int corpus_unchanged(const Corpus *c, char **why)
{
    for (int i = 0; i < c->files; i++) {
        if (!c->file[i].read)
            continue;
        c->file[i].read = 0;
        if (!token_unchanged(&c->file[i], why) || !token_unchanged(&c->index, why))
            return 0;
    }
    return 1;
}

/* ---- windows ---- */

static void stream_pieces(Window *w, int64_t from, int64_t to)
{
    const Corpus *c = w->corpus;
    int64_t base = 0, room = 0;
    for (int f = 0; f < c->files; base += c->file[f++].tokens)
        for (int64_t t = 0; t < c->file[f].tokens; t += PIECE) {
            int64_t left = c->file[f].tokens - t, a = base + t, b = a + (left < PIECE ? left : PIECE);
            a = a > from ? a : from;
            b = b < to ? b : to;
            if (b <= a)
                continue;
            if (w->count == room) {
                room = 2 * room + 8;
                w->piece = xrealloc(w->piece, sizeof *w->piece * (size_t)room);
                w->length = xrealloc(w->length, 4 * (size_t)room);
            }
            w->piece[w->count] = (struct TensorPiece){f, a - base};
            w->length[w->count++] = (int32_t)(b - a);
        }
}

int window_open(Window *w, const Corpus *c, double from, double to, char **why)
{
    double n = (double)(c->sequences ? c->sequences : c->tokens);
    int64_t beg = (int64_t)__builtin_rint(from * n), end = (int64_t)__builtin_rint(to * n);
    *w = (Window){.corpus = c};
    if (!c->sequences) {
        stream_pieces(w, beg, end);
    } else {
        w->first = beg;
        w->count = end - beg;
        w->length = xcalloc((size_t)w->count, 4);
        if (!token_bytes(&c->index, w->length, IDX_HEAD + 4 * beg, 4 * w->count, why))
            return 0;
    }
    for (int64_t i = 0; i < w->count; i++)
        w->tokens += w->length[i];
    return 1;
}

void window_close(Window *w)
{
    free(w->length);
    free(w->piece);
    *w = (Window){0};
}

static void widen(int32_t *out, const void *raw, int64_t n, TokenType type)
{
    if (type == TOKEN_U8)
        for (int64_t i = 0; i < n; i++)
            out[i] = ((const uint8_t *)raw)[i];
    else if (type == TOKEN_U16)
        for (int64_t i = 0; i < n; i++)
            out[i] = ((const uint16_t *)raw)[i];
    else   /* a u32 >= 2^31 becomes negative, which is no token id */
        memcpy(out, raw, 4 * (size_t)n);
}

int corpus_read(const Corpus *c, int file, int64_t token, int64_t n, int32_t *out, char **why)
{
    TokenFile *f = &c->file[file];
    int64_t width = type_bytes(f->type), room;
    char raw[16384];
    for (room = (int64_t)sizeof raw / width; n > 0; n -= room, token += room, out += room) {
        room = n < room ? n : room;
        if (!token_bytes(f, raw, f->start + width * token, width * room, why))
            return 0;
        widen(out, raw, room, f->type);
    }
    f->read = 1;               /* behind the reads: what a thread saw before them says nothing of them */
    return 1;
}

int window_read(const Window *w, int64_t i, int64_t offset, int64_t n, int32_t *out, char **why)
{
    const Corpus *c = w->corpus;
    BUG_ON(i < 0 || i >= w->count || offset < 0 || n < 0 || offset + n > w->length[i]);
    if (w->piece)
        return corpus_read(c, w->piece[i].file, w->piece[i].token + offset, n, out, why);
    int64_t at;
    if (!token_bytes(&c->index, &at, IDX_HEAD + 4 * c->sequences + 8 * (w->first + i), 8, why))
        return 0;
    return corpus_read(c, 0, at / type_bytes(c->file[0].type) + offset, n, out, why);
}
