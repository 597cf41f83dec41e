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

/* Prints what follows from predicted and from measured times, each in a column of its own.
 *   all  in  bool: also what is known of no layout */
static void rate_cells(FILE *f, char separator, const Sweep *s, const SweepLayout *l, int all)
{
    for (int i = 0; i < RATES; i++)
        for (int kind = 0; kind < TIMES && (all || sweep_has_rate(s, (RateKind)i)); kind++) {
            double x = layout_rate(s, l, (RateKind)i, (TimeKind)kind);
            cell(f, separator, all ? "%.6g" : rate_format[i], x, isfinite(x));
        }
}

void sweep_csv(FILE *f, const Sweep *s)
{
    static const char *const kinds[TIMES] = {"predicted", "measured"};
    fprintf(f, "tp,sp,pp,v,dp,zero,micro_batch_size,recompute,predicted_ms,measured_ms,bubble,memory_bytes,"
               "state,cp,cp_comm_type,ep,etp,overlap_grad_reduce,overlap_param_gather,world,"
               "global_batch_size");
    for (int i = 0; i < RATES * TIMES; i++)
        fprintf(f, ",%s_%s", kinds[i % TIMES], rate_name[i / TIMES]);
    fprintf(f, ",measured_low_ms,measured_high_ms,measured_raw_ms,measured_equal\n");
    for (int i = 0; i < s->n; i++) {
        const SweepLayout *l = &s->layout[i];
        int planned = l->state != LAYOUT_LARGER;
        char kind[24];
        fprintf(f, "%d,%d,%d,%d,%d,%s,%d,%s", l->tp, l->rows, l->pp, l->v, l->dp, layout_zero[l->zero],
                l->micro, layout_recompute[l->recompute]);
        cell(f, ',', "%.6g", l->predicted, l->predicted > 0);
        cell(f, ',', "%.6g", layout_measured(l), layout_measured(l) > 0);
        cell(f, ',', "%.4f", l->bubble, planned);
        cell(f, ',', "%.0f", (double)l->memory, planned);
        fprintf(f, ",\"");
        for (const char *c = layout_state(l); *c; c++)
            fprintf(f, *c == '"' ? "\"\"" : "%c", *c);
        fprintf(f, "\",%d,%s,%d,%d,%d,%d,%d,%lld", l->cp, layout_kind(s, l, kind), l->ep, l->etp,
                overlap_grads(l->overlap), overlap_params(l->overlap), l->world, (long long)l->batch);
        rate_cells(f, ',', s, l, 1);
        cell(f, ',', "%.6g", l->measured.low, layout_measured(l) > 0);
        cell(f, ',', "%.6g", l->measured.high, layout_measured(l) > 0);
        cell(f, ',', "%.6g", l->raw, layout_measured(l) > 0);
        fprintf(f, ",%d\n", l->equal);
    }
}

void sweep_winner(FILE *f, const Sweep *s)
{
    const SweepLayout *l = sweep_best(s);
    LayoutArg text[LAYOUT_ARGS];
    int n = l ? layout_args(s, l, text) : 0;
    const char *section = "";
    if (l) {
        TimeKind kind = layout_measured(l) > 0 ? MEASURED : PREDICTED;
        fprintf(f, "# %d ranks, %s %.1f ms a step of %lld sequences, %.0f tokens/s\n", l->world,
                layout_state(l), kind == MEASURED ? layout_measured(l) : l->predicted, (long long)l->batch,
                layout_rate(s, l, RATE_TOKENS, kind));
    }
    for (int i = 0; i < n; i++) {
        char *value = strchr(text[i], '=');
        int train = !strncmp(text[i], "micro", 5), again = !strncmp(text[i], "recompute", 9);
        const char *in = train ? "train" : again ? "recompute" : "parallel";
        if (strcmp(in, section))
            fprintf(f, "%s:\n", section = in);
        fprintf(f, "  %.*s: %s\n", (int)(value - text[i]), text[i], value + 1);
        if (train && s->weak)
            fprintf(f, "  global_batch_size: %lld\n", (long long)l->batch);
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
    char world[24] = "";
    if (s->nworlds > 1)
        snprintf(world, sizeof world, "%d ranks: ", l->world);
    snprintf(text, size, "%stp %d%s%s%s, pp %d%s, dp %d%s%s%s%s, micro %d%s%s", world, l->tp,
             l->rows ? " sp" : "", cp,
             experts, l->pp, v, l->dp, shards ? " " : "", shards ? layout_zero[l->zero] : "",
             l->overlap ? " overlap " : "", layout_overlap[l->overlap], l->micro,
             again ? ", " : "", again ? layout_recompute[l->recompute] : "");
}

static int any_measured(const Sweep *s)
{
    int n = 0;
    for (int i = 0; i < s->n; i++)
        n += layout_measured(&s->layout[i]) > 0;
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
        fprintf(f, "%s[\"%s\",%.6g,%.6g]", i ? ",\n" : "", name, l->predicted, fmax(0, layout_measured(l)));
    }
    html_put(f, "]</script>\n");
}

static void put_table(FILE *f, const Sweep *s, Group g)
{
    char *text;
    size_t size;
    FILE *rows = xmemstream(&text, &size);
    fprintf(rows, "ranks\ttensor ranks\tsequence parallel\tpipeline ranks\tchunks a rank\tcontext ranks\t"
                  "expert ranks\texpert tensor ranks\tdata ranks\tsharding\toverlap\tmicro batch, "
                  "sequences\trecompute\t"
                  "predicted ms\tmeasured ms\tmeasured fastest launch, ms\t"
                  "measured slowest launch, ms\tas fast as the best\tmeasured ms by the clock\t"
                  "predicted off by %%\tbubble %%\tmemory GiB a rank");
    for (int i = 0; i < RATES; i++)
        if (sweep_has_rate(s, (RateKind)i))
            fprintf(rows, "\tpredicted %s\tmeasured %s", rate_title[i], rate_title[i]);
    fprintf(rows, "\tstate\n");
    for (int i = g.from; i < g.to && i < LINES; i++) {
        const SweepLayout *l = &s->layout[i];
        int planned = l->predicted > 0, measured = layout_measured(l) > 0;
        const char *ms = l->predicted < 10 ? "%.3f" : "%.1f";
        char kind[24];
        fprintf(rows, "%d\t%d\t%s\t%d\t%d\t%d %s\t%d\t%d\t%d\t%s\t%s\t%d\t%s", l->world, l->tp,
                l->rows ? "yes" : "", l->pp, l->v, l->cp, layout_kind(s, l, kind), l->ep, l->etp, l->dp,
                layout_zero[l->zero], layout_overlap[l->overlap], l->micro, layout_recompute[l->recompute]);
        cell(rows, '\t', ms, l->predicted, planned);
        cell(rows, '\t', ms, layout_measured(l), measured);
        cell(rows, '\t', ms, l->measured.low, measured);
        cell(rows, '\t', ms, l->measured.high, measured);
        fprintf(rows, "\t%s", l->equal ? "yes" : "");
        cell(rows, '\t', ms, l->raw, measured);
        cell(rows, '\t', "%+.1f", 100 * (l->predicted / layout_measured(l) - 1), measured);
        cell(rows, '\t', "%.1f", fabs(100 * l->bubble), planned); /* no "-0.0" */
        cell(rows, '\t', "%.2f", (double)l->memory / (1 << 30), planned);
        rate_cells(rows, '\t', s, l, 0);
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
        html_keys(f, keys, layout_measured(&s->layout[g.from]) > 0 ? 2 : 1);
        put_bars(f, s, (Group){g.from, fit < g.to ? fit : g.to});
    }
    html_put(f, "<p class='note'>A click on the name of a column sorts by it.%s</p>\n",
             g.to > LINES ? " The first 2000 layouts; all are in the CSV." : "");
    put_table(f, s, g);
    card_close(f);
}

/* A row for each world: its best layout. */
static void put_worlds(FILE *f, const Sweep *s)
{
    char *text;
    size_t size;
    FILE *rows = xmemstream(&text, &size);
    fprintf(rows, "ranks\tsequences a step\tlegal layouts\tfit\tbest predicted ms\tbest measured ms\t"
            "predicted tokens/s\tpredicted efficiency %%\tmeasured efficiency %%\n");
    for (int i = 0; i < s->nworlds; i++) {
        const SweepWorld *w = &s->worlds[i];
        const SweepLayout *p = sweep_best_of(s, w->world, PREDICTED),
                          *m = sweep_best_of(s, w->world, MEASURED);
        fprintf(rows, "%d\t%lld\t%d\t%d", w->world, (long long)w->batch, w->legal, w->fit);
        cell(rows, '\t', "%.1f", p ? p->predicted : 0, p != NULL);
        cell(rows, '\t', "%.1f", m ? layout_measured(m) : 0, m != NULL);
        cell(rows, '\t', "%.0f", p ? layout_rate(s, p, RATE_TOKENS, PREDICTED) : 0, p != NULL);
        cell(rows, '\t', "%.1f", p ? layout_rate(s, p, RATE_EFFICIENCY, PREDICTED) : 0, p != NULL);
        cell(rows, '\t', "%.1f", m ? layout_rate(s, m, RATE_EFFICIENCY, MEASURED) : 0, m != NULL);
        fputc('\n', rows);
    }
    fclose(rows);
    card_open(f, " wide", "The best layout of each world", s->weak ? "the batch grows with the world"
                                                                     : "the same batch");
    html_table(f, "", text);
    card_close(f);
}

void sweep_page(FILE *f, const Sweep *s)
{
    int measured = any_measured(s);
    char title[160] = "Layouts of ";
    for (int i = 0; i < s->nworlds && strlen(title) < 128; i++)
        snprintf(title + strlen(title), sizeof title - strlen(title), "%s%d", i ? ", " : "",
                 s->worlds[i].world);
    strcat(title, " ranks");
    page_open(f, title);
    html_put(f, "<header><h1>%s: %s</h1>\n<p class='lead'>%d legal layouts, %d fit the memory, %d measured. "
             "Steps of %lld sequences of %lld tokens; machine %s; ranked by %s.</p></header>\n"
             "<div class='grid'>\n", title, s->path, s->n, s->fit, measured, (long long)s->batch,
             (long long)s->seq, s->machine, objective_name[s->objective]);
    if (s->fit) {
        card_open(f, " wide", "The best, as configuration", "");
        html_put(f, "<pre>");
        sweep_winner(f, s);
        html_put(f, "</pre>");
        card_close(f);
    }
    if (s->nworlds > 1)
        put_worlds(f, s);
    put_group(f, s, "Measured, by the time measured", (Group){0, measured}, s->fit);
    put_group(f, s, "Not measured, by the time predicted", (Group){measured, s->n}, s->fit);
    html_put(f, "</div>\n");
    page_close(f);
}
