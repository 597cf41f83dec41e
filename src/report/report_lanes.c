/* report_lanes -- a drawing of a pipeline's timeline: a lane for each rank, below them the replay */
#include "report_lanes.h"
#include "base.h"
#include "report_data.h"
#include "schedule_svg.h"
#include <math.h>
#include <stdlib.h>

/* px. Heights: LANE a rank's instructions, THIN one stream of its operations, GAP between ranks,
 * REPLAY a replayed rank. Widths: MICROBATCH an instruction of median length, NARROWEST and WIDEST
 * the drawing. */
enum { LANE = 26, THIN = 6, GAP = 12, REPLAY = 18, MICROBATCH = 15, NARROWEST = 640, WIDEST = 20000 };

const TraceStream lane_streams[LANE_STREAMS] = {STREAM_TP, STREAM_CP, STREAM_EP, STREAM_PP, STREAM_DP};

int lanes_drawn(const Picture *d, const TraceEvent *e)
{
    return e->step == d->step && (e->kind <= SPAN_FIRST || timeline_is_comm(e));
}

void lanes_look(Picture *d)
{
    int64_t seen[STREAMS] = {0}, n = 0, room = 1;
    for (int k = 0; k < d->p; k++)
        room += d->t->rank[d->lane[k]].n;
    double *length = xcalloc((size_t)room, sizeof *length);
    d->from = d->first = INFINITY;
    d->to = -INFINITY;
    for (int k = 0; k < d->p; k++)
        for (int64_t i = 0; i < d->t->rank[d->lane[k]].n; i++) {
            const TraceEvent *e = &d->t->rank[d->lane[k]].event[i];
            if (!lanes_drawn(d, e))
                continue;
            seen[timeline_stream(e)]++;
            if (e->kind > SPAN_FIRST)
                continue;
            d->from = fmin(d->from, e->start);
            d->to = fmax(d->to, e->end);
            d->used[e->kind] = 1;
            d->chunks = e->chunk < d->chunks ? d->chunks : e->chunk + 1;
            if (timeline_is_compute(e)) {
                d->first = fmin(d->first, e->start);
                length[n++] = e->end - e->start;
            }
        }
    for (int s = 0; s < STREAMS; s++)
        d->row[s] = -1;
    for (int i = 0; i < LANE_STREAMS; i++)
        if (seen[lane_streams[i]])
            d->row[lane_streams[i]] = d->rows++;
    d->px = n ? MICROBATCH * (d->to - d->from) / fmax(1e-9, report_median(length, n)) : 0;
    d->px = fmin(fmax(d->px, NARROWEST), WIDEST);
    free(length);
}

/* Times of a timeline (s) as times of the drawing: ms from its beginning. */
static Span place(const Picture *d, double start, double end)
{
    return (Span){1e3 * (start - d->from), 1e3 * (end - d->from)};
}

static void put_computes(const Svg *s, Picture *d, const TimelineRank *r, double y)
{
    for (int64_t i = 0; i < r->n; i++) {
        const TraceEvent *e = &r->event[i];
        Span at = place(d, e->start, e->end);
        char name[32], title[128];
        if (!lanes_drawn(d, e) || e->kind > SPAN_FIRST || instr_info[e->kind].message)
            continue;
        timeline_name(e, name, sizeof name);
        snprintf(title, sizeof title, "%s: %.3f ms from %.3f ms", name, at.end - at.start, at.start);
        lane_bar(s, &(Instr){.op = (uint8_t)e->kind, .chunk = e->chunk, .mb = e->mb}, d->chunks, at, y, LANE,
                 title);
        d->bars++;
    }
}

/* Draws the operations of one stream; those less than 1/4000 of the drawing apart become one bar. */
static void put_operations(const Svg *s, Picture *d, const TimelineRank *r, TraceStream stream, double y)
{
    double start = 0, end = -INFINITY, least = (d->to - d->from) / 4000;
    int64_t n = 0, bytes = 0;
    char name[64] = "", more[32] = "";
    for (int64_t i = 0; i <= r->n; i++) {
        const TraceEvent *e = i < r->n ? &r->event[i] : NULL;
        if (e && (!lanes_drawn(d, e) || timeline_stream(e) != stream))
            continue;
        if (n && (!e || e->start > end + least)) {
            Span at = place(d, start, end);
            if (n > 1)
                snprintf(more, sizeof more, " and %lld more", (long long)(n - 1));
            svg_rect(s, timeline_stream_name[stream], 1, at.start, at.end, y, THIN - 1,
                     "%s%s: %.3f MB, %.3f ms from %.3f ms", name, n > 1 ? more : "", (double)bytes / 1e6,
                     at.end - at.start, at.start);
            d->bars++;
            n = bytes = 0;
        }
        if (!e)
            break;
        if (!n) {
            start = e->start;
            end = e->end;
            timeline_name(e, name, sizeof name);
        }
        n++;
        bytes += e->kind == SPAN_END + COMM_RECV ? e->moved : e->bytes;
        end = fmax(end, e->end);
    }
}

/* Draws the schedule replayed with the measured times, from the first computation on. */
static void put_replay(const Svg *s, Picture *d, double y)
{
    for (int k = 0; k < d->p; k++)
        for (int i = 0; i < d->times.set.rank[k].n; i++) {
            const Instr *x = &d->times.set.rank[k].list[i];
            const Span *at = &d->times.sim.span[k][i];
            char name[32], title[96];
            if (instr_info[x->op].message || at->end <= at->start)
                continue;
            instr_print(x, name, sizeof name);
            snprintf(title, sizeof title, "schedule, %s: %.3f ms", name, 1e3 * (at->end - at->start));
            lane_bar(s, x, d->chunks, place(d, d->first + at->start, d->first + at->end),
                     y + k * (REPLAY + 2), REPLAY, title);
            d->bars++;
        }
}

void lanes_put(FILE *f, Picture *d)
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
    for (int k = 0; k < d->p; k++) {
        const TimelineRank *r = &d->t->rank[d->lane[k]];
        svg_rect(&s, "floor", 1, 0, s.x.hi, k * lane, LANE, NULL);
        put_computes(&s, d, r, k * lane);
        for (int i = 0; i < LANE_STREAMS; i++)
            if (d->row[lane_streams[i]] >= 0)
                put_operations(&s, d, r, lane_streams[i],
                               k * lane + LANE + 1 + d->row[lane_streams[i]] * THIN);
    }
    if (replay)
        put_replay(&s, d, top);
    html_put(f, "</svg></div></div></div>\n");
}
