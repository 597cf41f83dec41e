#include "bubble.h"
#include <math.h>

/* Whether all stages take the same times and no message takes any. thirds: and F, D and W are equal. */
static int equal(const PipeShape *s, int thirds)
{
    const double none = 1;
    for (int i = 0; i < s->p * s->v; i++)
        for (int k = 0; k < 3; k++) {
            const double *mine = s->cost[k] ? &s->cost[k][i] : &none, *first = s->cost[thirds ? 0 : k];
            if (*mine != (first ? *first : 1) || pipe_hop(s, i) != 0)
                return 0;
        }
    return 1;
}

Rates closed_form(const PipeShape *s)
{
    double p = s->p, m = s->m, v = s->v, r = NAN;
    if (!equal(s, s->kind >= SCHEDULE_ZB_H1))
        return NO_RATES;
    if (s->kind == SCHEDULE_GPIPE || (s->kind == SCHEDULE_1F1B && s->m >= s->p))
        r = (p - 1) / (m + p - 1);
    else if (s->kind == SCHEDULE_INTERLEAVED && s->m % s->p == 0 && (s->group == 0 || s->group == s->p))
        r = (p - 1) / (v * m + p - 1);
    else if (s->kind == SCHEDULE_ZB_H1)
        r = s->m >= s->p ? (p - 1) / (3 * m + p - 1) : (2 * p - m - 1) / (2 * (m + p - 1) + 1);
    else if (s->kind == SCHEDULE_ZB_V && s->m >= 2 * s->p - 1)
        return (Rates){0, (p - 1) / (6 * m + p - 1)};
    return (Rates){r, r};
}
