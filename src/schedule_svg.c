#include "schedule_svg.h"
#include "base.h"
#include "chart.h"
#include <math.h>

enum { LEFT = 66, TOP = 84, ROW = 30, BAR = 24, RIGHT = 24, BOTTOM = 46, WIDEST = 16000 };

static const struct { const char *name, *colour; } look[] = {
    [I_F] = {"forward", "#3a6fb5"}, [I_B] = {"backward", "#c8662b"},
    [I_D] = {"backward, input", "#bd6d12"}, [I_W] = {"backward, weights", "#3f8f5b"},
};

/* Later chunks are paler. */
static double strength(const PipeShape *s, int chunk) { return s->v == 1 ? 1 : 1 - 0.62 * chunk / (s->v - 1); }

/* A step of the axis: 1, 2 or 5 times a power of ten, at least `least`. */
static double nice(double least)
{
    double ten = pow(10, floor(log10(least)));
    return least <= ten ? ten : least <= 2 * ten ? 2 * ten : least <= 5 * ten ? 5 * ten : 10 * ten;
}

static void put_bar(FILE *f, const PipeShape *s, const Instr *i, const Span *at, int rank, double x0, double scale)
{
    double x = LEFT + (at->start - x0) * scale, w = (at->end - at->start) * scale;
    double y = TOP + rank * ROW + (ROW - BAR) / 2.0, strong = strength(s, i->chunk);
    char text[32];
    int digits = snprintf(text, sizeof text, "%d", i->mb);
    if (w <= 0)
        return;
    instr_print(i, text, sizeof text);
    fprintf(f, "<rect class=\"%s\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\" fill-opacity=\"%.2f\"><title>%s  "
            "%g to %g</title></rect>\n", instr_info[i->op].letters, x, y, fmax(0.3, w - (w > 4)), BAR, strong, text,
            at->start - x0, at->end - x0);
    if (w >= 7.0 * digits + 3)
        fprintf(f, "<text class=\"%s\" x=\"%.2f\" y=\"%.1f\">%d</text>\n", strong > 0.6 ? "n" : "n d", x + (w - 1) / 2,
                y + BAR / 2.0 + 4, i->mb);
}

static void put_legend(FILE *f, const PipeShape *s, const int used[])
{
    int x = LEFT;
    for (int op = I_F; op <= I_W; op++) {
        if (!used[op])
            continue;
        for (int c = 0; c < s->v; c++, x += 14)
            fprintf(f, "<rect class=\"%s\" x=\"%d\" y=\"46\" width=\"13\" height=\"14\" fill-opacity=\"%.2f\"/>\n",
                    instr_info[op].letters, x, strength(s, c));
        fprintf(f, "<text x=\"%d\" y=\"57\">%s %s</text>\n", x + 5, instr_info[op].letters, look[op].name);
        x += 150;
    }
    fprintf(f, "<rect class=\"lane\" x=\"%d\" y=\"46\" width=\"13\" height=\"14\"/>\n<text x=\"%d\" "
            "y=\"57\">waiting</text>\n", x, x + 19);
    if (s->v > 1)
        fprintf(f, "<text x=\"%d\" y=\"57\">paler: later chunks of the rank</text>\n", x + 90);
}

static void put_axis(FILE *f, int p, double length, double scale, const char *unit)
{
    int bottom = TOP + p * ROW;
    double step = nice(64 / scale);
    for (int k = 0; k * step <= length * (1 + 1e-9); k++)
        fprintf(f, "<path class=\"tick\" d=\"M%.2f %dV%d\"/>\n<text class=\"t\" x=\"%.2f\" y=\"%d\">%g</text>\n",
                LEFT + k * step * scale, TOP, bottom + 5, LEFT + k * step * scale, bottom + 19, k * step);
    fprintf(f, "<text class=\"t\" x=\"%.1f\" y=\"%d\">", LEFT + length * scale / 2, bottom + 37);
    html_text(f, unit);
    fprintf(f, "</text>\n");
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
    int height = TOP + s->p * ROW + BOTTOM;
    fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%d\" viewBox=\"0 0 %.0f "
            "%d\">\n<style>\n"
            "text{font:12px system-ui,sans-serif;fill:#222}.h{font-size:15px;font-weight:600}.r{text-anchor:end}"
            ".t{text-anchor:middle;fill:#555}.n{text-anchor:middle;fill:#fff;font-size:11px}.d{fill:#111}"
            ".lane{fill:#e9ebee}.tick{stroke:#b9bec6;stroke-width:1;stroke-dasharray:2 3}\n",
            width, height, width, height);
    for (int op = I_F; op <= I_W; op++)
        fprintf(f, ".%s{fill:%s}", instr_info[op].letters, look[op].colour);
    fprintf(f, "\n</style>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n<text class=\"h\" x=\"%d\" "
            "y=\"26\">", LEFT);
    html_text(f, title);
    fprintf(f, "</text>\n");
    put_legend(f, s, used);
    for (int r = 0; r < s->p; r++)
        fprintf(f, "<rect class=\"lane\" x=\"%d\" y=\"%.1f\" width=\"%.2f\" height=\"%d\"/>\n<text class=\"r\" "
                "x=\"%d\" "
                "y=\"%d\">rank %d</text>\n", LEFT, TOP + r * ROW + (ROW - BAR) / 2.0, length * scale, BAR, LEFT - 8,
                TOP + r * ROW + 19, r);
    put_axis(f, s->p, length, scale, unit);
    for (int r = 0; r < s->p; r++)
        for (int i = 0; i < set->rank[r].n; i++)
            if (set->rank[r].list[i].op <= I_W)
                put_bar(f, s, &set->rank[r].list[i], &sim->span[r][i], r, first, scale);
    fprintf(f, "</svg>\n");
}
