/* chart -- the pages that the program writes, and the charts in them: HTML with inline SVG, no library,
 * readable without scripts. Curves are drawn in a 1000 x 1000 box that is stretched over the plot (strokes
 * keep their width); svg.h has the rest. */
#ifndef CHART_H
#define CHART_H
#include "svg.h"

/* A self-contained page. */
void page_open(FILE *f, const char *title);
void page_close(FILE *f);
/* A card of the page; a legend may follow. kind: "" half as wide as the page, " wide" as wide. */
void card_open(FILE *f, const char *kind, const char *title, const char *unit);
void card_close(FILE *f);
/* One of several views, of which one is seen: i from 1, the first is chosen. They follow each other in an
 * element of class "views". */
void view_open(FILE *f, const char *name, int i, const char *label);
void view_close(FILE *f);
/* Opens a table; its head: names with | between, the first one over text, the others over numbers. */
void html_table(FILE *f, const char *css, const char *names);
void html_table_end(FILE *f);

/* DOTS: a line with a dot at each point. AREA: from the axis up to y; the areas of a stack stand in the order
 * of their heights, the lowest first. */
typedef enum { DRAW_LINE, DRAW_FAINT, DRAW_DOTS, DRAW_AREA } Draw;

typedef struct {
    const char *name, *css;
    Draw draw;
    int64_t n;
    const double *x, *y;    /* x does not fall; a y that is not finite is a gap */
    const double *part;     /* what the reader is told instead of y: an area's own share; NULL: y */
} Series;

typedef struct {
    const char *title, *unit, *x_name;
    int height;             /* px */
    int log_x, log_y, zero; /* zero: the y axis starts at 0 */
    double x_from;          /* leaves out what lies left of it; NAN = nothing */
    int n, nmark;
    const Series *series;
    const double *mark;     /* [nmark] vertical marks, where a run was resumed */
} Chart;

/* The chart's card, open, with its title and a legend, which gives the last values of lines. */
void chart_open(FILE *f, const char *kind, const Chart *c);
/* The plot, or a line of text when there is nothing to draw. Series of more than ~1000 points are thinned,
 * keeping every extreme. */
void chart_plot(FILE *f, const Chart *c);
#endif
