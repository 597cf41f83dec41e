/* svg -- the parts of every picture of the program: printing that escapes its text, bars with hover
 * titles, axes, legends, and one style sheet (svg.css), light or dark as the reader's system is.
 *
 * x and y are in px. `css` is a class: a colour or a kind of text, defined in svg.css. The pictures of pages
 * are drawn by report.js in the same style. */
#ifndef SVG_H
#define SVG_H
#include <stdarg.h>
#include <stdio.h>

extern const char svg_css[], page_css[], page_js[]; /* texts of svg.css, report.css, report.js */

/* fprintf for markup: the text of a %s is escaped, and a ' of the format is printed as ". Knows %d,
 * %ld, %lld, %c, %s, %% and %f, %e, %g with sizes and signs, but no *. */
__attribute__((format(printf, 2, 3))) void html_put(FILE *f, const char *fmt, ...);
void html_vput(FILE *f, const char *fmt, va_list ap);

typedef struct {
    FILE *f;
    double left, width; /* px: position of value 0; distance from there to `most` */
    double most;        /* the largest value along the width */
} Svg;

/* Begins an SVG file, width x height px; svg_close ends it. */
void svg_open(FILE *f, double width, double height);
void svg_close(FILE *f);

/* Draws a bar from value `from` to value `to`, cut to the range. opacity: 0 to 1. title: a format,
 * shown on hover; NULL: none. */
__attribute__((format(printf, 8, 9))) void svg_rect(const Svg *s, const char *css, double opacity,
                                                    double from, double to, double y, double height,
                                                    const char *title, ...);
/* Prints text dx px right of value `at`. y: the foot of the text. */
__attribute__((format(printf, 6, 7))) void svg_text(const Svg *s, const char *css, double at, double dx,
                                                    double y, const char *fmt, ...);
/* Prints text of `size` px, broken into lines of at most `width` px. f NULL: prints nothing.
 * Returns the number of lines. */
int svg_wrap(FILE *f, const char *css, double x, double y, double size, double width, const char *text);

/* The position of value v, cut to the range. */
double svg_x(const Svg *s, double v);
/* Draws ticks from top to 5 px below bottom, their values and the name. */
void svg_axis(const Svg *s, double top, double bottom, const char *name);

/* An entry of a legend. path: the mark, drawn around (0, 0); NULL: a square. css NULL: no mark. */
typedef struct { const char *css, *name, *path; } Key;
void svg_mark(FILE *f, const Key *k, double x, double y);
/* Prints the entries side by side between x and right, in as many lines as they need. f NULL: prints
 * nothing. Returns the distance from y to the last line. */
double svg_keys(FILE *f, const Key *k, int n, double x, double y, double right);
/* Prints the entries as a legend of a page. */
void html_keys(FILE *f, const Key *k, int n);
#endif
