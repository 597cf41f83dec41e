/* rank_log -- time of the groups' messages, and slow ranks, for metrics.jsonl and TensorBoard */
#ifndef RANK_LOG_H
#define RANK_LOG_H
#include "metrics.h"
#include "tensorboard.h"

enum { SLOW_RANKS = 16 };          /* of a line; a job with more of them needs no list */

/* What the lines of a log say of ranks: sums over the steps since the last line. */
typedef struct {
    GroupTimes sum[GROUP_NAMES];
    int n;                         /* groups */
    int64_t steps;
    SlowRank slow[SLOW_RANKS];     /* those of any step since the last line */
    int slows;
} RankLog;

void rank_log_add(RankLog *r, const GroupTimes *g, int n);
void rank_log_slow(RankLog *r, const SlowRank *s, int n);
/* Returns the members `comm`, means a step, and `stragglers` of a JSON object, each with ", " before it;
 * those that would be empty are left out. Free it. */
char *rank_log_json(const RankLog *r);
/* Writes the scalars comm/NAME_wait_ms, ..._busy_ms, ..._bytes; with groups also `stragglers`, their number,
 * and straggler/rank_N, the share of time that rank N loses. */
void rank_log_scalars(const RankLog *r, EventFile *f, double wall_time, int64_t step);
#endif
