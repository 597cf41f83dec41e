/* svg -- the parts of every picture of the program */
#include "svg.h"
#include "base.h"
#include "scale.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The style sheets and the script are embedded in the executable: no page loads anything. */
#define EMBED(symbol, file)                                                                                  \
    __asm__(".section .rodata\n.global " #symbol "\n" #symbol ": .incbin \"" file "\"\n.byte 0\n.previous\n")
EMBED(svg_css, "src/report/svg.css");
EMBED(page_css, "src/report/report.css");
EMBED(page_js, "src/report/report.js");

enum { LONG = 900 };                   /* px: a longer axis has its name at its beginning */

/* Prints s escaped. Control characters other than newline and tab become spaces. */
static void escaped(FILE *f, const char *s)
{
    for (; *s; s++)
        switch (*s) {
        case '&': fputs("&amp;", f); break;
        case '<': fputs("&lt;", f); break;
        case '>': fputs("&gt;", f); break;
        case '"': fputs("&quot;", f); break;
        case '\'': fputs("&#39;", f); break;
        default: fputc((*s & 0xe0) || *s == '\n' || *s == '\t' ? *s : ' ', f);
        }
}

void html_vput(FILE *f, const char *fmt, va_list ap)
{
    for (; *fmt; fmt++) {
        char spec[16];
        size_t n = strspn(fmt + 1, "+-.0123456789l") + 2;
        if (*fmt != '%') {
            fputc(*fmt == '\'' ? '"' : *fmt, f);
            continue;
        }
        BUG_ON(n >= sizeof spec);
        snprintf(spec, sizeof spec, "%.*s", (int)n, fmt);
        fmt += n - 1;
        switch (*fmt) {
        case '%': fputc('%', f); break;
        case 's': escaped(f, va_arg(ap, const char *)); break;
        case 'c': fputc(va_arg(ap, int), f); break;
        case 'd':
            if (fmt[-1] == 'l')
                fprintf(f, spec, va_arg(ap, long long));
            else
                fprintf(f, spec, va_arg(ap, int));
            break;
        default: fprintf(f, spec, va_arg(ap, double));
        }
    }
}

void html_put(FILE *f, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    html_vput(f, fmt, ap);
    va_end(ap);
}

void svg_open(FILE *f, double width, double height)
{
    html_put(f, "<svg xmlns='http://www.w3.org/2000/svg' width='%.0f' height='%.0f' viewBox='0 0 %.0f %.0f'>"
             "\n", width, height, width, height);
    fprintf(f, "<style>\n%s</style>\n<rect class=\"ground\" width=\"100%%\" height=\"100%%\"/>\n", svg_css);
}

void svg_close(FILE *f) { fputs("</svg>\n", f); }

double svg_x(const Svg *s, double v) { return s->left + s->width * fmin(1, fmax(0, v / s->most)); }

void svg_rect(const Svg *s, const char *css, double opacity, double from, double to, double y, double height,
              const char *title, ...)
{
    double x = svg_x(s, from), width = fmax(svg_x(s, to) - x, s->width / 5000);
    va_list ap;
    html_put(s->f, "<rect class='%s' x='%.2f' y='%.1f' width='%.2f' height='%.1f'", css, x, y, width, height);
    if (opacity < 1)
        html_put(s->f, " fill-opacity='%.2f'", opacity);
    html_put(s->f, title ? "><title>" : "/>\n");
    if (!title)
        return;
    va_start(ap, title);
    html_vput(s->f, title, ap);
    va_end(ap);
    html_put(s->f, "</title></rect>\n");
}

void svg_text(const Svg *s, const char *css, double at, double dx, double y, const char *fmt, ...)
{
    va_list ap;
    html_put(s->f, "<text class='%s' x='%.2f' y='%.1f'", css, svg_x(s, at), y);
    if (dx)
        html_put(s->f, " dx='%.1f'", dx);
    html_put(s->f, ">");
    va_start(ap, fmt);
    html_vput(s->f, fmt, ap);
    va_end(ap);
    html_put(s->f, "</text>\n");
}

int svg_wrap(FILE *f, const char *css, double x, double y, double size, double width, const char *text)
{
    /* Over a line a letter is at most about 0.53 of its size wide; from 13 px on it is bold: 0.62. */
    int most = (int)(width / ((size < 13 ? 0.53 : 0.62) * size)), lines = 0;
    while (*text || !lines) {
        int n = (int)strlen(text), cut = n;
        if (n > most) {
            for (cut = most; cut > 1 && text[cut] != ' ';)
                cut--;
            cut = cut > 1 ? cut : most;
        }
        char *line = xasprintf("%.*s", cut, text);
        if (f)
            html_put(f, "<text class='%s' x='%.1f' y='%.1f'>%s</text>\n", css, x, y + 1.35 * size * lines,
                     line);
        free(line);
        text += cut;
        text += *text == ' ';
        lines++;
    }
    return lines;
}

void svg_axis(const Svg *s, double top, double bottom, const char *name)
{
    double step = scale_step(s->most / (int)fmax(4, s->width / 75));
    char text[32];
    for (int i = 0; i * step <= s->most + 1e-9 * step; i++) {
        double x = svg_x(s, i * step);
        html_put(s->f, "<line class='tick' x1='%.2f' x2='%.2f' y1='%.1f' y2='%.1f'/>", x, x, top, bottom + 5);
        svg_text(s, "t", i * step, 0, bottom + 18, "%s", scale_label(text, i * step, step, s->most));
    }
    int begins = s->width > LONG;
    svg_text(s, begins ? "soft" : "r soft", begins ? 0 : s->most, 0, bottom + 35, "%s", name);
}

void svg_mark(FILE *f, const Key *k, double x, double y)
{
    html_put(f, "<path class='%s' transform='translate(%.1f %.1f)' d='%s'/>\n", k->css, x, y,
             k->path ? k->path : "M-6 -6H6V6H-6Z");
}

double svg_keys(FILE *f, const Key *k, int n, double x0, double y0, double right)
{
    double x = x0, y = y0;
    for (int i = 0; i < n; i++) {
        double letters = 6.6 * (double)strlen(k[i].name), swatch = k[i].css ? 20 : 0;
        if (x > x0 && x + swatch + letters > right) {
            x = x0;
            y += 20;
        }
        if (f && k[i].css)
            svg_mark(f, &k[i], x + 7, y - 4);
        if (f)
            html_put(f, "<text x='%.1f' y='%.1f'>%s</text>\n", x + swatch, y, k[i].name);
        x += swatch + letters + 16;
    }
    return y - y0;
}

void html_keys(FILE *f, const Key *k, int n)
{
    html_put(f, "<ul class='legend'>");
    for (int i = 0; i < n; i++) {
        html_put(f, "<li>");
        if (k[i].css)
            html_put(f, "<span class='dot %s'></span>", k[i].css);
        html_put(f, "%s</li>", k[i].name);
    }
    html_put(f, "</ul>\n");
}
