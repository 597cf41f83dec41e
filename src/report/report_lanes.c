/* The drawing of a pipeline's timeline: a lane a rank, over the schedule that it followed. */
#include "base.h"
#include "chart.h"
#include "report_data.h"
#include "report_lanes.h"
#include "scale.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LANE = 26, THIN = 6, GAP = 12, REPLAY = 18,  /* px: compute of a rank, one stream of its operations,
      between ranks */
       MICROBATCH = 15, WIDEST = 20000 };           /* px: a short instruction is about this wide,
           the drawing at most */

const TraceStream lane_streams[LANE_STREAMS] = {STREAM_TP, STREAM_CP, STREAM_EP, STREAM_PP, STREAM_DP};

int lanes_drawn(const Picture *d, const TraceEvent *e)
{
    return e->step == d->step && (e->kind <= SPAN_FIRST || timeline_is_comm(e));
}

void lanes_look(Picture *d)
{
    int64_t seen[STREAMS] = {0};
    d->from = d->first = INFINITY;
    d->to = -INFINITY;
    for (int k = 0; k < d->p; k++) {
        const TimelineRank *r = &d->t->rank[d->lane[k]];
        for (int64_t i = 0; i < r->n; i++) {
            const TraceEvent *e = &r->event[i];
            if (!lanes_drawn(d, e))
                continue;
            if (e->kind <= SPAN_FIRST) {
                d->from = fmin(d->from, e->start);
                d->to = fmax(d->to, e->end);
                d->first = timeline_is_compute(e) ? fmin(d->first, e->start) : d->first;
            }
            seen[timeline_stream(e)]++;
        }
    }
    for (int s = 0; s < STREAMS; s++)
        d->row[s] = -1;
    for (int i = 0; i < LANE_STREAMS; i++)
        if (seen[lane_streams[i]])
            d->row[lane_streams[i]] = d->rows++;
}

static int lane_height(const Picture *d) { return LANE + d->rows * THIN + GAP; }
static double at(const Picture *d, double t) { return 1000 * (t - d->from) / (d->to - d->from); }

/* ---- bars ---- */

static void put_rect(FILE *f, Picture *d, const char *css, int chunk, double start, double end, double y,
                     double height, const char *title)
{
    double x = fmax(0, at(d, start)), w = fmin(1000, at(d, end)) - x;
    if (w < 0)
        return;
    fprintf(f,
            "<rect class=\"%s%s\" x=\"%.3f\" y=\"%.0f\" width=\"%.3f\" "
            "height=\"%.0f\"><title>%s</title></rect>\n",
            css, chunk % 2 ? " odd" : "", x, y, fmax(0.02, w), height, title);
    d->bars++;
}

static void put_computes(FILE *f, Picture *d, const TimelineRank *r, double y)
{
    for (int64_t i = 0; i < r->n; i++) {
        const TraceEvent *e = &r->event[i];
        char name[32], title[128];
        if (!lanes_drawn(d, e) || e->kind > SPAN_FIRST || instr_info[e->kind].message)
            continue;
        timeline_name(e, name, sizeof name);
        snprintf(title, sizeof title, "%s: %.3f ms from %.3f ms", name, 1e3 * (e->end - e->start),
                 1e3 * (e->start - d->from));
        put_rect(f, d, instr_info[e->kind].letters, e->chunk, e->start, e->end, y, LANE, title);
    }
}

/* Operations of one stream; those that the eye could not part become one bar. */
static void put_operations(FILE *f, Picture *d, const TimelineRank *r, TraceStream s, double y)
{
    double start = 0, end = -INFINITY, least = (d->to - d->from) / 4000;
    int64_t n = 0, bytes = 0;
    char name[64] = "", title[192];
    for (int64_t i = 0; i <= r->n; i++) {
        const TraceEvent *e = i < r->n ? &r->event[i] : NULL;
        if (e && (!lanes_drawn(d, e) || timeline_stream(e) != s))
            continue;
        if (n && (!e || e->start > end + least)) {
            int k = snprintf(title, sizeof title, "%s", name);
            if (n > 1)
                k += snprintf(title + k, sizeof title - (size_t)k, " and %lld more", (long long)(n - 1));
            snprintf(title + k, sizeof title - (size_t)k, ": %.3f MB, %.3f ms from %.3f ms",
                     (double)bytes / 1e6, 1e3 * (end - start), 1e3 * (start - d->from));
            put_rect(f, d, stream_name[s], 0, start, end, y, THIN - 1, title);
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

/* Microbatch numbers of what is wide enough; px: the drawing's width at least. */
static void put_number(FILE *f, const Picture *d, const TraceEvent *e, double top, double px)
{
    char text[16];
    int digits = snprintf(text, sizeof text, "%d", e->mb);
    if ((at(d, e->end) - at(d, e->start)) / 1000 * px >= 6.5 * digits + 3)
        fprintf(f, "<i class=\"tag %s\" style=\"left:%.3f%%;top:%.0fpx\">%s</i>", instr_info[e->kind].letters,
                (at(d, e->start) + at(d, e->end)) / 20, top, text);
}

/* The width at which a short instruction can carry its number; 0: any. */
static int width_of(const Picture *d)
{
    double *length, px;
    int64_t n = 0, room = 0;
    for (int k = 0; k < d->p; k++)
        room += d->t->rank[d->lane[k]].n;
    length = xcalloc((size_t)room + 1, sizeof *length);
    for (int k = 0; k < d->p; k++)
        for (int64_t i = 0; i < d->t->rank[d->lane[k]].n; i++) {
            const TraceEvent *e = &d->t->rank[d->lane[k]].event[i];
            if (e->step == d->step && timeline_is_compute(e))
                length[n++] = e->end - e->start;
        }
    px = n ? MICROBATCH * (d->to - d->from) / fmax(1e-9, median(length, n)) : 0;
    free(length);
    return px < 900 ? 0 : px < WIDEST ? (int)px : WIDEST;
}

static void put_axis(FILE *f, const Picture *d, int px)
{
    double tick[12], step, span = 1e3 * (d->to - d->from);
    char text[32];
    int many = px > 2000 ? 12 : 6, n = scale_ticks((Scale){0, span, 0}, many, tick, &step);
    for (int i = 0; i < n && i < 12; i++)
        fprintf(f, "<i class=\"x\" style=\"left:%.3f%%\">%s</i>", 100 * tick[i] / span,
                axis_text(text, tick[i], step, span));
    fprintf(f, "<i class=\"xname\">ms</i>\n");
}

static void put_names(FILE *f, const Picture *d)
{
    fprintf(f, "<div class=\"lane-names\">");
    for (int k = 0; k < d->p; k++) {
        const int *index = d->t->rank[d->lane[k]].index;
        fprintf(f, "<b style=\"top:%dpx\" title=\"tp %d cp %d dp %d pp %d\">rank %d",
                k * lane_height(d) + LANE / 2, index[AXIS_TP], index[AXIS_CP], index[AXIS_DP], index[AXIS_PP],
                d->lane[k]);
        fprintf(f, "</b>");
    }
    if (d->times.set.rank)
        for (int k = 0; k < d->p; k++)
            fprintf(f, "<b class=\"replay\" style=\"top:%dpx\">%s</b>",
                    d->p * lane_height(d) + 22 + k * (REPLAY + 2) + REPLAY / 2,
                    k ? "" : "schedule");
    fprintf(f, "</div>");
}

/* The replay of the schedule with the measured times, from the moment of the first instruction. */
static void put_replay(FILE *f, Picture *d, double y)
{
    for (int k = 0; k < d->p; k++)
        for (int i = 0; i < d->times.set.rank[k].n; i++) {
            const Instr *x = &d->times.set.rank[k].list[i];
            const Span *s = &d->times.sim.span[k][i];
            char name[32], title[96];
            if (instr_info[x->op].message || s->end <= s->start)
                continue;
            instr_print(x, name, sizeof name);
            snprintf(title, sizeof title, "schedule, %s: %.3f ms", name, 1e3 * (s->end - s->start));
            put_rect(f, d, instr_info[x->op].letters, x->chunk, d->first + s->start, d->first + s->end,
                     y + k * (REPLAY + 2), REPLAY,
                     title);
        }
}

void lanes_put(FILE *f, Picture *d)
{
    int replay = d->times.set.rank ? 22 + d->p * (REPLAY + 2) : 0, height = d->p * lane_height(d) + replay,
        px = width_of(d);
    fprintf(f, "<div class=\"timeline\">");
    put_names(f, d);
    fprintf(f, "<div class=\"scroll\"><div class=\"plot lanes\" style=\"height:%dpx;min-width:%dpx\">\n"
            "<svg viewBox=\"0 0 1000 %d\" preserveAspectRatio=\"none\">\n", height, px, height);
    for (int k = 0; k < d->p; k++) {
        const TimelineRank *r = &d->t->rank[d->lane[k]];
        int y = k * lane_height(d);
        fprintf(f, "<path class=\"floor\" d=\"M0 %dH1000V%dH0Z\"/>\n", y, y + LANE);
        put_computes(f, d, r, y);
        for (int i = 0; i < LANE_STREAMS; i++)
            if (d->row[lane_streams[i]] >= 0)
                put_operations(f, d, r, lane_streams[i], y + LANE + 1 + d->row[lane_streams[i]] * THIN);
    }
    if (replay)
        put_replay(f, d, d->p * lane_height(d) + 22);
    fprintf(f, "</svg>\n");
    for (int k = 0; k < d->p; k++)
        for (int64_t i = 0; i < d->t->rank[d->lane[k]].n; i++) {
            const TraceEvent *e = &d->t->rank[d->lane[k]].event[i];
            if (e->step == d->step && timeline_is_compute(e))
                put_number(f, d, e, k * lane_height(d) + LANE / 2.0, px ? px : 900);
        }
    put_axis(f, d, px);
    fprintf(f, "</div></div></div>\n");
}
