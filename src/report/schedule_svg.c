#include "schedule_svg.h"
#include "base.h"
#include "chart.h"
#include <math.h>
#include <stdlib.h>

enum { LEFT = 66, HEAD = 26, TITLE = 15, ROW = 30, BAR = 24, RIGHT = 24, BOTTOM = 46, WIDEST = 16000 };

static const struct { const char *name, *colour; } look[] = {
    [I_F] = {"forward", "#3a6fb5"}, [I_B] = {"backward", "#c8662b"},
    [I_D] = {"backward, input", "#bd6d12"}, [I_W] = {"backward, weights", "#3f8f5b"},
};

/* Later chunks are fainter. */
static double strength(const PipeShape *s, int chunk)
{
    return s->v == 1 ? 1 : 1 - 0.62 * chunk / (s->v - 1);
}

/* A step of the axis: 1, 2 or 5 times a power of ten, at least `least`. */
static double nice(double least)
{
    double ten = pow(10, floor(log10(least)));
    return least <= ten ? ten : least <= 2 * ten ? 2 * ten : least <= 5 * ten ? 5 * ten : 10 * ten;
}

static void put_bar(FILE *f, const PipeShape *s, const Instr *i, const Span *at, double y, double x0,
                    double scale)
{
    double x = LEFT + (at->start - x0) * scale, w = (at->end - at->start) * scale;
    double strong = strength(s, i->chunk);
    char text[32];
    int digits = snprintf(text, sizeof text, "%d", i->mb);
    if (w <= 0)
        return;
    instr_print(i, text, sizeof text);
    fprintf(f,
            "<rect class=\"%s\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\" "
            "fill-opacity=\"%.2f\"><title>%s  %g to %g</title></rect>\n",
            instr_info[i->op].letters, x, y, fmax(0.3, w - (w > 4)), BAR, strong, text, at->start - x0,
            at->end - x0);
    if (w >= 7.0 * digits + 3)
        fprintf(f, "<text class=\"%s\" x=\"%.2f\" y=\"%.1f\">%d</text>\n", strong > 0.6 ? "n" : "n d",
                x + (w - 1) / 2, y + BAR / 2.0 + 4, i->mb);
}

/* Where the next entry of the legend stands: in a new line where it would not fit. */
static void place(int *x, int *y, int width, int right)
{
    if (*x > LEFT && *x + width > right) {
        *x = LEFT;
        *y += 20;
    }
}

/* f NULL: only counts. Returns the height of its lines. */
static int put_legend(FILE *f, const PipeShape *s, const int used[], int y0, int right)
{
    int x = LEFT, y = y0;
    for (int op = I_F; op <= I_W; op++) {
        int chunks = s->v < 8 ? s->v : 8;          /* their shades: the first and the faintest among them */
        if (!used[op])
            continue;
        place(&x, &y, 14 * chunks + 140, right);
        for (int c = 0; f && c < chunks; c++)
            fprintf(
                f,
                "<rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"13\" height=\"14\" fill-opacity=\"%.2f\"/>\n",
                instr_info[op].letters, x + 14 * c, y - 11,
                strength(s, chunks > 1 ? c * (s->v - 1) / (chunks - 1) : 0));
        x += 14 * chunks;
        if (f)
            fprintf(f, "<text x=\"%d\" y=\"%d\">%s %s</text>\n", x + 5, y, instr_info[op].letters,
                    look[op].name);
        x += 150;
    }
    place(&x, &y, 80, right);
    if (f)
        fprintf(f, "<rect class=\"lane\" x=\"%d\" y=\"%d\" width=\"13\" height=\"14\"/>\n<text x=\"%d\" "
                "y=\"%d\">waiting</text>\n", x, y - 11, x + 19, y);
    x += 90;
    place(&x, &y, 200, right);
    if (f && s->v > 1)
        fprintf(f, "<text x=\"%d\" y=\"%d\">fainter: later chunks of the rank</text>\n", x, y);
    return y - y0 + 20;
}

static void put_axis(FILE *f, int top, int p, double length, double scale, const char *unit)
{
    int bottom = top + p * ROW;
    double step = nice(64 / scale);
    for (int k = 0; k * step <= length * (1 + 1e-9); k++)
        fprintf(f,
                "<path class=\"tick\" d=\"M%.2f %dV%d\"/>\n<text class=\"t\" x=\"%.2f\" y=\"%d\">%g</text>\n",
                LEFT + k * step * scale, top, bottom + 5, LEFT + k * step * scale, bottom + 19, k * step);
    fprintf(f, "<text class=\"t\" x=\"%.1f\" y=\"%d\">", LEFT + length * scale / 2, bottom + 37);
    html_text(f, unit);
    fprintf(f, "</text>\n");
}

/* On the heap. */
static char *colours(void)
{
    return xasprintf(".h{font-size:%dpx;font-weight:600}.r{text-anchor:end}.t{text-anchor:middle}"
                     ".n{text-anchor:middle;fill:#fff;font-size:11px}.d{fill:#111}.tick{stroke-width:1;"
                     "stroke-dasharray:2 3}.F{fill:%s}.B{fill:%s}.D{fill:%s}.W{fill:%s}",
                     TITLE, look[I_F].colour, look[I_B].colour, look[I_D].colour, look[I_W].colour);
}

void schedule_svg(FILE *f, const ScheduleSet *set, const Simulation *sim, const char *title, const char *unit)
{
    const PipeShape *s = &set->shape;
    double first = INFINITY, shortest = INFINITY;
    int used[INSTR_KINDS] = {0};
    for (int r = 0; r < s->p; r++)
        for (int i = 0; i < set->rank[r].n; i++) {
            double length = sim->span[r][i].end - sim->span[r][i].start;
            used[set->rank[r].list[i].op] = 1;
            if (set->rank[r].list[i].op > I_W)
                continue;
            first = fmin(first, sim->span[r][i].start);
            if (length > 0)
                shortest = fmin(shortest, length);
        }
    double length = fmax(sim->makespan, 1e-9);
    double scale = fmin(fmax(22 / shortest, 760 / length), WIDEST / length);
    double width = fmax(LEFT + length * scale + RIGHT, 900);
    int right = (int)fmin(width, 900) - RIGHT,
        lines = svg_text(NULL, "h", LEFT, HEAD, TITLE, right - LEFT, title);
    int legend = HEAD + (int)(1.35 * TITLE * (lines - 1)) + 31,
        top = legend + put_legend(NULL, s, used, legend, right) + 7;
    char *style = colours();
    svg_open(f, width, top + s->p * ROW + BOTTOM, style, ".n{fill:#fff}.d{fill:#e9e7e2}");
    free(style);
    svg_text(f, "h", LEFT, HEAD, TITLE, right - LEFT, title);
    put_legend(f, s, used, legend, right);
    for (int r = 0; r < s->p; r++)
        fprintf(f,
                "<rect class=\"lane\" x=\"%d\" y=\"%.1f\" width=\"%.2f\" height=\"%d\"/>\n<text class=\"r\" "
                "x=\"%d\" y=\"%d\">rank %d</text>\n",
                LEFT, top + r * ROW + (ROW - BAR) / 2.0, length * scale, BAR, LEFT - 8, top + r * ROW + 19,
                r);
    put_axis(f, top, s->p, length, scale, unit);
    for (int r = 0; r < s->p; r++)
        for (int i = 0; i < set->rank[r].n; i++)
            if (set->rank[r].list[i].op <= I_W)
                put_bar(f, s, &set->rank[r].list[i], &sim->span[r][i], top + r * ROW + (ROW - BAR) / 2.0,
                        first, scale);
    fprintf(f, "</svg>\n");
}
