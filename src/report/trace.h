/* trace -- records when each rank did what in the steps of trace_steps, for run_dir/trace.json
 * (timeline.h).
 *
 * While recording is off, an event costs one test. While it is on, an event costs one store into a ring
 * whose memory is part of the plan. There is no lock: any thread may record. An operation of a process
 * group is recorded when it ends, by the thread that ends it. It belongs to the step in which it was
 * called; operations called after a step's last instruction are not recorded.
 *
 * All events are on rank 0's clock. Ranks of one host share now(). The clock of another host is compared
 * with rank 0's when recording starts and each time the file is written: the lowest rank of the host asks
 * rank 0 for the time several times, the fastest round trip counts, and its middle is taken for the
 * moment of the answer (Cristian 1989). Between the two comparisons the offset is interpolated, which
 * removes drift. The error is at most half of the fastest round trip, some 10 us. */
#ifndef TRACE_H
#define TRACE_H
#include "base.h"
#include "config.h"
#include "file.h"
#include "grid.h"
#include "schedule.h"

/* X(id, name): the rows of a rank. The row of a process group has the name of the group's axis. */
#define TRACE_STREAMS(X)                                                                                     \
    X(COMPUTE, "compute") X(TP, "tp") X(CP, "cp") X(EP, "ep") X(PP, "pp") X(DP, "dp") X(WORLD, "world")      \
    X(LOSSES, "losses")

typedef enum {
#define X(id, name) STREAM_##id,
    TRACE_STREAMS(X)
#undef X
    STREAMS
} TraceStream;

/* X(id, name, stream): events that are neither instructions of a schedule nor operations of a group */
#define SPANS(X)                                                                                             \
    X(EVAL, "evaluate", COMPUTE)                                                                             \
    X(SAVE, "save", COMPUTE)      /* the part of a save that training waits for */                           \
    X(LOSS, "loss", LOSSES)       /* part of a step by its cause: Instr.unit is a LossKind (losses.h) */

typedef enum {
    SPAN_FIRST = INSTR_KINDS - 1, /* numbers of spans follow those of InstrKind; CommKind follows */
#define X(id, ...) SPAN_##id,
    SPANS(X)
#undef X
        SPAN_END
} TraceSpan;

/* X(id, name in Comm.name, stream): the groups of a Grid. EMBEDDING has the stream DP because it adds
 * gradients, as the data-parallel groups do. */
#define TRACE_GROUPS(X)                                                                                      \
    X(TP, "tp", TP) X(KV, "kv", TP) X(CP, "cp", CP) X(CP_HEADS, "cp-heads", CP)                              \
    X(CP_RING, "cp-ring", CP) X(EP, "ep", EP) X(ETP, "etp", EP) X(PP, "pp", PP)                              \
    X(EMBEDDING, "embedding", DP) X(DP, "dp", DP) X(DATA, "dp-cp", DP) X(SHARD, "shard", DP)                 \
    X(COPIES, "copies", DP) X(EDP, "edp", DP) X(EDP_SHARD, "edp-shard", DP)                                  \
    X(EDP_COPIES, "edp-copies", DP) X(MODEL, "tp-pp", WORLD) X(WORLD, "world", WORLD)

typedef enum {
#define X(id, ...) GROUP_##id,
    TRACE_GROUPS(X)
#undef X
    GROUPS
} TraceGroup;

typedef struct {
    double start, end;                 /* s; an operation starts at its turn in its group */
    double called;                     /* s: when an operation was called */
    int64_t bytes;                     /* of an operation, as Comm counts them */
    int64_t moved, behind;             /* bytes copied or added here; by the progress thread */
    int64_t step;
    int32_t peer;                      /* of a message: a rank of its group; -1: no message */
    uint16_t kind;                     /* InstrKind, TraceSpan, or SPAN_END + CommKind */
    uint16_t mb, unit;                 /* of an instruction, as in Instr */
    uint8_t chunk, phase;              /* of an instruction, as in Instr */
    uint8_t group;                     /* of an operation: TraceGroup */
} TraceEvent;

typedef struct {
    const Config *cfg;
    int on;                            /* bool: the step that runs now is recorded */
    struct { int64_t step; double from, to; } window[2];   /* last recorded step, the one before */
    int64_t steps_done, steps_kept;    /* recorded steps so far; at the last time that trace_due said 1 */
    TraceEvent *ring;                  /* [max] */
    int64_t n, max;                    /* events so far; n > max: the oldest are overwritten */
    double at[2];                      /* s: when the clocks were compared, on this host's clock */
    double offset[2];                  /* s: to be added to this host's clock to get rank 0's */
} Trace;

/* Takes the ring from `host`; without trace_steps it has no memory. per_step: about the number of events
 * of a step. */
void trace_open(Trace *t, const Config *cfg, int64_t per_step, Arena *host);
void trace_close(Trace *t);

/* Compares the clocks of the hosts if anything will be recorded. Collective over g->all. */
void trace_start(Trace *t, Grid *g);

/* Iteration `step` (from 1) begins: turns recording on or off. */
void trace_step(Trace *t, int64_t step);

/* double t0 = trace_begin(t); ...; trace_end(t, SPAN_SAVE, t0); */
static inline double trace_begin(const Trace *t) { return t->on ? now() : 0; }
void trace_end(Trace *t, TraceSpan span, double start);

/* Records the losses of the step that is recorded now, one behind the other from `start` on.
 *   s  in  [LOSSES]  s of each */
void trace_losses(Trace *t, double start, const double *s);

/* Records a finished instruction. The optimizer's step ends the recording of operations. */
void trace_instr(Trace *t, const Instr *i, double start, double end);

/* Called at the end of iteration `step`: whether it was recorded and the file should be written, so that a
 * run that dies later keeps it. In a row of recorded steps only after the 1st, 2nd, 4th, 8th ... and the
 * last, because each time the whole file is written. The same on every rank. */
int trace_due(Trace *t, int64_t step);

/* Rank 0 gathers the events of all ranks and writes run_dir/trace.json, unless nothing was recorded.
 * shape: of the pipeline. said: out, on rank 0 one line about the timeline; "": nothing. Returns 1, or 0
 * with a reason in why when rank 0 could not write. Collective over g->all. */
#define TRACE_SAID 512
int trace_write(Trace *t, const char *run_dir, Grid *g, const PipeShape *shape, char said[TRACE_SAID],
                char why[WHY]);
#endif
