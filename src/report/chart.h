/* chart -- drawings for the report: HTML with inline SVG, no library, readable without scripts.
 *
 * The SVG holds only geometry, in a 1000 x 1000 box that is stretched to whatever size the page gives it
 * (strokes keep their width); all text is HTML placed by percentages. So one drawing serves a phone and a
 * wide screen, and letters never shrink. Colours are CSS classes of the page: a b for lines, the phases' and
 * instructions' names for areas. */
#ifndef CHART_H
#define CHART_H
#include <stdint.h>
#include <stdio.h>

typedef enum { DRAW_LINE, DRAW_FAINT, DRAW_DOTS } Draw;   /* DOTS: a line with a dot at each point */

typedef struct {
    const char *name, *css;
    Draw draw;
    int64_t n;
    const double *x, *y;           /* x does not fall; a y that is not finite is a gap */
} Series;

typedef struct {
    const char *title, *unit, *x_name;
    int height;                    /* px */
    int log_x, log_y, zero;        /* zero: the y axis starts at 0 */
    double x_from;                 /* leaves out what lies left of it; NAN = nothing */
    int n;
    const Series *series;
    int nmark;                     /* vertical marks, e.g. where a run was resumed */
    const double *mark;
} Chart;

/* A plot without its title; series of more than ~1000 points are thinned, keeping every extreme. Prints a
 * line of text instead when there is nothing to draw. */
void chart_lines(FILE *f, const Chart *c);

/* Areas on top of each other; all series have the same x, and no gaps: what is not finite counts as 0. More
 * than ~250 columns are averaged. */
void chart_stack(FILE *f, const Chart *c);

/* Legend entries: a swatch and the name, and of lines the last value. */
void chart_legend(FILE *f, const Chart *c, int areas);

/* Opens a drawing of its own, light or dark as its reader likes it, and its style sheet: `light` are the
 * drawing's rules, `dark` those that change. The ground, text, .t (soft text), .lane and .tick have theirs.
 */
void svg_open(FILE *f, double width, double height, const char *light, const char *dark);
/* Text of class `css` and `size` px, in as many lines as keep it within `width` px; y: of the first line's
 * foot. Returns the number of lines; f NULL: only that. */
int svg_text(FILE *f, const char *css, double x, double y, double size, double width, const char *text);

/* Text with &, <, >, " and ' escaped; control characters but newline and tab become spaces. */
void html_text(FILE *f, const char *s);
#endif
