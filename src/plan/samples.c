/* samples -- steps of a meter, each beside the reference of log_reference */
#include "samples.h"
#include <stdlib.h>

#define TURN 0.4               /* s */

/* Runs a step beside the reference. Collective over the ranks of the meter. */
static void sample(Samples *s, Meter *m)
{
    s->took = xgrow(s->took, s->n, sizeof *s->took);
    s->calm = xgrow(s->calm, s->n, sizeof *s->calm);
    s->whole = xgrow(s->whole, s->n, sizeof *s->whole);
    meter_reference(m, &s->whole[s->n], &s->calm[s->n]);
    s->took[s->n++] = meter_step(m);
}

void samples_turn(Samples *s, Meter *m)
{
    Comm *all = &meter_run(m)->grid.all;
    double end = now() + TURN, left;
    do {
        sample(s, m);
        left = end - now();
        all->wait(all, all->broadcast(all, &left, 1, F64, 0));
    } while (left > 0);
}

Reference samples_quartile(const Samples *s)
{
    double *product = xcalloc((size_t)s->n, sizeof *product), *copy = xcalloc((size_t)s->n, sizeof *copy);
    for (int i = 0; i < s->n; i++)
        product[i] = s->calm[i].product_ms, copy[i] = s->calm[i].copy_ms;
    qsort(product, (size_t)s->n, sizeof *product, by_double);
    qsort(copy, (size_t)s->n, sizeof *copy, by_double);
    Reference r = {product[(s->n - 1) / 4], copy[(s->n - 1) / 4]};
    free(product);
    free(copy);
    return r;
}

double samples_typical(const Samples *s, Calibrated base)
{
    TimedStep *step = xcalloc((size_t)s->n, sizeof *step);
    for (int i = 1; i < s->n; i++)
        step[i - 1] = (TimedStep){s->took[i], {s->whole[i].product_ms, s->whole[i].copy_ms}};
    double t = drift_steps(step, s->n - 1, base).ms;
    free(step);
    return t;
}

void samples_close(Samples *s)
{
    free(s->took);
    free(s->calm);
    free(s->whole);
}
