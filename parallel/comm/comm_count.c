/* comm_count -- a group that moves nothing: every operation only adds to the counters */
#include "comm.h"

static Token count(Comm *c, Operation o)
{
    BUG_ON(o.n < 0 || o.root < 0 || o.root >= c->size);
    BUG_ON((o.kind == COMM_SEND || o.kind == COMM_RECV) && o.root == c->rank);
    c->ops++;
    c->bytes += comm_payload(c, o.kind, o.n, o.type, o.root);
    return 0;
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
    *c = (Comm){.name = name, .rank = rank, .size = size, .barrier = count_barrier, .wait = count_wait};
    comm_operations(c, count);
}
