/* rerun -- a step is computed twice, and what each rank brings to its groups is compared
 *
 * Before the step of a check, the same step runs without its update. Where there are several data ranks, each
 * of them then takes the samples of the next one, so that a rank that always computes wrong is seen by
 * another. When hashes differ, both are computed once more: what does not repeat is transient. */
#define _GNU_SOURCE
#include "run_layout.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The groups call start_watched, which has no other way to its run. */
static RunRerun *watching;

/* ---- what a rank brings to its groups ---- */

/* s; the ranks of several hosts agree on it as far as the clocks of their hosts do. */
static double clock_of_day(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static Token start_watched(Comm *c, Operation o)
{
    RunRerun *x = watching;
    int g = 0;
    while (g < x->ncomm && x->comm[g] != c)
        g++;
    BUG_ON(g == x->ncomm);
    int64_t bytes = comm_payload(c, o.kind, o.n, o.type, o.root);
    RerunPass *p = x->now;
    /* gathered weights are other ones on other ranks; on a GPU what lies on the host are counts */
    if (p && bytes && !(g < x->ndata && o.kind == COMM_ALL_GATHER) &&
        (!x->apart || x->dev->owns(x->dev, o.in))) {
        int64_t at = p->n < x->room - 1 ? p->n++ : p->n; /* further rounds of experts share the last sum */
        p->time[at] = clock_of_day();
        x->dev->hash(x->dev, &(Hashed){p->sum + at, o.in, bytes}, 1);
    }
    return x->start[g](c, o);
}

static void watch(RunRerun *x, Comm *c)
{
    BUG_ON(x->ncomm == RERUN_GROUPS);
    x->comm[x->ncomm] = c;
    x->start[x->ncomm++] = c->start;
    c->start = start_watched;
}

void rerun_open(Run *r, Device *dev, Arena *run)
{
    RunRerun *x = &r->rerun;
    Grid *g = &r->grid;
    int64_t most = 0;
    *x = (RunRerun){.dev = dev, .apart = r->plan.apart};
    if (r->use != RUN_TRAIN || !r->cfg->sdc_rerun)
        return;
    for (int i = 0; i < r->cfg->batch_steps; i++)
        most = r->plan.lists[i].m > most ? r->plan.lists[i].m : most;
    for (int a = 0; a < AXES; a++)
        x->room += 2 * r->plan.traffic[a].ops;
    x->room += 2 * (most + 1) * r->params.data.buckets + 64;
    for (int k = 0; k < RERUN_PASSES; k++) {
        x->pass[k].sum = arena_take(run, (size_t)x->room * sizeof *x->pass[k].sum);
        x->pass[k].time = xcalloc((size_t)x->room, sizeof *x->pass[k].time);
    }
    if (!run->base)
        return;
    Comm *data[] = {&g->data,
                    &g->shard,
                    &g->copies,
                    &g->expert[EXPERT_DATA],
                    &g->expert[EXPERT_SHARD],
                    &g->expert[EXPERT_COPIES]};
    Comm *rest[] = {&g->axis[AXIS_TP], &g->axis[AXIS_CP], &g->axis[AXIS_PP],     &g->kv,
                    &g->context_heads, &g->context_ring,  &g->expert[EXPERT_EP], &g->expert[EXPERT_TP]};
    for (size_t i = 0; i < sizeof data / sizeof *data; i++)
        watch(x, data[i]);
    x->ndata = x->ncomm;
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++)
        if (rest[i]->impl) /* else a group of one: it brings nothing to others */
            watch(x, rest[i]);
    watching = x;
}

void rerun_close(Run *r)
{
    RunRerun *x = &r->rerun;
    for (int k = 0; k < RERUN_PASSES; k++)
        free(x->pass[k].time);
    for (int i = 0; i < x->ncomm; i++)
        x->comm[i]->start = x->start[i];
    *x = (RunRerun){0};
}

void rerun_pause(Run *r)
{
    r->rerun.now = NULL;
}

/* ---- passes ---- */

enum { OTHERS, OWN, OWN_AGAIN, OTHERS_AGAIN };

static void begin_pass(RunRerun *x, int k)
{
    x->now = &x->pass[k];
    x->now->n = 0;
    x->dev->zero(x->dev, x->now->sum, (size_t)x->room * sizeof *x->now->sum);
}

/* Runs the step of r->progress without an update. The verdict stays that of the step before, as the step
 * itself has to find it: the host may not know yet that it was held.
 *   shift  in  samples from this rank's to those that it takes */
static void run_pass(Run *r, int k, int64_t shift)
{
    const Verdict before = optimizer_verdict(&r->opt);
    Metrics *metrics = r->step.metrics;
    void (*mark)(void *, const Instr *, double, double) = r->stage.mark;
    r->step.metrics = NULL;
    r->stage.mark = NULL;
    r->step.shift = shift;
    begin_pass(&r->rerun, k);
    run_gradients(r);
    r->dev.put(&r->dev, r->opt.verdict, &before, sizeof before);
    r->step.shift = 0;
    r->step.metrics = metrics;
    r->stage.mark = mark;
}

/* Whether a rank's groups may add three ranks or more in another order than those of the next data rank. */
static int sums_differ(const Run *r)
{
    const int *n = r->grid.size, three = n[AXIS_TP] >= 3 || n[AXIS_CP] >= 3;
    return three && r->cfg->device == DEVICE_CUDA && r->cfg->distributed_backend == DISTRIBUTED_BACKEND_NCCL;
}

/* Samples from this data rank's to the next one's; 0 where they must not be exchanged: experts see the tokens
 * of all data ranks, the corpus has ends, and NCCL's sums follow the wires. */
static int64_t shift_of(const Run *r)
{
    const Config *c = r->cfg;
    int64_t n = r->grid.size[AXIS_DP], at = r->grid.index[AXIS_DP], first = r->progress.consumed_samples;
    int legal = c->num_moe_experts == CFG_ABSENT && !sums_differ(r) && r->loader &&
                first >= n * c->micro_batch_size &&
                first + config_batch_at(c, first) + c->micro_batch_size <= loader_samples(r->loader);
    return legal ? ((at + 1) % n - at) * c->micro_batch_size : 0;
}

void rerun_first(Run *r)
{
    r->rerun.shift = shift_of(r);
    run_pass(r, OTHERS, r->rerun.shift);
    begin_pass(&r->rerun, OWN);
    r->rerun.comparing = 1;
}

/* ---- who is wrong ---- */

/* The hashes of a pass, x->room of them, on the host and on the heap. */
static uint64_t *fetch(const RunRerun *x, int k)
{
    uint64_t *sum = xcalloc((size_t)x->room, sizeof *sum);
    x->dev->get(x->dev, sum, x->pass[k].sum, (size_t)x->room * sizeof *sum);
    return sum;
}

/* When this rank brought the first value that differs, on the clock of pass k; INFINITY: none differs. */
static double first_difference(const RunRerun *x, int k, const uint64_t *a, const uint64_t *b)
{
    for (int64_t i = 0; i <= x->pass[k].n; i++)
        if (a[i] != b[i])
            return x->pass[k].time[i];
    return INFINITY;
}

/* buf of the data rank that comes next, where samples are exchanged. */
static void of_next(Run *r, void *buf, int64_t n)
{
    Comm *c = &r->grid.axis[AXIS_DP];
    if (!r->rerun.shift)
        return;
    int64_t *next = xcalloc((size_t)n, sizeof *next);
    comm_together(c, 1);
    Token sent = c->send(c, buf, n, I64, (c->rank + c->size - 1) % c->size),
          received = c->recv(c, next, n, I64, (c->rank + 1) % c->size);
    comm_together(c, 0);
    c->wait(c, sent);
    c->wait(c, received);
    memcpy(buf, next, (size_t)n * sizeof *next);
    free(next);
}

/* What one rank has to say: when it first differed, and with which rank it was compared. */
typedef struct {
    double when;
    int64_t other;
    char host[HOST_NAME];
} Witness;

/* The ranks one of which is wrong, by the first difference. Where that is between two, both have also been
 * compared with their other neighbours: the one that differs there, too, is wrong. */
static void suspects(const Witness *w, int n, int pair[2])
{
    int first = 0, before = 0;
    for (int i = 1; i < n; i++)
        first = w[i].when < w[first].when ? i : first;
    for (int i = 0; i < n; i++)
        before = w[i].other == first ? i : before;
    int a = first, b = (int)w[first].other;
    if (isfinite(w[before].when) && !isfinite(w[b].when))
        b = a;
    else if (isfinite(w[b].when) && !isfinite(w[before].when))
        a = b;
    pair[0] = a < b ? a : b;
    pair[1] = a < b ? b : a;
}

/* Ends the job with `code` if any rank differs, and names the first that did. Collective.
 *   when, other  in  the witness of this rank */
static void accuse(Run *r, double when, int64_t other, int code, const char *how)
{
    Comm *all = &r->grid.all;
    Witness mine = {.when = when, .other = other}, *w = xcalloc((size_t)all->size, sizeof *w);
    int pair[2], transient = code == EXIT_TRANSIENT;
    char who[256], also[128] = "";
    host_name(mine.host);
    all->wait(all, all->all_gather(all, w, &mine, sizeof mine / 8, I64));
    suspects(w, all->size, pair);
    if (pair[0] != pair[1])
        snprintf(also, sizeof also, " or rank %d on host %s", pair[1], w[pair[1]].host);
    snprintf(who, sizeof who, "rank %d on host %s%s", pair[0], w[pair[0]].host, also);
    int differs = 0;
    for (int i = 0; i < all->size; i++)
        differs |= isfinite(w[i].when);
    free(w);
    all_ok(all, !differs || all->rank != pair[0], code, transient ? "transient" : "persistent",
           "iteration %lld: %s %s; nothing of it was updated; change: %s",
           (long long)r->progress.iteration + 1, who, how,
           transient ? "start again with load=latest, and test a host that is named again"
                     : "leave this host out and start again with load=latest");
}

void rerun_compare(Run *r)
{
    RunRerun *x = &r->rerun;
    Comm *all = &r->grid.all;
    if (!x->comparing)
        return;
    rerun_pause(r);
    uint64_t *own = fetch(x, OWN), *others = fetch(x, OTHERS), *mine = xcalloc((size_t)x->room, sizeof *mine);
    int64_t same;
    memcpy(mine, own, (size_t)x->room * sizeof *mine);
    /* what was brought: data ranks bring as many values, but their rooms count other partial sums */
    of_next(r, own, x->pass[OWN].n + 1);
    double when = first_difference(x, OTHERS, others, own);
    same = !isfinite(when);
    all->wait(all, all->all_reduce(all, &same, 1, I64, OP_MIN));
    if (!same) {
        int64_t next = all->rank;
        of_next(r, &next, 1);
        run_pass(r, OWN_AGAIN, 0);
        run_pass(r, OTHERS_AGAIN, x->shift);
        rerun_pause(r);
        uint64_t *own_again = fetch(x, OWN_AGAIN), *others_again = fetch(x, OTHERS_AGAIN);
        double changed = fmin(first_difference(x, OWN, mine, own_again),
                              first_difference(x, OTHERS, others, others_again));
        accuse(r, changed, all->rank, EXIT_TRANSIENT, "computed other bits when the step ran again");
        accuse(r, when, next, EXIT_PERSISTENT, "computes other bits of the same samples, each time");
    }
    free(own);
    free(others);
    free(mine);
    x->comparing = 0;
}
