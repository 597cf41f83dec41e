/* test_faults -- the executable with a rank that dies, hangs or is slow at a chosen moment, for
 * tests/parallel/faults.sh, hangs.sh, restarts.sh, failures.sh, stragglers.sh, float_modes.sh and
 * tests/report/losses.sh
 *
 * The linker wraps comm_note, message_advance, collective_advance, blend_read, cpu_open, config_build_id,
 * pthread_create and fork (Makefile), and faults.h stands in front of the calls that write files; all else
 * is the program itself.
 *
 * FAULT="RANK SITE ITERATION MICROSECONDS [HOW]": rank RANK (-2: every rank) dies that long after its
 * comm_note of SITE in that iteration. SITE: the letters of an instruction (F, B, SA, R, ...), or "save";
 * "note": after the ITERATION-th instruction of this process; "start": after the process has begun; "end": as
 * it leaves MPI, when its work is done;
 * "allocation", "thread", "fork": the ITERATION-th allocation, thread or process of this process cannot be
 * had (HOW on: nor any allocation after it; ITERATION 0: none fails, and FAULT_DIR/allocations gets the
 * number of the first allocation of each chain of callers).
 * FAULT_DIR: folder in which every rank leaves a file named after its process id; the rank that dies also
 * leaves `died`, whose time is the time of its death. HOW, instead of death: mpirun (its parent is
 * killed), job (its parent's parent is killed; the rank stands still), segv, bus (a write to an address
 * that is not there; to a page behind the end of its file), full, eio (from now on no file can be written
 * or flushed), memory (from now on no memory can be had), die (an error line that names no iteration),
 * fall (that, then a crash in MPI_Abort), stop (SIGSTOP), loop (computes for ever), sleep (waits for a
 * signal that does not come), pipe (reads a FIFO that nobody writes), disk (sleeps in the system where
 * only SIGKILL wakes it, as before a file system that does not answer), thread (another thread keeps the
 * engine's lock), drop (the next message that it sends is lost), nap (sleeps for four seconds and goes
 * on), flush (the next flush of a file takes eight seconds), crawl (each write to a file of a save takes
 * 0.2 seconds longer), report (the report waits four seconds for its name), hold (nothing more of that
 * iteration's checkpoint on the disk is written; three iterations later the rank is killed), crowd (from
 * now on there is no room for a copy in memory), down (rounds down from now on; MICROSECONDS is 0: a
 * signal's handler cannot change modes), slow (for 20 iterations every instruction of SITE takes
 * MICROSECONDS percent longer than these usually did; SITE `all`: F, B and S), pause (in that iteration
 * SITE takes MICROSECONDS longer each time: letters as above, or "save"), link (from the first instruction
 * of that iteration on each operation of the group named SITE takes so much longer), op (likewise each op
 * of the device named SITE, or `every` op), late (each sample takes the loader so much longer, in every
 * iteration).
 * PRETEND_ISA, PRETEND_THREADS, PRETEND_BUILD: the instruction set and the number of threads that this
 * rank computes with, and the build that it says to be. */
#define _GNU_SOURCE
#include "faults.h"
#include "dataset.h"
#include "device.h"
#include "engine.h"
#include "group.h"
#include "job.h"
#include "pace.h"
#include <ctype.h>
#include <execinfo.h>
#include <fcntl.h>
#include <fenv.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

static int rank = -1, victim = -1;
static char site[24], how[16] = "kill";
static long long iteration, delay;
static _Atomic int dropping;           /* bool: the next message is lost */
static _Atomic int held;               /* bool: keep_lock has the lock */
static int callers = -1;               /* FAULT_DIR/allocations, with iteration 0; else -1 */

void __real_comm_note(const char *text);
void __wrap_comm_note(const char *text);
int __real_message_advance(Request *r);
int __wrap_message_advance(Request *r);
int __real_collective_advance(Request *r);
int __wrap_collective_advance(Request *r);
int __real_blend_read(const Blend *b, int64_t k, int64_t from, int64_t n, int32_t *out, int *set, char **why);
int __wrap_blend_read(const Blend *b, int64_t k, int64_t from, int64_t n, int32_t *out, int *set, char **why);
int __real_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*fn)(void *), void *arg);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*fn)(void *), void *arg);
pid_t __real_fork(void);
pid_t __wrap_fork(void);
void __real_cpu_open(Device *d, Dtype real, const char *isa, int threads);
void __wrap_cpu_open(Device *d, Dtype real, const char *isa, int threads);
int MPI_Finalize(void);
int PMPI_Finalize(void);
int MPI_Abort(void *comm, int code);
int PMPI_Abort(void *comm, int code);
const char *__real_config_build_id(void);
const char *__wrap_config_build_id(void);

/* ---- slower by a given time ---- */

static _Atomic long long at_iteration; /* the iteration of the last comm_note */

/* Whether this rank is slower now, in the way `which`. */
static int lasts(const char *which)
{
    return (rank == victim || victim == -2) && !strcmp(how, which) && at_iteration >= iteration;
}

static Device plain;                   /* the device as it was */

#define X(name, params, names) \
    static void slow_##name params \
    { \
        static int inside;             /* ops that this one is composed of */ \
        if (lasts("op") && !inside && (!strcmp(site, #name) || !strcmp(site, "every"))) \
            usleep((useconds_t)delay); \
        inside++; \
        plain.name names; \
        inside--; \
    }
OPS(X)
#undef X

void __wrap_cpu_open(Device *d, Dtype real, const char *isa, int threads)
{
    const char *other = getenv("PRETEND_ISA"), *number = getenv("PRETEND_THREADS");
    __real_cpu_open(d, real, other ? other : isa, number ? atoi(number) : threads);
    plain = *d;
    if (strcmp(how, "op"))
        return;
#define X(name, params, names) d->name = slow_##name;
    OPS(X)
#undef X
}

int __wrap_blend_read(const Blend *b, int64_t k, int64_t from, int64_t n, int32_t *out, int *set, char **why)
{
    if ((rank == victim || victim == -2) && !strcmp(how, "late"))
        usleep((useconds_t)delay);
    return __real_blend_read(b, k, from, n, out, set, why);
}

/* The operation takes longer before its end. */
static int over_link(const Request *r, int moved)
{
    if (r->done && lasts("link") && !strcmp(site, r->name))
        usleep((useconds_t)delay);
    return moved;
}

int __wrap_collective_advance(Request *r) { return over_link(r, __real_collective_advance(r)); }

const char *__wrap_config_build_id(void)
{
    const char *other = getenv("PRETEND_BUILD");
    return other ? other : __real_config_build_id();
}

static int create(const char *name)
{
    static char path[512];
    const char *dir = getenv("FAULT_DIR");
    if (!dir)
        return -1;
    strncat(strcpy(path, ""), dir, 400);
    strcat(strcat(path, "/"), name);
    return open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
}

static void leave_file(const char *name)
{
    int fd = create(name);
    if (fd >= 0)
        close(fd);
}

static void read_pipe(void)
{
    char path[512], byte;
    snprintf(path, sizeof path, "%s/pipe", getenv("FAULT_DIR"));
    mkfifo(path, 0666);
    int fd = open(path, O_RDWR);           /* its own writer: reading does not end */
    while (read(fd, &byte, 1) < 1) {
    }
}

/* Sleeps in state D: a process waits so for the child of its vfork. */
static void sleep_deep(void)
{
    if (!vfork())
        for (;;)
            pause();
}

static void *keep_lock(void *unused)
{
    engine_lock();
    held = 1;
    for (;;)
        pause();
    return unused;
}

/* ---- memory and threads that cannot be had ---- */

static int no_memory;                  /* bool */
static _Atomic int counting;           /* bool: the site is `allocation` */

#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
static _Atomic long long allocations;
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);

/* Notes the number of an allocation whose callers are new. */
static void note_callers(long long n)
{
    static uint64_t seen[1 << 16];
    void *at[24];
    uint64_t h = 0;
    int depth = backtrace(at, 24);
    for (int i = 2; i < depth; i++)
        h = (h ^ (uint64_t)(uintptr_t)at[i]) * 1099511628211ull;
    uint64_t *s = &seen[h >> 48];
    while (*s && *s != h)
        s = s == &seen[(1 << 16) - 1] ? seen : s + 1;
    if (!*s)
        dprintf(callers, "%lld\n", n);
    *s = h;
}

static int refused(void)
{
    static __thread int noting;        /* bool: note_callers allocates, too */
    if (counting && !noting) {
        long long n = ++allocations;
        noting = 1;
        if (callers >= 0)
            note_callers(n);
        noting = 0;
        if (n != iteration && !(no_memory && n > iteration))
            return 0;
        if (n == iteration)
            leave_file("died");
        no_memory = !strcmp(how, "on");
    } else if (!no_memory)
        return 0;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t n) { return refused() ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t size) { return refused() ? NULL : __libc_calloc(n, size); }
void *realloc(void *p, size_t n) { return refused() ? NULL : __libc_realloc(p, n); }
void *aligned_alloc(size_t align, size_t n) { return refused() ? NULL : __libc_memalign(align, n); }

int posix_memalign(void **p, size_t align, size_t n)
{
    *p = refused() ? NULL : __libc_memalign(align, n);
    return *p ? 0 : ENOMEM;
}

void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t from)
{
    return refused() ? MAP_FAILED : (void *)syscall(SYS_mmap, at, n, protection, flags, fd, from);
}
#endif

/* Whether the call that is made now is the chosen one of the site. */
static int is_chosen(const char *which)
{
    static _Atomic long long calls;
    if (strcmp(site, which) || (rank != victim && victim != -2) || ++calls != iteration)
        return 0;
    leave_file("died");
    errno = EAGAIN;
    return 1;
}

int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*fn)(void *), void *arg)
{
    return is_chosen("thread") ? EAGAIN : __real_pthread_create(t, a, fn, arg);
}

pid_t __wrap_fork(void) { return is_chosen("fork") ? -1 : __real_fork(); }

/* ---- faults ---- */

static void write_nowhere(void)
{
    static char *volatile address = (char *)64;
    *address = 1;
}

static void write_behind_end(void)
{
    char path[512];
    snprintf(path, sizeof path, "%s/short", getenv("FAULT_DIR"));
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0666);
    char *volatile p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    *p = 1;
}

/* Kills the parent of this process's parent: scripts/launch_job. */
static void kill_launch_job(void)
{
    char path[32];
    int job = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", getppid());
    FILE *f = fopen(path, "re");
    if (f && fscanf(f, "%*d %*s %*c %d", &job) == 1 && job > 1)
        kill(job, SIGKILL);
}

static void strike(int sig)
{
    static volatile double sum;
    pthread_t thread;
    (void)sig;
    leave_file("died");
    if (!strcmp(how, "kill"))
        kill(getpid(), SIGKILL);
    else if (!strcmp(how, "mpirun"))
        kill(getppid(), SIGKILL);
    else if (!strcmp(how, "segv"))
        write_nowhere();
    else if (!strcmp(how, "bus"))
        write_behind_end();
    else if (!strcmp(how, "full") || !strcmp(how, "eio"))
        fail_with = *how == 'f' ? ENOSPC : EIO, fail_after = 0;
    else if (!strcmp(how, "memory"))
        no_memory = 1, setrlimit(RLIMIT_AS, &(struct rlimit){4096, 4096});
    else if (!strcmp(how, "stop"))
        kill(getpid(), SIGSTOP);
    else if (!strcmp(how, "die") || !strcmp(how, "fall"))
        die(EXIT_RESOURCE, "memory", "nothing is left; change: nothing");
    else if (!strcmp(how, "pipe"))
        read_pipe();
    else if (!strcmp(how, "disk"))
        sleep_deep();
    else if (!strcmp(how, "nap"))
        usleep(4000000);
    else if (!strcmp(how, "flush"))
        slow_flush = 8000;
    else if (!strcmp(how, "crawl"))
        slow_writes = 200;
    else if (!strcmp(how, "report"))
        slow_report = 4000;
    else if (!strcmp(how, "hold"))
        held_saves = (int)iteration;
    else if (!strcmp(how, "crowd"))
        full_memory = 1;
    else if (!strcmp(how, "drop"))
        dropping = 1;
    else if (!strcmp(how, "down"))
        fesetround(FE_DOWNWARD);
    else if (!strcmp(how, "thread"))
        for (pthread_create(&thread, NULL, keep_lock, NULL); !held;)
            usleep(100);
    else {
        if (!strcmp(how, "job"))
            kill_launch_job();
        for (;;)
            if (strcmp(how, "loop"))
                pause();
            else
                sum += 1;
    }
}

int __wrap_message_advance(Request *r)
{
    int one = 1;
    if (r->kind != COMM_SEND || !atomic_compare_exchange_strong(&dropping, &one, 0))
        return over_link(r, __real_message_advance(r));
    return r->done = 1;
}

static void strike_later(void)
{
    victim = -1;
    if (!delay) {
        strike(0);
        return;
    }
    signal(SIGALRM, strike);
    setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {delay / 1000000, delay % 1000000}}, NULL);
}

__attribute__((constructor)) static void begin(void)
{
    const char *text = getenv("FAULT");
    char pid[16];
    job_launched(&rank);
    snprintf(pid, sizeof pid, "%d", getpid());
    leave_file(pid);
    if (text && sscanf(text, "%d %23s %lld %lld %15s", &victim, site, &iteration, &delay, how) < 4) {
        fprintf(stderr, "FAULT='%s' is not RANK SITE ITERATION MICROSECONDS [HOW]\n", text);
        exit(2);
    }
    int here = rank == victim || victim == -2;
    if (here && !strcmp(site, "start"))
        strike_later();
    if (here && !strcmp(site, "allocation")) {
        void *at[4];
        backtrace(at, 4);              /* its first call loads a library */
        if (!iteration)
            callers = create("allocations");
        counting = 1;
    }
}

int MPI_Finalize(void)
{
    if ((rank == victim || victim == -2) && !strcmp(site, "end"))
        strike_later();
    return PMPI_Finalize();
}

int MPI_Abort(void *comm, int code)
{
    if (!strcmp(how, "fall"))
        write_nowhere();
    return PMPI_Abort(comm, code);
}

/* 1: the note is the chosen site of the chosen iteration. "B5.0 of iteration 12" is site B of iteration 12,
 * "save of iteration 12" is its site `save`. */
static int is_there(const char *text)
{
    static long long notes;
    size_t n = strlen(site);
    const char *of = strstr(text, " of iteration ");
    if (!of)
        return 0;
    if (!strcmp(site, "note"))
        return ++notes == iteration;
    return !strncmp(text, site, n) && !isalpha((unsigned char)text[n]) && atoll(of + 14) == iteration;
}

/* Sleeps where an instruction of the site begins. How long these take, waits apart, is measured before. A
 * wait for a message and one for a core may overlap, and both are taken off: no less than 0 is left, as in
 * own_time.c. */
static void slow_down(const char *text)
{
    static double sum[128];
    static int n[128], last;
    static Pace before;
    const char *of = strstr(text, " of iteration ");
    int c = of && strchr("FBS", text[0]) && !isalpha((unsigned char)text[1]) ? text[0] : 0;
    long long at = of ? atoll(of + 14) : 0;
    Pace p = pace_now();
    if (last && at > 4 && at < iteration) {
        sum[last] += fmax(0, p.wall - before.wall - (p.away - before.away) - (p.starved - before.starved));
        n[last]++;
    }
    if (c && n[c] && at >= iteration && at < iteration + 20 && (!strcmp(site, "all") || site[0] == c))
        usleep((useconds_t)fmax(0, 1e4 * (double)delay * sum[c] / n[c]));
    last = c;
    before = pace_now();
}

void __wrap_comm_note(const char *text)
{
    const char *of = strstr(text, " of iteration ");
    __real_comm_note(text);
    at_iteration = of ? atoll(of + 14) : at_iteration;
    if (!strcmp(how, "op") || !strcmp(how, "link") || !strcmp(how, "late"))
        return;
    if (held_saves && at_iteration >= iteration + 3)
        kill(getpid(), SIGKILL);
    if (!strcmp(how, "pause")) {
        if ((rank == victim || victim == -2) && is_there(text))
            usleep((useconds_t)delay);
        return;
    }
    if (rank == victim && !strcmp(how, "slow"))
        slow_down(text);
    else if ((rank == victim || victim == -2) && is_there(text))
        strike_later();
}
