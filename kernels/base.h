/* base -- what every layer stands on: stopping, arenas, counter-based random numbers.
 *
 * Stopping. `die` reports a fault outside the program (a file, memory, the user's input). The whole job
 * prints one line, `error[ID] ...; change: ...`, and exits with a code from the list below. `BUG_ON`
 * reports a mistake of the program.
 *
 * Arenas. Memory has few lifetimes, and each lifetime has one arena. The code that lays memory out runs
 * twice: first with `base == NULL`, when the arena only counts bytes, then with memory. After the first
 * step the arenas are sealed: a take that grows the peak is a BUG.
 *
 * Random numbers are functions of (key, counter). No generator has a state, so every layout of ranks
 * draws the same bits. Philox4x32-10: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3",
 * sec 3.3. */
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
    EXIT_COMPARE = 1,     /* a comparison failed, or a file is not whole */
    EXIT_CONFIG = 2,      /* configuration or usage */
    EXIT_DATA = 3,        /* corpus or tokenizer */
    EXIT_CHECKPOINT = 4,  /* checkpoint */
    EXIT_RESOURCE = 5,    /* memory, disk, descriptors */
    EXIT_NUMERIC = 6,     /* a loss or norm is not finite */
    EXIT_COMM = 7,        /* communication failed or hung */
    EXIT_BUG = 8,         /* a mistake of the program */
    EXIT_REQUEUE = 75     /* a checkpoint was saved: start the job again */
};

/* Prints `error[id] text` once for the job and ends the job with `code`. With EXIT_BUG the line also has
 * the source file and line number. The text says what failed and why, and ends in `change: ` and what
 * the user can do. */
#define die(code, id, ...) die_at(__FILE__, __LINE__, code, id, __VA_ARGS__)
_Noreturn void die_at(const char *file, int line, int code, const char *id, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* A mistake of the program: prints the condition, file and line, then ends the job with EXIT_BUG. */
#define BUG_ON(cond) do { if (__builtin_expect(!!(cond), 0)) bug_at(__FILE__, __LINE__, #cond); } while (0)
_Noreturn void bug_at(const char *file, int line, const char *cond);

/* Functions that die, BUG_ON call; any may be NULL.
 *   where      in  returns the name of this rank ("rank 3 tp 1 pp 1 dp 0"), or NULL with one rank
 *   may_speak  in  returns 0 when another rank has already printed the job's error line
 *   stop       in  ends all ranks of the job */
void die_hooks(const char *(*where)(void), int (*may_speak)(int code), void (*stop)(int code));

/* remove() removes what this process has not finished. It runs when the process dies, before the other ranks
 * are ended. NULL: no call. */
void die_removes(void (*remove)(void));

/* before(ctx) runs before a message goes to standard error, so that a live line on the terminal can be
 * erased. before NULL: no call. */
void message_hook(void (*before)(void *ctx), void *ctx);

/* A non-fatal notice on standard error, `warning: ...`. */
void warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Replaces control characters in text [n], ASCII's and Unicode's, other than those of `kept`, by '?'. Names
 * and files of others may have some, and a terminal obeys them. */
void text_plain(char *text, size_t n, const char *kept);

/* Returns a copy of a text, from malloc, as a line of output may have it: without control characters. */
char *text_shown(const char *text);

typedef struct {
    const char *name;
    char *base;                /* start of the memory; NULL: the arena only counts */
    size_t used, peak, size;   /* bytes taken now, the most bytes ever taken, bytes of the memory */
    uint8_t sealed;            /* bool: the peak must not grow any more */
} Arena;

#define ARENA_ALIGN 64

/* Maps `size` bytes, zeroed, in huge pages where the system has them. Dies with EXIT_RESOURCE where
 * memory is short. */
void arena_open(Arena *a, const char *name, size_t size);
void arena_close(Arena *a);

/* Returns the next `bytes` bytes, aligned to ARENA_ALIGN and not cleared; NULL when the arena only
 * counts. */
void *arena_take(Arena *a, size_t bytes);

/* `used` and n pieces of `bytes`, for an arena of that name. Dies with EXIT_RESOURCE where that is more than
 * ARENA_MOST: the sums of a plan can hold a few arenas of that size, and no machine any. */
#define ARENA_MOST ((size_t)1 << 60)
size_t arena_add(const char *name, size_t used, size_t n, size_t bytes);

/* Gives back everything taken since a->used was `mark`. */
void arena_reset(Arena *a, size_t mark);

/* Heap memory for start-up only (tables, parsed files). Each call dies instead of returning NULL;
 * xcalloc's memory is zeroed. xgrow makes room for element n of a list that grows by it alone: the room
 * doubles when n is a power of 2. */
void *xcalloc(size_t n, size_t size);
void *xrealloc(void *p, size_t bytes);
void *xgrow(void *p, int64_t n, size_t size);
char *xstrdup(const char *s);
char *xasprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
FILE *xmemstream(char **text, size_t *bytes);      /* as open_memstream; no memory ends the process */

/* Philox4x32-10: returns four random words for a 64-bit key and a 128-bit counter. */
typedef struct { uint32_t v[4]; } Philox;
static inline Philox philox(uint64_t key, uint64_t lo, uint64_t hi)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    Philox c = {{(uint32_t)lo, (uint32_t)(lo >> 32), (uint32_t)hi, (uint32_t)(hi >> 32)}};
    for (int i = 0; i < 10; i++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c.v[0], p1 = (uint64_t)0xCD9E8D57u * c.v[2];
        c = (Philox){{(uint32_t)(p1 >> 32) ^ c.v[1] ^ k0, (uint32_t)p1, (uint32_t)(p0 >> 32) ^ c.v[3] ^ k1,
                      (uint32_t)p0}};
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c;
}

/* Returns the key of a seed and a stream name; different names give independent streams. */
uint64_t rng_key(uint64_t seed, const char *stream);

/* Number `index` of stream (key, sub): uniform in [0, 1) with 53 bits, or standard normal
 * (Box-Muller). */
double rng_uniform(uint64_t key, uint64_t sub, uint64_t index);
double rng_normal(uint64_t key, uint64_t sub, uint64_t index);
/* out[k] = mean + std * rng_normal(key, sub, index + k) for k in [0, n), at a fraction of the cost of n
 * calls. */
void rng_normals(uint64_t key, uint64_t sub, uint64_t index, int64_t n, double mean, double std, double *out);

/* 64-bit FNV-1a of n bytes, for names and small records. h: HASH_SEED, or the hash of the bytes
 * before. */
uint64_t hash64(const void *p, size_t n, uint64_t h);
#define HASH_SEED 1469598103934665603ull

/* Order of qsort for records that begin with a double, the smallest first. */
int by_double(const void *a, const void *b);

/* Writes the name of this host to `host`, filled up with zeros; returns it. */
enum { HOST_NAME = 64 };
const char *host_name(char host[HOST_NAME]);

/* Seconds on the monotonic clock. */
double now(void);

/* How soon the scheduler runs a thread that has become ready.
 *   RUNS_USUAL  in turn, as any thread
 *   RUNS_SOON   early, in time slices of 0.1 ms (Linux before 6.12 ignores the slice)
 *   RUNS_FIRST  before all other threads if this process may ask for real-time priority, else as
 *               RUNS_SOON */
typedef enum { RUNS_USUAL, RUNS_SOON, RUNS_FIRST } Urgency;
/* Sets the urgency of the calling thread. */
void thread_urgency(Urgency u);
#ifdef __cplusplus
}
#endif
#endif
