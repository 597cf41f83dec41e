/* closed_form -- the bubble of each schedule that has a formula, from the paper in its row of SCHEDULES */
#include "closed_form.h"

static Rates both(double rate) { return (Rates){rate, rate}; }

static Rates closed_none(const PipeShape *s)
{
    (void)s;
    return NO_RATES;
}

/* (p-1) / (m+p-1): sec 2.2 of the paper. */
static Rates closed_gpipe(const PipeShape *s) { return both((double)(s->p - 1) / (s->m + s->p - 1)); }

/* As gpipe, if there are at least p microbatches. */
static Rates closed_1f1b(const PipeShape *s) { return s->m >= s->p ? closed_gpipe(s) : NO_RATES; }

/* (p-1) / (vm+p-1), if groups of p microbatches leave no rest. */
static Rates closed_interleaved(const PipeShape *s)
{
    if (s->m % s->p || (s->group && s->group != s->p))
        return NO_RATES;
    return both((s->p - 1) / ((double)s->v * s->m + s->p - 1));
}

/* A rank waits for (p-1)(F+D-W), so (p-1) / (3m+p-1). With m < p it waits for the way down the pipeline and
 * back: (2p-m-1) / (2(m+p-1)+1). */
static Rates closed_zb_h1(const PipeShape *s)
{
    double p = s->p, m = s->m;
    return both(m >= p ? (p - 1) / (3 * m + p - 1) : (2 * p - m - 1) / (2 * (m + p - 1) + 1));
}

/* With m >= 2p-1 no rank waits. The last stage begins (p-1)F/2 late, so a step loses (p-1) / (6m+p-1). */
static Rates closed_zb_v(const PipeShape *s)
{
    double p = s->p, m = s->m;
    return m >= 2 * p - 1 ? (Rates){0, (p - 1) / (6 * m + p - 1)} : NO_RATES;
}

/* Whether all stages take equal times, not all 0, and messages take none. thirds: bool, F, D and W must be
 * equal too. */
static int equal(const PipeShape *s, int thirds)
{
    const double none = 1;
    double sum = 0;
    for (int i = 0; i < s->p * s->v; i++)
        for (int k = 0; k < 3; k++) {
            const double *mine = s->cost[k] ? &s->cost[k][i] : &none, *first = s->cost[thirds ? 0 : k];
            if (*mine != (first ? *first : 1) || pipe_hop(s, i) != 0)
                return 0;
            sum += *mine;
        }
    return sum > 0;
}

Rates closed_form(const PipeShape *s)
{
    static Rates (*const form[SCHEDULE_KINDS])(const PipeShape *s) = {
#define X(id, name, chunks, most, place, backward, least, generator, closed) closed_##closed,
        ALL_SCHEDULES(X)
#undef X
    };
    int known = !s->paired && equal(s, schedule_info[s->kind].backward == BACKWARD_SPLIT);
    return known ? form[s->kind](s) : NO_RATES;
}
