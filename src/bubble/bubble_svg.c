/* A bubble table as a drawing of its own, one column that a telephone can show: a panel for every p and m
 * that has several pipelines (or for every row of a file), a bar a pipeline; those that are alone in theirs
 * share a panel. */
#include "bubble.h"
#include "base.h"
#include "chart.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    WIDTH = 440,
    GAP = 14,
    LEFT = 128,
    ROW = 22,
    BAR = 14,
    LONGER = 15,
    TITLE = 26,
    AXIS = 44,
    LETTERS = 18
};

/* What the bars and marks stand for. */
static const struct { const char *name, *shape; } marks[] = {
    {"simulated", "<rect class=\"sim\" x=\"-9\" y=\"-7\" width=\"18\" height=\"14\"/>"},
    {"measured", "<circle class=\"meas\" r=\"4.5\"/>"},
    {"closed form", "<path class=\"closed\" d=\"M0 -9V9\"/>"},
    {"published", "<path class=\"publ\" d=\"M0 -6L6 0L0 6L-6 0Z\"/>"},
};
enum { SIMULATED, MEASURED, CLOSED, PUBLISHED, MARKS };

/* mixed: what parts the bars beside their kind, and so stands beside them: p and m, or the label too */
typedef struct { int first, n; enum { ALIKE, SIZES, LABELS } mixed; } Panel;

/* The quantity that is drawn: where values are published, theirs; else what a step loses. */
static int by_rate(const Table *t)
{
    for (int i = 0; i < t->n; i++)
        if (isfinite(t->cell[i].published))
            return 1;
    return 0;
}

static double value_of(const Cell *c, int mark, int rate)
{
    const Rates r[MARKS] = {c->simulated, c->measured, c->closed_form, {c->published, NAN}};
    return rate ? r[mark].rate : r[mark].step_rate;
}

static int together(const Cell *a, const Cell *b)
{
    if (a->label || b->label)
        return a->label && b->label && !strcmp(a->label, b->label) && a->shape.p == b->shape.p &&
               a->shape.m == b->shape.m;
    return a->shape.p == b->shape.p && a->shape.m == b->shape.m;
}

static int one_label(const Cell *a, const Cell *b)
{
    return a->label && b->label ? !strcmp(a->label, b->label) : !a->label && !b->label;
}

/* Neighbours in the table that belong together. Panels of one bar that follow each other become one: first
 * those of one label, then what is left. Returns their number; the caller frees. */
static int find_panels(const Table *t, Panel **panel)
{
    int n = 0, kept = 0;
    Panel *all = *panel = xcalloc((size_t)t->n + 1, sizeof *all);
    for (int i = 0; i < t->n; i++) {
        if (!i || !together(&t->cell[i], &t->cell[i - 1]))
            all[n++] = (Panel){i, 0, ALIKE};
        all[n - 1].n++;
    }
    for (int how = SIZES; how <= LABELS; how++, n = kept, kept = 0)
        for (int i = 0; i < n; i++) {
            Panel *last = kept ? &all[kept - 1] : NULL;
            int joins = last && all[i].n == 1 && (last->n == 1 || (int)last->mixed == how) &&
                        (how == LABELS || one_label(&t->cell[last->first], &t->cell[all[i].first]));
            if (joins) {
                last->n++;
                last->mixed = how;
            } else {
                all[kept++] = all[i];
            }
        }
    return n;
}

static double longest_of(const Table *t, int rate)
{
    double most = 0.01;
    for (int i = 0; i < t->n; i++)
        for (int k = 0; k < MARKS; k++)
            if (isfinite(value_of(&t->cell[i], k, rate)))
                most = fmax(most, value_of(&t->cell[i], k, rate));
    return most;
}

/* A step of the axis: 1, 2 or 5 times a power of ten. */
static double nice(double least)
{
    double ten = pow(10, floor(log10(least)));
    return least <= ten ? ten : least <= 2 * ten ? 2 * ten : least <= 5 * ten ? 5 * ten : 10 * ten;
}

static void put_mark(FILE *f, int mark, double x, double y)
{
    fprintf(f, "<g transform=\"translate(%.1f %.1f)\">%s</g>\n", x, y, marks[mark].shape);
}

static void put_axis(FILE *f, double x0, double y0, double height, double most, double scale)
{
    double step = nice(most / 5);
    for (int k = 0; k * step <= most * (1 + 1e-9); k++)
        fprintf(f,
                "<path class=\"tick\" d=\"M%.1f %.1fV%.1f\"/>\n<text class=\"t\" x=\"%.1f\" "
                "y=\"%.1f\">%g</text>\n",
                x0 + k * step * scale, y0, y0 + height + 4, x0 + k * step * scale, y0 + height + 17,
                100 * k * step);
    fprintf(f, "<text class=\"t\" x=\"%.1f\" y=\"%.1f\">bubble, %%</text>\n", x0 + most * scale / 2,
            y0 + height + 32);
}

/* A pipeline's own name; in a panel of several kinds with what parts it from the others. On the heap. */
static char *row_name(const Cell *c, int mixed)
{
    char kind[32], *name = c->shape.kind == SCHEDULE_INTERLEAVED ? xasprintf("interleaved v%d", c->shape.v)
                                                                 : xstrdup(bubble_name(c, kind));
    if (mixed) {
        int told = mixed == LABELS && c->label;
        char *more = xasprintf("%s%s%s, p %d, m %d", told ? c->label : "", told ? ": " : "", name, c->shape.p,
                               c->shape.m);
        free(name);
        name = more;
    }
    return name;
}

/* Lines of a row's name are LONGER px apart. */
static double row_height(const Cell *c, int mixed)
{
    char *name = row_name(c, mixed);
    double height = ROW + LONGER * (svg_text(NULL, "r", 0, 0, 12, LEFT - 4, name) - 1);
    free(name);
    return height;
}

static void put_row(FILE *f, const Cell *c, int rate, int mixed, double x0, double top, double scale)
{
    char *name = row_name(c, mixed);
    int lines = svg_text(NULL, "r", 0, 0, 12, LEFT - 4, name);
    double y = top + row_height(c, mixed) / 2;
    double simulated = value_of(c, SIMULATED, rate);
    svg_text(f, "r", x0 - 6, y + 4 - 8.1 * (lines - 1), 12, LEFT - 4, name);
    fprintf(f, "<rect class=\"sim\" x=\"%.1f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\"><title>", x0,
            y - BAR / 2.0, fmax(simulated * scale, 1), BAR);
    html_text(f, name);
    fprintf(f, " p %d v %d m %d: simulated %.2f %%", c->shape.p, c->shape.v, c->shape.m, 100 * simulated);
    for (int k = MEASURED; k < MARKS; k++)
        if (isfinite(value_of(c, k, rate)))
            fprintf(f, ", %s %.2f %%", marks[k].name, 100 * value_of(c, k, rate));
    fprintf(f, "</title></rect>\n");
    for (int k = CLOSED; k < MARKS; k++)
        if (isfinite(value_of(c, k, rate)))
            put_mark(f, k, x0 + value_of(c, k, rate) * scale, y);
    if (isfinite(value_of(c, MEASURED, rate)))
        put_mark(f, MEASURED, x0 + value_of(c, MEASURED, rate) * scale, y);
    free(name);
}

/* The title of a panel, on the heap. */
static char *panel_title(const Table *t, const Panel *p)
{
    const Cell *first = &t->cell[p->first];
    if (p->mixed)
        return xstrdup(p->mixed == SIZES && first->label ? first->label
                                                         : "One pipeline a number of ranks and microbatches");
    return xasprintf("%s%sp = %d, m = %d", first->label ? first->label : "", first->label ? ": " : "",
                     first->shape.p, first->shape.m);
}

static double panel_height(const Table *t, const Panel *p)
{
    char *title = panel_title(t, p);
    double height = LETTERS * (svg_text(NULL, "p", 0, 0, 13, WIDTH - 2 * GAP, title) - 1) + TITLE + AXIS;
    for (int i = 0; i < p->n; i++)
        height += row_height(&t->cell[p->first + i], p->mixed);
    free(title);
    return height;
}

static void put_panel(FILE *f, const Table *t, const Panel *p, int rate, double y, double most)
{
    double x0 = GAP + LEFT, scale = (WIDTH - x0 - 24) / most, height = 0;
    char *title = panel_title(t, p);
    y += LETTERS * (svg_text(f, "p", GAP, y + 14, 13, WIDTH - 2 * GAP, title) - 1) + TITLE;
    for (int i = 0; i < p->n; i++)
        height += row_height(&t->cell[p->first + i], p->mixed);
    fprintf(f, "<rect class=\"lane\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n", x0, y,
            most * scale, height);
    put_axis(f, x0, y, height, most, scale);
    for (int i = 0; i < p->n; i++) {
        const Cell *c = &t->cell[p->first + i];
        put_row(f, c, rate, p->mixed, x0, y, scale);
        y += row_height(c, p->mixed);
    }
    free(title);
}

static void put_legend(FILE *f, const Table *t, int rate, double y)
{
    double x = GAP + 10;
    for (int k = 0; k < MARKS; k++) {
        int used = 0;
        for (int i = 0; i < t->n; i++)
            used |= isfinite(value_of(&t->cell[i], k, rate)) != 0;
        if (!used)
            continue;
        put_mark(f, k, x, y - 4);
        fprintf(f, "<text x=\"%.1f\" y=\"%.1f\">%s</text>\n", x + 14, y, marks[k].name);
        x += 104;
    }
}

void bubble_svg(FILE *f, const Table *t)
{
    static const char light[] = ".h{font-size:16px;font-weight:600}.p{font-size:13px;font-weight:600}.r{text-"
                                "anchor:end}.t{text-anchor:middle}"
                                ".sim{fill:#8fb3dc}.meas{fill:#c0392b;stroke:#fff;stroke-width:1}.closed{"
                                "stroke:#111;stroke-width:2;fill:none}"
                                ".publ{fill:none;stroke:#1e7d45;stroke-width:2}";
    static const char dark[] = ".sim{fill:#3f6da3}.meas{fill:#ff7a66;stroke:#131517}.closed{stroke:#f2f0ea}"
                               ".publ{stroke:#5fcf86}";
    Panel *panel;
    int n = find_panels(t, &panel), rate = by_rate(t);
    const char *said =
        rate ? "share of the time from a rank's first start to its last end in which it waits (rate), of the "
               "rank with the longest"
             : "share of a step (first start to last end of all ranks) beyond the work of the slowest rank "
               "(step_rate)";
    double most = longest_of(t, rate) * 1.03, inner = WIDTH - 2 * GAP, y = 47,
           head = y + 16.2 * svg_text(NULL, "s", 0, 0, 12, inner, said) + 8, height = head + 26;
    for (int i = 0; i < n; i++)
        height += panel_height(t, &panel[i]) + GAP;
    svg_open(f, WIDTH, height, light, dark);
    fprintf(f, "<text class=\"h\" x=\"%d\" y=\"28\">Pipeline bubbles</text>\n", GAP);
    svg_text(f, "s", GAP, y, 12, inner, said);
    put_legend(f, t, rate, head);
    y = head + 26;
    for (int i = 0; i < n; i++) {
        put_panel(f, t, &panel[i], rate, y, most);
        y += panel_height(t, &panel[i]) + GAP;
    }
    fprintf(f, "</svg>\n");
    free(panel);
}
