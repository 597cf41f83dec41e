/* trace -- what every rank did when, for the steps that trace_steps lists: run_dir/trace.json (timeline.h).
 *
 * Off, an event costs one test; on, one store into a ring whose memory is part of the plan, and no lock: any
 * thread may record. Operations of process groups are heard of when they end, from whatever thread ends them;
 * they belong to the step in which they were called, and those called behind a step's last instruction are
 * not recorded.
 *
 * One clock. Ranks of one host share now(). Other hosts' clocks are compared with rank 0's when recording
 * starts and when the file is written: the lowest rank of each host asks rank 0 for the time, the fastest of
 * several answers counts, and its middle is taken for the moment of the answer (Cristian 1989); between the
 * two comparisons offsets are interpolated, which removes drift. The error is at most half of the fastest
 * round trip, some 10 us. */
#ifndef TRACE_H
#define TRACE_H
#include "base.h"
#include "config.h"
#include "file.h"
#include "grid.h"
#include "schedule.h"

/* X(id, name): the rows of a rank. Those of a process group are named after the axis that it serves. */
#define TRACE_STREAMS(X)                                                                                     \
    X(COMPUTE, "compute")                                                                                    \
    X(LOADER, "loader") X(CHECKPOINT, "checkpoint") X(TP, "tp") X(CP, "cp") X(EP, "ep") X(PP, "pp")          \
        X(DP, "dp") X(WORLD, "world")

typedef enum {
#define X(id, name) STREAM_##id,
    TRACE_STREAMS(X)
#undef X
    STREAMS
} TraceStream;

/* X(id, name, stream): what is no instruction of a schedule and no operation of a group */
#define SPANS(X)                                                                                             \
    X(DATA, "data", COMPUTE) /* waiting for a microbatch */                                                  \
    X(EVAL, "evaluate", COMPUTE)                                                                             \
    X(SAVE, "save", COMPUTE) /* the part of a save that training waits for */                                \
    X(LOG, "log", COMPUTE)                                                                                   \
    X(LOAD, "load", LOADER)       /* the loader's thread fills a microbatch */                               \
    X(WRITE, "write", CHECKPOINT) /* the writer's thread puts a snapshot on disk */

typedef enum {
    SPAN_FIRST = INSTR_KINDS - 1, /* spans follow the instructions' kinds, operations of groups the spans */
#define X(id, ...) SPAN_##id,
    SPANS(X)
#undef X
        SPAN_END
} TraceSpan;

/* X(id, name in Comm.name, stream): the groups of a Grid. EMBEDDING adds gradients, as the data-parallel ones
 * do. */
#define TRACE_GROUPS(X)                                                                                      \
    X(TP, "tp", TP)                                                                                          \
    X(KV, "kv", TP) X(CP, "cp", CP) X(EP, "ep", EP) X(PP, "pp", PP) X(EMBEDDING, "embedding", DP)            \
        X(DP, "dp", DP) X(DATA, "dp-cp", DP) X(SHARD, "shard", DP) X(COPIES, "copies", DP)                   \
            X(MODEL, "tp-pp", WORLD) X(WORLD, "world", WORLD)

typedef enum {
#define X(id, ...) GROUP_##id,
    TRACE_GROUPS(X)
#undef X
    GROUPS
} TraceGroup;

typedef struct {
    double start, end; /* s. Of an operation: from its turn in its group, or its call, to its end */
    double called;                     /* operations only, like the next three: when it was called */
    int64_t bytes;                     /* as they count in Comm */
    int64_t moved, behind; /* as in CommEvent: copied or added here; of them by the progress thread alone */
    int64_t step;
    int32_t peer;                      /* of a message, a rank of its group; -1 */
    uint16_t kind, mb, unit; /* InstrKind, TraceSpan, or SPAN_END + CommKind; mb, unit: as in Instr */
    uint8_t chunk, phase, group;       /* group: TraceGroup */
} TraceEvent;

typedef struct {
    List steps;
    int on;                            /* the step that runs now is recorded */
    struct { int64_t step; double from, to; } window[2];   /* the step recorded last, the one before */
    TraceEvent *ring;
    int64_t n, max;                    /* recorded so far; places: when n > max the oldest are gone */
    double at[2], offset[2]; /* when clocks were compared, s; what makes this host's clock rank 0's, s */
} Trace;

/* per_step: events of a step, about. Takes the ring from `host`; steps that are not listed cost nothing, not
 * even memory. */
void trace_open(Trace *t, const Config *cfg, int64_t per_step, Arena *host);
void trace_close(Trace *t);

/* The job is there: compares clocks when anything will be recorded. Collective over g->all. */
void trace_start(Trace *t, Grid *g);

/* Iteration `step` (from 1) begins: turns recording on or off. */
void trace_step(Trace *t, int64_t step);

/* double t0 = trace_begin(t); ...; trace_end(t, SPAN_DATA, t0); */
static inline double trace_begin(const Trace *t) { return t->on ? now() : 0; }
void trace_end(Trace *t, TraceSpan span, double start);

/* One instruction that the executor has finished. That of the optimizer's step ends the recording of
 * operations. */
void trace_instr(Trace *t, const Instr *i, double start, double end);

/* Rank 0 takes every rank's events and writes run_dir/trace.json; nothing was recorded: no file. Returns 1,
 * or 0 with a reason in why when rank 0 could not write. said: on rank 0 what the timeline shows, in one line
 * ("" for nothing). shape: of the pipeline. Ends recording. Collective over g->all. */
#define TRACE_SAID 512
int trace_write(Trace *t, const char *run_dir, Grid *g, const PipeShape *shape, char said[TRACE_SAID],
                char why[WHY]);
#endif
