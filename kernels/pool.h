/* pool -- the threads of one rank. An op cuts its work into fixed items; which thread takes an item
 * is chance, what an item computes is not, so no result depends on the number of threads. */
#ifndef POOL_H
#define POOL_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

typedef struct Pool Pool;

/* `threads` >= 1 in all, the caller included. */
Pool *pool_open(int threads);
void pool_close(Pool *p);
int pool_threads(const Pool *p);

/* The cores that this process may run on. */
int pool_cores(void);

/* Calls fn(ctx, item, thread) once for each item in [0, items), spread over the threads; returns when
 * all are done. thread in [0, threads). Not reentrant: an fn must not call pool_run. */
void pool_run(Pool *p, void (*fn)(void *ctx, int64_t item, int thread), void *ctx, int64_t items);
#ifdef __cplusplus
}
#endif
#endif
