/* pool -- the threads of one rank: each takes the next item of an op until none is left */
#define _GNU_SOURCE
#include "pool.h"
#include "device.h"
#include "modes.h"
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Ops follow each other within microseconds, and a sleeping thread takes longer than that to wake. A
 * thread therefore spins this long before it sleeps. While spinning it yields its core to other threads,
 * such as those of another rank. With more threads than cores it does not spin. */
#define SPIN_SECONDS 20e-6

/* A job is open between `open = 1` and `open = 0`. A worker increments `inside` before it reads `open`;
 * the caller clears `open` before it reads `inside`. The accesses are sequentially consistent: either
 * the caller sees the worker and waits for it, or the worker sees a closed job and touches nothing. So a
 * job never waits for a worker that is still asleep, and a process without workers (a forked child) does
 * all items itself. */
struct Pool {
    void (*fn)(void *ctx, int64_t item, int thread);
    void *ctx;
    int64_t items;
    int threads, spin;                         /* the caller included; bool: spin before sleeping */
    pid_t owner;                               /* process that opened the pool */
    pthread_t *workers;                        /* [threads]; [0], the caller, is unused */
    _Alignas(64) _Atomic int64_t next;         /* next item to take */
    _Alignas(64) _Atomic uint32_t job;         /* jobs so far; idle workers wait until it changes */
    _Atomic uint32_t open, sleepers, stop;     /* bool; workers asleep; bool: workers are to end */
    _Alignas(64) _Atomic uint32_t inside;      /* workers in the current job; the caller waits for 0 */
    _Atomic uint32_t caller_sleeps;            /* bool */
};

typedef struct { Pool *p; int thread; } Worker;

static void futex(_Atomic uint32_t *at, int op, uint32_t n) { syscall(SYS_futex, at, op, n, NULL, NULL, 0); }
static void futex_wait(_Atomic uint32_t *at, uint32_t seen) { futex(at, FUTEX_WAIT_PRIVATE, seen); }
static void futex_wake(_Atomic uint32_t *at, int n) { futex(at, FUTEX_WAKE_PRIVATE, (uint32_t)n); }

static inline void relax(void)
{
#ifdef __x86_64__
    __builtin_ia32_pause();
#endif
}

/* Spins until *at differs from `seen`, at most SPIN_SECONDS. Returns whether it differs. The clock is
 * read once in 16 loads. */
static int spin_until_changed(const Pool *p, _Atomic uint32_t *at, uint32_t seen)
{
    if (!p->spin)
        return atomic_load(at) != seen;
    for (double end = now() + SPIN_SECONDS;;) {
        for (int i = 0; i < 16; i++) {
            if (atomic_load_explicit(at, memory_order_acquire) != seen)
                return 1;
            relax();
        }
        if (now() > end)
            return 0;
        sched_yield();
    }
}

static void take_items(Pool *p, int thread)
{
    int64_t i;
    while ((i = atomic_fetch_add(&p->next, 1)) < p->items)
        p->fn(p->ctx, i, thread);
}

static void leave(Pool *p)
{
    if (atomic_fetch_sub(&p->inside, 1) == 1 && atomic_load(&p->caller_sleeps))
        futex_wake(&p->inside, 1);
}

/* The caller waits until no worker is inside. */
static void wait_for_workers(Pool *p)
{
    for (uint32_t n; (n = atomic_load(&p->inside));) {
        if (spin_until_changed(p, &p->inside, n))
            continue;
        atomic_store(&p->caller_sleeps, 1);
        futex_wait(&p->inside, n);
        atomic_store(&p->caller_sleeps, 0);
    }
}

static void *worker_main(void *arg)
{
    Worker w = *(Worker *)arg;
    Pool *p = w.p;
    free(arg);
    uint32_t seen = 0;
    modes_look(POOL_THREAD);
    leave(p);
    while (!atomic_load(&p->stop)) {
        if (!spin_until_changed(p, &p->job, seen)) {
            atomic_fetch_add(&p->sleepers, 1);
            futex_wait(&p->job, seen);
            atomic_fetch_sub(&p->sleepers, 1);
            continue;
        }
        seen = atomic_load(&p->job);
        atomic_fetch_add(&p->inside, 1);
        if (atomic_load(&p->open))
            take_items(p, w.thread);
        modes_look(POOL_THREAD);
        leave(p);
    }
    return NULL;
}

static void wake_workers(Pool *p, int n)
{
    atomic_fetch_add(&p->job, 1);
    if (atomic_load(&p->sleepers))
        futex_wake(&p->job, n);
}

void pool_run(Pool *p, void (*fn)(void *ctx, int64_t item, int thread), void *ctx, int64_t items)
{
    if (p->threads == 1 || items <= 1) {
        for (int64_t i = 0; i < items; i++)
            fn(ctx, i, 0);
        return;
    }
    p->fn = fn;
    p->ctx = ctx;
    p->items = items;
    atomic_store(&p->next, 0);
    atomic_store(&p->open, 1);
    wake_workers(p, items - 1 < p->threads - 1 ? (int)items - 1 : p->threads - 1);
    take_items(p, 0);
    atomic_store(&p->open, 0);
    wait_for_workers(p);
}

int pool_core_set(CoreSet *set)
{
    *set = (CoreSet){{0}};
    if (sched_getaffinity(0, sizeof *set, (cpu_set_t *)set))
        set->word[0] = 1;              /* forbidden here: it runs on one at least */
    return host_cores(CPU_COUNT_S(sizeof *set, (cpu_set_t *)set));
}

int pool_cores(void) { return pool_core_set(&(CoreSet){{0}}); }

Pool *pool_open(int threads)
{
    BUG_ON(threads < 1);
    Pool *p = NULL;
    if (posix_memalign((void **)&p, 64, sizeof *p))
        die(EXIT_RESOURCE, "memory", "cannot allocate a thread pool; change: free memory on this machine");
    *p = (Pool){.threads = threads, .spin = threads <= pool_cores(), .owner = getpid(),
                .inside = (uint32_t)threads - 1};
    p->workers = xcalloc((size_t)threads, sizeof *p->workers);
    for (int i = 1; i < threads; i++) {
        Worker *w = xcalloc(1, sizeof *w);
        *w = (Worker){p, i};
        if (pthread_create(&p->workers[i], NULL, worker_main, w))
            die(EXIT_RESOURCE, "threads", "cannot start thread %d of %d; change: use fewer threads, or raise "
                "the limits on processes and memory (ulimit -u, -v)", i, threads);
    }
    wait_for_workers(p);       /* each has looked at its modes, even if it gets no item for many steps */
    return p;
}

void pool_close(Pool *p)
{
    if (!p)
        return;
    if (p->owner == getpid()) {        /* a forked child has no workers */
        atomic_store(&p->stop, 1);
        wake_workers(p, p->threads);
        for (int i = 1; i < p->threads; i++)
            pthread_join(p->workers[i], NULL);
    }
    free(p->workers);
    free(p);
}

int pool_threads(const Pool *p) { return p->threads; }
