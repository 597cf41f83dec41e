/* sample -- the choice of the next token. Only the tokens that may be drawn are sorted, by a heap: sorting a
 * vocabulary takes longer than a small model. */
#include "sample.h"
#include "base.h"
#include <math.h>

/* A heap of tokens, the likeliest first; of equal logits the lower token. */
typedef struct { const double *logits; int32_t *token; int64_t left; } Heap;

static int before(const Heap *h, int64_t i, int64_t j)
{
    int32_t a = h->token[i], b = h->token[j];
    return h->logits[a] != h->logits[b] ? h->logits[a] > h->logits[b] : a < b;
}

static void swap(Heap *h, int64_t i, int64_t j)
{
    int32_t t = h->token[i];
    h->token[i] = h->token[j];
    h->token[j] = t;
}

static void sink(Heap *h, int64_t i)
{
    for (int64_t child; (child = 2 * i + 1) < h->left; i = child) {
        child += child + 1 < h->left && before(h, child + 1, child);
        if (!before(h, child, i))
            return;
        swap(h, child, i);
    }
}

/* Returns the i-th likeliest of n tokens; those before it leave the heap too, and lie behind it. */
static int32_t likeliest(Heap *h, int64_t n, int64_t i)
{
    while (n - h->left <= i) {
        swap(h, 0, --h->left);
        sink(h, 0);
    }
    return h->token[n - 1 - i];
}

/* A token's probability, times a factor that all tokens share. */
static double share(const Sampling *s, const double *logits, int32_t best, int32_t token)
{
    return exp((logits[token] - logits[best]) / s->temperature);
}

int32_t sample_token(const Sampling *s, const double *logits, int64_t n, int64_t position, int32_t *order)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        best = logits[i] > logits[best] ? i : best;
    if (s->temperature == 0)
        return best;
    Heap h = {logits, order, n};
    for (int32_t i = 0; i < n; i++)
        order[i] = i;
    for (int64_t i = n / 2; i-- > 0;)
        sink(&h, i);
    int64_t keep = s->top_k && s->top_k < n ? s->top_k : n;
    double total = 0, cut = 0, sum = 0;
    for (int32_t i = 0; i < keep; i++)
        total += share(s, logits, best, keep < n ? likeliest(&h, n, i) : i);
    for (int64_t i = 0; i < keep && s->top_p < 1; i++) {   /* the fewest that have the share top_p */
        cut += share(s, logits, best, likeliest(&h, n, i));
        if (cut >= s->top_p * total)
            keep = i + 1;
    }
    double u = rng_uniform(rng_key(s->seed, "sample"), 0, (uint64_t)position) * (s->top_p < 1 ? cut : total);
    for (int64_t i = 0; i < keep; i++) {
        sum += share(s, logits, best, likeliest(&h, n, i));
        if (u < sum)
            return likeliest(&h, n, i);
    }
    return likeliest(&h, n, keep - 1);
}
