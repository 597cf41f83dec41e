/* flight -- the flight record of this host's ranks: how it is kept and saved */
#define _GNU_SOURCE
#include "flight.h"
#include "host_memory.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static Flight *_Atomic flight;                /* NULL: not open. The watch of a single rank reads it, too */
static FlightRank *me;                        /* this rank's part */
static _Thread_local int is_main;             /* bool: this thread opened the record */
static _Atomic int saved;                     /* bool: the copy is made */
/* Paths of the copy, and of the one being written; "": no run. */
static char file[PATH_MAX + 32], hidden[PATH_MAX + 32];

size_t flight_bytes(int ranks)
{
    return sizeof(Flight) + (size_t)ranks * sizeof(FlightRank);
}

int flight_make(int ranks, int host)
{
    return host_memory_make("-flight", host, flight_bytes(ranks), "the flight record");
}

Flight *flight_here(void)
{
    return flight;
}

static void put(char *to, size_t size, const char *text)
{
    strncpy(to, text, size - 1);
    to[size - 1] = 0;
}

void flight_open(int fd, int ranks, int local, int rank, int world, int host)
{
    struct timespec wall;
    Flight *f = mmap(NULL, flight_bytes(ranks), PROT_READ | PROT_WRITE,
                     fd < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
    if (f == MAP_FAILED)
        die(EXIT_RESOURCE, "shared-memory",
            "cannot map the flight record that the ranks of a host share: %s; "
            "change: free memory, or raise the limit on it (ulimit -v)",
            strerror(errno));
    if (fd >= 0)
        close(fd);
    if (local == 0) {
        clock_gettime(CLOCK_REALTIME, &wall);
        f->wall = (double)wall.tv_sec + 1e-9 * (double)wall.tv_nsec - now();
        f->ranks = ranks;
        f->world = world;
        f->host = host;
        memcpy(f->magic, FLIGHT_MAGIC, sizeof f->magic);
    }
    me = &f->rank[local];
    is_main = 1;
    host_name(me->host);
    snprintf(me->where, sizeof me->where, "rank %d", rank);
    put(me->note, sizeof me->note, "start");   /* as on the page, which is older */
    me->rank = rank;
    me->progress = now();
    me->pid = getpid();
    flight = f;
}

/* ---- writing ---- */

void flight_run(const char *dir)
{
    char path[PATH_MAX];
    if (!flight)
        flight_open(-1, 1, 0, 0, 1, 0);
    if (!realpath(dir, path) || strlen(path) + 64 > sizeof flight->run)
        return;
    snprintf(file, sizeof file, "%s/flight.%d", path, flight->host);
    snprintf(hidden, sizeof hidden, "%s/.flight.%d", path, flight->host);
    snprintf(flight->run, sizeof flight->run, "@run %.1000s", path);
}

static int writes(void) { return me && !atomic_load_explicit(&flight->frozen, memory_order_relaxed); }

void flight_freeze(void)
{
    if (flight)
        atomic_store(&flight->frozen, 1);
}

static void progress(double t)
{
    atomic_store_explicit(&me->progress, t, memory_order_relaxed);
}

void flight_where(const char *text)
{
    if (me)
        put(me->where, sizeof me->where, text);
}

void flight_note(const char *text)
{
    if (!writes())
        return;
    put(me->note, sizeof me->note, text);
    progress(now());
}

/* Writes the latest iteration that a rank has begun, which never goes back: ranks come here at once, and the
 * last one to write has seen that nothing later was begun meanwhile. */
static void tell_step(int64_t iteration)
{
    int64_t begun = flight->begun;
    while (iteration > begun && !atomic_compare_exchange_weak(&flight->begun, &begun, iteration))
        ;
    for (; iteration > begun; begun = iteration, iteration = flight->begun)
        snprintf(flight->step, sizeof flight->step, "@step %lld", (long long)iteration);
}

void flight_instr(const void *instr, int64_t iteration)
{
    if (!writes())
        return;
    int64_t n = me->instrs;
    FlightInstr *i = &me->instr[n % FLIGHT_INSTRS];
    tell_step(iteration);
    *i = (FlightInstr){.iteration = iteration, .start = now()};
    memcpy(&i->what, instr, sizeof i->what);
    atomic_store_explicit(&me->instrs, n + 1, memory_order_release);
    progress(i->start);
}

void flight_mark(double begun, double end)
{
    if (!writes() || !me->instrs)
        return;
    FlightInstr *i = &me->instr[(me->instrs - 1) % FLIGHT_INSTRS];
    i->begun = begun;
    i->end = end;
    progress(end);
}

FlightPhase flight_phase(FlightPhase phase)
{
    if (!writes())
        return PHASE_OTHER;
    double t = now(), took = t - me->phase_start;
    int old = me->phase;
    if (me->phase_start > 0 && took > me->longest[old])
        me->longest[old] = took;
    me->phase_start = t;
    me->phase = (int)phase;
    progress(t);
    return (FlightPhase)old;
}

void flight_step(double seconds)
{
    if (!writes())
        return;
    int b = seconds > 1e-6 ? (int)(8 * log2(seconds * 1e6)) : 0;
    me->bin[b < FLIGHT_BINS ? b : FLIGHT_BINS - 1]++;
    me->steps++;
}

void flight_moved(void)
{
    if (writes())
        progress(now());
}

void flight_answer(const char *calls, size_t n)
{
    if (!me)
        return;
    n = n < sizeof me->calls - 1 ? n : sizeof me->calls - 1;
    memcpy(me->calls, calls, n);
    me->calls[n] = 0;
    me->answers++;
}

void flight_left(void)
{
    if (writes())
        me->left = 1;
}

void flight_fate(int local, const char *text)
{
    if (flight)
        put(flight->rank[local].fate, sizeof flight->rank[local].fate, text);
}

int flight_group(const char *name, int id, const int *member, int n)
{
    int k = 0, first = member[0];
    while (me && k < FLIGHT_GROUPS && me->group[k].open)
        k++;
    if (!me || k == FLIGHT_GROUPS)
        return 0;
    FlightGroup *g = &me->group[k];
    int room = n <= FLIGHT_MEMBERS - me->members;
    for (int i = 0; i < n; i++) {
        first = member[i] < first ? member[i] : first;
        if (room)
            me->member[me->members + i] = member[i];
    }
    *g = (FlightGroup){.id = id, .first = first, .size = n, .at = room ? me->members : -1, .open = 1};
    put(g->name, sizeof g->name, name);
    me->members += room ? n : 0;
    return k + 1;
}

void flight_group_close(int group)
{
    if (!me || !group)
        return;
    FlightGroup *g = &me->group[group - 1];
    g->open = 0;
    if (g->at >= 0 && g->at + g->size == me->members)
        me->members = g->at;
}

int64_t flight_op(int group, int kind, int peer, int64_t seq, int64_t bytes, int device)
{
    if (!writes())
        return 0;
    int64_t n = me->ops + 1;
    double t = now();
    me->op[(n - 1) % FLIGHT_OPS] = (FlightOp){n, seq, bytes, t, 0, group, peer, kind, device};
    if (group && peer < 0)
        me->group[group - 1].calls = seq;
    atomic_store_explicit(&me->ops, n, memory_order_release);
    progress(t);
    return n;
}

void flight_op_end(int64_t number)
{
    if (!writes() || !number)
        return;
    FlightOp *o = &me->op[(number - 1) % FLIGHT_OPS];
    double t = now();
    if (o->number == number)
        o->end = t;
    progress(t);
}

void flight_wait(int64_t number)
{
    if (!writes() || !is_main)
        return;
    double t = now();
    atomic_store_explicit(&me->alive, t, memory_order_relaxed);
    if (atomic_load_explicit(&me->waits, memory_order_relaxed) == number)
        return;
    atomic_store_explicit(&me->since, t, memory_order_relaxed);
    atomic_store_explicit(&me->waits, number, memory_order_release);
}

void flight_wait_end(void)
{
    if (!writes() || !is_main)
        return;
    atomic_store_explicit(&me->waits, 0, memory_order_release);
    progress(now());
}

/* Only system calls: this runs in the handler of a crash too. */
void flight_save(int code)
{
    if (!flight || !*file || atomic_exchange(&saved, 1))
        return;
    flight->code = code;
    int fd = open(hidden, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666), ok = fd >= 0;
    size_t bytes = flight_bytes(flight->ranks), done = 0;
    while (ok && done < bytes) {
        ssize_t n = write(fd, (const char *)flight + done, bytes - done);
        ok = n > 0 || (n < 0 && errno == EINTR);
        done += n > 0 ? (size_t)n : 0;
    }
    if (fd >= 0)
        close(fd);
    if (ok)
        rename(hidden, file);
    else
        unlink(hidden);
}
