#include "chart.h"
#include "base.h"
#include "scale.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COLUMNS 250                /* of areas: more are averaged */

void html_text(FILE *f, const char *s)
{
    for (; *s; s++)
        switch (*s) {
        case '&': fputs("&amp;", f);  break;
        case '<': fputs("&lt;", f);   break;
        case '>': fputs("&gt;", f);   break;
        case '"': fputs("&quot;", f); break;
        case '\'': fputs("&#39;", f); break;
        default: fputc((*s & 0xe0) || *s == '\n' || *s == '\t' ? *s : ' ', f);
        }
}

/* ---- Drawings of their own ---- */

void svg_open(FILE *f, double width, double height, const char *light, const char *dark)
{
    fprintf(
        f,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f "
        "%.0f\">\n"
        "<style>\ntext{font:12px "
        "system-ui,sans-serif;fill:#222}.ground{fill:#fff}.t{fill:#555}.lane{fill:#e9ebee}"
        ".tick{stroke:#b9bec6}%s\n@media (prefers-color-scheme:dark){text{fill:#e9e7e2}.ground{fill:#131517}"
        ".t{fill:#a8a59e}.lane{fill:#272b2f}.tick{stroke:#4a5058}%s}\n</style>\n"
        "<rect class=\"ground\" width=\"100%%\" height=\"100%%\"/>\n",
        width, height, width, height, light, dark);
}

int svg_text(FILE *f, const char *css, double x, double y, double size, double width, const char *text)
{
    /* a letter is about so wide at most, over a line; from 13 px on text is bold */
    int most = (int)(width / ((size < 13 ? 0.53 : 0.62) * size)), lines = 0;
    while (*text || !lines) {
        int n = (int)strlen(text), cut = n;
        if (n > most) {
            for (cut = most; cut > 1 && text[cut] != ' ';)
                cut--;
            cut = cut > 1 ? cut : most;
        }
        char *line = xasprintf("%.*s", cut, text);
        if (f) {
            fprintf(f, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\">", css, x, y + 1.35 * size * lines);
            html_text(f, line);
            fprintf(f, "</text>\n");
        }
        free(line);
        text += cut;
        text += *text == ' ';
        lines++;
    }
    return lines;
}

/* ---- The frame: grid, ticks and their labels ---- */

static int y_ticks(const Chart *c, Scale y, double tick[12], double *step)
{
    return scale_ticks(y, c->height > 260 ? 6 : 4, tick, step);
}

static void frame_open(FILE *f, const Chart *c, Scale x, Scale y, const char *label)
{
    double tick[12], step;
    char text[32];
    double most = fmax(fabs(y.lo), fabs(y.hi));
    fprintf(f, "<div class=\"plot\" style=\"height:%dpx\" role=\"img\" aria-label=\"", c->height);
    html_text(f, label);
    fprintf(f, "\" data-x=\"%.9g %.9g %d\" data-name=\"", x.lo, x.hi, x.log);
    html_text(f, c->x_name);
    fprintf(f, "\">\n");
    int n = y_ticks(c, y, tick, &step);
    for (int i = 0; i < n; i++)
        fprintf(f, "<i class=\"y\" style=\"top:%.2f%%\">%s</i>", 100 - 100 * scale_at(y, tick[i]),
                axis_text(text, tick[i], step, most));
    n = scale_ticks(x, 6, tick, &step);
    for (int i = 0; i < n; i++)
        if (tick[i] == rint(tick[i]) || strcmp(c->x_name, "iteration"))    /* there is no half an iteration */
            fprintf(f, "<i class=\"x\" style=\"left:%.2f%%\">%s</i>", 100 * scale_at(x, tick[i]),
                    axis_text(text, tick[i], strcmp(c->x_name, "iteration") ? step : fmax(1, step), x.hi));
    fprintf(f, "<i class=\"xname\">");
    html_text(f, c->x_name);
    fprintf(f, "</i>\n");
    for (int i = 0; i < c->nmark; i++)
        if (c->mark[i] > x.lo && c->mark[i] < x.hi)
            fprintf(f, "<i class=\"mark\" style=\"left:%.2f%%\" title=\"resumed after iteration %.0f\"></i>",
                    100 * scale_at(x, c->mark[i]), c->mark[i]);
    fprintf(f, "<svg viewBox=\"0 0 1000 1000\" preserveAspectRatio=\"none\" aria-hidden=\"true\">\n");
    n = y_ticks(c, y, tick, &step);
    for (int i = 0; i < n; i++)
        fprintf(f, "<path class=\"rule%s\" d=\"M0 %.1fH1000\"/>", tick[i] == 0 ? " zero" : "",
                1000 - 1000 * scale_at(y, tick[i]));
    fputc('\n', f);
}

/* Range of the x axis: all points, or those right of x_from. */
static Scale x_scale(const Chart *c)
{
    Scale s = {INFINITY, -INFINITY, c->log_x};
    for (int k = 0; k < c->n; k++)
        for (int64_t i = 0; i < c->series[k].n; i++) {
            double x = c->series[k].x[i];
            if ((c->log_x && x <= 0) || x < c->x_from)
                continue;
            s.lo = fmin(s.lo, x);
            s.hi = fmax(s.hi, x);
        }
    if (s.lo == s.hi && s.log)
        return (Scale){s.lo / 2, s.hi * 2, 1};
    if (s.lo == s.hi)
        return (Scale){s.lo - 1, s.hi + 1, 0};
    if (!s.log && isnan(c->x_from) && s.lo > 0 && s.lo < 0.1 * s.hi)
        s.lo = 0;
    return s;
}

static Scale y_scale(const Chart *c, Scale x)
{
    Scale s = {INFINITY, -INFINITY, c->log_y};
    for (int k = 0; k < c->n; k++)
        for (int64_t i = 0; i < c->series[k].n; i++) {
            double y = c->series[k].y[i];
            if (!isfinite(y) || (s.log && y <= 0) || c->series[k].x[i] < x.lo || c->series[k].x[i] > x.hi)
                continue;
            s.lo = fmin(s.lo, y);
            s.hi = fmax(s.hi, y);
        }
    if (s.lo > s.hi)
        return s;
    if (s.log) {
        double pad = pow(fmax(s.hi / s.lo, 2), 0.05);
        return (Scale){s.lo / pad, s.hi * pad, 1};
    }
    if (c->zero)
        return (Scale){fmin(0, s.lo), s.hi > 0 ? s.hi * 1.06 : 1, 0};
    double pad = s.hi > s.lo ? 0.05 * (s.hi - s.lo) : fmax(fabs(s.hi) * 0.05, 1e-12);
    return (Scale){s.lo - pad, s.hi + pad, 0};
}

/* ---- Lines ---- */

static void draw_line(FILE *f, const Series *s, Scale x, Scale y, const int64_t *keep, int64_t n)
{
    fprintf(f, "<path class=\"line %s%s\" d=\"", s->css, s->draw == DRAW_FAINT ? " faint" : "");
    int open = 0;
    for (int64_t k = 0; k < n; k++) {
        int64_t i = keep[k];
        double px = 1000 * scale_at(x, s->x[i]), py = 1000 - 1000 * scale_at(y, s->y[i]);
        int ok = isfinite(s->y[i]) && isfinite(px) && isfinite(py) && px >= -1e-6;
        int alone = ok && !open && (k + 1 == n || !isfinite(s->y[keep[k + 1]]));
        if (ok)
            fprintf(f, "%c%.1f %.1f%s", open ? 'L' : 'M', px, py, alone ? "h0" : "");
        open = ok;
    }
    fprintf(f, "\"/>\n");
    if (s->draw != DRAW_DOTS || n > 80)
        return;
    fprintf(f, "<path class=\"dots %s\" d=\"", s->css);
    for (int64_t k = 0; k < n; k++) {
        double px = 1000 * scale_at(x, s->x[keep[k]]), py = 1000 - 1000 * scale_at(y, s->y[keep[k]]);
        if (isfinite(px) && isfinite(py) && px >= -1e-6)
            fprintf(f, "M%.1f %.1fh0", px, py);
    }
    fprintf(f, "\"/>\n");
}

static double last_finite(const Series *s)
{
    for (int64_t i = s->n; i-- > 0;)
        if (isfinite(s->y[i]))
            return s->y[i];
    return NAN;
}

/* Six significant digits are more than a curve shows. */
static void put_array(FILE *f, const double *v, const int64_t *keep, int64_t n)
{
    fputc('[', f);
    for (int64_t k = 0; k < n; k++)
        if (isfinite(v[keep[k]]))
            fprintf(f, k ? ",%.6g" : "%.6g", v[keep[k]]);
        else
            fputs(k ? ",null" : "null", f);
    fputc(']', f);
}

/* Values at the right end of their lines, pushed apart where they would touch (labels are 17 px high). */
static void end_labels(FILE *f, const Chart *c, Scale y)
{
    struct { double top; int k; } label[8];
    int n = 0;
    char text[32];
    double gap = 1700.0 / c->height;
    for (int k = 0; k < c->n && n < 8; k++) {
        double top = 100 - 100 * scale_at(y, last_finite(&c->series[k]));
        if (c->series[k].draw == DRAW_FAINT || !isfinite(top))
            continue;
        int i = n++;
        for (; i > 0 && label[i - 1].top > top; i--)
            label[i] = label[i - 1];
        label[i].top = top;
        label[i].k = k;
    }
    for (int i = 1; i < n; i++)
        if (label[i].top < label[i - 1].top + gap)
            label[i].top = label[i - 1].top + gap;
    for (int i = 0; i < n; i++) {
        const Series *s = &c->series[label[i].k];
        fprintf(f, "<i class=\"end %s\" style=\"top:%.2f%%\">%s</i>", s->css, label[i].top,
                number_text(text, last_finite(s)));
    }
}

void chart_lines(FILE *f, const Chart *c)
{
    Scale x = x_scale(c), y = x.lo < x.hi ? y_scale(c, x) : (Scale){1, 0, 0};
    if (!(y.lo < y.hi)) {
        fprintf(f, "<p class=\"none\">nothing was recorded</p>\n");
        return;
    }
    char label[256];
    snprintf(label, sizeof label, "%s over %s %.6g to %.6g, between %.4g and %.4g %s", c->title, c->x_name,
             x.lo, x.hi, y.lo, y.hi, c->unit);
    frame_open(f, c, x, y, label);
    int64_t *keep[8], n[8], first;
    BUG_ON(c->n > 8);
    for (int k = 0; k < c->n; k++) {
        const Series *s = &c->series[k];
        for (first = 0; first < s->n && s->x[first] < x.lo; first++)
            ;
        keep[k] = xcalloc((size_t)s->n, sizeof **keep);
        n[k] = scale_thin(x, s->x + first, s->y + first, s->n - first, keep[k]);
        for (int64_t i = 0; i < n[k]; i++)
            keep[k][i] += first;
        draw_line(f, s, x, y, keep[k], n[k]);
    }
    fprintf(f, "</svg>");
    end_labels(f, c, y);
    fprintf(f, "\n<script type=\"application/json\">[");
    for (int k = 0; k < c->n; k++) {
        const Series *s = &c->series[k];
        fprintf(f, "%s{\"n\":\"%s\",\"c\":\"%s\",\"x\":", k ? "," : "", s->name, s->css);
        put_array(f, s->x, keep[k], n[k]);
        fprintf(f, ",\"y\":");
        put_array(f, s->y, keep[k], n[k]);
        fprintf(f, "}");
        free(keep[k]);
    }
    fprintf(f, "]</script></div>\n");
}

void chart_legend(FILE *f, const Chart *c, int areas)
{
    char text[32];
    fprintf(f, "<ul class=\"legend%s\">", areas ? " areas" : "");
    for (int k = 0; k < c->n; k++) {
        const Series *s = &c->series[k];
        fprintf(f, "<li class=\"%s%s\">%s", s->css, s->draw == DRAW_FAINT ? " faint" : "", s->name);
        if (s->draw != DRAW_FAINT && !areas)
            fprintf(f, " <b>%s</b>", number_text(text, last_finite(s)));
        fprintf(f, "</li>");
    }
    fprintf(f, "</ul>\n");
}

/* ---- Areas on top of each other ---- */

void chart_stack(FILE *f, const Chart *c)
{
    int64_t n = c->n ? c->series[0].n : 0, columns = n < COLUMNS ? n : COLUMNS;
    double *x = xcalloc((size_t)columns + 1, sizeof *x);
    double *sum = xcalloc((size_t)columns + 1, (size_t)(c->n + 1) * sizeof *sum); /* [series + 1][columns] */
    for (int64_t j = 0; j < columns; j++) {
        int64_t from = j * n / columns, to = (j + 1) * n / columns;
        x[j] = c->series[0].x[to - 1];
        for (int k = 0; k < c->n; k++) {
            double mean = 0;
            for (int64_t i = from; i < to; i++)
                mean += isfinite(c->series[k].y[i]) ? fmax(0, c->series[k].y[i]) / (double)(to - from) : 0;
            sum[(k + 1) * columns + j] = sum[k * columns + j] + mean;
        }
    }
    Series top = {"", "", DRAW_LINE, columns, x, sum + c->n * columns};
    Chart whole = *c;
    whole.series = &top;
    whole.n = 1;
    whole.zero = 1;
    Scale xs = x_scale(&whole), ys = xs.lo < xs.hi ? y_scale(&whole, xs) : (Scale){1, 0, 0};
    if (!(ys.lo < ys.hi)) {
        fprintf(f, "<p class=\"none\">nothing was recorded</p>\n");
    } else {
        char label[256];
        snprintf(label, sizeof label, "%s over %s, up to %.4g %s", c->title, c->x_name, ys.hi, c->unit);
        frame_open(f, c, xs, ys, label);
        for (int k = 0; k < c->n; k++) {
            const double *lo = sum + k * columns, *hi = sum + (k + 1) * columns;
            fprintf(f, "<path class=\"area %s\" d=\"", c->series[k].css);
            /* a single column is drawn as a bar across the plot */
            for (int64_t j = 0; j < columns; j++)
                fprintf(f, "%c%.1f %.1f", j ? 'L' : 'M', columns == 1 ? 0 : 1000 * scale_at(xs, x[j]),
                        1000 - 1000 * scale_at(ys, hi[j]));
            if (columns == 1)
                fprintf(f, "H1000");
            for (int64_t j = columns; j-- > 0;)
                fprintf(f, "L%.1f %.1f", columns == 1 ? 1000 : 1000 * scale_at(xs, x[j]),
                        1000 - 1000 * scale_at(ys, lo[j]));
            fprintf(f, "%sZ\"/>\n", columns == 1 ? "H0" : "");
        }
        fprintf(f, "</svg>\n<script type=\"application/json\">[");
        for (int k = 0; k < c->n; k++) {
            fprintf(f, "%s{\"n\":\"%s\",\"c\":\"%s\",\"x\":[", k ? "," : "", c->series[k].name,
                    c->series[k].css);
            for (int64_t j = 0; j < columns; j++)
                fprintf(f, j ? ",%.6g" : "%.6g", x[j]);
            fprintf(f, "],\"y\":[");
            for (int64_t j = 0; j < columns; j++)
                fprintf(f, j ? ",%.4g" : "%.4g", sum[(k + 1) * columns + j] - sum[k * columns + j]);
            fprintf(f, "]}");
        }
        fprintf(f, "]</script></div>\n");
    }
    free(x);
    free(sum);
}
