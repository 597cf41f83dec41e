/* walk -- a rank's list walked over a device and groups that only add up times */
#include "walk.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What an instruction on a whole chunk adds to the Tally. It is the same for every microbatch: the
 * layers are walked for the first WALKED microbatches, and for the others the effect of the last walk is
 * added again. */
struct Habit {
    int walked, repeated;      /* microbatches walked; microbatches added */
    double took;               /* s on the clock, without waiting for the data group */
    double launches, hosted;   /* s of the host, and of them waited for, as in Tally */
    double waited[AXES];       /* s, as in Tally; 0 for the data group */
    double comm[AXES], work[WORKS];        /* s, as in Tally */
    Traffic traffic[AXES];
};

/* Counts the compute instructions of the list; units of a chunk count as one. */
static void count_runs(Walk *w, const ScheduleSet *set)
{
    const InstrList *l = &set->rank[w->rank];
    for (int i = 0; i < l->n; i++)
        if (l->list[i].op <= I_W)
            w->runs[l->list[i].op][l->list[i].chunk]++;
}

static int same_work(const Instr *a, const Instr *b)
{
    return a->op == b->op && a->chunk == b->chunk && a->mb == b->mb;
}

/* Waits until the simulated end of the instruction at w->at. Where ranks take turns on cores an
 * instruction lasts longer than on a core of its own. */
static void last_its_time(Walk *w)
{
    if (!w->turns || w->at < 0)
        return;
    double wait = w->base + w->span[w->at].end - w->tally.now;
    if (wait <= 0)
        return;
    w->tally.now += wait;
    *(w->set->rank[w->rank].list[w->at].op == I_F ? &w->t.forward : &w->t.backward) += wait;
}

/* Waits until the simulated start of instruction i. */
static void hold_back(Walk *w, const Instr *i)
{
    const InstrList *l = &w->set->rank[w->rank];
    if (w->at < 0 || !same_work(i, &l->list[w->at])) {
        last_its_time(w);
        do
            w->at++;
        while (l->list[w->at].op > I_W);
    }
    BUG_ON(w->at >= l->n || !same_work(i, &l->list[w->at]));
    double start = w->base + w->span[w->at].start, wait = start - w->tally.now;
    if (wait > 0) {
        w->t.bubble += wait;
        w->tally.now = start;
    }
}

/* Whether i runs after all computing: the end of the step, and reductions that do not overlap. */
static int comes_last(const Run *r, const Instr *i)
{
    const Config *c = r->cfg;
    return i->op == I_S || i->op == I_T || (i->op == I_R && !c->overlap_grad_reduce &&
           c->data_parallel_sharding_strategy < DATA_PARALLEL_SHARDING_STRATEGY_OPTIM_GRADS);
}

/* Adds messages to what the rank has sent, or takes them away (times -1); the axis counts for the groups
 * within it. */
static void add_traffic(Run *r, const Traffic t[AXES], int times)
{
    for (int a = 0; a < AXES; a++) {
        r->grid.axis[a].ops += times * t[a].ops;
        r->grid.axis[a].bytes += times * t[a].bytes;
    }
}

/* What the rank has sent since `from`. */
static void traffic_since(const Run *r, const Traffic from[AXES], Traffic t[AXES])
{
    run_traffic(&r->grid, t);
    for (int a = 0; a < AXES; a++)
        t[a] = (Traffic){t[a].ops - from[a].ops, t[a].bytes - from[a].bytes};
}

/* Adds the known effect of an instruction instead of walking it. */
static void repeat(Walk *w, Run *r, Habit *h)
{
    Tally *k = &w->tally;
    h->repeated++;
    k->now += h->took;
    k->hosted += h->hosted;
    predict_launch(k, h->launches);
    for (int a = 0; a < AXES; a++)
        k->waited[a] += h->waited[a];
    add_traffic(r, h->traffic, 1);
}

/* ---- tapes ---- */

static Tape *tape_of(const Walk *w, const Instr *i)
{
    const Known *k = w->known;
    int at = i->unit == WHOLE ? k->units + i->chunk : i->unit;
    return &k->tape[((!w->before * k->likes + w->like[i->mb]) * RECORDED + i->op) * k->places + at];
}

/* The pipeline rank at the other end of a message. */
static int peer_of(const Run *r, const Instr *i)
{
    const Chunk *c = &r->model.held.chunk[i->chunk];
    return i->op == I_SA || i->op == I_RG ? c->next : c->prev;
}

/* Runs an instruction: its layers, or its tape where there is one. */
static void run(Walk *w, Run *r, const Instr *i)
{
    Tape *t = w->known && i->op < RECORDED && !r->model.now.evaluating ? tape_of(w, i) : NULL;
    if (!t) {
        w->act[i->op](r, i);
    } else if (t->made) {
        tape_play(t, &w->tally, &r->grid, &r->params.data, peer_of(r, i));
    } else {
        BUG_ON(w->known->done);
        recorder_begin(&w->recorder, t);
        w->act[i->op](r, i);
        recorder_end(&w->recorder);
    }
}

static void tapes_open(Walk *w, Run *r, int likes)
{
    Known *k = w->known;
    if (k->done)
        return;
    k->likes = likes;
    k->units = r->model.held.nunits;
    k->places = k->units + w->shape.v;
    k->tape = xcalloc((size_t)(2 * likes * RECORDED) * (size_t)k->places, sizeof *k->tape);
    recorder_open(&w->recorder, &r->grid, &r->params.data);
    w->tally.recorder = &w->recorder;
}

static void tapes_close(Walk *w)
{
    free(w->like);
    w->like = NULL;
    if (w->tally.recorder)
        recorder_close(&w->recorder);
    w->tally.recorder = NULL;
}

/* ---- instructions ---- */

/* Walks an instruction and stores its effect in h (NULL: not stored). Waits for the data group are left
 * out: only the first microbatch has them. */
static void perform(Walk *w, Run *r, const Instr *i, Habit *h)
{
    if (!h) {
        run(w, r, i);
        return;
    }
    Tally before = w->tally, *k = &w->tally;
    Traffic from[AXES];
    run_traffic(&r->grid, from);
    run(w, r, i);
    traffic_since(r, from, h->traffic);
    h->walked++;
    h->took = k->now - before.now - (k->waited[AXIS_DP] - before.waited[AXIS_DP]);
    h->launches = k->host - before.host;
    h->hosted = k->hosted - before.hosted;
    for (int a = 0; a < AXES; a++) {
        h->waited[a] = a == AXIS_DP ? 0 : k->waited[a] - before.waited[a];
        h->comm[a] = k->comm[a] - before.comm[a];
    }
    for (int n = 0; n < WORKS; n++)
        h->work[n] = k->work[n] - before.work[n];
}

/* Adds the operations and messages of all repetitions. */
static void add_habits(Walk *w)
{
    for (int i = 0; i < (I_RG + 1) * w->shape.v; i++) {
        const Habit *h = &w->habit[i];
        for (int n = 0; n < WORKS; n++)
            w->tally.work[n] += h->repeated * h->work[n];
        for (int a = 0; a < AXES; a++)
            w->tally.comm[a] += h->repeated * h->comm[a];
    }
}

/* Whether an instruction of a list whose time is not needed can be skipped: a later microbatch does the
 * same as the first ones. */
static int says_nothing_new(const Walk *w, const Run *r, const Instr *i, const Habit *h)
{
    return i->mb >= WALKED && (r->model.now.evaluating || (h && !w->cut[i->chunk * w->shape.m + i->mb]));
}

/* Seconds that a pair's F and B take less than one after the other: the rows of both on their way to experts,
 * or all else that both do, whichever is less. So a pair takes the longer of the two.
 *   took, waited  in  of B, like Walk.first of F */
static double saved_by_turns(const Walk *w, double took, double waited)
{
    double rows = w->first.waited + waited;
    return fmin(rows, w->first.took + took - rows);
}

static void act(void *rank, const Instr *i)
{
    Run *r = rank;
    Walk *w = cost_ctx(r->model.dev);
    Tally *k = &w->tally;
    int habit = i->op <= I_RG && i->unit == WHOLE && w->whole[i->chunk];
    Habit *h = habit ? &w->habit[i->op * w->shape.v + i->chunk] : NULL;
    if (r->model.now.evaluating || w->before) {
        if (!says_nothing_new(w, r, i, h))
            run(w, r, i);
        return;
    }
    if (w->base < 0) {
        w->base = k->host = k->now;
        k->hosted = 0;
    }
    if (w->set && i->op <= I_W)
        hold_back(w, i);
    else if (comes_last(r, i))
        last_its_time(w);
    k->share = i->op <= I_W ? w->alone : w->crowded;
    double start = k->now, tp = k->waited[AXIS_TP], cp = k->waited[AXIS_CP], dp = k->waited[AXIS_DP],
           ep = k->waited[AXIS_EP], host = k->hosted;
    if (h && h->walked >= WALKED && !w->cut[i->chunk * w->shape.m + i->mb])
        repeat(w, r, h);
    else
        perform(w, r, i, h);
    ep = k->waited[AXIS_EP] - ep;
    if (i->op == I_F)
        w->first.took = k->now - start, w->first.waited = ep;
    else if (i->op == I_B && i->join) {
        double saved = saved_by_turns(w, k->now - start, ep);
        k->now -= saved;
        ep -= saved;
    }
    double took = k->now - start;
    tp = k->waited[AXIS_TP] - tp;
    cp = k->waited[AXIS_CP] - cp;
    dp = k->waited[AXIS_DP] - dp;
    host = k->hosted - host;
    w->t.dp += dp;
    if (w->turns)
        w->base += dp;                     /* moving bytes takes the cores' time from all that comes later */
    if (i->op == I_S)
        w->grads = k->now;
    if (i->op > I_W)
        return;
    Spent *s = &w->spent[i->op][i->chunk];
    s->work += fmax(took - dp, 0);         /* rounding leaves less than 0 where all of it is dp */
    s->waits += tp + cp + ep;
    w->t.tp += tp;
    w->t.cp += cp;
    w->t.ep += ep;
    *(i->op == I_F ? &w->t.forward : &w->t.backward) += took - dp - tp - cp - ep - host;
}

/* Marks the microbatches whose instructions are cut into units: a unit reads what the instructions
 * before it left in the slots, so none of them can be skipped. */
static void find_cuts(Walk *w, const Schedule *s)
{
    for (int i = 0; i < s->n; i++)
        if (s->list[i].op <= I_W && s->list[i].unit != WHOLE)
            w->cut[s->list[i].chunk * w->shape.m + s->list[i].mb] = 1;
    for (int c = 0; c < w->shape.v; c++)
        for (int mb = 0; mb < w->shape.m; mb++)
            w->whole[c] |= !w->cut[c * w->shape.m + mb];
}

static void walk_step(void *walk, Run *r, const Lists *l)
{
    Walk *w = walk;
    Tally *k = &w->tally;
    w->shape = r->plan.shape;
    w->shape.m = l->m;
    w->habit = xcalloc((size_t)(I_RG + 1) * (size_t)w->shape.v, sizeof *w->habit);
    r->stage.note = NULL;                  /* a walk needs no notes for hang reports */
    r->stage.pair = NULL;                  /* a pair's F and B are walked one after the other */
    r->stage.arrive = NULL;                /* the simulation decides when messages arrive */
    w->cut = xcalloc((size_t)w->shape.v * (size_t)w->shape.m, 1);
    find_cuts(w, &l->train);
    int likes = sort_microbatches(w, &l->train);
    for (int i = 0; i < INSTR_KINDS; i++) {
        w->act[i] = r->stage.act[i];
        r->stage.act[i] = r->stage.act[i] ? act : NULL;
    }
    if (w->known)
        tapes_open(w, r, likes);
    w->before = r->cfg->overlap_param_gather || r->cfg->optimizer_cpu_offload;
    if (w->before) {                       /* gathers or updates of this step reach into the next */
        Traffic from[AXES], sent[AXES];
        run_traffic(&r->grid, from);
        run_rehearse_step(r, l);
        traffic_since(r, from, sent);
        add_traffic(r, sent, -1);
    }
    w->before = 0;
    memset(k->work, 0, sizeof k->work);
    memset(k->comm, 0, sizeof k->comm);
    w->base = -1;
    w->at = -1;
    double start = k->now;
    run_rehearse_step(r, l);
    w->t.total = k->now - start;
    w->t.host = k->hosted;
    tapes_close(w);
    add_habits(w);
    w->grads -= start;
    memcpy(w->t.work, k->work, sizeof k->work);
    memcpy(w->t.sent, k->comm, sizeof k->comm);
}

Walk *walk(Prediction *out, const Config *c, const Machine *m, const StepLists *l, int rank,
                  Known *known, const Span *span)
{
    Walk *w = xcalloc(1, sizeof *w);
    Run r;
    double here = ranks_here(c, m);
    w->out = out;
    w->rank = rank;
    w->known = known;
    w->set = span ? training(l) : NULL;
    count_runs(w, training(l));
    w->span = span;
    w->crowded = m->shared ? 1 / here : 1;
    w->alone = m->shared ? fmax(1 / here, 1 / (double)m->cores) : 1;
    w->turns = w->alone > w->crowded;
    w->tally = (Tally){.m = m, .matmul = w->matmul, .memory = w->memory, .share = w->crowded,
                       .together = m->shared && here > 1, .crowd = crowded(c, m), .scatter = 1};
    if (m->unfused && !c->sequence_parallel)
        w->tally.scatter = (double)c->tensor_model_parallel_size;
    predict_device(&w->dev, &w->tally, c->params_dtype == PARAMS_DTYPE_FP64 ? F64 : F32);
    Rehearsal over = {&w->dev, predict_group, walk_step, w, l, !m->shared, out->fp8_recast,
                      out->logits_rows, known && known->done ? &known->peaks : NULL};
    out->walks += !known || !known->done;
    run_plan_over(&r, c, RUN_TRAIN, 0, run_first(c, AXIS_PP, rank), &over);
    if (known && !known->done) {
        known->peaks = run_plan_peaks(&r);
        known->done = 1;
    }
    w->need = r.plan.memory.total + r.plan.memory.reserve;
    if (span) {
        out->memory[rank] = r.plan.memory;
        for (int a = 0; a < AXES; a++)
            if (r.plan.traffic[a].bytes > out->most[a].bytes)
                out->most[a] = r.plan.traffic[a];
    }
    run_plan_close(&r);
    free(w->habit);
    free(w->cut);
    return w;
}
