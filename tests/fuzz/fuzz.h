/* fuzz -- targets of fuzzing: each reads what a user's file may hold from bytes in memory, many times in one
 * process.
 *
 * A run may end in die(): with one of the target's exit codes, and one line that ends in `; change: ...`.
 * Anything else is a finding: a signal, a report of a sanitizer, BUG_ON, another exit code, a line of
 * another form, or memory out of proportion to the input. The files of a run lie in memory (fuzz_file);
 * fuzz_files.c stands in for the system calls that read them. */
#ifndef FUZZ_H
#define FUZZ_H
#include "base.h"
#include <string.h>

/* The targets; fuzz_NAME is in the file of that name. binary: formats with the larger number of runs. */
#define FUZZ_TARGETS(X)                                                                                      \
    X(idx)                                                                                                   \
    X(safetensors) X(manifest) X(flight) X(shards) X(config) X(saved_config) X(layout) X(schedule) X(cells)  \
        X(machine) X(jsonl) X(sweep) X(report) X(hf_config) X(hf_files) X(tuned) X(routing) X(tokenize)

typedef struct {
    const char *name;
    void (*run)(const uint8_t *p, size_t n); /* reads the input; may end in die() */
    void (*seeds)(void);                     /* calls fuzz_seed for inputs that are valid, or nearly so */
    void (*forget)(void);                    /* gives back what outlives a run, or NULL */
    int codes[4];                            /* exit codes with which it may die, then 0 */
    const char *const *words;                /* texts that inputs are made of, then NULL; NULL: none */
} FuzzTarget;

#define X(name) extern const FuzzTarget fuzz_##name;
FUZZ_TARGETS(X)
#undef X

/* ---- for targets ---- */

/* Adds an input to the seeds. */
void fuzz_seed(const void *p, size_t n);
static inline void fuzz_seed_text(const char *s)
{
    fuzz_seed(s, strlen(s));
}

/* Makes a file of this run. It is found by the last component of its path; names it: "x.idx". The bytes are
 * not copied. */
void fuzz_file(const char *name, const void *p, size_t n);

/* A finding of the target's own: prints the text and aborts. */
_Noreturn void fuzz_found(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* A stream whose text is thrown away. */
FILE *fuzz_nowhere(void);

/* Takes an integer of `bytes` bytes from the head of the input, little endian; 0 when there are fewer. */
static inline uint64_t fuzz_take(const uint8_t **p, size_t *n, size_t bytes)
{
    uint64_t v = 0;
    size_t k = bytes < *n ? bytes : *n;
    memcpy(&v, *p, k);
    *p += k;
    *n -= k;
    return k < bytes ? 0 : v;
}

/* Takes a text up to a NUL, which is written behind it, or up to the end; it lives until the run ends. */
char *fuzz_take_text(const uint8_t **p, size_t *n, size_t *length);

/* ---- for drivers ---- */

/* Runs the target once. Returns the exit code of die(), or 0. */
int fuzz_run(const FuzzTarget *t, const uint8_t *p, size_t n);

/* The seeds of a target: list[i] of size[i] bytes. */
typedef struct {
    int n;
    uint8_t **list;
    size_t *size;
} FuzzSeeds;
FuzzSeeds fuzz_seeds(const FuzzTarget *t);
/* Those, and what fuzz_seed was given since. */
FuzzSeeds fuzz_seeds_now(void);

/* Called by fuzz_run when a run is over: closes and forgets its files. */
void fuzz_files_close(void);
extern int fuzz_running; /* bool: between begin and end of a run */
#endif
