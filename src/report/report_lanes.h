/* report_lanes -- the drawing of a pipeline's timeline. Inside the report only. */
#ifndef REPORT_LANES_H
#define REPORT_LANES_H
#include "svg.h"
#include "timeline.h"

/* The streams that have thin rows beneath a rank's instructions, in this order. */
enum { LANE_STREAMS = 5 };
extern const TraceStream lane_streams[LANE_STREAMS];

/* What is drawn: one pipeline's ranks in one step. */
typedef struct {
    const Timeline *t;
    int64_t step;
    const int *lane; /* [p] ranks */
    int p;
    /* lanes_look fills these */
    double from, to;               /* s: the step's first and last event, the replay's too */
    double first;                  /* s: the first computation */
    double px;                     /* the width at which an instruction has room for its number */
    int row[STREAMS], rows;        /* which thin row a stream has, -1: none; how many */
    int used[INSTR_KINDS], chunks; /* kinds of instructions; the largest number of chunks on a rank */
    PipelineTimes times;
    int64_t bars; /* lanes_put counts them */
} Picture;

/* Whether the event is of this picture's step, and drawn. */
int lanes_drawn(const Picture *d, const TraceEvent *e);
/* from < to does not hold where nothing was recorded. */
void lanes_look(Picture *d);
/* The drawing. times: filled. */
void lanes_put(FILE *f, Picture *d);
#endif
