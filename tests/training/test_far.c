/* test_far -- the executable over a device with protected memory and late copies, for
 * tests/training/far.sh
 *
 * The linker wraps cpu_open (Makefile). The CPU's ops do the work. Device memory can be read and
 * written only while an op or a copy runs, so that a host that touches it faults. Data of
 * read_async arrive in read_wait, never before. A snapshot is copied as late as allowed: when an op
 * may overwrite its source. */
#define _GNU_SOURCE
#include "device.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct { char *p; size_t bytes; } Range;
typedef struct { void *dst, *copy; const void *src; size_t bytes; } Told;   /* src: NULL once copied */
typedef struct { Told *of; int64_t n, delivered; } Stash;   /* of[ticket]; delivered: those at dst */
typedef struct { void *dst; const void *src; size_t bytes; } Trip;

static Device cpu;
static Range range[8];
static int ranges, inside,
    reached; /* bool: FAR_REACHED is set; no protection, because messages use the memory */
static Stash told, snapshots;
static pthread_mutex_t lock;
/* Offloads or prefetches in flight. Copy t, from 1, is trip[(t - 1) % 1024]. Its ticket is t for an
 * offload, -t for a prefetch. n: copies begun; done: copies done. */
typedef struct { Trip trip[1024]; int64_t n, done; } Way;
static Way leaves, fetches;

static void set_protection(int protection)
{
    for (int i = 0; i < ranges && !reached; i++)
        if (range[i].p && mprotect(range[i].p, range[i].bytes, protection))
            die(EXIT_BUG, "far", "mprotect fails; change: report this");
}

static void enter(void)
{
    pthread_mutex_lock(&lock);
    if (inside++ == 0)
        set_protection(PROT_READ | PROT_WRITE);
}

static void leave(void)
{
    if (--inside == 0)
        set_protection(PROT_NONE);
    pthread_mutex_unlock(&lock);
}

static int far_owns(Device *d, const void *p)
{
    (void)d;
    for (int i = 0; i < ranges; i++)
        if (range[i].p && (const char *)p >= range[i].p && (const char *)p < range[i].p + range[i].bytes)
            return 1;
    return 0;
}

static void fault(int sig, siginfo_t *info, void *context)
{
    static const char far_away[] = "the host touches device memory\n", other[] = "segmentation fault\n";
    int ours = far_owns(NULL, info->si_addr);
    (void)context;
    if (write(2, ours ? far_away : other, (ours ? sizeof far_away : sizeof other) - 1) < 0) {}
    signal(sig, SIG_DFL);
}

static void *far_take(Device *d, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    BUG_ON(ranges == 8);
    range[ranges++] = (Range){cpu.take(d, bytes), (bytes + page - 1) / page * page};
    set_protection(PROT_NONE);
    return range[ranges - 1].p;
}

static void far_give(Device *d, void *p, size_t bytes)
{
    for (int i = 0; i < ranges; i++)
        range[i].p = range[i].p == p ? NULL : range[i].p;
    cpu.give(d, p, bytes);
}

/* Checks that one side of the copy is device memory and the other is not. */
static void far_put(Device *d, void *dst, const void *src, size_t bytes)
{
    BUG_ON(bytes && (!far_owns(d, dst) || far_owns(d, src)));
    enter();
    cpu.put(d, dst, src, bytes);
    leave();
}

static void far_get(Device *d, void *dst, const void *src, size_t bytes)
{
    BUG_ON(bytes && (far_owns(d, dst) || !far_owns(d, src)));
    enter();
    cpu.get(d, dst, src, bytes);
    leave();
}

static int64_t stash(Stash *s, void *dst, const void *src, size_t bytes)
{
    memset(dst, 0xff, bytes);
    pthread_mutex_lock(&lock);
    s->of = xrealloc(s->of, (size_t)(s->n + 1) * sizeof *s->of);
    s->of[s->n] = (Told){dst, xcalloc(1, bytes), src, bytes};
    pthread_mutex_unlock(&lock);
    return s->n++;
}

/* Copies the sources of a stash that are not copied yet. */
static void far_read(Device *d, Stash *s)
{
    pthread_mutex_lock(&lock);
    for (int64_t i = s->delivered; i < s->n; i++) {
        if (s->of[i].src)
            far_get(d, s->of[i].copy, s->of[i].src, s->of[i].bytes);
        s->of[i].src = NULL;
    }
    pthread_mutex_unlock(&lock);
}

static int64_t far_read_async(Device *d, void *dst, const void *src, size_t bytes)
{
    int64_t ticket = stash(&told, dst, src, bytes);
    far_read(d, &told);
    return ticket;
}

/* A snapshot's source is copied as late as allowed: in wait_snapshots, or when read_wait has waited half
 * a second. */
static int64_t far_snapshot(Device *d, void *dst, const void *src, size_t bytes)
{
    (void)d;
    return -1 - stash(&snapshots, dst, src, bytes);
}
static void far_wait_snapshots(Device *d) { far_read(d, &snapshots); }

static int is_read(Stash *s, int64_t at)
{
    pthread_mutex_lock(&lock);
    int yes = !s->of[at].src;
    pthread_mutex_unlock(&lock);
    return yes;
}

static void far_read_wait(Device *d, int64_t ticket)
{
    Stash *s = ticket < 0 ? &snapshots : &told;
    int64_t at = ticket < 0 ? -1 - ticket : ticket;
    BUG_ON(at >= s->n);
    for (int i = 0; i < 50 && !is_read(s, at); i++)
        usleep(10000);
    far_read(d, s);
    for (; s->delivered <= at; s->delivered++) {
        Told *t = &s->of[s->delivered];
        memcpy(t->dst, t->copy, t->bytes);
        free(t->copy);
    }
}

/* Offloads and prefetches run as late as allowed. An op that does not wait overwrites the source of an
 * offload, or reads data that are not prefetched yet. */
static void travel(Way *w, int64_t ticket)
{
    BUG_ON(ticket > w->n);
    for (enter(); w->done < ticket; w->done++) {
        Trip *t = &w->trip[w->done % 1024];
        memcpy(t->dst, t->src, t->bytes);
    }
    leave();
}

static void far_stream_wait(Device *d, int64_t ticket)
{
    (void)d;
    travel(ticket < 0 ? &fetches : &leaves, ticket < 0 ? -ticket : ticket);
}

static int64_t set_out(Device *d, Way *w, void *dst, const void *src, size_t bytes)
{
    BUG_ON(!far_owns(d, dst) || !far_owns(d, src));
    if (w->n - w->done == 1024)
        travel(w, w->done + 1);
    w->trip[w->n % 1024] = (Trip){dst, src, bytes};
    return ++w->n;
}

static int64_t far_offload(Device *d, void *mapped, const void *src, size_t bytes)
{
    return set_out(d, &leaves, mapped, src, bytes);
}

/* The prefetch waits for offload `after` alone and overwrites its destination at once, with 0xff until
 * its copy runs. An offload that still reads there copies 0xff. */
static int64_t far_prefetch(Device *d, void *dst, const void *mapped, size_t bytes, int64_t after)
{
    travel(&leaves, after);
    int64_t ticket = set_out(d, &fetches, dst, mapped, bytes);
    enter();
    memset(dst, 0xff, bytes);
    leave();
    return -ticket;
}

#define X(name, params, names)                                                                               \
    static void far_##name params                                                                            \
    {                                                                                                        \
        enter();                                                                                             \
        cpu.name names;                                                                            \
        leave();                                                                                             \
    }
OPS(X)
#undef X

void __real_cpu_open(Device *d, Dtype real, const char *isa, int threads);
void __wrap_cpu_open(Device *d, Dtype real, const char *isa, int threads);

void __wrap_cpu_open(Device *d, Dtype real, const char *isa, int threads)
{
    pthread_mutexattr_t recursive;
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&lock, &recursive);
    struct sigaction act = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &act, NULL);
    __real_cpu_open(d, real, isa, threads);
    cpu = *d;
    reached = getenv("FAR_REACHED") != NULL;
    d->late = 1;
    d->take = far_take;
    d->give = far_give;
    d->owns = far_owns;
    d->mapped_take = far_take;
    d->mapped_give = far_give;
    d->offload = far_offload;
    d->prefetch = far_prefetch;
    d->stream_wait = far_stream_wait;
    d->put = far_put;
    d->get = far_get;
    d->read_async = far_read_async;
    d->read_wait = far_read_wait;
    d->snapshot = far_snapshot;
    d->wait_snapshots = far_wait_snapshots;
#define X(name, params, names) d->name = far_##name;
    OPS(X)
#undef X
}
