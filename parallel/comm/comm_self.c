/* comm_self -- the group of one: what every operation does without other ranks */
#include "comm.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *const comm_kind_name[COMM_KINDS] = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all",
                                                "broadcast",  "send",           "recv",       "barrier"};

static Token self_all_reduce(Comm *c, void *buf, int64_t n, Dtype type, ReduceOp op)
{
    (void)c, (void)buf, (void)n, (void)type, (void)op;
    return 0;
}

/* Copies within this rank; device buffers in the order of the ops. */
static void copy(Comm *c, void *out, const void *in, int64_t n, Dtype type)
{
    if (c->dev && c->dev->owns(c->dev, out))
        c->dev->copy(c->dev, mat(out, 1, n, type), mat((void *)in, 1, n, type));
    else
        memcpy(out, in, (size_t)n * dtype_size(type));
}

static Token self_copy(Comm *c, void *out, const void *in, int64_t n, Dtype type)
{
    if (out != in)
        copy(c, out, in, n, type);
    return 0;
}

static Token self_reduce_scatter(Comm *c, void *out, const void *in, int64_t n, Dtype type, ReduceOp op)
{
    (void)op;
    return self_copy(c, out, in, n, type);
}

static Token self_gather(Comm *c, void *out, const void *in, int64_t n, Dtype type)
{
    return self_copy(c, out, in, n, type);
}

static Token self_broadcast(Comm *c, void *buf, int64_t n, Dtype type, int root)
{
    (void)c, (void)buf, (void)n, (void)type;
    BUG_ON(root != 0);
    return 0;
}

static Token self_send(Comm *c, const void *buf, int64_t n, Dtype type, int peer)
{
    (void)buf, (void)n, (void)type, (void)peer;
    BUG_ON(c->size == 1 /* a message to oneself */);
    return 0;
}

static Token self_recv(Comm *c, void *buf, int64_t n, Dtype type, int peer)
{
    return self_send(c, buf, n, type, peer);
}

static void self_barrier(Comm *c) { (void)c; }
static void self_wait(Comm *c, Token t) { (void)c, (void)t; }

void comm_self_open(Comm *c, const char *name)
{
    *c = (Comm){.name = name, .rank = 0, .size = 1, .all_reduce = self_all_reduce,
                .reduce_scatter = self_reduce_scatter, .all_gather = self_gather, .all_to_all = self_gather,
                .broadcast = self_broadcast, .send = self_send, .recv = self_recv, .barrier = self_barrier,
                .wait = self_wait};
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
