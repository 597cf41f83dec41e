/* comm -- one interface, one object a process group. A group of one is an object too (comm_self): its
 * reductions return at once, so no caller ever asks for the size of a group.
 *
 * Operations start and return a token; wait(token) returns when the result may be read and the inputs
 * written. Buffers must stay until then. Collective: every member calls the same operations in the same
 * order. Reductions add in rank order, so a rerun gives the same bits and a reduce_scatter is the slice of an
 * all_reduce. Counts are elements; peers are ranks of this group. A lost peer ends the job with EXIT_COMM.
 *
 * Collectives of a group run one after the other, messages between two ranks in the order of their sends;
 * everything else proceeds independently: two groups, or sends and receives of different peers, never wait
 * for each other. A send may finish before its receive starts (between ranks of one host, up to 1 GB that the
 * peer has not taken yet). */
#ifndef COMM_H
#define COMM_H
#include "device.h"

typedef struct Comm Comm;
typedef int64_t Token;             /* 0: already done */
typedef enum { OP_SUM, OP_MAX, OP_MIN } ReduceOp;

struct Comm {
    const char *name;              /* "tp", "dp", ... for messages */
    int rank, size;
    /* operations called, and bytes that this rank brought to them (all of `in` or `buf`; of a broadcast the
     * root's, of a message the sender's). A group of one, and barriers, count nothing */
    int64_t ops, bytes;
    Device *dev;                   /* whose memory buffers may also be in; NULL: only the host's */
    void *impl;
    /* buf [n] <- reduction over the group, in place */
    Token (*all_reduce)(Comm *c, void *buf, int64_t n, Dtype type, ReduceOp op);
    /* out [n] <- this rank's n of the reduced in [n * size] */
    Token (*reduce_scatter)(Comm *c, void *out, const void *in, int64_t n, Dtype type, ReduceOp op);
    /* out [n * size] <- in [n] of every rank, in rank order */
    Token (*all_gather)(Comm *c, void *out, const void *in, int64_t n, Dtype type);
    /* out [n * size] <- block `rank` of every rank's in [n * size] */
    Token (*all_to_all)(Comm *c, void *out, const void *in, int64_t n, Dtype type);
    Token (*broadcast)(Comm *c, void *buf, int64_t n, Dtype type, int root);
    Token (*send)(Comm *c, const void *buf, int64_t n, Dtype type, int peer);
    Token (*recv)(Comm *c, void *buf, int64_t n, Dtype type, int peer);
    /* NULL, or: sends and receives between begin = 1 and begin = 0 start together, so that a ring of them is
     * no circle of ranks that wait (comm_together) */
    void (*together)(Comm *c, int begin);
    void (*barrier)(Comm *c);
    void (*wait)(Comm *c, Token t);
    void (*close)(Comm *c);        /* NULL: nothing to give back */
};

/* Gives back what the group holds. Nothing may be under way. Not collective. */
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

/* The group of one. Copies where in and out differ; send and recv to oneself are a BUG. */
void comm_self_open(Comm *c, const char *name);

/* A group of any size, of which this is `rank`, that moves nothing and only counts: for plans of worlds that
 * are not there, and for rehearsals. */
void comm_count_open(Comm *c, const char *name, int size, int rank);

/* Moves forward what is under way, without waiting; costs nothing when nothing is. */
void comm_progress(void);

/* Says with how many threads this rank computes. Where ranks times threads fit the cores of the host, who
 * waits looks for some microseconds before it sleeps; where a core is left over for each rank, a thread moves
 * messages while the main thread computes. GRIDIRON_PROGRESS=0 or 1 in the environment
 * decides about it instead. */
void comm_threads(int threads);

/* A rank's part of the memory that a group on one host shares, once large messages have gone through it. */
size_t comm_workspace(void);

/* Bytes that this rank has copied or added for the group, and how many of them the progress thread moved
 * while nobody waited: their ratio is how much of the communication lay behind computation. */
typedef struct { int64_t moved, behind; } CommStats;
CommStats comm_stats(const Comm *c);

typedef enum {
    COMM_ALL_REDUCE,
    COMM_REDUCE_SCATTER,
    COMM_ALL_GATHER,
    COMM_ALL_TO_ALL,
    COMM_BROADCAST,
    COMM_SEND,
    COMM_RECV,
    COMM_BARRIER,
    COMM_KINDS
} CommKind;
extern const char *const comm_kind_name[COMM_KINDS];

/* The bytes by which an operation raises Comm.bytes; n as in its call. */
int64_t comm_payload(const Comm *c, CommKind kind, int64_t n, Dtype type, int root);

/* One operation from its call to its end. bytes: as they count in Comm; moved, behind: its part of CommStats.
 * peer: of a message, -1 for a collective. Times as of now(). */
typedef struct {
    const char *comm;
    CommKind kind;
    int peer;
    int64_t bytes, moved, behind;
    double start, end;
} CommEvent;
typedef void (*CommListener)(void *ctx, const CommEvent *e);
/* fn hears of every operation that ends, from whatever thread ended it, one at a time; it must not call into
 * a group. NULL: nobody listens. */
void comm_listen(CommListener fn, void *ctx);

/* What this rank is doing ("B5.0 of iteration 12"): the last thing said is reported if it dies. Cheap. */
void comm_note(const char *text);

/* True on every rank if `ok` holds on every rank. Where it does not, the lowest failing rank dies with its
 * message and all others leave with it. Collective over c. */
void all_ok(Comm *c, int ok, int code, const char *id, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
#endif
