/* bound -- a time that no order of a pipeline's stages can beat */
#include "bound.h"
#include "base.h"
#include <math.h>
#include <stdlib.h>

typedef struct {
    const PipeShape *s;
    int n;                     /* stages */
    double *up;                /* [n] least time from the start of the step to that of a stage's first F */
    double *round;             /* [n] least time from the start of a microbatch's F to that of its D */
    double *down;              /* [n] least time from the end of a D to that of stage 0's D */
} Ways;

static double cost(const Ways *w, int k, int stage) { return w->s->cost[k] ? w->s->cost[k][stage] : 1; }

/* The time of a message from a stage to its neighbour; none on the same rank. */
static double hop(const Ways *w, int from, int to)
{
    int rank, its, chunk;
    pipe_place(w->s, from, &rank, &chunk);
    pipe_place(w->s, to, &its, &chunk);
    return rank == its ? 0 : pipe_hop(w->s, from);
}

static void ways_open(Ways *w, const PipeShape *s)
{
    *w = (Ways){.s = s, .n = s->p * s->v};
    w->up = xcalloc(3 * (size_t)w->n, sizeof *w->up);
    w->round = w->up + w->n;
    w->down = w->round + w->n;
    for (int i = 1; i < w->n; i++) {
        w->up[i] = w->up[i - 1] + cost(w, 0, i - 1) + hop(w, i - 1, i);
        w->down[i] = hop(w, i, i - 1) + cost(w, 1, i - 1) + w->down[i - 1];
    }
    w->round[w->n - 1] = cost(w, 0, w->n - 1);
    for (int i = w->n - 2; i >= 0; i--)
        w->round[i] = cost(w, 0, i) + hop(w, i, i + 1) + w->round[i + 1] + cost(w, 1, i + 1) +
                      hop(w, i + 1, i);
}

/* The bound of one rank. */
static double of_rank(const Ways *w, int rank, double peak)
{
    const PipeShape *s = w->s;
    int low = w->n, high = 0;
    double f = 0, d = 0, all = 0, longest = 0, held = 0, idle = 0, room = floor(peak * s->v + 1e-9);
    for (int c = 0; c < s->v; c++) {
        int i = pipe_stage(s, rank, c);
        idle = fmax(idle, w->up[i] - fmin(f, room * longest));     /* till then F of earlier chunks run */
        low = i < low ? i : low;
        high = i > high ? i : high;
        f += s->m * cost(w, 0, i);
        d += s->m * cost(w, 1, i);
        all += s->m * (cost(w, 0, i) + cost(w, 1, i) + cost(w, 2, i));
        longest = fmax(longest, cost(w, 0, i));
        held += s->m * (w->round[i] + cost(w, 1, i) + s->weight_share * cost(w, 2, i));
    }
    double before = fmin(f, room * longest);                       /* F before the first D */
    double start = fmax(fmax(w->up[low], idle), w->up[high] + w->round[high] - before);
    double ends = fmax(all, f + d + w->down[low] + cost(w, 2, 0));
    return fmax(start + ends, w->up[low] + held / (peak * s->v));
}

double step_bound(const PipeShape *s, double peak)
{
    Ways w;
    ways_open(&w, s);
    double most = w.round[0] + cost(&w, 1, 0) + cost(&w, 2, 0);
    for (int rank = 0; rank < s->p; rank++)
        most = fmax(most, of_rank(&w, rank, peak));
    free(w.up);
    return most;
}
