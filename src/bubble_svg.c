/* A bubble table as a drawing of its own: a panel for every p and m (or for every row of a file), a bar a pipeline. */
#include "bubble.h"
#include "base.h"
#include "chart.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PANEL = 420, GAP = 34, LEFT = 110, ROW = 22, BAR = 14, HEAD = 92, TITLE = 26, AXIS = 44, PER_ROW = 3 };

/* What the bars and marks stand for. */
static const struct { const char *name, *shape; } marks[] = {
    {"simulated", "<rect class=\"sim\" x=\"-9\" y=\"-7\" width=\"18\" height=\"14\"/>"},
    {"measured", "<circle class=\"meas\" r=\"4.5\"/>"},
    {"closed form", "<path class=\"closed\" d=\"M0 -9V9\"/>"},
    {"published", "<path class=\"publ\" d=\"M0 -6L6 0L0 6L-6 0Z\"/>"},
};
enum { SIMULATED, MEASURED, CLOSED, PUBLISHED, MARKS };

typedef struct { int first, n; } Panel;

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

/* Neighbours in the table that belong together. Returns their number; the caller frees. */
static int find_panels(const Table *t, Panel **panel)
{
    int n = 0;
    *panel = xcalloc((size_t)t->n, sizeof **panel);
    for (int i = 0; i < t->n; i++) {
        if (!i || !together(&t->cell[i], &t->cell[i - 1]))
            (*panel)[n++] = (Panel){i, 0};
        (*panel)[n - 1].n++;
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
        fprintf(f, "<path class=\"tick\" d=\"M%.1f %.1fV%.1f\"/>\n<text class=\"t\" x=\"%.1f\" y=\"%.1f\">%g</text>\n",
                x0 + k * step * scale, y0, y0 + height + 4, x0 + k * step * scale, y0 + height + 17, 100 * k * step);
    fprintf(f, "<text class=\"t\" x=\"%.1f\" y=\"%.1f\">bubble, %%</text>\n", x0 + most * scale / 2, y0 + height + 32);
}

static void put_row(FILE *f, const Cell *c, int rate, double x0, double y, double scale)
{
    char kind[32], *name = c->shape.kind == SCHEDULE_INTERLEAVED ? xasprintf("interleaved v%d", c->shape.v)
                                                                 : xstrdup(bubble_name(c, kind));
    double simulated = value_of(c, SIMULATED, rate);
    fprintf(
        f,
        "<text class=\"r\" x=\"%.1f\" y=\"%.1f\">%s</text>\n<rect class=\"sim\" x=\"%.1f\" y=\"%.1f\" width=\"%.2f\" "
        "height=\"%d\"><title>%s p %d v %d m %d: simulated %.2f %%",
        x0 - 8, y + 4, name, x0, y - BAR / 2.0, fmax(simulated * scale, 1), BAR, name, c->shape.p, c->shape.v,
        c->shape.m, 100 * simulated);
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

static void put_panel(FILE *f, const Table *t, const Panel *p, int rate, double x, double y, double most)
{
    const Cell *first = &t->cell[p->first];
    double x0 = x + LEFT, scale = (PANEL - LEFT - 20) / most, height = p->n * ROW;
    char *title = xasprintf("%s%sp = %d, m = %d", first->label ? first->label : "", first->label ? ": " : "",
                            first->shape.p, first->shape.m);
    fprintf(f, "<text class=\"p\" x=\"%.1f\" y=\"%.1f\">", x0, y + 14);
    html_text(f, title);
    fprintf(f, "</text>\n<rect class=\"lane\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n", x0, y + TITLE,
            most * scale, height);
    put_axis(f, x0, y + TITLE, height, most, scale);
    for (int i = 0; i < p->n; i++)
        put_row(f, &t->cell[p->first + i], rate, x0, y + TITLE + (i + 0.5) * ROW, scale);
    free(title);
}

static void put_legend(FILE *f, const Table *t, int rate)
{
    double x = 40;
    for (int k = 0; k < MARKS; k++) {
        int used = 0;
        for (int i = 0; i < t->n; i++)
            used |= isfinite(value_of(&t->cell[i], k, rate)) != 0;
        if (!used)
            continue;
        put_mark(f, k, x, 66);
        fprintf(f, "<text x=\"%.1f\" y=\"70\">%s</text>\n", x + 16, marks[k].name);
        x += 120;
    }
}

void bubble_svg(FILE *f, const Table *t)
{
    Panel *panel;
    int n = find_panels(t, &panel), rate = by_rate(t), across = n < PER_ROW ? n : PER_ROW,
        rows = (n + across - 1) / across;
    double width = across * (PANEL + GAP) + GAP, height = HEAD, most = longest_of(t, rate) * 1.03;
    double *tall = xcalloc((size_t)rows, sizeof *tall);
    for (int i = 0; i < n; i++)
        tall[i / across] = fmax(tall[i / across], panel[i].n * ROW + TITLE + AXIS);
    for (int i = 0; i < rows; i++)
        height += tall[i] + 12;
    width = fmax(width, 760);
    fprintf(
        f,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\">\n<style>\n"
        "text{font:12px "
        "system-ui,sans-serif;fill:#222}.h{font-size:16px;font-weight:600}.p{font-size:13px;font-weight:600}"
        ".r{text-anchor:end}.t{text-anchor:middle;fill:#555}.sim{fill:#8fb3dc}.lane{fill:#f2f4f6}"
        ".meas{fill:#c0392b;stroke:#fff;stroke-width:1}.closed{stroke:#111;stroke-width:2;fill:none}"
        ".publ{fill:none;stroke:#1e7d45;stroke-width:2}.tick{stroke:#c3c9d1;stroke-width:1}\n</style>\n"
        "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n<text class=\"h\" x=\"30\" y=\"28\">Pipeline "
        "bubbles</text>\n"
        "<text class=\"s\" x=\"30\" y=\"47\">%s</text>\n",
        width, height, width, height,
        rate
            ? "share of the time from a rank's first start to its last end in which it waits (rate), of the rank with "
              "the longest"
            : "share of a step (first start to last end of all ranks) beyond the work of the slowest rank (step_rate)");
    put_legend(f, t, rate);
    double y = HEAD;
    for (int i = 0; i < n; i++) {
        put_panel(f, t, &panel[i], rate, GAP + (i % across) * (PANEL + GAP), y, most);
        if (i % across == across - 1)
            y += tall[i / across] + 12;
    }
    fprintf(f, "</svg>\n");
    free(panel);
    free(tall);
}
