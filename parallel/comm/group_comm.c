/* group_comm -- the interface of a group: its operations as requests of the engine */
#include "flight.h"
#include "group.h"

static Token submit(Comm *c, Operation o)
{
    Group *g = c->impl;
    BUG_ON(o.n < 0 || o.root < 0 || o.root >= g->size);
    Request r = {.group = g, .kind = o.kind, .name = g->name, .type = o.type, .op = o.op, .in = o.in,
                 .out = o.out, .n = o.n, .root = o.root, .wire = -1, .advance = collective_advance,
                 .flight_group = g->flight, .peer = -1, .stats = &g->stats,
                 .checked = g->checked, .payload = comm_payload(c, o.kind, o.n, o.type, o.root)};
    Queue *q = &g->queue;
    if (o.kind == COMM_SEND || o.kind == COMM_RECV) {
        BUG_ON(o.root == g->rank /* a message to oneself */);
        r.advance = message_advance;
        r.peer = g->world[o.root];
        q = o.kind == COMM_SEND ? &g->out[o.root].queue : &g->in[o.root].queue;
    }
    if (o.kind != COMM_BARRIER) {
        c->ops++;
        c->bytes += r.payload;
    }
    return o.n || o.kind == COMM_BARRIER ? engine_submit(q, &r) : 0;
}

static void group_wait(Comm *c, Token t) { (void)c, engine_wait(t); }
static void group_barrier(Comm *c)
{
    int32_t one = 1;
    engine_wait(submit(c, (Operation){COMM_BARRIER, &one, &one, 1, I32, OP_MIN, 0}));
}

static void group_close(Comm *c)
{
    engine_lock();
    group_free(c->impl);
    engine_unlock();
}

void group_comm(Group *g, Comm *c)
{
    *c = (Comm){.name = g->name, .rank = g->rank, .size = g->size, .impl = g, .barrier = group_barrier,
                .stats = &g->stats, .wait = group_wait, .close = group_close};
    comm_operations(c, submit);
}

int group_flight_device(const Comm *c)
{
    const Group *g = c->close == group_close ? c->impl : NULL;
    return g ? flight_group(g->name, -g->id, g->world, g->size) : 0;
}

int group_world(const Comm *c, int rank)
{
    return c->close == group_close ? ((const Group *)c->impl)->world[rank] : rank;
}

CommStats comm_stats(const Comm *c)
{
    if (!c->stats)
        return (CommStats){0};
    engine_lock();
    CommStats s = *c->stats;
    engine_unlock();
    return s;
}
