/* sample -- the choice of the next token from its logits */
#ifndef SAMPLE_H
#define SAMPLE_H
#include <stdint.h>

typedef struct {
    double temperature;        /* divisor of the logits; 0: the most likely token is taken */
    int64_t top_k;             /* number of most likely tokens to draw from; 0: all */
    double top_p;              /* share of probability to keep; Holtzman et al. 2020, arXiv:1904.09751 */
    uint64_t seed;
} Sampling;

/* Draws a token from logits [n] with the random number of `position`. The tokens with the top_k largest
 * logits are kept (of equal logits the lower token first), of these the fewest whose probabilities sum to
 * top_p; one is drawn in proportion to exp(logit / temperature). order [n] is work memory. */
int32_t sample_token(const Sampling *s, const double *logits, int64_t n, int64_t position, int32_t *order);
#endif
