/* The report's timeline: the last recorded step of every pipeline, a lane a rank, over the schedule that it followed. */
#include "base.h"
#include "chart.h"
#include "report_data.h"
#include "scale.h"
#include "timeline.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LANE = 26, THIN = 6, GAP = 12, REPLAY = 18,  /* px: compute of a rank, one stream of its operations, between ranks */
       MICROBATCH = 15, WIDEST = 20000,             /* px: a short instruction is about this wide, the drawing at most */
       PIPELINES = 24, BARS = 24000 };              /* drawn at most; beyond the first pipeline, bars */

static const TraceStream thin[] = {STREAM_TP, STREAM_CP, STREAM_EP, STREAM_PP, STREAM_DP};
enum { THINS = sizeof thin / sizeof *thin };

/* What is drawn: one pipeline's ranks in one step. */
typedef struct {
    const Timeline *t;
    int64_t step;
    const int *lane;                   /* [p] ranks */
    int p;
    double from, to;                   /* s: the step's first and last event, the replay's too */
    double first;                      /* s: the first computation */
    int row[STREAMS], rows;            /* which thin row a stream has, -1: none; how many */
    PipelineTimes times;
    int64_t bars;
} Picture;

static int drawn(const Picture *d, const TraceEvent *e)
{
    return e->step == d->step && (e->kind <= SPAN_FIRST || timeline_is_comm(e));
}

static void look(Picture *d)
{
    int64_t seen[STREAMS] = {0};
    d->from = d->first = INFINITY;
    d->to = -INFINITY;
    for (int k = 0; k < d->p; k++) {
        const TimelineRank *r = &d->t->rank[d->lane[k]];
        for (int64_t i = 0; i < r->n; i++) {
            const TraceEvent *e = &r->event[i];
            if (!drawn(d, e))
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
    for (int i = 0; i < THINS; i++)
        if (seen[thin[i]])
            d->row[thin[i]] = d->rows++;
}

static int lane_height(const Picture *d) { return LANE + d->rows * THIN + GAP; }
static double at(const Picture *d, double t) { return 1000 * (t - d->from) / (d->to - d->from); }

/* ---- bars ---- */

static void put_rect(FILE *f, Picture *d, const char *css, int chunk, double start, double end, double y, double height,
                     const char *title)
{
    double x = fmax(0, at(d, start)), w = fmin(1000, at(d, end)) - x;
    if (w < 0)
        return;
    fprintf(f, "<rect class=\"%s%s\" x=\"%.3f\" y=\"%.0f\" width=\"%.3f\" height=\"%.0f\"><title>%s</title></rect>\n", css,
            chunk % 2 ? " odd" : "", x, y, fmax(0.02, w), height, title);
    d->bars++;
}

static void put_computes(FILE *f, Picture *d, const TimelineRank *r, double y)
{
    for (int64_t i = 0; i < r->n; i++) {
        const TraceEvent *e = &r->event[i];
        char name[32], title[128];
        if (!drawn(d, e) || e->kind > SPAN_FIRST || instr_info[e->kind].message)
            continue;
        timeline_name(e, name, sizeof name);
        snprintf(title, sizeof title, "%s: %.3f ms from %.3f ms", name, 1e3 * (e->end - e->start), 1e3 * (e->start - d->from));
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
        if (e && (!drawn(d, e) || timeline_stream(e) != s))
            continue;
        if (n && (!e || e->start > end + least)) {
            snprintf(title, sizeof title, n > 1 ? "%s and %lld more: %.3f MB, %.3f ms from %.3f ms" : "%s%.0lld: %.3f MB, %.3f ms "
                     "from %.3f ms", name, (long long)(n - 1), (double)bytes / 1e6, 1e3 * (end - start), 1e3 * (start - d->from));
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
        fprintf(f, "<i class=\"x\" style=\"left:%.3f%%\">%s</i>", 100 * tick[i] / span, tick_text(text, tick[i], step));
    fprintf(f, "<i class=\"xname\">ms</i>\n");
}

static void put_names(FILE *f, const Picture *d)
{
    fprintf(f, "<div class=\"lane-names\">");
    for (int k = 0; k < d->p; k++) {
        const int *index = d->t->rank[d->lane[k]].index;
        fprintf(f, "<b style=\"top:%dpx\" title=\"tp %d cp %d dp %d pp %d\">rank %d", k * lane_height(d) + LANE / 2, index[AXIS_TP],
                index[AXIS_CP], index[AXIS_DP], index[AXIS_PP], d->lane[k]);
        fprintf(f, "</b>");
    }
    if (d->times.set.rank)
        for (int k = 0; k < d->p; k++)
            fprintf(f, "<b class=\"replay\" style=\"top:%dpx\">%s</b>", d->p * lane_height(d) + 22 + k * (REPLAY + 2) + REPLAY / 2,
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
            put_rect(f, d, instr_info[x->op].letters, x->chunk, d->first + s->start, d->first + s->end, y + k * (REPLAY + 2), REPLAY,
                     title);
        }
}

static void put_picture(FILE *f, Picture *d)
{
    int replay = d->times.set.rank ? 22 + d->p * (REPLAY + 2) : 0, height = d->p * lane_height(d) + replay, px = width_of(d);
    fprintf(f, "<div class=\"timeline\">");
    put_names(f, d);
    fprintf(f, "<div class=\"scroll\"><div class=\"plot lanes\" style=\"height:%dpx;min-width:%dpx\">\n"
            "<svg viewBox=\"0 0 1000 %d\" preserveAspectRatio=\"none\">\n", height, px, height);
    for (int k = 0; k < d->p; k++) {
        const TimelineRank *r = &d->t->rank[d->lane[k]];
        int y = k * lane_height(d);
        fprintf(f, "<path class=\"floor\" d=\"M0 %dH1000V%dH0Z\"/>\n", y, y + LANE);
        put_computes(f, d, r, y);
        for (int i = 0; i < THINS; i++)
            if (d->row[thin[i]] >= 0)
                put_operations(f, d, r, thin[i], y + LANE + 1 + d->row[thin[i]] * THIN);
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

/* ---- words and numbers ---- */

static void put_legend(FILE *f, const Picture *d)
{
    static const struct { InstrKind op; const char *name; } compute[] = {
        {I_F, "F forward"}, {I_B, "B backward"}, {I_D, "D backward, input"}, {I_W, "W backward, weights"},
        {I_S, "S optimizer step"}};
    static const char *const comm[STREAMS] = {[STREAM_TP] = "tensor", [STREAM_CP] = "context", [STREAM_EP] = "experts",
                                              [STREAM_PP] = "messages of the pipeline", [STREAM_DP] = "reductions, gathers"};
    int seen[INSTR_KINDS] = {0}, chunks = 0;
    for (int k = 0; k < d->p; k++)
        for (int64_t i = 0; i < d->t->rank[d->lane[k]].n; i++) {
            const TraceEvent *e = &d->t->rank[d->lane[k]].event[i];
            if (e->step == d->step && e->kind <= SPAN_FIRST) {
                seen[e->kind] = 1;
                chunks |= e->chunk % 2;
            }
        }
    fprintf(f, "<ul class=\"legend\">");
    for (size_t i = 0; i < sizeof compute / sizeof *compute; i++)
        if (seen[compute[i].op])
            fprintf(f, "<li><span class=\"dot %s\"></span>%s</li>", instr_info[compute[i].op].letters, compute[i].name);
    for (int i = 0; i < THINS; i++)
        if (d->row[thin[i]] >= 0)
            fprintf(f, "<li><span class=\"dot low %s\"></span>%s</li>", stream_name[thin[i]], comm[thin[i]]);
    if (chunks)
        fprintf(f, "<li>paler: every second chunk of a rank</li>");
    fprintf(f, "</ul>");
}

static void percent(FILE *f, double x)
{
    if (isfinite(x))
        fprintf(f, "<td class=\"n\">%.1f %%</td>", 100 * x);
    else
        fprintf(f, "<td class=\"n\">n/a</td>");
}

static void put_bubble(FILE *f, const Picture *d)
{
    const PipelineTimes *x = &d->times;
    fprintf(f, "<table class=\"figures\"><thead><tr><th>Bubble</th><th class=\"n\">measured</th>"
               "<th class=\"n\">the schedule with these times</th></tr></thead><tbody>\n");
    fprintf(f, "<tr><td>of the rank with the longest span (rate)</td>");
    percent(f, x->measured.rate);
    percent(f, x->schedule.rate);
    fprintf(f, "</tr>\n<tr><td>of the whole step's compute (step rate)</td>");
    percent(f, x->measured.step_rate);
    percent(f, x->schedule.step_rate);
    fprintf(f, "</tr></tbody></table>\n");
}

/* A line a rank: what its time went into, and what it sent. */
typedef struct { double busy[INSTR_KINDS], bytes[STREAMS]; int64_t n[INSTR_KINDS]; } Sums;

static Sums sums_of(const Picture *d, int rank)
{
    Sums s = {{0}, {0}, {0}};
    const TimelineRank *r = &d->t->rank[rank];
    for (int64_t i = 0; i < r->n; i++) {
        const TraceEvent *e = &r->event[i];
        if (!drawn(d, e))
            continue;
        if (e->kind <= SPAN_FIRST) {
            s.busy[e->kind] += e->end - e->start;
            s.n[e->kind]++;
        } else {
            s.bytes[timeline_stream(e)] += (double)e->bytes;
        }
    }
    return s;
}

static void put_ranks(FILE *f, const Picture *d)
{
    static const InstrKind op[] = {I_F, I_B, I_D, I_W, I_S};
    enum { OPS = sizeof op / sizeof *op };
    int used[OPS] = {0}, reduces = timeline_overlap(d->t, d->step, -1).bytes > 0;
    double wall = d->to - d->from;
    char t[32];
    for (int k = 0; k < d->p; k++)
        for (int i = 0; i < OPS; i++)
            used[i] |= sums_of(d, d->lane[k]).n[op[i]] > 0;
    fprintf(f, "<table class=\"figures\"><thead><tr><th>Rank</th>");
    for (int i = 0; i < OPS; i++)
        if (used[i])
            fprintf(f, "<th class=\"n\">%s</th>", instr_info[op[i]].letters);
    fprintf(f, "<th class=\"n\">rest of the step</th>");
    for (int i = 0; i < THINS; i++)
        if (d->row[thin[i]] >= 0)
            fprintf(f, "<th class=\"n\">%s, MB</th>", stream_name[thin[i]]);
    fprintf(f, reduces ? "<th class=\"n\">reduced under computation</th></tr></thead><tbody>\n" : "</tr></thead><tbody>\n");
    for (int k = 0; k < d->p; k++) {
        Sums s = sums_of(d, d->lane[k]);
        Overlap o = timeline_overlap(d->t, d->step, d->lane[k]);
        double rest = wall;
        fprintf(f, "<tr><td>rank %d</td>", d->lane[k]);
        for (int i = 0; i < OPS; i++) {
            rest -= s.busy[op[i]];
            if (used[i])
                fprintf(f, "<td class=\"n\">%s</td>", ms_text(t, 1e3 * s.busy[op[i]]));
        }
        fprintf(f, "<td class=\"n\">%s</td>", ms_text(t, 1e3 * rest));
        for (int i = 0; i < THINS; i++)
            if (d->row[thin[i]] >= 0)
                fprintf(f, "<td class=\"n\">%.2f</td>", s.bytes[thin[i]] / 1e6);
        if (reduces)
            percent(f, o.bytes > 0 ? o.bytes_under / o.bytes : NAN);
        fprintf(f, "</tr>\n");
    }
    fprintf(f, "</tbody></table>\n");
}

static void put_pipeline(FILE *f, Picture *d)
{
    look(d);
    if (!(d->from < d->to)) {
        fprintf(f, "<p class=\"none\">nothing was recorded</p>\n");
        return;
    }
    timeline_times(&d->times, d->t, d->lane, d->p, d->step);
    if (d->times.set.rank)
        d->to = fmax(d->to, d->first + d->times.sim.makespan);
    put_legend(f, d);
    put_picture(f, d);
    put_bubble(f, d);
    put_ranks(f, d);
    timeline_times_close(&d->times);
}

/* ---- the card ---- */

/* The first ranks of the pipelines: those without one of a lower number in theirs. */
static int pipelines(const Timeline *t, int *first)
{
    int n = 0, *lane = xcalloc((size_t)t->ranks + 1, sizeof *lane);
    char *seen = xcalloc((size_t)t->ranks + 1, 1);
    for (int r = 0; r < t->ranks; r++) {
        if (seen[r])
            continue;
        first[n++] = r;
        for (int k = timeline_pipeline(t, r, lane); k-- > 0;)
            seen[lane[k]] = 1;
    }
    free(seen);
    free(lane);
    return n;
}

static void put_choice(FILE *f, const Timeline *t, const int *first, int n)
{
    fprintf(f, "<style>");
    for (int i = 0; i < n; i++)
        fprintf(f, "#pipe%d:checked~.pipe%d{display:block}", i, i);
    fprintf(f, "</style>\n");
    for (int i = 0; i < n; i++) {
        const int *index = t->rank[first[i]].index;
        fprintf(f, "<input type=\"radio\" name=\"pipe\" id=\"pipe%d\"%s><label for=\"pipe%d\">tp %d", i, i ? "" : " checked", i,
                index[AXIS_TP]);
        if (index[AXIS_CP])
            fprintf(f, " cp %d", index[AXIS_CP]);
        fprintf(f, " dp %d</label>\n", index[AXIS_DP]);
    }
}

static void put_notes(FILE *f, const Timeline *t, int64_t step, int left_out)
{
    Overlap o = timeline_overlap(t, step, -1);
    char b[32];
    fprintf(f, "<p class=\"note\">Numbers in the bars are microbatches; all ranks are on one clock. ");
    if (o.bytes > 0)
        fprintf(f, "All ranks together: %.0f %% of the %s moved for gradient reductions were moved under computation "
                "(%.0f %% of the reductions' time). ", 100 * o.bytes_under / o.bytes, bytes_text(b, o.bytes),
                100 * o.seconds_under / fmax(o.seconds, 1e-12));
    if (left_out)
        fprintf(f, "%d more pipelines are in trace.json. ", left_out);
    fprintf(f, "trace.json opens in Perfetto.</p>\n");
}

void put_timeline(FILE *f, const Report *r)
{
    Timeline t;
    timeline_read(&t, r->trace);
    int64_t step = timeline_step(&t), bars = 0;
    if (step < 0) {
        timeline_close(&t);
        return;
    }
    int *first = xcalloc((size_t)t.ranks + 1, sizeof *first), *lane = xcalloc((size_t)t.ranks + 1, sizeof *lane);
    int n = pipelines(&t, first), shown = 0;
    char unit[96];
    snprintf(unit, sizeof unit, "iteration %lld, a lane a rank of the pipeline", (long long)step);
    card_open(f, " wide", "Timeline", unit);
    fprintf(f, "</div>\n<div class=\"views pipes\">");
    /* how many fit is found by drawing: the choice stands before the drawings, so these wait in memory */
    char *text = NULL;
    size_t size;
    FILE *body = open_memstream(&text, &size);
    for (; shown < n && shown < PIPELINES && bars < BARS; shown++) {
        Picture d = {.t = &t, .step = step, .lane = lane, .p = timeline_pipeline(&t, first[shown], lane)};
        fprintf(body, "<div class=\"%s pipe%d\">\n", n > 1 ? "view" : "", shown);
        put_pipeline(body, &d);
        fprintf(body, "</div>\n");
        bars += d.bars;
    }
    fclose(body);
    if (n > 1)
        put_choice(f, &t, first, shown);
    fwrite(text, 1, size, f);
    fprintf(f, "</div>\n");
    put_notes(f, &t, step, n - shown);
    fprintf(f, "</section>\n");
    free(text);
    free(first);
    free(lane);
    timeline_close(&t);
}
