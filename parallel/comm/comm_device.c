/* comm_device -- groups over a GPU's memory: device buffers go to the transport, host buffers to the
 * wrapped group */
#include "device_group.h"
#include "flight.h"
#include "group.h"
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
    g->last = o;
    int peer = o.kind == COMM_SEND || o.kind == COMM_RECV ? group_world(&g->host, o.root) : -1;
    flight_op(g->flight, (int)o.kind, peer, g->started, comm_payload(c, o.kind, o.n, o.type, o.root), 1);
    g->start(g, &o);
    return -g->started;
}

/* On the device, or through the wrapped group: both buffers of an operation lie on the same side. */
static Token device_start(Comm *c, Operation o)
{
    DeviceGroup *g = of(c);
    BUG_ON((o.kind == COMM_SEND || o.kind == COMM_RECV) && o.root == c->rank);
    if (c->dev->owns(c->dev, o.kind == COMM_RECV ? o.out : o.in))
        return on_device(c, o);
    g->host.ops = g->host.bytes = 0;   /* of operations on the device that went by way of the host */
    Token t = g->host.start(&g->host, o);
    c->ops += g->host.ops;
    c->bytes += g->host.bytes;
    return t;
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
    double *waited = g->dev->waited;
    if (waited)
        g->dev->stall(g->dev, waited);
    if (t >= 0)
        g->host.wait(&g->host, t);
    else
        g->finish(g, -t);
    if (waited)
        g->dev->stall_end(g->dev);
}

static void device_close(Comm *c)
{
    DeviceGroup *g = of(c);
    if (g->close)
        g->close(g);
    flight_group_close(g->flight);
    comm_close(&g->host);
    free(g);
}

DeviceGroup *device_group(Comm *c, Device *d)
{
    DeviceGroup *g = xcalloc(1, sizeof *g);
    g->host = *c;
    g->dev = d;
    g->flight = group_flight_device(c);
    *c = (Comm){.name = c->name, .rank = c->rank, .size = c->size, .ops = c->ops, .bytes = c->bytes, .dev = d,
                .impl = g, .stats = c->stats, .together = device_together, .barrier = device_barrier,
                .wait = device_wait, .close = device_close};
    comm_operations(c, device_start);
    g->host.ops = g->host.bytes = 0;
    return g;
}
