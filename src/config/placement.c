/* placement -- virtual stages placed on ranks, and layers shared out among the stages */
#define _GNU_SOURCE
#include "placement.h"
#include "base.h"
#include "config_table.h"
#include "custom.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

int placement_turns(const Config *c)
{
    int place = c->pipeline_schedule < 0 ? PLACE_LOOP : (int)schedule_info[c->pipeline_schedule].place;
    return place == PLACE_VEE || (c->custom && c->custom->vee);
}

int placement_rank(const Config *c, int p, int s) { return place_rank(placement_turns(c), p, s); }

void placement_open(Placement *pl, const Config *c)
{
    int layer = 0, p = (int)c->pipeline_model_parallel_size;
    BUG_ON(!c->stages || c->stages % p);
    *pl = (Placement){.p = p, .v = c->stages / p, .n = c->stages};
    pl->stage = xcalloc((size_t)pl->n, sizeof *pl->stage);
    for (int s = 0; s < pl->n; s++) {
        pl->stage[s] = (StagePlace){.pp_rank = placement_rank(c, p, s), .chunk = s / p, .first_layer = layer,
                                    .layers = c->stage_layers[s], .embedding = s == 0,
                                    .loss = s == pl->n - 1};
        for (int i = 0; i < c->stage_layers[s]; i++)
            pl->stage[s].experts += config_is_moe(c, layer + i);
        layer += c->stage_layers[s];
    }
    BUG_ON(layer != c->num_layers);
}

void placement_close(Placement *pl)
{
    free(pl->stage);
    *pl = (Placement){0};
}

const StagePlace *placement_at(const Placement *pl, int pp_rank, int chunk)
{
    BUG_ON(pp_rank < 0 || pp_rank >= pl->p || chunk < 0 || chunk >= pl->v);
    const StagePlace *there = &pl->stage[chunk * pl->p + pp_rank];
    const StagePlace *turned = &pl->stage[(chunk + 1) * pl->p - 1 - pp_rank];
    BUG_ON(there->pp_rank != pp_rank && turned->pp_rank != pp_rank);
    return there->pp_rank == pp_rank ? there : turned;
}

int placement_same(const StagePlace *a, const StagePlace *b)
{
    return a->layers == b->layers && a->experts == b->experts && a->embedding == b->embedding &&
           a->loss == b->loss;
}

void placement_print(FILE *f, const Placement *pl)
{
    int layers = 0;
    fprintf(f, "placement  stage  rank  chunk  holds\n");
    for (int s = 0; s < pl->n; s++) {
        const StagePlace *st = &pl->stage[s];
        char text[64] = "";
        BUG_ON(st->first_layer != layers);
        layers += st->layers;
        if (st->layers == 1)
            snprintf(text, sizeof text, "layer %d", st->first_layer);
        else if (st->layers)
            snprintf(text, sizeof text, "layers %d to %d", st->first_layer, st->first_layer + st->layers - 1);
        fprintf(f, "           %5d  %4d  %5d  %s%s%s%s%s\n", s, st->pp_rank, st->chunk,
                st->embedding ? "embedding" : "", st->embedding && (st->layers || st->loss) ? ", " : "", text,
                st->layers && st->loss ? ", " : "",
                st->loss                      ? "loss" : st->layers || st->embedding ? "" : "nothing");
    }
    fprintf(f, "           %d layers in %d stage%s\n", layers, pl->n, pl->n == 1 ? "" : "s");
}

/* ---- balance ---- */

/* Shares n layers of cost `layer` out over `count` places.
 *
 *   fixed   in   [count]  cost that a place has without layers
 *   ends    in   [count]  how many of embedding and loss the place holds
 *   layers  out  [count]  layers of the place
 *
 * Each layer goes to the place whose cost with it is smallest; among equal costs to the one with fewer
 * ends, then to the lower one. As all layers cost the same, this order minimises the largest cost, then
 * the second largest, and so on (Federgruen and Groenevelt 1986, "The greedy procedure for resource
 * allocation problems"). */
static void share(int64_t n, int count, const double *fixed, const int *ends, double layer, int *layers)
{
    for (int i = 0; i < count; i++)
        layers[i] = 0;
    for (int64_t given = 0; given < n; given++) {
        int best = 0;
        for (int i = 1; i < count; i++) {
            double cost = fixed[i] + (layers[i] + 1) * layer;
            double least = fixed[best] + (layers[best] + 1) * layer;
            if (cost < least || (cost == least && ends[i] < ends[best]))
                best = i;
        }
        layers[best]++;
    }
}

/* A split of the layers over the stages, in model order. Of two splits the one with the smaller largest cost
 * of a rank is better, among equal ones that with the smaller sum of squares. */
typedef struct {
    int p, n;                  /* ranks, stages */
    int *layers;               /* [n] layers of a stage */
    int *first;                /* [n] its first layer */
    const double *fixed;       /* [n] cost of a stage without layers */
    const double *cost;        /* [num_layers] of each layer */
    const int *rank_of;        /* [n] the stage's rank */
    double *of_rank;           /* [p] cost of a rank */
    double largest;            /* of_rank of the best split so far */
    double squares, least;     /* sum of squares, now and of the best split so far */
    int at, above;             /* ranks that reach `largest` now, and that exceed it */
} Split;

#define ROUNDING (1 - 1e-12)   /* differences below are none */
#define TRIED ((int64_t)1 << 26)   /* stages to be looked at, about, from other splits */

static void add_cost(Split *s, int stage, double cost)
{
    double *r = &s->of_rank[s->rank_of[stage]], old = *r;
    *r += cost;
    s->squares += *r * *r - old * old;
    s->at += (*r >= s->largest * ROUNDING) - (old >= s->largest * ROUNDING);
    s->above += (*r * ROUNDING > s->largest) - (old * ROUNDING > s->largest);
}

/* Takes the split as it is for the best. */
static void weigh(Split *s)
{
    for (int r = 0; r < s->p; r++)
        s->of_rank[r] = 0;
    for (int i = 0, layer = 0; i < s->n; i++) {
        s->first[i] = layer;
        s->of_rank[s->rank_of[i]] += s->fixed[i];
        for (int l = 0; l < s->layers[i]; l++)
            s->of_rank[s->rank_of[i]] += s->cost[layer++];
    }
    s->largest = s->squares = 0;
    s->at = s->above = 0;
    for (int r = 0; r < s->p; r++) {
        s->largest = fmax(s->largest, s->of_rank[r]);
        s->squares += s->of_rank[r] * s->of_rank[r];
    }
    for (int r = 0; r < s->p; r++)
        s->at += s->of_rank[r] >= s->largest * ROUNDING;
    s->least = s->squares;
}

/* Gives a layer of `from` to the nearest stage in direction `step` with which the split becomes better; those
 * between pass one on. Returns whether there is one. */
static int give(Split *s, int from, int step)
{
    weigh(s);
    int layer = s->first[from] + (step > 0 ? s->layers[from] - 1 : 0);
    add_cost(s, from, -s->cost[layer]);
    for (int to = from + step; to >= 0 && to < s->n; to += step) {
        add_cost(s, to, s->cost[layer]);
        if (!s->at || (!s->above && s->squares < s->least * ROUNDING)) {
            s->layers[from]--;
            s->layers[to]++;
            return 1;
        }
        layer = s->first[to] + (step > 0 ? s->layers[to] - 1 : 0);
        add_cost(s, to, -s->cost[layer]);
    }
    return 0;
}

/* Gives layers, one after the other, as long as the split becomes better. Where all layers cost the same none
 * is given: share_mean is exact then. */
static void descend(Split *s)
{
    for (int changed = 1; changed;) {
        changed = 0;
        for (int i = 0; i < s->n; i++)
            for (int step = -1; step <= 1; step += 2)
                while (s->layers[i] && give(s, i, step))
                    changed = 1;
    }
    weigh(s);
}

/* Whether split a is better than b; both are weighed. */
static int is_better(const Split *a, const Split *b)
{
    if (a->largest < b->largest * ROUNDING)
        return 1;
    return a->largest * ROUNDING <= b->largest && a->squares < b->squares * ROUNDING;
}

/* Makes the split better: descends, and again from each split that a layer given to another stage makes.
 * kept: [n] scratch. */
static void improve(Split *s, int *kept)
{
    descend(s);
    int64_t pairs = (int64_t)s->n * s->n;
    for (int64_t i = 0; i < pairs && i * pairs < TRIED; i++) {
        int from = (int)(i / s->n), to = (int)(i % s->n);
        Split before = *s;
        if (from == to || !s->layers[from])
            continue;
        memcpy(kept, s->layers, (size_t)s->n * sizeof *kept);
        s->layers[from]--;
        s->layers[to]++;
        descend(s);
        if (!is_better(s, &before)) {
            memcpy(s->layers, kept, (size_t)s->n * sizeof *kept);
            *s = before;
        }
    }
}

/* Shares the layers out as if each had the mean cost `layer`: to the ranks, and a rank's to its chunks. */
static void share_mean(const Split *s, int vee, const int *ends, double layer, int64_t count)
{
    int p = s->p, v = s->n / p;
    double *of_rank = xcalloc((size_t)(p + v), sizeof *of_rank), *of_chunk = of_rank + p;
    int *rank_layers = xcalloc((size_t)(2 * (p + v)), sizeof *rank_layers), *rank_ends = rank_layers + p;
    int *chunk_layers = rank_ends + p, *chunk_ends = chunk_layers + v;
    for (int i = 0; i < s->n; i++) {
        of_rank[s->rank_of[i]] += s->fixed[i];
        rank_ends[s->rank_of[i]] += ends[i];
    }
    share(count, p, of_rank, rank_ends, layer, rank_layers);
    for (int r = 0; r < p; r++) {
        for (int k = 0; k < v; k++) {
            of_chunk[k] = s->fixed[place_stage(vee, p, r, k)];
            chunk_ends[k] = ends[place_stage(vee, p, r, k)];
        }
        share(rank_layers[r], v, of_chunk, chunk_ends, layer, chunk_layers);
        for (int k = 0; k < v; k++)
            s->layers[place_stage(vee, p, r, k)] = chunk_layers[k];
    }
    free(of_rank);
    free(rank_layers);
}

/* Returns the layout string of the split, on the heap. */
static char *balance(const Config *c, const double *cost)
{
    int p = (int)c->pipeline_model_parallel_size, layers = (int)c->num_layers,
        v = p > 1 ? (int)c->num_virtual_stages_per_pipeline_rank : 1, n = p * v;
    double *fixed = xcalloc((size_t)(n + p), sizeof *fixed), sum = 0;
    int *of_stage = xcalloc((size_t)(5 * n), sizeof *of_stage), *rank_of = of_stage + 2 * n,
        *ends = of_stage + 3 * n;
    Split s = {.p = p, .n = n, .layers = of_stage, .first = of_stage + n, .fixed = fixed, .cost = cost + 1,
               .rank_of = rank_of, .of_rank = fixed + n};
    for (int i = 0; i < layers + 2; i++) {
        BUG_ON(!isfinite(cost[i]) || cost[i] < 0);
        sum += i && i <= layers ? cost[i] : 0;
    }
    BUG_ON(sum <= 0);
    fixed[0] += cost[0], fixed[n - 1] += cost[layers + 1];
    ends[0]++, ends[n - 1]++;
    for (int i = 0; i < n; i++)
        rank_of[i] = placement_rank(c, p, i);
    share_mean(&s, placement_turns(c), ends, sum / layers, layers);
    improve(&s, of_stage + 4 * n);
    char *text = config_print_layout(s.layers, n);
    free(fixed);
    free(of_stage);
    return text;
}

const Config *placement_share_out(const Config *cfg, const double *cost, const char *how, FILE *says)
{
    char *layout = balance(cfg, cost), least[32], most[32];
    double low = cost[1], high = cost[1];
    for (int64_t l = 2; l <= cfg->num_layers; l++)
        low = fmin(low, cost[l]), high = fmax(high, cost[l]);
    snprintf(least, sizeof least, "%.3g", low);
    snprintf(most, sizeof most, "%.3g", high);
    int alike = !strcmp(least, most);
    if (says)
        fprintf(says, "pipeline_balance cost%s: embedding %.3g ms, %s %s%s%s, head %.3g: %s\n", how, cost[0],
                alike ? "a layer" : "layers", least, alike ? "" : " to ", alike ? "" : most,
                cost[cfg->num_layers + 1], layout);
    const Config *c = config_with_layout(cfg, layout);
    free(layout);
    return c;
}
