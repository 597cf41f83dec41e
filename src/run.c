#include "run.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const isa_names[] = {"auto", "amx", "avx512", "avx2", "generic"};


int64_t run_microbatches(const Run *r, int64_t batch)
{
    return batch / (r->cfg->micro_batch_size * r->grid.size[AXIS_DP]);
}

/* ---- layout ---- */

static void open_schedules(Run *r)
{
    const Config *c = r->cfg;
    ScheduleKind kind = c->pipeline_schedule == PIPELINE_SCHEDULE_GPIPE ? SCHEDULE_GPIPE : SCHEDULE_1F1B;
    r->schedules = c->batch_steps;
    r->schedule = xcalloc((size_t)r->schedules, sizeof *r->schedule);
    for (int i = 0; i < r->schedules; i++) {
        PipeShape shape = {.kind = kind, .p = r->grid.size[AXIS_PP], .v = 1,
                           .m = (int)run_microbatches(r, c->batch_step[i].batch), .weight_share = 1};
        const int units[] = {r->params.nparts};
        ScheduleSet set;
        schedules_open(&set, &shape);
        schedule_open(&r->schedule[i], &set, r->grid.index[AXIS_PP], &(Expand){.units = units});
        schedules_close(&set);
    }
}

static int slots_of(const Run *r)
{
    int slots = 1;
    for (int i = 0; r->use != RUN_FORWARD && i < r->schedules; i++)
        slots = r->schedule[i].slots[SLOT_FD] > slots ? r->schedule[i].slots[SLOT_FD] : slots;
    return slots;
}

/* Bytes that `run` has grown by since the last call. */
static int64_t grown(const Arena *run, size_t *before)
{
    int64_t n = (int64_t)(run->used - *before);
    *before = run->used;
    return n;
}

/* Takes all memory of the run. Runs over a counting arena first, then over the real one. */
static void layout(Run *r, Device *dev, Arena *run, const char *run_dir, size_t slot, size_t scratch)
{
    const Config *c = r->cfg;
    Memory *mem = &r->memory;
    size_t before = run->used;
    *mem = (Memory){0};
    params_layout(&r->params, dev, run, r->use != RUN_FORWARD, r->use == RUN_TRAIN ? optimizer_moments(c) : 0);
    mem->parameters = r->params.data.bytes[0];
    mem->gradients = r->params.data.bytes[1];
    mem->optimizer = r->params.data.bytes[2];
    before = run->used;
    if (r->use != RUN_FORWARD)
        optimizer_open(&r->opt, c, &r->params, dev, run);
    mem->optimizer += grown(run, &before);
    model_open(&r->model, c, &r->grid, dev, &r->params, slots_of(r), run, slot, scratch);
    mem->activations = (int64_t)slot * slots_of(r);
    mem->buffers = grown(run, &before) - mem->activations;
    r->cache = (KvCache){0};
    if (r->kv_length) {
        r->cache.k = xcalloc((size_t)c->num_layers * 2, sizeof *r->cache.k);
        r->cache.v = r->cache.k + c->num_layers;
        for (int64_t i = 0; i < 2 * c->num_layers; i++)
            r->cache.k[i] = mat_take(run, r->kv_length, r->model.K * r->model.D, r->model.type);
    }
    mem->activations += grown(run, &before);
    if (r->use == RUN_TRAIN) {
        r->pieces = pieces_open(&r->params, &r->npieces);
        if (run_dir || !run->base)
            r->saver = saver_open(c, run_dir, &r->grid.all, r->pieces, r->npieces, run);
    }
    mem->buffers += grown(run, &before);
    mem->total = (int64_t)run->used;
}

static void unlayout(Run *r)
{
    model_close(&r->model);
    free(r->cache.k);
    if (r->pieces)
        pieces_close(r->pieces, r->npieces);
    r->pieces = NULL;
}

/* Everything that a command can make the model do, over the device that does nothing. */
static void rehearse(Run *r)
{
    Mat none = {.type = r->params.real};
    if (r->use != RUN_FORWARD)
        for (int i = 0; i < r->schedules; i++) {
            r->pipe.schedule = &r->schedule[i];
            model_begin(&r->model);
            pipeline_run(&r->pipe);
        }
    model_evaluate(&r->model, NULL, none);
    if (r->kv_length)
        model_extend(&r->model, &r->cache, NULL, r->kv_length, none);
}

/* Opens grid, table and schedules, and finds every size. */
static void count(Run *r, const Config *cfg, RunUse use, int64_t kv_length, size_t *slot, size_t *scratch)
{
    Device null;
    const int size[AXES] = {[AXIS_TP] = 1, [AXIS_CP] = 1, [AXIS_EP] = 1, [AXIS_DP] = 1, [AXIS_PP] = 1};
    Axis order[AXES];
    *r = (Run){.cfg = cfg, .use = use, .kv_length = kv_length};
    BUG_ON(!grid_parse_order(cfg->rank_order, order));
    grid_open(&r->grid, size, order, 1, 0);
    Placement place;
    placement_open(&place, cfg);
    params_open(&r->params, cfg, &r->grid, &place);
    placement_close(&place);
    r->params.data.stage = SHARD_NONE;     /* with one rank a shard is everything */
    open_schedules(r);
    null_open(&null, r->params.real);
    step_open(r);
    Arena counting = {.name = "run"};
    layout(r, &null, &counting, NULL, 0, 0);
    rehearse(r);
    *slot = *scratch = 0;
    for (int i = 0; i < r->model.nslots; i++)
        *slot = r->model.slot[i].mem.peak > *slot ? r->model.slot[i].mem.peak : *slot;
    *scratch = r->model.scratch.peak;
    unlayout(r);
    counting = (Arena){.name = "run"};
    layout(r, &null, &counting, NULL, *slot, *scratch);
    unlayout(r);
}

Memory run_plan(const Config *cfg, RunUse use, int64_t kv_length)
{
    Run r;
    size_t slot, scratch;
    count(&r, cfg, use, kv_length, &slot, &scratch);
    for (int i = 0; i < r.schedules; i++)
        schedule_close(&r.schedule[i]);
    free(r.schedule);
    params_close(&r.params);
    return r.memory;
}

/* Bytes that the machine has left, INT64_MAX when it does not say. */
static int64_t memory_left(void)
{
    FILE *f = fopen("/proc/meminfo", "r");
    char line[256];
    long long kib;
    int64_t left = INT64_MAX;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %lld kB", &kib) == 1)
            left = kib * 1024;
    if (f)
        fclose(f);
    return left;
}

static double gib(int64_t bytes) { return (double)bytes / (1 << 30); }

static void refuse_what_does_not_fit(const Run *r)
{
    int64_t left = memory_left();
    if (r->memory.total <= left)
        return;
    Config small = *r->cfg, full = *r->cfg, half = *r->cfg;
    small.micro_batch_size = 1;
    full.recompute_granularity = RECOMPUTE_GRANULARITY_FULL;
    full.recompute_method = RECOMPUTE_METHOD_UNIFORM;
    full.recompute_num_layers = 1;
    half.params_dtype = PARAMS_DTYPE_BF16;
    die(EXIT_RESOURCE, "memory-plan", "this run needs %.2f GiB (parameters %.2f, gradients %.2f, optimizer %.2f, activations "
        "%.2f, buffers %.2f) and the machine has %.2f left; change: micro_batch_size=1 needs %.2f GiB, full recompute "
        "(recompute_granularity=full recompute_method=uniform recompute_num_layers=1) %.2f, params_dtype=bf16 %.2f",
        gib(r->memory.total), gib(r->memory.parameters), gib(r->memory.gradients), gib(r->memory.optimizer),
        gib(r->memory.activations), gib(r->memory.buffers), gib(left), gib(run_plan(&small, r->use, r->kv_length).total),
        gib(run_plan(&full, r->use, r->kv_length).total), gib(run_plan(&half, r->use, r->kv_length).total));
}

void run_open(Run *r, const Config *cfg, RunUse use, int64_t kv_length, const char *run_dir)
{
    size_t slot, scratch;
    count(r, cfg, use, kv_length, &slot, &scratch);
    refuse_what_does_not_fit(r);
    cpu_open(&r->dev, r->params.real, isa_names[cfg->cpu_isa], (int)cfg->threads);
    arena_open(&r->arena, "run", (size_t)r->memory.total);
    layout(r, &r->dev, &r->arena, run_dir, slot, scratch);
    r->model.next_batch = step_batch;
    r->model.batch_ctx = r;
    if (use != RUN_FORWARD)
        params_init(&r->params, &r->dev);
    if (use == RUN_TRAIN)
        trace_open(&r->trace, cfg, r->schedule[r->schedules - 1].n + 8);
}

void run_close(Run *r)
{
    if (r->saver)
        saver_close(r->saver);
    trace_close(&r->trace);
    unlayout(r);
    for (int i = 0; i < r->schedules; i++)
        schedule_close(&r->schedule[i]);
    free(r->schedule);
    params_close(&r->params);
    arena_close(&r->arena);
    cpu_close(&r->dev);
    grid_close(&r->grid);
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
    int weights_only = r->use != RUN_TRAIN || r->cfg->finetune, n = r->npieces;
    Piece *pieces = r->pieces ? r->pieces : pieces_open(&r->params, &n);
    json_t *state = checkpoint_load(path, r->cfg, &r->grid.all, pieces, n, weights_only, &dir);
    weights_only = weights_only || json_is_true(json_object_get(state, "weights_only"));
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
    if (!r->pieces)
        pieces_close(pieces, n);
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
