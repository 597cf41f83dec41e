/* trace -- what every rank did when, for the steps that trace_steps lists: run_dir/trace.json in Chrome's
 * trace form (Perfetto and chrome://tracing read it), one process a rank, one row a stream. Off, an event
 * costs one test; on, one store into a ring that was allocated at the start, and no lock: any thread may
 * record. All times are now()'s clock, which the ranks of one host share. */
#ifndef TRACE_H
#define TRACE_H
#include "base.h"
#include "config.h"
#include "file.h"
#include "grid.h"
#include "schedule.h"

/* X(id, name, stream): what is no instruction of a schedule */
#define SPANS(X)                                                                                             \
    X(DATA, "data", COMPUTE)           /* waiting for a microbatch */                                        \
    X(EVAL, "evaluate", COMPUTE)                                                                             \
    X(SAVE, "save", COMPUTE)           /* the part of a save that training waits for */                      \
    X(LOG, "log", COMPUTE)                                                                                   \
    X(LOAD, "load", LOADER)            /* the loader's thread fills a microbatch */                          \
    X(WRITE, "write", CHECKPOINT)      /* the writer's thread puts a snapshot on disk */

typedef enum { STREAM_COMPUTE, STREAM_LOADER, STREAM_CHECKPOINT, STREAMS } TraceStream;
typedef enum {
    SPAN_FIRST = INSTR_KINDS - 1,      /* spans follow the instructions' kinds */
#define X(id, ...) SPAN_##id,
    SPANS(X)
#undef X
    SPAN_END
} TraceSpan;

typedef struct {
    double start, end;
    int64_t step;
    uint16_t kind, mb, part;           /* InstrKind or TraceSpan; part: as in Instr */
    uint8_t chunk, phase;
} TraceEvent;

typedef struct {
    List steps;
    int64_t step;                      /* iteration now running */
    int on;
    TraceEvent *ring;
    int64_t n, max;                    /* recorded so far; places: when n > max the oldest are gone */
} Trace;

/* per_step: about how many events one step has. Steps that are not listed cost nothing, not even memory. */
void trace_open(Trace *t, const Config *cfg, int64_t per_step);
void trace_close(Trace *t);

/* Iteration `step` (from 1) begins: turns recording on or off. */
void trace_step(Trace *t, int64_t step);

/* double t0 = trace_begin(t); ...; trace_end(t, SPAN_DATA, t0); */
static inline double trace_begin(const Trace *t) { return t->on ? now() : 0; }
void trace_end(Trace *t, TraceSpan span, double start);

/* One instruction that the executor has finished: the body of Stage.mark. */
void trace_instr(Trace *t, const Instr *i, double start, double end);

/* Gathers every rank's events on rank 0, which writes run_dir/trace.json; nothing was recorded: no file.
 * Returns 1, or 0 with a reason in why when rank 0 could not write. Collective over g->all. */
int trace_write(const Trace *t, const char *run_dir, Grid *g, char why[WHY]);
#endif
