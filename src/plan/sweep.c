/* sweep -- the legal layouts of a world, predicted and sorted */
#define _GNU_SOURCE
#include "sweep.h"
#include "config_table.h"
#include "context.h"
#include "predict.h"
#include "split.h"
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

const char *const layout_zero[4] = {"no_shard", "optim", "optim_grads", "optim_grads_params"};
const char *const layout_recompute[RECOMPUTES] = {"none", "selective", "full"};
const char *const layout_overlap[OVERLAPS] = {"", "grads", "grads, params", "params"};

int overlap_grads(Overlap o) { return o == OVERLAP_GRADS || o == OVERLAP_ALL; }
int overlap_params(Overlap o) { return o == OVERLAP_PARAMS || o == OVERLAP_ALL; }

int layout_args(const Sweep *s, const SweepLayout *l, LayoutArg text[LAYOUT_ARGS])
{
    int n = 0;
    const char *usual = schedule_name(l->v > 1 ? SCHEDULE_INTERLEAVED : SCHEDULE_1F1B);
    const char *schedule = l->pp > 1 && s->schedule ? s->schedule : usual;
#define ARG(...) snprintf(text[n++], sizeof *text, __VA_ARGS__)
    ARG("tensor_model_parallel_size=%d", l->tp);
    ARG("sequence_parallel=%s", l->rows ? "true" : "false");
    ARG("context_parallel_size=%d", l->cp);
    if (l->cp > 1 && !(s->fixed & FIXED_KIND)) {
        ARG("cp_comm_type=[%s]", context_kind_name[l->kind]);
        ARG(l->heads ? "hierarchical_context_parallel_sizes=[%d, %d]"
                     : "hierarchical_context_parallel_sizes=[]", l->heads, l->heads ? l->cp / l->heads : 0);
    }
    if (s->experts) {
        ARG("expert_model_parallel_size=%d", l->ep);
        ARG("expert_tensor_parallel_size=%d", l->etp);
    }
    ARG("pipeline_model_parallel_size=%d", l->pp);
    ARG("num_virtual_stages_per_pipeline_rank=%d", l->v);
    ARG("pipeline_schedule=%s", schedule);
    ARG("data_parallel_sharding_strategy=%s", layout_zero[l->zero]);
    ARG("overlap_grad_reduce=%s", overlap_grads(l->overlap) ? "true" : "false");
    ARG("overlap_param_gather=%s", overlap_params(l->overlap) ? "true" : "false");
    ARG("micro_batch_size=%d", l->micro);
    ARG("recompute_granularity=%s", layout_recompute[l->recompute]);
    ARG("recompute_method=%s", l->recompute == RECOMPUTE_FULL ? "uniform" : "none");
    ARG("recompute_num_layers=%s", l->recompute == RECOMPUTE_FULL ? "1" : "null");
    if (s->modules && l->recompute != RECOMPUTE_SELECTIVE)
        ARG("recompute_modules=[]");
#undef ARG
    return n;
}

const char *layout_kind(const Sweep *s, const SweepLayout *l, char text[24])
{
    int known = l->cp > 1 && !(s->fixed & FIXED_KIND);
    snprintf(text, 24, l->heads ? "%s %dx%d" : "%s", known ? context_kind_name[l->kind] : "", l->heads,
             l->heads ? l->cp / l->heads : 0);
    return text;
}

int layout_shards(const SweepLayout *l)
{
    return l->dp * l->cp > 1 || l->tp * l->cp * l->dp > l->ep * l->etp;
}

const char *layout_state(const SweepLayout *l)
{
    if (l->state != LAYOUT_FITS)
        return "does not fit";
    return layout_failed(l) ? l->why : layout_measured(l) > 0 ? "measured" : "predicted";
}

/* ---- one layout ---- */

/* The configuration of a layout, until the caller's keep_mark is released; NULL: a rule is broken. */
static const Config *config_of(const Sweep *s, SweepLayout *l)
{
    LayoutArg text[LAYOUT_ARGS];
    char **line = keep_alloc((size_t)s->nargs + LAYOUT_ARGS, sizeof *line);
    int n = layout_args(s, l, text);
    Check k;
    memcpy(line, s->args, (size_t)s->nargs * sizeof *line);
    l->id = HASH_SEED;
    for (int i = 0; i < n; i++) {
        line[s->nargs + i] = text[i];
        l->id = hash64(text[i], strlen(text[i]) + 1, l->id);
    }
    config_check(&k, s->path, s->nargs + n, line, s->world, USE_MODEL);
    return k.n + k.dropped ? NULL : k.cfg;
}

/* The instruction lists of a cut, by micro batch. Sharding and recomputation change none of them, but for a
 * schedule that is searched by the times of the stages, and for layers that are split by them; a file of
 * lists lies in the memory of its layout. */
typedef struct { int micro; StepLists lists; } MicroLists;
typedef struct { int n; MicroLists *list; } CutLists;

static const StepLists *lists_of(CutLists *k, const Config *c)
{
    Placement pl;
    int micro = (int)c->micro_batch_size, i = 0;
    while (i < k->n && k->list[i].micro != micro)
        i++;
    if (i < k->n)
        return &k->list[i].lists;
    k->list = xgrow(k->list, k->n, sizeof *k->list);
    placement_open(&pl, c);
    k->list[k->n].micro = micro;
    step_lists_open(&k->list[k->n].lists, c, &pl);
    placement_close(&pl);
    return &k->list[k->n++].lists;
}

static void lists_close(CutLists *k)
{
    for (int i = 0; i < k->n; i++)
        step_lists_close(&k->list[i].lists);
    free(k->list);
    *k = (CutLists){0};
}

static void plan(const Sweep *s, const Machine *m, const Config *c, CutLists *lists, SweepLayout *l)
{
    Prediction p;
    const Config *split = split_predicted(c, m, NULL);
    if (c->pipeline_schedule == PIPELINE_SCHEDULE_ZB_AUTO || c->custom || split != c)
        lists_close(lists);
    predict_over(&p, split, m, lists_of(lists, split));
    l->predicted = p.step * 1e3;
    l->bubble = p.bubble;
    l->memory = 0;
    l->exposed = l->sent = 0;
    for (int r = 0; r < p.p; r++) {
        l->memory = p.memory[r].total > l->memory ? p.memory[r].total : l->memory;
        l->exposed = fmax(l->exposed, p.rank[r].dp * 1e3);
        l->sent = fmax(l->sent, p.rank[r].sent[AXIS_DP] * 1e3);
    }
    l->state = machine_fits(m, s->world, l->memory) ? LAYOUT_FITS : LAYOUT_TOO_LARGE;
    prediction_close(&p);
}

int sweep_predict(const Sweep *s, const Machine *m, SweepLayout *l)
{
    void *mark = keep_mark();
    const Config *c = config_of(s, l);
    CutLists lists = {0};
    if (c)
        plan(s, m, c, &lists, l);
    lists_close(&lists);
    keep_release(mark);
    return c != NULL;
}

int64_t sweep_state(const Sweep *s)
{
    Sweep alone = *s;
    SweepLayout l = {.tp = 1, .pp = 1, .v = 1, .dp = 1, .cp = 1, .ep = 1, .etp = 1, .micro = 1,
                     .recompute = RECOMPUTE_FULL};
    void *mark = keep_mark();
    int64_t bytes = 0;
    alone.world = 1;
    const Config *c = config_of(&alone, &l);
    if (c) {
        Prediction p;
        predict(&p, c, machine_load(s->machine));
        bytes = p.memory[0].parameters + p.memory[0].gradients + p.memory[0].optimizer;
        prediction_close(&p);
    }
    keep_release(mark);
    return bytes;
}

int sweep_may_overlap(const Sweep *s, Overlap o)
{
    return !((s->fixed & FIXED_GRADS && overlap_grads(o) != overlap_grads(s->only.overlap)) ||
             (s->fixed & FIXED_PARAMS && overlap_params(o) != overlap_params(s->only.overlap)));
}

/* ---- one cut of the model: its variants ---- */

/* The next micro batch that divides a replica's share of the batch; 0: there is none. */
static int next_micro(const Sweep *s, int dp, int micro)
{
    int64_t share = s->batch / dp;
    for (int64_t b = micro + 1; b <= share; b++)
        if (share % b == 0)
            return (int)b;
    return 0;
}

/* Whether a layout can be the one with least memory: a larger micro batch, more chunks and tensor ranks that
 * all keep whole rows only add to it, and so does what is not computed again, but for a rank with one layer,
 * whose activations are there in any case. Sizes of the command line stay. */
static int is_least(const Sweep *s, const SweepLayout *l)
{
    return (s->fixed & FIXED_MICRO || l->micro == 1) && (s->fixed & FIXED_V || l->v == 1) &&
           (s->fixed & FIXED_ROWS || l->rows == (l->tp > 1)) &&
           (s->fixed & FIXED_RECOMPUTE || l->recompute == RECOMPUTE_FULL || l->pp * l->v >= s->layers);
}

static int wanted(const Sweep *s, const SweepLayout *l)
{
    const SweepLayout *o = &s->only;
    return (!s->least || is_least(s, l)) &&
           !((s->fixed & FIXED_TP && l->tp != o->tp) || (s->fixed & FIXED_PP && l->pp != o->pp) ||
             (s->fixed & FIXED_ROWS && l->rows != (o->rows && l->tp > 1)) ||
             (s->fixed & FIXED_CP && l->cp != o->cp) ||
             (s->fixed & FIXED_V && l->v != (l->pp > 1 ? o->v : 1)) ||
             (s->fixed & FIXED_ZERO && l->zero != (layout_shards(l) ? o->zero : 0)) ||
             (s->fixed & FIXED_EP && l->ep != o->ep) || (s->fixed & FIXED_ETP && l->etp != o->etp) ||
             (s->fixed & FIXED_MICRO && l->micro != o->micro) ||
             (s->fixed & FIXED_RECOMPUTE && l->recompute != o->recompute));
}

/* Predicts a layout with each micro batch; returns how many are legal. A larger micro batch needs at
 * least as much memory, so after the first that is too large none is predicted. */
static int plan_micros(const Sweep *s, const Machine *m, SweepLayout l, CutLists *lists, SweepLayout *out)
{
    int n = 0, too_large = 0;
    for (l.micro = 1; l.micro; l.micro = next_micro(s, l.dp, l.micro)) {
        SweepLayout *o = &out[n];
        void *mark = keep_mark();
        *o = l;
        const Config *c = wanted(s, o) ? config_of(s, o) : NULL;
        if (c && too_large)
            o->state = LAYOUT_LARGER;
        else if (c)
            plan(s, m, c, lists, o);
        too_large |= o->state == LAYOUT_TOO_LARGE;
        n += o->state != LAYOUT_NONE;
        keep_release(mark);
    }
    return n;
}

static int sharding_kinds(const SweepLayout *cut) { return layout_shards(cut) ? 4 : 1; }

/* Predicts the legal variants of a cut into out; returns their number. */
static int plan_cut(const Sweep *s, const Machine *m, const SweepLayout *cut, SweepLayout *out)
{
    int n = 0;
    CutLists lists = {0};
    for (int zero = 0; zero < sharding_kinds(cut); zero++)
        for (int r = 0; r < RECOMPUTES; r++) {
            SweepLayout l = *cut;
            l.zero = zero;
            l.recompute = r;
            while (!sweep_may_overlap(s, l.overlap))
                l.overlap++;
            n += plan_micros(s, m, l, &lists, out + n);
        }
    lists_close(&lists);
    return n;
}

static int variants(const Sweep *s, const SweepLayout *cut)
{
    int micros = 0;
    for (int b = 1; b; b = next_micro(s, cut->dp, b))
        micros++;
    return micros * sharding_kinds(cut) * RECOMPUTES;
}

/* ---- all cuts, on all cores ---- */

/* The next way to share a sequence out after *l: its kind, the ranks of its a2a groups, its size; 0: there
 * is none. The rules decide later which of them are legal. */
static int next_context(const Sweep *s, SweepLayout *l)
{
    if (l->kind == CONTEXT_A2A_P2P)
        for (l->heads++; l->heads < l->cp; l->heads++)
            if (l->cp % l->heads == 0)
                return 1;
    l->heads = 0;
    if (l->cp > 1 && l->kind < CONTEXT_A2A && !(s->fixed & FIXED_KIND))
        return ++l->kind, 1;
    if (l->cp > 3 && l->kind == CONTEXT_A2A) {
        *l = (SweepLayout){.cp = l->cp, .kind = CONTEXT_A2A_P2P, .heads = 1};
        return next_context(s, l);
    }
    l->kind = CONTEXT_P2P;
    for (l->cp++; l->cp <= s->world; l->cp++)
        if (s->world % l->cp == 0 && (s->seq / l->cp >= CONTEXT_LEAST || l->cp == s->only.cp))
            return 1;
    return 0;
}

/* Adds a cut with all ways to share out its experts over the ranks of a stage. */
static void add_cut(const Sweep *s, SweepLayout l, SweepLayout **cut, int *n)
{
    int64_t stage = (int64_t)l.tp * l.cp * l.dp, most = s->experts ? s->experts : 1;
    for (int64_t ep = 1; ep <= most && ep <= stage; ep++)
        for (int64_t etp = 1; most % ep == 0 && stage % ep == 0 && etp <= stage / ep; etp++) {
            if (stage / ep % etp || (s->experts ? l.tp % etp && etp != s->only.etp : etp != l.tp))
                continue;
            l.ep = (int)ep;
            l.etp = (int)etp;
            *cut = xgrow(*cut, *n, sizeof **cut);
            (*cut)[(*n)++] = l;
        }
}

/* Adds all tp x rows x pp x v for which tp * pp * dp is the world without the context ranks of `c`; the
 * rules decide later which of them are legal. One pipeline rank has one chunk. A chunk has at least one
 * layer, except that embedding and head may have chunks of their own. */
static void add_cuts(const Sweep *s, const SweepLayout *c, int layers, SweepLayout **cut, int *n)
{
    int world = s->world / c->cp;
    for (int tp = 1; tp <= world; tp++)
        for (int pp = 1; world % tp == 0 && pp <= world / tp && pp <= layers + 2; pp++)
            for (int v = 1; world / tp % pp == 0 && s->batch % (world / tp / pp) == 0 &&
                            v * pp <= (pp == 1 ? 1 : layers + 2); v++)
                for (int rows = 0; rows <= (tp > 1); rows++)
                    add_cut(s,
                            (SweepLayout){.tp = tp, .rows = rows, .pp = pp, .v = v, .dp = world / tp / pp,
                                          .cp = c->cp, .kind = c->kind, .heads = c->heads},
                            cut, n);
}

/* All cuts of the world. *n: their number. On the heap. */
static SweepLayout *cuts_of(const Sweep *s, int layers, int *n)
{
    SweepLayout *cut = NULL, c = {.cp = 1};
    *n = 0;
    do
        add_cuts(s, &c, layers, &cut, n);
    while (next_context(s, &c));
    return cut;
}

/* Work shared by processes, of which there are as many as cores: planning a large world takes minutes. */
typedef struct { int n, *next; void (*one)(void *ctx, int i); void *ctx; const char *what; } Work;

static _Noreturn void work(const Work *p, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);          /* a worker ends with its parent */
    for (int i; getppid() == parent && (i = __atomic_fetch_add(p->next, 1, __ATOMIC_RELAXED)) < p->n;)
        p->one(p->ctx, i);
    _exit(EXIT_DONE);
}

/* Waits for a worker to end; prints the progress every 10 s. Returns the worker's status. */
static int await_worker(const Work *p, double *spoken)
{
    int status = 0;
    pid_t got;
    while ((got = waitpid(-1, &status, WNOHANG)) == 0 || (got < 0 && errno == EINTR)) {
        if (now() - *spoken > 10) {
            int done = __atomic_load_n(p->next, __ATOMIC_RELAXED);
            fprintf(stderr, "planning: %d of %d %s\n", done < p->n ? done : p->n, p->n, p->what);
            *spoken = now();
        }
        usleep(2000);
    }
    return status;
}

/* Memory of zeros that processes share. */
static void *share(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        die(EXIT_RESOURCE, "memory", "no memory for %zu bytes of layouts: %s; change: free memory on this "
            "machine", bytes, strerror(errno));
    return p;
}

void sweep_work(int n, void (*one)(void *ctx, int i), void *ctx, const char *what)
{
    int workers = pool_cores(), started = 0;
    Work p = {n, share(sizeof *p.next), one, ctx, what};
    pid_t pid = 1, parent = getpid();
    double spoken = now();
    fflush(NULL);
    for (; started < workers && (pid = fork()) > 0; started++)
        ;
    if (pid == 0)
        work(&p, parent);
    if (!started)
        die(EXIT_RESOURCE, "fork",
            "cannot start a process: %s; change: raise the limit on processes (ulimit -u)", strerror(errno));
    for (int w = 0; w < started; w++) {
        int status = await_worker(&p, &spoken);
        if (WIFEXITED(status) && WEXITSTATUS(status))
            exit(WEXITSTATUS(status));         /* the worker has printed why */
        if (!WIFEXITED(status))
            die(EXIT_BUG, "sweep", "a process that planned layouts was ended by signal %d; change: see "
                "whether memory ran out (the system log), and report it otherwise", WTERMSIG(status));
    }
    munmap(p.next, sizeof *p.next);
}

typedef struct {
    const Sweep *s;
    const Machine *m;
    const SweepLayout *cut;    /* [n] */
    const int *at;             /* [n] where the variants of each cut begin in layout */
    SweepLayout *layout;       /* shared */
} Plan;

static void plan_one(void *ctx, int i)
{
    const Plan *p = ctx;
    plan_cut(p->s, p->m, &p->cut[i], p->layout + p->at[i]);
}

/* ---- order ---- */

/* The order is total, so that a continued sweep measures the same layouts. */
static int by_prediction(const SweepLayout *x, const SweepLayout *y)
{
    if (x->state != y->state)
        return (int)x->state - (int)y->state;
    if (layout_failed(x) != layout_failed(y))
        return layout_failed(x) - layout_failed(y);
    double px = x->predicted * x->weight, py = y->predicted * y->weight;
    if (x->state == LAYOUT_FITS && px != py)
        return px > py ? 1 : -1;
    if (x->memory != y->memory)
        return x->memory > y->memory ? 1 : -1;
    const int a[] = {x->tp, x->pp, x->v, x->zero, x->micro, x->recompute, x->rows, x->cp, x->kind, x->heads,
                     x->ep, x->etp, x->world};
    const int b[] = {y->tp, y->pp, y->v, y->zero, y->micro, y->recompute, y->rows, y->cp, y->kind, y->heads,
                     y->ep, y->etp, y->world};
    for (size_t i = 0; i < sizeof a / sizeof *a; i++)
        if (a[i] != b[i])
            return a[i] - b[i];
    return 0;
}

static int in_order(const void *a, const void *b)
{
    const SweepLayout *x = a, *y = b;
    double mx = layout_measured(x) * x->weight, my = layout_measured(y) * y->weight;
    if ((mx > 0) != (my > 0))
        return mx > 0 ? -1 : 1;
    if (mx > 0 && mx != my)
        return mx > my ? 1 : -1;
    return by_prediction(x, y);
}

void sweep_sort(Sweep *s) { qsort(s->layout, (size_t)s->n, sizeof *s->layout, in_order); }

const SweepLayout *sweep_best(const Sweep *s)
{
    const SweepLayout *l = &s->layout[0];
    return s->n && l->state == LAYOUT_FITS && !layout_failed(l) ? l : NULL;
}

/* ---- the plan ---- */

static void take_layouts(Sweep *s, const SweepLayout *all, int n)
{
    s->layout = xcalloc((size_t)n + 1, sizeof *s->layout);
    for (int i = 0; i < n; i++)
        if (all[i].state != LAYOUT_NONE) {
            SweepLayout *l = &s->layout[s->n++];
            *l = all[i];
            l->world = s->world;
            l->batch = s->batch;
            l->weight = layout_weight(s, s->world, s->batch);
            s->fit += l->state == LAYOUT_FITS;
        }
    sweep_sort(s);
}

void sweep_plan(Sweep *s, const Config *c)
{
    const Machine *m = machine_load(s->machine);
    predict_check(c, m);
    int n;
    s->layers = (int)c->num_layers;
    s->reserve = machine_reserve(m, s->world);
    s->room = machine_space(m, s->world);
    s->base.products = m->reference_products;
    s->base.reference = (Reference){m->reference_shared_product_ms, m->reference_shared_copy_ms};
    if (s->world == 1)
        s->base.reference = (Reference){m->reference_product_ms, m->reference_copy_ms};
    SweepLayout *cut = cuts_of(s, (int)c->num_layers, &n);
    int *at = xcalloc((size_t)n + 1, sizeof *at);
    for (int i = 0; i < n; i++)
        at[i + 1] = at[i] + variants(s, &cut[i]);
    size_t bytes = (size_t)(at[n] + 1) * sizeof(SweepLayout);
    SweepLayout *shared = share(bytes);
    sweep_work(n, plan_one, &(Plan){s, m, cut, at, shared}, "cuts of the model");
    if (!s->least)
        sweep_overlap(s, m, shared, at[n]);
    take_layouts(s, shared, at[n]);
    munmap(shared, bytes);
    free(at);
    free(cut);
}
