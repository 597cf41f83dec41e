/* drift -- measured times scaled, compared and doubted */
#include "drift.h"
#include "base.h"
#include <math.h>
#include <stdlib.h>

#define PRODUCTS 0.75          /* share of products where a description says nothing: of GPTs on this CPU */
#define AROUND 4               /* launches before and after one that say how fast the machine was */

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, by_double);
    return (x[(n - 1) / 2] + x[n / 2]) / 2;
}

static int known(Reference r) { return r.product > 0 && r.copy > 0; }

/* How many times as long as during the calibration the reference takes. */
static double factor_of(Reference now, Calibrated base)
{
    double share = base.products > 0 ? base.products : PRODUCTS;
    if (!known(base.reference) || !known(now))
        return 1;
    return share * now.product / base.reference.product + (1 - share) * now.copy / base.reference.copy;
}

Reference drift_median(const Reference *r, int n)
{
    double *x = xcalloc((size_t)n, sizeof *x);
    Reference m;
    for (int i = 0; i < n; i++)
        x[i] = r[i].product;
    m.product = median(x, n);
    for (int i = 0; i < n; i++)
        x[i] = r[i].copy;
    m.copy = median(x, n);
    free(x);
    return m;
}

/* The median of n times, which it sorts, between the least and the greatest. */
static Spread spread_of(double *x, int n)
{
    double middle = median(x, n);
    return (Spread){middle, x[0], x[n - 1]};
}

Spread drift_steps(const TimedStep *step, int n, Calibrated base)
{
    double *x = xcalloc((size_t)n, sizeof *x);
    for (int i = 0; i < n; i++)
        x[i] = step[i].ms / factor_of(step[i].beside, base);
    Spread s = spread_of(x, n);
    free(x);
    return s;
}

Spread drift_launches(const Spread *launch, int n)
{
    double *x = xcalloc((size_t)n, sizeof *x);
    for (int i = 0; i < n; i++)
        x[i] = launch[i].ms;
    Spread s = n > 1 ? spread_of(x, n) : launch[0];
    free(x);
    return s;
}

int drift_equal(Spread a, Spread best) { return a.low <= best.high; }

int drift_fits(const Reference *beside, int n, int at, Calibrated base)
{
    double apart[2 * AROUND + 1];
    int k = 0;
    for (int i = at - AROUND; i <= at + AROUND; i++)
        if (i >= 0 && i < n && known(beside[i]))
            apart[k++] = log(beside[i].product / beside[i].copy) -
                         log(base.reference.product / base.reference.copy);
    return !known(base.reference) || k <= AROUND || fabs(median(apart, k)) <= log(DRIFT_BOUND);
}
