/* test_pool -- the thread pool: runs every item once, after a pause, in a forked child, and with more
 * threads than cores */
#define _GNU_SOURCE
#include "base.h"
#include "pool.h"
#include "test.h"
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
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

int main(void)
{
    many_cores = 1500;
    CHECK(pool_cores() == 1500, "%d cores of 1,500", pool_cores());
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
