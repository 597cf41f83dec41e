/* job -- the page that the ranks of one host share: doorbells, who lives, who prints the error line */
#define _GNU_SOURCE
#include "job.h"
#include "comm.h"
#include "hang.h"
#include "host_memory.h"
#include "pool.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ABSENT, RUNNING, LEFT };

/* A rank's part of the page. Texts begin with @, end in 0: `tr '\0' '\n' < page | grep ^@` reads them. */
typedef struct {
    _Alignas(64) _Atomic uint32_t bell, sleepers;  /* rings so far; threads that sleep or are about to */
    _Alignas(64) _Atomic int state;    /* ABSENT, RUNNING, LEFT */
    pid_t pid;
    int rank;                      /* in the world */
    int ncores;                    /* number of cores that the rank may keep busy */
    CoreSet cores;                 /* that the rank may run on */
    char status[16], where[112], note[112];        /* texts: of job_leave, job_where, comm_note */
} Member;

typedef struct {
    _Atomic uint32_t claimed;      /* 1 + place of the rank that prints the error line; 0: none yet */
    _Atomic uint32_t spoken;       /* bool: the line is printed */
    _Atomic uint32_t asking;       /* bool: its calls and the flight record are being written */
    int ranks, code;               /* of the host; exit code of the job */
    char status[16];               /* text: the code */
    Member member[];               /* [ranks] */
} Page;

static Page *page;                 /* NULL: no job was joined */
static int mine;                   /* this rank's place in the page */
static int wake_fd = -1;           /* eventfd: wakes the watcher for a signal */
static pthread_t watcher;
static void (*abort_hook)(int code);

static size_t page_bytes(int ranks) { return sizeof(Page) + (size_t)ranks * sizeof(Member); }

int job_page_make(int ranks, int host)
{
    return host_memory_make("", host, page_bytes(ranks), "the page");
}

void job_page_open(int fd, int ranks, int local, int rank)
{
    page = mmap(NULL, page_bytes(ranks), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED)
        die(EXIT_RESOURCE, "shared-memory", "cannot map the page that the ranks of a host share: %s; change: "
            "free memory, or raise the limit on it (ulimit -v)", strerror(errno));
    close(fd);
    mine = local;
    page->ranks = ranks;
    Member *m = &page->member[local];
    m->pid = getpid();
    m->rank = rank;
    m->ncores = pool_core_set(&m->cores);
    char where[32];
    snprintf(where, sizeof where, "rank %d", rank);
    job_where(where);
    comm_note("start");
    strcpy(m->status, "@running");
    atomic_store(&m->state, RUNNING);
}

int job_here(void) { return abort_hook != NULL; }
int job_ranks(void) { return page ? page->ranks : 1; }
int job_local(void) { return mine; }
int job_pid(void) { return page->member[mine].pid; }

int job_cores(void) { return page ? page->member[mine].ncores : pool_cores(); }

/* bool: a and b have a core in common. */
static int meet(const CoreSet *a, const CoreSet *b)
{
    size_t i = 0;
    while (i < sizeof a->word / sizeof *a->word && !(a->word[i] & b->word[i]))
        i++;
    return i < sizeof a->word / sizeof *a->word;
}

int job_sharers(void)
{
    int n = 0;
    for (int i = 0; page && i < page->ranks; i++)
        n += meet(&page->member[i].cores, &page->member[mine].cores);
    return n ? n : 1;
}

/* ---- doorbells ---- */

uint32_t job_bell(void) { return atomic_load(&page->member[mine].bell); }
void job_sleepy(int change) { atomic_fetch_add(&page->member[mine].sleepers, (uint32_t)change); }

void job_sleep(uint32_t seen, double seconds)
{
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    syscall(SYS_futex, &page->member[mine].bell, FUTEX_WAIT, seen, &t, NULL, 0);
}

void job_ring(int local)
{
    Member *m = &page->member[local];
    if (!atomic_load(&m->sleepers))
        return;
    atomic_fetch_add(&m->bell, 1);
    syscall(SYS_futex, &m->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* ---- what a rank is doing ---- */

static void put_text(char *to, size_t size, const char *text)
{
    to[0] = '@';
    strncpy(to + 1, text, size - 2);
    to[size - 1] = 0;
}

void job_where(const char *text)
{
    if (page)
        put_text(page->member[mine].where, sizeof page->member[mine].where, text);
    flight_where(text);
}

static char alone[112] = "@its start";         /* the note of a process without a page */

void comm_note(const char *text)
{
    put_text(page ? page->member[mine].note : alone, sizeof alone, text);
    flight_note(text);
}

const char *job_place(void) { return page ? page->member[mine].where + 1 : ""; }
const char *job_doing(void) { return (page ? page->member[mine].note : alone) + 1; }

/* ---- the one error line ---- */

/* Whether this rank is the first of its host that wants to end the job. Any other rank waits up to half a
 * second for the first to print its line, and longer while that one asks a rank that hangs for its calls. */
static int may_speak(int code)
{
    uint32_t nobody = 0, me = (uint32_t)mine + 1;
    if (atomic_compare_exchange_strong(&page->claimed, &nobody, me)) {
        alarm(5);                      /* standard output may be what hangs; the watch of all ranks is off */
        page->code = code;
        snprintf(page->status, sizeof page->status, "@code %d", code);
        return 1;
    }
    for (int i = 0; !atomic_load(&page->spoken) && i < (atomic_load(&page->asking) ? 1200 : 100); i++)
        usleep(5000);
    return 0;
}

void job_tell(const char *text)
{
    char line[PATH_MAX + 64];
    int n = snprintf(line, sizeof line, "@%s\n", text);
    if (n < (int)sizeof line && (getenv("GRIDIRON_PAGE") || getenv("GRIDIRON_SUPERVISED")) &&
        write(2, line, (size_t)n) < n)
        return;                        /* scripts/launch is gone */
}

int job_claim(int code) { return page ? may_speak(code) : 1; }

static void tell_code(int code)
{
    char text[24];
    snprintf(text, sizeof text, "code %d", code);
    job_tell(text);
}

void job_claimed(int code)
{
    if (page)
        atomic_store(&page->spoken, 1);
    tell_code(code);
}

/* Waits, half a second at most, until scripts/launch_job on this host has read what this process has printed:
 * it makes a file of the code then. Open MPI 5 drops what it has not yet passed on when a rank aborts. */
static void be_heard(void)
{
    const char *beside = getenv("GRIDIRON_PAGE"), *end = beside ? strrchr(beside, '/') : NULL;
    char front[PATH_MAX], heard[PATH_MAX];
    if (!end)
        return;
    snprintf(front, sizeof front, "%.*s/front", (int)(end - beside), beside);
    snprintf(heard, sizeof heard, "%.*s/code.%d", (int)(end - beside), beside, page->code);
    for (int i = 0; i < 100 && !access(front, F_OK) && access(heard, F_OK); i++)
        usleep(5000);
}

/* Ends the process, and the job if this rank has printed the line. */
static void stop(int code)
{
    if (atomic_load(&page->claimed) == (uint32_t)mine + 1) {
        alarm(5);                      /* the run directory may be what hangs */
        flight_freeze();
        atomic_store(&page->asking, 1);
        job_tell(page->status + 1);    /* now: the launcher may kill this rank, because another is lost */
        hang_calls();
        flight_save(code);
        atomic_store(&page->spoken, 1);
        be_heard();
        atomic_store(&page->member[mine].state, LEFT);
        abort_hook(code);
    }
    _exit(page->code ? page->code : code);
}

/* ---- the watch ---- */

/* Whether a process has ended; a zombie that its launcher has not reaped has ended. */
static int is_gone(pid_t pid)
{
    char path[32], text[256];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return n < 0 && errno == ESRCH;
    text[n] = 0;
    const char *state = strrchr(text, ')');
    return state && (state[2] == 'Z' || state[2] == 'X');
}

/* Ends the job because rank m is lost. */
static void lost(const Member *m)
{
    if (atomic_load(&page->claimed)) {             /* another rank prints the line */
        may_speak(0);
        _exit(page->code ? page->code : EXIT_COMM);    /* it may have died before it wrote the code */
    }
    char where[sizeof m->where], note[sizeof m->note];
    memcpy(where, m->where, sizeof where);
    memcpy(note, m->note, sizeof note);
    where[sizeof where - 1] = note[sizeof note - 1] = 0;
    flight_fate((int)(m - page->member), "died");
    die(EXIT_COMM, "rank-lost", "%s (process %d) died in %s; change: see what killed it (the system log; "
        "memory that ran out is the usual cause), then start again with load=latest", where + 1, m->pid,
        note + 1);
}

/* Ends the job if a rank of this host is lost. If several are gone at once, the launcher is ending the job
 * because one of them was lost, and scripts/launch knows which one: this process waits to be ended too, and
 * speaks only if it still lives. */
static void look_for_the_lost(void)
{
    const Member *first = NULL;
    int gone = 0;
    for (int i = 0; i < page->ranks; i++) {
        const Member *m = &page->member[i];
        if (i != mine && atomic_load(&m->state) == RUNNING && is_gone(m->pid) &&
            atomic_load(&m->state) == RUNNING) {
            first = first ? first : m;
            gone++;
        }
    }
    if (!first)
        return;
    if (gone > 1 && getenv("GRIDIRON_PAGE"))
        usleep(500000);
    lost(first);
}

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

/* The watcher: sleeps until a rank of this host ends or a signal comes, and looks now and then whether a rank
 * hangs. Where the system has no descriptors for processes (before Linux 5.3) it looks five times a second.
 *   at       in    [ranks + 1] freed here */
static void *watch(void *arg)
{
    int n = page->ranks, blind = 0;
    struct pollfd *at = arg;
    prctl(PR_SET_NAME, HANG_THREAD);
    for (int i = 0; i < n; i++) {
        at[i] = (struct pollfd){.fd = -1, .events = POLLIN};
        if (i != mine && (at[i].fd = (int)syscall(SYS_pidfd_open, page->member[i].pid, 0)) < 0)
            blind = 1;
    }
    at[n] = (struct pollfd){.fd = wake_fd, .events = POLLIN};
    for (;;) {
        if (poll(at, (nfds_t)n + 1, blind ? 200 : HANG_LOOK_MS) < 0 && errno != EINTR)
            blind = 1, usleep(200000);
        look_for_the_lost();
        if (!atomic_load(&page->claimed))
            hang_look(mine);
        for (int i = 0; i < n; i++)
            if (at[i].fd >= 0 && at[i].revents) {
                close(at[i].fd);
                at[i].fd = -1;
            }
        uint64_t signals;
        if ((at[n].revents & POLLIN) && read(wake_fd, &signals, sizeof signals) == sizeof signals) {
            if (signals >= 1u << 16)               /* goodbye */
                break;
            usleep(100000);        /* a lost rank may be seen after the launcher's signal */
            look_for_the_lost();
            signal(SIGTERM, SIG_DFL);
            kill(getpid(), SIGTERM);
        }
    }
    for (int i = 0; i < n; i++)
        if (at[i].fd >= 0)
            close(at[i].fd);
    free(at);
    return NULL;
}

/* Wakes the watcher, which ends the process. */
static void on_term(int sig)
{
    (void)sig;
    uint64_t one = 1;
    ssize_t ignored = write(wake_fd, &one, sizeof one);
    (void)ignored;
}

void job_watch(void (*abort_job)(int code))
{
    abort_hook = abort_job;
    die_hooks(job_place, may_speak, stop);
    wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    struct pollfd *at = xcalloc((size_t)page->ranks + 1, sizeof *at);
    int e = wake_fd < 0 ? errno : pthread_create(&watcher, NULL, watch, at);
    if (e)
        die(EXIT_RESOURCE, "threads", "cannot start the thread that watches the other ranks: %s; change: "
            "raise the limits on processes and open files (ulimit -u, -n)", strerror(e));
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    /* USR2 comes from scripts/launch, as mpirun passes it on; USR1 to commands with nothing to save */
    static const int ends[] = {SIGTERM, SIGUSR2, SIGUSR1};
    struct sigaction now_;
    for (int i = 0; i < 3; i++)
        if (!sigaction(ends[i], NULL, &now_) && now_.sa_handler == SIG_DFL)
            signal(ends[i], on_term);
}

void job_leave(int code)
{
    if (page->member[mine].rank == 0)
        tell_code(code);               /* from now on the launcher does not wait for ever */
    strcpy(page->member[mine].status, "@left");
    flight_left();
    atomic_store(&page->member[mine].state, LEFT);
}

int job_left(void)
{
    return page && atomic_load(&page->member[mine].state) == LEFT && !atomic_load(&page->claimed);
}

int job_all_left(double seconds)
{
    for (double end = now() + seconds;;) {
        int left = 0;
        for (int i = 0; i < page->ranks; i++)
            left += atomic_load(&page->member[i].state) == LEFT;
        if (left == page->ranks)
            return 1;
        if (now() > end)
            return 0;
        usleep(1000);
    }
}
