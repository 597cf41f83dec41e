/* expert_gather -- what expert.c does where rows are gathered; as in expert.h. `each` and `back` mean the
 * same there. */
#ifndef EXPERT_GATHER_H
#define EXPERT_GATHER_H
#include "expert.h"

void gather_open(Experts *x, int64_t sorted);
void gather_close(Experts *x);
/* Tells all ranks the numbers of the pairs, and the sorted pairs themselves; fills x->count.
 *   counting  in  bool: groups move nothing, and all ranks have the same */
void gather_counts(Experts *x, int counting);
ExpertRound gather_round(Device *d, Experts *x, Arena *scratch, int64_t number, int64_t n);
/* Starts to gather over ep. The end goes on over etp. */
void gather_send_start(Device *d, Experts *x, Arena *scratch, const ExpertRound *r, Mat rows, int each,
                       ExpertFlight *f);
void gather_send_end(Device *d, Experts *x, ExpertFlight f);
int64_t gather_return_rows(const Experts *x, Mat back);
void gather_return_start(Device *d, Experts *x, const ExpertRound *r, int each, Mat back, Mat rows, Mat room,
                         ExpertFlight *f);
void gather_return_end(Device *d, Experts *x, ExpertFlight f);
#endif
