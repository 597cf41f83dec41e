/* predict -- the time of a step: stages timed, the pipeline simulated, its ranks walked again */
#include "predict.h"
#include "walk.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

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
                        const Placement *pl, Kinds *kinds)
{
    for (int r = 0; r < pl->p; r++) {
        int like = 0;
        while (like < r && !same_stages(pl, like, r))
            like++;
        if (like < r)
            continue;
        Walk *w = kinds->last && kinds->last->rank == r ? kinds->last
                                                        : walk(out, c, m, l, r, known_of(kinds, r), NULL);
        out->hop = fmax(out->hop, w->tally.message);
        for (int other = r; other < pl->p; other++)
            if (same_stages(pl, r, other))
                read_stages(out, w, other);
        if (w == kinds->last)
            kinds->last = NULL;
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
    double late = m->straggle * log2(nodes) + (crowded(cfg, m) ? m->crowding : 0);
    double slowest = late * (grads + update);
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

/* Returns the rows of a slice of logits that the rank with the loss has room for. Its first walk says what it
 * needs with the largest slices, and is kept where they are taken. */
static int64_t choose_rows(Prediction *out, const Config *c, const Machine *m, RunRoom *f, Kinds *kinds)
{
    int last = kinds->pl->stage[kinds->pl->n - 1].pp_rank;
    int64_t largest = out->logits_rows = run_logits_rows(c, !m->shared, 0), rows;
    if (m->shared)
        return largest;
    if (!precision_keeps(c)) {         /* else copies of FP8 weights are chosen first */
        kinds->last = walk(out, c, m, f->over.lists, last, known_of(kinds, last), NULL);
        f->need = kinds->last->need;
    }
    f->rank = run_first(c, AXIS_PP, last);
    rows = run_slice(f);
    if (rows != largest) {
        free(kinds->last);
        kinds->last = NULL;
        kinds_forget(kinds);
    }
    return rows;
}

/* Chooses what pipeline ranks take where the machine has room for it, as run_room does. */
static void choose_room(Prediction *out, const Config *c, const Machine *m, const StepLists *l, Kinds *kinds)
{
    RunRoom f = {.cfg = c, .use = RUN_TRAIN,
                 .bytes = (int64_t)machine_space(m, c->world) +
                          (m->shared ? 0 : run_reserve(c)),     /* which run_slice adds */
                 .over = {.lists = l, .apart = !m->shared}};
    int ours = !m->unfused && !m->separate;    /* only ours makes FP8 copies again for want of room */
    f.over.logits_rows = out->logits_rows = choose_rows(out, c, m, &f, kinds);
    for (int s = 0; s < kinds->pl->p && ours; s++) {
        f.rank = run_first(c, AXIS_PP, s);
        int n = run_recast(&f);
        out->fp8_recast = n > out->fp8_recast ? n : out->fp8_recast;
    }
}

/* real: bool: every walk runs its layers. */
static void predict_by(Prediction *out, const Config *cfg, const Machine *m, const StepLists *l, int real)
{
    Placement pl;
    ScheduleSet set = *training(l);
    Simulation sim;
    placement_open(&pl, cfg);
    BUG_ON(pl.v > 255);
    *out = (Prediction){.p = pl.p, .n = pl.n, .stage = xcalloc((size_t)pl.n, sizeof *out->stage),
                        .rank = xcalloc((size_t)pl.p, sizeof *out->rank),
                        .memory = xcalloc((size_t)pl.p, sizeof *out->memory)};
    Kinds kinds = kinds_open(cfg, &pl, l, real);
    choose_room(out, cfg, m, l, &kinds);
    time_stages(out, cfg, m, l, &pl, &kinds);
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
        w[r] = walk(out, cfg, m, l, r, known_of(&kinds, r), sim.span[r]);
    finish(out, cfg, m, w);
    free(w);
    free(cost);
    kinds_close(&kinds);
    simulation_close(&sim);
    placement_close(&pl);
}

void predict_over(Prediction *out, const Config *cfg, const Machine *m, const StepLists *l)
{
    predict_by(out, cfg, m, l, 0);
}

void predict_walked(Prediction *out, const Config *cfg, const Machine *m, const StepLists *l)
{
    predict_by(out, cfg, m, l, 1);
}

void prediction_close(Prediction *p)
{
    free(p->stage);
    free(p->rank);
    free(p->memory);
    *p = (Prediction){0};
}
