/* report_timeline -- the report's timeline: the last recorded step of each pipeline */
#include "base.h"
#include "chart.h"
#include "report_data.h"
#include "report_lanes.h"
#include "schedule_svg.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PIPELINES = 24, BARS = 24000 }; /* most pipelines drawn; no further one after so many bars */

/* ---- words and numbers ---- */

static void put_legend(FILE *f, const Picture *d)
{
    static const Key comm[LANE_STREAMS] = {
        {"tp low", "tensor", NULL}, {"cp low", "context", NULL}, {"ep low", "experts", NULL},
        {"pp low", "messages of the pipeline", NULL}, {"dp low", "reductions, gathers", NULL}};
    Key key[LANE_KEYS + LANE_STREAMS];
    int n = lane_keys(key, d->used, d->chunks);
    for (int i = 0; i < LANE_STREAMS; i++)
        if (d->row[lane_streams[i]] >= 0)
            key[n++] = comm[i];
    html_keys(f, key, n);
}

static void percent(FILE *f, double x)
{
    if (isfinite(x))
        html_put(f, "<td class='n'>%.1f %%</td>", fabs(x) < 5e-4 ? 0 : 100 * x);
    else
        html_put(f, "<td class='n'>n/a</td>");
}

static void put_bubble(FILE *f, const PipelineTimes *x)
{
    html_table(f, "figures", "Bubble|measured|the schedule with these times");
    html_put(f, "<tr><td>of the rank with the longest span (rate)</td>");
    percent(f, x->measured.rate);
    percent(f, x->schedule.rate);
    html_put(f, "</tr>\n<tr><td>of the compute of the whole step (step rate)</td>");
    percent(f, x->measured.step_rate);
    percent(f, x->schedule.step_rate);
    html_put(f, "</tr>\n");
    html_table_end(f);
}

/* Prints a row for each rank: the time of each kind of instruction, and the bytes of each stream. */
static void put_ranks(FILE *f, const Picture *d)
{
    static const InstrKind op[] = {I_F, I_B, I_D, I_W, I_S};
    enum { OPS = sizeof op / sizeof *op };
    int reduces = timeline_overlap(d->t, d->step, -1).bytes > 0, n = 4;
    char t[32], names[256] = "Rank";
    for (int i = 0; i < OPS; i++)
        if (d->used[op[i]])
            n += snprintf(names + n, sizeof names - (size_t)n, "|%s", instr_info[op[i]].letters);
    n += snprintf(names + n, sizeof names - (size_t)n, "|rest of the step");
    for (int i = 0; i < LANE_STREAMS; i++)
        if (d->row[lane_streams[i]] >= 0)
            n += snprintf(names + n, sizeof names - (size_t)n, "|%s, MB",
                          timeline_stream_name[lane_streams[i]]);
    snprintf(names + n, sizeof names - (size_t)n, reduces ? "|reduced under computation" : "");
    html_table(f, "figures", names);
    for (int k = 0; k < d->p; k++) {
        const TimelineRank *r = &d->t->rank[d->lane[k]];
        Overlap o = timeline_overlap(d->t, d->step, d->lane[k]);
        double rest = d->to - d->from, busy[INSTR_KINDS] = {0}, bytes[STREAMS] = {0};
        for (int64_t i = 0; i < r->n; i++)
            if (lanes_drawn(d, &r->event[i])) {
                if (r->event[i].kind <= SPAN_FIRST)
                    busy[r->event[i].kind] += r->event[i].end - r->event[i].start;
                else
                    bytes[timeline_stream(&r->event[i])] += (double)r->event[i].bytes;
            }
        html_put(f, "<tr><td>rank %d</td>", d->lane[k]);
        for (int i = 0; i < OPS; i++) {
            rest -= busy[op[i]];
            if (d->used[op[i]])
                html_put(f, "<td class='n'>%s</td>", report_ms_text(t, 1e3 * busy[op[i]]));
        }
        html_put(f, "<td class='n'>%s</td>", report_ms_text(t, 1e3 * rest));
        for (int i = 0; i < LANE_STREAMS; i++)
            if (d->row[lane_streams[i]] >= 0)
                html_put(f, "<td class='n'>%.2f</td>", bytes[lane_streams[i]] / 1e6);
        if (reduces)
            percent(f, o.bytes > 0 ? o.bytes_under / o.bytes : NAN);
        html_put(f, "</tr>\n");
    }
    html_table_end(f);
}

static void put_pipeline(FILE *f, Picture *d)
{
    lanes_look(d);
    if (!(d->from < d->to)) {
        html_put(f, "<p class='none'>nothing was recorded</p>\n");
        return;
    }
    timeline_times(&d->times, d->t, d->lane, d->p, d->step);
    if (d->times.set.rank)
        d->to = fmax(d->to, d->first + d->times.sim.makespan);
    put_legend(f, d);
    lanes_put(f, d);
    put_bubble(f, &d->times);
    put_ranks(f, d);
    timeline_times_close(&d->times);
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
    int64_t step = timeline_step(&t), bars = 0;
    int *lane = xcalloc((size_t)t.ranks + 1, sizeof *lane), shown = 0, left_out = 0;
    char text[96];
    if (step >= 0) {
        snprintf(text, sizeof text, "iteration %lld, a lane a rank of the pipeline", (long long)step);
        card_open(f, " wide", "Timeline", text);
        html_put(f, "<div class='views'>");
        for (int rank = 0; rank < t.ranks; rank++) {
            const int *index = t.rank[rank].index;
            Picture d = {.t = &t, .step = step, .lane = lane, .p = timeline_pipeline(&t, rank, lane)};
            int fits = shown < PIPELINES && bars < BARS;
            if (lane[0] != rank)
                continue;
            left_out += !fits;
            if (!fits)
                continue;
            snprintf(text, sizeof text, index[AXIS_CP] ? "tp %d dp %d cp %d" : "tp %d dp %d", index[AXIS_TP],
                     index[AXIS_DP], index[AXIS_CP]);
            view_open(f, "pipe", ++shown, text);
            put_pipeline(f, &d);
            view_close(f);
            bars += d.bars;
        }
        html_put(f, "</div>\n");
        put_notes(f, &t, step, left_out);
        card_close(f);
    }
    free(lane);
    timeline_close(&t);
}
