/* timeline -- the recorded steps of all ranks, together: trace.json, and what can be read off it.
 *
 * trace.json has Chrome's trace form (Perfetto and chrome://tracing read it): a process a rank, a row a
 * stream, more rows of a stream where operations overlap (messages to and from two neighbours), times in us.
 * Instructions carry step, chunk, microbatch, part (-1: the whole chunk) and phase; operations step, group,
 * bytes, moved, behind, peer
 * (-1: a collective) and queued_us, the time from the call until the operations before it had ended. A record
 * "pipeline" holds what makes the schedule again. */
#ifndef TIMELINE_H
#define TIMELINE_H
#include "trace.h"
#include <jansson.h>
#include <stdio.h>

typedef struct {
    int index[AXES];                   /* coordinates in the dense grid */
    int64_t n, lost;                   /* lost: for want of room in the ring */
    TraceEvent *event;                 /* [n] by start */
} TimelineRank;

typedef struct {
    int ranks;
    TimelineRank *rank;
    PipeShape shape;                   /* p = 0: not known. No m, no costs */
} Timeline;

/* The rows' and groups' names. */
extern const char *const timeline_stream_name[STREAMS], *const timeline_group_name[GROUPS];
TraceStream timeline_stream(const TraceEvent *e);
int timeline_is_compute(const TraceEvent *e);     /* F, B, D, W */
int timeline_is_comm(const TraceEvent *e);
/* "F0.0", "reduce_scatter shard", "save": the event as text. */
void timeline_name(const TraceEvent *e, char *text, int size);

/* Ends recording. On rank 0 what all ranks have recorded, settled; elsewhere, and where nothing was, no
 * ranks. shape: of the pipeline. Collective over g->all. Allocates. */
void timeline_gather(Timeline *t, Trace *trace, Grid *g, const PipeShape *shape);

/* Makes of raw events (start = called) what the form promises: operations of one group follow each other, a
 * receive begins when its sender does; then sorts. Messages of a pipeline are matched in their order. */
void timeline_settle(Timeline *t);

void timeline_put(FILE *f, const Timeline *t);

/* The inverse; what is malformed is left out. Allocates. */
void timeline_read(Timeline *t, const json_t *trace);
void timeline_close(Timeline *t);

/* The last step whose optimizer step was recorded, -1: none. */
int64_t timeline_step(const Timeline *t);

/* The ranks of the pipeline that `rank` belongs to, by stage; returns their number. lane: room for t->ranks.
 */
int timeline_pipeline(const Timeline *t, int rank, int *lane);

/* Of gradients reduced over data-parallel ranks: all-reduces of dp-cp and copies, reduce-scatters of shard
 * (not tied embeddings, not norms). An operation is under way from start to end. seconds: the sum of that
 * over ranks; seconds_under: the part in which the same rank ran an F, B, D or W. bytes: what the rank copied
 * or added for it; bytes_under: of these, what its progress thread moved while the rank waited for nothing,
 * and at most the share of bytes that seconds_under has of seconds, operation by operation. So a byte that
 * moved at a wait or between two instructions never counts, whatever computation stood beside it. step -1:
 * all. rank -1: all. */
typedef struct { double bytes, bytes_under, seconds, seconds_under; } Overlap;
Overlap timeline_overlap(const Timeline *t, int64_t step, int rank);

/* Bubbles of a pipeline in one step: T = F + B + W of all microbatches on the rank that computes longest;
 * rate = (cost - T) / cost with cost = the longest span from a rank's first to its last computation (Qi et
 * al. 2023, arXiv:2401.10241), step_rate the same with the span of all ranks together. measured: from the F,
 * B, D, W of the ranks. schedule: the replay of the very lists that ran, whatever the schedule, with every
 * instruction's own time, in which messages take no time; its step_rate is never above the measured one, but
 * for the error of the clocks. NAN: not known. */
typedef struct { double rate, step_rate; } Bubble;
typedef struct {
    int m;                             /* microbatches */
    Bubble measured, schedule;
    double *cost[3]; /* s of F, D (or B), W of each virtual stage; NULL: not all of a step is there */
    ScheduleSet set;                   /* with cost: the lists, and their replay with spans, s */
    Simulation sim;
} PipelineTimes;
void timeline_times(PipelineTimes *x, const Timeline *t, const int *lane, int p, int64_t step);
void timeline_times_close(PipelineTimes *x);

/* What the whole trace shows, in one line; "" for nothing. */
void timeline_say(const Timeline *t, char *text, int size);
#endif
