/* base -- how a run stops, arenas, start-up heap, counter-based random numbers, clock */
#define _GNU_SOURCE
#include "base.h"
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const char *(*who)(void);
static int (*speaks)(int code);
static void (*stop_all)(int code);

void die_hooks(const char *(*where)(void), int (*may_speak)(int code), void (*stop)(int code))
{
    who = where;
    speaks = may_speak;
    stop_all = stop;
}

static void (*before_end)(void);

void die_removes(void (*remove)(void)) { before_end = remove; }

static void (*before_message)(void *ctx);
static void *message_ctx;

void message_hook(void (*before)(void *ctx), void *ctx)
{
    before_message = before;
    message_ctx = ctx;
}

static void make_room(void)
{
    if (before_message)
        before_message(message_ctx);
    fflush(stdout);
}

static _Noreturn void leave(int code)
{
    fflush(stdout);
    if (before_end)
        before_end();
    if (stop_all)
        stop_all(code);
    _exit(code);
}

void text_plain(char *text, size_t n, const char *kept)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        if ((c < ' ' || c == 127) && !(c && strchr(kept, c)))
            text[i] = '?';
        else if (c == 0xc2 && i + 1 < n && ((unsigned char)text[i + 1] & 0xe0) == 0x80)
            text[i] = text[i + 1] = '?';           /* U+0080 to U+009F */
    }
}

/* Writes a message into text [size]. One that is too long keeps its beginning and its end, which says what to
 * change. The whole of it is made in pages of its own: the heap may be what is exhausted. */
static void message(char *text, size_t size, const char *fmt, va_list ap)
{
    static const char gap[] = " ... ";
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(text, size, fmt, ap);
    size_t whole = n < 0 ? 0 : (size_t)n + 1, tail = size / 2;
    char *all = whole > size ? mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                             : MAP_FAILED;
    if (all != MAP_FAILED) {
        vsnprintf(all, whole, fmt, again);
        memcpy(text + size - tail, all + whole - tail, tail);
        memcpy(text + size - tail - (sizeof gap - 1), gap, sizeof gap - 1);
        munmap(all, whole);
    }
    va_end(again);
    text_plain(text, strlen(text), "");            /* a message is one line */
}

/* Writes a line to standard error in one piece: lines of several threads and ranks do not mix, and a rank
 * that is killed does not leave half of one. (fprintf of glibc 2.37 on writes 128 bytes at a time.) */
static __attribute__((format(printf, 1, 2))) void say(const char *fmt, ...)
{
    char text[4096 + 512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n >= (int)sizeof text)
        n = (int)sizeof text - 1;
    ssize_t at = 0, did = 1;
    while (at < n && (did > 0 || (did < 0 && errno == EINTR))) {
        did = write(STDERR_FILENO, text + at, (size_t)(n - at));
        at += did > 0 ? did : 0;
    }
}

_Noreturn void die_at(const char *file, int line, int code, const char *id, const char *fmt, ...)
{
    char text[4096], rank[160] = ""; /* on the stack: the heap may be what is exhausted */
    va_list ap;
    va_start(ap, fmt);
    message(text, sizeof text, fmt, ap);
    va_end(ap);
    if (who && who())
        snprintf(rank, sizeof rank, "[%.150s] ", who());
    if (speaks && !speaks(code))
        leave(code);
    make_room();
    if (code == EXIT_BUG)
        say("error[%s] %s%s:%d: %s\n", id, rank, file, line, text);
    else
        say("error[%s] %s%s\n", id, rank, text);
    leave(code);
}

_Noreturn void bug_at(const char *file, int line, const char *cond)
{
    const char *w = who ? who() : NULL;
    if (speaks && !speaks(EXIT_BUG))
        leave(EXIT_BUG);
    make_room();
    say("error[bug] %s%s%s:%d: BUG_ON(%s); change: please report this line with your config\n", w ? w : "",
        w ? " " : "", file, line, cond);
    leave(EXIT_BUG);
}

void warn(const char *fmt, ...)
{
    char text[2048];
    va_list ap;
    va_start(ap, fmt);
    message(text, sizeof text, fmt, ap);
    va_end(ap);
    make_room();
    say("warning: %s\n", text);
}

#define HUGE_PAGE ((size_t)2 << 20)

/* Bytes that an arena of n bytes maps. Not whole huge pages: the last one would be memory that nobody
 * planned. */
static size_t mapped(size_t n)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return ((n ? n : 1) + page - 1) / page * page;
}

void arena_open(Arena *a, const char *name, size_t size)
{
    *a = (Arena){.name = name, .size = size};
    size = mapped(size);
    /* maps HUGE_PAGE bytes more than asked for and cuts the ends off, so that the memory starts at a
     * multiple of 2 MiB: the first touch of 4 KiB pages costs three times that of huge pages */
    char *p = mmap(NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        die(EXIT_RESOURCE, "memory", "cannot map %zu bytes for %s; change: lower micro_batch_size or the "
            "model, or free memory on this machine", size, name);
    char *q = (char *)(((uintptr_t)p + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
    if (q > p)
        munmap(p, (size_t)(q - p));
    munmap(q + size, (size_t)(p + HUGE_PAGE - q));
    madvise(q, size, MADV_HUGEPAGE);
    a->base = q;
}

void arena_close(Arena *a)
{
    if (a->base)
        munmap(a->base, mapped(a->size));
    *a = (Arena){0};
}

size_t arena_add(const char *name, size_t used, size_t n, size_t bytes)
{
    size_t more;
    if (__builtin_mul_overflow(n, bytes, &more) || more > ARENA_MOST || used + more > ARENA_MOST)
        die(EXIT_RESOURCE, "memory", "%s would take more than 2^60 bytes of a rank; change: fewer layers, a "
            "lower micro_batch_size or seq_length, or more ranks that share them", name);
    return used + more;
}

void *arena_take(Arena *a, size_t bytes)
{
    size_t at = a->used;
    a->used = arena_add(a->name, at, 1, (bytes + ARENA_ALIGN - 1) & ~(size_t)(ARENA_ALIGN - 1));
    if (a->used > a->peak) {
        BUG_ON(a->sealed);
        a->peak = a->used;
    }
    if (!a->base)
        return NULL;
    BUG_ON(a->used > ((a->size + ARENA_ALIGN - 1) & ~(size_t)(ARENA_ALIGN - 1)));
    return a->base + at;
}

void arena_reset(Arena *a, size_t mark)
{
    BUG_ON(mark > a->used);
    a->used = mark;
}

static void *heap_checked(void *p, size_t bytes)
{
    if (!p)
        die(EXIT_RESOURCE, "memory", "cannot allocate %zu bytes; change: free memory on this machine", bytes);
    return p;
}

void *xcalloc(size_t n, size_t size) { return heap_checked(calloc(n ? n : 1, size ? size : 1), n * size); }
void *xrealloc(void *p, size_t bytes) { return heap_checked(realloc(p, bytes ? bytes : 1), bytes); }

void *xgrow(void *p, int64_t n, size_t size)
{
    return n & (n - 1) ? p : xrealloc(p, (size_t)(n ? 2 * n : 1) * size);
}
char *xstrdup(const char *s) { return heap_checked(strdup(s), strlen(s) + 1); }

char *text_shown(const char *text)
{
    char *copy = xstrdup(text);
    text_plain(copy, strlen(copy), "");
    return copy;
}

char *xasprintf(const char *fmt, ...)
{
    char *s = NULL;
    va_list ap;
    va_start(ap, fmt);
    if (vasprintf(&s, fmt, ap) < 0)
        s = NULL;
    va_end(ap);
    return heap_checked(s, strlen(fmt));
}

typedef struct {
    char **text;
    size_t *bytes, room;
} TextStream;

static ssize_t text_add(void *stream, const char *from, size_t n)
{
    TextStream *t = stream;
    if (t->room - *t->bytes <= n)
        *t->text = xrealloc(*t->text, t->room = 2 * t->room + n);
    memcpy(*t->text + *t->bytes, from, n);
    *t->bytes += n;
    (*t->text)[*t->bytes] = 0;
    return (ssize_t)n;
}

static int text_end(void *stream) { return free(stream), 0; }

FILE *xmemstream(char **text, size_t *bytes)
{
    TextStream *t = xcalloc(1, sizeof *t);
    *t = (TextStream){text, bytes, 256};
    *text = xcalloc(t->room, 1);
    *bytes = 0;
    FILE *f = fopencookie(t, "w", (cookie_io_functions_t){.write = text_add, .close = text_end});
    if (!f)
        die(EXIT_RESOURCE, "memory", "no memory for a text; change: free memory on this machine");
    return f;
}

uint64_t rng_key(uint64_t seed, const char *stream)
{
    return hash64(stream, strlen(stream), hash64(&seed, sizeof seed, HASH_SEED));
}

double rng_uniform(uint64_t key, uint64_t sub, uint64_t index)
{
    Philox r = philox(key, index, sub);
    return (double)(((uint64_t)r.v[0] << 32 | r.v[1]) >> 11) * 0x1p-53;
}

uint64_t hash64(const void *p, size_t n, uint64_t h)
{
    const uint8_t *b = p;
    for (size_t i = 0; i < n; i++)
        h = (h ^ b[i]) * 1099511628211ull;
    return h;
}

int by_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

const char *host_name(char host[HOST_NAME])
{
    memset(host, 0, HOST_NAME);
    if (gethostname(host, HOST_NAME - 1))
        strcpy(host, "?");
    return host;
}

double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void thread_urgency(Urgency u)
{
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } attr = {.size = 48, .policy = SCHED_RR, .priority = 1};  /* struct sched_attr of sched_setattr(2) */
    if (u == RUNS_FIRST && !syscall(SYS_sched_setattr, 0, &attr, 0))
        return;
    attr.policy = SCHED_OTHER;
    attr.nice = getpriority(PRIO_PROCESS, 0);      /* of this thread; a lower value would be refused */
    attr.priority = 0;
    attr.runtime = u == RUNS_USUAL ? 0 : 100000;   /* time slice in ns; 0: the system's default */
    syscall(SYS_sched_setattr, 0, &attr, 0);
}
