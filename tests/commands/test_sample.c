/* test_sample -- the choice of the next token against its definition: all tokens sorted, the first top_k
 * kept, of these the fewest with the share top_p, one drawn in proportion. Some logits are equal. */
#define _GNU_SOURCE
#include "base.h"
#include "sample.h"
#include "test.h"
#include <math.h>
#include <stdlib.h>

#define N 300

static int falling(const void *a, const void *b, void *logits)
{
    int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    const double *x = logits;
    return x[i] != x[j] ? (x[i] < x[j] ? 1 : -1) : i - j;
}

static int32_t expected(const Sampling *s, const double *logits, int64_t position)
{
    int32_t order[N];
    double share[N], total = 0, kept = 0, sum = 0;
    int keep = s->top_k && s->top_k < N ? (int)s->top_k : N, n = 0;
    for (int i = 0; i < N; i++)
        order[i] = i;
    qsort_r(order, N, sizeof *order, falling, (void *)logits);
    if (s->temperature == 0)
        return order[0];
    for (int i = 0; i < keep; i++)
        total += share[i] = exp((logits[order[i]] - logits[order[0]]) / s->temperature);
    while (n < keep && (n == 0 || kept < s->top_p * total))
        kept += share[n++];
    double u = rng_uniform(rng_key(s->seed, "sample"), 0, (uint64_t)position) * kept;
    for (int i = 0; i < n; i++)
        if (u < (sum += share[i]))
            return order[i];
    return order[n - 1];
}

int main(void)
{
    static const double temperature[] = {0, 0.3, 1, 4}, top_p[] = {1, 0.95, 0.5, 1e-9};
    static const int64_t top_k[] = {0, 1, 2, 40, N - 1, N, 2 * N};
    int32_t order[N];
    double logits[N];
    for (int i = 0; i < N; i++)                /* steps of 1/4: many are equal, the largest among them */
        logits[i] = fmin(2, floor(4 * rng_normal(7, 0, (uint64_t)i)) / 4);
    for (int t = 0; t < 4; t++)
        for (int k = 0; k < 7; k++)
            for (int p = 0; p < 4; p++) {
                Sampling s = {.temperature = temperature[t], .top_k = top_k[k], .top_p = top_p[p], .seed = 5};
                int wrong = 0;
                for (int64_t at = 0; at < 500; at++)
                    wrong += sample_token(&s, logits, N, at, order) != expected(&s, logits, at);
                CHECK(!wrong, "temperature %g, top_k %ld, top_p %g: %d of 500 tokens differ", s.temperature,
                      (long)s.top_k, s.top_p, wrong);
            }
    return test_end();
}
