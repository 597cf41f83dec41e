/* fuzz -- runs a target: catches die(), gives back what the run has left behind */
#define _GNU_SOURCE
#include "fuzz.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

int fuzz_running;
static const FuzzTarget *target;
static jmp_buf caught;
static FILE *out, *err; /* stdout and stderr, which a run does not have */

/* ---- what a run has allocated: freed after die(), which jumps over the calls that free it */

int __sanitizer_install_malloc_and_free_hooks(void (*)(const volatile void *, size_t),
                                              void (*)(const volatile void *)) __attribute__((weak));

enum { CALLS = 1 << 18 };     /* most calls of a run that are known; what is beyond leaks */
static uintptr_t call[CALLS]; /* [calls] addresses that malloc returned; + 1: that were freed */
static int calls;

static void on_malloc(const volatile void *p, size_t n)
{
    (void)n;
    if (fuzz_running && p && calls < CALLS)
        call[calls++] = (uintptr_t)p;
}

static void on_free(const volatile void *p)
{
    if (fuzz_running && p && calls < CALLS)
        call[calls++] = (uintptr_t)p + 1;
}

static int by_address(const void *a, const void *b)
{
    uintptr_t s = *(const uintptr_t *)a, t = *(const uintptr_t *)b;
    return (s > t) - (s < t);
}

/* Frees the addresses with more calls of malloc than of free. */
static void sweep(void)
{
    qsort(call, (size_t)calls, sizeof *call, by_address);
    for (int i = 0, n; i < calls; i += n) {
        uintptr_t p = call[i] & ~(uintptr_t)1;
        int held = 0;
        for (n = 0; i + n < calls && (call[i + n] & ~(uintptr_t)1) == p; n++)
            held += call[i + n] & 1 ? -1 : 1;
        if (held > 0 && calls < CALLS)
            free((void *)p);
    }
}

/* ---- stopping */

static void silence(int on)
{
    if (on)
        out = stdout, err = stderr;
    stdout = on ? fuzz_nowhere() : out;
    stderr = on ? fuzz_nowhere() : err;
    fuzz_running = on;
}

_Noreturn void fuzz_found(const char *fmt, ...)
{
    va_list ap;
    if (fuzz_running)
        silence(0);
    va_start(ap, fmt);
    fprintf(stderr, "fuzz %s: ", target->name);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    abort();
}

static _Noreturn void leave(int code)
{
    for (const int *c = target->codes; *c; c++)
        if (*c == code)
            longjmp(caught, code);
    fuzz_found("ends with exit code %d", code);
}

/* For what base.c calls itself. A mistake of the program speaks. */
static int may_speak(int code)
{
    if (code == EXIT_BUG && fuzz_running)
        silence(0);
    return code == EXIT_BUG;
}

_Noreturn void __wrap_die_at(const char *file, int line, int code, const char *id, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
_Noreturn void __wrap_die_at(const char *file, int line, int code, const char *id, const char *fmt, ...)
{
    char text[4096];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n < 0 || !strstr(text, "; change: "))
        fuzz_found("%s:%d: error[%s] lacks `; change: `: %s", file, line, id, text);
    leave(code);
}

/* ---- runs */

enum { TEXTS = 64 };
static char *text[TEXTS]; /* [texts] what fuzz_take_text has given out */
static int texts;

static void open_once(void)
{
    static int opened;
    if (opened)
        return;
    opened = 1;
    if (__sanitizer_install_malloc_and_free_hooks)
        __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
    die_hooks(NULL, may_speak, leave);
}

int fuzz_run(const FuzzTarget *t, const uint8_t *p, size_t n)
{
    open_once();
    target = t;
    volatile int code = 0;
    silence(1);
    if (!(code = setjmp(caught)))
        t->run(p, n);
    fuzz_files_close();
    while (texts)
        free(text[--texts]);
    if (t->forget)
        t->forget();
    silence(0);
    if (code)
        sweep();
    calls = 0;
    return code;
}

char *fuzz_take_text(const uint8_t **p, size_t *n, size_t *length)
{
    const uint8_t *end = *n ? memchr(*p, 0, *n) : NULL;
    size_t k = end ? (size_t)(end - *p) : *n;
    if (texts == TEXTS)
        fuzz_found("takes more than %d texts", TEXTS);
    char *at = text[texts++] = xcalloc(k + 1, 1);
    if (k)
        memcpy(at, *p, k);
    *p += end ? k + 1 : k;
    *n -= end ? k + 1 : k;
    *length = k;
    return at;
}

static FuzzSeeds collected;

void fuzz_seed(const void *p, size_t n)
{
    int i = collected.n++;
    collected.list = xrealloc(collected.list, (size_t)collected.n * sizeof *collected.list);
    collected.size = xrealloc(collected.size, (size_t)collected.n * sizeof *collected.size);
    collected.list[i] = memcpy(xcalloc(1, n), p, n);
    collected.size[i] = n;
}

FuzzSeeds fuzz_seeds(const FuzzTarget *t)
{
    for (int i = 0; i < collected.n; i++)
        free(collected.list[i]);
    free(collected.list);
    free(collected.size);
    collected = (FuzzSeeds){0};
    t->seeds();
    return collected;
}

FuzzSeeds fuzz_seeds_now(void) { return collected; }
