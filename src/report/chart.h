/* chart -- the pages that the program writes, and the charts in them: HTML with inline SVG, no library,
 * readable without scripts. Curves are drawn in a box of 1000 x 1000 units, which the browser stretches
 * over the plot (strokes keep their width). Axes, texts and bars come from svg.h. */
#ifndef CHART_H
#define CHART_H
#include "svg.h"

/* Begins and ends a self-contained page. */
void page_open(FILE *f, const char *title);
void page_close(FILE *f);
/* Begins a card of the page. kind: "" half the width of the page, " wide" the whole width. */
void card_open(FILE *f, const char *kind, const char *title, const char *unit);
void card_close(FILE *f);
/* Begins view i of several, of which the reader sees one at a time. Views follow each other in an
 * element of class "views". name: the same for all of them. i: from 1; view 1 is shown first. */
void view_open(FILE *f, const char *name, int i, const char *label);
void view_close(FILE *f);
/* Prints a table. text: on the heap, freed; cells with tabs between, a line a row, the first line the
 * head; the first column is text, others are numbers. */
void html_table(FILE *f, const char *css, char *text);

/* How a series is drawn. DOTS: a line with a dot at each point. AREA: filled from the axis up to y; the
 * areas of a stack are listed in the order of their heights, the lowest first. */
typedef enum { DRAW_LINE, DRAW_FAINT, DRAW_DOTS, DRAW_AREA } Draw;

typedef struct {
    const char *name, *css;
    Draw draw;
    int64_t n;
    const double *x, *y;    /* [n] points; x never falls; a y that is not finite is a gap */
    const double *part;     /* [n] values shown on hover: an area's own share; NULL: y */
} Series;

typedef struct {
    const char *title, *unit, *x_name;
    int height;             /* px */
    int log_x, log_y, zero; /* zero: the y axis starts at 0 */
    double x_from;          /* points left of it are left out; NAN: none */
    int n, nmark;
    const Series *series;
    const double *mark;     /* [nmark] x of vertical marks, where a run was resumed */
} Chart;

/* Begins the chart's card: title and legend, which shows the last value of each line. */
void chart_open(FILE *f, const char *kind, const Chart *c);
/* Draws the plot, or a line of text when there is nothing to draw. Series of more than ~1000 points are
 * thinned; every extreme is kept. */
void chart_plot(FILE *f, const Chart *c);
#endif
