/* team -- a process group whose members are threads of one process: a transport over shared memory, for
 * tests of code that N ranks run.
 *
 * With a seed, some reductions and gathers run only when a member waits for them or for a later one.
 * Code that reads a result before it has waited then sees the old values, on every run with that seed. */
#ifndef TEAM_H
#define TEAM_H
#include "comm.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define TEAM_MAX 8
#define TEAM_QUEUE 256

typedef enum { TEAM_REDUCE, TEAM_SCATTER, TEAM_GATHER } TeamKind;
typedef struct { TeamKind kind; void *out; const void *in; int64_t n; Dtype type; ReduceOp op; } TeamOp;

typedef struct {
    int size;
    uint64_t seed;                  /* picks the operations that are put off; 0: none is */
    pthread_barrier_t barrier;
    const void *slot[TEAM_MAX];     /* [member] input of the collective that is running */
    int64_t started[TEAM_MAX], done[TEAM_MAX];
    TeamOp queue[TEAM_MAX][TEAM_QUEUE];
    pthread_mutex_t post;
    pthread_cond_t posted;
    const void *mail[TEAM_MAX];     /* [member] data that the member sends; NULL once it is received */
} Team;

static void team_barrier(Comm *c) { pthread_barrier_wait(&((Team *)c->impl)->barrier); }

/* a[i] <- a[i] op b[i] */
#define TEAM_FOLD(T)                                                                                         \
    for (int64_t i = 0; i < n; i++) {                                                                        \
        T *x = (T *)a + i;                                                                                   \
        const T y = ((const T *)b)[i];                                                                       \
        *x = op == OP_SUM ? (T)(*x + y) : op == OP_MIN ? (y < *x ? y : *x) : (y > *x ? y : *x);              \
    }                                                                                                        \
    return

static void team_fold(void *a, const void *b, int64_t n, Dtype type, ReduceOp op)
{
    switch (type) {
    case F64: TEAM_FOLD(double);
    case F32: TEAM_FOLD(float);
    case I64: TEAM_FOLD(int64_t);
    case I32: TEAM_FOLD(int32_t);
    default: BUG_ON("a type that the team does not add");
    }
}

/* Runs one collective. Every member reads the inputs of all members in rank order, and writes its output
 * when all members have read. */
static void team_run(Comm *c, const TeamOp *o)
{
    Team *t = c->impl;
    size_t size = dtype_size(o->type),
           bytes = (size_t)o->n * size * (o->kind == TEAM_GATHER ? (size_t)t->size : 1);
    size_t mine = o->kind == TEAM_SCATTER ? (size_t)(o->n * c->rank) * size : 0;
    char *out = xcalloc(1, bytes + 1);
    t->slot[c->rank] = o->in;
    team_barrier(c);
    for (int r = 0; r < t->size; r++) {
        const char *in = (const char *)t->slot[r] + mine;
        if (o->kind == TEAM_GATHER)
            memcpy(out + bytes / (size_t)t->size * (size_t)r, in, bytes / (size_t)t->size);
        else if (r == 0)
            memcpy(out, in, bytes);
        else
            team_fold(out, in, o->n, o->type, o->op);
    }
    team_barrier(c);
    memcpy(o->out, out, bytes);
    free(out);
}

static void team_run_to(Comm *c, int64_t end)
{
    Team *t = c->impl;
    while (t->done[c->rank] < end)
        team_run(c, &t->queue[c->rank][t->done[c->rank]++ % TEAM_QUEUE]);
}

static Token team_start(Comm *c, TeamOp o)
{
    Team *t = c->impl;
    int64_t number = t->started[c->rank]++;
    BUG_ON(t->started[c->rank] - t->done[c->rank] > TEAM_QUEUE);
    t->queue[c->rank][number % TEAM_QUEUE] = o;
    if (!t->seed || hash64(&number, sizeof number, t->seed) >> 20 & 1)
        team_run_to(c, number + 1);
    return number + 1;
}

static Token team_all_reduce(Comm *c, void *buf, int64_t n, Dtype type, ReduceOp op)
{
    return team_start(c, (TeamOp){TEAM_REDUCE, buf, buf, n, type, op});
}

static Token team_reduce_scatter(Comm *c, void *out, const void *in, int64_t n, Dtype type, ReduceOp op)
{
    return team_start(c, (TeamOp){TEAM_SCATTER, out, in, n, type, op});
}

static Token team_all_gather(Comm *c, void *out, const void *in, int64_t n, Dtype type)
{
    return team_start(c, (TeamOp){TEAM_GATHER, out, in, n, type, OP_SUM});
}

static Token team_broadcast(Comm *c, void *buf, int64_t n, Dtype type, int root)
{
    Team *t = c->impl;
    team_run_to(c, t->started[c->rank]);
    t->slot[c->rank] = buf;
    team_barrier(c);
    if (c->rank != root)
        memcpy(buf, t->slot[root], (size_t)n * dtype_size(type));
    team_barrier(c);
    return 0;
}

static Token team_send(Comm *c, const void *buf, int64_t n, Dtype type, int peer)
{
    Team *t = c->impl;
    (void)n, (void)type, (void)peer;
    pthread_mutex_lock(&t->post);
    t->mail[c->rank] = buf;
    pthread_cond_broadcast(&t->posted);
    while (t->mail[c->rank])
        pthread_cond_wait(&t->posted, &t->post);
    pthread_mutex_unlock(&t->post);
    return 0;
}

static Token team_recv(Comm *c, void *buf, int64_t n, Dtype type, int peer)
{
    Team *t = c->impl;
    pthread_mutex_lock(&t->post);
    while (!t->mail[peer])
        pthread_cond_wait(&t->posted, &t->post);
    memcpy(buf, t->mail[peer], (size_t)n * dtype_size(type));
    t->mail[peer] = NULL;
    pthread_cond_broadcast(&t->posted);
    pthread_mutex_unlock(&t->post);
    return 0;
}

static void team_wait(Comm *c, Token token) { team_run_to(c, token); }

static inline void team_open(Team *t, int size)
{
    *t = (Team){.size = size, .post = PTHREAD_MUTEX_INITIALIZER, .posted = PTHREAD_COND_INITIALIZER};
    pthread_barrier_init(&t->barrier, NULL, (unsigned)size);
}

static inline void team_close(Team *t) { pthread_barrier_destroy(&t->barrier); }

static inline Comm team_member(Team *t, int rank)
{
    return (Comm){.name = "team", .rank = rank, .size = t->size, .impl = t, .all_reduce = team_all_reduce,
                  .reduce_scatter = team_reduce_scatter, .all_gather = team_all_gather,
                  .broadcast = team_broadcast, .send = team_send, .recv = team_recv, .barrier = team_barrier,
                  .wait = team_wait};
}
#endif
