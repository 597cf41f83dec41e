/* rope -- the table of rotary angles, and how rope_scaling changes their frequencies
 *
 * Formulas and their names are those of transformers (modeling_rope_utils.py), so that a model of a Hugging
 * Face directory computes the same. "Turns" of a frequency: rotations within the original positions. */
#include "model.h"
#include <math.h>
#include <stdlib.h>

/* Llama 3: frequencies of few turns are divided by the factor, those of many turns stay, and between the
 * two the share of the undivided one grows with the turns. */
static double llama3(const Config *c, double rate)
{
    double turns = (double)c->rope_original_max_position_embeddings * rate / (2 * M_PI);
    double low = c->rope_low_freq_factor, high = c->rope_high_freq_factor;
    double share = fmin(fmax((turns - low) / (high - low), 0), 1);
    return (1 - share) * (rate / c->rope_scaling_factor) + share * rate;
}

/* The column pair, as a real number, whose frequency makes `turns` turns. */
static double column_of(const Config *c, int64_t n, double turns)
{
    double positions = (double)c->rope_original_max_position_embeddings;
    return (double)n * log(positions / (turns * 2 * M_PI)) / (2 * log(c->rotary_base));
}

/* YaRN (arXiv:2309.00071): the columns before beta_fast keep their frequency, those behind beta_slow have it
 * divided by the factor, on a straight line between. */
static void yarn(const Config *c, int64_t n, double *rates)
{
    double first = column_of(c, n, c->rope_beta_fast), last = column_of(c, n, c->rope_beta_slow);
    first = fmax(c->rope_truncate ? floor(first) : first, 0);
    last = fmin(c->rope_truncate ? ceil(last) : last, (double)(n - 1));
    last += first == last ? 0.001 : 0;
    for (int64_t i = 0; i < n / 2; i++) {
        double share = fmin(fmax(((double)i - first) / (last - first), 0), 1);
        rates[i] = share * (rates[i] / c->rope_scaling_factor) + (1 - share) * rates[i];
    }
}

void rope_rates(const Config *c, int64_t n, int64_t length, double *rates)
{
    double base = c->rotary_base, factor = c->rope_scaling_factor, rot = (double)n;
    double original = (double)c->rope_original_max_position_embeddings;
    if (c->rope_scaling == ROPE_SCALING_DYNAMIC)
        base *= pow(factor * fmax((double)length, original) / original - (factor - 1), rot / (rot - 2));
    for (int64_t i = 0; i < n / 2; i++) {
        rates[i] = pow(base, -2.0 * (double)i / rot);
        if (c->rope_scaling == ROPE_SCALING_LINEAR)
            rates[i] /= factor;
        else if (c->rope_scaling == ROPE_SCALING_LLAMA3)
            rates[i] = llama3(c, rates[i]);
    }
    if (c->rope_scaling == ROPE_SCALING_YARN)
        yarn(c, n, rates);
}

void rope_open(Model *m, int64_t length, Arena *run)
{
    const Config *c = m->cfg;
    if (c->position_embedding_type != POSITION_EMBEDDING_TYPE_ROPE)
        return;
    int64_t rot = (int64_t)((double)m->dim.D * c->rotary_percent), half = rot / 2;
    m->rope = mat_take(run, c->max_position_embeddings, rot, m->dim.real);
    if (!m->rope.p)
        return;
    void *table = xcalloc(1, mat_bytes(m->rope));
    double *rates = xcalloc((size_t)half, sizeof *rates), attention = config_rope_attention(c);
    rope_rates(c, rot, length, rates);
    for (int64_t p = 0; p < m->rope.rows; p++)
        for (int64_t i = 0; i < half; i++) {
            double angle = (double)p * rates[i];
            double cosine = attention * cos(angle), sine = attention * sin(angle);
            if (m->dim.real == F64) {
                double *row = (double *)table + p * rot;
                row[i] = cosine, row[half + i] = sine;
            } else {
                float *row = (float *)table + p * rot;
                row[i] = (float)cosine, row[half + i] = (float)sine;
            }
        }
    m->dev->put(m->dev, m->rope.p, table, mat_bytes(m->rope));
    free(rates);
    free(table);
}
