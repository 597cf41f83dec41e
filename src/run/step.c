/* step -- what the instructions of a step do, the end of a step, evaluation and generation */
#include "config_table.h"
#include "flight.h"
#include "kept.h"
#include "lr.h"
#include "modes.h"
#include "run_layout.h"
#include <math.h>

/* ---- what the executor calls ---- */

#define TO_MODEL(name)                                                                                       \
    static void stage_##name(void *run, const Instr *i) { model_##name(&((Run *)run)->model, i); }
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
static void stage_pair(void *run, const Instr *f, const Instr *b, double took[2])
{
    model_pair(&((Run *)run)->model, f, b, took);
}
static void stage_gather(void *run, const Instr *i) { data_gather(data_of(run), i->unit); }
static void stage_release(void *run, const Instr *i) { data_release(data_of(run), i->unit); }
static void stage_reduce(void *run, const Instr *i) { data_reduce(data_of(run), i->unit, i->phase); }

static void stage_tied(void *run, const Instr *i)
{
    (void)i;
    rerun_pause(run);
    data_wait_grads(data_of(run));
    data_tied(data_of(run));
}

/* The step that is launched now. */
static Launched *launching(Run *r) { return &r->flight.step[r->flight.launched % STEPS_OPEN]; }

/* Microbatch mb of the list that runs now. */
static const Batch *next_batch(void *run, int mb)
{
    Run *r = run;
    int64_t n = r->cfg->micro_batch_size * r->grid.size[AXIS_DP];
    int64_t first = r->step.source_first + r->step.shift + mb * n;
    int stalls = r->dev.waited != NULL;
    if (stalls)
        r->dev.stall(&r->dev, &launching(r)->waits.loader);
    const Batch *b = r->step.source ? loader_get(r->step.source, first, n) : NULL;
    if (stalls)
        r->dev.stall_end(&r->dev);
    return b;
}

/* ---- the end of a step ---- */

/* Whether the gradients overflow in fp16: then the update is skipped and the scale halved. A loss that is not
 * finite ends the run where that is asked for; a smaller scale does not mend it. */
static int overflows(const Run *r, const Verdict *v)
{
    const Config *c = r->cfg;
    return c->params_dtype == PARAMS_DTYPE_FP16 && !isfinite(v->norm) &&
           (isfinite(v->loss) || !c->check_for_nan_in_loss_and_grad);
}

/* Updates fp16's dynamic loss scale. Returns 0 when the gradients overflow: the update is skipped. The
 * next step's scale depends on this step's norm: the only place in a step where the host waits for the
 * device. */
static int scale_allows(Run *r)
{
    const Config *c = r->cfg;
    if (c->params_dtype != PARAMS_DTYPE_FP16)
        return 1;
    Verdict v = optimizer_verdict(&r->opt);
    int overflow = overflows(r, &v);
    if (!v.go && !v.stopped)           /* a held step: it says nothing about the scale */
        return 1;
    if (!loss_scale_update(&r->opt.loss_scale, c, overflow)) {
        int moves = loss_scale_moves(c);
        die(EXIT_NUMERIC, "loss-scale",
            "iteration %lld: the gradient of %s overflows at the %s loss scale, %g, as in %d iterations "
            "before it; change: train in bf16, lower lr, or lower %s",
            (long long)(r->progress.iteration + 1), optimizer_blame(&r->opt, &v, NULL),
            moves ? "smallest" : "fixed", moves ? c->min_loss_scale : c->loss_scale, OVERFLOWS_MOST - 1,
            moves ? "min_loss_scale" : "loss_scale");
    }
    if (overflow)
        optimizer_go(&r->opt);
    RunProgress *p = &r->progress;
    int64_t batch = config_batch_at(c, p->consumed_samples);
    p->skipped += overflow;
    p->unscheduled.iterations += overflow;
    if (overflow)
        p->unscheduled.samples += lr_samples(c, p->iteration + 1, p->consumed_samples + batch) -
                                  lr_samples(c, p->iteration, p->consumed_samples);
    return !overflow;
}

static void update(Run *r, Metrics *m)
{
    const Config *c = r->cfg;
    m->loss_scale = r->opt.loss_scale.scale;
    int64_t consumed = r->progress.consumed_samples, still = r->progress.unscheduled.samples;
    m->learning_rate = lr_at(c, consumed, lr_samples(c, r->progress.iteration, consumed) - consumed - still);
    modes_check(r->progress.iteration + 1);
    rerun_compare(r);
    sdc_verify(r);
    r->sdc.sealed = 0;
    if (scale_allows(r)) {
        r->dev.wait_snapshots(&r->dev);            /* the update overwrites what a save may still copy */
        optimizer_step(&r->opt, m->learning_rate);
        data_gather_all(&r->params.data, c->overlap_param_gather);
        if (c->moe_router_enable_expert_bias && r->model.routers.layers && optimizer_verdict(&r->opt).go)
            router_update_bias(&r->model);
    }
    m->skipped_iterations = r->progress.skipped;
}

/* Whether the step that runs now is logged. */
static int is_logged(const Run *r)
{
    int64_t i = r->progress.iteration + 1;
    return i % r->cfg->log_interval == 0 || i == run_iterations(r);
}

/* The limits above which the step that runs now updates nothing. */
static Limits holds_above(const Run *r)
{
    Limits l = r->flight.step[r->flight.launched % STEPS_OPEN].limits;
    if (!r->step.metrics || !r->spikes.good || r->cfg->on_spike == ON_SPIKE_WARN)
        l.loss = l.norm = INFINITY;
    l.seen = !run_open_steps(r);
    return l;
}

static void stage_step(void *run, const Instr *i)
{
    Run *r = run;
    Device *d = r->model.dev;
    Comm *all = &r->grid.all;
    int64_t batch = config_batch_at(r->cfg, r->progress.consumed_samples);
    (void)i;
    rerun_pause(r);
    data_wait_grads(&r->params.data);
    all->wait(all, all->all_reduce(all, r->model.sums, 2, F64, OP_SUM));
    router_stats_reduce(&r->model.routers, all);
    routers_keep(r);
    optimizer_judge(&r->opt, r->model.sums, (double)(batch * r->cfg->seq_length),
                    r->step.metrics && r->cfg->check_for_nan_in_loss_and_grad, holds_above(r));
    r->step.ticket =
        d->read_async(d, r->flight.verdict ? &r->flight.verdict[r->flight.launched % STEPS_OPEN] : NULL,
                r->opt.verdict, sizeof *r->flight.verdict);
    if (r->step.metrics) {
        if (r->cfg->log_num_zeros_in_grad && is_logged(r))
            r->step.metrics->num_zeros = optimizer_zeros(&r->opt);
        update(r, r->step.metrics);
        if (r->cfg->log_params_norm && is_logged(r))
            r->step.metrics->params_norm = optimizer_params_norm(&r->opt);
        model_next_scales(&r->model);
    }
}

/* 0 where the microbatches come from elsewhere. */
static double waited_for_data(const Run *r) { return r->loader ? loader_wait_seconds(r->loader) : 0; }

/* ---- times of instructions ---- */

static int computes(InstrKind op) { return op == I_F || op == I_B || op == I_D || op == I_W || op == I_S; }

int step_instructions(const Run *r)
{
    int most = 0;
    for (int i = 0; i < r->cfg->batch_steps; i++)
        most = r->plan.lists[i].train.n > most ? r->plan.lists[i].train.n : most;
    return most;
}

void step_settle(void *run, const Instr *i)
{
    Device *d = &((Run *)run)->dev;
    if (!computes(i->op))
        return;
    int64_t end = d->mark(d);
    d->between(d, end, end);
}

static void add_ms(Metrics *m, InstrKind op, double ms)
{
    if (op == I_F)
        m->forward_ms += ms;
    else if (op == I_S)
        m->optimizer_ms += ms;
    else if (computes(op))
        m->backward_ms += ms;
}

/* The host only launches what a late device does later: run_collect asks the device how long it took. Of an F
 * and a B by turns the F has the time of both. */
static void span_end(Run *r, InstrKind op)
{
    RunFlight *f = &r->flight;
    int at = (int)(f->launched % STEPS_OPEN), most = step_instructions(r);
    Launched *s = &f->step[at];
    BUG_ON(s->spans == most);
    int64_t end = r->dev.mark(&r->dev);
    f->span[at * most + s->spans++] = (InstrSpan){op, r->step.mark, end};
    r->step.mark = end;
    r->dev.waited = NULL;
}

static void add_spans(Run *r, const Launched *s, Metrics *m)
{
    int64_t first = (s - r->flight.step) * step_instructions(r);
    double ran[OWN_PHASES] = {0};
    for (int i = 0; i < s->spans; i++) {
        const InstrSpan *x = &r->flight.span[first + i];
        double ms = r->dev.between(&r->dev, x->begin, x->end);
        add_ms(m, x->op, ms);
        ran[own_phase(x->op)] += ms;
    }
    if (!s->spans)
        return;
    r->dev.stalls(&r->dev);
    own_device(&r->own, ran, &s->waits);
}

/* Adds an instruction's time to the step's metrics, and to the timeline when one is recorded. */
static void mark(void *run, const Instr *i, double start, double end)
{
    Run *r = run;
    if (!r->flight.span)
        add_ms(r->step.metrics, i->op, (end - start) * 1e3);
    else if (computes(i->op))
        span_end(r, i->op);
    if (r->trace.on)
        trace_instr(&r->trace, i, start, end);
    double waited = waited_for_data(r);
    if (!r->flight.span)
        own_instr(&r->own, i, start, end, waited - r->step.loader_waited);
    r->step.loader_waited = waited;
    flight_mark(start, end);
}

static void note(void *run, const Instr *i)
{
    Run *r = run;
    char text[96], what[32];
    instr_print(i, what, sizeof what);
    snprintf(text, sizeof text, "%s of iteration %lld", what, (long long)r->progress.iteration + 1);
    flight_instr(i, r->progress.iteration + 1);
    comm_note(text);
    if (!r->flight.span || !r->stage.mark || !computes(i->op))
        return;
    r->step.mark = r->dev.mark(&r->dev);
    if (r->own.on && !r->dev.waited)   /* as span_end: F's of an F and a B by turns */
        r->dev.waited = &launching(r)->waits.message[own_phase(i->op)];
}

void step_open(Run *r)
{
    r->step.feed = next_batch;
    r->stage = (Stage){.ctx = r, .progress = comm_progress, .note = note, .arrive = stage_arrive,
                       .pair = stage_pair,
                       .act = {[I_F] = stage_forward, [I_B] = stage_backward, [I_D] = stage_backward_x,
                               [I_W] = stage_backward_w, [I_SA] = stage_send_activation,
                               [I_RA] = stage_recv_activation, [I_SG] = stage_send_gradient,
                               [I_RG] = stage_recv_gradient, [I_G] = stage_gather, [I_X] = stage_release,
                               [I_R] = stage_reduce, [I_T] = stage_tied, [I_S] = stage_step}};
}

/* The share of the step's tokens that have a loss, where the losses of routers need it; 1 where no token has.
 * It is found before the step from the corpus, on the host. Collective over dp. */
static double counted_share(Run *r, const Lists *l)
{
    const Config *c = r->cfg;
    Comm *dp = &r->grid.axis[AXIS_DP];
    int64_t own = l->batch / dp->size, n = 0;
    if (!c->eod_mask_loss || c->num_moe_experts == CFG_ABSENT)
        return 1;
    if (r->step.source)
        n = loader_counted(r->step.source, r->step.source_first + dp->rank * own, own);
    dp->wait(dp, dp->all_reduce(dp, &n, 1, I64, OP_SUM));
    return n ? (double)n / (double)(l->batch * c->seq_length) : 1;
}

void step_train(Run *r, const Lists *l)
{
    Model *m = &r->model;
    m->now.next_batch = r->step.feed;
    m->now.batch_ctx = r;
    m->now.counted = counted_share(r, l);
    model_clear(m);
    data_begin(&r->params.data);
    model_begin(m, &l->train, r->cfg->micro_batch_size, r->cfg->seq_length, 1);
    pipeline_run(&l->train, &r->stage);
    model_end(m);
}

void step_forward(Run *r, const Schedule *s, int64_t B, int64_t S, int share_rows)
{
    Model *m = &r->model;
    m->now.next_batch = r->step.feed;
    m->now.batch_ctx = r;
    m->now.evaluating = 1;
    Stage stage = r->stage;
    stage.mark = NULL;
    model_begin(m, s, B, S, share_rows);
    pipeline_run(s, &stage);
    model_end(m);
    m->now.evaluating = 0;
}

/* Runs the training list over the next batch. read_wait(r->step.ticket) then gives the verdict. */
static void launch(Run *r)
{
    int64_t batch = config_batch_at(r->cfg, r->progress.consumed_samples);
    r->model.now.loss_scale = r->opt.loss_scale.scale / (double)(batch * r->cfg->seq_length);
    r->model.now.step = r->progress.iteration;
    r->step.source = r->loader;
    r->step.source_first = r->progress.consumed_samples;
    step_train(r, run_lists(r, batch));
}

void run_gradients(Run *r)
{
    launch(r);
    r->dev.read_wait(&r->dev, r->step.ticket);
    r->step.verdict = r->flight.verdict[r->flight.launched % STEPS_OPEN];
}

void run_find_scale(Run *r)
{
    int bad = 0;
    for (int tries = r->cfg->params_dtype == PARAMS_DTYPE_FP16 ? 40 : 0; tries; tries = bad ? tries - 1 : 0) {
        r->opt.loss_scale.scale /= bad ? 2 : 1;
        run_gradients(r);
        bad = !isfinite(r->step.verdict.norm);
    }
}

void run_step(Run *r, const Metrics *so_far)
{
    const Config *c = r->cfg;
    RunProgress *p = &r->progress;
    Launched *s = launching(r);
    Metrics *m = &s->m;
    int64_t batch = config_batch_at(c, p->consumed_samples);
    BUG_ON(run_open_steps(r) == STEPS_OPEN);
    *s = (Launched){.m = *so_far, .consumed_samples = p->consumed_samples, .begin = r->dev.mark(&r->dev),
                    .limits = spikes_limits(&r->spikes, c, p->iteration + 1)};
    m->params_norm = m->num_zeros = NAN;
    flight_phase(PHASE_STEP);
    if (c->sdc_rerun && (p->iteration + 1) % c->sdc_check_interval == 0)
        rerun_first(r);
    double waited = waited_for_data(r);
    r->step.metrics = m;
    r->stage.mark = mark;
    trace_step(&r->trace, p->iteration + 1);
    if (r->trace.on && r->flight.span) {  /* the timeline has the times of the device, not of launches */
        r->dev.sync(&r->dev);
        r->stage.settle = step_settle;
    }
    r->step.loader_waited = waited;
    own_begin(&r->own);
    account_begin(r);
    launch(r);
    r->step.metrics = NULL;            /* what runs outside of a step updates nothing */
    r->stage.mark = NULL;
    r->stage.settle = NULL;
    s->ticket = r->step.ticket;
    m->data_ms = (waited_for_data(r) - waited) * 1e3;
    m->forward_ms -= r->flight.span ? 0 : m->data_ms;
    r->flight.launched++;
    p->iteration++;
    p->consumed_samples += batch;
    m->iteration = p->iteration;
    m->consumed_samples = p->consumed_samples;
    m->consumed_tokens = p->batches.tokens + (p->consumed_samples - p->batches.samples) * c->seq_length;
    m->global_batch_size = batch;
    r->arenas.run.sealed = r->arenas.host.sealed = 1;
    if (c->sdc_check_interval && p->iteration % c->sdc_check_interval == 0)
        sdc_seal(r);
    s->end = r->dev.mark(&r->dev);
    own_groups(&r->grid, &s->groups);
}

int run_open_steps(const Run *r) { return (int)(r->flight.launched - r->flight.collected); }

/* Judges step s, which is finite, by its limits. */
static void judge_spike(Run *r, const Launched *s, const Verdict *v)
{
    if (!v->go)
        optimizer_held(&r->opt);
    spikes_see(&r->spikes, r->cfg, &(Spike){.iteration = s->m.iteration, .first = s->consumed_samples,
                                            .samples = s->m.global_batch_size, .loss = v->loss,
                                            .norm = v->norm, .limits = s->limits});
}

void run_collect(Run *r, Metrics *m)
{
    RunFlight *f = &r->flight;
    int at = (int)(f->collected % STEPS_OPEN);
    r->spikes.now.iteration = 0;
    const Launched *s = &f->step[at];
    BUG_ON(!run_open_steps(r));
    if (r->dev.late)
        flight_wait(-1);
    r->dev.read_wait(&r->dev, s->ticket);
    /* the host's clock is of no use: the launch of the next step may have waited for room in the queue */
    double took = r->dev.between(&r->dev, s->begin, s->end);
    if (r->dev.late)
        flight_wait_end();
    Verdict v = r->step.verdict = f->verdict[at];
    if (!isfinite(v.loss) || (!isfinite(v.norm) && !overflows(r, &v))) {
        if (r->cfg->check_for_nan_in_loss_and_grad)
            run_not_finite(r, s);
        r->progress.nans++;
    } else if (isfinite(v.norm)) {
        judge_spike(r, s, &v);
    }
    *m = s->m;
    add_spans(r, s, m);
    m->skipped_iterations += r->spikes.skipped;
    m->lm_loss = v.loss;
    m->grad_norm = v.norm;
    m->nan_iterations = r->progress.nans;
    m->memory_bytes = r->cfg->device == DEVICE_CUDA ? r->plan.memory.total : metrics_memory_resident();
    m->elapsed_ms = took;
    flight_step(took * 1e-3);
    routers_collect(r, at);
    f->collected++;
    if (r->spikes.now.iteration)
        kept_write(r, m, s->consumed_samples, s->limits, NULL);
}

void run_reduce(Run *r, Metrics *m)
{
    const Launched *s = &r->flight.step[(r->flight.collected - 1) % STEPS_OPEN];
    straggler_step(&r->straggler, &r->own, &s->groups, m, &r->grid);
}

void run_leave_out(Run *r, const GroupTotals *from)
{
    RunFlight *f = &r->flight;
    GroupTotals now;
    own_groups(&r->grid, &now);
    own_add_groups(&r->own.before, from, &now);
    for (int64_t i = f->collected; i < f->launched; i++)       /* their ends were noted before */
        own_add_groups(&f->step[i % STEPS_OPEN].groups, from, &now);
}

Evaluated run_evaluate(Run *r, Loader *l, int64_t batches, void (*tick)(void *ctx, int64_t done), void *ctx)
{
    Model *m = &r->model;
    Comm *all = &r->grid.all;
    int64_t batch = config_batch_most(r->cfg);     /* the same samples throughout a batch-size schedule */
    GroupTotals start;
    own_groups(&r->grid, &start);
    model_clear(m);
    r->step.source = l;
    for (int64_t b = 0; b < batches; b++) {
        r->step.source_first = b * batch;
        step_forward(r, &run_lists(r, batch)->forward, r->cfg->micro_batch_size, r->cfg->seq_length, 1);
        if (tick)
            tick(ctx, b + 1);
    }
    double sums[2] = {0};
    modes_check(r->progress.iteration);
    all->wait(all, all->all_reduce(all, m->sums, 2, F64, OP_SUM));
    m->dev->get(m->dev, sums, m->sums, sizeof sums);
    run_leave_out(r, &start);
    return (Evaluated){sums[1] > 0 ? sums[0] / sums[1] : NAN, (int64_t)sums[1]};
}

/* The next tokens of the sequence that is being generated. */
const Batch *run_sequence(void *run, int mb)
{
    (void)mb;
    return &((Run *)run)->generation.sequence;
}

void run_extend(Run *r, const int32_t *tokens, int64_t n, void *logits)
{
    Model *m = &r->model;
    Comm *pp = &r->grid.axis[AXIS_PP];
    Mat row = r->generation.logits;
    int last, chunk;
    const Batch *(*feed)(void *, int) = r->step.feed;
    r->step.feed = run_sequence;
    r->generation.sequence.seq = n;
    r->generation.sequence.runs = positions_one(r->generation.cache.length, n);
    for (int64_t i = 0; tokens && i < n; i++) {
        r->generation.sequence.tokens[i] = tokens[i];
        r->generation.sequence.position[i] = (int32_t)(r->generation.cache.length + i);
    }
    m->now.cache = &r->generation.cache;
    m->now.logits = row;
    step_forward(r, &r->generation.list, 1, n, 0);
    m->now.cache = NULL;
    r->step.feed = feed;
    r->generation.cache.length += n;
    pipe_place(&r->plan.shape, r->plan.shape.p * r->plan.shape.v - 1, &last, &chunk);
    pp->wait(pp, pp->broadcast(pp, row.p, row.cols, row.type, last));
    r->model.dev->get(r->model.dev, logits, row.p, mat_bytes(row));
}
