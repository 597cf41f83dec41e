/* schedule_svg -- bars of instructions, and a simulated pipeline as an SVG file */
#include "schedule_svg.h"
#include "svg.h"
#include <math.h>

/* px. TITLE: size of the title. HEAD: its foot. ROW, BAR: heights of a rank's row and of its bars.
 * LEAST: least width of a file. WIDEST: most width of a time axis. LEFT, RIGHT, BOTTOM: margins. */
enum { LEFT = 66, RIGHT = 24, BOTTOM = 46, HEAD = 26, TITLE = 15, ROW = 30, BAR = 24, LEAST = 900 };
enum { WIDEST = 16000 };

/* Draws the bar of instruction i, with its microbatch's number where there is room. v: chunks of the rank;
 * later chunks are fainter. */
static void put_bar(const Svg *s, const Instr *i, int v, Span at, double y)
{
    double strong = v > 1 ? 1 - 0.6 * fmin(1, i->chunk / (v - 1.0)) : 1, px = s->width / s->most;
    double width = (at.end - at.start) * px;
    int digits = snprintf(NULL, 0, "%d", i->mb);
    char css[16], name[32];
    const char *letters = instr_info[i->op].letters;
    instr_print(i, name, sizeof name);
    svg_rect(s, letters, strong, at.start, at.end - (width > 4) / px, y, BAR, "%s  %g to %g", name, at.start,
             at.end);
    snprintf(css, sizeof css, "tag %s", strong > 0.6 ? letters : "far");
    if (i->op <= I_W && width >= 6.5 * digits + 3)
        svg_text(s, css, (at.start + at.end) / 2, 0, y + BAR / 2 + 4, "%d", i->mb);
}

/* Fills in the legend of the kinds in used [INSTR_KINDS], bool. Returns the number of entries. */
enum { KEYS = 6 };
static int keys_of(Key key[KEYS], const int *used, int v)
{
    static const struct { InstrKind op; Key key; } all[] = {
        {I_F, {"F", "F forward", NULL}}, {I_B, {"B", "B backward", NULL}},
        {I_D, {"D", "D backward, input", NULL}}, {I_W, {"W", "W backward, weights", NULL}},
    };
    int n = 0;
    for (int i = 0; i < 4; i++)
        if (used[all[i].op])
            key[n++] = all[i].key;
    key[n++] = (Key){"floor", "waiting", NULL};
    if (v > 1)
        key[n++] = (Key){NULL, "fainter: later chunks of the rank", NULL};
    return n;
}

void schedule_svg(FILE *f, const ScheduleSet *set, const Simulation *sim, const char *title, const char *unit)
{
    const PipeShape *p = &set->shape;
    double first = INFINITY, shortest = INFINITY, length = fmax(sim->makespan, 1e-9);
    int used[INSTR_KINDS] = {0};
    Key key[KEYS];
    for (int r = 0; r < p->p; r++)
        for (int i = 0; i < set->rank[r].n; i++) {
            const Span *at = &sim->span[r][i];
            int op = set->rank[r].list[i].op;
            if (op > I_W)
                continue;
            used[op] = 1;
            first = fmin(first, at->start);
            shortest = at->end > at->start ? fmin(shortest, at->end - at->start) : shortest;
        }
    double px = fmin(fmax(22 * length / shortest, 760), WIDEST), right = LEAST - RIGHT;
    int keys = keys_of(key, used, p->v), lines = svg_wrap(NULL, "h", 0, 0, TITLE, right - LEFT, title);
    double legend = HEAD + 1.35 * TITLE * (lines - 1) + 31,
           top = legend + svg_keys(NULL, key, keys, LEFT, legend, right) + 24;
    Svg s = {f, LEFT, px, length};
    svg_open(f, fmax(LEFT + px + RIGHT, LEAST), top + p->p * ROW + BOTTOM);
    svg_wrap(f, "h", LEFT, HEAD, TITLE, right - LEFT, title);
    svg_keys(f, key, keys, LEFT, legend, right);
    for (int r = 0; r < p->p; r++) {
        svg_rect(&s, "floor", 1, 0, length, top + r * ROW, BAR, NULL);
        svg_text(&s, "r", 0, -8, top + r * ROW + 16, "rank %d", r);
    }
    svg_axis(&s, top - 4, top + p->p * ROW - 4, unit);
    for (int r = 0; r < p->p; r++)
        for (int i = 0; i < set->rank[r].n; i++) {
            const Instr *x = &set->rank[r].list[i];
            Span at = {sim->span[r][i].start - first, sim->span[r][i].end - first};
            if (x->op <= I_W && at.end > at.start)
                put_bar(&s, x, p->v, at, top + r * ROW);
        }
    svg_close(f);
}
