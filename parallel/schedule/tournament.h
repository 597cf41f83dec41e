/* tournament -- when each rank looks again, and which of them looks next: a tree of winners. Private to this
 * room. */
#ifndef TOURNAMENT_H
#define TOURNAMENT_H
#include "base.h"
#include <stdint.h>
#include <stdlib.h>

enum { TICKS = 1 << 20, RANK_BITS = 13 };      /* ticks of the longest cost; bits of a key for a rank */
#define LOOKS_NEVER UINT64_MAX

/* key [2 * leaves]: of a rank at leaves + rank, its time, then the rank; of a node the least below it. */
typedef struct { uint64_t *key; int leaves; } Tournament;

static inline void tournament_open(Tournament *t, int ranks)
{
    for (t->leaves = 1; t->leaves < ranks; t->leaves *= 2)
        ;
    t->key = xcalloc(2 * (size_t)t->leaves, sizeof *t->key);
}

static inline void tournament_close(Tournament *t) { free(t->key); }

/* No rank looks. */
static inline void tournament_clear(Tournament *t)
{
    for (int i = 0; i < 2 * t->leaves; i++)
        t->key[i] = LOOKS_NEVER;
}

/* Keys are ordered by time, then by rank. */
static inline uint64_t tournament_key(int64_t time, int rank)
{
    BUG_ON(time >> (63 - RANK_BITS));
    return (uint64_t)time << RANK_BITS | (uint64_t)rank;
}

static inline uint64_t tournament_of(const Tournament *t, int rank) { return t->key[t->leaves + rank]; }

/* Takes a rank's key in the place of the one before. */
static inline void tournament_set(Tournament *t, int rank, uint64_t key)
{
    int i = t->leaves + rank;
    t->key[i] = key;
    while (i /= 2) {
        uint64_t a = t->key[2 * i], b = t->key[2 * i + 1], least = a < b ? a : b;
        if (t->key[i] == least)
            return;
        t->key[i] = least;
    }
}

/* The least key; LOOKS_NEVER: no rank looks. Node 1 is the only leaf of one rank. */
static inline uint64_t tournament_least(const Tournament *t) { return t->key[1]; }
#endif
