/* group -- what the members of a process group share, and which member does what.
 *
 * A member is a rank of the group on this host; members share one segment of memory. An array has a block
 * for each rank of the group. A collective runs in steps, whose pieces of the blocks stay in the caches;
 * up to DEPTH steps are under way. The segment has two channels, each with a slot per member and step:
 *   scatter   member i leaves a piece of every block in its slot; the owner of a block takes that block's
 *             pieces from all slots and adds them
 *   gather    the owner of a block leaves a finished piece in its slot; all members take it
 * Each member counts in the segment the slots that it has filled and the steps that it has taken; a slot
 * is filled again when all others have taken it. An all-reduce uses both channels, a reduce-scatter the
 * first, an all-gather the second.
 *
 * With several hosts a block has an owner on each host: its own rank where that lives, elsewhere one of
 * the host's members. Sums are formed in rank order inside each host, then in host order by the block's
 * rank. So the bits of a sum depend on the group and its hosts alone, and a reduce-scatter is the slice of
 * an all-reduce. Hosts stand in the order of their first ranks. */
#ifndef GROUP_H
#define GROUP_H
#include "engine.h"
#include <stdatomic.h>

typedef struct { _Alignas(64) _Atomic int64_t v; } Counter;

/* The hashes of a member's last 16 calls, compared before anything is taken from the member. */
typedef struct { _Alignas(64) _Atomic uint64_t seen[16]; } Signature;

#define PAIR_SLOT 262144           /* bytes of a slot, which holds one piece of a message */
#define PAIR_SLOTS 4096            /* slots of a pair */

/* A pair carries messages from one member to another, in pieces that lie in slots. The writer takes the
 * lowest free slot, so that no more memory is touched than messages under way need. */
typedef struct {
    uint32_t slot, bytes;
    int64_t total;                 /* bytes of the message */
    uint32_t type;                 /* Dtype of the message */
    uint32_t first;                /* bool: first piece of the message */
    uint64_t sum;                  /* as piece_sum */
} GroupPiece;
typedef struct {
    _Alignas(64) _Atomic int64_t sent;     /* pieces, by the writer */
    _Alignas(64) _Atomic int64_t taken;    /* pieces, by the reader */
    _Atomic uint32_t blocked;      /* bool: the writer waits for room */
    _Alignas(64) GroupPiece piece[PAIR_SLOTS];     /* piece k at k % PAIR_SLOTS */
} PairHead;

/* This process's end of a pair. */
typedef struct {
    PairHead *head;                /* NULL: not mapped yet */
    char *slots;
    Queue queue;                   /* messages */
    int64_t freed;                 /* writer: taken pieces whose slots are free again */
    uint64_t used[PAIR_SLOTS / 64];    /* writer: a bit for each slot */
} Pair;

typedef struct {
    const char *name;
    int id, rank, size;
    int *world;                    /* [size] world ranks of the group */
    int flight;                    /* in the flight record: of flight_group */
    int *host;                     /* [size] index of the rank's host, in host order */
    int hosts, my_host;
    int m, me;                     /* number of members; this rank's place among them */
    int *local;                    /* [m] their ranks in the group */
    int *bell;                     /* [m] their places in the host's job page */
    int *owner;                    /* [size] place of the member that owns block r */
    int *place;                    /* [size] index of block r among its owner's; 0: the owner's own block */
    int *duty, duties;             /* [duties] the blocks that this rank owns; duty[0] = rank */
    int most_duties;               /* the most blocks that any member of any host owns */
    int *proxy;                    /* [hosts] the rank that owns this rank's block there */

    int fd;                        /* of the segment; -1: none */
    Counter *filled[2], *taken[2]; /* [channel][member] */
    Signature *signature;          /* [m] */
    char *slots[2];                /* [channel] [m][DEPTH] slots */
    size_t slot_bytes[2];          /* [channel] */
    int checked;                   /* bool: operations are checked */
    uint64_t *sums[2];             /* [channel] [m][DEPTH][slot_sums]: piece_sum of a slot's pieces */
    size_t slot_sums[2];           /* [channel] */
    char *map;                     /* the segment, without the pairs */
    size_t map_bytes;

    Queue queue;                   /* collectives */
    int64_t base[2];               /* [channel] steps of all collectives that have begun */
    int64_t calls;                 /* collectives that have begun */
    Pair *out, *in;                /* [size] */
    const void **source;           /* [size] scratch: the addends of a sum */

    /* with several hosts: partial sums, and the numbers of messages (wire_send) of the steps under way */
    char *partial;                 /* [DEPTH][hosts] pieces: each host's sum of this rank's block */
    char *sending;                 /* [DEPTH][most_duties] pieces: this host's sums of other owned blocks */
    int *wire_partial;             /* [DEPTH][hosts] partial comes in */
    int *wire_sending, *wire_block;    /* [DEPTH][most_duties] sending goes out; finished pieces come in */
    int *wire_own;                 /* [DEPTH][hosts] this rank's finished piece goes out */
    int *wire_all;                 /* [2 * size] all_to_all: in and out */
    CommStats stats;
} Group;

enum { SCATTER, GATHER };

/* Plans a group: which member does what. Local; the same on all ranks.
 *   id       in                distinguishes the groups of the world; > 0
 *   member   in    [n]         world ranks in group order
 *   host_of  in    [world]     the host of every world rank: any numbers, equal on one host
 *   my_rank  in                world rank of this process */
Group *group_plan(const char *name, int id, const int *member, int n, const int *host_of, int my_rank);
/* Makes the segment and returns its descriptor: for one member of the host. Then each member maps it. */
int group_segment_make(const Group *g);
void group_segment_map(Group *g, int fd);
/* Unmaps the segment and frees the group. No operation may be under way. */
void group_free(Group *g);
/* Fills in c, the group's interface (group_comm.c). */
void group_comm(Group *g, Comm *c);
/* Adds the group once more to the flight record, for its operations on a device; 0: c is a group of one. */
int group_flight_device(const Comm *c);
/* The world rank of rank `rank` of a group. */
int group_world(const Comm *c, int rank);

static inline char *group_slot(const Group *g, int channel, int member, int64_t step)
{
    return g->slots[channel] + ((size_t)member * DEPTH + (size_t)(step % DEPTH)) * g->slot_bytes[channel];
}

static inline uint64_t *group_sums(const Group *g, int channel, int member, int64_t step)
{
    return g->sums[channel] + ((size_t)member * DEPTH + (size_t)(step % DEPTH)) * g->slot_sums[channel];
}

/* Raises this member's counter and rings the members that may wait for it. A member waits for the counters
 * of all others: the last counter of a step to be raised rings all members, the last but one rings the last.
 *   alone    in                bool: members wait for this counter by itself; rings all members */
void group_raise(Group *g, Counter *c, int64_t to, int alone);

static inline void group_moved(Group *g, int64_t bytes)
{
    g->stats.moved += bytes;
    g->stats.behind += engine_moved(bytes);
}

/* advance() of collectives (collective.c), and of sends and receives (message.c). */
int collective_advance(Request *r);
int message_advance(Request *r);
/* This rank's end of the pair `from` -> `to`, two ranks of the group; maps it at its first use. */
Pair *group_message_pair(Group *g, int from, int to);
#endif
