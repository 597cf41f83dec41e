/* bubble_svg -- a bubble table as a drawing of its own, one column that a telephone can show: a panel for
 * every p and m that has several pipelines (or for every row of a file), a bar a pipeline; those that are
 * alone in theirs share a panel. */
#include "bubble.h"
#include "base.h"
#include "svg.h"
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
    AXIS = 58,
    LETTERS = 18
};

/* What the bars and marks stand for. */
enum { SIMULATED, CLOSED, PUBLISHED, MEASURED, MARKS };
static const Key marks[MARKS] = {
    {"sim", "simulated", NULL},
    {"closed", "closed form", "M0 -9V9"},
    {"publ", "published", "M0 -6L6 0L0 6L-6 0Z"},
    {"meas", "measured", "M-4.5 0A4.5 4.5 0 0 1 4.5 0A4.5 4.5 0 0 1 -4.5 0Z"},
};

/* What the bars of a panel have in common, and its title says; the rest stands beside each bar. */
typedef enum { BOTH, LABEL, NOTHING } Common;
typedef struct { int first, n; Common common; } Panel;

/* The quantity that is drawn: where values are published, theirs; else what a step loses. */
static int by_rate(const Table *t)
{
    for (int i = 0; i < t->n; i++)
        if (isfinite(t->cell[i].published))
            return 1;
    return 0;
}

/* In %. */
static double value_of(const Cell *c, int mark, int rate)
{
    const Rates r[MARKS] = {c->simulated, c->closed_form, {c->published, NAN}, c->measured};
    return 100 * (rate ? r[mark].rate : r[mark].step_rate);
}

static const char *label_of(const Cell *c) { return c->label ? c->label : ""; }

static int have_in_common(const Cell *a, const Cell *b, Common what)
{
    return what == NOTHING || (!strcmp(label_of(a), label_of(b)) &&
                               (what == LABEL || (a->shape.p == b->shape.p && a->shape.m == b->shape.m)));
}

/* Neighbours in the table that have both in common; then bars that are still alone and follow each other,
 * first those of one label, then what is left. Returns their number; the caller frees. */
static int find_panels(const Table *t, Panel **panel)
{
    int n = t->n;
    Panel *all = *panel = xcalloc((size_t)n + 1, sizeof *all);
    for (int i = 0; i < n; i++)
        all[i] = (Panel){i, 1, BOTH};
    for (Common how = BOTH; how <= NOTHING; how++) {
        int kept = 0;
        for (int i = 0; i < n; i++) {
            Panel *last = kept ? &all[kept - 1] : NULL;
            if (last && all[i].n == 1 && (last->n == 1 || last->common == how) &&
                have_in_common(&t->cell[last->first], &t->cell[all[i].first], how)) {
                last->n++;
                last->common = how;
            } else {
                all[kept++] = all[i];
            }
        }
        n = kept;
    }
    return n;
}

/* A pipeline's own name, with what its panel's title does not say. On the heap. */
static char *row_name(const Cell *c, Common common)
{
    char kind[32], chunks[16] = "", size[48] = "";
    if (c->shape.kind == SCHEDULE_INTERLEAVED)
        snprintf(chunks, sizeof chunks, " v%d", c->shape.v);
    if (common != BOTH)
        snprintf(size, sizeof size, ", p %d, m %d", c->shape.p, c->shape.m);
    const char *label = common == NOTHING ? label_of(c) : "";
    return xasprintf("%s%s%s%s%s", label, *label ? ": " : "", bubble_name(c, kind), chunks, size);
}

/* Returns its height. */
static double put_row(const Svg *s, const Cell *c, int rate, Common common, double top)
{
    char *name = row_name(c, common), said[160] = "";
    int lines = svg_wrap(NULL, "r", 0, 0, 12, LEFT - 4, name), n = 0;
    double height = ROW + LONGER * (lines - 1), y = top + height / 2;
    svg_wrap(s->f, "r", s->left - 6, y + 4 - 8.1 * (lines - 1), 12, LEFT - 4, name);
    for (int k = 0; k < MARKS; k++)
        if (isfinite(value_of(c, k, rate)))
            n += snprintf(said + n, sizeof said - (size_t)n, "%s%s %.2f %%", n ? ", " : "", marks[k].name,
                          value_of(c, k, rate));
    svg_rect(s, "sim", 1, 0, value_of(c, SIMULATED, rate), y - BAR / 2.0, BAR, "%s p %d v %d m %d: %s", name,
             c->shape.p, c->shape.v, c->shape.m, said);
    for (int k = CLOSED; k < MARKS; k++)
        if (isfinite(value_of(c, k, rate)))
            svg_mark(s->f, &marks[k], s->left + s->width * scale_at(s->x, value_of(c, k, rate)), y);
    free(name);
    return height;
}

/* Returns its height. */
static double put_panel(const Svg *s, const Table *t, const Panel *p, int rate, double top)
{
    const Cell *first = &t->cell[p->first];
    const char *label = label_of(first);
    char title[160] = "One pipeline a number of ranks and microbatches", *rows = NULL;
    size_t size;
    if (p->common == BOTH)
        snprintf(title, sizeof title, "%s%sp = %d, m = %d", label, *label ? ": " : "", first->shape.p,
                 first->shape.m);
    else if (p->common == LABEL && *label)
        snprintf(title, sizeof title, "%s", label);
    int lines = svg_wrap(s->f, "p", GAP, top + 14, 13, WIDTH - 2 * GAP, title);
    double y = top + LETTERS * (lines - 1) + TITLE, from = y;
    Svg over = *s;                     /* the rows stand on a ground whose height they decide */
    over.f = open_memstream(&rows, &size);
    for (int i = 0; i < p->n; i++)
        y += put_row(&over, first + i, rate, p->common, y);
    fclose(over.f);
    svg_rect(s, "floor", 1, 0, s->x.hi, from, y - from, NULL);
    svg_axis(s, from, y, 0, "bubble, %");
    fwrite(rows, 1, size, s->f);
    free(rows);
    return y + AXIS - top;
}

void bubble_svg(FILE *f, const Table *t)
{
    int rate = by_rate(t), keys = 0;
    const char *said = rate ? "share of the time from a rank's first start to its last end in which it waits "
                              "(rate), of the rank with the longest"
                            : "share of a step (first start to last end of all ranks) beyond the work of the "
                              "slowest rank (step_rate)";
    double most = 1, inner = WIDTH - 2 * GAP, width = WIDTH - GAP - LEFT - 24, y = 47;
    Key key[MARKS];
    for (int k = 0; k < MARKS; k++) {
        int used = 0;
        for (int i = 0; i < t->n; i++) {
            used |= isfinite(value_of(&t->cell[i], k, rate)) != 0;
            most = fmax(most, value_of(&t->cell[i], k, rate));     /* fmax passes over a NAN */
        }
        if (used)
            key[keys++] = marks[k];
    }
    char *body = NULL; /* drawn first: its height stands before it */
    size_t size;
    Svg s = {open_memstream(&body, &size), {0, 1.03 * most, 0}, GAP + LEFT, width, "", width};
    svg_wrap(s.f, "h", GAP, 28, 16, inner, "Pipeline bubbles");
    y += 16.2 * svg_wrap(s.f, "s", GAP, y, 12, inner, said) + 8;
    y += svg_keys(s.f, key, keys, GAP, y, WIDTH - GAP) + 26;
    Panel *panel;
    int n = find_panels(t, &panel);
    for (int i = 0; i < n; i++)
        y += put_panel(&s, t, &panel[i], rate, y);
    fclose(s.f);
    svg_open(f, WIDTH, y);
    fwrite(body, 1, size, f);
    svg_close(f);
    free(body);
    free(panel);
}
