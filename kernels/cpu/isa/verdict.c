/* verdict -- the ops on the few scalars at the end of a step. Their arithmetic is in ../verdict.c, which
 * is compiled once, without fused multiply-adds. */
#include "isa.h"

void FN(cpu_carry)(Device *d, Exact *s, int64_t n)
{
    (void)d;
    for (int64_t i = 0; i < n; i++)
        exact_carry(&s[i]);
}

void FN(cpu_verdict)(Device *d, Verdict *v, const double *sums, const Exact *squares, double nominal,
                     double loss_scale, double clip_grad, int stop, Limits limits)
{
    (void)d;
    verdict_of(v, sums, squares, nominal, loss_scale, clip_grad, stop, limits);
}

void FN(cpu_trust)(Device *d, double *trust, const Exact *norms, int64_t n, int lars, double coefficient,
                   double wd, const Verdict *v)
{
    (void)d;
    for (int64_t i = 0; i < n; i++)
        trust[i] = trust_of(&norms[2 * i], lars, coefficient, wd, v->multiplier);
}

/* On the CPU the fused op is its two parts. */
void FN(cpu_add_norm_fwd)(Device *d, Mat y, Mat ln, Mat stats, Mat x, Mat res, const Dropout *s, Mat gain,
                          Mat bias, double eps, NormKind kind)
{
    FN(cpu_dropout_fwd)(d, y, x, res, s);
    FN(cpu_norm_fwd)(d, ln, stats, y, gain, bias, eps, kind, 1);
}
