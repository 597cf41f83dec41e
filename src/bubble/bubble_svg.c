/* bubble_svg -- a bubble table as an SVG file, narrow enough for a telephone: a bar for each cell */
#include "bubble.h"
#include "base.h"
#include "svg.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* px. LEFT: room for the names of bars. HEAD, LABEL, AXIS: heights of the title, a label, an axis. */
enum { WIDTH = 440, GAP = 14, LEFT = 176, ROW = 22, BAR = 14, LABEL = 34, HEAD = 47, AXIS = 46 };

/* The results that are drawn: a bar for SIMULATED, marks for the others. */
enum { SIMULATED, CLOSED, PUBLISHED, MEASURED, MARKS };
static const Key marks[MARKS] = {
    {"sim", "simulated", NULL},
    {"closed", "closed form", "M0 -9V9"},
    {"publ", "published", "M0 -6L6 0L0 6L-6 0Z"},
    {"meas", "measured", "M-4.5 0A4.5 4.5 0 0 1 4.5 0A4.5 4.5 0 0 1 -4.5 0Z"},
};

/* Whether the rate is drawn, which publications give; otherwise the step_rate is. */
static int by_rate(const Table *t)
{
    for (int i = 0; i < t->n; i++)
        if (isfinite(t->cell[i].published))
            return 1;
    return 0;
}

/* The result that `mark` stands for, in %. */
static double value_of(const Cell *c, int mark, int rate)
{
    const Rates r[MARKS] = {c->simulated, c->closed_form, {c->published, NAN}, c->measured};
    return 100 * (rate ? r[mark].rate : r[mark].step_rate);
}

static int same(const Cell *a, const Cell *b) { return a->shape.p == b->shape.p && a->shape.m == b->shape.m; }

static void put_row(const Svg *s, const Cell *c, int rate, double y)
{
    char kind[32], chunks[16] = "", said[160] = "";
    int n = 0;
    if (c->shape.kind == SCHEDULE_INTERLEAVED)
        snprintf(chunks, sizeof chunks, " v%d", c->shape.v);
    for (int k = 0; k < MARKS; k++)
        if (isfinite(value_of(c, k, rate)))
            n += snprintf(said + n, sizeof said - (size_t)n, "%s%s %.2f %%", n ? ", " : "", marks[k].name,
                          value_of(c, k, rate));
    svg_text(s, "r", 0, -6, y + 4, "%s%s, p %d, m %d", bubble_name(c, kind), chunks, c->shape.p, c->shape.m);
    svg_rect(s, "sim", 1, 0, value_of(c, SIMULATED, rate), y - BAR / 2.0, BAR, "%s p %d v %d m %d: %s",
             bubble_name(c, kind), c->shape.p, c->shape.v, c->shape.m, said);
    for (int k = CLOSED; k < MARKS; k++)
        if (isfinite(value_of(c, k, rate)))
            svg_mark(s->f, &marks[k], svg_x(s, value_of(c, k, rate)), y);
}

void bubble_svg(FILE *f, const Table *t)
{
    int rate = by_rate(t), keys = 0;
    const char *said = rate ? "share of the time from a rank's first start to its last end in which it waits "
                              "(rate), of the rank with the longest"
                            : "share of a step (first start to last end of all ranks) beyond the work of the "
                              "slowest rank (step_rate)";
    double most = 1, inner = WIDTH - 2 * GAP, width = WIDTH - GAP - LEFT - 24;
    Key key[MARKS];
    for (int k = 0; k < MARKS; k++) {
        int used = 0;
        for (int i = 0; i < t->n; i++) {
            used |= isfinite(value_of(&t->cell[i], k, rate)) != 0;
            most = fmax(most, value_of(&t->cell[i], k, rate));     /* fmax ignores a NAN */
        }
        if (used)
            key[keys++] = marks[k];
    }
    char *rows = NULL;                 /* drawn first: their height is needed before them */
    size_t size;
    Svg s = {xmemstream(&rows, &size), GAP + LEFT, width, 1.03 * most};
    double legend = HEAD + 16.2 * svg_wrap(NULL, "s", GAP, HEAD, 12, inner, said) + 8,
           top = legend + svg_keys(NULL, key, keys, GAP, legend, WIDTH - GAP) + AXIS, y = top;
    for (int i = 0; i < t->n; i++) {
        const Cell *c = &t->cell[i], *before = i ? c - 1 : NULL;
        if (c->label && (!before || !before->label || strcmp(c->label, before->label)))
            svg_wrap(s.f, "p", GAP, (y += LABEL) - 10, 13, inner, c->label);
        else if (before && !same(c, before) && i + 1 < t->n && same(c, c + 1))
            y += GAP;                  /* between groups of cells with the same p and m */
        put_row(&s, c, rate, y + ROW / 2.0);
        y += ROW;
    }
    fclose(s.f);
    s.f = f;
    svg_open(f, WIDTH, y + AXIS);
    svg_wrap(f, "h", GAP, 28, 16, inner, "Pipeline bubbles");
    svg_wrap(f, "s", GAP, HEAD, 12, inner, said);
    svg_keys(f, key, keys, GAP, legend, WIDTH - GAP);
    svg_axis(&s, top - AXIS, top - AXIS, "bubble, %");
    svg_axis(&s, top, y, "bubble, %");
    fwrite(rows, 1, size, f);
    svg_close(f);
    free(rows);
}
