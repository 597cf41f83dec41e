/* hang -- finds the rank for which all others wait, and says what that rank does */
#define _GNU_SOURCE
#include "hang.h"
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SHORTEST 10.0    /* s: the least limit that the watch chooses by itself */
#define STEPS_MEASURED 3 /* steps after which their times count */
#define STALL 2.5        /* s between two looks: the machine or the whole job stood still */
#define PATIENCE 10      /* limits that a rank may starve */

static double step_limit, other_limit; /* s; step_limit 0: off, NAN: measured */
static int alone;                      /* bool: this process is the whole job */
static double last_look, counted;      /* time of the last look; since when nobody has made progress */
static int culprit = -1;               /* place of the rank that hangs; -1: none, or elsewhere */
static char culprit_state;

/* What the system knows of a process. */
typedef struct {
    char state;            /* of its main thread, as in /proc/PID/stat; 0: not known */
    char ready;            /* bool: any thread of it could run */
    char held;             /* bool: a debugger has stopped it */
    char deep[72];         /* "NAME at WCHAN" of a thread in state D; "": none */
    char wchan[48];        /* of the main thread */
    int64_t ticks, faults; /* of processor time; page faults that needed a disk */
} Process;

static Process *before; /* [ranks] as a quarter of the limit had gone by */
static double sampled;  /* `counted` of that count; 0: not yet taken */

/* The watch of a process that is the whole job. */
static void *look_alone(void *unused)
{
    prctl(PR_SET_NAME, HANG_THREAD);
    for (;;) {
        usleep(HANG_LOOK_MS * 1000);
        hang_look(0);
    }
    return unused;
}

void hang_limits(double seconds, double other, int watched)
{
    pthread_t thread;
    sigset_t all, old;
    other_limit = other;
    last_look = counted = now();
    step_limit = seconds;
    alone = !watched;
    if (watched || seconds == 0)
        return;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    if (pthread_create(&thread, NULL, look_alone, NULL))
        die(EXIT_RESOURCE, "threads", "cannot start the thread that watches for a hang; change: raise the "
            "limits on processes and memory (ulimit -u, -v), or hang_timeout=0");
    pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

/* ---- what the system knows ---- */

static int read_text(const char *path, char *text, int size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, (size_t)size - 1);
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = 0;
    return n > 0;
}

static void read_thread(Process *p, int pid, int thread)
{
    char path[64], text[512], name[20] = "", wchan[40];
    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", pid, thread);
    if (!read_text(path, text, sizeof text))
        return;
    char *end = strrchr(text, ')'), *begin = strchr(text, '(');
    long long faults = 0, user = 0, kernel = 0;
    char state = 0;
    if (!end || !begin ||
        sscanf(end + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %lld %*u %lld %lld", &state, &faults, &user,
               &kernel) != 4)
        return;
    snprintf(name, sizeof name, "%.*s", (int)(end - begin - 1), begin + 1);
    snprintf(path, sizeof path, "/proc/%d/task/%d/wchan", pid, thread);
    if (!read_text(path, wchan, sizeof wchan) || !strcmp(wchan, "0"))
        strcpy(wchan, "?");
    p->ticks += user + kernel;
    p->faults += faults;
    p->ready |= state == 'R' && strcmp(name, HANG_THREAD);
    p->held |= state == 't';
    if (state == 'D')
        snprintf(p->deep, sizeof p->deep, "%s at %s", thread == pid ? "main" : name, wchan);
    if (thread == pid) {
        p->state = state;
        snprintf(p->wchan, sizeof p->wchan, "%s", wchan);
    }
}

static Process read_process(int pid)
{
    Process p = {0};
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (e->d_name[0] != '.')
            read_thread(&p, pid, atoi(e->d_name));
    if (dir)
        closedir(dir);
    return p;
}

static int watched(const FlightRank *r)
{
    return r->pid && !r->left;
}

static void sample(const Flight *f)
{
    before = before ? before : xcalloc((size_t)f->ranks, sizeof *before);
    for (int i = 0; i < f->ranks; i++)
        if (watched(&f->rank[i]))
            before[i] = read_process(f->rank[i].pid);
    sampled = counted;
}

/* ---- limits ---- */

static double limit_of_step(const Flight *f)
{
    double p99 = 0;
    for (int i = 0; i < f->ranks; i++)
        p99 = fmax(p99, flight_p99(&f->rank[i]));
    return isnan(step_limit) ? fmax(SHORTEST, 3 * p99) : step_limit;
}

/* How long nobody may make progress: the longest limit of what any rank does. */
static double limit_of(const Flight *f)
{
    double step = limit_of_step(f), limit = 0;
    for (int i = 0; i < f->ranks; i++) {
        const FlightRank *r = &f->rank[i];
        int phase = r->phase;
        double own = fmax(step, other_limit);
        if (!watched(r) || phase < 0 || phase >= PHASES)
            continue;
        if (phase == PHASE_STEP && r->steps >= STEPS_MEASURED)
            own = step;
        else if ((phase == PHASE_SAVE || phase == PHASE_EVAL) && r->longest[phase] > 0)
            own = fmax(step, 10 * r->longest[phase]);
        limit = fmax(limit, own);
    }
    return limit;
}

/* ---- the error line ---- */

static void print_state(char *text, size_t size, const Process *p, const Process *old, int pid)
{
    double seconds = (double)(p->ticks - old->ticks) / (double)sysconf(_SC_CLK_TCK);
    if (p->state == 'T')
        snprintf(text, size, "it is stopped (state T; kill -CONT %d lets it go on)", pid);
    else if (p->deep[0])
        snprintf(text, size, "it sleeps in the system (state D, %s): a disk or file system does not answer",
                 p->deep);
    else if (p->state == 'R' || seconds > 1)
        snprintf(text, size, "it computes (state %c, %.1f s of processor time): a loop without end?",
                 p->state, seconds);
    else
        snprintf(text, size, "it sleeps (state %c, %s) and waits for no rank", p->state ? p->state : '?',
                 p->wchan);
    size_t n = strlen(text);
    if (p->faults > old->faults)
        snprintf(text + n, size - n, ", %lld page faults", (long long)(p->faults - old->faults));
}

static void print_waiters(char *text, size_t size, const Flight *f, const FlightBlame *b)
{
    char wait[96];
    if (b->waiter < 0) {
        snprintf(text, size, "no rank waits for it");
        return;
    }
    const FlightRank *w = &f->rank[b->waiter];
    flight_print_wait(f, b->waiter, wait, sizeof wait);
    snprintf(text, size, "%d %s, rank %d for %.1f s in %s", b->waiting,
             b->waiting == 1 ? "rank waits" : "ranks wait", w->rank, now() - w->since, wait);
}

#define ADVICE                                                                                               \
    "`train flight` on the run directory shows what every rank did, hang_timeout sets the limit; start "     \
    "again with load=latest"

/* Ends a process that is the whole job; its main thread may hold any lock. */
static void stop_alone(int code)
{
    alarm(5); /* the run directory may be what hangs */
    flight_freeze();
    hang_calls();
    flight_save(code);
    _exit(code);
}

static _Noreturn void speak(const Flight *f, const FlightBlame *b, const Process *p, double quiet)
{
    char state[160], waiters[200];
    if (alone)
        die_hooks(NULL, NULL, stop_alone);
    print_waiters(waiters, sizeof waiters, f, b);
    if (b->rank == FLIGHT_UNKNOWN)
        die(EXIT_COMM, "hang",
            "no rank of this host has made progress for %.1f s: %s, and who has not come there is not known "
            "here; change: see whether the other hosts are up and reachable; " ADVICE,
            quiet, waiters);
    if (b->local < 0)
        die(EXIT_COMM, "hang",
            "rank %d, on another host, has not been heard of for %.1f s: %s; change: see whether its "
            "host is up and reachable; " ADVICE,
            b->rank, quiet, waiters);
    const FlightRank *r = &f->rank[b->local];
    if (b->lost)
        snprintf(state, sizeof state, "every rank waits, and it is waited for: " FLIGHT_LOST);
    else
        print_state(state, sizeof state, p, before ? &before[b->local] : p, r->pid);
    culprit = b->local;
    culprit_state = p->state;
    flight_fate(b->local, state);
    die(EXIT_COMM, "hang",
        "%s (process %d on host %s) has made no progress for %.1f s in %s: %s; %s; change: see why "
        "(its calls follow); " ADVICE,
        r->where, r->pid, r->host, quiet, r->note, state, waiters);
}

/* ---- the look ---- */

/* Whether a rank that waits for nobody only starves: it could run and has had little of a processor, or its
 * pages come from a disk. */
static int starves(const Process *p, const Process *old, double limit)
{
    double seconds = (double)(p->ticks - old->ticks) / (double)sysconf(_SC_CLK_TCK);
    return p->faults > old->faults || (p->ready && seconds < limit * 3 / 8);
}

static void examine(const Flight *f, double t, double limit)
{
    double quiet = t - counted;
    size_t n = (size_t)f->ranks;
    Process *p = xcalloc(n, sizeof *p);
    char *skip = xcalloc(n, 1), *first = xcalloc(n, 1);
    int held = 0;
    for (int i = 0; i < f->ranks; i++) {
        const FlightRank *r = &f->rank[i];
        skip[i] = !watched(r);
        if (skip[i])
            continue;
        p[i] = read_process(r->pid);
        held |= p[i].held;
        first[i] = p[i].state == 'T' || p[i].state == 'D' ? p[i].state : !r->waits;
    }
    FlightBlame b = flight_blame(f, t, skip, first);
    int found = b.rank != -1;
    if (held)
        counted = t, found = 0;
    else if (found && b.local < 0)
        found = quiet > fmax(limit, other_limit);
    else if (found && !b.lost && quiet < PATIENCE * limit)
        found = !starves(&p[b.local], &before[b.local], limit);
    if (found)
        speak(f, &b, b.local < 0 ? p : &p[b.local], quiet);
    free(p);
    free(skip);
    free(first);
}

void hang_look(int local)
{
    const Flight *f = flight_here();
    double t = now(), latest = 0;
    if (!f || step_limit == 0)
        return;
    for (int i = 0; i < f->ranks; i++)
        if (watched(&f->rank[i]))
            latest = fmax(latest, f->rank[i].progress);
    if (t - last_look > STALL)
        counted = t;
    counted = fmax(counted, latest);
    last_look = t;
    double limit = limit_of(f), quiet = t - counted;
    if (limit > 0 && quiet > limit / 4 && sampled != counted)
        sample(f);
    if (limit > 0 && quiet > limit + 0.02 * local && sampled == counted)
        examine(f, t, limit);
}

/* ---- the calls ---- */

/* Prints the calls inside the system of a process that cannot answer; root may read them. */
static void print_kernel_calls(const FlightRank *r)
{
    char path[64], text[2048], wchan[64];
    snprintf(path, sizeof path, "/proc/%d/stack", r->pid);
    if (!read_text(path, text, sizeof text)) {
        snprintf(path, sizeof path, "/proc/%d/wchan", r->pid);
        snprintf(text, sizeof text, "%s\n", read_text(path, wchan, sizeof wchan) ? wchan : "?");
    }
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1)
        fprintf(stderr, "    in the system: %.*s\n", (int)(end - line), line);
}

void hang_calls(void)
{
    Flight *f = flight_here();
    if (!f || culprit < 0)
        return;
    const FlightRank *r = &f->rank[culprit];
    uint32_t answers = r->answers;
    if (culprit_state == 'T' || culprit_state == 'D' || syscall(SYS_tgkill, r->pid, r->pid, HANG_SIGNAL)) {
        print_kernel_calls(r);
        return;
    }
    for (int i = 0; i < 500 && r->answers == answers; i++)
        usleep(5000);
    if (r->answers == answers)
        print_kernel_calls(r);
    else
        fprintf(stderr, "%.*s", (int)sizeof r->calls - 1, r->calls);
}
