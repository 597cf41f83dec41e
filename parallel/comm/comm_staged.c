/* comm_staged -- device buffers through host memory: for several ranks on one GPU, and for machines
 * without NCCL. An operation's start waits for the device and copies what is sent to the host; the wrapped
 * group moves it; its finish copies the result to the device. */
#include "device_group.h"
#include <stdlib.h>

/* An operation under way, and its host memory: what is sent, then what is received. */
typedef struct {
    int64_t number;                /* DeviceGroup.started of the operation; 0: free */
    Token token;                   /* of the wrapped group */
    void *out;                     /* device address of the result */
    size_t bytes, room;            /* of the result; of memory */
    char *memory, *in;             /* in: address of the result, within memory */
} Staging;

typedef struct {
    Staging *at;                   /* [n] */
    int n;                         /* the most operations that have been under way at once */
} Staged;

/* A free Staging with at least `room` bytes. Its address holds until the next call. */
static Staging *vacant(DeviceGroup *g, size_t room)
{
    Staged *s = g->impl;
    Staging *best = NULL;
    for (int i = 0; i < s->n; i++) {
        Staging *p = &s->at[i];
        if (!p->number && (!best || (p->room >= room && (best->room < room || p->room < best->room))))
            best = p;
    }
    if (!best) {                   /* grows in the first step, and so does its memory */
        s->at = xgrow(s->at, s->n, sizeof *s->at);
        best = &s->at[s->n++];
        *best = (Staging){0};
    }
    if (best->room < room) {
        if (best->memory)
            g->dev->host_give(g->dev, best->memory, best->room);
        best->memory = g->dev->host_take(g->dev, room);
        best->room = room;
    }
    return best;
}

static void staged_start(DeviceGroup *g, const Operation *o)
{
    size_t size = dtype_size(o->type), reads = (size_t)operation_reads(&g->host, o) * size;
    size_t writes = (size_t)operation_writes(&g->host, o) * size;
    /* reductions and broadcasts work in place: what is sent lies where the result will */
    int same = o->kind == COMM_ALL_REDUCE || o->kind == COMM_BROADCAST;
    Staging *p = vacant(g, same ? reads > writes ? reads : writes : reads + writes);
    p->number = g->started;
    p->out = o->out;
    p->bytes = writes;
    p->in = p->memory + (same ? 0 : reads);
    if (reads)
        g->dev->get(g->dev, p->memory, o->in, reads);
    else
        g->dev->sync(g->dev);      /* ops that read the buffer which the message will fill are done */
    p->token = g->host.start(&g->host, (Operation){o->kind, p->in, p->memory, o->n, o->type, o->op, o->root});
}

static void staged_finish(DeviceGroup *g, int64_t k)
{
    Staged *s = g->impl;
    for (int i = 0; i < s->n; i++) {
        Staging *p = &s->at[i];
        if (p->number != k)
            continue;
        g->host.wait(&g->host, p->token);
        if (p->bytes)
            g->dev->put(g->dev, p->out, p->in, p->bytes);
        p->number = 0;
    }
}

static void staged_close(DeviceGroup *g)
{
    Staged *s = g->impl;
    for (int i = 0; i < s->n; i++)
        if (s->at[i].memory)
            g->dev->host_give(g->dev, s->at[i].memory, s->at[i].room);
    free(s->at);
    free(s);
}

void comm_staged_wrap(void *device, Comm *c)
{
    if (c->size == 1)
        return;
    DeviceGroup *g = device_group(c, device);
    g->impl = xcalloc(1, sizeof(Staged));
    g->start = staged_start;
    g->finish = staged_finish;
    g->close = staged_close;
}
