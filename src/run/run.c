#include "run_layout.h"
#include "job.h"
#include "json_number.h"
#include <stdlib.h>
#include <string.h>

/* Every rank must be about to do the same. */
static void compare_ranks(Run *r)
{
    Comm *all = &r->grid.all;
    config_same(r->cfg, all);
    int64_t low = (int64_t)(r->plan.hash >> 1), high = low;
    all->wait(all, all->all_reduce(all, &low, 1, I64, OP_MIN));
    all->wait(all, all->all_reduce(all, &high, 1, I64, OP_MAX));
    all_ok(all, low == high, EXIT_BUG, "schedule-hash",
           "the ranks have made different instruction lists of the same configuration; change: run the same "
           "build on every host, and report this");
}

void run_grid(Grid *g, const Config *cfg)
{
    int rank = 0;
    GridSpec spec = run_spec(cfg);
    if (cfg->world > 1)
        job_launched(&rank);
    grid_open(g, &spec, cfg->world, rank);
}

void run_open(Run *r, const Config *cfg, RunUse use, int64_t kv_length, const char *run_dir)
{
    ModelBytes bytes;
    int rank = 0;
    if (cfg->world > 1)
        job_launched(&rank);
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
    device_arena(&r->dev, &r->arenas.run, "run", (size_t)r->plan.memory.arena);
    mapped_arena(&r->dev, &r->arenas.mapped, "run, offloaded", (size_t)r->plan.memory.mapped);
    host_arena(&r->dev, &r->arenas.host, "run, host", (size_t)r->plan.memory.staging);
    run_device_memory(r);
    run_tune(r, run_dir, r->arenas.run.base, r->arenas.run.size);
    layout_take(r, &r->dev, &r->arenas, run_dir, &bytes);
    layout_workspace(r);
    if (use != RUN_FORWARD)
        params_init(&r->params, &r->dev);
    if (use == RUN_TRAIN)
        trace_start(&r->trace, &r->grid);
}

void run_close(Run *r)
{
    if (r->checkpoint.saver)
        saver_close(r->checkpoint.saver);
    json_decref(r->checkpoint.huggingface);
    trace_close(&r->trace);
    layout_give(r);
    lists_close(r);
    params_close(&r->params);
    placement_close(&r->plan.placement);
    grid_close(&r->grid);              /* groups wait for the device, and know its memory */
    host_arena_close(&r->dev, &r->arenas.host);
    mapped_arena_close(&r->dev, &r->arenas.mapped);
    device_arena_close(&r->dev, &r->arenas.run);
    run_device_close(r);
    products_close(&r->gpu.products);
    algorithms_close(&r->gpu.algorithms);
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
    const RunProgress *p = &r->progress;
    json_t *j =
        json_pack("{s:I s:I s:I s:I s:I s:I s:{s:o s:I s:I} s:{s:I s:I} s:s s:s}", "iteration",
                  (json_int_t)p->iteration, "consumed_samples", (json_int_t)p->consumed_samples, "updates",
                  (json_int_t)r->opt.updates, "skipped_iterations", (json_int_t)p->skipped, "nan_iterations",
                  (json_int_t)p->nans, "seed", (json_int_t)r->cfg->seed, "loss_scale", "scale",
                  json_number(s->scale), "good", (json_int_t)s->good, "tolerance", (json_int_t)s->tolerance,
                  "batch_sizes_since", "iteration", (json_int_t)p->batches.iteration, "samples",
                  (json_int_t)p->batches.samples, "config", text, "build", config_build_id());
    BUG_ON(!j);
    if (r->checkpoint.huggingface)
        json_object_set(j, "huggingface", r->checkpoint.huggingface);
    if (r->checkpoint.id)
        json_object_set_new(j, "run_id", json_string(r->checkpoint.id));
    free(text);
    return j;
}

#define OTHER_STATE "; change: load another checkpoint, or set finetune: true to take the weights only"

/* A number of the state in [low, high]. A right hash shows that it was written so, not that a run can go on
 * from it. */
static int64_t state_int(const json_t *state, const char *key, int64_t low, int64_t high, const char *dir)
{
    json_t *v = json_object_get(state, key);
    long long n = json_integer_value(v);
    if (!json_is_integer(v))
        die(EXIT_CHECKPOINT, "checkpoint-state", "%s: the state has no whole number `%s`" OTHER_STATE, dir,
            key);
    if (n < low || n > high)
        die(EXIT_CHECKPOINT, "checkpoint-state",
            "%s: the state's `%s` is %lld, not in [%lld, %lld]" OTHER_STATE, dir, key, n, (long long)low,
            (long long)high);
    return n;
}

/* Refuses or tells what changed in the config since the checkpoint was written. */
static const Config *compare_config(const Config *cfg, const json_t *state, const char *dir)
{
    const char *text = json_string_value(json_object_get(state, "config")), *skipped = "", *diff = "";
    const Config *saved = text ? config_read_saved(text, strlen(text), &skipped) : NULL;
    if (!saved)
        die(EXIT_CHECKPOINT, "checkpoint-state", "%s: the state holds no configuration" OTHER_STATE, dir);
    Change change = config_compare_resume(cfg, saved, &diff);
    if (change != CHANGE_FREE)
        fprintf(stderr, "%s was written with other settings:\n%s", dir, diff);
    if (change == CHANGE_REFUSE)
        die(EXIT_CHECKPOINT, "resume-config",
            "%s: the settings marked `refuse` above cannot change within a run; change: set them back, or "
            "set finetune: true to start at iteration 0 with its weights",
            dir);
    return saved;
}

/* How far the run was: as many samples as its batch sizes give, where they have not changed since it began or
 * last did. */
static void load_progress(Run *r, const json_t *state, const Config *saved, const char *dir)
{
    RunProgress *p = &r->progress;
    const json_t *since = json_object_get(state, "batch_sizes_since");
    int64_t steps = p->iteration = state_int(state, "iteration", 0, 1000000000, dir);
    int64_t most = INT64_MAX / 2 / r->cfg->seq_length, low = steps,
            high = steps < most >> 30 ? steps << 30 : most;
    p->batches.iteration = since ? state_int(since, "iteration", 0, steps, dir) : 0;
    p->batches.samples = since ? state_int(since, "samples", 0, high, dir) : 0;
    if (since && config_same_batches(r->cfg, saved))
        low = high = config_samples_from(r->cfg, p->batches.samples, steps - p->batches.iteration);
    p->consumed_samples = state_int(state, "consumed_samples", low, high, dir);
    if (!config_same_batches(r->cfg, saved)) {
        p->batches.iteration = steps;
        p->batches.samples = p->consumed_samples;
    }
    p->skipped = state_int(state, "skipped_iterations", 0, steps, dir);
    p->nans = state_int(state, "nan_iterations", 0, steps, dir);
    r->opt.updates = state_int(state, "updates", 0, steps, dir);
}

static void load_loss_scale(Run *r, const json_t *state, const char *dir)
{
    const json_t *scale = json_object_get(state, "loss_scale"), *v = json_object_get(scale, "scale");
    double x = json_number_value(v);
    if (!json_is_number(v) || !(x > 0))
        die(EXIT_CHECKPOINT, "checkpoint-state",
            "%s: the state's `loss_scale` is %g, not above 0" OTHER_STATE, dir, x);
    r->opt.loss_scale = (LossScale){x, state_int(scale, "good", 0, INT32_MAX, dir),
                                    state_int(scale, "tolerance", -r->progress.iteration, INT32_MAX, dir)};
}

char *run_load(Run *r, const char *path)
{
    char *dir = NULL;
    int weights_only = r->use != RUN_TRAIN || r->cfg->finetune, n;
    TensorPiece *pieces = pieces_open(&r->params, PIECES_LOAD, &n);
    if (!weights_only)
        fp8_scales_pieces(&r->model, PIECES_LOAD, &pieces, &n);
    json_t *state = checkpoint_load(path, r->cfg, &r->grid.all, pieces, n, weights_only, &dir);
    weights_only = weights_only || json_is_true(json_object_get(state, "weights_only"));
    json_decref(r->checkpoint.huggingface);
    r->checkpoint.huggingface = json_incref(json_object_get(state, "huggingface"));
    if (!weights_only) {
        load_progress(r, state, compare_config(r->cfg, state, dir), dir);
        load_loss_scale(r, state, dir);
    }
    json_decref(state);
    pieces_close(pieces, n);
    if (!weights_only)
        fp8_scales_loaded(&r->model);
    run_check_weights(r, dir);
    return dir;
}

double run_flops_per_token(const Config *c)
{
    int64_t Q = c->num_attention_heads * c->kv_channels, KV = c->num_query_groups * c->kv_channels;
    double layer =
        (double)c->hidden_size * (double)(2 * Q + 2 * KV) +
        (double)c->hidden_size * (double)c->ffn_hidden_size * (act_gated((ActKind)c->activation) ? 3 : 2);
    double weights = (double)c->num_layers * layer + (double)c->vocab_size * (double)c->hidden_size;
    return 6 * weights + 12.0 * (double)c->num_layers * (double)Q * (double)c->seq_length;
}
