/* engine -- queues of operations under way, and the progress thread */
#define _GNU_SOURCE
#include "engine.h"
#include "flight.h"
#include "job.h"
#include "modes.h"
#include "pace.h"
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
#define SPIN_SECONDS 30e-6         /* time to spin before sleeping, where cores are to spare */
#define WIRE_LOOKS 100             /* yields before sleeping while messages between hosts are under way */
#define WIRE_SECONDS 100e-6        /* length of such a sleep */
#define INLINE_BYTES 65536         /* up to here the caller advances its request, progress thread or not */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int lock_owner;     /* thread id; 0: nobody */
static _Atomic int wanted;         /* threads in engine_lock: the progress thread lets them go first */

static Request **block;            /* [blocks][BLOCK] */
static int blocks;
static Request *vacant;            /* list of free requests */
static uint32_t generations;       /* requests submitted, modulo INT_MAX */

static Queue **active;             /* [nactive] queues that hold requests */
static int nactive, active_room;
static _Atomic int pending;        /* requests in queues */

static int waiting;                /* threads inside engine_wait */
static int sleepers;               /* threads asleep on the bell */
static int wires;                  /* messages between hosts under way */
static int spin;                   /* bool: cores are to spare */

static pthread_t thread;
static int thread_on, thread_idle;
static _Atomic int thread_id;
static _Atomic uint32_t kick;      /* the progress thread sleeps on it while it has nothing to do */
static _Atomic int thread_stop;

static Request *advancing;         /* the request whose advance() runs */
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

/* A token is a generation and a place among the requests. Another request may have the place by now: compare
 * the tokens. */
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
    flight_op_end(r->flight);
    if (listener)
        listener(listener_ctx, &(CommEvent){r->name, r->kind,
                                            r->kind == COMM_SEND || r->kind == COMM_RECV ? r->root : -1,
                                            r->payload, r->touched, r->behind, r->start, now()});
    r->token &= 0xffffffff;        /* clears the generation: no caller's token names the request now */
    r->next = vacant;
    vacant = r;
    pending--;
    if (sleepers)                  /* another thread may wait for this request */
        job_ring(job_local());
}

/* Advances one request. Returns whether anything moved. */
static int advance_one(Request *r)
{
    double start = now();
    advancing = r;
    int moved = r->advance(r);
    advancing = NULL;
    if (moved) {
        double took = now() - start;
        double before = pace_moved();
        r->stats->busy += took;
        pace_moving(took);
        r->stats->moving += pace_moved() - before;
    }
    return moved;
}

/* Advances the first request of one queue, or of every queue (only NULL), as far as it goes. Returns whether
 * anything moved. */
static int advance(const Queue *only)
{
    int moved = 0;
    for (int i = 0; i < nactive;) {
        Queue *q = active[i];
        while (q->head && (!only || q == only)) {
            if (advance_one(q->head)) {
                moved = 1;
                flight_moved();
            }
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
    double start = now();
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
    r->start = start;
    r->number = ++q->submitted;
    r->flight = flight_op(r->flight_group, (int)r->kind, r->peer, r->number, r->payload, 0);
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
    if (!thread_on)
        advance(NULL);
    else if (q->head == r && r->n * (int64_t)dtype_size(r->type) <= INLINE_BYTES)
        advance(q);
    if (thread_on && pending && !waiting)
        wake_thread();
    engine_unlock();
    pace_away(now() - start, NULL);
    return token;
}

void comm_progress(void)
{
    if (!pending || thread_on || pthread_mutex_trylock(&lock))
        return;
    double start = now();
    lock_owner = self();
    advance(NULL);
    give();
    pace_away(now() - start, NULL);
}

/* Between two looks: gives the core away, perhaps to the rank that this one waits for. */
static void relax(void)
{
#ifdef __x86_64__
    for (int i = 0; i < 8; i++)
        __builtin_ia32_pause();
#endif
    sched_yield();
}

static double nap(void) { return wires ? WIRE_SECONDS : 1; }

/* Advances; if nothing moves and the request r of token t is not done, sleeps until the doorbell rings. The
 * lock is free meanwhile. r NULL: no request. */
static void sleep_on_bell(const Request *r, Token t)
{
    uint32_t seen = job_bell();
    job_sleepy(1);
    if (!advance(NULL) && (!r || r->token == t)) {
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
    double start = now(), moved = pace_moved(), end = 0;
    PaceMark waits = {.starved = -1};
    engine_lock();
    const Request *r = find(t);
    CommStats *stats = r->token == t ? r->stats : NULL;
    int looks = 0;
    waiting++;
    while (r->token == t) {
        if (advance(NULL)) {
            end = looks = 0;
            continue;
        }
        flight_wait(r->flight);
        waits = waits.starved < 0 ? pace_mark() : waits;
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
    flight_wait_end();
    double took = now() - start;
    if (stats)
        stats->waited += took - (pace_moved() - moved);
    if (thread_on && pending && !waiting)
        wake_thread();
    engine_unlock();
    pace_away(took, waits.starved < 0 ? NULL : &waits);
}

/* ---- the progress thread ---- */

static void *progress(void *arg)
{
    (void)arg;
    thread_id = self();
    prctl(PR_SET_NAME, "messages");
    thread_urgency(RUNS_SOON);     /* moving a piece takes microseconds, even where all cores are busy */
    while (!thread_stop) {
        while (wanted)
            sched_yield();
        uint32_t seen = kick;
        take();
        int work = pending && !waiting;
        thread_idle = !work;
        if (work && !advance(NULL) && pending && !waiting)
            sleep_on_bell(NULL, 0);
        give();
        if (work)                      /* it has added numbers */
            modes_look(MESSAGE_THREAD);
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
        die(EXIT_RESOURCE, "threads", "cannot start the thread that moves messages; change: raise the "
            "limits on processes and memory (ulimit -u, -v), or GRIDIRON_PROGRESS=0");
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
        die(EXIT_CONFIG, "environment", "GRIDIRON_PROGRESS=%s; change: 0 (no progress thread), 1 (one), or "
            "leave it out", asked);
    if (job_here())
        progress_thread(asked && *asked ? *asked == '1' : (threads + 1) * sharers <= cores);
}

int comm_cores_suffice(void) { return spin; }

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
