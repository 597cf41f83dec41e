/* base -- what every layer stands on: stopping, arenas, counter-based random numbers.
 *
 * Stopping. `die` is for the world's faults (a file, memory, the user's input): one line for the whole
 * job, `error[ID] ...; change: ...`, then exit with a code from the list below. `BUG_ON` is for ours.
 *
 * Arenas. Memory has few lifetimes and one arena each. The code that lays memory out runs twice: first
 * with `base == NULL`, when it only counts, then for real. After the first step the arenas are sealed:
 * a take that grows the peak is a BUG.
 *
 * Random numbers are functions of (key, counter), never of a generator's state, so that every layout
 * of ranks draws the same bits. Philox4x32-10: Salmon et al. 2011, "Parallel random numbers: as easy
 * as 1, 2, 3", sec 3.3. */
#ifndef BASE_H
#define BASE_H
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#ifdef __cplusplus
extern "C" {
#define _Noreturn [[noreturn]]
#endif

enum {
    EXIT_DONE = 0,        /* all went well */
    EXIT_COMPARE = 1,     /* a comparison failed, a file is not whole */
    EXIT_CONFIG = 2,      /* configuration or usage */
    EXIT_DATA = 3,        /* corpus or tokenizer */
    EXIT_CHECKPOINT = 4,  /* checkpoint */
    EXIT_RESOURCE = 5,    /* memory, disk, descriptors */
    EXIT_NUMERIC = 6,     /* a number that is not finite */
    EXIT_COMM = 7,        /* communication lost or hung */
    EXIT_BUG = 8,         /* our fault */
    EXIT_REQUEUE = 75     /* checkpoint saved, run me again */
};

/* Prints `error[id] text` once and ends the job with `code`; EXIT_BUG names the place in the code too. The
 * text says what and why and ends in `change: ...`, what the user can do. Never returns. */
#define die(code, id, ...) die_at(__FILE__, __LINE__, code, id, __VA_ARGS__)
_Noreturn void die_at(const char *file, int line, int code, const char *id, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* Our own mistakes: prints the condition and where, then aborts with EXIT_BUG. */
#define BUG_ON(cond) do { if (__builtin_expect(!!(cond), 0)) bug_at(__FILE__, __LINE__, #cond); } while (0)
_Noreturn void bug_at(const char *file, int line, const char *cond);

/* where: says which rank speaks ("rank 3 tp 1 pp 1 dp 0"), NULL with one rank. may_speak: asked before the
 * line is printed; no: another rank has printed the job's. stop: ends all ranks. Any may be NULL. */
void die_hooks(const char *(*where)(void), int (*may_speak)(int code), void (*stop)(int code));

/* before(ctx) runs before anything is written to standard error: a live line on the terminal gives way. NULL:
 * none. */
void message_hook(void (*before)(void *ctx), void *ctx);

/* A non-fatal notice on standard error, `warning: ...`. */
void warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

typedef struct {
    const char *name;
    char *base;                /* NULL: only count */
    size_t used, peak, size;
    uint8_t sealed;
} Arena;

#define ARENA_ALIGN 64

/* Maps `size` bytes, zeroed, in huge pages where the system has them. Dies with EXIT_RESOURCE. */
void arena_open(Arena *a, const char *name, size_t size);
void arena_close(Arena *a);

/* `bytes` more, aligned to ARENA_ALIGN; not cleared. A counting arena returns NULL. */
void *arena_take(Arena *a, size_t bytes);

/* Everything taken since `mark` is given back: size_t mark = a->used; ...; arena_reset(a, mark). */
void arena_reset(Arena *a, size_t mark);

/* Heap for start-up only (tables, parsed files): dies instead of returning NULL; zeroed. */
void *xcalloc(size_t n, size_t size);
void *xrealloc(void *p, size_t bytes);
char *xstrdup(const char *s);
char *xasprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
FILE *xmemstream(char **text, size_t *bytes);      /* open_memstream */

/* Philox4x32-10: four random words for a 64-bit key and a 128-bit counter. */
typedef struct { uint32_t v[4]; } Philox;
Philox philox(uint64_t key, uint64_t counter_lo, uint64_t counter_hi);

/* A key from a seed and a stream name; different names give independent streams. */
uint64_t rng_key(uint64_t seed, const char *stream);

/* Uniform in [0, 1) with 53 bits, and standard normal (Box-Muller), for `index` of stream (key, sub). */
double rng_uniform(uint64_t key, uint64_t sub, uint64_t index);
double rng_normal(uint64_t key, uint64_t sub, uint64_t index);
/* out[k] = rng_normal(key, sub, index + k), at half the cost. */
void rng_normals(uint64_t key, uint64_t sub, uint64_t index, int64_t n, double *out);

/* 64-bit FNV-1a, for names and small records. */
uint64_t hash64(const void *p, size_t n, uint64_t h);
#define HASH_SEED 1469598103934665603ull

/* Seconds on the monotonic clock. */
double now(void);

/* How soon this thread runs once it has something to do, whatever else the cores do. USUAL: in its turn.
 * SOON: short slices, 0.1 ms, let it in early for a moment (Linux before 6.12 ignores them). FIRST: before
 * all others, where this process may ask for real-time priority, else SOON. */
typedef enum { RUNS_USUAL, RUNS_SOON, RUNS_FIRST } Urgency;
void thread_urgency(Urgency u);
#ifdef __cplusplus
}
#endif
#endif
