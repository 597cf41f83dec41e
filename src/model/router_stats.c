/* router_stats -- what the routers of a step did: pairs of each expert, balance and z losses, entropy
 *
 * D counts, not F: a microbatch has one D, while recomputation, evaluation and generation run the forward's
 * code as well. */
#include "model.h"
#include <stdlib.h>
#include <string.h>

void router_stats_open(RouterStats *s, const Config *c, Arena *run)
{
    *s = (RouterStats){.experts = (int)c->num_moe_experts};
    s->layer = xcalloc((size_t)c->num_layers, sizeof *s->layer);
    s->row = xcalloc((size_t)c->num_layers, sizeof *s->row);
    for (int layer = 0; layer < c->num_layers; layer++) {
        s->row[layer] = config_is_moe(c, layer) ? s->layers : -1;
        if (s->row[layer] >= 0)
            s->layer[s->layers++] = layer;
    }
    s->count = xcalloc((size_t)router_counts(s), sizeof *s->count);
    s->sums = arena_take(run, (size_t)(s->layers * ROUTER_SUMS) * sizeof *s->sums);
}

void router_stats_close(RouterStats *s)
{
    free(s->layer);
    free(s->row);
    free(s->count);
    *s = (RouterStats){0};
}

void router_stats_clear(RouterStats *s, Device *d)
{
    if (!s->layers)
        return;
    memset(s->count, 0, (size_t)router_counts(s) * sizeof *s->count);
    d->zero(d, s->sums, (size_t)(s->layers * ROUTER_SUMS) * sizeof *s->sums);
}

void router_stats_add(Model *m, int part, Mat logits, Mat push, const Routing *r)
{
    Device *d = m->dev;
    RouterStats *s = &m->routers;
    const Experts *x = &m->experts;
    int row = s->row[m->params->part[part].layer];
    int64_t *count = s->count + row * (int64_t)(s->experts + 1);
    size_t mark = m->scratch.used;
    for (int64_t i = 0; s->sums && i < x->rows * x->topk; i++) {   /* a counting run does not look */
        count[experts_chosen(x->choice[i])]++;
        count[s->experts] += x->choice[i] < 0;
    }
    Mat stats = mat_take(&m->scratch, ROUTER_SUMS, logits.rows, m->dim.real);
    d->route_stats(d, stats, logits, push, r);
    for (int i = 0; i < ROUTER_SUMS; i++)
        d->sum(d, s->sums ? s->sums + row * ROUTER_SUMS + i : NULL, mat_rows(stats, i, 1));
    arena_reset(&m->scratch, mark);
}

void router_stats_reduce(RouterStats *s, Comm *all)
{
    if (!s->layers)
        return;
    all->wait(all, all->all_reduce(all, s->count, router_counts(s), I64, OP_SUM));
    all->wait(all, all->all_reduce(all, s->sums, s->layers * ROUTER_SUMS, F64, OP_SUM));
}
