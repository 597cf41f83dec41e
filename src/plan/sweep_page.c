/* sweep_page -- a sweep as CSV and as a page of bars and a table, its best layout as YAML */
#include "base.h"
#include "page.h"
#include "sweep.h"
#include <math.h>
#include <string.h>

/* Prints the separator, and the number if it is known. */
static void cell(FILE *f, char separator, const char *format, double x, int known)
{
    fputc(separator, f);
    if (known)
        fprintf(f, format, x);
}

void sweep_csv(FILE *f, const Sweep *s)
{
    fprintf(f, "tp,sp,pp,v,dp,zero,micro_batch_size,recompute,predicted_ms,measured_ms,bubble,memory_bytes,"
               "tokens_per_second,state,cp,cp_comm_type,ep,etp,overlap_grad_reduce,overlap_param_gather\n");
    for (int i = 0; i < s->n; i++) {
        const SweepLayout *l = &s->layout[i];
        int planned = l->state != LAYOUT_LARGER;
        char kind[24];
        double rate = layout_tokens_per_second(s, l);
        fprintf(f, "%d,%d,%d,%d,%d,%s,%d,%s", l->tp, l->rows, l->pp, l->v, l->dp, layout_zero[l->zero],
                l->micro, layout_recompute[l->recompute]);
        cell(f, ',', "%.6g", l->predicted, l->predicted > 0);
        cell(f, ',', "%.6g", l->measured, l->measured > 0);
        cell(f, ',', "%.4f", l->bubble, planned);
        cell(f, ',', "%.0f", (double)l->memory, planned);
        cell(f, ',', "%.6g", rate, rate > 0);
        fprintf(f, ",\"");
        for (const char *c = layout_state(l); *c; c++)
            fprintf(f, *c == '"' ? "\"\"" : "%c", *c);
        fprintf(f, "\",%d,%s,%d,%d,%d,%d\n", l->cp, layout_kind(s, l, kind), l->ep, l->etp,
                overlap_grads(l->overlap), overlap_params(l->overlap));
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

/* ---- The page ---- */

enum { BARS = 24, LINES = 2000 };                      /* most bars; most rows */

static void short_name(const Sweep *s, const SweepLayout *l, char *text, size_t size)
{
    int shards = layout_shards(l), again = l->recompute != RECOMPUTE_NONE;
    char v[24], cp[48] = "", experts[48] = "", kind[24];
    snprintf(v, sizeof v, l->v > 1 ? " x %d" : "", l->v);
    if (l->cp > 1)
        snprintf(cp, sizeof cp, ", cp %d %s", l->cp, layout_kind(s, l, kind));
    if (s->experts)
        snprintf(experts, sizeof experts, ", ep %d etp %d", l->ep, l->etp);
    snprintf(text, size, "tp %d%s%s%s, pp %d%s, dp %d%s%s%s%s, micro %d%s%s", l->tp, l->rows ? " sp" : "", cp,
             experts, l->pp, v, l->dp, shards ? " " : "", shards ? layout_zero[l->zero] : "",
             l->overlap ? " overlap " : "", layout_overlap[l->overlap], l->micro,
             again ? ", " : "", again ? layout_recompute[l->recompute] : "");
}

static int any_measured(const Sweep *s)
{
    int n = 0;
    for (int i = 0; i < s->n; i++)
        n += s->layout[i].measured > 0;
    return n;
}

/* Layouts [from, to) of the sweep. */
typedef struct { int from, to; } Group;

/* Prints the best layouts of a group, which the page's script draws. */
static void put_bars(FILE *f, const Sweep *s, Group g)
{
    int n = g.to - g.from < BARS ? g.to - g.from : BARS;
    html_put(f, "<script type='application/json' class='bars'>[");
    for (int i = 0; i < n; i++) {
        const SweepLayout *l = &s->layout[g.from + i];
        char name[192];
        short_name(s, l, name, sizeof name);
        fprintf(f, "%s[\"%s\",%.6g,%.6g]", i ? ",\n" : "", name, l->predicted, fmax(0, l->measured));
    }
    html_put(f, "]</script>\n");
}

static void put_table(FILE *f, const Sweep *s, Group g)
{
    char *text;
    size_t size;
    FILE *rows = xmemstream(&text, &size);
    fprintf(rows, "tensor ranks\tsequence parallel\tpipeline ranks\tchunks a rank\tcontext ranks\t"
            "expert ranks\texpert tensor ranks\tdata ranks\tsharding\toverlap\tmicro batch, sequences\trecompute\t"
            "predicted ms\tmeasured ms\t"
            "predicted off by %%\tbubble %%\tmemory GiB a rank\ttokens/s\tstate\n");
    for (int i = g.from; i < g.to && i < LINES; i++) {
        const SweepLayout *l = &s->layout[i];
        int planned = l->predicted > 0, measured = l->measured > 0;
        const char *ms = l->predicted < 10 ? "%.3f" : "%.1f";
        char kind[24];
        fprintf(rows, "%d\t%s\t%d\t%d\t%d %s\t%d\t%d\t%d\t%s\t%s\t%d\t%s", l->tp, l->rows ? "yes" : "", l->pp,
                l->v,
                l->cp, layout_kind(s, l, kind), l->ep, l->etp, l->dp, layout_zero[l->zero],
                layout_overlap[l->overlap], l->micro, layout_recompute[l->recompute]);
        cell(rows, '\t', ms, l->predicted, planned);
        cell(rows, '\t', ms, l->measured, measured);
        cell(rows, '\t', "%+.1f", 100 * (l->predicted / l->measured - 1), measured);
        cell(rows, '\t', "%.1f", fabs(100 * l->bubble), planned); /* no "-0.0" */
        cell(rows, '\t', "%.2f", (double)l->memory / (1 << 30), planned);
        cell(rows, '\t', "%.0f", layout_tokens_per_second(s, l), planned);
        fprintf(rows, "\t%s\n", layout_state(l));
    }
    fclose(rows);
    html_table(f, "sorts", text);
}

/* Prints a group: measured layouts, or predicted ones; the two kinds cannot be compared. */
static void put_group(FILE *f, const Sweep *s, const char *title, Group g, int fit)
{
    static const Key keys[] = {{"a", "predicted", NULL}, {"b", "measured", NULL}};
    if (g.from >= g.to)
        return;
    card_open(f, " wide", title, "");
    if (fit > g.from) {
        html_keys(f, keys, s->layout[g.from].measured > 0 ? 2 : 1);
        put_bars(f, s, (Group){g.from, fit < g.to ? fit : g.to});
    }
    html_put(f, "<p class='note'>A click on the name of a column sorts by it.%s</p>\n",
             g.to > LINES ? " The first 2000 layouts; all are in the CSV." : "");
    put_table(f, s, g);
    card_close(f);
}

void sweep_page(FILE *f, const Sweep *s)
{
    int measured = any_measured(s);
    char title[48];
    snprintf(title, sizeof title, "Layouts of %d ranks", s->world);
    page_open(f, title);
    html_put(f, "<header><h1>%s: %s</h1>\n<p class='lead'>%d legal layouts, %d fit the memory, %d measured. "
             "Steps of %lld sequences of %lld tokens; machine %s.</p></header>\n<div class='grid'>\n", title,
             s->path, s->n, s->fit, measured, (long long)s->batch, (long long)s->seq, s->machine);
    if (s->fit) {
        card_open(f, " wide", "The fastest, as configuration", "");
        html_put(f, "<pre>");
        sweep_winner(f, s);
        html_put(f, "</pre>");
        card_close(f);
    }
    put_group(f, s, "Measured, by the time measured", (Group){0, measured}, s->fit);
    put_group(f, s, "Not measured, by the time predicted", (Group){measured, s->n}, s->fit);
    html_put(f, "</div>\n");
    page_close(f);
}
