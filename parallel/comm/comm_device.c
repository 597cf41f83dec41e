/* comm_device -- groups over a GPU's memory: device buffers go to the transport, host buffers to the
 * wrapped group */
#include "device_group.h"
#include <stdlib.h>

static DeviceGroup *of(const Comm *c) { return c->impl; }

int64_t operation_reads(const Comm *c, const Operation *o)
{
    switch (o->kind) {
    case COMM_REDUCE_SCATTER:
    case COMM_ALL_TO_ALL: return o->n * c->size;
    case COMM_BROADCAST:  return c->rank == o->root ? o->n : 0;
    case COMM_RECV:       return 0;
    default:              return o->n;
    }
}

int64_t operation_writes(const Comm *c, const Operation *o)
{
    switch (o->kind) {
    case COMM_ALL_GATHER:
    case COMM_ALL_TO_ALL: return o->n * c->size;
    case COMM_BROADCAST:  return c->rank == o->root ? 0 : o->n;
    case COMM_SEND:       return 0;
    default:              return o->n;
    }
}

static Token on_device(Comm *c, Operation o)
{
    DeviceGroup *g = of(c);
    c->ops++;
    c->bytes += comm_payload(c, o.kind, o.n, o.type, o.root);
    g->started++;
    g->number[g->started % DEVICE_TOKENS] = g->started;
    g->last = o;
    g->start(g, &o);
    return -g->started;
}

/* Whether p is device memory. Both buffers of an operation lie on the same side. */
static int here(Comm *c, const void *p) { return c->dev->owns(c->dev, p); }

/* Takes over what the wrapped group has counted. */
static Token on_host(Comm *c, Token t)
{
    const Comm *h = &of(c)->host;
    DeviceGroup *g = of(c);
    c->ops += h->ops;
    c->bytes += h->bytes;
    g->host.ops = g->host.bytes = 0;
    return t;
}

static Token device_all_reduce(Comm *c, void *buf, int64_t n, Dtype type, ReduceOp op)
{
    Comm *h = &of(c)->host;
    return here(c, buf) ? on_device(c, (Operation){COMM_ALL_REDUCE, buf, buf, n, type, op, 0})
                        : on_host(c, h->all_reduce(h, buf, n, type, op));
}

static Token device_reduce_scatter(Comm *c, void *out, const void *in, int64_t n, Dtype type, ReduceOp op)
{
    Comm *h = &of(c)->host;
    return here(c, in) ? on_device(c, (Operation){COMM_REDUCE_SCATTER, out, in, n, type, op, 0})
                       : on_host(c, h->reduce_scatter(h, out, in, n, type, op));
}

static Token device_all_gather(Comm *c, void *out, const void *in, int64_t n, Dtype type)
{
    Comm *h = &of(c)->host;
    return here(c, in) ? on_device(c, (Operation){COMM_ALL_GATHER, out, in, n, type, OP_SUM, 0})
                       : on_host(c, h->all_gather(h, out, in, n, type));
}

static Token device_all_to_all(Comm *c, void *out, const void *in, int64_t n, Dtype type)
{
    Comm *h = &of(c)->host;
    return here(c, in) ? on_device(c, (Operation){COMM_ALL_TO_ALL, out, in, n, type, OP_SUM, 0})
                       : on_host(c, h->all_to_all(h, out, in, n, type));
}

static Token device_broadcast(Comm *c, void *buf, int64_t n, Dtype type, int root)
{
    Comm *h = &of(c)->host;
    return here(c, buf) ? on_device(c, (Operation){COMM_BROADCAST, buf, buf, n, type, OP_SUM, root})
                        : on_host(c, h->broadcast(h, buf, n, type, root));
}

static Token device_send(Comm *c, const void *buf, int64_t n, Dtype type, int peer)
{
    Comm *h = &of(c)->host;
    BUG_ON(peer == c->rank);
    return here(c, buf) ? on_device(c, (Operation){COMM_SEND, NULL, buf, n, type, OP_SUM, peer})
                        : on_host(c, h->send(h, buf, n, type, peer));
}

static Token device_recv(Comm *c, void *buf, int64_t n, Dtype type, int peer)
{
    Comm *h = &of(c)->host;
    BUG_ON(peer == c->rank);
    return here(c, buf) ? on_device(c, (Operation){COMM_RECV, buf, NULL, n, type, OP_SUM, peer})
                        : on_host(c, h->recv(h, buf, n, type, peer));
}

static void device_together(Comm *c, int begin)
{
    DeviceGroup *g = of(c);
    if (g->together)
        g->together(g, begin);
}

static void device_barrier(Comm *c)
{
    Comm *h = &of(c)->host;
    h->barrier(h);
}

static void device_wait(Comm *c, Token t)
{
    DeviceGroup *g = of(c);
    if (t >= 0)
        g->host.wait(&g->host, t);
    else if (g->number[-t % DEVICE_TOKENS] >= -t)
        g->finish(g, -t);
}

static void device_close(Comm *c)
{
    DeviceGroup *g = of(c);
    if (g->close)
        g->close(g);
    comm_close(&g->host);
    free(g);
}

DeviceGroup *device_group(Comm *c, Device *d)
{
    DeviceGroup *g = xcalloc(1, sizeof *g);
    g->host = *c;
    g->dev = d;
    *c = (Comm){.name = c->name, .rank = c->rank, .size = c->size, .ops = c->ops, .bytes = c->bytes, .dev = d,
                .impl = g, .all_reduce = device_all_reduce, .reduce_scatter = device_reduce_scatter,
                .all_gather = device_all_gather, .all_to_all = device_all_to_all,
                .broadcast = device_broadcast, .send = device_send, .recv = device_recv,
                .together = device_together, .barrier = device_barrier, .wait = device_wait,
                .close = device_close};
    g->host.ops = g->host.bytes = 0;
    return g;
}
