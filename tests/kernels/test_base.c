/* test_base -- arenas, Philox against the published known answers, moments of the normal numbers,
 * hashes */
#define _GNU_SOURCE
#include "base.h"
#include "test.h"
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void arenas(void)
{
    Arena a = {.name = "count"}, b;
    CHECK(!arena_take(&a, 1) && a.used == ARENA_ALIGN, "used %zu", a.used);
    CHECK(!arena_take(&a, ARENA_ALIGN) && a.used == 2 * ARENA_ALIGN, "used %zu", a.used);
    size_t mark = a.used;
    arena_take(&a, 1000);
    arena_reset(&a, mark);
    CHECK(a.used == mark && a.peak == mark + 1024, "used %zu peak %zu", a.used, a.peak);

    arena_open(&b, "real", a.peak);
    char *p = arena_take(&b, 1), *q = arena_take(&b, ARENA_ALIGN), *r = arena_take(&b, 1000);
    CHECK((uintptr_t)p % ARENA_ALIGN == 0 && q == p + ARENA_ALIGN && r == q + ARENA_ALIGN, "%p %p %p",
          (void *)p, (void *)q, (void *)r);
    int zero = 1;
    for (size_t i = 0; i < a.peak; i++)
        zero &= p[i] == 0;
    CHECK(zero, "a fresh arena is not zero");
    memset(p, 1, a.peak);
    b.sealed = 1;
    arena_reset(&b, 0);
    CHECK(arena_take(&b, a.peak) == p, "a sealed arena gives what it has");
    arena_close(&b);
    CHECK(!b.base, "closed");
}

static void sealed_take(void)
{
    Arena a = {.name = "sealed"};
    a.sealed = 1;
    arena_take(&a, 1);
}
static void full_take(void)
{
    Arena a;
    arena_open(&a, "full", 64);
    arena_take(&a, 65);
}
/* Sizes whose sum, or product, does not fit 64 bits. */
static void endless_sum(void)
{
    Arena a = {.name = "endless"};
    for (int i = 0; i < 9; i++)
        arena_take(&a, (size_t)1 << 59);
}
static void endless_product(void) { arena_add("endless", 0, (size_t)1 << 24, (size_t)1 << 40); }
static void die_here(void)
{
    die(EXIT_DATA, "test", "%s = %d; change: nothing", "a\nb\033[1m\302\2332m\303\251", 7);
}

/* A path, or a list, can be longer than the line that is written. */
static void die_at_length(void)
{
    static char path[3 << 12];
    memset(path, 'x', sizeof path - 1);
    die(EXIT_DATA, "test", "cannot read %s; change: another path", path);
}
static void warn_at_length(void)
{
    static char path[3 << 12];
    memset(path, 'x', sizeof path - 1);
    warn("%s is not used", path);
}

#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
static int no_memory;                  /* bool */
void *__libc_malloc(size_t n);
void *malloc(size_t n) { return no_memory ? NULL : __libc_malloc(n); }
static const char *someone(void) { return "rank 3"; }

/* The error line takes nothing from the heap. */
static void die_without_memory(void)
{
    die_hooks(someone, NULL, NULL);
    no_memory = 1;
    xstrdup("text");
}
#else
static void die_without_memory(void)
{
    fputs("error[memory] [rank 3] ", stderr);
    _exit(EXIT_RESOURCE);
}
#endif

/* Runs fn in a child process. Returns the exit code; text: what fn wrote to standard error. */
static int ends_with(void (*fn)(void), char *text, size_t size)
{
    int fd[2], status;
    if (pipe(fd))
        exit(1);
    fflush(stdout);
    pid_t pid = fork();
    if (!pid) {
        dup2(fd[1], 2);
        fn();
        _exit(0);
    }
    close(fd[1]);
    ssize_t n = read(fd[0], text, size - 1);
    text[n > 0 ? n : 0] = 0;
    close(fd[0]);
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int ends_in(const char *text, const char *end)
{
    size_t n = strlen(text), k = strlen(end);
    return n >= k && !strcmp(text + n - k, end);
}

/* A text that is too long loses its middle: what is wrong and what to change stay. */
static void long_texts(void)
{
    char text[3 << 12];
    int rc = ends_with(die_at_length, text, sizeof text);
    CHECK(rc == EXIT_DATA && !strncmp(text, "error[test] cannot read xxx", 27), "%d %.60s", rc, text);
    CHECK(strlen(text) < 4200 && strstr(text, "x ... x"), "%zu bytes", strlen(text));
    CHECK(ends_in(text, "x; change: another path\n"), "the end is lost: %s", text + strlen(text) - 60);
    ends_with(warn_at_length, text, sizeof text);
    CHECK(strstr(text, "x ... x") && ends_in(text, "x is not used\n"), "a warning's end is lost");
}

static void endings(void)
{
    char text[512];
    int rc = ends_with(sealed_take, text, sizeof text);
    CHECK(rc == EXIT_BUG && strstr(text, "a->sealed"), "%d %s", rc, text);
    rc = ends_with(full_take, text, sizeof text);
    CHECK(rc == EXIT_BUG, "%d %s", rc, text);
    rc = ends_with(endless_sum, text, sizeof text);
    CHECK(rc == EXIT_RESOURCE && strstr(text, "endless would take more than 2^60 bytes"), "%d %s", rc, text);
    rc = ends_with(endless_product, text, sizeof text);
    CHECK(rc == EXIT_RESOURCE, "%d %s", rc, text);
    rc = ends_with(die_here, text, sizeof text);
    CHECK(rc == EXIT_DATA && !strncmp(text, "error[test] ", 12), "%d %s", rc, text);
    CHECK(!strcmp(text + 12, "a?b?[1m??2m\303\251 = 7; change: nothing\n"), "not one line: %s", text);
    rc = ends_with(die_without_memory, text, sizeof text);
    CHECK(rc == EXIT_RESOURCE && !strncmp(text, "error[memory] [rank 3] ", 23), "%d %s", rc, text);
}

/* The known answers that come with Random123 (kat_vectors: philox4x32 10). */
static void random123(void)
{
    static const struct { uint32_t counter[4], key[2], result[4]; } kat[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof kat / sizeof *kat; i++) {
        const uint32_t *c = kat[i].counter, *k = kat[i].key;
        uint64_t lo = c[0] | (uint64_t)c[1] << 32, hi = c[2] | (uint64_t)c[3] << 32;
        Philox r = philox(k[0] | (uint64_t)k[1] << 32, lo, hi);
        CHECK(!memcmp(r.v, kat[i].result, sizeof r.v), "vector %zu: %08x %08x %08x %08x", i, r.v[0], r.v[1],
              r.v[2], r.v[3]);
    }
}

static void moments(void)
{
    enum { N = 400000 };
    uint64_t key = rng_key(1, "a"), other = rng_key(1, "b"), seed = rng_key(2, "a");
    double m[5] = {0}, u[3] = {0}, cross = 0, lag = 0;
    int wild = 0;
    for (int i = 0; i < N; i++) {
        double x = rng_normal(key, 3, (uint64_t)i), y = rng_uniform(key, 3, (uint64_t)i);
        double p = x;
        for (int k = 1; k < 5; k++, p *= x)
            m[k] += p / N;
        u[1] += y / N;
        u[2] += y * y / N;
        cross += x * rng_normal(other, 3, (uint64_t)i) / N;
        lag += x * rng_normal(key, 3, (uint64_t)i + 1) / N;
        wild += !(y >= 0 && y < 1 && isfinite(x));
    }
    CHECK(!wild, "%d numbers out of range", wild);
    double run[1000];
    rng_normals(key, 3, 5, 1000, 0, 1, run);   /* indices 5 to 1004: both ends split a pair of normals */
    for (int i = 0; i < 1000; i++) {
        CHECK(run[i] == rng_normal(key, 3, 5 + (uint64_t)i), "normal %d of a run", i);
        /* Box-Muller by the C library */
        Philox w = philox(key, (uint64_t)(i + 5) / 2, 3);
        double r = sqrt(-2 * log(ldexp((double)(((uint64_t)w.v[0] << 32 | w.v[1]) >> 11) + 1, -53)));
        double a = 2 * acos(-1) * ldexp((double)(((uint64_t)w.v[2] << 32 | w.v[3]) >> 11), -53);
        double want = r * (i % 2 ? cos(a) : sin(a));
        CHECK(fabs(run[i] - want) < 1e-14, "normal %d: %.17g, not %.17g", i, run[i], want);
    }
    /* limits: five standard errors */
    double e = 5 / sqrt(N);
    CHECK(fabs(m[1]) < e && fabs(m[2] - 1) < e * sqrt(2), "mean %g variance %g", m[1], m[2]);
    CHECK(fabs(m[3]) < e * sqrt(15) && fabs(m[4] - 3) < e * sqrt(96), "third %g fourth %g", m[3], m[4]);
    CHECK(fabs(u[1] - 0.5) < e * 0.29 && fabs(u[2] - 1. / 3) < e * 0.3, "uniform %g %g", u[1], u[2]);
    CHECK(fabs(cross) < e && fabs(lag) < e, "streams %g, neighbours %g", cross, lag);
    CHECK(key != other && key != seed, "keys");
    CHECK(rng_normal(key, 3, 5) == rng_normal(key, 3, 5) && rng_normal(key, 3, 5) != rng_normal(key, 4, 5),
          "a number is a function of key, sub and index");
}

/* Published FNV-1a values: the empty string, "a", "foobar". */
static void hashes(void)
{
    const uint64_t basis = 14695981039346656037ull;
    CHECK(hash64("", 0, basis) == basis, "empty");
    CHECK(hash64("a", 1, basis) == 0xaf63dc4c8601ec8cull, "a");
    CHECK(hash64("foobar", 6, basis) == 0x85944171f73967e8ull, "foobar");
    CHECK(hash64("bar", 3, hash64("foo", 3, HASH_SEED)) == hash64("foobar", 6, HASH_SEED), "in two pieces");
}

/* Scheduling of a thread for each urgency. RUNS_SOON sets a short time slice where the kernel has slices
 * (older kernels report 0), RUNS_FIRST real-time scheduling where the process may, RUNS_USUAL the
 * initial values. */
static void urgency(void)
{
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } a;
    uint64_t usual = 0;
    setpriority(PRIO_PROCESS, 0, 19);  /* a job that yields to others does so whatever its threads do */
    for (int i = 0; i < 4; i++) {
        const Urgency u[] = {RUNS_USUAL, RUNS_SOON, RUNS_FIRST, RUNS_USUAL};
        thread_urgency(u[i]);
        CHECK(getpriority(PRIO_PROCESS, 0) == 19, "%d: nice %d", i, getpriority(PRIO_PROCESS, 0));
        CHECK(!syscall(SYS_sched_getattr, 0, &a, sizeof a, 0), "sched_getattr");
        usual = i ? usual : a.runtime;
        CHECK(a.policy == SCHED_OTHER || (u[i] == RUNS_FIRST && a.policy == SCHED_RR), "%d: policy %u", i,
              a.policy);
        CHECK(u[i] != RUNS_SOON || !usual || a.runtime == 100000, "%llu ns", (unsigned long long)a.runtime);
        CHECK(u[i] != RUNS_USUAL || a.runtime == usual, "%llu ns", (unsigned long long)a.runtime);
    }
}

int main(void)
{
    arenas();
    endings();
    long_texts();
    random123();
    moments();
    hashes();
    urgency();
    double t = now();
    CHECK(now() >= t && t > 0, "clock");
    return test_end();
}
