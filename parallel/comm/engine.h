/* engine -- operations under way. A transport describes an operation as a Request; its advance() does what
 * can be done at once and never waits. The engine keeps requests in queues: the requests of a queue run
 * one after the other, queues are independent. Requests are advanced inside engine_wait and comm_progress,
 * and by the progress thread. A rank whose requests cannot advance sleeps. One lock per process: the
 * thread that advances holds it, and messages between hosts are touched under it only. All functions are
 * local. */
#ifndef ENGINE_H
#define ENGINE_H
#include "comm.h"

typedef struct Request Request;
typedef struct {
    Request *head, *tail;
    int64_t submitted;             /* requests ever */
} Queue;

#define DEPTH 2                /* steps of a collective that may be under way between two ranks */

/* One operation. Which fields are used depends on `kind`. */
struct Request {
    Request *next;
    Queue *queue;
    void *group;                   /* of the transport */
    int (*advance)(Request *r);    /* does what it can, sets done at the end; returns whether it moved */
    Token token;
    const char *name;              /* of the group */
    int64_t payload;               /* bytes, for listeners: comm_payload */
    int64_t touched, behind;       /* bytes, for listeners: moved and behind of CommStats, so far */
    double start;                  /* s, for listeners: when it was called */
    CommStats *stats;              /* of the group; used under the lock */
    int done;                      /* bool */
    CommKind kind;
    ReduceOp op;
    Dtype type;
    const char *in;
    char *out;
    int64_t n;                     /* elements, as in the call */
    int root;                      /* of a broadcast; of a send or receive: the peer */
    /* collectives */
    int64_t e, steps;              /* elements of a block's piece in one step; number of steps */
    int64_t scatter_base, gather_base;     /* step 0 of this operation in the counters of the two channels */
    int64_t posted, summed, awaited, joined, offered, gathered, copied;    /* steps done by each stage */
    int small;                     /* bool: every rank adds everything, in one step */
    int begun;                     /* bool: cut into steps */
    int64_t moved;                 /* send, recv, all_to_all between hosts: bytes so far */
    int wire;                      /* send, recv between hosts: the message under way; -1: none */
    int checked;                   /* bool: its bytes travel with hashes (checksum.h) */
    int64_t number;                /* of the operations of its queue, from 1 on */
    int flight_group;              /* for the flight record: of flight_group */
    int peer;                      /* for the flight record: world rank of a message's other end; -1: none */
    int64_t flight;                /* number in the flight record; 0: none */
};

/* Starts an operation: queues a copy of r. */
Token engine_submit(Queue *q, const Request *r);
/* Returns when the operation of the token is done. */
void engine_wait(Token t);

/* Counts bytes that an advance() has copied or added. Returns those that were hidden by computation. */
int64_t engine_moved(int64_t bytes);

/* Take and give the lock, for what is done outside of any request. */
void engine_lock(void);
void engine_unlock(void);
/* Tries for `seconds` to take the lock, for the thread that ends the job. 1: this thread has it, now or
 * from before. */
int engine_try_lock(double seconds);

/* Adds to the number of messages between hosts under way. Nobody rings when they arrive, so while there
 * are any, sleepers wake after a short time. */
void engine_wires(int change);

/* Ends the progress thread and frees all requests. */
void engine_close(void);
#endif
