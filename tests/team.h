/* team -- a process group whose members are threads of one process: what a transport does, over shared
 * memory, for tests of code that N ranks run. Has all_reduce of I64 (minimum, maximum), all_gather, broadcast, send,
 * recv and barrier. */
#ifndef TEAM_H
#define TEAM_H
#include "comm.h"
#include <pthread.h>
#include <string.h>

#define TEAM_MAX 8

typedef struct {
    int size;
    pthread_barrier_t barrier;
    void *slot[TEAM_MAX];           /* what each member brought to the collective under way */
    pthread_mutex_t post;
    pthread_cond_t posted;
    const void *mail[TEAM_MAX];     /* what each member is sending; NULL once it has been taken */
} Team;

static void team_barrier(Comm *c) { pthread_barrier_wait(&((Team *)c->impl)->barrier); }

static Token team_all_reduce(Comm *c, void *buf, int64_t n, Dtype type, ReduceOp op)
{
    Team *t = c->impl;
    int64_t out[8];
    BUG_ON(type != I64 || n > 8 || op == OP_SUM);
    t->slot[c->rank] = buf;
    team_barrier(c);
    for (int64_t i = 0; i < n; i++)
        for (int r = 0; r < t->size; r++) {
            int64_t v = ((int64_t *)t->slot[r])[i];
            out[i] = r == 0 || (op == OP_MIN ? v < out[i] : v > out[i]) ? v : out[i];
        }
    team_barrier(c);
    memcpy(buf, out, (size_t)n * 8);
    return 0;
}

static Token team_all_gather(Comm *c, void *out, const void *in, int64_t n, Dtype type)
{
    Team *t = c->impl;
    size_t bytes = (size_t)n * dtype_size(type);
    t->slot[c->rank] = (void *)in;
    team_barrier(c);
    for (int r = 0; r < t->size; r++)
        memcpy((char *)out + (size_t)r * bytes, t->slot[r], bytes);
    team_barrier(c);
    return 0;
}

static Token team_broadcast(Comm *c, void *buf, int64_t n, Dtype type, int root)
{
    Team *t = c->impl;
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

static void team_wait(Comm *c, Token token) { (void)c, (void)token; }

static inline void team_open(Team *t, int size)
{
    *t = (Team){.size = size, .post = PTHREAD_MUTEX_INITIALIZER, .posted = PTHREAD_COND_INITIALIZER};
    pthread_barrier_init(&t->barrier, NULL, (unsigned)size);
}

static inline void team_close(Team *t) { pthread_barrier_destroy(&t->barrier); }

static inline Comm team_member(Team *t, int rank)
{
    return (Comm){.name = "team", .rank = rank, .size = t->size, .impl = t, .all_reduce = team_all_reduce,
                  .all_gather = team_all_gather, .broadcast = team_broadcast, .send = team_send, .recv = team_recv, .barrier = team_barrier,
                  .wait = team_wait};
}
#endif
