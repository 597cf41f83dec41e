/* greedy -- ranks played forward in time by a rule: what search.h and partition.h try orders with. Private to
 * this room.
 *
 * Of the F and D that can run a rank takes the first in the rule's order of chunks, while memory and the
 * rule's bounds allow F; W where it would otherwise wait for longer than the rule allows, or where F has no
 * room. Time is whole ticks, nothing is random: equal rules give equal orders. */
#ifndef GREEDY_H
#define GREEDY_H
#include "schedule.h"
#include "tournament.h"

enum { STRING_CHUNKS = UINT8_MAX / 3 };
enum { BEFORE, BETWEEN, BEHIND, PHASES };      /* of a rank: its first D of chunk 0; its last F of it */
#define NEVER 0x7f7f7f7f7f7f7f7f               /* after all times; of equal bytes */

/* What microbatches take and ranks have, in bytes or any other unit. */
typedef struct {
    const double *room;                /* [p] of a rank */
    const double *data[SLOT_KINDS];    /* [p*v] of a microbatch in a stage, for each lifetime (schedule.h) */
    int early;                         /* bool: FD begins with the arrival of its input, else with F */
    int strict;                        /* bool, early: there is room for an input when the instruction that
                                        * makes it ends, else when it starts */
    int whole;                         /* bool: B in the place of D and W, with D's cost; W has none */
} Held;

/* Ticks of a step. span: the longest time of a rank, from its first start to its last end. */
typedef struct { int64_t makespan, span; } Score;

/* What each rank does in each phase. One block of memory from `patience` on. */
typedef struct {
    double *patience;              /* [PHASES][p] a rank idles rather than do W for less than this share of
                                    * W's time */
    int *most;                     /* [PHASES][p][v] most microbatches of a chunk between F and D */
    uint8_t *turn;                 /* [PHASES][p][2v] which goes first of those that can run: chunk * 3 + 0 F,
                                    * 1 D */
    size_t bytes;
    double delay;                  /* F may delay D by this share of F's time */
    int hungry;                    /* bool: W goes first while F has no room */
} Rule;

typedef struct {
    int p, v, m, n;                /* n: stages */
    int *rank, *stage;             /* [n] rank of a stage; stage at rank * v + chunk */
    int64_t *cost[3];              /* [n] ticks of F, D, W */
    int64_t *hop[2];               /* [n] ticks of the message after F, after D; 0: it stays on its rank */
    Held has;
    uint8_t *arrives;              /* [n + 1] bool: FD of a stage is held from the arrival of its input on */
    double *most;                  /* [p] that a rank may hold */
    double *own;                   /* [n] of `need`, what is not held before F */
    double *need;                  /* [n] FD and FW of a stage and of those of later chunks of its rank; then
                                    * [p] scratch */
    double *quota;                 /* [p] microbatches of chunk 0 that a rank has room for, by the times that
                                    * those of its chunks are held; of the stages of greedy_open */
    uint8_t *trial;                /* [p][3vm], of whole backwards [p][2vm], strings: 3 * chunk + 0 F, 1 D,
                                    * 2 W; microbatches by count */
    int64_t *ready[2];             /* [n*m] when the input of F, of D is there; NEVER: not known yet */
    int64_t *next[2];              /* [n] of these, that of the next microbatch */
    int64_t *at, *began;           /* [p] when the rank is free; when its first F started */
    int (*done)[3];                /* [n] F, D, W so far */
    int *begun;                    /* [p] instructions so far */
    double *held;                  /* [p] of what a rank has, held when the instruction under way ends */
    double *frees;                 /* [p] what that one frees */
    Tournament looks;              /* when each rank looks again */
    int64_t played;                /* instructions so far, of all plays and replays */
    double scale;                  /* ticks of a unit of the costs */
} Greedy;

/* Keeps `held`, whose arrays may change until greedy_stages. */
void greedy_open(Greedy *g, const PipeShape *shape, const Held *held);
void greedy_close(Greedy *g);

/* Takes the costs of other stages, which lie as before, and what has changed in Held. Returns 0 if a rank
 * cannot hold one microbatch of each of its stages. */
int greedy_stages(Greedy *g, const PipeShape *shape);

/* Plays a rule and writes `trial`. 0: the ranks are stuck. */
int greedy_play(Greedy *g, const Rule *rule);

/* Replays `trial`, and writes when each instruction starts, as long as strings. 0: the ranks wait for each
 * other, or one holds too much. It does not know Held.early. */
int greedy_replay(Greedy *g, int64_t *start);

Score greedy_score(const Greedy *g);   /* of what was played last */

/* Writes strings as lists. */
void greedy_lists(Greedy *g, const uint8_t *strings, InstrList *out);

/* Instructions of a rank; its part of strings. */
static inline int greedy_length(const Greedy *g) { return (g->has.whole ? 2 : 3) * g->v * g->m; }
static inline uint8_t *greedy_string(const Greedy *g, uint8_t *all, int r)
{
    return all + (size_t)r * (size_t)greedy_length(g);
}

/* A rule without bounds, in which all ranks and phases are alike. */
Rule rule_open(const Greedy *g);
void rule_copy(Rule *to, const Rule *from);    /* of the same pipeline */
void rule_close(Rule *rule);

/* Sets what all ranks do in all phases, but for bounds. */
void rule_alike(const Greedy *g, Rule *rule, const uint8_t *turn, double patience);

/* Changes something at random, of one rank or of several neighbours.
 *   apart  in  bool: in one phase more often than in all */
void rule_change(const Greedy *g, Rule *rule, int apart, uint64_t *seed);

/* A number below n, the same in every run. */
int draw(uint64_t *seed, int n);
#endif
