/* engine -- queues of operations under way, and the thread that advances them */
#define _GNU_SOURCE
#include "engine.h"
#include "job.h"
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BLOCK 256                  /* requests are allocated in blocks, which never move */
#define SPIN_SECONDS 30e-6         /* how long to look before sleeping, where cores are to spare */
#define WIRE_SECONDS 100e-6        /* sleep while messages between hosts are under way ... */
#define WIRE_LOOKS 100             /* ... after having given the core away so often */
#define INLINE_BYTES                                                                                         \
    65536 /* up to here a caller moves what it can itself although there is a thread for it */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int lock_owner;     /* thread id */
static _Atomic int wanted; /* main threads that wait for the lock: the progress thread lets them go first */

static Request **block;
static int blocks;
static Request *vacant;
static uint32_t generations;

static Queue **active;
static int nactive, active_room;
static _Atomic int pending;        /* requests */

static int waiting;                /* threads inside engine_wait */
static int sleepers;               /* of them, asleep */
static int wires;
static int spin;

static pthread_t thread;
static int thread_on, thread_idle;
static _Atomic int thread_id;
static _Atomic uint32_t kick;      /* the progress thread sleeps on it while there is nothing for it to do */
static _Atomic int thread_stop;

static Request *advancing;         /* whose advance() runs */
static CommListener listener;
static void *listener_ctx;

static int self(void)
{
    static _Thread_local int id;
    return id ? id : (id = (int)gettid());
}

static void take(void)
{
    pthread_mutex_lock(&lock);
    lock_owner = self();
}

static void give(void)
{
    lock_owner = 0;
    pthread_mutex_unlock(&lock);
}

void engine_lock(void)
{
    wanted++;
    take();
    wanted--;
}

void engine_unlock(void) { give(); }

int engine_try_lock(double seconds)
{
    if (lock_owner == self())
        return 1;
    for (double end = now() + seconds; now() < end; usleep(1000))
        if (!pthread_mutex_trylock(&lock)) {
            lock_owner = self();
            return 1;
        }
    return 0;
}

void engine_wires(int change) { wires += change; }

int64_t engine_moved(int64_t bytes)
{
    int64_t behind = !waiting && self() == thread_id ? bytes : 0;
    if (advancing) {
        advancing->touched += bytes;
        advancing->behind += behind;
    }
    return behind;
}

void comm_listen(CommListener fn, void *ctx)
{
    engine_lock();
    listener = fn;
    listener_ctx = ctx;
    engine_unlock();
}

/* ---- requests ---- */

/* A token is a generation and a place; the place may long be another request's when somebody waits for it. */
static Request *find(Token t) { return &block[(t & 0xffffffff) / BLOCK][(t & 0xffffffff) % BLOCK]; }

static void grow(void)
{
    block = xrealloc(block, (size_t)(blocks + 1) * sizeof *block);
    block[blocks] = xcalloc(BLOCK, sizeof **block);
    for (int i = BLOCK - 1; i >= 0; i--) {
        block[blocks][i].token = (int64_t)blocks * BLOCK + i;
        block[blocks][i].next = vacant;
        vacant = &block[blocks][i];
    }
    blocks++;
}

static void finish(Request *r)
{
    Queue *q = r->queue;
    q->head = r->next;
    if (!q->head)
        q->tail = NULL;
    if (listener)
        listener(listener_ctx, &(CommEvent){r->name, r->kind,
                                            r->kind == COMM_SEND || r->kind == COMM_RECV ? r->root : -1,
                                            r->payload, r->touched, r->behind, r->start, now()});
    r->token &= 0xffffffff;        /* no token in anybody's hands names it any more */
    r->next = vacant;
    vacant = r;
    pending--;
    if (sleepers)                  /* another thread may wait for this one */
        job_ring(job_local());
}

/* Advances the first request of every queue as far as it goes. Returns whether anything moved. */
static int advance_all(void)
{
    int moved = 0;
    for (int i = 0; i < nactive;) {
        Queue *q = active[i];
        while (q->head) {
            advancing = q->head;
            moved |= q->head->advance(q->head);
            advancing = NULL;
            if (!q->head->done)
                break;
            finish(q->head);
            moved = 1;
        }
        if (q->head)
            i++;
        else
            active[i] = active[--nactive];
    }
    return moved;
}

static void wake_thread(void)
{
    atomic_fetch_add(&kick, 1);
    if (thread_idle)
        syscall(SYS_futex, &kick, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    if (sleepers)
        job_ring(job_local());
}

Token engine_submit(Queue *q, const Request *given)
{
    engine_lock();
    if (!vacant)
        grow();
    Request *r = vacant;
    Token place = r->token;
    vacant = r->next;
    generations = generations % INT_MAX + 1;
    *r = *given;
    r->queue = q;
    r->next = NULL;
    r->token = (Token)generations << 32 | place;
    if (listener)
        r->start = now();
    Token token = r->token;
    if (q->tail)
        q->tail->next = r;
    else {
        q->head = r;
        if (nactive == active_room)
            active = xrealloc(active, (size_t)(active_room = 2 * active_room + 16) * sizeof *active);
        active[nactive++] = q;
    }
    q->tail = r;
    pending++;
    if (!thread_on || given->payload <= INLINE_BYTES)
        advance_all();
    if (thread_on && pending && !waiting)
        wake_thread();
    engine_unlock();
    return token;
}

void comm_progress(void)
{
    if (!pending || thread_on || pthread_mutex_trylock(&lock))
        return;
    lock_owner = self();
    advance_all();
    give();
}

/* Between two looks: whoever waits for this core, perhaps the rank that we wait for, goes first. */
static void relax(void)
{
#ifdef __x86_64__
    for (int i = 0; i < 8; i++)
        __builtin_ia32_pause();
#endif
    sched_yield();
}

static double nap(void) { return wires ? WIRE_SECONDS : 1; }

/* Sleeps, the lock given back meanwhile, until the doorbell rings; not at all when there is something to do.
 */
static void sleep_on_bell(const Request *r, Token t)
{
    uint32_t seen = job_bell();
    job_sleepy(1);
    if (!advance_all() && (!r || r->token == t)) {
        double seconds = nap();
        sleepers++;
        give();
        job_sleep(seen, seconds);
        take();
        sleepers--;
    }
    job_sleepy(-1);
}

void engine_wait(Token t)
{
    if (!t)
        return;
    engine_lock();
    const Request *r = find(t);
    double end = 0;
    int looks = 0;
    waiting++;
    while (r->token == t) {
        if (advance_all()) {
            end = looks = 0;
            continue;
        }
        if (spin && !end)
            end = now() + SPIN_SECONDS;
        if ((spin && now() < end) || (wires && looks++ < WIRE_LOOKS)) {
            give();
            relax();
            engine_lock();
        } else
            sleep_on_bell(r, t);
    }
    waiting--;
    if (thread_on && pending && !waiting)
        wake_thread();
    engine_unlock();
}

/* ---- the progress thread ---- */

static void *progress(void *arg)
{
    (void)arg;
    thread_id = self();
    prctl(PR_SET_NAME, "messages");
    thread_urgency(
        RUNS_SOON); /* a piece is moved in microseconds, also where the main threads keep all cores busy */
    while (!thread_stop) {
        while (wanted)
            sched_yield();
        uint32_t seen = kick;
        take();
        int work = pending && !waiting;
        thread_idle = !work;
        if (work && !advance_all() && pending && !waiting)
            sleep_on_bell(NULL, 0);
        give();
        if (!work && !thread_stop)
            syscall(SYS_futex, &kick, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    }
    return NULL;
}

static void progress_thread(int on)
{
    if (!on == !thread_on)
        return;
    if (!on) {
        thread_stop = 1;
        engine_lock();
        thread_on = 0;
        wake_thread();
        engine_unlock();
        pthread_join(thread, NULL);
        return;
    }
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    thread_stop = 0;
    if (pthread_create(&thread, NULL, progress, NULL))
        die(EXIT_RESOURCE, "threads",
            "cannot start the thread that moves messages; change: raise the limit on processes (ulimit -u), "
            "or GRIDIRON_PROGRESS=0");
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    engine_lock();
    thread_on = 1;
    engine_unlock();
}

void comm_threads(int threads)
{
    int cores = job_cores(), sharers = job_sharers();
    spin = threads * sharers <= cores;
    const char *asked = getenv("GRIDIRON_PROGRESS");
    if (asked && *asked && strcmp(asked, "0") && strcmp(asked, "1"))
        die(EXIT_CONFIG, "environment",
            "GRIDIRON_PROGRESS=%s; change: 0 (no progress thread), 1 (one), or leave it out",
            asked);
    if (job_here())
        progress_thread(asked && *asked ? *asked == '1' : (threads + 1) * sharers <= cores);
}

void engine_close(void)
{
    if (thread_on)
        progress_thread(0);
    for (int i = 0; i < blocks; i++)
        free(block[i]);
    free(block);
    free(active);
    block = NULL, active = NULL, vacant = NULL;
    blocks = nactive = active_room = 0;
}
