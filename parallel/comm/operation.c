/* operation -- what all groups share: the seven operations as calls of `start`, their bytes, and all_ok */
#include "comm.h"
#include <stdarg.h>
#include <stdio.h>

const char *const comm_kind_name[COMM_KINDS] = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all",
                                                "broadcast",  "send",           "recv",       "barrier"};

static Token all_reduce(Comm *c, void *buf, int64_t n, Dtype type, ReduceOp op)
{
    return c->start(c, (Operation){COMM_ALL_REDUCE, buf, buf, n, type, op, 0});
}

static Token reduce_scatter(Comm *c, void *out, const void *in, int64_t n, Dtype type, ReduceOp op)
{
    return c->start(c, (Operation){COMM_REDUCE_SCATTER, out, in, n, type, op, 0});
}

static Token all_gather(Comm *c, void *out, const void *in, int64_t n, Dtype type)
{
    return c->start(c, (Operation){COMM_ALL_GATHER, out, in, n, type, OP_SUM, 0});
}

static Token all_to_all(Comm *c, void *out, const void *in, int64_t n, Dtype type)
{
    return c->start(c, (Operation){COMM_ALL_TO_ALL, out, in, n, type, OP_SUM, 0});
}

static Token broadcast(Comm *c, void *buf, int64_t n, Dtype type, int root)
{
    return c->start(c, (Operation){COMM_BROADCAST, buf, buf, n, type, OP_SUM, root});
}

static Token send_to(Comm *c, const void *buf, int64_t n, Dtype type, int peer)
{
    return c->start(c, (Operation){COMM_SEND, NULL, buf, n, type, OP_SUM, peer});
}

static Token recv_from(Comm *c, void *buf, int64_t n, Dtype type, int peer)
{
    return c->start(c, (Operation){COMM_RECV, buf, NULL, n, type, OP_SUM, peer});
}

void comm_operations(Comm *c, Token (*start)(Comm *c, Operation o))
{
    c->start = start;
    c->all_reduce = all_reduce;
    c->reduce_scatter = reduce_scatter;
    c->all_gather = all_gather;
    c->all_to_all = all_to_all;
    c->broadcast = broadcast;
    c->send = send_to;
    c->recv = recv_from;
}

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

void all_ok(Comm *c, int ok, int code, const char *id, const char *fmt, ...)
{
    int64_t lowest = ok ? INT64_MAX : c->rank;
    c->wait(c, c->all_reduce(c, &lowest, 1, I64, OP_MIN));
    if (lowest == INT64_MAX)
        return;
    if (lowest == c->rank) {
        char text[2048];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        die(code, id, "%s", text);
    }
    c->barrier(c);   /* the rank that died ends the job */
}
