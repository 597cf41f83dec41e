/* corpus -- token files on disk, checked when opened and read by position.
 *
 * Three kinds. `megatron`: PREFIX.bin (tokens, no header) beside PREFIX.idx (a table of sequences).
 * `llm.c`: shards with a header of 1024 bytes. `raw`: u16 tokens and nothing else, as nanoGPT writes them.
 * Formats byte by byte: data/README.md.
 *
 * A megatron corpus is a list of sequences. The other two carry no table: such a corpus is a stream, one file
 * after another, and a Window (below) gives both the same face.
 *
 * Nothing is mapped: every byte comes through pread, so a file that shrinks under a run is an error with a
 * name and never a signal. Whatever goes wrong sets *why to a heap string that ends in `; change: ...`; who
 * called decides whether that ends the job (loader) or is a line of a report (inspect). */
#ifndef CORPUS_H
#define CORPUS_H
#include <stdint.h>
#include <stdio.h>

/* Codes of the .idx; TOKEN_U32 is llm.c's alone. */
typedef enum { TOKEN_U8 = 1, TOKEN_I32 = 4, TOKEN_U16 = 8, TOKEN_U32 = 100 } TokenType;

typedef struct {
    char *path;
    int fd;
    int64_t size, changed;      /* bytes; time of the last change in ns: both as they were when opened */
    int64_t start, tokens;      /* byte of the first token; how many */
    TokenType type;
} TokenFile;

typedef struct {
    char *name;                 /* as the user wrote it */
    const char *kind;           /* "megatron", "llm.c", "raw" */
    int files;
    TokenFile *file;            /* megatron: one, the .bin */
    TokenFile index;            /* megatron: the .idx; fd < 0 otherwise */
    int64_t sequences;          /* rows of the .idx; 0 for a stream */
    int64_t documents, tokens;
    int64_t longest;            /* tokens of the longest sequence, of a stream's longest file */
} Corpus;

/* Opens and checks everything but the tokens themselves: sizes, magic numbers, every length and pointer.
 * A spec is a prefix (or either file) of a megatron pair, an llm.c shard, a glob pattern of shards, or
 * `raw:` and a file or pattern of bare u16 tokens. Several specs make one stream; a megatron pair stands
 * alone. NULL and *why when something is wrong. */
Corpus *corpus_open(int specs, const char *const *spec, char **why);
void corpus_close(Corpus *c);

/* 1 when the spec names a stream (llm.c or raw), 0 for a megatron pair or nothing that exists. */
int corpus_is_stream(const char *spec);

/* A part of a corpus as a list of sequences: rows [first, first + count) of a megatron table, or the tokens
 * [from, to) of a stream cut at file borders and at 2^30 tokens. */
typedef struct {
    const Corpus *corpus;
    int64_t first, count, tokens;
    int32_t *length;                                    /* [count] tokens in each sequence */
    struct TensorPiece { int file; int64_t token; } *piece;   /* [count] streams only */
} Window;

/* The share [from, to) of a corpus, as fractions of 1: edges are rint(fraction * n), half to even, with n the
 * sequences of a megatron corpus, the tokens of a stream. 0 and *why on a failing read. */
int window_open(Window *w, const Corpus *c, double from, double to, char **why);
void window_close(Window *w);

/* Tokens [offset, offset + n) of sequence i (0 .. count) into out[n]. 0 and *why when a file cannot be read
 * or has changed since it was opened. Thread-safe. */
int window_read(const Window *w, int64_t i, int64_t offset, int64_t n, int32_t *out, char **why);

/* Tokens [token, token + n) of one file into out[n], whatever sequence they belong to. Thread-safe. */
int corpus_read(const Corpus *c, int file, int64_t token, int64_t n, int32_t *out, char **why);

/* 0 and *why when a file was replaced, deleted, truncated or written to since it was opened. */
int corpus_unchanged(const Corpus *c, char **why);

/* Reads every token and keeps the least and the greatest id. With vocab > 0 it ends at the first id that is
 * not in [0, vocab): 0, and *why says which, in which document and where in it. 0 too on a failing read. */
typedef struct { int64_t least, most; } TokenRange;
int corpus_scan(const Corpus *c, int64_t vocab, TokenRange *range, char **why);

/* A number for "the same bytes on every host": sizes, and the first and last 2^18 tokens of each file.
 * 0 and *why on a failing read. */
int corpus_fingerprint(const Corpus *c, uint64_t *print, char **why);

/* Writes what a corpus holds and whether it is whole, every token read; json: one object. 0 whole, 1 not. */
int corpus_inspect(const char *spec, FILE *out, int json);

const char *corpus_type_name(TokenType t);
#endif
