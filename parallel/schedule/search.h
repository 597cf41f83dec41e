/* search -- orders of F, D and W for stages placed in any way, within what each rank can hold. Private to
 * this room: zb-auto is written by it, and partition.h asks how long a step of its stages takes. */
#ifndef SEARCH_H
#define SEARCH_H
#include "greedy.h"

enum { RULES_KEPT = 6 };

/* The best rules of a search, best first, for the next search of a pipeline with as many stages a rank. */
typedef struct { int n, rule[RULES_KEPT]; } Favourites;

/* Searches an order; returns its makespan, in the unit of the costs. INFINITY: none was found that fits, as
 * where a rank cannot hold one microbatch of each of its stages.
 *   known   in out  has rules: only these are played; none: all are, and the best are written. NULL: all
 *   budget  in      instructions that may be played beside `known`
 *   out     out     [p] compute of every rank, as of schedule_generate; NULL: not wanted */
double search_order(const PipeShape *s, const Held *held, Favourites *known, int64_t budget, InstrList *out);

/* Writes rule `index` of a grid of rules in which all ranks are alike but for their bounds. 0: there are no
 * more. */
int search_rule(const Greedy *g, int index, Rule *rule);
#endif
