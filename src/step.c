/* What the instructions of a step do, how a step ends, and evaluation. */
#include "lr.h"
#include "run.h"
#include <math.h>
#include <string.h>

/* ---- what the executor calls ---- */

static void stage_forward(void *run, int chunk, int mb) { model_forward(&((Run *)run)->model, chunk, mb); }
static void stage_backward(void *run, int chunk, int mb) { model_backward(&((Run *)run)->model, chunk, mb); }

static void stage_reduce(void *run, int part)
{
    data_reduce(&((Run *)run)->params.data, part, PHASE_ALL);
}

const Batch *step_batch(void *run, int mb)
{
    Run *r = run;
    int64_t n = r->cfg->micro_batch_size * r->grid.size[AXIS_DP];
    return loader_get(r->loader, r->consumed_samples + mb * n, n);
}

/* ---- the end of a step ---- */

/* The first tensor of a forward that is not finite, for the message. */
typedef struct { char name[160]; } Culprit;
static Culprit culprit;

static void find_culprit(Model *m, int part, const char *where, Mat x)
{
    double sum = 0;
    m->dev->sum(m->dev, &sum, x);
    if (isfinite(sum) || culprit.name[0])
        return;
    if (m->params->part[part].kind == PART_LAYER)
        snprintf(culprit.name, sizeof culprit.name, "the output of decoder.layers.%d.%s", m->params->part[part].layer, where);
    else
        snprintf(culprit.name, sizeof culprit.name, "the output of %s", where);
}

/* Runs the step's forward again and watches it. `bad`: the gradient to name when the forward is finite. */
static _Noreturn void stop_not_finite(Run *r, const char *bad)
{
    Params *p = &r->params;
    int m = (int)run_microbatches(r, config_batch_at(r->cfg, r->consumed_samples));
    Mat none = {.type = p->real};
    culprit.name[0] = 0;
    for (int i = 0; i < p->nparam && !culprit.name[0]; i++) {
        double sum = 0;
        r->dev.sum(&r->dev, &sum, mat(param_at(p, &p->param[i], &p->data.weight, 0), p->param[i].local_rows,
                                      p->param[i].local_cols, p->type));
        if (!isfinite(sum))
            snprintf(culprit.name, sizeof culprit.name, "the weight %s", p->param[i].name);
    }
    r->model.watch = find_culprit;
    for (int mb = 0; mb < m && !culprit.name[0]; mb++)
        model_evaluate(&r->model, step_batch(r, mb), none);
    if (!culprit.name[0])
        snprintf(culprit.name, sizeof culprit.name, "the gradient of %s", bad ? bad : "the loss");
    die(EXIT_NUMERIC, "not-finite", "iteration %lld: loss %g; the first tensor that is not finite is %s; nothing was "
        "updated; change: lower lr or raise lr_warmup_iters, lower clip_grad, or resume from an earlier checkpoint",
        (long long)(r->iteration + 1), r->loss, culprit.name);
}

static void update(Run *r, Metrics *m)
{
    const Config *c = r->cfg;
    const char *bad;
    m->grad_norm = optimizer_norm(&r->opt, r->gscale, &bad);
    m->loss_scale = r->opt.loss_scale.scale;
    m->learning_rate = lr_at(c, r->consumed_samples);
    int overflow = bad && c->params_dtype == PARAMS_DTYPE_FP16 && isfinite(r->loss);
    if (!loss_scale_update(&r->opt.loss_scale, c, overflow))
        die(EXIT_NUMERIC, "loss-scale", "iteration %lld: the gradient of %s overflows at the smallest loss scale, %g; change: "
            "train in bf16, lower lr, or lower min_loss_scale", (long long)(r->iteration + 1), bad, c->min_loss_scale);
    if (overflow) {
        r->skipped++;
        return;
    }
    if (bad || !isfinite(r->loss)) {
        if (c->check_for_nan_in_loss_and_grad)
            stop_not_finite(r, bad);
        r->nans++;
    }
    optimizer_step(&r->opt, m->learning_rate, r->gscale * optimizer_clip(c, m->grad_norm));
    data_gather_all(&r->params.data, c->overlap_param_gather);
}

static void stage_step(void *run)
{
    Run *r = run;
    Comm *data = &r->grid.data;
    int64_t batch = config_batch_at(r->cfg, r->consumed_samples);
    double nominal = (double)(batch * r->cfg->seq_length), sums[2] = {r->model.loss_sum, r->model.mask_sum};
    data_wait_grads(&r->params.data);
    data_tied(&r->params.data);
    data->wait(data, data->all_reduce(data, sums, 2, F64, OP_SUM));
    r->tokens = sums[1];
    r->loss = r->tokens > 0 ? sums[0] / r->tokens : 0;
    /* with every token masked all gradients are zero, whatever they are multiplied by */
    r->gscale = (r->tokens > 0 ? nominal / r->tokens : 1) / r->opt.loss_scale.scale;
    if (r->now)
        update(r, r->now);
}

/* Where the time of a step goes, and the timeline when one is asked for. */
static void mark(void *run, const Instr *i, double start, double end)
{
    Run *r = run;
    double ms = (end - start) * 1e3;
    *(i->op == I_F ? &r->now->forward_ms : i->op == I_S ? &r->now->optimizer_ms : &r->now->backward_ms) += ms;
    if (r->trace.on)
        trace_instr(&r->trace, i, start, end);
}

void step_open(Run *r)
{
    r->stage = (Stage){r, stage_forward, stage_backward, stage_reduce, stage_step, NULL};
    r->pipe.stage = &r->stage;
}

void run_gradients(Run *r)
{
    int64_t batch = config_batch_at(r->cfg, r->consumed_samples);
    int i = 0;
    while (r->cfg->batch_step[i].batch != batch)
        i++;
    model_begin(&r->model);
    r->model.loss_scale = r->opt.loss_scale.scale / (double)(batch * r->cfg->seq_length);
    r->pipe.schedule = &r->schedule[i];
    pipeline_run(&r->pipe);
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
    m->lm_loss = r->loss;
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
    int64_t batch = config_batch_at(r->cfg, r->consumed_samples), n = r->cfg->micro_batch_size * r->grid.size[AXIS_DP];
    Mat none = {.type = r->params.real};
    m->loss_sum = m->mask_sum = 0;
    for (int64_t b = 0; b < batches; b++) {
        for (int64_t s = 0; s < batch; s += n)
            model_evaluate(m, loader_get(l, b * batch + s, n), none);
        if (tick)
            tick(ctx, b + 1);
    }
    double sums[2] = {m->loss_sum, m->mask_sum};
    Comm *data = &r->grid.data;
    data->wait(data, data->all_reduce(data, sums, 2, F64, OP_SUM));
    return sums[1] > 0 ? sums[0] / sums[1] : 0;
}
