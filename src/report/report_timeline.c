/* report_timeline -- the report's timeline: the last recorded step of each pipeline, a lane for each rank,
 * below them the schedule replayed */
#include "base.h"
#include "chart.h"
#include "report_data.h"
#include "schedule_svg.h"
#include "timeline.h"
#include <math.h>
#include <stdlib.h>

enum { PIPELINES = 24, BYTES = 4 << 20 };  /* most pipelines drawn; no further one behind so many bytes */

/* px. Heights: LANE a rank's instructions, THIN one stream of its operations, GAP between ranks,
 * REPLAY a replayed rank. Widths: MICROBATCH a mean instruction, NARROWEST and WIDEST the drawing. */
enum { LANE = 26, THIN = 6, GAP = 12, REPLAY = 18, MICROBATCH = 15, NARROWEST = 640, WIDEST = 20000 };

/* The streams whose operations are drawn in thin rows beneath a rank's instructions, in this order. */
enum { THIN_ROWS = 5 };
static const struct { TraceStream stream; Key key; } thin[THIN_ROWS] = {
    {STREAM_TP, {"tp low", "tensor", NULL}},
    {STREAM_CP, {"cp low", "context", NULL}},
    {STREAM_EP, {"ep low", "experts", NULL}},
    {STREAM_PP, {"pp low", "messages of the pipeline", NULL}},
    {STREAM_DP, {"dp low", "reductions, gathers", NULL}}};

/* What is drawn: one pipeline's ranks in one step. */
typedef struct {
    const Timeline *t;
    int64_t step;
    const int *lane;               /* [p] ranks, by pipeline stage */
    int p;
    /* look fills these */
    double from, to;               /* s: the step's first and last event, with the replay */
    double first;                  /* s: start of the first computation */
    double px;                     /* width of the drawing: an instruction has room for its microbatch */
    struct { double busy[INSTR_KINDS], bytes[STREAMS]; } *sum; /* [p] s by kind, bytes by stream */
    int row[STREAMS], rows;        /* the thin row of each stream, from 1 (0: none); number of thin rows */
    int used[INSTR_KINDS], chunks; /* bool by kind of instruction; chunks of a rank */
    PipelineTimes times;
} Picture;

/* The next event of lane k, from event *i on, that is drawn in a stream's row; STREAMS: in any row. NULL:
 * there is none. */
static const TraceEvent *next(const Picture *d, int k, TraceStream s, int64_t *i)
{
    const TimelineRank *r = &d->t->rank[d->lane[k]];
    while (*i < r->n) {
        const TraceEvent *e = &r->event[(*i)++];
        int drawn = e->kind <= SPAN_FIRST ? !instr_info[e->kind].message : timeline_is_comm(e);
        if (e->step == d->step && drawn && (s == STREAMS || s == timeline_stream(e)))
            return e;
    }
    return NULL;
}

/* Looks through the events of the step. Afterwards from < to, unless nothing was recorded. */
static void look(Picture *d)
{
    const TraceEvent *e;
    double busy = 0, n = 0;
    d->from = d->first = INFINITY;
    d->to = -INFINITY;
    d->sum = xcalloc((size_t)d->p, sizeof *d->sum);
    for (int k = 0; k < d->p; k++)
        for (int64_t i = 0; (e = next(d, k, STREAMS, &i));) {
            double length = e->end - e->start;
            if (timeline_is_comm(e)) {
                d->row[timeline_stream(e)] = 1;
                d->sum[k].bytes[timeline_stream(e)] += (double)e->bytes;
                continue;
            }
            d->from = fmin(d->from, e->start);
            d->to = fmax(d->to, e->end);
            d->used[e->kind] = 1;
            d->sum[k].busy[e->kind] += length;
            d->chunks = e->chunk < d->chunks ? d->chunks : e->chunk + 1;
            if (timeline_is_compute(e)) {
                d->first = fmin(d->first, e->start);
                busy += length;
                n++;
            }
        }
    for (int i = 0; i < THIN_ROWS; i++)
        if (d->row[thin[i].stream])
            d->row[thin[i].stream] = ++d->rows;
    d->px = fmin(fmax(MICROBATCH * n * (d->to - d->from) / fmax(1e-9, busy), NARROWEST), WIDEST);
}

/* ---- the drawing ---- */

/* Times of a timeline (s) as times of the drawing: ms from its beginning. */
static Span place(const Picture *d, double start, double end)
{
    return (Span){1e3 * (start - d->from), 1e3 * (end - d->from)};
}

/* Draws the operations of one stream of lane k; those less than 1/4000 of the drawing apart are one bar. */
static void put_operations(const Svg *s, const Picture *d, int k, TraceStream stream, double y)
{
    int64_t i = 0;
    const TraceEvent *e = next(d, k, stream, &i);
    while (e) {
        double start = e->start, end = start, bytes = 0;
        int more = -1;
        char name[64], others[32] = "";
        timeline_name(e, name, sizeof name);
        for (; e && e->start <= end + (more < 0 ? 0 : (d->to - d->from) / 4000); more++) {
            bytes += (double)(e->kind == SPAN_END + COMM_RECV ? e->moved : e->bytes);
            end = fmax(end, e->end);
            e = next(d, k, stream, &i);
        }
        if (more)
            snprintf(others, sizeof others, " and %d more", more);
        Span at = place(d, start, end);
        svg_rect(s, timeline_stream_name[stream], 1, at.start, at.end, y, THIN - 1,
                 "%s%s: %.3f MB, %.6g ms from %.6g ms", name, others, bytes / 1e6, at.end - at.start,
                 at.start);
    }
}

static void put_lane(const Svg *s, const Picture *d, int k, double y)
{
    const TraceEvent *e;
    svg_rect(s, "floor", 1, 0, s->x.hi, y, LANE, NULL);
    for (int64_t i = 0; (e = next(d, k, STREAM_COMPUTE, &i));) {
        Instr x = timeline_instr(e);
        lane_bar(s, &x, d->chunks, place(d, e->start, e->end), y, LANE, " ms");
    }
    for (int i = 0; i < THIN_ROWS; i++)
        if (d->row[thin[i].stream])
            put_operations(s, d, k, thin[i].stream, y + LANE + 1 + (d->row[thin[i].stream] - 1) * THIN);
}

/* Draws the schedule replayed with the measured times, from the first computation on. */
static void put_replay(const Svg *s, const Picture *d, double y)
{
    for (int k = 0; k < d->p; k++)
        for (int i = 0; i < d->times.set.rank[k].n; i++) {
            const Instr *x = &d->times.set.rank[k].list[i];
            Span at = d->times.sim.span[k][i];
            if (!instr_info[x->op].message && at.end > at.start)
                lane_bar(s, x, d->chunks, place(d, d->first + at.start, d->first + at.end),
                         y + k * (REPLAY + 2), REPLAY, " ms");
        }
}

static void put_lanes(FILE *f, const Picture *d)
{
    int lane = LANE + d->rows * THIN + GAP, top = d->p * lane + 22, replay = d->times.set.rank != NULL;
    int height = replay ? top + d->p * (REPLAY + 2) : d->p * lane;
    Svg s = {f, {0, 1e3 * (d->to - d->from), 0}, 0, 100, "%", d->px};
    html_put(f, "<div class='timeline'><div class='lane-names'>");
    for (int k = 0; k < d->p; k++) {
        const int *index = d->t->rank[d->lane[k]].index;
        html_put(f, "<b style='top:%dpx' title='tp %d cp %d dp %d pp %d'>rank %d</b>", k * lane + LANE / 2,
                 index[AXIS_TP], index[AXIS_CP], index[AXIS_DP], index[AXIS_PP], d->lane[k]);
    }
    if (replay)
        html_put(f, "<b style='top:%dpx'>schedule</b>", top + REPLAY / 2);
    html_put(f, "</div><div class='scroll'><div class='plot lanes' style='height:%dpx;min-width:%.0fpx'>\n"
             "<svg>\n", height, d->px);
    svg_axis(&s, 0, height, 0, "ms");
    for (int k = 0; k < d->p; k++)
        put_lane(&s, d, k, k * lane);
    if (replay)
        put_replay(&s, d, top);
    html_put(f, "</svg></div></div></div>\n");
}

/* ---- words and numbers ---- */

static void put_legend(FILE *f, const Picture *d)
{
    Key key[LANE_KEYS + THIN_ROWS];
    int n = lane_keys(key, d->used, d->chunks);
    for (int i = 0; i < THIN_ROWS; i++)
        if (d->row[thin[i].stream])
            key[n++] = thin[i].key;
    html_keys(f, key, n);
}

static const char *percent(char t[32], double x)
{
    snprintf(t, 32, isfinite(x) ? "%.1f %%" : "n/a", fabs(x) < 5e-4 ? 0 : 100 * x);
    return t;
}

static void put_bubble(FILE *f, const PipelineTimes *x)
{
    char t[4][32];
    html_table(f, "figures", xasprintf("Bubble\tmeasured\tthe schedule with these times\n"
               "of the rank with the longest span (rate)\t%s\t%s\n"
               "of the compute of the whole step (step rate)\t%s\t%s\n",
               percent(t[0], x->measured.rate), percent(t[1], x->schedule.rate),
               percent(t[2], x->measured.step_rate), percent(t[3], x->schedule.step_rate)));
}

/* Prints a row for each rank: the time of each kind of instruction, and the bytes of each stream. */
static void put_ranks(FILE *f, const Picture *d)
{
    static const InstrKind op[] = {I_F, I_B, I_D, I_W, I_S};
    enum { OPS = sizeof op / sizeof *op };
    int reduces = timeline_overlap(d->t, d->step, -1).bytes > 0;
    char t[32], *text;
    size_t size;
    FILE *rows = xmemstream(&text, &size);
    fprintf(rows, "Rank");
    for (int i = 0; i < OPS; i++)
        if (d->used[op[i]])
            fprintf(rows, "\t%s", instr_info[op[i]].letters);
    fprintf(rows, "\trest of the step");
    for (int i = 0; i < THIN_ROWS; i++)
        if (d->row[thin[i].stream])
            fprintf(rows, "\t%s, MB", timeline_stream_name[thin[i].stream]);
    fprintf(rows, reduces ? "\treduced under computation\n" : "\n");
    for (int k = 0; k < d->p; k++) {
        Overlap o = timeline_overlap(d->t, d->step, d->lane[k]);
        double rest = 1e3 * (d->to - d->from);
        fprintf(rows, "rank %d", d->lane[k]);
        for (int i = 0; i < OPS; i++) {
            rest -= 1e3 * d->sum[k].busy[op[i]];
            if (d->used[op[i]])
                fprintf(rows, "\t%s", report_ms_text(t, 1e3 * d->sum[k].busy[op[i]]));
        }
        fprintf(rows, "\t%s", report_ms_text(t, rest));
        for (int i = 0; i < THIN_ROWS; i++)
            if (d->row[thin[i].stream])
                fprintf(rows, "\t%.2f", d->sum[k].bytes[thin[i].stream] / 1e6);
        if (reduces)
            fprintf(rows, "\t%s", percent(t, o.bytes > 0 ? o.bytes_under / o.bytes : NAN));
        fprintf(rows, "\n");
    }
    fclose(rows);
    html_table(f, "figures", text);
}

static void put_pipeline(FILE *f, Picture *d)
{
    look(d);
    timeline_times(&d->times, d->t, d->lane, d->p, d->step);
    if (d->times.set.rank)
        d->to = fmax(d->to, d->first + d->times.sim.makespan);
    if (d->from < d->to) {
        put_legend(f, d);
        put_lanes(f, d);
        put_bubble(f, &d->times);
        put_ranks(f, d);
    } else {
        html_put(f, "<p class='none'>nothing was recorded</p>\n");
    }
    timeline_times_close(&d->times);
    free(d->sum);
}

/* ---- the card ---- */

static void put_notes(FILE *f, const Timeline *t, int64_t step, int left_out)
{
    Overlap o = timeline_overlap(t, step, -1);
    char b[32];
    html_put(f, "<p class='note'>Numbers in the bars are microbatches; all ranks are on one clock. The lanes "
             "of the schedule replay the same instructions with the same times, and messages that take no "
             "time: what the measured bubble has above theirs is waiting for messages, and work between "
             "instructions. ");
    if (o.bytes > 0)
        html_put(f, "All ranks together: %.0f %% of the %s moved for gradient reductions were moved under "
                 "computation (%.0f %% of their time). ", 100 * o.bytes_under / o.bytes,
                 report_bytes_text(b, o.bytes), 100 * o.seconds_under / fmax(o.seconds, 1e-12));
    if (left_out)
        html_put(f, "%d more pipelines are in trace.json. ", left_out);
    html_put(f, "trace.json opens in Perfetto.</p>\n");
}

void report_put_timeline(FILE *f, const Report *r)
{
    Timeline t;
    timeline_read(&t, r->trace);
    int64_t step = timeline_step(&t), before = ftell(f);
    int *lane = xcalloc((size_t)t.ranks + 1, sizeof *lane), shown = 0, left_out = 0;
    char text[96];
    snprintf(text, sizeof text, "iteration %lld, a lane a rank of the pipeline", (long long)step);
    if (step >= 0) {
        card_open(f, " wide", "Timeline", text);
        html_put(f, "<div class='views'>");
        for (int rank = 0; rank < t.ranks; rank++) {
            const int *index = t.rank[rank].index;
            Picture d = {.t = &t, .step = step, .lane = lane, .p = timeline_pipeline(&t, rank, lane)};
            int first = lane[0] == rank, fits = shown < PIPELINES && ftell(f) - before < BYTES;
            left_out += first && !fits;
            if (!first || !fits)
                continue;
            snprintf(text, sizeof text, index[AXIS_CP] ? "tp %d dp %d cp %d" : "tp %d dp %d", index[AXIS_TP],
                     index[AXIS_DP], index[AXIS_CP]);
            view_open(f, "pipe", ++shown, text);
            put_pipeline(f, &d);
            view_close(f);
        }
        html_put(f, "</div>\n");
        put_notes(f, &t, step, left_out);
        card_close(f);
    }
    free(lane);
    timeline_close(&t);
}
