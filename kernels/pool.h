/* pool -- the threads of one rank. An op cuts its work into items, and the cut does not depend on the
 * number of threads. Any thread may run any item, so no result depends on the number of threads. */
#ifndef POOL_H
#define POOL_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

typedef struct Pool Pool;

/* Starts threads - 1 worker threads; the caller is the other one. threads >= 1. */
Pool *pool_open(int threads);
void pool_close(Pool *p);
int pool_threads(const Pool *p);

/* Cores of a host, as many as Linux can have: cpu_set_t ends at 1,024, and a host that may have more does
 * not fill that. */
typedef struct { unsigned long word[8192 / 64]; } CoreSet;

/* Fills the set of the cores that this process may run on, and returns how many of them it may keep busy: a
 * control group may have less processor time (host_cores). */
int pool_core_set(CoreSet *set);
int pool_cores(void);               /* their number alone */

/* Calls fn(ctx, item, thread) once for each item in [0, items), on all threads, and returns when all
 * calls have returned. thread is the number of the calling thread, in [0, threads). fn must not call
 * pool_run. */
void pool_run(Pool *p, void (*fn)(void *ctx, int64_t item, int thread), void *ctx, int64_t items);
#ifdef __cplusplus
}
#endif
#endif
