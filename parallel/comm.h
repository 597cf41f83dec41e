/* comm -- one interface, one object a process group. A group of one is an object too (comm_self): its reductions
 * return at once, so no caller ever asks for the size of a group.
 *
 * Operations start and return a token; wait(token) returns when the result may be read and the inputs written.
 * Buffers must stay until then. Collective: every member calls the same operations in the same order. Reductions add
 * in rank order, so a rerun gives the same bits and a reduce_scatter is the slice of an all_reduce. Counts are
 * elements; peers are ranks of this group. A lost or hung peer ends the job with EXIT_COMM. */
#ifndef COMM_H
#define COMM_H
#include "device.h"

typedef struct Comm Comm;
typedef int64_t Token;             /* 0: already done */
typedef enum { OP_SUM, OP_MAX, OP_MIN } ReduceOp;

struct Comm {
    const char *name;              /* "tp", "dp", ... for messages */
    int rank, size;
    int64_t ops, bytes;
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
    void (*barrier)(Comm *c);
    void (*wait)(Comm *c, Token t);
};

/* The group of one. Copies where in and out differ; send and recv to oneself are a BUG. */
void comm_self_open(Comm *c, const char *name);

/* True on every rank if `ok` holds on every rank. Where it does not, the lowest failing rank dies with its message
 * and all others leave with it. Collective over c. */
void all_ok(Comm *c, int ok, int code, const char *id, const char *fmt, ...) __attribute__((format(printf, 5, 6)));
#endif
