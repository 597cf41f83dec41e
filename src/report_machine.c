/* The report's picture of the machine at work: memory beside its plan, and the timeline of a step. */
#include "base.h"
#include "chart.h"
#include "report_data.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Memory ---- */

static void memory_row(FILE *f, const char *name, double planned, double used, double most, int total)
{
    char t[32];
    fprintf(f, "<tr%s><td>", total ? " class=\"total\"" : "");
    html_text(f, name);
    fprintf(f, "</td><td class=\"mem\"><div>");
    if (planned > 0)
        fprintf(f, "<span class=\"p\" style=\"width:%.2f%%\"></span>", 100 * planned / most);
    if (used > 0)
        fprintf(f, "<span class=\"u\" style=\"width:%.2f%%\"></span>", 100 * used / most);
    fprintf(f, "</div></td><td class=\"n\">%s</td>", bytes_text(t, planned));
    fprintf(f, "<td class=\"n\">%s</td></tr>\n", bytes_text(t, used));
}

void put_memory(FILE *f, const Report *r)
{
    json_t *memory = json_object_get(r->run, "memory"), *o;
    const char *name;
    double plan = 0, most = 0, resident = r->n ? largest(r->col[C_memory_bytes], r->n) : NAN;
    if (!json_object_size(memory))
        return;
    json_object_foreach(memory, name, o) {
        plan += fmax(0, number_of(o, "planned"));
        most = fmax(most, fmax(number_of(o, "planned"), number_of(o, "used")));
    }
    most = fmax(most, fmax(plan, resident));
    card_open(f, "", "Memory", "of one process, beside its plan");
    fprintf(f, "</div>\n<table><thead><tr><th></th><th></th><th class=\"n\">plan</th>"
               "<th class=\"n\">used</th></tr></thead><tbody>\n");
    json_object_foreach(memory, name, o)
        memory_row(f, name, number_of(o, "planned"), number_of(o, "used"), most, 0);
    memory_row(f, "total, resident", plan, resident, most, 1);
    fprintf(f, "</tbody></table></section>\n");
}

/* ---- Timeline ---- */

/* Compute of one step: the bubble as the contract defines it, from what each rank did between its first and
 * its last piece of compute. */
typedef struct { double first, last, busy; } Lane;

static void put_bubble(FILE *f, const Lane *lane, int ranks, int64_t step)
{
    double busy = 0, cost = 0, first = INFINITY, last = -INFINITY;
    for (int k = 0; k < ranks; k++) {
        busy = fmax(busy, lane[k].busy);
        cost = fmax(cost, lane[k].last - lane[k].first);
        first = fmin(first, lane[k].first);
        last = fmax(last, lane[k].last);
    }
    fprintf(f, "<p class=\"note\">Iteration %lld.", (long long)step);
    if (cost > 0)
        fprintf(f, " Bubble: %.1f %% of the longest rank's span, %.1f %% of the whole step's compute span.",
                100 * (cost - busy) / cost, 100 * (last - first - busy) / (last - first));
    fprintf(f, " F forward, B backward (D and W its halves), R reduce, S optimizer step; numbers are microbatches."
               "</p>\n");
}

static int is_compute(const char *cat) { return strlen(cat) == 1 && strchr("FBDW", *cat); }

void put_timeline(FILE *f, const Report *r)
{
    json_t *events = json_object_get(r->trace, "traceEvents"), *e;
    int64_t step = -1, n = 0, count = (int64_t)json_array_size(events);
    int ranks = 0;
    size_t i;
    /* the last step that was traced */
    json_array_foreach(events, i, e)
        if (!strcmp(text_of(e, "ph"), "X") && !strcmp(text_of(e, "cat"), "S"))
            step = (int64_t)fmax((double)step, number_of(json_object_get(e, "args"), "step"));
    if (step < 0)
        return;
    Bar *bar = xcalloc((size_t)count, sizeof *bar);
    const char **rank_name = xcalloc((size_t)count, sizeof *rank_name);
    Lane *lane = xcalloc((size_t)count, sizeof *lane);
    char (*label)[48] = xcalloc((size_t)count, sizeof *label);
    char (*title)[96] = xcalloc((size_t)count, sizeof *title);
    json_array_foreach(events, i, e) {
        json_t *args = json_object_get(e, "args");
        double pid = number_of(e, "pid"), start = number_of(e, "ts") * 1e-3,
               end = start + number_of(e, "dur") * 1e-3;
        const char *cat = text_of(e, "cat"), *name = text_of(e, "name");
        if (!(pid >= 0 && pid < (double)count))
            continue;
        int k = (int)pid;
        if (!strcmp(text_of(e, "ph"), "M") && !strcmp(name, "process_name"))
            rank_name[k] = text_of(args, "name");
        if (strcmp(text_of(e, "ph"), "X") || number_of(args, "step") != (double)step ||
            number_of(e, "tid") != 0 || !isfinite(start) || !isfinite(end))
            continue;
        ranks = k >= ranks ? k + 1 : ranks;
        if (is_compute(cat)) {
            lane[k].first = lane[k].busy > 0 ? fmin(lane[k].first, start) : start;
            lane[k].last = fmax(lane[k].last, end);
            lane[k].busy += end - start;
            snprintf(label[n], sizeof *label, "%.0f", number_of(args, "microbatch"));
        } else {
            snprintf(label[n], sizeof *label, "%s", cat);
        }
        snprintf(title[n], sizeof *title, "%s: %.3g ms from %.3f ms", name, end - start, start);
        bar[n] = (Bar){start, end, k, cat, label[n], title[n]};
        n++;
    }
    for (int k = 0; k < ranks; k++)
        if (!rank_name[k])
            rank_name[k] = "rank";
    card_open(f, " wide", "Timeline", "ms, one row a rank");
    fprintf(f, "</div>\n");
    chart_timeline(f, bar, n, rank_name, ranks, "ms");
    put_bubble(f, lane, ranks, step);
    fprintf(f, "</section>\n");
    free(bar);
    free(rank_name);
    free(lane);
    free(label);
    free(title);
}
