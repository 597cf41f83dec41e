/* corpus -- token files on disk, checked when opened and read by position.
 *
 *   kind      files                                                             corpus
 *   megatron  PREFIX.bin (tokens, no header), PREFIX.idx (table of sequences)   a list of sequences
 *   llm.c     shards with a header of 1024 bytes                                a stream, file after
 *             file
 *   raw       u16 tokens without a header, as nanoGPT writes them               a stream, file after
 *             file
 *
 * A Window (below) reads a list of sequences and a stream in the same way. data/README.md describes the
 * formats byte by byte.
 *
 * Files are read with pread, not mapped: a file that shrinks during a run gives an error with its name,
 * not a signal. On failure *why becomes a heap string that ends in `; change: ...`. The caller decides
 * whether it ends the job (loader) or is a line of a report (inspect). */
#ifndef CORPUS_H
#define CORPUS_H
#include <stdint.h>
#include <stdio.h>

/* Sets *why and returns 0, for `return fail(...)`. */
int fail(char **why, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Type codes of the .idx; TOKEN_U32 occurs in llm.c shards alone. */
typedef enum { TOKEN_U8 = 1, TOKEN_I32 = 4, TOKEN_U16 = 8, TOKEN_U32 = 100 } TokenType;

typedef struct {
    char *path;
    int fd;
    int64_t size, changed;      /* bytes; time of the last change in ns: both at the time of opening */
    int64_t start, tokens;      /* byte offset of the first token; number of tokens */
    TokenType type;
    _Atomic int read;           /* bool: tokens were read since corpus_unchanged looked at the file */
} TokenFile;

typedef struct {
    char *name;                 /* name as the user wrote it */
    const char *kind;           /* "megatron", "llm.c", "raw" */
    int files;
    TokenFile *file;            /* [files] megatron: one file, the .bin */
    TokenFile index;            /* megatron: the .idx; else fd < 0 */
    int64_t sequences;          /* rows of the .idx; 0: the corpus is a stream */
    int64_t documents, tokens;
    int64_t longest;            /* tokens of the longest sequence; stream: of the longest file */
} Corpus;

/* Opens a corpus and checks sizes, magic numbers, every length and every pointer, but not the tokens.
 *
 *   spec  in   [specs]  prefix or either file of a megatron pair; llm.c shard or glob pattern of shards;
 *                       `raw:` with a file or a pattern of u16 tokens. Several specs make one stream, in
 *                       the order given and without megatron pairs; a pattern's files follow their names
 *   why   out           what is wrong, if NULL is returned */
Corpus *corpus_open(int specs, const char *const *spec, char **why);
void corpus_close(Corpus *c);

/* Returns 1 if the spec names a stream (llm.c or raw), 0 if it names a megatron pair or nothing. */
int corpus_is_stream(const char *spec);

/* A part of a corpus as a list of sequences. Of a megatron corpus these are rows of its table; a stream
 * is cut at the ends of files and every 2^30 tokens. */
typedef struct {
    const Corpus *corpus;
    int64_t first, count, tokens;                       /* first row (stream: 0); sequences; tokens */
    int32_t *length;                                    /* [count] tokens of each sequence */
    struct TensorPiece { int file; int64_t token; } *piece;   /* [count] stream: where each one starts */
} Window;

/* Opens the share [from, to) of a corpus, in fractions of 1. The edges are rint(fraction * n), half to
 * even; n is the sequences of a megatron corpus, the tokens of a stream. Returns 0 and *why on a failing
 * read. */
int window_open(Window *w, const Corpus *c, double from, double to, char **why);
void window_close(Window *w);

/* Reads tokens [offset, offset + n) of sequence i, 0 <= i < count, into out[n]. Returns 0 and *why if a
 * file cannot be read. Thread-safe. */
int window_read(const Window *w, int64_t i, int64_t offset, int64_t n, int32_t *out, char **why);

/* Reads tokens [token, token + n) of one file into out[n], across sequences. Returns 0 and *why if the
 * file cannot be read. Thread-safe. */
int corpus_read(const Corpus *c, int file, int64_t token, int64_t n, int32_t *out, char **why);

/* Returns 0 and *why if a file whose tokens were read since the last call, or its .idx, was replaced,
 * deleted, truncated or written to since it was opened. It looks at no other files: a corpus may have
 * thousands, and a network file system answers each look with a message. */
int corpus_unchanged(const Corpus *c, char **why);

/* Reads every token; *range: least and greatest id. With vocab > 0 the first id outside of [0, vocab)
 * ends the scan: 0, and *why names the id, its sequence and its place there. Returns 0 also on a failing
 * read. */
typedef struct { int64_t least, most; } TokenRange;
int corpus_scan(const Corpus *c, int64_t vocab, TokenRange *range, char **why);

/* *print: a hash that is equal on hosts with the same bytes. It covers the counts, and the first and
 * last 2^18 tokens of each file. Returns 0 and *why on a failing read. */
int corpus_fingerprint(const Corpus *c, uint64_t *print, char **why);

/* Reads every token and writes what the corpus holds and whether it is whole; json: as one object.
 * Returns 0 if it is whole, 1 if not. */
int corpus_inspect(const char *spec, FILE *out, int json);

const char *corpus_type_name(TokenType t);

/* What a sequence is called in messages: "document" where each document is one, else "sequence". */
const char *corpus_sequence_name(const Corpus *c);
#endif
