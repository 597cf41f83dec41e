/* report_timeline -- the report's timeline as data, which the page's script draws: the last recorded step of
 * each pipeline, its ranks' instructions and messages, and the schedule replayed */
#include "base.h"
#include "page.h"
#include "report_data.h"
#include "timeline.h"
#include <math.h>
#include <stdlib.h>

enum { PIPELINES = 24, BYTES = 4 << 20 };  /* most pipelines shown; no further one behind so many bytes */

/* Prints a list of bars: kind, microbatch, chunk, name, ms of start and of length. at: s. */
static void put_bar(FILE *f, int *n, const Instr *i, Span at)
{
    char name[32];
    instr_print(i, name, sizeof name);
    fprintf(f, "%s[\"%s\",%d,%d,\"%s\",%.9g,%.6g]", (*n)++ ? "," : "", instr_info[i->op].letters, i->mb,
            i->chunk, name, 1e3 * at.start, 1e3 * (at.end - at.start));
}

/* Prints a lane: the step on rank lane[k]. */
static void put_lane(FILE *f, const Timeline *t, int64_t step, const PipelineTimes *x, const int *lane, int k)
{
    const TimelineRank *r = &t->rank[lane[k]];
    static const char *const shares[OVERLAPS] = {"under", "context", "expert"};
    char name[64];
    int bars = 0, operations = 0, replayed = 0;
    fprintf(f, "%s{\"rank\":%d,\"at\":\"tp %d cp %d dp %d pp %d\"", k ? ",\n" : "", lane[k],
            r->index[AXIS_TP], r->index[AXIS_CP], r->index[AXIS_DP], r->index[AXIS_PP]);
    for (int i = 0; i < OVERLAPS; i++) {
        Overlap o = timeline_overlap(t, (OverlapKind)i, step, lane[k]);
        fprintf(f, o.bytes > 0 ? ",\"%s\":%.4g" : ",\"%s\":null", shares[i], 100 * o.bytes_under / o.bytes);
    }
    fprintf(f, ",\"bars\":[");
    for (const TraceEvent *e = r->event; e < r->event + r->n; e++) {
        Instr i = timeline_instr(e);
        if (e->step == step && e->kind <= SPAN_FIRST && !instr_info[e->kind].message)
            put_bar(f, &bars, &i, (Span){e->start, e->end});
    }
    fprintf(f, "],\"operations\":[");
    for (const TraceEvent *e = r->event; e < r->event + r->n; e++)
        if (e->step == step && timeline_is_comm(e)) {
            timeline_name(e, name, sizeof name);
            fprintf(f, "%s[\"%s\",\"%s\",%.9g,%.6g,%lld,%lld]", operations++ ? "," : "",
                    timeline_stream_name[timeline_stream(e)], name, 1e3 * e->start, 1e3 * (e->end - e->start),
                    (long long)e->bytes, (long long)(e->kind == SPAN_END + COMM_RECV ? e->moved : e->bytes));
        }
    fprintf(f, "],\"replay\":[");
    for (int i = 0; x->set.rank && i < x->set.rank[k].n; i++)
        if (!instr_info[x->set.rank[k].list[i].op].message)
            put_bar(f, &replayed, &x->set.rank[k].list[i], x->sim.span[k][i]);
    fprintf(f, "]}");
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

static void put_pipeline(FILE *f, const Timeline *t, int64_t step, const int *lane, int p)
{
    PipelineTimes x;
    timeline_times(&x, t, lane, p, step);
    html_put(f, "<script type='application/json' class='lanes'>[");
    for (int k = 0; k < p; k++)
        put_lane(f, t, step, &x, lane, k);
    html_put(f, "]</script>\n");
    put_bubble(f, &x);
    timeline_times_close(&x);
}

/* ---- the card ---- */

static void put_notes(FILE *f, const Timeline *t, int64_t step, int left_out)
{
    Overlap o = timeline_overlap(t, OVERLAP_DATA, step, -1);
    static const struct { OverlapKind kind; const char *name; } messages[] = {
        {OVERLAP_CONTEXT, "context"}, {OVERLAP_EXPERT, "expert"}};
    char b[32];
    html_put(f, "<p class='note'>Numbers in the bars are microbatches; all ranks are on one clock. The lanes "
             "of the schedule replay the same instructions with the same times, and messages that take no "
             "time: what the measured bubble has above theirs is waiting for messages, and work between "
             "instructions. ");
    if (o.bytes > 0)
        html_put(f, "All ranks together: %.0f %% of the %s moved for gradient reductions were moved under "
                 "computation (%.0f %% of their time). ", 100 * o.bytes_under / o.bytes,
                 report_bytes_text(b, o.bytes), 100 * o.seconds_under / fmax(o.seconds, 1e-12));
    for (int i = 0; i < 2; i++) {
        Overlap c = timeline_overlap(t, messages[i].kind, step, -1);
        if (c.bytes > 0)
            html_put(f, "Of the %s moved for the %s group %.0f %% were moved under computation. ",
                     report_bytes_text(b, c.bytes), messages[i].name, 100 * c.bytes_under / c.bytes);
    }
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
            int p = timeline_pipeline(&t, rank, lane), first = lane[0] == rank;
            int fits = shown < PIPELINES && ftell(f) - before < BYTES;
            left_out += first && !fits;
            if (!first || !fits)
                continue;
            snprintf(text, sizeof text, index[AXIS_CP] ? "tp %d dp %d cp %d" : "tp %d dp %d", index[AXIS_TP],
                     index[AXIS_DP], index[AXIS_CP]);
            view_open(f, "pipe", ++shown, text);
            put_pipeline(f, &t, step, lane, p);
            view_close(f);
        }
        html_put(f, "</div>\n");
        put_notes(f, &t, step, left_out);
        card_close(f);
    }
    free(lane);
    timeline_close(&t);
}
