/* test_pool -- the thread pool: runs every item once, after a pause, in a forked child, and with more
 * threads than cores; the modes of a thread are known before it has worked */
#define _GNU_SOURCE
#include "device.h"
#include "modes.h"
#include "pool.h"
#include "test.h"
#include <dlfcn.h>
#include <errno.h>
#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define ITEMS 1000

static _Atomic int seen[ITEMS];
static _Atomic int bad_thread;

static void mark(void *ctx, int64_t item, int thread)
{
    if (thread < 0 || thread >= *(int *)ctx)
        bad_thread = 1;
    atomic_fetch_add(&seen[item], 1);
}

static int marks_wrong(int64_t items, int times)
{
    int wrong = 0;
    for (int64_t i = 0; i < ITEMS; i++)
        wrong += atomic_exchange(&seen[i], 0) != (i < items ? times : 0);
    return wrong;
}

static int many_cores;                 /* not 0: so many cores may be used of a host of 8,192 */

int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set)
{
    if (!many_cores)
        return syscall(SYS_sched_getaffinity, pid, size, set) < 0 ? -1 : 0;
    if (size < 8192 / 8)
        return errno = EINVAL, -1;
    memset(set, 0, size);
    for (int i = 0; i < many_cores; i++)
        CPU_SET_S((size_t)(8191 - i), size, set);
    return 0;
}

static int late;                       /* bool: threads begin late, as on a busy core, and round up */
typedef struct { void *(*fn)(void *); void *arg; } Start;

static void *start(void *arg)
{
    Start s = *(Start *)arg;
    free(arg);
    if (late) {
        usleep(200000);
        fesetround(FE_UPWARD);
    }
    return s.fn(s.arg);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *), void *arg)
{
    int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    *(void **)&create = dlsym(RTLD_NEXT, "pthread_create");
    Start *s = xcalloc(1, sizeof *s);
    *s = (Start){fn, arg};
    return create(thread, attr, start, s);
}

/* A thread that gets no item at first would otherwise change the results of a later step: steps before it
 * would be saved by a process that is not fit to compute. */
static void check_modes_of_late_threads(void)
{
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        late = 1;
        close(2);                      /* the error line */
        pool_open(3);
        modes_check(0);
        _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_NUMERIC, "threads that round up: status %d",
          status);
}

int main(void)
{
    check_modes_of_late_threads();
    many_cores = 1500;
    CHECK(pool_cores() == host_cores(1500), "%d cores of 1,500", pool_cores());
    many_cores = 0;
    for (int threads = 1; threads <= 5; threads++) {
        Pool *p = pool_open(threads);
        CHECK(pool_threads(p) == threads, "%d", pool_threads(p));
        for (int64_t items = 0; items <= 9; items += 3) {
            for (int i = 0; i < 300; i++)
                pool_run(p, mark, &threads, items);
            int wrong = marks_wrong(items, 300);
            CHECK(!wrong, "%d threads, %ld items: %d wrong", threads, (long)items, wrong);
        }
        for (int i = 0; i < 20; i++) {     /* pauses, in which the workers fall asleep */
            usleep(1000);
            pool_run(p, mark, &threads, ITEMS);
        }
        int wrong = marks_wrong(ITEMS, 20);
        CHECK(!wrong && !bad_thread, "%d threads after sleep: %d wrong", threads, wrong);
        fflush(stdout);
        pid_t child = fork();
        if (!child) {
            pool_run(p, mark, &threads, ITEMS);
            pool_close(p);
            _exit(marks_wrong(ITEMS, 1) ? 1 : 0);
        }
        int status = -1;
        waitpid(child, &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a forked child: status %d", status);
        pool_close(p);
    }
    return test_end();
}
