/* force -- the experts that moe_router_force gives to a token in the place of the router's choice
 *
 * They follow from the token's sample and position, the layer and the step, so that every layout routes
 * alike. */
#include "model.h"
#include <stdlib.h>

/* Draws k different experts.
 *   choice  out  [k]  experts
 *   share   in   [E]  cumulative shares of the experts; at least k of them have one
 *   token   in        numbers the draws within the stream (key, sub) */
static void draw(int32_t *choice, int k, const double *share, int64_t E, uint64_t key, uint64_t sub,
                 uint64_t token)
{
    for (int j = 0; j < k; j++) {
        double u = rng_uniform(key, sub, token * (uint64_t)k + (uint64_t)j);
        int64_t low = 0, high = E - 1;
        while (low < high) {               /* the first expert whose cumulative share is above u */
            int64_t middle = (low + high) / 2;
            if (share[middle] > u)
                high = middle;
            else
                low = middle + 1;
        }
        for (int i = 0; i < j; i++)        /* taken, or without a share: the next one, and from the start */
            if (choice[i] == low || !(share[low] > (low ? share[low - 1] : 0))) {
                low = (low + 1) % E;
                i = -1;
            }
        choice[j] = (int32_t)low;
    }
}

void force_choices(Model *m, const Pass *p, int part, int32_t *choice)
{
    const Config *c = m->cfg;
    int k = (int)c->moe_router_topk, layer = m->params->part[part].layer;
    int64_t E = c->num_moe_experts, row0 = model_row0(m), R = model_tokens(m) / m->tp.group.rows->size;
    uint64_t key = rng_key((uint64_t)c->seed, "routing"), start;
    if (!choice)
        return;
    key = hash64(&layer, sizeof layer, key);
    int64_t *sample = xcalloc((size_t)m->now.B, sizeof *sample);
    int32_t *mine = xcalloc((size_t)(R * k), sizeof *mine);
    m->dev->get(m->dev, sample, p->batch->sample, (size_t)m->now.B * sizeof *sample);
    for (int64_t r = 0; r < R; r++) {
        uint64_t s = (uint64_t)sample[(row0 + r) / m->now.S];
        uint64_t at = (uint64_t)positions_at(&p->batch->runs, (row0 + r) % m->now.S);
        int32_t *to = mine + r * k;
        if (c->force_lines) {
            draw(to, k, c->force_share + (c->force_lines > 1 ? layer * E : 0), E, key, s, at);
            continue;
        }
        start = c->moe_router_force == MOE_ROUTER_FORCE_UNIFORM    ? s * (uint64_t)c->seq_length + at
                : c->moe_router_force == MOE_ROUTER_FORCE_CHANGING ? (uint64_t)m->now.step
                                                                   : 0;
        for (int j = 0; j < k; j++)
            to[j] = (int32_t)((start * (uint64_t)k + (uint64_t)j) % (uint64_t)E);
    }
    m->dev->put(m->dev, choice, mine, (size_t)(R * k) * sizeof *mine);
    free(sample);
    free(mine);
}
