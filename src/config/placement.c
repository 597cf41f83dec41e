/* placement -- virtual stages placed on ranks, and layers shared out among the stages */
#define _GNU_SOURCE
#include "placement.h"
#include "base.h"
#include "config_table.h"
#include "custom.h"
#include <math.h>
#include <stdlib.h>

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

char *placement_balance(const Config *c, const double cost[3])
{
    int p = (int)c->pipeline_model_parallel_size,
        v = p > 1 ? (int)c->num_virtual_stages_per_pipeline_rank : 1;
    int n = p * v, vee = placement_turns(c);
    for (int i = 0; i < 3; i++)
        BUG_ON(!isfinite(cost[i]) || cost[i] < 0);
    BUG_ON(cost[1] <= 0);
    double *fixed = xcalloc((size_t)(n + p + v), sizeof *fixed), *of_rank = fixed + n,
           *of_chunk = of_rank + p;
    int *work = xcalloc((size_t)(2 * (n + p + v)), sizeof *work), *layers = work, *rank_layers = layers + n;
    int *chunk_layers = rank_layers + p, *ends = chunk_layers + v, *rank_ends = ends + n,
        *chunk_ends = rank_ends + p;
    fixed[0] += cost[0], fixed[n - 1] += cost[2];
    ends[0]++, ends[n - 1]++;
    for (int s = 0; s < n; s++) {
        of_rank[placement_rank(c, p, s)] += fixed[s];
        rank_ends[placement_rank(c, p, s)] += ends[s];
    }
    share(c->num_layers, p, of_rank, rank_ends, cost[1], rank_layers);
    for (int r = 0; r < p; r++) {                  /* shares a rank's layers out over its chunks */
        for (int k = 0; k < v; k++) {
            of_chunk[k] = fixed[place_stage(vee, p, r, k)];
            chunk_ends[k] = ends[place_stage(vee, p, r, k)];
        }
        share(rank_layers[r], v, of_chunk, chunk_ends, cost[1], chunk_layers);
        for (int k = 0; k < v; k++)
            layers[place_stage(vee, p, r, k)] = chunk_layers[k];
    }
    char *text = config_print_layout(layers, n);
    free(fixed);
    free(work);
    return text;
}
