/* chart -- the pages that the program writes, and the charts in them. */
#include "chart.h"
#include "base.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 450, DOTS = 80 };       /* px: width that labels get; most points drawn as dots */

/* ---- Pages ---- */

void page_open(FILE *f, const char *title)
{
    html_put(f, "<!DOCTYPE html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n<meta name='viewport' "
             "content='width=device-width, initial-scale=1'>\n<meta http-equiv='Content-Security-Policy' "
             "content='%s'>\n<title>%s \302\267 gridiron</title>\n<style>\n", "default-src 'none'; style-src "
             "'unsafe-inline'; script-src 'unsafe-inline'; img-src data:", title);
    fprintf(f, "%s%s</style>\n</head>\n<body>\n<main>\n", svg_css, page_css);
}

void page_close(FILE *f) { fprintf(f, "</main>\n<script>\n%s</script>\n</body>\n</html>\n", page_js); }

void card_open(FILE *f, const char *kind, const char *title, const char *unit)
{
    html_put(f, "<section class='card%s'><h2>%s</h2><span class='unit'>%s</span>\n", kind, title, unit);
}

void card_close(FILE *f) { fputs("</section>\n", f); }

void view_open(FILE *f, const char *name, int i, const char *label)
{
    html_put(f, "<input type='radio' name='%s' id='%s%d'%s><label for='%s%d'>%s</label>\n<div class='view'>",
             name, name, i, i == 1 ? " checked" : "", name, i, label);
}

void view_close(FILE *f) { fputs("</div>\n", f); }

void html_table(FILE *f, const char *css, char *text)
{
    char *rest = text, *line, *cell;
    const char *tag = "th";
    html_put(f, "<table class='%s'><thead>", css);
    while ((line = strsep(&rest, "\n")) && *line) {
        html_put(f, "<tr>");
        for (int i = 0; (cell = strsep(&line, "\t")); i++)
            html_put(f, i ? "<%s class='n'>%s</%s>" : "<%s>%s</%s>", tag, cell, tag);
        html_put(f, tag[1] == 'h' ? "</tr></thead><tbody>\n" : "</tr>\n");
        tag = "td";
    }
    html_put(f, "</tbody></table>\n");
    free(text);
}

/* ---- Axes ---- */

/* The range of the chart's x, or with of_y of the y whose x lie in *x. */
static Scale range(const Chart *c, const Scale *x, int of_y)
{
    Scale s = {INFINITY, -INFINITY, of_y ? c->log_y : c->log_x};
    for (int k = 0; k < c->n; k++)
        for (int64_t i = 0; i < c->series[k].n; i++) {
            double at = c->series[k].x[i], v = of_y ? c->series[k].y[i] : at;
            if (!isfinite(v) || (s.log && v <= 0) || at < x->lo || at > x->hi)
                continue;
            s.lo = fmin(s.lo, v);
            s.hi = fmax(s.hi, v);
        }
    return s;
}

static Scale x_scale(const Chart *c)
{
    Scale s = range(c, &(Scale){c->x_from, INFINITY, 0}, 0);
    if (s.lo == s.hi)
        return s.log ? (Scale){s.lo / 2, s.hi * 2, 1} : (Scale){s.lo - 1, s.hi + 1, 0};
    if (!s.log && isnan(c->x_from) && s.lo > 0 && s.lo < 0.1 * s.hi)
        s.lo = 0;
    return s;
}

static Scale y_scale(const Chart *c, Scale x)
{
    Scale s = range(c, &x, 1);
    double factor = pow(fmax(s.hi / s.lo, 2), 0.05);
    double pad = s.hi > s.lo ? 0.05 * (s.hi - s.lo) : fmax(fabs(s.hi) * 0.05, 1e-12);
    if (s.lo > s.hi)
        return s;
    if (s.log)
        return (Scale){s.lo / factor, s.hi * factor, 1};
    return c->zero ? (Scale){fmin(0, s.lo), s.hi > 0 ? s.hi * 1.06 : 1, 0}
                   : (Scale){s.lo - pad, s.hi + pad, 0};
}

/* Draws both axes and the marks. */
static void put_axes(FILE *f, const Chart *c, Scale x, Scale y)
{
    double tick[12], step, most = fmax(fabs(y.lo), fabs(y.hi));
    char text[32];
    Svg s = {f, x, 0, 100, "%", WIDTH};
    int n = scale_ticks(y, c->height > 260 ? 6 : 4, tick, &step);
    for (int i = 0; i < n; i++) {
        double at = c->height * (1 - scale_at(y, tick[i]));
        html_put(f, "<line class='rule' x2='100%%' y1='%.1f' y2='%.1f'/>", at, at);
        svg_text(&s, "r soft", x.lo, -8, at + 4, "%s", scale_axis_text(text, tick[i], step, most));
    }
    svg_axis(&s, c->height, c->height, !strcmp(c->x_name, "iteration"), c->x_name);
    for (int i = 0; i < c->nmark; i++)
        if (c->mark[i] > x.lo && c->mark[i] < x.hi)
            svg_rect(&s, "mark", 1, c->mark[i], c->mark[i], 0, c->height, "resumed after iteration %.0f",
                     c->mark[i]);
}

/* Indices of the points that are drawn, thinned: those from the axis' beginning on. On the heap. */
static int64_t *kept(const Series *s, Scale x, int64_t *n)
{
    int64_t first = 0, *keep = xcalloc((size_t)s->n + 1, sizeof *keep);
    while (first < s->n && s->x[first] < x.lo)
        first++;
    *n = scale_thin(x, s->x + first, s->y + first, s->n - first, keep);
    for (int64_t i = 0; i < *n; i++)
        keep[i] += first;
    return keep;
}

/* Six significant digits are more than a curve shows. */
static void put_array(FILE *f, const double *v, const int64_t *keep, int64_t n)
{
    for (int64_t k = 0; k < n; k++)
        if (isfinite(v[keep[k]]))
            fprintf(f, k ? ",%.6g" : "%.6g", v[keep[k]]);
        else
            fputs(k ? ",null" : "null", f);
}

/* Prints the points of a curve as JSON, which the script shows on hover. */
static void put_numbers(FILE *f, const Series *s, Scale x)
{
    int64_t n, *keep = kept(s, x, &n);
    fprintf(f, "{\"n\":\"%s\",\"c\":\"%s\",\"x\":[", s->name, s->css);
    put_array(f, s->x, keep, n);
    fputs("],\"y\":[", f);
    put_array(f, s->part ? s->part : s->y, keep, n);
    fputs("]}", f);
    free(keep);
}

static void put_curve(FILE *f, const Series *s, Scale x, Scale y)
{
    static const char *const css[] = {
        [DRAW_LINE] = "line", [DRAW_FAINT] = "line faint", [DRAW_DOTS] = "dots", [DRAW_AREA] = ""};
    int64_t n, *keep = kept(s, x, &n);
    int open = 0, dots = s->draw == DRAW_DOTS, area = s->draw == DRAW_AREA;
    html_put(f, "<path class='%s %s' d='", css[s->draw], s->css);
    for (int64_t k = 0; k < n; k++) {
        double px = 1000 * scale_at(x, s->x[keep[k]]), py = 1000 - 1000 * scale_at(y, s->y[keep[k]]);
        int ok = isfinite(s->y[keep[k]]) && isfinite(px) && isfinite(py) && px >= -1e-6;
        int alone = ok && !open && (k + 1 == n || !isfinite(s->y[keep[k + 1]]));
        if (ok && area && !open)
            fprintf(f, "M%.1f 1000V%.1f", alone ? 0 : px, py); /* a single step fills the plot */
        else if (ok)
            fprintf(f, "%c%.1f %.1f", open ? 'L' : 'M', px, py);
        if (alone || (ok && dots))
            fputs(area ? "H1000" : "h0", f);
        open = ok && !dots;
    }
    html_put(f, area ? "V1000Z'/>\n" : "'/>\n");
    free(keep);
}

void chart_plot(FILE *f, const Chart *c)
{
    Scale x = x_scale(c), y = x.lo < x.hi ? y_scale(c, x) : (Scale){1, 0, 0};
    if (!(y.lo < y.hi)) {
        html_put(f, "<p class='none'>nothing was recorded</p>\n");
        return;
    }
    html_put(f, "<div class='plot' style='height:%dpx' role='img' aria-label='%s over %s %.6g to %.6g, "
             "between %.4g and %.4g %s' ", c->height, c->title, c->x_name, x.lo, x.hi, y.lo, y.hi, c->unit);
    html_put(f, "data-x='%.9g %.9g %d' data-name='%s'>\n<svg aria-hidden='true'>\n", x.lo, x.hi, x.log,
             c->x_name);
    put_axes(f, c, x, y);
    html_put(f, "<svg viewBox='0 0 1000 1000' preserveAspectRatio='none'>\n");
    for (int k = 0; k < c->n; k++) {
        /* Lines are drawn in order. Areas of a stack are drawn highest first, to hide no lower one. */
        Series line = c->series[c->series[k].draw == DRAW_AREA ? c->n - 1 - k : k];
        int dots = line.draw == DRAW_DOTS;
        if (!dots || line.n <= DOTS)
            put_curve(f, &line, x, y);
        line.draw = DRAW_LINE;
        if (dots)
            put_curve(f, &line, x, y);
    }
    html_put(f, "</svg></svg>\n<script type='application/json'>[");
    for (int k = 0; k < c->n; k++) {
        fputs(k ? "," : "", f);
        put_numbers(f, &c->series[k], x);
    }
    fprintf(f, "]</script></div>\n");
}

static double last_finite(const Series *s)
{
    for (int64_t i = s->n; i-- > 0;)
        if (isfinite(s->y[i]))
            return s->y[i];
    return NAN;
}

void chart_open(FILE *f, const char *kind, const Chart *c)
{
    char text[32];
    card_open(f, kind, c->title, c->log_y ? "logarithmic" : c->unit);
    html_put(f, "<ul class='legend'>");
    for (int k = 0; k < c->n; k++) {
        const Series *s = &c->series[k];
        int faint = s->draw == DRAW_FAINT, area = s->draw == DRAW_AREA;
        html_put(f, "<li><span class='dot %s%s%s'></span>%s <b>%s</b></li>", s->css, area ? "" : " low",
                 faint ? " faint" : "", strcmp(s->name, c->title) ? s->name : "last",
                 faint || area ? "" : scale_number_text(text, last_finite(s)));
    }
    html_put(f, "</ul>\n");
}
