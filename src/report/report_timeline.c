/* The report's timeline: the last recorded step of every pipeline, drawn and in numbers. */
#include "base.h"
#include "chart.h"
#include "report_data.h"
#include "report_lanes.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PIPELINES = 24, BARS = 24000 };     /* drawn at most; beyond the first pipeline, bars */

/* ---- words and numbers ---- */

static void put_legend(FILE *f, const Picture *d)
{
    static const struct { InstrKind op; const char *name; } compute[] = {
        {I_F, "F forward"}, {I_B, "B backward"}, {I_D, "D backward, input"}, {I_W, "W backward, weights"},
        {I_S, "S optimizer step"}};
    static const char *const comm[STREAMS] = {[STREAM_TP] = "tensor",
                                              [STREAM_CP] = "context",
                                              [STREAM_EP] = "experts",
                                              [STREAM_PP] = "messages of the pipeline",
                                              [STREAM_DP] = "reductions, gathers"};
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
            fprintf(f, "<li><span class=\"dot %s\"></span>%s</li>", instr_info[compute[i].op].letters,
                    compute[i].name);
    if (seen[I_R] || seen[I_G] || seen[I_X] || seen[I_T])
        fprintf(f, "<li><span class=\"dot R\"></span>between them: gradients given to reductions, weights "
                   "gathered</li>");
    fprintf(f, "<li><span class=\"dot idle\"></span>waiting</li>");
    for (int i = 0; i < LANE_STREAMS; i++)
        if (d->row[lane_streams[i]] >= 0)
            fprintf(f, "<li><span class=\"dot low %s\"></span>%s</li>", stream_name[lane_streams[i]],
                    comm[lane_streams[i]]);
    if (chunks)
        fprintf(f, "<li>fainter: every second chunk of a rank</li>");
    fprintf(f, "</ul>");
}

static void percent(FILE *f, double x)
{
    if (isfinite(x))
        fprintf(f, "<td class=\"n\">%.1f %%</td>", fabs(x) < 5e-4 ? 0 : 100 * x);
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
        if (!lanes_drawn(d, e))
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
    for (int i = 0; i < LANE_STREAMS; i++)
        if (d->row[lane_streams[i]] >= 0)
            fprintf(f, "<th class=\"n\">%s, MB</th>", stream_name[lane_streams[i]]);
    fprintf(f, "%s</tr></thead><tbody>\n", reduces ? "<th class=\"n\">reduced under computation</th>" : "");
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
        for (int i = 0; i < LANE_STREAMS; i++)
            if (d->row[lane_streams[i]] >= 0)
                fprintf(f, "<td class=\"n\">%.2f</td>", s.bytes[lane_streams[i]] / 1e6);
        if (reduces)
            percent(f, o.bytes > 0 ? o.bytes_under / o.bytes : NAN);
        fprintf(f, "</tr>\n");
    }
    fprintf(f, "</tbody></table>\n");
}

static void put_pipeline(FILE *f, Picture *d)
{
    lanes_look(d);
    if (!(d->from < d->to)) {
        fprintf(f, "<p class=\"none\">nothing was recorded</p>\n");
        return;
    }
    timeline_times(&d->times, d->t, d->lane, d->p, d->step);
    if (d->times.set.rank)
        d->to = fmax(d->to, d->first + d->times.sim.makespan);
    put_legend(f, d);
    lanes_put(f, d);
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
        fprintf(f, "<input type=\"radio\" name=\"pipe\" id=\"pipe%d\"%s><label for=\"pipe%d\">tp %d", i,
                i ? "" : " checked", i,
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
    fprintf(f, "<p class=\"note\">Numbers in the bars are microbatches; all ranks are on one clock. The "
               "schedule's lanes replay the same instructions with the same times, and messages that take no "
               "time: what the measured bubble has above theirs is waiting for messages, and work between "
               "instructions. ");
    if (o.bytes > 0)
        fprintf(f,
                "All ranks together: %.0f %% of the %s moved for gradient reductions were moved under "
                "computation (%.0f %% of the reductions' time). ",
                100 * o.bytes_under / o.bytes, bytes_text(b, o.bytes),
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
    int *first = xcalloc((size_t)t.ranks + 1, sizeof *first),
        *lane = xcalloc((size_t)t.ranks + 1, sizeof *lane);
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
