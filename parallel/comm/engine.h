/* engine -- operations under way. A transport describes an operation as a Request whose advance() does what
 * can be done at once and never waits; the engine keeps requests in queues (in a queue strictly one after the
 * other, queues apart from each other), advances them whenever somebody waits, asks, or leaves it to the
 * progress thread, and lets a rank that has nothing to do sleep. One lock per process: whoever advances holds
 * it, and messages between hosts are touched under it only. */
#ifndef ENGINE_H
#define ENGINE_H
#include "comm.h"

typedef struct Request Request;
typedef struct { Request *head, *tail; } Queue;

#define DEPTH 2                /* steps of an operation that may be under way between two ranks */

/* What a transport needs to know of an operation; which fields count depends on `kind`. */
struct Request {
    Request *next;
    Queue *queue;
    void *group;
    /* does what it can; sets done when nothing is left. Returns whether anything moved. */
    int (*advance)(Request *r);
    Token token;
    const char *name;              /* of the group */
    int64_t payload;               /* bytes, for listeners */
    int64_t touched, behind; /* bytes copied or added so far, of them behind computation; for listeners too */
    double start;
    int done;
    CommKind kind;
    ReduceOp op;
    Dtype type;
    const char *in;
    char *out;
    int64_t n;                     /* elements, as in the call */
    int root;                      /* of a broadcast; the peer of a send or receive */
    /* collectives: pieces of e elements, `steps` of them; how far each stage has come; where this operation
     * begins in the counters of the group's two channels */
    int64_t e, steps, scatter_base, gather_base;
    int64_t posted, summed, awaited, joined, offered, gathered, copied;
    int small, begun;
    int64_t moved;                 /* send, recv: bytes so far */
    int wire;                      /* send, recv between hosts: the message under way, -1: none */
};

/* Starts an operation: fills a request from `r` and queues it. */
Token engine_submit(Queue *q, const Request *r);
/* Returns when the operation of the token is done. */
void engine_wait(Token t);

/* Reports bytes that an advance() has copied or added. Returns those that count as moved behind computation.
 */
int64_t engine_moved(int64_t bytes);

/* Holds the lock for what is done outside of any request. */
void engine_lock(void);
void engine_unlock(void);
/* The lock within `seconds`, for who ends the job from whatever thread: 1 when this thread has it, before or
 * now. */
int engine_try_lock(double seconds);

/* Messages between hosts that are under way: nobody rings for them, so sleepers look again soon. */
void engine_wires(int change);

void engine_close(void);
#endif
