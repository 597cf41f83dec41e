/* What the instructions of a step do, how a step ends, and evaluation. */
#include "lr.h"
#include "run.h"
#include <math.h>
#include <string.h>

/* ---- what the executor calls ---- */

#define TO_MODEL(name) static void stage_##name(void *run, const Instr *i) { model_##name(&((Run *)run)->model, i); }
TO_MODEL(arrive)
TO_MODEL(forward)
TO_MODEL(backward)
TO_MODEL(backward_x)
TO_MODEL(backward_w)
TO_MODEL(send_activation)
TO_MODEL(recv_activation)
TO_MODEL(send_gradient)
TO_MODEL(recv_gradient)

static Data *data_of(void *run) { return &((Run *)run)->params.data; }
static void stage_gather(void *run, const Instr *i) { data_gather(data_of(run), i->part); }
static void stage_release(void *run, const Instr *i) { data_release(data_of(run), i->part); }
static void stage_reduce(void *run, const Instr *i) { data_reduce(data_of(run), i->part, i->phase); }

static void stage_tied(void *run, const Instr *i)
{
    (void)i;
    data_wait_grads(data_of(run));
    data_tied(data_of(run));
}

/* Microbatch mb of the list that runs now. */
static const Batch *next_batch(void *run, int mb)
{
    Run *r = run;
    int64_t n = r->cfg->micro_batch_size * r->grid.size[AXIS_DP];
    return r->source ? loader_get(r->source, r->source_first + mb * n, n) : NULL;
}

/* ---- the end of a step ---- */

/* The first tensor of a forward that is not finite, for the message. */
typedef struct { char name[160]; int64_t order; } Culprit;     /* order: in the model, weights first */
static Culprit culprit;

static double sum_of(Model *m, Mat x)
{
    double sum = 0, *at = m->sums + SUM_WATCH;
    m->dev->zero(m->dev, at, sizeof *at);
    m->dev->sum(m->dev, at, x);
    m->dev->get(m->dev, &sum, at, sizeof sum);
    return sum;
}

static void find_culprit(Model *m, int part, const char *where, Mat x)
{
    if (culprit.name[0] || isfinite(sum_of(m, x)))
        return;
    culprit.order = m->params->part[part].kind == PART_EMBEDDING ? 0 : m->params->part[part].kind == PART_HEAD
                        ? INT32_MAX : 1 + m->params->part[part].layer;
    if (m->params->part[part].kind == PART_LAYER)
        snprintf(culprit.name, sizeof culprit.name, "the output of decoder.layers.%d.%s", m->params->part[part].layer, where);
    else
        snprintf(culprit.name, sizeof culprit.name, "the output of %s", where);
}

/* Runs the step's forward again and watches it. `bad`: the gradient to name when the forward is finite. The rank that finds
 * the earliest tensor speaks. */
static _Noreturn void stop_not_finite(Run *r, const char *bad)
{
    Params *p = &r->params;
    Comm *all = &r->grid.all;
    const Lists *l = run_lists(r, config_batch_at(r->cfg, r->consumed_samples));
    culprit = (Culprit){.order = INT64_MAX};
    for (int i = 0; i < p->nparam && !culprit.name[0]; i++) {
        int64_t from, to;
        param_held(p, &p->param[i], &p->data.weight, &from, &to);
        if (from < to &&
            !isfinite(sum_of(&r->model, mat(param_at(p, &p->param[i], &p->data.weight, from), 1, to - from, p->type)))) {
            snprintf(culprit.name, sizeof culprit.name, "the weight %s", p->param[i].name);
            culprit.order = p->param[i].number - INT32_MAX;
        }
    }
    r->model.watch = find_culprit;
    r->source = r->loader;
    r->source_first = r->consumed_samples;
    step_forward(r, &l->forward, r->cfg->micro_batch_size, r->cfg->seq_length, 1);
    int64_t first = culprit.order;
    all->wait(all, all->all_reduce(all, &first, 1, I64, OP_MIN));
    if (first == INT64_MAX)
        snprintf(culprit.name, sizeof culprit.name, "the gradient of %s", bad ? bad : "the loss");
    all_ok(all, culprit.order != first, EXIT_NUMERIC, "not-finite", "iteration %lld: loss %g; the first tensor that is not "
           "finite is %s; nothing was updated; change: lower lr or raise lr_warmup_iters, lower clip_grad, or resume from an "
           "earlier checkpoint", (long long)(r->iteration + 1), r->verdict.loss, culprit.name);
    die(EXIT_BUG, "not-finite", "no rank has found what is not finite; change: report this");
}

static void update(Run *r, Metrics *m)
{
    const Config *c = r->cfg;
    const Verdict *v = &r->verdict;
    int finite = isfinite(v->loss);
    const char *bad = optimizer_blame(&r->opt, v);
    m->grad_norm = v->norm;
    m->loss_scale = r->opt.loss_scale.scale;
    m->learning_rate = lr_at(c, r->consumed_samples);
    int overflow = bad && c->params_dtype == PARAMS_DTYPE_FP16 && finite;
    if (!loss_scale_update(&r->opt.loss_scale, c, overflow))
        die(EXIT_NUMERIC, "loss-scale", "iteration %lld: the gradient of %s overflows at the smallest loss scale, %g; change: "
            "train in bf16, lower lr, or lower min_loss_scale", (long long)(r->iteration + 1), bad, c->min_loss_scale);
    if (overflow) {
        r->skipped++;
        return;
    }
    if (bad || !finite) {
        if (c->check_for_nan_in_loss_and_grad)
            stop_not_finite(r, bad);
        r->nans++;
    }
    optimizer_step(&r->opt, m->learning_rate);
    data_gather_all(&r->params.data, c->overlap_param_gather);
}

static void stage_step(void *run, const Instr *i)
{
    Run *r = run;
    Comm *all = &r->grid.all;
    int64_t batch = config_batch_at(r->cfg, r->consumed_samples);
    (void)i;
    data_wait_grads(&r->params.data);
    all->wait(all, all->all_reduce(all, r->model.sums, 2, F64, OP_SUM));
    optimizer_judge(&r->opt, r->model.sums, (double)(batch * r->cfg->seq_length), 0);
    r->verdict = optimizer_verdict(&r->opt);
    if (r->now) {
        update(r, r->now);
        model_next_scales(&r->model);
    }
}

/* Where the time of a step goes, and the timeline when one is asked for. */
static void mark(void *run, const Instr *i, double start, double end)
{
    Run *r = run;
    double ms = (end - start) * 1e3;
    if (i->op == I_F)
        r->now->forward_ms += ms;
    else if (i->op == I_B || i->op == I_D || i->op == I_W)
        r->now->backward_ms += ms;
    else if (i->op == I_S)
        r->now->optimizer_ms += ms;
    if (r->trace.on)
        trace_instr(&r->trace, i, start, end);
}

static void note(void *run, const Instr *i)
{
    char text[96], what[32];
    instr_print(i, what, sizeof what);
    snprintf(text, sizeof text, "%s of iteration %lld", what, (long long)((Run *)run)->iteration + 1);
    comm_note(text);
}

void step_open(Run *r)
{
    r->feed = next_batch;
    r->stage = (Stage){.ctx = r, .progress = comm_progress, .note = note, .arrive = stage_arrive,
                       .act = {[I_F] = stage_forward, [I_B] = stage_backward, [I_D] = stage_backward_x,
                               [I_W] = stage_backward_w, [I_SA] = stage_send_activation, [I_RA] = stage_recv_activation,
                               [I_SG] = stage_send_gradient, [I_RG] = stage_recv_gradient, [I_G] = stage_gather,
                               [I_X] = stage_release, [I_R] = stage_reduce, [I_T] = stage_tied, [I_S] = stage_step}};
}

void step_train(Run *r, const Lists *l)
{
    Model *m = &r->model;
    m->next_batch = r->feed;
    m->batch_ctx = r;
    model_clear(m);
    data_begin(&r->params.data);
    model_begin(m, &l->train, r->cfg->micro_batch_size, r->cfg->seq_length, 1);
    pipeline_run(&l->train, &r->stage);
    model_end(m);
}

void step_forward(Run *r, const Schedule *s, int64_t B, int64_t S, int share_rows)
{
    Model *m = &r->model;
    m->next_batch = r->feed;
    m->batch_ctx = r;
    m->evaluating = 1;
    Stage stage = r->stage;
    stage.mark = NULL;
    model_begin(m, s, B, S, share_rows);
    pipeline_run(s, &stage);
    model_end(m);
    m->evaluating = 0;
}

void run_gradients(Run *r)
{
    int64_t batch = config_batch_at(r->cfg, r->consumed_samples);
    r->model.loss_scale = r->opt.loss_scale.scale / (double)(batch * r->cfg->seq_length);
    r->source = r->loader;
    r->source_first = r->consumed_samples;
    step_train(r, run_lists(r, batch));
}

void run_find_scale(Run *r)
{
    int bad = 0;
    for (int tries = r->cfg->params_dtype == PARAMS_DTYPE_FP16 ? 40 : 0; tries; tries = bad ? tries - 1 : 0) {
        r->opt.loss_scale.scale /= bad ? 2 : 1;
        run_gradients(r);
        bad = !isfinite(r->verdict.norm);
    }
}

void run_step(Run *r, Metrics *m)
{
    const Config *c = r->cfg;
    double start = now(), waited = loader_wait_seconds(r->loader);
    int64_t batch = config_batch_at(c, r->consumed_samples);
    r->now = m;
    r->stage.mark = mark;
    trace_step(&r->trace, r->iteration + 1);
    run_gradients(r);
    m->data_ms = (loader_wait_seconds(r->loader) - waited) * 1e3;
    m->forward_ms -= m->data_ms;
    r->iteration++;
    r->consumed_samples += batch;
    m->iteration = r->iteration;
    m->consumed_samples = r->consumed_samples;
    m->consumed_tokens = r->consumed_samples * c->seq_length;
    m->lm_loss = r->verdict.loss;
    m->global_batch_size = batch;
    m->skipped_iterations = r->skipped;
    m->nan_iterations = r->nans;
    m->memory_bytes = memory_resident();
    m->elapsed_ms = (now() - start) * 1e3;
    r->arena.sealed = 1;
}

double run_evaluate(Run *r, Loader *l, int64_t batches, void (*tick)(void *ctx, int64_t done), void *ctx)
{
    Model *m = &r->model;
    Comm *all = &r->grid.all;
    int64_t batch = config_batch_at(r->cfg, r->consumed_samples);
    model_clear(m);
    r->source = l;
    for (int64_t b = 0; b < batches; b++) {
        r->source_first = b * batch;
        step_forward(r, &run_lists(r, batch)->forward, r->cfg->micro_batch_size, r->cfg->seq_length, 1);
        if (tick)
            tick(ctx, b + 1);
    }
    double sums[2] = {0};
    all->wait(all, all->all_reduce(all, m->sums, 2, F64, OP_SUM));
    m->dev->get(m->dev, sums, m->sums, sizeof sums);
    return sums[1] > 0 ? sums[0] / sums[1] : 0;
}

/* What comes next in the sequence that is being generated. */
static const Batch *sequence(void *run, int mb)
{
    (void)mb;
    return &((Run *)run)->sequence;
}

void run_extend(Run *r, const int32_t *tokens, int64_t n, void *logits)
{
    Model *m = &r->model;
    Comm *pp = &r->grid.axis[AXIS_PP];
    Mat row = r->logits;
    int last, chunk;
    const Batch *(*feed)(void *, int) = r->feed;
    r->feed = sequence;
    r->sequence.seq = n;
    for (int64_t i = 0; tokens && i < n; i++) {
        r->sequence.tokens[i] = tokens[i];
        r->sequence.position[i] = (int32_t)(r->cache.length + i);
    }
    m->cache = &r->cache;
    m->logits = row;
    step_forward(r, &r->extend, 1, n, 0);
    m->cache = NULL;
    r->feed = feed;
    r->cache.length += n;
    pipe_place(&r->shape, r->shape.p * r->shape.v - 1, &last, &chunk);
    pp->wait(pp, pp->broadcast(pp, row.p, row.cols, row.type, last));
    r->model.dev->get(r->model.dev, logits, row.p, mat_bytes(row));
}
