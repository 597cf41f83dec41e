/* Which layouts there are, and what the planner says of each. */
#define _GNU_SOURCE
#include "sweep.h"
#include "config_table.h"
#include "predict.h"
#include <errno.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

const char *const layout_zero[4] = {"no_shard", "optim", "optim_grads", "optim_grads_params"};
const char *const layout_recompute[RECOMPUTES] = {"none", "selective", "full"};

/* One that says how many chunks it has: 1f1b does not, nor does interleaved. */
static int fixed(const char *schedule) { return schedule && strcmp(schedule, "interleaved") && strcmp(schedule, "1f1b"); }

int layout_args(const Sweep *s, const Layout *l, char text[LAYOUT_ARGS][160])
{
    int n = 0;
    const char *schedule = l->pp == 1 ? "1f1b" : fixed(s->schedule) ? s->schedule : l->v > 1 ? "interleaved" : "1f1b";
#define ARG(...) snprintf(text[n++], 160, __VA_ARGS__)
    ARG("tensor_model_parallel_size=%d", l->tp);
    ARG("sequence_parallel=%s", l->rows ? "true" : "false");
    ARG("pipeline_model_parallel_size=%d", l->pp);
    ARG("num_virtual_stages_per_pipeline_rank=%d", l->v);
    ARG("pipeline_schedule=%s", schedule);
    ARG("data_parallel_sharding_strategy=%s", layout_zero[l->zero]);
    ARG("micro_batch_size=%d", l->micro);
    ARG("recompute_granularity=%s", layout_recompute[l->recompute]);
    ARG("recompute_method=%s", l->recompute == RECOMPUTE_FULL ? "uniform" : "none");
    ARG("recompute_num_layers=%s", l->recompute == RECOMPUTE_FULL ? "1" : "null");
#undef ARG
    return n;
}

/* The configuration of a layout; NULL when a rule is broken. */
static const Config *config_of(const Sweep *s, const Layout *l)
{
    char text[LAYOUT_ARGS][160], **line = keep_alloc((size_t)s->nargs + LAYOUT_ARGS, sizeof *line);
    int n = layout_args(s, l, text);
    Check k;
    memcpy(line, s->args, (size_t)s->nargs * sizeof *line);
    for (int i = 0; i < n; i++)
        line[s->nargs + i] = text[i];
    config_check(&k, s->path, s->nargs + n, line, s->world, USE_MODEL);
    return k.n + k.dropped ? NULL : k.cfg;
}

/* ---- one cut of the model: its variants ---- */

/* Bytes that a rank may have. The ranks of a host share what it has. */
static double memory_of(const Sweep *s, const Machine *m)
{
    double here = s->world < m->ranks ? (double)s->world : (double)m->ranks;
    return m->memory_gib * (1 << 30) / (m->shared ? here : 1);
}

static void plan(const Sweep *s, const Machine *m, Layout *l)
{
    Prediction p;
    const Config *c = config_of(s, l);
    if (!c)
        return;
    predict(&p, c, m);
    l->predicted = p.step * 1e3;
    l->bubble = p.bubble;
    for (int r = 0; r < p.p; r++)
        l->memory = p.memory[r].total > l->memory ? p.memory[r].total : l->memory;
    l->state = (double)l->memory > memory_of(s, m) ? LAYOUT_TOO_LARGE : LAYOUT_PLANNED;
    prediction_close(&p);
}

/* The next microbatch that divides a replica's share of the batch; 0: there is none. */
static int next_micro(const Sweep *s, int dp, int micro)
{
    int64_t share = s->batch / dp;
    for (int64_t b = micro + 1; b <= share; b++)
        if (share % b == 0)
            return (int)b;
    return 0;
}

/* Fills out[]; returns how many. */
static int plan_cut(const Sweep *s, const Layout *cut, Layout *out)
{
    int n = 0;
    Layout first = *cut;
    first.micro = 1;
    if (s->batch % cut->dp || !config_of(s, &first))
        return 0;
    for (int micro = 1; micro; micro = next_micro(s, cut->dp, micro))
        for (int zero = 0; zero < (cut->dp > 1 ? 4 : 1); zero++)
            for (int r = 0; r < RECOMPUTES; r++) {
                Layout l = *cut;
                l.micro = micro;
                l.zero = zero;
                l.recompute = r;
                plan(s, machine_load(s->machine), &l);
                if (l.state != LAYOUT_NONE)
                    out[n++] = l;
                config_forget();               /* thousands of configurations would pile up */
            }
    return n;
}

/* ---- all cuts, on all cores ---- */

static int variants(const Sweep *s, const Layout *cut)
{
    int micros = 0;
    for (int b = 1; b && s->batch % cut->dp == 0; b = next_micro(s, cut->dp, b))
        micros++;
    return micros * (cut->dp > 1 ? 4 : 1) * RECOMPUTES;
}

/* tp x rows x pp x v whose product with dp is the world; rules decide later which of them are legal. */
static Layout *cuts_of(const Sweep *s, int layers, int *n)
{
    Layout *cut = NULL;
    int chunks = fixed(s->schedule) ? 2 : layers;
    *n = 0;
    for (int tp = 1; tp <= s->world; tp++)
        for (int pp = 1; s->world % tp == 0 && pp <= s->world / tp && pp <= layers + 2; pp++)
            for (int v = 1; s->world / tp % pp == 0 && v <= (pp == 1 ? 1 : chunks) && (v - 1) * pp < layers + 2; v++)
                for (int rows = 0; rows <= (tp > 1); rows++) {
                    cut = xrealloc(cut, ((size_t)*n + 1) * sizeof *cut);
                    cut[(*n)++] = (Layout){.tp = tp, .rows = rows, .pp = pp, .v = v, .dp = s->world / tp / pp};
                }
    return cut;
}

/* Cuts are taken in turn by as many processes as there are cores: a sweep of a large world is minutes of planning. */
typedef struct { int next; Layout layout[]; } Shared;

static void work(const Sweep *s, const Layout *cut, const int *at, int n, Shared *shared)
{
    for (int i; (i = __atomic_fetch_add(&shared->next, 1, __ATOMIC_RELAXED)) < n;)
        plan_cut(s, &cut[i], shared->layout + at[i]);
}

static void run_workers(const Sweep *s, const Layout *cut, const int *at, int n, Shared *shared)
{
    int workers = pool_cores(), status, bad = 0;
    fflush(NULL);
    for (int w = 0; w < workers; w++) {
        pid_t pid = fork();
        if (pid < 0)
            die(EXIT_RESOURCE, "fork", "cannot start a process: %s; change: raise the limit on processes (ulimit -u)",
                strerror(errno));
        if (pid == 0) {
            work(s, cut, at, n, shared);
            _exit(0);
        }
    }
    for (int w = 0; w < workers; w++)
        if (wait(&status) > 0 && status)
            bad = WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_BUG;
    if (bad)
        die(bad, "sweep", "a process that planned layouts ended with %d; change: what it says above", bad);
}

static int by_prediction(const void *a, const void *b)
{
    const Layout *x = a, *y = b;
    if (x->state != y->state)
        return (int)x->state - (int)y->state;
    return (x->predicted > y->predicted) - (x->predicted < y->predicted);
}

static int by_measure(const void *a, const void *b)
{
    const Layout *x = a, *y = b;
    if ((x->measured > 0) != (y->measured > 0))
        return x->measured > 0 ? -1 : 1;
    return x->measured > 0 ? (x->measured > y->measured) - (x->measured < y->measured) : by_prediction(a, b);
}

void sweep_sort(Sweep *s) { qsort(s->layout, (size_t)s->n, sizeof *s->layout, by_measure); }

void sweep_plan(Sweep *s)
{
    const Config *c = config_load(s->path, s->nargs, s->args, WORLD_SMALLEST, USE_MODEL);
    int n;
    Layout *cut = cuts_of(s, (int)c->num_layers, &n);
    int *at = xcalloc((size_t)n + 1, sizeof *at);
    for (int i = 0; i < n; i++)
        at[i + 1] = at[i] + variants(s, &cut[i]);
    size_t bytes = sizeof(Shared) + (size_t)at[n] * sizeof(Layout);
    Shared *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (shared == MAP_FAILED)
        die(EXIT_RESOURCE, "memory", "no memory for %d layouts: %s; change: free memory on this machine", at[n], strerror(errno));
    run_workers(s, cut, at, n, shared);
    s->layout = xcalloc((size_t)at[n] + 1, sizeof *s->layout);
    for (int i = 0; i < at[n]; i++)
        if (shared->layout[i].state != LAYOUT_NONE) {
            s->fit += shared->layout[i].state == LAYOUT_PLANNED;
            s->layout[s->n++] = shared->layout[i];
        }
    munmap(shared, bytes);
    qsort(s->layout, (size_t)s->n, sizeof *s->layout, by_prediction);
    free(at);
    free(cut);
}
