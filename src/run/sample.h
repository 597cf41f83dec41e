/* sample -- text from a model, a token at a time. */
#ifndef SAMPLE_H
#define SAMPLE_H
#include "run.h"

typedef struct {
    double temperature;        /* 0: the most likely token */
    int64_t top_k;             /* 0: all */
    double top_p;              /* 1: all; nucleus, Holtzman et al. 2020, arXiv:1904.09751 */
    uint64_t seed;
} Sampling;

/* Draws from logits[0..n) with the random number of `position`; order [n] is work memory. Ties go to the
 * lower token. */
int32_t sample_token(const Sampling *s, const double *logits, int64_t n, int64_t position, int32_t *order);

/* Continues prompt[0..n) by up to `count` tokens, until `end` is drawn (it is kept); returns how many are in
 * out. The run has a cache for n + count positions. */
int64_t generate_text(Run *r, const Sampling *s, const int32_t *prompt, int64_t n, int64_t count, int32_t end,
                      int32_t *out);
#endif
