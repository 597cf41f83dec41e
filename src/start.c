#include "start.h"
#include "balance.h"
#include "run_costs.h"
#include "source.h"
#include <stdlib.h>
#include <sys/stat.h>

/* Ranks that have read something else would wait for each other in groups that only some of them open: they are compared
 * in a grid that follows from the world alone, before there is any other. */
static void compare(const Config *cfg)
{
    Grid g;
    GridSpec spec = {.size = {[AXIS_TP] = 1, [AXIS_CP] = 1, [AXIS_EP] = 1, [AXIS_DP] = cfg->world, [AXIS_PP] = 1}};
    int rank;
    grid_launched(&rank);
    BUG_ON(!grid_parse_order("tp-cp-ep-dp-pp", spec.order));
    grid_open(&g, &spec, cfg->world, rank);
    config_same(cfg, &g.all);
    grid_close(&g);
}

/* What config_load asks for: the configuration in the newest checkpoint that can be opened. */
static char *saved_config(const char *load, char **dir)
{
    char why[WHY], *text = NULL;
    int n;
    char **list = source_list(load, &n);
    for (int i = 0; i < n; i++) {
        Source s;
        if (!text && source_open(&s, list[i], why)) {
            const char *config = json_string_value(json_object_get(s.m.state, "config"));
            text = config ? xstrdup(config) : NULL;
            *dir = text ? xstrdup(list[i]) : NULL;
            source_close(&s);
        }
        free(list[i]);
    }
    free(list);
    return text;
}

const Config *start_config(const char *path, Args *a, ConfigUse use)
{
    struct stat st;
    if (path && (use & USE_LOAD) && stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {     /* of a run: it has its own */
        a->v[a->n++] = xasprintf("load=%s", path);
        path = NULL;
    }
    const Config *cfg = config_load_over(path, a->n, a->v, 0, use, saved_config);
    free(a->v);
    compare(cfg);
    return balance(cfg);
}

const Config *start_plan(const char *path, Args *a, int world)
{
    const Config *cfg = config_load_over(path, a->n, a->v, world, USE_MODEL, saved_config);
    free(a->v);
    return balance_here(cfg);
}

int64_t start_samples(const Config *cfg, int64_t batch)
{
    return cfg->train_iters == CFG_ABSENT && cfg->train_samples == CFG_ABSENT
               ? batch : config_samples_after(cfg, config_iterations(cfg));
}

Loader *start_loader(const Config *cfg, Run *r, Split split, int64_t samples)
{
    Comm *all = &r->grid.all;
    Loader *l = loader_open(cfg, split, samples, r->grid.index[AXIS_DP], r->grid.size[AXIS_DP]);
    int64_t mine = (int64_t)(loader_fingerprint(l) >> 1), first = mine;
    all->wait(all, all->broadcast(all, &first, 1, I64, 0));
    all_ok(all, mine == first, EXIT_DATA, "data-differs", "this rank sees other bytes in a corpus than rank 0; change: give "
           "every host the same corpus");
    return l;
}

json_t *start_layout(const Config *c)
{
    int64_t pp = c->pipeline_model_parallel_size;
    return json_pack("{s:I s:I s:I s:I s:I s:I s:I}", "tp", (json_int_t)c->tensor_model_parallel_size, "cp",
                     (json_int_t)c->context_parallel_size, "ep", (json_int_t)c->expert_model_parallel_size, "etp",
                     (json_int_t)c->expert_tensor_parallel_size, "dp", (json_int_t)c->data_parallel_size, "pp", (json_int_t)pp,
                     "vpp", (json_int_t)(c->stages / pp));
}

void start_print(FILE *f, const Run *r)
{
    const Config *c = r->cfg;
    const Lists *l = &r->lists[c->batch_steps - 1];
    if (c->world == 1)
        return;
    char *schedule = config_text(c, OPT_pipeline_schedule), *sharding = config_text(c, OPT_data_parallel_sharding_strategy);
    fprintf(f, "layout: tensor %lld%s x pipeline %lld x data %lld (%s)\n", (long long)c->tensor_model_parallel_size,
            c->sequence_parallel ? " (sequence parallel)" : "", (long long)c->pipeline_model_parallel_size,
            (long long)c->data_parallel_size, sharding);
    placement_print(f, &r->placement);
    fprintf(f, "schedule %s: %d microbatches, bubble %.1f %% %s; activations of", r->shape.p > 1 ? schedule : "1f1b", l->m,
            100 * r->sim.rate, run_costs_phrase(&r->shape));
    for (int p = 0; p < r->shape.p; p++)
        fprintf(f, " %.3g", r->sim.peak[p]);
    fprintf(f, " microbatches\n");
    if (r->shape.cost[0]) {
        fprintf(f, "costs of the search, forward and both halves of backward:");
        run_costs_print(f, &r->shape);
        fprintf(f, "\n");
    }
    free(schedule);
    free(sharding);
}
