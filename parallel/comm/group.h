/* group -- what the members of a process group share and who of them does what.
 * Between ranks of one host everything goes through one shared segment, in steps whose pieces stay in the
 * caches, DEPTH of them under way. Two channels, each with a slot per member and step:
 *   scatter   member i leaves in its slot a piece for every block; who owns a block takes it from all slots
 *             and adds
 *   gather    who owns a block leaves a finished piece; all take it
 * A member counts in the segment how many steps it has filled and how many it has taken; a slot is filled
 * again when all others have taken it. An all-reduce uses both channels, a reduce-scatter the first, an
 * all-gather the second.
 *
 * With several hosts every block (there is one for each rank of the group) has an owner on each host: its
 * rank where it lives, elsewhere one of the host's members. Sums are formed in rank order inside each host,
 * then in host order by the rank whose block it is; so a sum's bits depend on the group and its hosts alone,
 * and a reduce-scatter is the slice of an all-reduce. Hosts stand in the order of their first ranks. */
#ifndef GROUP_H
#define GROUP_H
#include "engine.h"
#include <stdatomic.h>

typedef struct { _Alignas(64) _Atomic int64_t v; } Counter;

/* What a member has called: compared before anything is taken from it. */
typedef struct { _Alignas(64) _Atomic uint64_t seen[16]; } Signature;

#define PAIR_SLOT 262144           /* bytes of a message's piece */
#define PAIR_SLOTS 4096

/* The way from one rank to another of its host: pieces lie in slots; the writer reuses the lowest free one,
 * so that the memory touched follows what is under way. */
typedef struct {
    uint32_t slot, bytes;
    int64_t total;                 /* of the message */
    uint32_t type, first;
} GroupPiece;
typedef struct {
    _Alignas(64) _Atomic int64_t sent;
    _Alignas(64) _Atomic int64_t taken;
    _Atomic uint32_t blocked;      /* the writer waits for room */
    _Alignas(64) GroupPiece piece[PAIR_SLOTS];
} PairHead;

/* This process's end of a pair. */
typedef struct {
    PairHead *head;
    char *slots;
    Queue queue;
    int64_t freed;                 /* writer: pieces whose slots have been given back */
    uint64_t used[PAIR_SLOTS / 64];
} Pair;

typedef struct {
    const char *name;
    int id, rank, size;
    int *world;                    /* [size] world ranks of the members */
    int *host;                     /* [size] which host, in host order */
    int hosts, my_host;
    int m, me;                     /* members on this host; my place among them */
    int *local;                    /* [m] their ranks in the group */
    int *bell;                     /* [m] their places in the host's job page */
    int *owner;                    /* [size] place of the member of this host that owns block r */
    int *place;                    /* [size] which of its owner's blocks r is; the owner's own is 0 */
    int *duty, duties;             /* the blocks I own: duty[0] = rank */
    int most_duties;               /* of any member of any host */
    int *proxy;                    /* [hosts] the rank that owns my block there */

    int fd;                        /* of the segment */
    Counter *filled[2], *taken[2]; /* [channel][member] */
    Signature *signature;          /* [m] */
    char *slots[2];                /* [channel] [m][DEPTH] slots */
    size_t slot_bytes[2];
    char *map;
    size_t map_bytes;

    Queue queue;                   /* collectives */
    int64_t base[2];               /* steps so far */
    int64_t calls;                 /* collectives so far */
    Pair *out, *in;                /* [size] */
    const void **source;           /* [size] what a sum is made of */

    /* between hosts: partial sums and the messages of the steps under way */
    char *partial, *sending;       /* [DEPTH][hosts] and [DEPTH][most_duties - 1] pieces */
    int *wire_partial, *wire_sending, *wire_block, *wire_own;
    int *wire_all;                 /* all_to_all: [2 * size] */
    CommStats stats;
} Group;

enum { SCATTER, GATHER };

/* Who does what, from members' world ranks and the host of every world rank (any numbers, equal on one host).
 */
Group *group_plan(const char *name, int id, const int *member, int n, const int *host_of, int my_rank);
/* Makes the segment, for one member of the host; the others map it from `fd` likewise. bells: the members'
 * places. */
int group_segment_make(const Group *g);
void group_segment_map(Group *g, int fd);
/* Fills in the interface. */
void group_comm(Group *g, Comm *c);

static inline char *group_slot(const Group *g, int channel, int member, int64_t step)
{
    return g->slots[channel] + ((size_t)member * DEPTH + (size_t)(step % DEPTH)) * g->slot_bytes[channel];
}

/* Raises my counter and wakes the members for which that can be what they wait for: a filled slot is waited
 * for together with all others of its step, so is a taken one; `alone`: it is waited for by itself. */
void group_raise(Group *g, Counter *c, int64_t to, int alone);

static inline void group_moved(Group *g, int64_t bytes)
{
    g->stats.moved += bytes;
    g->stats.behind += engine_moved(bytes);
}

/* collective.c, message.c */
int collective_advance(Request *r);
int message_advance(Request *r);
Pair *group_message_pair(Group *g, int from, int to);

/* Messages between hosts (comm_mpi.c), bytes between world ranks; the number returned names the message until
 * wire_done, which sets it to -1 and returns 1 when it is through (or was -1). Under the engine's lock. */
int wire_send(const void *p, size_t bytes, int to, int tag);
int wire_recv(void *p, size_t bytes, int from, int tag);
int wire_done(int *id);
enum { TAG_PARTIAL, TAG_BLOCK, TAG_MESSAGE, TAG_EXCHANGE, TAGS };
#endif
