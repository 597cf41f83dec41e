/* predict -- the time of a step: lists walked over devices and groups that only add up times */
#include "predict.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What an instruction on a whole chunk adds to the Tally. It is the same for every microbatch: the
 * layers are walked for the first WALKED microbatches, and for the others the effect of the last walk is
 * added again. */
typedef struct {
    int walked, repeated;      /* microbatches walked; microbatches added */
    double took;               /* s on the clock, without waiting for the data group */
    double launches, hosted;   /* s of the host, and of them waited for, as in Tally */
    double waited[AXES];       /* s, as in Tally; 0 for the data group */
    double comm[AXES], work[WORKS];        /* s, as in Tally */
    Traffic traffic[AXES];
} Habit;
#define WALKED 2

/* A walk of one pipeline rank through its step. Its device and its groups add to tally. */
typedef struct {
    Tally tally;
    Lookup matmul[LOOKUPS], memory[LOOKUPS];
    Device dev;
    Prediction *out;
    int rank;                  /* pipeline rank */
    void (*act[INSTR_KINDS])(void *run, const Instr *i);   /* the model's actions */
    PipeShape shape;
    Spent spent[4][256];       /* [F, B, D, W][chunk] sums over all microbatches */
    struct { double took, waited; } first;     /* F of a pair: s, and of them waiting for experts' rows */
    int runs[4][256];          /* [F, B, D, W][chunk] instructions of the list */
    Habit *habit;              /* [InstrKind up to RG][chunk] */
    uint8_t *cut;              /* [chunk][microbatch] bool: cut into units: nothing is skipped */
    int before;                /* bool: this is the step before the one that counts */
    RankTime t;                /* the result */
    double alone;              /* share of the device in F, B, D, W: other pipeline ranks may wait */
    double crowded;            /* share of the device in all else: all ranks of the host compute */
    double base;               /* s: when the first instruction begins; -1: not yet */
    double grads;              /* s: when all gradients are reduced */
    /* of the second walk: when each compute instruction begins and ends */
    const ScheduleSet *set;    /* NULL: this is a first walk */
    const Span *span;          /* of this rank's list in set */
    int turns;                 /* bool: the host has more ranks than cores */
    int at;                    /* place in this rank's list in set; -1: before the first instruction */
} Walk;
_Static_assert(offsetof(Walk, tally) == 0, "the Walk of a Tally has its address");

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

/* Walks an instruction and stores its effect in h (NULL: not stored). Waits for the data group are left
 * out: only the first microbatch has them. */
static void perform(Walk *w, Run *r, const Instr *i, Habit *h)
{
    if (!h) {
        w->act[i->op](r, i);
        return;
    }
    Tally before = w->tally, *k = &w->tally;
    Traffic from[AXES];
    run_traffic(&r->grid, from);
    w->act[i->op](r, i);
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

static void act(void *run, const Instr *i)
{
    Run *r = run;
    Walk *w = cost_ctx(r->model.dev);
    Tally *k = &w->tally;
    Habit *h = i->op <= I_RG && i->unit == WHOLE ? &w->habit[i->op * w->shape.v + i->chunk] : NULL;
    if (r->model.now.evaluating || w->before) {
        if (!says_nothing_new(w, r, i, h))
            w->act[i->op](run, i);
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
    if (i->op == I_S)
        w->grads = k->now;
    if (i->op > I_W)
        return;
    Spent *s = &w->spent[i->op][i->chunk];
    s->work += took - dp;
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
    w->cut = xcalloc((size_t)w->shape.v * (size_t)w->shape.m, 1);
    find_cuts(w, &l->train);
    for (int i = 0; i < INSTR_KINDS; i++) {
        w->act[i] = r->stage.act[i];
        r->stage.act[i] = r->stage.act[i] ? act : NULL;
    }
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
    add_habits(w);
    w->grads -= start;
    memcpy(w->t.work, k->work, sizeof k->work);
    memcpy(w->t.sent, k->comm, sizeof k->comm);
}

/* The training lists of the last batch-size segment, made without times, as a run makes them. */
static const ScheduleSet *training(const StepLists *l) { return &l->train[l->n - 1]; }

/* The lowest world rank of pipeline rank s. */
static int world_rank(const Config *c, int s)
{
    int rank = 0;
    while (run_index(c, rank, AXIS_PP) != s)
        rank++;
    return rank;
}

/* Ranks on one node. */
static double ranks_here(const Config *c, const Machine *m)
{
    return c->world < m->ranks ? (double)c->world : (double)m->ranks;
}

/* Whether a host has more ranks than cores. */
static int crowded(const Config *c, const Machine *m)
{
    return m->shared && ranks_here(c, m) > (double)m->cores;
}

/* Walks pipeline rank `rank`. span: when each instruction of its list runs; NULL: a first walk, which
 * waits for no other rank. On the heap. */
static Walk *walk(Prediction *out, const Config *c, const Machine *m, const StepLists *l, int rank,
                  const Span *span)
{
    Walk *w = xcalloc(1, sizeof *w);
    Run r;
    double here = ranks_here(c, m);
    w->out = out;
    w->rank = rank;
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
                      out->logits_rows};
    run_plan_over(&r, c, RUN_TRAIN, 0, world_rank(c, rank), &over);
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

/* ---- what instructions take ---- */

static int same_stages(const Placement *pl, int a, int b)
{
    for (int c = 0; c < pl->v; c++)
        if (!placement_same(placement_at(pl, a, c), placement_at(pl, b, c)))
            return 0;
    return 1;
}

static Spent mean(const Walk *w, InstrKind op, int chunk)
{
    const Spent *s = &w->spent[op][chunk];
    int n = w->runs[op][chunk];
    return n ? (Spent){s->work / n, s->waits / n} : (Spent){0};
}

static void read_stages(Prediction *out, const Walk *w, int rank)
{
    for (int c = 0; c < w->shape.v; c++) {
        StageTime *t = &out->stage[pipe_stage(&w->shape, rank, c)];
        t->forward = mean(w, I_F, c);
        t->backward_x = mean(w, w->runs[I_D][c] ? I_D : I_B, c);
        t->backward_w = mean(w, I_W, c);
    }
}

/* Does the first walk of each pipeline rank; ranks whose stages are the same share one. */
static void time_stages(Prediction *out, const Config *c, const Machine *m, const StepLists *l,
                        const Placement *pl)
{
    for (int r = 0; r < pl->p; r++) {
        int like = 0;
        while (like < r && !same_stages(pl, like, r))
            like++;
        if (like < r)
            continue;
        Walk *w = walk(out, c, m, l, r, NULL);
        out->hop = fmax(out->hop, w->tally.message);
        for (int other = r; other < pl->p; other++)
            if (same_stages(pl, r, other))
                read_stages(out, w, other);
        free(w);
    }
}

/* [3][n] s of F, of D or B, of W of each virtual stage, for the simulator; on the heap. On an unfused
 * machine both ends wait for a message, whose time is added to theirs. */
static double *costs_of(const Prediction *p, const Machine *m)
{
    double *cost = xcalloc(3 * (size_t)p->n, sizeof *cost), held = m->unfused ? p->hop : 0;
    for (int s = 0; s < p->n; s++) {
        cost[s] = p->stage[s].forward.work + held;
        cost[p->n + s] = p->stage[s].backward_x.work + held;
        cost[2 * p->n + s] = p->stage[s].backward_w.work;
    }
    return cost;
}

/* ---- the step ---- */

/* Fills in the step and the times of the ranks. No rank updates before all ranks have their gradients.
 * Frees the walks. */
static void finish(Prediction *out, const Config *cfg, const Machine *m, Walk **w)
{
    double grads = 0, update = 0, nodes = ceil((double)cfg->world / (double)m->ranks);
    for (int r = 0; r < out->p; r++) {
        grads = fmax(grads, w[r]->grads);
        update = fmax(update, w[r]->t.total - w[r]->grads);
    }
    double slowest = m->straggle * log2(nodes) * (grads + update);
    out->step = grads + update + slowest;
    for (int r = 0; r < out->p; r++) {
        RankTime *t = &out->rank[r];
        *t = w[r]->t;
        t->bubble += grads - w[r]->grads + update - (t->total - w[r]->grads);
        t->slowest = slowest;
        t->total = out->step;
        t->optimizer = t->total - t->forward - t->backward - t->tp - t->cp - t->ep - t->bubble - t->dp -
                       t->host - t->slowest;
        free(w[r]);
    }
}

void predict_check(const Config *cfg, const Machine *m)
{
    const char *key = cfg->cpu_offloading_num_layers > 0 ? "cpu_offloading_num_layers"
                      : cfg->optimizer_cpu_offload && cfg->optimizer_offload_fraction > 0
                          ? "optimizer_cpu_offload"
                          : NULL;
    if (key && !m->shared && isnan(m->host_gbps))
        die(EXIT_CONFIG, "machine", "%s does not say host_gbps, the speed between a rank's memory and its "
            "host's, where %s moves data; change: add host_gbps to its section device", m->path, key);
}

void predict(Prediction *out, const Config *cfg, const Machine *m)
{
    Placement pl;
    StepLists l;
    placement_open(&pl, cfg);
    step_lists_open(&l, cfg, &pl);
    predict_over(out, cfg, m, &l);
    step_lists_close(&l);
    placement_close(&pl);
}

/* Chooses what pipeline ranks take where the machine has room for it, as run_room does. */
static void choose_room(Prediction *out, const Config *c, const Machine *m, const StepLists *l,
                        const Placement *pl)
{
    RunRoom f = {.cfg = c, .use = RUN_TRAIN,
                 .bytes = (int64_t)machine_space(m, c->world) +
                          (m->shared ? 0 : RUN_RESERVE),     /* which run_slice adds */
                 .over = {.lists = l, .apart = !m->shared}};
    f.rank = world_rank(c, pl->stage[pl->n - 1].pp_rank);
    out->logits_rows = m->shared ? run_logits_rows(c, 0, 0) : run_slice(&f);
    f.over.logits_rows = out->logits_rows;
    for (int s = 0; s < pl->p; s++) {
        f.rank = world_rank(c, s);
        int n = run_recast(&f);
        out->fp8_recast = n > out->fp8_recast ? n : out->fp8_recast;
    }
}

void predict_over(Prediction *out, const Config *cfg, const Machine *m, const StepLists *l)
{
    Placement pl;
    ScheduleSet set = *training(l);
    Simulation sim;
    placement_open(&pl, cfg);
    BUG_ON(pl.v > 255);
    *out = (Prediction){.p = pl.p, .n = pl.n, .stage = xcalloc((size_t)pl.n, sizeof *out->stage),
                        .rank = xcalloc((size_t)pl.p, sizeof *out->rank),
                        .memory = xcalloc((size_t)pl.p, sizeof *out->memory)};
    choose_room(out, cfg, m, l, &pl);
    time_stages(out, cfg, m, l, &pl);
    double *cost = costs_of(out, m);
    for (int k = 0; k < 3; k++)
        set.shape.cost[k] = cost + k * pl.n;
    set.shape.hop = m->unfused ? 0 : out->hop;
    simulate(&set, &sim, 1);
    if (crowded(cfg, m))
        predict_turns(&set, &sim, ranks_here(cfg, m) / pl.p, (double)m->cores);
    out->bubble = fabs(sim.rate) < 1e-9 ? 0 : sim.rate;            /* rounding of sums */
    out->step_bubble = fabs(sim.step_rate) < 1e-9 ? 0 : sim.step_rate;
    out->m = set.shape.m;
    out->kind = set.shape.kind;
    Walk **w = xcalloc((size_t)pl.p, sizeof(Walk *));
    for (int r = 0; r < pl.p; r++)
        w[r] = walk(out, cfg, m, l, r, sim.span[r]);
    finish(out, cfg, m, w);
    free(w);
    free(cost);
    simulation_close(&sim);
    placement_close(&pl);
}

void prediction_close(Prediction *p)
{
    free(p->stage);
    free(p->rank);
    free(p->memory);
    *p = (Prediction){0};
}
