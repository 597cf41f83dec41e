/* A sweep as CSV, as a page with a table that sorts and bars, and its winner as YAML. */
#include "base.h"
#include "chart.h"
#include "sweep.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void csv_number(FILE *f, const char *format, double x)
{
    if (x > 0)
        fprintf(f, format, x);
    fputc(',', f);
}

void sweep_csv(FILE *f, const Sweep *s)
{
    fprintf(f, "tp,sp,pp,v,dp,zero,micro_batch_size,recompute,predicted_ms,measured_ms,bubble,memory_bytes,"
            "tokens_per_second,state\n");
    for (int i = 0; i < s->n; i++) {
        const SweepLayout *l = &s->layout[i];
        fprintf(f, "%d,%d,%d,%d,%d,%s,%d,%s,", l->tp, l->rows, l->pp, l->v, l->dp, layout_zero[l->zero],
                l->micro, layout_recompute[l->recompute]);
        csv_number(f, "%.6g", l->predicted);
        csv_number(f, "%.6g", l->measured);
        if (l->state != LAYOUT_LARGER)
            fprintf(f, "%.4f,%lld,", l->bubble, (long long)l->memory);
        else
            fprintf(f, ",,");
        csv_number(f, "%.6g", layout_tokens_per_second(s, l));
        fputc('"', f);
        for (const char *c = layout_state(l); *c; c++)
            fprintf(f, *c == '"' ? "\"\"" : "%c", *c);
        fprintf(f, "\"\n");
    }
}

void sweep_winner(FILE *f, const Sweep *s)
{
    const SweepLayout *l = sweep_best(s);
    LayoutArg text[LAYOUT_ARGS];
    int n = l ? layout_args(s, l, text) : 0;
    const char *section = "";
    if (l)
        fprintf(f, "# %d ranks, %s %.1f ms a step, %.0f tokens/s\n", s->world, layout_state(l),
                l->measured > 0 ? l->measured : l->predicted, layout_tokens_per_second(s, l));
    for (int i = 0; i < n; i++) {
        char *value = strchr(text[i], '=');
        int train = !strncmp(text[i], "micro", 5), again = !strncmp(text[i], "recompute", 9);
        const char *in = train ? "train" : again ? "recompute" : "parallel";
        if (strcmp(in, section))
            fprintf(f, "%s:\n", section = in);
        fprintf(f, "  %.*s: %s\n", (int)(value - text[i]), text[i], value + 1);
    }
}

static const char style[] =
    ":root{color-scheme:light dark;"
    "--bg:#f7f6f3;--card:#fff;--ink:#1d1c1a;--soft:#66635d;--rule:#e6e3dd;--a:#2563c9;--b:#cf4f0b}\n"
    "@media (prefers-color-scheme:dark){:root{"
    "--bg:#131517;--card:#1b1e21;--ink:#e9e7e2;--soft:#a09d96;--rule:#2d3135;--a:#78a9ff;--b:#ff9a57}}\n"
    "body{margin:0 auto;max-width:88rem;padding:1.5rem;background:var(--bg);color:var(--ink);font:15px/1.5 "
    "system-ui,sans-serif}\n"
    "h1{font-size:1.4rem;margin:0}h2{font-size:1.05rem}p{color:var(--soft);margin:.3rem 0}\n"
    ".card{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:1rem;margin:1rem "
    "0;overflow-x:auto}\n"
    "table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}\n"
    "th,td{padding:.2rem .4rem;text-align:right;border-bottom:1px solid var(--rule);"
    "white-space:nowrap;font-size:.87rem}\n"
    "th{cursor:pointer;user-select:none;vertical-align:bottom;white-space:normal}th:hover{color:var(--a)}\n"
    "th[data-down='1']::after{content:' \\25B2'}th[data-down='0']::after{content:' \\25BC'}\n"
    "td:last-child,th:last-child{text-align:left;white-space:normal;min-width:8rem}\n"
    ".bars text{fill:var(--ink);font:13px system-ui,sans-serif}.bars .p{fill:var(--a)}.bars "
    ".m{fill:var(--b)}\n"
    ".key span{display:inline-block;width:.8em;height:.8em;margin:0 .4em 0 1em;border-radius:2px}\n"
    "pre{margin:0;font-size:.9rem}\n";

static const char script[] =
    "'use strict';\n"
    "for (const th of document.querySelectorAll('th')) th.addEventListener('click', () => {\n"
    "    const body = th.closest('table').tBodies[0], at = th.cellIndex, down = th.dataset.down !== '1';\n"
    "    for (const other of th.parentNode.cells) delete other.dataset.down;\n"
    "    th.dataset.down = down ? '1' : '0';\n"
    "    const key = row => { const t = row.cells[at].textContent, x = parseFloat(t); "
    "return isNaN(x) ? t || '\\uffff' : x; };\n"
    "    [...body.rows].sort((a, b) => { const x = key(a), y = key(b);\n"
    "        return (typeof x === typeof y ? (x > y) - (x < y) : typeof x === 'number' ? -1 : 1) "
    "* (down ? 1 : -1); })\n"
    "        .forEach(row => body.append(row));\n"
    "});\n";

#define BARS 24
#define LINES 2000

static void short_name(const SweepLayout *l, char *text, size_t size)
{
    char chunks[24] = "", recompute[24] = "", sharding[24] = "";
    if (l->v > 1)
        snprintf(chunks, sizeof chunks, " x %d", l->v);
    if (l->recompute != RECOMPUTE_NONE)
        snprintf(recompute, sizeof recompute, ", %s", layout_recompute[l->recompute]);
    if (l->dp > 1)
        snprintf(sharding, sizeof sharding, " %s", layout_zero[l->zero]);
    snprintf(text, size, "tp %d%s, pp %d%s, dp %d%s, micro %d%s", l->tp, l->rows ? " sp" : "", l->pp, chunks,
             l->dp, sharding, l->micro, recompute);
}

static int any_measured(const Sweep *s)
{
    int n = 0;
    for (int i = 0; i < s->n; i++)
        n += s->layout[i].measured > 0;
    return n;
}

/* One layout: predicted above measured, or predicted alone. */
static void bar(FILE *f, const SweepLayout *l, int y, int left, double scale)
{
    double p = l->predicted * scale, m = l->measured * scale;
    char name[128];
    short_name(l, name, sizeof name);
    fprintf(f, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", left - 8, y + 19, name);
    fprintf(f, "<rect class=\"p\" x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\" rx=\"2\"/>\n", left, y + 4,
            p, m > 0 ? 11 : 22);
    if (m > 0)
        fprintf(f, "<rect class=\"m\" x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"11\" rx=\"2\"/>\n", left,
                y + 15, m);
    fprintf(f, "<text x=\"%.1f\" y=\"%d\">%.*f ms%s</text>\n", left + (p > m ? p : m) + 6, y + 19,
            l->predicted < 10 ? 2 : 1, m > 0 ? l->measured : l->predicted, m > 0 ? " measured" : "");
}

/* Layouts [from, to) of the sweep. */
typedef struct { int from, to; } Group;

/* The best of a group; all groups have one scale. */
static void bars(FILE *f, const Sweep *s, Group g)
{
    int n = g.to - g.from < BARS ? g.to - g.from : BARS, left = 400, width = 1080, high = 30;
    double most = 0;
    for (int i = 0; i < s->fit && i < any_measured(s) + BARS; i++) {
        most = s->layout[i].predicted > most ? s->layout[i].predicted : most;
        most = s->layout[i].measured > most ? s->layout[i].measured : most;
    }
    fprintf(f, "<p class=\"key\">time of a step, ms; shorter is better"
            "<span style=\"background:var(--a)\"></span>predicted");
    if (s->layout[g.from].measured > 0)
        fprintf(f, "<span style=\"background:var(--b)\"></span>measured");
    fprintf(f, "</p>\n<svg class=\"bars\" viewBox=\"0 0 %d %d\" width=\"100%%\" role=\"img\" "
            "aria-label=\"ms a step of the best layouts\">\n", width, n * high + 4);
    for (int i = 0; i < n; i++)
        bar(f, &s->layout[g.from + i], i * high, left, (width - left - 150) / most);
    fprintf(f, "</svg>\n");
}

static void cell(FILE *f, const char *format, double x, int known)
{
    fprintf(f, "<td>");
    if (known)
        fprintf(f, format, x);
    fprintf(f, "</td>");
}

static void table_row(FILE *f, const Sweep *s, const SweepLayout *l)
{
    int planned = l->predicted > 0, measured = l->measured > 0;
    fprintf(f, "<tr><td>%d</td><td>%s</td><td>%d</td><td>%d</td><td>%d</td><td>%s</td><td>%d</td><td>%s</td>",
            l->tp, l->rows ? "yes" : "", l->pp, l->v, l->dp, layout_zero[l->zero], l->micro,
            layout_recompute[l->recompute]);
    cell(f, l->predicted < 10 ? "%.3f" : "%.1f", l->predicted, planned);
    cell(f, l->predicted < 10 ? "%.3f" : "%.1f", l->measured, measured);
    cell(f, "%+.1f", measured ? 100 * (l->predicted / l->measured - 1) : 0, measured);
    cell(f, "%.1f", fabs(100 * l->bubble), planned);           /* a rounded nothing has no sign */
    cell(f, "%.2f", (double)l->memory / (1 << 30), planned);
    cell(f, "%.0f", layout_tokens_per_second(s, l), planned);
    fprintf(f, "<td>");
    html_text(f, layout_state(l));
    fprintf(f, "</td></tr>\n");
}

static void table(FILE *f, const Sweep *s, Group g)
{
    static const char *const head[] = {"tensor ranks",
                                       "sequence parallel",
                                       "pipeline ranks",
                                       "chunks a rank",
                                       "data ranks",
                                       "sharding",
                                       "micro batch, sequences",
                                       "recompute",
                                       "predicted ms",
                                       "measured ms",
                                       "predicted off by %",
                                       "bubble %",
                                       "memory GiB a rank",
                                       "tokens/s",
                                       "state"};
    fprintf(f, "<table><thead><tr>");
    for (size_t i = 0; i < sizeof head / sizeof *head; i++)
        fprintf(f, "<th>%s</th>", head[i]);
    fprintf(f, "</tr></thead><tbody>\n");
    for (int i = g.from; i < g.to && i < LINES; i++)
        table_row(f, s, &s->layout[i]);
    fprintf(f, "</tbody></table>\n");
}

/* A measured time says nothing of one that is predicted alone, so the two kinds do not stand in one order. */
static void group(FILE *f, const Sweep *s, const char *title, Group g, int fit)
{
    if (g.from >= g.to)
        return;
    fprintf(f, "<section class=\"card\"><h2>%s</h2>\n", title);
    if (fit > g.from)
        bars(f, s, (Group){g.from, fit < g.to ? fit : g.to});
    fprintf(f, "<p>A click on a column's name sorts by it.%s</p>\n",
            g.to > LINES ? " The first 2000 layouts; all are in the CSV." : "");
    table(f, s, g);
    fprintf(f, "</section>\n");
}

void sweep_page(FILE *f, const Sweep *s)
{
    int measured = any_measured(s);
    fprintf(f,
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
            "content=\"width=device-width\">\n<title>Layouts of %d ranks</title><style>\n%s"
            "</style></head><body>\n<h1>Layouts of %d ranks: ",
            s->world, style, s->world);
    html_text(f, s->path);
    fprintf(
        f,
        "</h1>\n<p>%d legal layouts, %d fit the memory, %d measured. Steps of %lld sequences of %lld tokens; "
        "machine ",
        s->n, s->fit, measured, (long long)s->batch, (long long)s->seq);
    html_text(f, s->machine);
    fprintf(f, ".</p>\n");
    if (s->fit) {
        fprintf(f, "<section class=\"card\"><h2>The fastest, as configuration</h2><pre>");
        sweep_winner(f, s);
        fprintf(f, "</pre></section>\n");
    }
    group(f, s, "Measured, by the time measured", (Group){0, measured}, s->fit);
    group(f, s, "Not measured, by the time predicted", (Group){measured, s->n}, s->fit);
    fprintf(f, "<script>\n%s</script></body></html>\n", script);
}
