#include "run_layout.h"
#include <stdlib.h>
#include <string.h>

/* Every rank must be about to do the same. */
static void compare_ranks(Run *r)
{
    Comm *all = &r->grid.all;
    config_same(r->cfg, all);
    int64_t low = (int64_t)(r->hash >> 1), high = low;
    all->wait(all, all->all_reduce(all, &low, 1, I64, OP_MIN));
    all->wait(all, all->all_reduce(all, &high, 1, I64, OP_MAX));
    all_ok(all, low == high, EXIT_BUG, "schedule-hash", "the ranks have made different instruction lists of the same "
           "configuration; change: run the same build on every host, and report this");
}

void run_grid(Grid *g, const Config *cfg)
{
    int rank = 0;
    GridSpec spec = run_spec(cfg);
    if (cfg->world > 1)
        grid_launched(&rank);
    grid_open(g, &spec, cfg->world, rank);
}

void run_open(Run *r, const Config *cfg, RunUse use, int64_t kv_length, const char *run_dir)
{
    ModelBytes bytes;
    int rank = 0;
    if (cfg->world > 1)
        grid_launched(&rank);
    layout_count(r, cfg, use, kv_length, rank, &(Rehearsal){0}, &bytes);
    params_close(&r->params);
    grid_close(&r->grid);
    run_grid(&r->grid, cfg);
    compare_ranks(r);
    table_open(r);
    lists_units(r);
    run_device_open(r);
    run_attention(r);
    run_fit(r, &bytes);
    device_arena(&r->dev, &r->arena, "run", (size_t)r->memory.arena);
    outer_arena(&r->dev, &r->outer, "run, offloaded", (size_t)r->memory.outer);
    host_arena(&r->dev, &r->host, "run, host", (size_t)r->memory.staging);
    run_device_memory(r);
    run_tune(r, run_dir, r->arena.base, r->arena.size);
    layout_take(r, &r->dev, (Arenas){&r->arena, &r->outer, &r->host}, run_dir, &bytes);
    layout_workspace(r);
    if (use != RUN_FORWARD)
        params_init(&r->params, &r->dev);
    if (use == RUN_TRAIN)
        trace_start(&r->trace, &r->grid);
}

void run_close(Run *r)
{
    if (r->saver)
        saver_close(r->saver);
    json_decref(r->huggingface);
    trace_close(&r->trace);
    layout_give(r);
    lists_close(r);
    params_close(&r->params);
    placement_close(&r->placement);
    grid_close(&r->grid);              /* groups wait for the device, and know its memory */
    host_arena_close(&r->dev, &r->host);
    outer_arena_close(&r->dev, &r->outer);
    device_arena_close(&r->dev, &r->arena);
    run_device_close(r);
    products_close(&r->products);
    algorithms_close(&r->algorithms);
}

/* ---- state ---- */

json_t *run_state(const Run *r)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    config_write(f, r->cfg);
    fclose(f);
    const LossScale *s = &r->opt.loss_scale;
    json_t *j = json_pack("{s:I s:I s:I s:I s:I s:I s:{s:f s:I s:I} s:s s:s}", "iteration", (json_int_t)r->iteration,
                          "consumed_samples", (json_int_t)r->consumed_samples, "updates", (json_int_t)r->opt.updates,
                          "skipped_iterations", (json_int_t)r->skipped, "nan_iterations", (json_int_t)r->nans, "seed",
                          (json_int_t)r->cfg->seed, "loss_scale", "scale", s->scale, "good", (json_int_t)s->good,
                          "tolerance", (json_int_t)s->tolerance, "config", text, "build", config_build_id());
    BUG_ON(!j);
    if (r->huggingface)
        json_object_set(j, "huggingface", r->huggingface);
    free(text);
    return j;
}

static int64_t state_int(const json_t *state, const char *key, const char *dir)
{
    json_t *v = json_object_get(state, key);
    if (!json_is_integer(v))
        die(EXIT_CHECKPOINT, "checkpoint-state", "%s: the state has no `%s`; change: load another checkpoint, or set "
            "finetune: true to take the weights only", dir, key);
    return json_integer_value(v);
}

/* Refuses or tells what changed in the config since the checkpoint was written. */
static void compare_config(const Config *cfg, const json_t *state, const char *dir)
{
    const char *text = json_string_value(json_object_get(state, "config")), *skipped = "", *diff = "";
    const Config *saved = text ? config_read_saved(text, strlen(text), &skipped) : NULL;
    if (!saved)
        die(EXIT_CHECKPOINT, "checkpoint-state", "%s: the state holds no configuration; change: load another checkpoint, "
            "or set finetune: true to take the weights only", dir);
    Change change = config_compare_resume(cfg, saved, &diff);
    if (change != CHANGE_FREE)
        fprintf(stderr, "%s was written with other settings:\n%s", dir, diff);
    if (change == CHANGE_REFUSE)
        die(EXIT_CHECKPOINT, "resume-config", "%s: the settings marked `refuse` above cannot change within a run; change: set "
            "them back, or set finetune: true to start at iteration 0 with its weights", dir);
}

char *run_load(Run *r, const char *path)
{
    char *dir = NULL;
    int weights_only = r->use != RUN_TRAIN || r->cfg->finetune, n;
    Piece *pieces = pieces_open(&r->params, PIECES_LOAD, &n);
    if (!weights_only)
        model_scale_pieces(&r->model, PIECES_LOAD, &pieces, &n);
    json_t *state = checkpoint_load(path, r->cfg, &r->grid.all, pieces, n, weights_only, &dir);
    weights_only = weights_only || json_is_true(json_object_get(state, "weights_only"));
    json_decref(r->huggingface);
    r->huggingface = json_incref(json_object_get(state, "huggingface"));
    if (!weights_only) {
        const json_t *scale = json_object_get(state, "loss_scale");
        compare_config(r->cfg, state, dir);
        r->iteration = state_int(state, "iteration", dir);
        r->consumed_samples = state_int(state, "consumed_samples", dir);
        r->skipped = state_int(state, "skipped_iterations", dir);
        r->nans = state_int(state, "nan_iterations", dir);
        r->opt.updates = state_int(state, "updates", dir);
        r->opt.loss_scale = (LossScale){json_number_value(json_object_get(scale, "scale")), state_int(scale, "good", dir),
                                        state_int(scale, "tolerance", dir)};
    }
    json_decref(state);
    pieces_close(pieces, n);
    if (!weights_only)
        model_scales_loaded(&r->model);
    return dir;
}

double run_flops_per_token(const Config *c)
{
    int64_t Q = c->num_attention_heads * c->kv_channels, KV = c->num_query_groups * c->kv_channels;
    double layer = (double)c->hidden_size * (double)(2 * Q + 2 * KV) +
                   (double)c->hidden_size * (double)c->ffn_hidden_size * (act_gated((ActKind)c->activation) ? 3 : 2);
    double weights = (double)c->num_layers * layer + (double)c->vocab_size * (double)c->hidden_size;
    return 6 * weights + 12.0 * (double)c->num_layers * (double)Q * (double)c->seq_length;
}

char *run_directory(const Config *cfg)
{
    if (cfg->save)
        return xstrdup(cfg->save);
    const char *name = strrchr(cfg->path, '/'), *dot;
    name = name ? name + 1 : cfg->path;
    dot = strrchr(name, '.');
    return xasprintf("runs/%.*s", dot && dot > name ? (int)(dot - name) : (int)strlen(name), name);
}
