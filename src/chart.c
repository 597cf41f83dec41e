#include "chart.h"
#include "base.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define THIN_ABOVE 1000
#define COLUMNS 250                /* of a thinned plot, each with up to 4 points */

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

/* ---- Scales ---- */

double scale_at(Scale s, double v)
{
    return s.log ? log(v / s.lo) / log(s.hi / s.lo) : (v - s.lo) / (s.hi - s.lo);
}

/* 1, 2 or 5 times a power of ten, the smallest that is not below v */
static double round_up(double v)
{
    double p = pow(10, floor(log10(v)));
    for (int i = 0; i < 3; i++)
        if (v <= p * (double[]){1, 2, 5}[i] * (1 + 1e-9))
            return p * (double[]){1, 2, 5}[i];
    return 10 * p;
}

static int log_ticks(Scale s, int want, double tick[12], double *step)
{
    /* decades when there are enough of them, else 1 2 5 */
    double decades = log10(s.hi / s.lo);
    int every = (int)ceil(decades / want), n = 0, fine = decades < want / 2.0;
    for (int e = (int)floor(log10(s.lo)); e <= (int)ceil(log10(s.hi)); e++)
        for (int i = 0; i < (fine ? 3 : 1); i++) {
            double v = pow(10, e) * (double[]){1, 2, 5}[i];
            if (v >= s.lo * (1 - 1e-9) && v <= s.hi * (1 + 1e-9) && n < 12 && (fine || e % every == 0))
                tick[n++] = v;
        }
    *step = 0;
    return n;
}

int scale_ticks(Scale s, int want, double tick[12], double *step)
{
    int n = s.log ? log_ticks(s, want, tick, step) : 0;
    if (n >= 2)
        return n;
    *step = round_up((s.hi - s.lo) / want);
    n = 0;
    for (double k = ceil(s.lo / *step - 1e-9); k * *step <= s.hi + 1e-9 * *step && n < 12; k++)
        tick[n++] = k * *step;
    return n;
}

const char *tick_text(char text[32], double v, double step)
{
    static const struct { double by; const char *unit; } big[] = {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}};
    double size = fabs(v), grain = step > 0 ? step : size;
    const char *unit = "";
    if (size == 0 || !isfinite(v))
        return strcpy(text, isfinite(v) ? "0" : "n/a");
    if (size < 1e-3) {                             /* 3e-4: what a learning rate is called */
        int e = (int)floor(log10(size) + 1e-9), digits = (int)ceil(e - log10(grain) - 1e-9);
        snprintf(text, 32, "%.*fe%d", digits < 0 ? 0 : digits > 3 ? 3 : digits, v / pow(10, e), e);
        return text;
    }
    for (int i = 0; i < 4 && size >= 99999.5; i++)
        if (size >= big[i].by) {
            v /= big[i].by;
            grain /= big[i].by;
            unit = big[i].unit;
            break;
        }
    int digits = grain < 1 ? (int)ceil(-log10(grain) - 1e-9) : 0;
    if (size >= 1e4 && !*unit)
        snprintf(text, 32, "%d,%03d", (int)rint(v) / 1000, abs((int)rint(v)) % 1000);
    else
        snprintf(text, 32, "%.*f%s", digits > 6 ? 6 : digits, v, unit);
    return text;
}

/* ---- Thinning ---- */

/* A column of the picture keeps its first, lowest, highest and last point: the eye cannot see that the rest is gone. */
int64_t chart_thin(Scale x, const double *xs, const double *ys, int64_t n, int64_t *keep)
{
    int64_t kept = 0;
    if (n <= THIN_ABOVE) {
        for (int64_t i = 0; i < n; i++)
            keep[kept++] = i;
        return kept;
    }
    for (int64_t i = 0, end; i < n; i = end) {
        int column = (int)(scale_at(x, xs[i]) * COLUMNS);
        int64_t low = -1, high = -1, first = -1, last = -1;
        for (end = i; end < n && (int)(scale_at(x, xs[end]) * COLUMNS) == column; end++) {
            if (!isfinite(ys[end]))
                continue;
            first = first < 0 ? end : first;
            last = end;
            low = low < 0 || ys[end] < ys[low] ? end : low;
            high = high < 0 || ys[end] > ys[high] ? end : high;
        }
        if (first < 0) {
            keep[kept++] = i;                      /* a whole column without a number is a gap */
            continue;
        }
        int64_t pick[4] = {first, low < high ? low : high, low < high ? high : low, last};
        for (int k = 0; k < 4; k++)
            if (!kept || keep[kept - 1] < pick[k])
                keep[kept++] = pick[k];
    }
    return kept;
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
    fprintf(f, "<div class=\"plot\" style=\"height:%dpx\" role=\"img\" aria-label=\"", c->height);
    html_text(f, label);
    fprintf(f, "\" data-x=\"%.9g %.9g %d\">\n", x.lo, x.hi, x.log);
    int n = y_ticks(c, y, tick, &step);
    for (int i = 0; i < n; i++)
        fprintf(f, "<i class=\"y\" style=\"top:%.2f%%\">%s</i>", 100 - 100 * scale_at(y, tick[i]),
                tick_text(text, tick[i], step));
    n = scale_ticks(x, 6, tick, &step);
    for (int i = 0; i < n; i++)
        if (tick[i] == rint(tick[i]))              /* there is no half an iteration */
            fprintf(f, "<i class=\"x\" style=\"left:%.2f%%\">%s</i>", 100 * scale_at(x, tick[i]),
                    tick_text(text, tick[i], fmax(1, step)));
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

/* Four significant digits; 6e-5 rather than 6.000e-5. */
static const char *value_text(char text[32], double v)
{
    double size = fabs(v);
    if (size >= 1e-3 || size == 0 || !isfinite(v))
        return tick_text(text, v, v != 0 && isfinite(v) ? pow(10, floor(log10(size)) - 3) : 1);
    int e = (int)floor(log10(size) + 1e-9);
    snprintf(text, 32, "%.3ge%d", v / pow(10, e), e);
    return text;
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
                value_text(text, last_finite(s)));
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
    snprintf(label, sizeof label, "%s over %s %.6g to %.6g, between %.4g and %.4g %s", c->title, c->x_name, x.lo,
             x.hi, y.lo, y.hi, c->unit);
    frame_open(f, c, x, y, label);
    int64_t *keep[8], n[8], first;
    BUG_ON(c->n > 8);
    for (int k = 0; k < c->n; k++) {
        const Series *s = &c->series[k];
        for (first = 0; first < s->n && s->x[first] < x.lo; first++)
            ;
        keep[k] = xcalloc((size_t)s->n, sizeof **keep);
        n[k] = chart_thin(x, s->x + first, s->y + first, s->n - first, keep[k]);
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
            fprintf(f, " <b>%s</b>", value_text(text, last_finite(s)));
        fprintf(f, "</li>");
    }
    fprintf(f, "</ul>\n");
}

/* ---- Areas on top of each other ---- */

void chart_stack(FILE *f, const Chart *c)
{
    int64_t n = c->n ? c->series[0].n : 0, columns = n < COLUMNS ? n : COLUMNS;
    double *x = xcalloc((size_t)columns + 1, sizeof *x);
    double *sum = xcalloc((size_t)columns + 1, (size_t)(c->n + 1) * sizeof *sum);   /* [series + 1][columns] */
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
            fprintf(f, "%s{\"n\":\"%s\",\"c\":\"%s\",\"x\":[", k ? "," : "", c->series[k].name, c->series[k].css);
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

/* ---- Timeline ---- */

void chart_timeline(FILE *f, const Bar *bar, int64_t n, const char *const *row_name, int rows, const char *unit)
{
    Scale x = {INFINITY, -INFINITY, 0};
    for (int64_t i = 0; i < n; i++) {
        x.lo = fmin(x.lo, bar[i].start);
        x.hi = fmax(x.hi, bar[i].end);
    }
    if (!(x.lo < x.hi)) {
        fprintf(f, "<p class=\"none\">nothing was recorded</p>\n");
        return;
    }
    double tick[12], step, each = 1000.0 / rows;
    char text[32];
    x.hi -= x.lo;
    fprintf(f, "<div class=\"plot lanes\" style=\"height:%dpx\">\n", rows * 30);
    for (int r = 0; r < rows; r++) {
        fprintf(f, "<i class=\"y lane\" style=\"top:%.2f%%\" title=\"", (r + 0.5) * 100 / rows);
        html_text(f, row_name[r]);
        fprintf(f, "\">rank %d</i>", r);
    }
    int ticks = scale_ticks((Scale){0, x.hi, 0}, 6, tick, &step);
    for (int i = 0; i < ticks; i++)
        fprintf(f, "<i class=\"x\" style=\"left:%.2f%%\">%s</i>", 100 * tick[i] / x.hi,
                tick_text(text, tick[i], step));
    fprintf(f, "<i class=\"xname\">%s</i>\n<svg viewBox=\"0 0 1000 1000\" preserveAspectRatio=\"none\">\n", unit);
    for (int64_t i = 0; i < n; i++) {
        const Bar *b = &bar[i];
        fprintf(f, "<rect class=\"%s\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"><title>", b->css,
                1000 * (b->start - x.lo) / x.hi, b->row * each + 0.1 * each,
                fmax(0.3, 1000 * (b->end - b->start) / x.hi), 0.8 * each);
        html_text(f, b->title);
        fprintf(f, "</title></rect>\n");
    }
    fprintf(f, "</svg>\n");
    for (int64_t i = 0; i < n && n <= 600; i++)    /* a number fits where the bar is 1.8 % of the width or more */
        if (*bar[i].label && bar[i].end - bar[i].start >= 0.018 * x.hi) {
            fprintf(f, "<i class=\"tag %s\" style=\"left:%.2f%%;top:%.2f%%\">",
                    bar[i].css, 100 * ((bar[i].start + bar[i].end) / 2 - x.lo) / x.hi, (bar[i].row + 0.5) * 100 / rows);
            html_text(f, bar[i].label);
            fprintf(f, "</i>");
        }
    fprintf(f, "</div>\n");
}
