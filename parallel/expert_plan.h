/* expert_plan -- what expert.c and expert_gather.c know of the dispatch that is under way: who sends how many
 * pairs to whom in a round. As in expert.h; local. */
#ifndef EXPERT_PLAN_H
#define EXPERT_PLAN_H
#include "expert.h"

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Tokens of a flight. */
int experts_tokens(const Experts *x);
/* Whether no other rank has a part in the experts of this one, or sends it rows. */
int experts_alone(const Experts *x);
/* Whether rows may come in another order than that of the experts. */
int experts_mixed(const Experts *x);

/* Where the pairs of etp rank t and ep rank r for expert `local` of this rank are among those it has for this
 * rank in a round: [*from, returned). */
int64_t experts_span(const Experts *x, int64_t round, int t, int r, int local, int64_t *from);
/* Pairs that rank r of ep of etp rank t sends here in a round. */
int64_t experts_sent(const Experts *x, int64_t round, int t, int r);
/* Rows that etp rank t has from its sources in a round, and where they begin among those received. */
int64_t experts_rows(const Experts *x, int64_t round, int t);
int64_t experts_first(const Experts *x, int64_t round, int t);
/* The sorted pairs that go to ep rank r in a round: *from and those after it. Returns their number. */
int64_t experts_pairs_to(const Experts *x, int64_t round, int r, int64_t *from);
/* Most pairs that this rank sends to other ranks of ep in a round. */
int64_t experts_leaving(const Experts *x);
#endif
