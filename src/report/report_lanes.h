/* report_lanes -- the drawing of a pipeline's timeline. Private to the report. */
#ifndef REPORT_LANES_H
#define REPORT_LANES_H
#include "svg.h"
#include "timeline.h"

/* The streams whose operations are drawn in thin rows beneath a rank's instructions, in this order. */
enum { LANE_STREAMS = 5 };
extern const TraceStream lane_streams[LANE_STREAMS];

/* What is drawn: one pipeline's ranks in one step. */
typedef struct {
    const Timeline *t;
    int64_t step;
    const int *lane;               /* [p] ranks, by pipeline stage */
    int p;
    /* lanes_look fills these */
    double from, to;               /* s: the step's first and last event, with the replay */
    double first;                  /* s: start of the first computation */
    double px;                     /* width of the drawing: an instruction has room for its microbatch */
    int row[STREAMS], rows;        /* the thin row of each stream (-1: none); number of thin rows */
    int used[INSTR_KINDS], chunks; /* bool by kind of instruction; chunks of a rank */
    /* the caller fills it in before lanes_put */
    PipelineTimes times;
    /* lanes_put fills it in */
    int64_t bars;                  /* number of bars drawn */
} Picture;

/* Whether the event belongs to the picture's step and is drawn. */
int lanes_drawn(const Picture *d, const TraceEvent *e);
/* Looks through the events of the step. Afterwards from < to, unless nothing was recorded. */
void lanes_look(Picture *d);
/* Prints the drawing. */
void lanes_put(FILE *f, Picture *d);
#endif
