/* walk_kinds -- pipeline ranks, and microbatches of one, that do the same */
#include "walk.h"
#include <stdlib.h>
#include <string.h>

/* A sum of these tells lists apart whose instructions differ in more than their order. */
static uint64_t mixed(uint64_t x)
{
    x = (x + 1) * 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9ull;
    return x ^ x >> 32;
}

/* Has no instruction of a microbatch skipped: what reads its slots is of a sort that has not been walked. */
static void walk_all_of(Walk *w, int mb)
{
    int m = w->shape.m, v = w->shape.v, cut = 0;
    for (int c = 0; c < v; c++)
        cut |= w->cut[c * m + mb];
    for (int c = 0; c < v && !cut; c++)
        w->cut[c * m + mb] = 1;
}

int sort_microbatches(Walk *w, const Schedule *s)
{
    int m = w->shape.m, *first = xcalloc((size_t)m, sizeof *first), n = 1;
    uint64_t *done = xcalloc((size_t)m, sizeof *done);
    w->like = xcalloc((size_t)m, sizeof *w->like);
    for (int i = 0; i < s->n; i++) {
        const Instr *x = &s->list[i];
        if (x->op <= I_W)
            done[x->mb] += mixed((uint64_t)x->op << 17 | (uint64_t)x->chunk << 1 | (x->unit == WHOLE));
    }
    for (int mb = 1; mb < m; mb++) {
        int at = 1;
        while (at < n && done[first[at]] != done[mb])
            at++;
        first[at] = at < n ? first[at] : mb;
        n += at == n;
        w->like[mb] = at;
    }
    for (int at = 1; at < n; at++)                     /* from here: how many of a sort have come */
        first[at] = done[first[at]] == done[0];
    for (int mb = 1; mb < m; mb++)
        if (first[w->like[mb]]++ < WALKED)
            walk_all_of(w, mb);
    free(first);
    free(done);
    return n;
}

/* What a rank's list does with which microbatch, whatever the order. */
static uint64_t order_of(const InstrList *l)
{
    uint64_t sum = 0;
    for (int i = 0; i < l->n; i++)
        if (l->list[i].op <= I_W)
            sum += mixed((uint64_t)l->list[i].mb << 32 | (uint64_t)l->list[i].op << 17 | l->list[i].chunk);
    return sum;
}

/* ---- kinds ---- */

/* The chunk of `rank` that holds stage s; -1: another rank's; -2: there is no such stage. */
static int chunk_here(const Placement *pl, int rank, int s)
{
    if (s < 0 || s >= pl->n)
        return -2;
    return pl->stage[s].pp_rank == rank ? pl->stage[s].chunk : -1;
}

/* Whether chunk k of pipeline rank b runs what that of a does, and hands it on and takes it as that does. */
static int same_chunk(const Config *cfg, const Placement *pl, int a, int b, int k)
{
    const StagePlace *x = placement_at(pl, a, k), *y = placement_at(pl, b, k);
    int at = (int)(x - pl->stage), other = (int)(y - pl->stage);
    if (!placement_same(x, y) || chunk_here(pl, a, at - 1) != chunk_here(pl, b, other - 1) ||
        chunk_here(pl, a, at + 1) != chunk_here(pl, b, other + 1))
        return 0;
    for (int i = 0; i < x->layers; i++)
        if (!model_layers_alike(cfg, x->first_layer + i, y->first_layer + i))
            return 0;
    return 1;
}

static void known_close(Known *k)
{
    for (int i = 0; i < 2 * k->likes * RECORDED * k->places; i++)
        tape_close(&k->tape[i]);
    free(k->tape);
}

Kinds kinds_open(const Config *c, const Placement *pl, const StepLists *l, int real)
{
    return (Kinds){.cfg = c, .pl = pl, .set = training(l), .known = xcalloc((size_t)pl->p, sizeof(Known)),
                   .off = real || c->cpu_offloading_num_layers > 0};
}

Known *known_of(Kinds *k, int rank)
{
    uint64_t order = k->off ? 0 : order_of(&k->set->rank[rank]);
    for (int i = 0; i < k->n; i++) {
        int same = k->known[i].order == order;
        for (int c = 0; c < k->pl->v && same; c++)
            same = same_chunk(k->cfg, k->pl, k->known[i].rank, rank, c);
        if (same)
            return &k->known[i];
    }
    k->known[k->n].rank = rank;
    k->known[k->n].order = order;
    return k->off ? NULL : &k->known[k->n++];
}

void kinds_forget(Kinds *k)
{
    for (int i = 0; i < k->n; i++)
        known_close(&k->known[i]);
    memset(k->known, 0, (size_t)k->pl->p * sizeof *k->known);
    k->n = 0;
}

void kinds_close(Kinds *k)
{
    kinds_forget(k);
    free(k->known);
}
