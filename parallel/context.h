/* context -- attention over a sequence whose positions are shared out over the context group, by four
 * ways to bring queries and keys together:
 *
 *   p2p        keys and values go round a ring of ranks; each rank does the piece that it holds while the
 *              next one travels (Liu et al. 2023, arXiv:2310.01889)
 *   allgather  every rank gathers all keys and values (Llama 3: Dubey et al. 2024, arXiv:2407.21783, sec
 *              3.3.2)
 *   a2a        ranks exchange positions for heads, so that each has some heads of all positions (Ulysses:
 *              Jacobs et al. 2023, arXiv:2309.14509)
 *   a2a+p2p    a2a between neighbours, p2p between these groups (Fang, Zhao 2024, arXiv:2405.07719)
 *
 * A sequence is cut into 2 cp chunks. Rank r has chunks r and 2 cp - 1 - r, so that under a causal mask
 * every rank has equally many pairs of a query and a key. All four are one code path: the heads are
 * exchanged, then the keys gathered, then they go round; in each of the three, a group of one does nothing.
 *
 * All shapes are local. B samples; T = B S rows of this rank; Tq, Tk rows of queries and of a piece of keys
 * after the exchange of heads; A, K heads and key/value heads after it; D head size. Functions are
 * collective over the context group unless marked local. Shared arguments:
 *   d        in         the device that computes
 *   c        in         the context group
 *   w        in         the way of the layer
 *   scratch  in/out     arena for what lives during the call, and for what a comment says lies in scratch */
#ifndef CONTEXT_H
#define CONTEXT_H
#include "grid.h"

typedef enum { CONTEXT_P2P, CONTEXT_ALLGATHER, CONTEXT_A2A, CONTEXT_A2A_P2P, CONTEXT_KINDS } ContextKind;
extern const char *const context_kind_name[CONTEXT_KINDS];     /* as in cp_comm_type */
/* The kind of a name of cp_comm_type; CONTEXT_KINDS: the name is none of them. Local. */
ContextKind context_kind(const char *name);

/* Groups of one way. Members of each are neighbours in the one before it. */
typedef struct {
    Comm *heads;               /* exchanges positions for heads */
    Comm *gather;              /* gathers keys and values */
    Comm *ring;                /* sends keys and values round */
} ContextWay;

typedef struct {
    int64_t positions;         /* of a whole sample */
    int size, rank;            /* of the context group */
    ContextWay way[CONTEXT_KINDS];
} Context;

/* Opens the context group of a grid; `one` is a group of one rank. Local. */
void context_open(Context *c, Grid *g, Comm *one, int64_t positions);
/* The context of a list whose sequences are not shared out: every rank has all positions. Local. */
void context_open_whole(Context *c, Comm *one, int64_t positions);

/* Positions of the rows that ranks [first, first + count) of a context group of `size` have together, one
 * after the other: rank first + i has rows [i * rows, (i + 1) * rows). With one rank these are the positions
 * that it owns. Local.
 *   positions  in   of a whole sample
 *   batch      in   samples */
Positions context_positions(int64_t positions, int64_t batch, int size, int first, int count);
/* The positions that this rank owns. Local. */
Positions context_own(const Context *c);

/* Exchange of positions for heads. Before it a rank has its positions of all heads; after it, the
 * positions of all a = w->heads->size ranks of a share of the heads. Columns are groups of heads: q, k
 * and v, or one of these.
 *   after   [T a, sum of cols / a]
 *   before  [T, sum of cols]        after itself if a = 1
 *   cols    [n]                     columns of each group */
void context_to_heads(Device *d, const ContextWay *w, Arena *scratch, Mat after, Mat before,
                      const int64_t *cols, int n);
/* The way back. */
void context_from_heads(Device *d, const ContextWay *w, Arena *scratch, Mat before, Mat after,
                        const int64_t *cols, int n);
/* The one in scratch that belongs to the other; the other itself if a = 1. Local. */
Mat context_after(const ContextWay *w, Arena *scratch, Mat before);
Mat context_before(const ContextWay *w, Arena *scratch, Mat after);

/* Keys and values on their way. They lie in scratch. */
typedef struct {
    Mat kv[2];                 /* [Tk, 2 K D] the piece that is computed, and the one that comes */
    Mat k, v;                  /* [T, K D] this rank's own, or all gathered ones */
    Token sent, come;
} ContextKeys;
/* Starts to gather keys and values, or to send them round.
 *   k, v   in   [T a, K D]  of this rank, after the exchange of heads */
ContextKeys context_keys(Device *d, const ContextWay *w, Arena *scratch, Mat k, Mat v);

/* Attention of this rank's queries and all keys.
 *   keys   in/out           from context_keys
 *   o      out  [Tq, A D]   storage
 *   lse    out  [Tq, A]     real
 *   q      in   [Tq, A D]   storage
 *   s      in               but for the positions, which this call knows */
void context_attention_fwd(Device *d, const Context *c, const ContextWay *w, Arena *scratch,
                           ContextKeys *keys, Mat o, Mat lse, Mat q, Attention *s);
/* Its gradient.
 *   dq, dk, dv  out  as q, k, v
 *   dout, o     in   [Tq, A D]
 *   lse         in   [Tq, A] */
void context_attention_bwd(Device *d, const Context *c, const ContextWay *w, Arena *scratch,
                           ContextKeys *keys, Mat dq, Mat dk, Mat dv, Mat dout, Mat o, Mat lse, Mat q,
                           Attention *s);
#endif
