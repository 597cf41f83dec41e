/* timeline -- the recorded steps of all ranks: trace.json, and what is computed from it.
 *
 * trace.json is in Chrome's trace format (Perfetto and chrome://tracing read it). A rank is a process, a
 * stream is a row, or several rows where its operations overlap (messages to and from two neighbours).
 * Times are in us.
 *   instructions have  step, chunk, microbatch, part (the unit; -1: the whole chunk), phase
 *   operations have    step, group, bytes, moved, behind, peer (-1: a collective),
 *                      queued_us (from the call until the operations before it had ended)
 * A record "pipeline" holds the shape of the pipeline, from which the schedule can be made again. A record
 * "configuration" holds every key of the run that recorded. */
#ifndef TIMELINE_H
#define TIMELINE_H
#include "closed_form.h"
#include "trace.h"
#include <jansson.h>
#include <stdio.h>

typedef struct {
    int index[AXES];                   /* of the rank along each axis of the dense grid */
    int64_t n, lost;                   /* events; events lost because the ring was full */
    TraceEvent *event;                 /* [n] in order of start */
} TimelineRank;

typedef struct Timeline {
    int ranks;
    TimelineRank *rank;
    PipeShape shape;                   /* without m and costs; p 0: not known */
    json_t *config;                    /* {"key": "value" as in `key=value`, ...}; NULL: not known */
} Timeline;

/* Names of the streams and of the groups. */
extern const char *const timeline_stream_name[STREAMS], *const timeline_group_name[GROUPS];
TraceStream timeline_stream(const TraceEvent *e);
TraceStream timeline_group_stream(const char *group);     /* of a group by its name in Comm */
int timeline_is_compute(const TraceEvent *e);     /* F, B, D, W */
int timeline_is_comm(const TraceEvent *e);
Instr timeline_instr(const TraceEvent *e);
/* The event as text: "F0.0", "reduce_scatter shard", "save". */
void timeline_name(const TraceEvent *e, char *text, int size);

/* Gathers the events of all ranks so far on rank 0, settled. On other ranks, and where
 * nothing was recorded, the timeline has no ranks. shape: of the pipeline. Collective over g->all.
 * Allocates. */
void timeline_gather(Timeline *t, Trace *trace, Grid *g, const PipeShape *shape);

/* Corrects the starts of raw events (start = called), then sorts by start. An operation starts when the
 * one before it in its group has ended. A receive does not start before its send; the messages between
 * two pipeline ranks are matched in their order. */
void timeline_settle(Timeline *t);

/* Writes trace.json. */
void timeline_put(FILE *f, const Timeline *t);

/* Reads trace.json. Malformed records are left out. Allocates. */
void timeline_read(Timeline *t, const json_t *trace);
void timeline_close(Timeline *t);

/* The last step whose optimizer step was recorded; -1: none. */
int64_t timeline_step(const Timeline *t);

/* Writes the ranks of rank's pipeline to lane [t->ranks], by stage. Returns their number. */
int timeline_pipeline(const Timeline *t, int rank, int *lane);

/* What timeline_overlap counts. OVERLAP_DATA: gradient reductions over data-parallel ranks, which are
 * all-reduces of dp-cp and copies and reduce-scatters of shard (not tied embeddings, not norms).
 * OVERLAP_CONTEXT: all operations of the context group and the groups within it. OVERLAP_EXPERT: of the
 * groups ep and etp. */
typedef enum { OVERLAP_DATA, OVERLAP_CONTEXT, OVERLAP_EXPERT, OVERLAPS } OverlapKind;

/* How much of these operations ran under computation. An operation is under way from start to end. A byte
 * that moved at a wait or between two instructions is never in bytes_under. */
typedef struct {
    double bytes;                      /* copied or added by the rank, summed over ranks */
    double bytes_under;                /* moved by the progress thread while the rank did not wait; at
                                        * most the share seconds_under / seconds of each operation */
    double seconds;                    /* that operations were under way, summed over ranks */
    double seconds_under;              /* of them while the same rank ran an F, B, D or W */
} Overlap;
/* step -1: all steps. rank -1: all ranks. */
Overlap timeline_overlap(const Timeline *t, OverlapKind kind, int64_t step, int rank);

/* Bubbles of a pipeline in one step (Qi et al. 2023, arXiv:2401.10241). T: time of F + B + W of all
 * microbatches on the rank that computes longest. rate = (cost - T) / cost, where cost is the longest
 * span from a rank's first to its last computation. step_rate: the same with the span of all ranks
 * together. NAN: not known. */
typedef struct {
    int m;                             /* microbatches */
    Rates measured;                    /* from the F, B, D, W of the ranks */
    Rates schedule;                    /* of the replayed lists: own time of each instruction, messages
                                        * without time; its step_rate is not above the measured one, but
                                        * for the error of the clocks */
    ScheduleSet set;                   /* the lists; rank NULL: the recorded step is not complete */
    Simulation sim;                    /* their replay, with spans, s */
} PipelineTimes;
/* lane: [p] ranks of the pipeline, from timeline_pipeline. */
void timeline_times(PipelineTimes *x, const Timeline *t, const int *lane, int p, int64_t step);
void timeline_times_close(PipelineTimes *x);

/* Writes one line about the whole trace to text; "": nothing was recorded. */
void timeline_say(const Timeline *t, char *text, int size);
#endif
