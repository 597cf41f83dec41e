/* test_fuzz -- all targets of fuzzing without libFuzzer. No argument: each target's seeds, the kept findings
 * in tests/fuzz/crashers, and some thousand changed inputs, the same ones every time.
 *   TARGET FILE..   those inputs alone, files or folders of files
 *   TARGET N [FOLDER]  N changed inputs, other ones every time, of the seeds and of the files in FOLDER */
#define _GNU_SOURCE
#include "fuzz.h"
#include "test.h"
#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHANGED = 2000, LARGEST = 1 << 16, BATCH = 20000 };

#define X(name) &fuzz_##name,
static const FuzzTarget *const targets[] = {FUZZ_TARGETS(X)};
#undef X
#define TARGETS (sizeof targets / sizeof *targets)

static const FuzzTarget *now_target;
static const uint8_t *now_input;
static size_t now_size;

/* Keeps the input that has ended the process. */
static void on_signal(int signal)
{
    char path[512];
    fuzz_running = 0;
    snprintf(path, sizeof path, "%s/crash-%s", getenv("WORK") ? getenv("WORK") : ".", now_target->name);
    FILE *f = fopen(path, "w");
    if (f) {
        fwrite(now_input, 1, now_size, f);
        fclose(f);
    }
    dprintf(2, "# %s: signal %d; the input is kept in %s\n", now_target->name, signal, path);
    _exit(1);
}

static void run(const FuzzTarget *t, const uint8_t *p, size_t n)
{
    uint8_t *exact = memcpy(xcalloc(1, n), p, n); /* a reader beyond its end is found */
    now_target = t, now_input = exact, now_size = n;
    /* 20 s of CPU: by the clock a machine may hold the process up as long. 240 s: it waits without end. */
    setitimer(ITIMER_PROF, &(struct itimerval){.it_value.tv_sec = 20}, NULL);
    alarm(240);
    fuzz_run(t, exact, n);
    free(exact);
}

static uint64_t state;
static uint64_t draw(uint64_t n)
{
    state += 0x9e3779b97f4a7c15ull;
    return philox(state, 0, 0).v[0] % n;
}

/* Changes a few bytes of p [n], inserts or cuts some, or puts in a word of the target. Returns the size. */
static size_t change(const FuzzTarget *t, uint8_t *p, size_t n)
{
    static const uint8_t edges[] = {0, 1, 127, 128, 255, 254, '"', '{', '\n', ',', '-', '9'};
    int words = 0;
    while (t->words && t->words[words])
        words++;
    for (uint64_t edits = 1 + draw(6); edits; edits--) {
        size_t at = n ? draw(n) : 0, k = 1 + draw(8);
        const char *word = words ? t->words[draw((uint64_t)words)] : "";
        switch (n ? draw(5) : 0) {
        case 0: /* a byte, or a word, inserted */
            k = draw(2) && words ? strlen(word) : 1;
            if (n + k > LARGEST)
                break;
            memmove(p + at + k, p + at, n - at);
            memset(p + at, (int)draw(256), k);
            if (k == strlen(word))
                memcpy(p + at, word, k);
            n += k;
            break;
        case 1:
            p[at] ^= (uint8_t)(1 << draw(8));
            break;
        case 2:
            p[at] = edges[draw(sizeof edges)];
            break;
        case 3:
            k = k < n - at ? k : n - at;
            memmove(p + at, p + at + k, n - at - k);
            n -= k;
            break;
        default:
            p[at] = (uint8_t)(p[at] + draw(9) - 4);
        }
    }
    return n;
}

static FuzzSeeds inputs;               /* what is changed */

/* The bytes of a file; NULL: it cannot be read. */
static uint8_t *contents(const char *path, size_t *size)
{
    struct stat st;
    FILE *f = fopen(path, "r");
    if (!f || fstat(fileno(f), &st) || !S_ISREG(st.st_mode)) {
        if (f)
            fclose(f);
        return NULL;
    }
    uint8_t *p = xcalloc(1, (size_t)st.st_size);
    *size = fread(p, 1, (size_t)st.st_size, f);
    fclose(f);
    return p;
}

/* Takes the seeds of the target, and the files of a folder; NULL: of none. */
static void set_inputs(const FuzzTarget *t, const char *folder)
{
    fuzz_seeds(t);
    DIR *d = folder ? opendir(folder) : NULL;
    CHECK(d || !folder, "%s: no such folder", folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        size_t size;
        char *path = xasprintf("%s/%s", folder, e->d_name);
        uint8_t *p = contents(path, &size);
        if (p && size)
            fuzz_seed(p, size);
        free(p);
        free(path);
    }
    if (d)
        closedir(d);
    inputs = fuzz_seeds_now();
}

static void run_changed(const FuzzTarget *t, int64_t runs)
{
    static uint8_t p[LARGEST];
    for (int64_t i = 0; i < runs; i++) {
        uint64_t k = draw((uint64_t)inputs.n);
        size_t n = inputs.size[k] < LARGEST ? inputs.size[k] : LARGEST;
        memcpy(p, inputs.list[k], n);
        run(t, p, change(t, p, n));
    }
}

static int run_file(const FuzzTarget *t, const char *path)
{
    struct stat st;
    int n = 0;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        DIR *d = opendir(path);
        for (struct dirent *e; d && (e = readdir(d));) {
            char *inside = xasprintf("%s/%s", path, e->d_name);
            n += *e->d_name == '.' ? 0 : run_file(t, inside);
            free(inside);
        }
        if (d)
            closedir(d);
        return n;
    }
    size_t size;
    uint8_t *p = contents(path, &size);
    if (!p)
        return 0;
    run(t, p, size);
    free(p);
    return 1;
}

/* Runs a target in a process of its own: what die() leaves behind ends with it. */
static int in_child(void (*fn)(const FuzzTarget *, int64_t), const FuzzTarget *t, int64_t n)
{
    int status = 0;
    fflush(stdout);
    pid_t pid = fork();
    if (!pid) {
        for (int k = 0; k < 6; k++)
            signal((int[]){SIGSEGV, SIGBUS, SIGABRT, SIGALRM, SIGPROF, SIGFPE}[k], on_signal);
        fn(t, n);
        _exit(0);
    }
    waitpid(pid, &status, 0);
    return status == 0;
}

static void suite(const FuzzTarget *t, int64_t unused)
{
    (void)unused;
    for (int i = 0; i < inputs.n; i++)
        run(t, inputs.list[i], inputs.size[i]);
    char *path = xasprintf("tests/fuzz/crashers/%s", t->name);
    run_file(t, path);
    run_changed(t, CHANGED);
}

int main(int argc, char **argv)
{
    for (size_t i = 0; i < TARGETS; i++) {
        const FuzzTarget *t = targets[i];
        if (argc > 1 && strcmp(argv[1], t->name))
            continue;
        int64_t runs = argc > 2 ? strtoll(argv[2], NULL, 10) : 0;
        if (runs || argc == 1)
            set_inputs(t, argc > 3 ? argv[3] : NULL);
        if (runs)
            state = (uint64_t)getpid() << 32 ^ (uint64_t)(now() * 1e9);
        for (; runs > 0; runs -= BATCH, state += (uint64_t)BATCH << 20)
            CHECK(in_child(run_changed, t, runs < BATCH ? runs : BATCH), "%s", t->name);
        if (argc == 1)
            CHECK(in_child(suite, t, 0), "%s", t->name);
        for (int k = 2; k < argc && !strtoll(argv[2], NULL, 10); k++)
            CHECK(run_file(t, argv[k]), "%s: no such input", argv[k]);
    }
    return test_end();
}
