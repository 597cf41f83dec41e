/* expert -- rows travel to the ranks that hold their experts, and back (Shazeer et al. 2017,
 * arXiv:1701.06538; Lepikhin et al. 2020, arXiv:2006.16668).
 *
 * Each of R rows chooses `topk` of E experts. A row and one of its choices are a pair. Rank r of the group ep
 * holds experts [r E/ep, (r+1) E/ep); the ranks of the group etp hold parts of the same experts' matrices, so
 * each of them needs all rows of these experts. Pairs are sorted by expert, rows in order within an expert;
 * `sorted` matrices hold one row a pair, in this order. Where experts have a capacity, dropped pairs are not
 * among the sorted ones. An expert's pairs may be followed by empty ones, whose rows are zeros: up to its
 * capacity, or to a number of rows that products ask for (`piece`).
 *
 * Messages have exact sizes, which follow from the choices: the host reads these, and the ranks exchange how
 * many pairs each has for each expert. A rank sends at most `window` pairs to another rank in a round, which
 * bounds memory; ranks with more pairs need more rounds, and the whole group does as many as its neediest
 * rank, at least one.
 *
 * That is the all-to-all. A gathering dispatch gives the same rows to the same experts in the same order, but
 * every rank gathers the rows of all ranks of ep and etp and picks those of its experts; on the way back each
 * rank adds up what its experts made of a row, and reduce-scatters add the ranks' sums in rank order.
 *
 * Rows go and come back in two steps, a start and an end, so that a rank computes while they travel. What
 * starts take from scratch stays until the caller resets it, after the end.
 *
 * Functions are collective over ep and etp unless marked local. Shared arguments:
 *   d        in         the device that computes
 *   scratch  in/out     arena for what lives until the end */
#ifndef EXPERT_H
#define EXPERT_H
#include "comm.h"
#include "fiber.h"

/* How many pairs an expert may have. */
typedef struct {
    int64_t capacity;          /* pairs of an expert that one rank has, at most */
    int64_t share;             /* the same if all ranks that share a microbatch have equally many */
    int pad;                   /* bool: there are empty pairs, so that an expert has `capacity` of them */
    const int64_t *fill;       /* [E] this rank's empty pairs, if pad; NULL: each expert has `share` pairs */
} ExpertsLimit;

/* What the lists of a counting run follow from. */
typedef struct { int64_t rows, bound, hot, capacity, share, pad; } ExpertsCounted;

typedef struct {
    Comm *ep, *etp;
    int experts, local, topk;  /* E; E / ep; choices of a row */
    int64_t most;              /* rows of a dispatch, at most */
    int64_t piece;             /* a rank's pairs for an expert, in any round, are a multiple of this */
    int hot;                   /* bool: in counting runs all rows choose experts of this rank */
    int gather;                /* bool: rows are gathered */
    /* The dispatch that is under way, on the host. */
    int64_t window;            /* pairs that a rank sends to another one in a round, at most */
    int64_t rows, bound;       /* R; of the rank that has most */
    int64_t pairs, most_pairs; /* sorted ones of this rank; as many as any rank has, at most */
    int64_t most_of_one;       /* pairs of one expert that a rank has, at most */
    int64_t rounds;
    int32_t *choice;           /* [most topk] experts of each row, or experts_dropped of them */
    int32_t *place;            /* [most topk] place of each pair among the sorted ones; -1: dropped */
    int32_t *pair;             /* [pairs] the inverse: the pair of each place; -1: an empty pair */
    int32_t *source;           /* [pairs] row of each sorted pair; -1: an empty pair */
    int64_t *first;            /* [ep + 1] sorted pairs [first[r], first[r + 1]) are for ep rank r */
    int64_t *next;             /* [experts] scratch: place of the next pair of each */
    int64_t *mine;             /* [ep][local] pairs of this rank for each expert */
    int64_t *count;            /* [etp][ep][local] pairs for this rank's experts, by their source */
    int64_t *before;           /* [etp][ep][local + 1] of these, those for experts before each one */
    ExpertsCounted counted;    /* of the counting run whose lists these are; bound 0: of no counting run */
    int32_t *order;            /* scratch: a list of experts_round */
    int64_t *of_rank;          /* gathered: [etp][ep][E] pairs of each rank for each expert */
    int32_t *pair_of_rank;     /* gathered: [etp][ep][most_pairs] `pair` of each rank */
    Token *token;              /* [EXPERT_FLIGHTS][2 max(ep, etp)], taken in turn */
    int flights;               /* flights so far */
    /* Gives turns away (fiber.h) while rows or counts travel; NULL: nobody has another turn. As often in
     * every dispatch, whatever the routing: ranks that share other groups may have other numbers of rounds,
     * and their turns must change alike. */
    Fiber *turns;
} Experts;
enum { EXPERT_FLIGHTS = 8 };   /* that may be under way at once */

/* A round, and on the device where its rows are among those received. */
typedef struct {
    int64_t number, n;         /* n: rows that this rank has in it */
    int32_t *order, *back;     /* [n] received row of each row in the order of experts; the inverse. NULL:
                                * rows come in the order of experts. Gathered: back has an entry for each
                                * pair of all ranks, -1: of another rank's expert, or not in this round */
    int32_t *pair;             /* gathered: [n] received pair of each row in the order of experts */
} ExpertRound;

/* Rows on their way, from a start to its end. */
typedef struct {
    Mat out, come;             /* as in the start; the received rows, by their sources */
    const int32_t *order;      /* row of `come` of each row of `out`; NULL: the same */
    Token *token;              /* NULL: nothing is under way, and an end does nothing */
} ExpertFlight;

/* What stands in a list of choices for an expert whose pair is dropped, and the expert of either. */
static inline int32_t experts_dropped(int32_t expert) { return -1 - expert; }
static inline int32_t experts_chosen(int32_t choice) { return choice < 0 ? -1 - choice : choice; }

/* Allocates the host memory for dispatches of up to `most` rows. Local.
 *   ep, etp  in             groups of this rank; kept, not copied
 *   experts  in   global    E, a multiple of ep's size
 *   topk     in   global    choices of a row
 *   most     in   global    R, at most
 *   piece    in   global    a rank's pairs for an expert, in any round, are made up to a multiple of this by
 *                           empty ones; 1: there are none
 *   gather   in   global    bool: rows are gathered
 *   limit    in   global    of dispatches of `most` rows, at most; NULL: no dispatch has one */
void experts_open(Experts *x, Comm *ep, Comm *etp, int experts, int topk, int64_t most, int64_t piece,
                  int gather, const ExpertsLimit *limit);
void experts_close(Experts *x);

/* Most rows that a rank has in a round of this dispatch, and that one of its experts has. Local. */
int64_t experts_room(const Experts *x);
int64_t experts_room_of_one(const Experts *x);
/* Most rows in the messages to and from other ranks that are under way in a round. Local. */
int64_t experts_under_way(const Experts *x);

/* Starts a dispatch: waits until the choices are on the host, sorts the pairs, exchanges their numbers.
 *   choice   in   [R topk]  device memory: expert of each choice, no expert twice in a row, or -1; NULL:
 *                           a counting run, in which every rank has equally many pairs for every rank, or
 *                           with `hot` as many as there can be for this one
 *   rows     in             R
 *   bound    in   global    R of the rank that has most, which sets the size of a round
 *   limit    in   global    but for its `fill`; the choices obey it. NULL: none */
void experts_plan(Device *d, Experts *x, const int32_t *choice, int64_t rows, int64_t bound,
                  const ExpertsLimit *limit);

/* Gives the turn away, in experts_plan and where a layer waits for rows: once behind the start of its first
 * round, once before the end of its last one. Local. */
void experts_turn(const Experts *x);

/* Rows of a round for this rank's expert `local`: rows [*from, *from + n) of the round, returned n. Local. */
int64_t experts_part(const Experts *x, int64_t round, int local, int64_t *from);

/* Makes a round's lists, in scratch. Local. */
ExpertRound experts_round(Device *d, Experts *x, Arena *scratch, int64_t number);

/* Starts to send this rank's pairs of a round, and to receive the rows of its experts.
 *   out      out  [n, C]      in the order of experts, then of etp ranks, then of ep ranks; after the end
 *   rows     in   [.., C]     storage or real; may be written once this returns
 *   each     in   global      `rows` has so many for each of this rank's R rows: 1, or topk
 *   index    in   [pairs]     device memory: row of `rows` of each sorted pair */
ExpertFlight experts_send_start(Device *d, Experts *x, Arena *scratch, const ExpertRound *r, Mat out,
                                Mat rows, int each, const int32_t *index);
void experts_send_end(Device *d, Experts *x, const ExpertRound *r, ExpertFlight f);

/* Rooms in scratch that serve the rounds in turn. Local.
 * experts_back: for what comes back to this rank, whose sums experts_sum takes.
 *   each     in   global      as in experts_send_start, of the rows that were sent
 * The others: for what the experts make of a round's rows, and for the rows that a return sends. */
Mat experts_back(const Experts *x, Arena *scratch, int each, int64_t cols, Dtype type);
Mat experts_results_room(const Experts *x, Arena *scratch, Mat back);
Mat experts_return_room(const Experts *x, Arena *scratch, Mat back);
/* Where the experts write a round's results [n, C]: in `room`, or, where no rank but this one has a part in
 * them, in `back` itself. Local. */
Mat experts_results(const Experts *x, const ExpertRound *r, Mat back, Mat room);
/* Starts the way back.
 *   back     in/out           experts_back; has the round's part after the end
 *   rows     in   [n, C]      experts_results
 *   room     in/out           experts_return_room; it and rows stay until the end */
ExpertFlight experts_return_start(Device *d, Experts *x, Arena *scratch, const ExpertRound *r, int each,
                                  Mat back, Mat rows, Mat room);
void experts_return_end(Device *d, Experts *x, ExpertFlight f);
/* After all rounds: a row's sum over its pairs, or each pair by itself, and over the etp ranks. Local.
 *   y        out  [R each, C]
 *   place    in   [R topk]    device memory: as in Experts */
void experts_sum(Device *d, const Experts *x, Mat y, int each, Mat back, const int32_t *place);
#endif
