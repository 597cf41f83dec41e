/* comm -- the interface of a process group. A group of one is an object too (comm_self): its reductions
 * return at once, so no caller asks for the size of a group.
 *
 * An operation starts and returns a token; wait(token) returns when the result may be read and the inputs
 * may be written. Buffers must stay until then. Reductions add in rank order, so a rerun gives the same
 * bits and a reduce_scatter is the slice of an all_reduce. Counts are elements; root and peer are ranks of
 * this group. A lost peer ends the job with EXIT_COMM.
 *
 * Collectives of a group run one after the other, messages between two ranks in the order of their sends.
 * All else is independent: two groups, or messages with different peers, never wait for each other. A send
 * may finish before its receive starts (between ranks of one host, up to 1 GB that the peer has not taken
 * yet). Over NCCL (comm_nccl.c) sums of a group have an order that follows the wires, the same each time, and
 * the operations of a group run one after the other, messages with different peers, too.
 *
 * Collective: every member calls the same operations in the same order, with the same arguments where they
 * are marked global. */
#ifndef COMM_H
#define COMM_H
#include "device.h"

typedef struct Comm Comm;
typedef int64_t Token;             /* 0: already done */
typedef enum { OP_SUM, OP_MAX, OP_MIN } ReduceOp;

typedef enum {
    COMM_ALL_REDUCE, COMM_REDUCE_SCATTER, COMM_ALL_GATHER, COMM_ALL_TO_ALL, COMM_BROADCAST,
    COMM_SEND, COMM_RECV, COMM_BARRIER, COMM_KINDS
} CommKind;

typedef struct {
    CommKind kind;
    void *out;
    const void *in;
    int64_t n;                     /* elements, as in the call */
    Dtype type;
    ReduceOp op;
    int root;                      /* of a broadcast; of a message: the peer */
} Operation;

/* moved: bytes that this rank has copied or added for the group. behind: those that the progress thread
 * moved while the main thread computed; behind / moved is the share of communication hidden by
 * computation. waited: s that the main thread has stood still in waits for the group; busy: s in which bytes
 * were moved, by any thread; moving: those of the main thread. Operations of a device have no times here. */
typedef struct { int64_t moved, behind; double waited, busy, moving; } CommStats;

struct Comm {
    const char *name;              /* "tp", "dp", ... for messages */
    int rank, size;
    int64_t ops;                   /* operations called; a group of one and barriers count nothing */
    int64_t bytes;                 /* brought to them by this rank (comm_payload) */
    Device *dev;                   /* buffers may also lie in its memory; NULL: only in the host's */
    void *impl;                    /* of the transport */
    CommStats *stats;              /* NULL: nothing is counted. Call comm_stats */
    Token (*start)(Comm *c, Operation o);          /* what the operations below call (comm_operations) */
    /* Operations; all but the messages are collective.
     *   buf, in, out   local       in the host's memory or dev's
     *   n              global      elements; of a message the same on both sides
     *   type, op       global
     *   root, peer                 rank of this group; root global */
    /* buf [n] <- reduction over the group, in place */
    Token (*all_reduce)(Comm *c, void *buf, int64_t n, Dtype type, ReduceOp op);
    /* out [n] <- block `rank` of the reduction of in [n * size] */
    Token (*reduce_scatter)(Comm *c, void *out, const void *in, int64_t n, Dtype type, ReduceOp op);
    /* out [n * size] <- in [n] of every rank, in rank order */
    Token (*all_gather)(Comm *c, void *out, const void *in, int64_t n, Dtype type);
    /* out [n * size] <- block `rank` of every rank's in [n * size] */
    Token (*all_to_all)(Comm *c, void *out, const void *in, int64_t n, Dtype type);
    /* buf [n] <- that of root */
    Token (*broadcast)(Comm *c, void *buf, int64_t n, Dtype type, int root);
    /* buf [n] of the sender -> buf [n] of the receiver */
    Token (*send)(Comm *c, const void *buf, int64_t n, Dtype type, int peer);
    Token (*recv)(Comm *c, void *buf, int64_t n, Dtype type, int peer);

    /* Sends and receives between begin = 1 and begin = 0 start together, so that ranks that send in a ring
     * do not wait for each other. NULL: nothing to do. Call comm_together */
    void (*together)(Comm *c, int begin);
    void (*barrier)(Comm *c);      /* returns when every member has called it */
    void (*wait)(Comm *c, Token t);
    void (*close)(Comm *c);        /* call comm_close; NULL: nothing to give back */
};

/* Gives back what the group holds; none of its operations may be under way. Local. */
static inline void comm_close(Comm *c)
{
    if (c->close)
        c->close(c);
    *c = (Comm){0};
}

static inline void comm_together(Comm *c, int begin)
{
    if (c->together)
        c->together(c, begin);
}

/* Opens the group of one: copies where in and out differ; send and recv are a BUG. Local. */
void comm_self_open(Comm *c, const char *name);

/* Opens rank `rank` of a group of any size that moves nothing and only counts: for plans of worlds that
 * are not there, and for rehearsals. Local. */
void comm_count_open(Comm *c, const char *name, int size, int rank);

/* Advances the operations under way without waiting; free when there are none. Local. */
void comm_progress(void);

/* Says with how many threads this rank computes. Where ranks times threads fit the cores of the host, a
 * rank that waits spins for some microseconds before it sleeps. Where a core is left over for each rank, a
 * progress thread moves messages while the main thread computes; GRIDIRON_PROGRESS=0 or 1 in the
 * environment decides that instead. Local. */
void comm_threads(int threads);
/* Whether ranks times threads fit the cores of the host, as comm_threads has found. */
int comm_cores_suffice(void);

/* Whether the bytes of groups opened from now on travel with hashes, in shared memory and between hosts. A
 * piece that arrives with other bytes ends the job with EXIT_COMM. The same on all ranks. Local. */
void comm_checksums(int on);

/* A rank's part, in bytes, of the memory that a group on one host shares after large messages. */
size_t comm_workspace(void);

/* What the group has done so far. */
CommStats comm_stats(const Comm *c);

extern const char *const comm_kind_name[COMM_KINDS];

/* Sets the operations that move something: each calls `start`. */
void comm_operations(Comm *c, Token (*start)(Comm *c, Operation o));

/* The bytes by which an operation raises Comm.bytes: all of `in` or `buf`; a broadcast counts at its root,
 * a message at its sender. n: as in the call. */
int64_t comm_payload(const Comm *c, CommKind kind, int64_t n, Dtype type, int root);

/* One operation from its call to its end. */
typedef struct {
    const char *comm;              /* name of the group */
    CommKind kind;
    int peer;                      /* of a message; -1: a collective */
    int64_t bytes;                 /* as comm_payload */
    int64_t moved, behind;         /* its part of CommStats */
    double start, end;             /* s, on the clock of now() */
} CommEvent;
typedef void (*CommListener)(void *ctx, const CommEvent *e);
/* Has fn called for every operation that ends, on the thread that ended it, one at a time. fn must not
 * call into a group. NULL: nobody listens. */
void comm_listen(CommListener fn, void *ctx);

/* Notes what this rank is doing ("B5.0 of iteration 12"), to be reported if the rank dies. Cheap. */
void comm_note(const char *text);

/* Returns if `ok` holds on every rank. Else the lowest failing rank dies with its own code, id and text,
 * and all others end with it. Collective over c; all arguments are local. */
void all_ok(Comm *c, int ok, int code, const char *id, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
#endif
