/* run_state -- what a checkpoint keeps of a run beside the tensors, and the way back */
#include "json_number.h"
#include "lr.h"
#include "run.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

json_t *run_state(const Run *r)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = xmemstream(&text, &size);
    config_write(f, r->cfg);
    fclose(f);
    const LossScale *s = &r->opt.loss_scale;
    const RunProgress *p = &r->progress;
    json_t *j =
        json_pack("{s:I s:I s:I s:I s:I s:I s:I s:I s:{s:o s:I s:I s:I} s:{s:I s:I s:I} s:s s:s}",
                  "iteration", (json_int_t)p->iteration, "consumed_samples", (json_int_t)p->consumed_samples,
                  "updates", (json_int_t)r->opt.updates, "skipped_iterations",
                  (json_int_t)(p->skipped + r->spikes.skipped), "unscheduled_iterations",
                  (json_int_t)p->unscheduled.iterations, "unscheduled_samples",
                  (json_int_t)p->unscheduled.samples, "nan_iterations",
                  (json_int_t)p->nans, "seed", (json_int_t)r->cfg->seed, "loss_scale", "scale",
                  json_number(s->scale), "good", (json_int_t)s->good, "tolerance", (json_int_t)s->tolerance,
                  "overflows", (json_int_t)s->overflows,
                  "batch_sizes_since", "iteration", (json_int_t)p->batches.iteration, "samples",
                  (json_int_t)p->batches.samples, "tokens", (json_int_t)p->batches.tokens, "config", text,
                  "build", config_build_id());
    BUG_ON(!j);
    if (r->checkpoint.huggingface)
        json_object_set(j, "huggingface", r->checkpoint.huggingface);
    if (r->spikes.good || r->spikes.nout)
        json_object_set_new(j, "spikes", spikes_state(&r->spikes));
    if (r->loader) {
        json_object_set_new(j, "corpus", json_integer((json_int_t)loader_fingerprint(r->loader)));
        json_object_set_new(j, "passes", json_integer((json_int_t)loader_passes(r->loader)));
    }
    if (r->checkpoint.id)
        json_object_set_new(j, "run_id", json_string(r->checkpoint.id));
    free(text);
    return j;
}

#define OTHER_STATE "; change: load another checkpoint, or set finetune: true to take the weights only"

/* A number of the state; dies when it is outside [low, high]. The manifest's hash proves that the number
 * was written so, not that a run can go on from it. */
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

/* Dies or warns about keys of the configuration that have changed since the checkpoint was written. Rank 0
 * lists them, before any rank dies. Collective. */
static const Config *compare_config(Run *r, const json_t *state, const char *dir)
{
    const char *diff = "";
    const Config *saved = checkpoint_config(state, NULL);
    if (!saved)
        die(EXIT_CHECKPOINT, "checkpoint-state", "%s: the state holds no configuration" OTHER_STATE, dir);
    Change change = config_compare_resume(r->cfg, saved, &diff);
    if (change != CHANGE_FREE && r->grid.rank == 0)
        fprintf(stderr, "%s was written with other settings:\n%s", dir, diff);
    if (change == CHANGE_REFUSE) {
        r->grid.all.barrier(&r->grid.all);
        die(EXIT_CHECKPOINT, "resume-config", "%s: the settings marked `refuse` above cannot change within a "
            "run; change: set them back, or set finetune: true to start at iteration 0 with its weights",
            dir);
    }
    return saved;
}

/* Reads for how long the schedule of lr stood still; older checkpoints do not say. With other batch sizes,
 * lengths in iterations stay such: the steps of the standstill count as if they had been the first ones. */
static void load_unscheduled(Run *r, const json_t *state, const Config *saved, const char *dir)
{
    RunProgress *p = &r->progress;
    int64_t most = lr_samples(r->cfg, p->iteration, p->consumed_samples), steps = 0, n = 0;
    if (json_object_get(state, "unscheduled_iterations")) {
        steps = state_int(state, "unscheduled_iterations", 0, p->iteration, dir);
        n = state_int(state, "unscheduled_samples", 0, INT64_MAX, dir);
    }
    if (!config_same_batches(r->cfg, saved) && r->cfg->train_samples == CFG_ABSENT)
        n = config_samples_after(r->cfg, steps);
    p->unscheduled.iterations = steps;
    p->unscheduled.samples = n < most ? n : most;
}

/* Reads how far the run was. The consumed samples must be those that the batch sizes give, counted from
 * where the present batch sizes took effect. */
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
    p->batches.tokens = json_object_get(since, "tokens")
                            ? state_int(since, "tokens", 0, INT64_MAX, dir)
                            : p->batches.samples * saved->seq_length;
    int same = !config_differs(r->cfg, saved, OPT_data_path) &&
               !config_differs(r->cfg, saved, OPT_train_data_path);
    r->checkpoint.corpus = same ? json_integer_value(json_object_get(state, "corpus")) : 0;
    r->checkpoint.passes = same ? json_integer_value(json_object_get(state, "passes")) : 0;
    if (!config_same_batches(r->cfg, saved)) {
        p->batches.iteration = steps;
        p->batches.tokens += (p->consumed_samples - p->batches.samples) * saved->seq_length;
        p->batches.samples = p->consumed_samples;
    }
    if (!spikes_load(&r->spikes, r->cfg, json_object_get(state, "spikes"), steps))
        die(EXIT_CHECKPOINT, "checkpoint-state", "%s: the state's `spikes` are none of a run" OTHER_STATE,
            dir);
    p->skipped = state_int(state, "skipped_iterations", r->spikes.skipped, steps, dir) - r->spikes.skipped;
    load_unscheduled(r, state, saved, dir);
    p->nans = state_int(state, "nan_iterations", 0, steps, dir);
    r->opt.updates = state_int(state, "updates", 0, steps, dir);
}

/* The dynamic loss scale of fp16 goes on from a run that had one. A fixed one is that of the configuration,
 * and other types have none. */
static void load_loss_scale(Run *r, const json_t *state, const Config *saved, const char *dir)
{
    const Config *c = r->cfg;
    const json_t *scale = json_object_get(state, "loss_scale"), *v = json_object_get(scale, "scale");
    double x = json_number_value(v);
    if (!json_is_number(v) || !(x > 0))
        die(EXIT_CHECKPOINT, "checkpoint-state",
            "%s: the state's `loss_scale` is %g, not above 0" OTHER_STATE, dir, x);
    LossScale goes_on = {fmax(x, c->min_loss_scale), state_int(scale, "good", 0, INT32_MAX, dir),
                         state_int(scale, "tolerance", -r->progress.iteration, INT32_MAX, dir), 0};
    if (json_object_get(scale, "overflows"))       /* older checkpoints do not say */
        goes_on.overflows = state_int(scale, "overflows", 0, r->progress.iteration, dir);
    if (goes_on.tolerance > c->hysteresis)
        goes_on.tolerance = c->hysteresis;
    loss_scale_open(&r->opt.loss_scale, c);
    if (loss_scale_moves(c) && loss_scale_moves(saved))
        r->opt.loss_scale = goes_on;
}

/* As run_load. */
static char *load(Run *r, const LoadFrom *from, int weights_only)
{
    char *dir = NULL;
    int n;
    r->sdc.sealed = 0;
    TensorPiece *pieces = pieces_open(&r->params, PIECES_LOAD, &n);
    expert_bias_pieces(&r->model, PIECES_LOAD, &pieces, &n);
    if (!weights_only)
        fp8_scales_pieces(&r->model, PIECES_LOAD, &pieces, &n);
    Config cfg = *r->cfg;
    /* forward alone has no initial values for a router */
    cfg.moe_use_upcycling = cfg.moe_use_upcycling && r->use != RUN_FORWARD;
    json_t *state = checkpoint_load(from, &cfg, &r->grid.all, pieces, n, weights_only, &dir);
    weights_only = weights_only || json_is_true(json_object_get(state, "weights_only"));
    json_decref(r->checkpoint.huggingface);
    r->checkpoint.huggingface = json_incref(json_object_get(state, "huggingface"));
    if (!weights_only) {
        const Config *saved = compare_config(r, state, dir);
        load_progress(r, state, saved, dir);
        load_loss_scale(r, state, saved, dir);
    }
    json_decref(state);
    pieces_close(pieces, n);
    pieces_loaded(&r->params);
    if (!weights_only)
        fp8_scales_loaded(&r->model);
    expert_bias_loaded(&r->model);
    run_check_weights(r, dir);
    return dir;
}

char *run_load(Run *r, const char *path)
{
    LoadFrom from = {.path = path, .memory = r->checkpoint.from_memory};
    return load(r, &from, r->use != RUN_TRAIN || r->cfg->finetune);
}

int64_t run_iterations(const Run *r)
{
    return config_iterations_from(r->cfg, r->progress.batches.iteration, r->progress.batches.samples);
}

void run_rewind(Run *r, const LoadFrom *from)
{
    Spikes *s = &r->spikes, before = *s;
    RunProgress *p = &r->progress, here = *p;
    while (run_open_steps(r))          /* dropped: they come again */
        r->dev.read_wait(&r->dev, r->flight.step[r->flight.collected++ % STEPS_OPEN].ticket);
    if (r->flight.span) {              /* what they waited for goes to no later step */
        r->dev.sync(&r->dev);
        r->dev.stalls(&r->dev);
    }
    data_settle(&r->params.data);
    data_gathered(&r->params.data);    /* what is under way would overwrite loaded weights */
    r->dev.wait_snapshots(&r->dev);    /* the load overwrites what a save may still copy */
    s->out = NULL;                     /* the load makes its own list */
    free(load(r, from, 0));
    free(s->out);
    int64_t back = p->iteration, first = p->consumed_samples, skipped = s->skipped;
    s->out = before.out, s->nout = before.nout;
    s->in_a_row = before.in_a_row;
    s->now = before.now;
    s->now.back = back;
    s->skipped = skipped + s->now.iteration - back;
    spikes_leave_out(s, s->now.iteration, first, s->now.first + s->now.samples - first);
    p->iteration = s->now.iteration;
    p->consumed_samples = s->now.first + s->now.samples;
    p->nans = here.nans;
    p->unscheduled = here.unscheduled;
    p->batches = here.batches;
    optimizer_go(&r->opt);
    own_groups(&r->grid, &r->own.before);     /* what dropped steps and the load sent belongs to no step */
}
