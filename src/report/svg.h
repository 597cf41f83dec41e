/* svg -- what every picture of the program is made with: printing that escapes its text, bars with hover
 * titles, axes, keys, and one style sheet (svg.css), light or dark as the reader's system is.
 *
 * A picture is a file of its own, in px, or stands in a page: then x are percentages of its width, so that it
 * fills a telephone and a wide screen alike and letters never shrink. y are px. A class names a colour or a
 * kind of text: svg.css has them all. */
#ifndef SVG_H
#define SVG_H
#include "scale.h"
#include <stdarg.h>
#include <stdio.h>

extern const char svg_css[], page_css[], page_js[]; /* the files svg.css, report.css, report.js */

/* As fprintf, for markup: what a %s brings is escaped, and ' of the format is printed as ". Only %d, %lld,
 * %c, %s, %% and %f, %e, %g with sizes and signs; no *. */
__attribute__((format(printf, 2, 3))) void html_put(FILE *f, const char *fmt, ...);
void html_vput(FILE *f, const char *fmt, va_list ap);

typedef struct {
    FILE *f;
    Scale x;            /* the values along its width */
    double left, width; /* where x.lo lies, and the distance from there to x.hi */
    const char *unit;   /* of left and width: "" px, "%" of a page's width */
    double px;          /* the width in px, at least: how many ticks and letters it has room for */
} Svg;

/* Opens a file of its own; svg_close ends it. */
void svg_open(FILE *f, double width, double height);
void svg_close(FILE *f);

/* A bar from value `from` to value `to`, as far as x reaches; opacity 0 to 1. title: shown on hover, a
 * format; NULL: none. */
__attribute__((format(printf, 8, 9))) void svg_rect(const Svg *s, const char *css, double opacity,
                                                    double from, double to, double y, double height,
                                                    const char *title, ...);
/* Text at value `at` and dx px right of it; y: its foot. */
__attribute__((format(printf, 6, 7))) void svg_text(const Svg *s, const char *css, double at, double dx,
                                                    double y, const char *fmt, ...);
/* Text of `size` px in as many lines as keep it within `width` px. Returns their number; f NULL: only that.
 */
int svg_wrap(FILE *f, const char *css, double x, double y, double size, double width, const char *text);

/* Ticks from top to 5 px below bottom, their values, and the axis' name. whole: x are whole numbers. */
void svg_axis(const Svg *s, double top, double bottom, int whole, const char *name);

/* An entry of a legend: a mark around (0, 0), NULL: a square, and its name. css NULL: the name alone. */
typedef struct { const char *css, *name, *path; } Key;
void svg_mark(FILE *f, const Key *k, double x, double y);
/* Entries side by side from x to right, in as many lines as they need. Returns how far these reach below y; f
 * NULL: only that. */
double svg_keys(FILE *f, const Key *k, int n, double x, double y, double right);
/* The same in a page. */
void html_keys(FILE *f, const Key *k, int n);
#endif
