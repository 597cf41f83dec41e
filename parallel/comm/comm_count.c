/* comm_count -- a group that moves nothing: every operation only adds to the counters */
#include "comm.h"

int64_t comm_payload(const Comm *c, CommKind kind, int64_t n, Dtype type, int root)
{
    int64_t bytes = n * (int64_t)dtype_size(type);
    switch (kind) {
    case COMM_REDUCE_SCATTER:
    case COMM_ALL_TO_ALL: return bytes * c->size;
    case COMM_BROADCAST:  return c->rank == root ? bytes : 0;
    case COMM_RECV:       return 0;
    default:              return bytes;
    }
}

static Token count(Comm *c, CommKind kind, int64_t n, Dtype type, int root)
{
    BUG_ON(n < 0 || root < 0 || root >= c->size);
    c->ops++;
    c->bytes += comm_payload(c, kind, n, type, root);
    return 0;
}

static Token count_all_reduce(Comm *c, void *buf, int64_t n, Dtype type, ReduceOp op)
{
    (void)buf, (void)op;
    return count(c, COMM_ALL_REDUCE, n, type, 0);
}

static Token count_reduce_scatter(Comm *c, void *out, const void *in, int64_t n, Dtype type, ReduceOp op)
{
    (void)out, (void)in, (void)op;
    return count(c, COMM_REDUCE_SCATTER, n, type, 0);
}

static Token count_all_gather(Comm *c, void *out, const void *in, int64_t n, Dtype type)
{
    (void)out, (void)in;
    return count(c, COMM_ALL_GATHER, n, type, 0);
}

static Token count_all_to_all(Comm *c, void *out, const void *in, int64_t n, Dtype type)
{
    (void)out, (void)in;
    return count(c, COMM_ALL_TO_ALL, n, type, 0);
}

static Token count_broadcast(Comm *c, void *buf, int64_t n, Dtype type, int root)
{
    (void)buf;
    return count(c, COMM_BROADCAST, n, type, root);
}

static Token count_send(Comm *c, const void *buf, int64_t n, Dtype type, int peer)
{
    (void)buf;
    BUG_ON(peer == c->rank);
    return count(c, COMM_SEND, n, type, peer);
}

static Token count_recv(Comm *c, void *buf, int64_t n, Dtype type, int peer)
{
    (void)buf;
    BUG_ON(peer == c->rank);
    return count(c, COMM_RECV, n, type, peer);
}

static void count_barrier(Comm *c) { (void)c; }
static void count_wait(Comm *c, Token t) { (void)c, (void)t; }

void comm_count_open(Comm *c, const char *name, int size, int rank)
{
    BUG_ON(size < 1 || rank < 0 || rank >= size);
    if (size == 1) {
        comm_self_open(c, name);
        return;
    }
    *c = (Comm){.name = name, .rank = rank, .size = size, .all_reduce = count_all_reduce,
                .reduce_scatter = count_reduce_scatter, .all_gather = count_all_gather,
                .all_to_all = count_all_to_all, .broadcast = count_broadcast, .send = count_send,
                .recv = count_recv, .barrier = count_barrier, .wait = count_wait};
}
