/* verdict -- what a step computes from its norms: clip coefficient, go or stop, trust ratios */
#include "cpu.h"
#include <math.h>

void verdict_of(Verdict *v, const double *sums, const Exact *squares, double nominal, double loss_scale,
                double clip_grad, int stop, Limits limits)
{
    v->tokens = sums[1];
    v->loss = sums[1] > 0 ? sums[0] / sums[1] : 0;
    /* without tokens all gradients are zero, and gscale only has to be finite */
    v->gscale = (sums[1] > 0 ? nominal / sums[1] : 1) / loss_scale;
    v->norm = sqrt(exact_round(squares)) * v->gscale;
    v->bad = squares->bad;
    double coefficient = clip_grad / (v->norm + 1e-6);
    v->multiplier = v->gscale * (clip_grad > 0 && coefficient < 1 ? coefficient : 1);
    int finite = isfinite(v->loss) && isfinite(v->norm);
    v->behind = !v->go && !limits.seen;
    v->stopped = stop && (v->stopped || !finite);
    v->go = !v->stopped && !(finite && (v->loss > limits.loss || v->norm > limits.norm));
}

double trust_of(const Exact norms[2], int lars, double coefficient, double wd, double multiplier)
{
    double weight = sqrt(exact_round(&norms[0])), step = sqrt(exact_round(&norms[1]));
    if (lars)
        step *= multiplier;
    if (!(weight > 0 && step > 0))
        return 1;
    return lars ? coefficient * weight / (step + wd * weight) : weight / step;
}
