/* start -- the beginning of a command that runs a model: configuration, grid, memory, corpus, first
 * lines */
#define _GNU_SOURCE
#include "start.h"
#include "balance.h"
#include "host_share.h"
#include "job.h"
#include "memory_copies.h"
#include "run_costs.h"
#include "source.h"
#include "tokenizer.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Opens a grid whose only axis is the world, for checks that come before the layout is trusted. */
static void world_open(Grid *g, const Config *cfg)
{
    GridSpec spec = grid_along(AXIS_DP, cfg->world);
    int rank;
    job_launched(&rank);
    grid_open(g, &spec, cfg->world, rank);
}

/* The configuration of the run in the folder `run`: there may only be copies in memory, of another host. */
static char *run_config(const char *run)
{
    char why[WHY], *path = xasprintf("%s/config.yaml", run);
    int64_t bytes;
    char *text = file_read_text(AT_FDCWD, path, 0, MANIFEST_MAX, &bytes, why);
    free(path);
    return text;
}

/* The configuration in the newest checkpoint, for config_load_over. Where that one is damaged, the one before
 * it says what the model is: whether its weights are taken is for on_corrupt to say. */
static char *saved_config(const char *load, char **dir)
{
    char why[WHY], *text = NULL;
    Source s;
    if (!source_open_readable(&s, load, why)) {
        *dir = xstrdup(why);
        return memory_folder() ? run_config(load) : NULL;
    }
    const char *config = json_string_value(json_object_get(s.m.state, "config"));
    text = config ? xstrdup(config) : NULL;
    *dir = config ? xstrdup(s.dir) : xasprintf("%s: its state holds no configuration", s.dir);
    source_close(&s);
    return text;
}

void start_directory(RunDirectory *d, const Config *cfg)
{
    Grid g;
    world_open(&g, cfg);
    run_directory_claim(d, cfg, &g.all);
    grid_close(&g);
}

static int is_key(const char *arg, const char *const *keys)
{
    size_t n = strcspn(arg, "=");
    for (; arg[n] && *keys; keys++)
        if (strlen(*keys) == n && !strncmp(arg, *keys, n))
            return 1;
    return 0;
}

char *start_command(const Config *cfg, int argc, char **argv, const char *const *without, const char *with)
{
    char **kept = xcalloc((size_t)argc + 1, sizeof *kept), *words, *line;
    char *program = args_text(1, &program_invocation_name);
    int n = 0;
    for (int i = 0; i < argc; i++)
        if (!is_key(argv[i], without))
            kept[n++] = argv[i];
    words = args_text(n, kept);
    const char *launcher = getenv("GRIDIRON_LAUNCH");
    if (launcher)
        line = xasprintf("%s%s%s", launcher, words, with);
    else if (cfg->world > 1)
        line = xasprintf("mpirun -n %d%s%s%s", cfg->world, program, words, with);
    else
        line = xasprintf("%s%s%s", program + 1, words, with);
    free(program);
    free(words);
    free(kept);
    return line;
}

const Config *start_config(const char *path, Args *a, ConfigUse use)
{
    struct stat st;
    Grid g;
    char *load = NULL;
    /* a folder is a run or a checkpoint, which carries its own configuration */
    if (path && (use & USE_LOAD) && stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        for (int i = 0; i < a->n; i++)
            if (!strncmp(a->v[i], "load=", 5))
                die(EXIT_CONFIG, "usage", "train %s: the folder %s and %s name two models; change: give one "
                    "of them", a->command, path, a->v[i]);
        char *name = config_string(path);
        a->v[a->n++] = load = xasprintf("load=%s", name);
        free(name);
        path = NULL;
    }
    const Config *cfg = config_load_over(path, a->n, a->v, 0, use, saved_config);
    free(a->v);
    free(load);
    /* Compares the configurations of all ranks before the grid is opened: ranks with different
     * configurations would wait for each other in groups that only some of them open. */
    world_open(&g, cfg);
    config_same(cfg, &g.all);
    grid_close(&g);
    return balance_choose(cfg);
}

const Config *start_load(const char *path, int nargs, char **args, int world, ConfigUse use)
{
    return config_load_over(path, nargs, args, world, use, saved_config);
}

const Config *start_plan(const char *path, Args *a, int world)
{
    const Config *cfg = start_load(path, a->n, a->v, world, USE_MODEL);
    free(a->v);
    return cfg;
}

char **start_args(const char *path, int nargs, char **args, int *n)
{
    return config_args_over(path, nargs, args, saved_config, n);
}

int start_smaller(const char *path, Args *a, int world, int most)
{
    const Config *cfg = start_load(path, a->n, a->v, world, USE_MODEL);
    int64_t least = cfg->min_world;
    int found = cfg->world;
    if (most < cfg->world) {
        if (least == CFG_ABSENT)
            die(EXIT_CONFIG, "min-world", "min_world is not set, so the job goes on with %d ranks or not at "
                "all; change: set min_world to the smallest world that may go on", cfg->world);
        found = config_largest_world(path, a->n, a->v, most, saved_config);
    }
    if (found < least)
        die(EXIT_CONFIG, "min-world", "the largest world that this layout and batch allow on %d slots is %d, "
            "and min_world is %ld; change: lower min_world, or the sizes of the layout", most, found, least);
    free(a->v);
    return found;
}

int64_t start_samples(const Config *cfg, int64_t batch)
{
    return cfg->train_iters == CFG_ABSENT && cfg->train_samples == CFG_ABSENT
               ? batch : config_samples_wanted(cfg, 0, config_iterations(cfg));
}

/* Warns where documents are told apart and a corpus has no ends of documents: once, for the first split that
 * a run opens. */
static void warn_endless(const Config *cfg, const Run *r, const Loader *l)
{
    if (r->grid.rank || r->loader || !loader_endless(l))
        return;
    warn("%s has no end-of-document, id %d, among its first %d tokens, and reset_attention_mask, "
         "reset_position_ids and eod_mask_loss go by these; change: %s", loader_endless(l),
         tokenizer_open(cfg)->eod, ENDS_WITHIN,
         cfg->tokenizer_type == TOKENIZER_TYPE_NONE ? "null_tokenizer_eod_id to the corpus's"
                                                    : "tokenize without --no-append-eod");
}

typedef struct { Comm *all; int first; } HostRanks;    /* first: of this host */
static void *take_shared(void *ctx, size_t *bytes)
{
    const HostRanks *h = ctx;
    return host_share(h->all, h->first, bytes, "the order of samples");
}
static void ready_shared(void *ctx)
{
    const HostRanks *h = ctx;
    h->all->barrier(h->all);
}

Loader *start_loader(const Config *cfg, Run *r, Split split, int64_t samples)
{
    Comm *all = &r->grid.all;
    HostRanks host = {all, host_share_first(all)};
    Sharers with = {all->rank == host.first, take_shared, ready_shared, &host};
    Positions runs = context_positions(cfg->seq_length, 1, r->grid.size[AXIS_CP], r->grid.index[AXIS_CP], 1);
    Loader *l = loader_open(cfg, split, samples, r->grid.index[AXIS_DP], r->grid.size[AXIS_DP], &runs,
                            &with);
    int64_t mine = loader_fingerprint(l), first = mine;
    all->wait(all, all->broadcast(all, &first, 1, I64, 0));
    all_ok(all, mine == first, EXIT_DATA, "data-differs",
           "this rank sees other bytes in a corpus than rank 0; change: give every host the same corpus");
    warn_endless(cfg, r, l);
    return l;
}

json_t *start_layout(const Config *c)
{
    int64_t pp = c->pipeline_model_parallel_size;
    return json_pack("{s:I s:I s:I s:I s:I s:I s:I}", "tp", (json_int_t)c->tensor_model_parallel_size, "cp",
                     (json_int_t)c->context_parallel_size, "ep", (json_int_t)c->expert_model_parallel_size,
                     "etp", (json_int_t)c->expert_tensor_parallel_size, "dp",
                     (json_int_t)c->data_parallel_size, "pp", (json_int_t)pp, "vpp",
                     (json_int_t)(c->stages / pp));
}

void start_print(FILE *f, const Run *r)
{
    const Config *c = r->cfg;
    const Lists *l = &r->plan.lists[c->batch_steps - 1];
    const PipeShape *s = &r->plan.shape;
    if (c->num_moe_experts != CFG_ABSENT && c->moe_router_force != MOE_ROUTER_FORCE_NONE) {
        char *rule = config_text(c, OPT_moe_router_force);
        fprintf(f, "warning: moe_router_force %s replaces the router's choices; use the results for "
                "measurements only\n", rule);
        free(rule);
    }
    if (c->world == 1)
        return;
    char *schedule = config_text(c, OPT_pipeline_schedule),
         *sharding = config_text(c, OPT_data_parallel_sharding_strategy);
    fprintf(f, "layout: tensor %lld%s x pipeline %lld", (long long)c->tensor_model_parallel_size,
            c->sequence_parallel ? " (sequence parallel)" : "", (long long)c->pipeline_model_parallel_size);
    if (r->grid.size[AXIS_CP] > 1) {
        char *kinds = config_text(c, OPT_cp_comm_type);
        fprintf(f, " x context %lld (%s)", (long long)c->context_parallel_size, kinds);
        free(kinds);
    }
    fprintf(f, " x data %lld (%s)\n", (long long)c->data_parallel_size, sharding);
    if (c->num_moe_experts != CFG_ABSENT)
        fprintf(f, "experts: %lld over %lld ranks, each of %lld tensor ranks\n",
                (long long)c->num_moe_experts, (long long)c->expert_model_parallel_size,
                (long long)c->expert_tensor_parallel_size);
    placement_print(f, &r->plan.placement);
    fprintf(f, "schedule %s: %d microbatches, bubble %.1f %% %s; activations of",
            s->p > 1 ? schedule : schedule_name(SCHEDULE_1F1B), l->m, 100 * r->plan.sim.rate,
            run_costs_phrase(s));
    for (int p = 0; p < s->p; p++)
        fprintf(f, " %.3g", r->plan.sim.peak[p]);
    fprintf(f, " microbatches\n");
    if (s->cost[0]) {
        fprintf(f, "costs of the search, forward and both halves of backward:");
        run_costs_print(f, s);
        fprintf(f, "\n");
    }
    free(schedule);
    free(sharding);
}

void start_warn(const Config *cfg, int64_t total)
{
    const char *text;
    for (int i = 0; i < OPTIONS; i++)
        if ((text = config_idle(cfg, i)))
            warn("%s", text);
    for (int i = 0; i < cfg->trace_steps.n; i++)
        if (atoll(cfg->trace_steps.v[i]) > total)
            warn("trace_steps: iteration %s comes after the last, %ld, and is not drawn; change: leave it "
                 "out, or train longer", cfg->trace_steps.v[i], total);
    if (cfg->min_world > cfg->world)
        warn("min_world %ld is above the world of %d: no smaller job goes on for this one; change: lower it, "
             "or leave it out", cfg->min_world, cfg->world);
}
