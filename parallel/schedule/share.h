/* share -- units shared out over ranks: sums of successive units, and the least bound of all partitions.
 * Private to this room. */
#ifndef SHARE_H
#define SHARE_H
#include "partition.h"

typedef struct {
    const Units *u;
    int n, p;
    double *sum[5];            /* [n + 1] of the units before one: F, D, W, bytes fixed, bytes held */
    double *least;             /* [p + 1][n + 1] best value of the first stages; in a V [p + 1][n + 1][n + 1],
                                * of the first ranks, by the units that are left; of three stages a rank by
                                * where each turn stands; scratch */
    int *from;                 /* the same: where the last of these stages begins; in a V what was left before
                                * this rank; scratch */
    double *cost;              /* [3 * p * v] of a partition; scratch */
    double *room;              /* [p] bytes of each rank for microbatches; scratch */
    double *data[SLOT_KINDS];  /* [p * v] bytes of a microbatch in each stage; scratch */
    double *less;              /* [p] bytes left free for messages that arrive early, as they turned out */
    int strict;                /* bool: as of Held */
    int most;                  /* partitions that may be ordered before the search turns to other ones */
} Share;

enum { FIXED = 3, HELD = 4 };

static inline double part(const Share *s, int k, int from, int to) { return s->sum[k][to] - s->sum[k][from]; }

/* Time of units [from, to) for one microbatch. */
static inline double work(const Share *s, int from, int to)
{
    return part(s, 0, from, to) + part(s, 1, from, to) + part(s, 2, from, to);
}

void share_open(Share *s, const Units *u, int v, int vee, int most);
void share_close(Share *s);

/* partition_bound; fills first, [p * v + 1], with a partition that has it, unless there are three or
 * more stages a rank. */
double share_bound(Share *s, int v, int vee, int *first);
#endif
