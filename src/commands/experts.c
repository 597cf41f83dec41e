/* train experts -- the layers with experts alone, under routings that are given: where rows arrive, and what
 * sending, computing and returning them takes
 *
 * Each rank runs its own layers with experts forward and backward, on random rows whose first elements are
 * the digits of a row's number. Functions around the device's ops see which rows each expert computes, and
 * divide the time: ops of experts are computing; what passes before an expert's first product is dispatch,
 * what passes behind it is return. Of several rounds, the returns of all but the last count as dispatch. */
#include "commands.h"
#include "config_table.h"
#include "cost.h"
#include "json_number.h"
#include "start.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DIGITS = 4, BASE = 128 };       /* of a row's number: each digit is exact in every storage type */
enum { COMPUTE, DISPATCH, RETURN, STEP, TIMES };

typedef struct { int64_t n, *row; } Arrived;   /* row numbers */

/* What the functions around the ops see. */
static struct {
    Device real;               /* the device's own ops */
    Model *m;
    int part, forward;         /* layer that runs; bool: its forward */
    int inside;                /* ops called by ops */
    double last, gap;          /* s: end of the last op; time between ops that no one has counted yet */
    double time[TIMES];
    Arrived *arrived;          /* [experts of this rank] rows of the forward */
} spy;

/* ---- around the ops ---- */

static int computes(OpKind op)
{
    return op == OPKIND_matmul || op == OPKIND_linear || op == OPKIND_linear_act_fwd ||
           op == OPKIND_linear_act_bwd_x || op == OPKIND_linear_bwd_w || op == OPKIND_act_fwd ||
           op == OPKIND_act_bwd || op == OPKIND_scale_rows || op == OPKIND_row_dots;
}

/* Notes the rows that an expert gets. */
static void note_rows(Device *d, Mat x, Mat w)
{
    Model *m = spy.m;
    int e = 0;
    while (e < m->experts.local && params_expert_weight(m->params, spy.part, P_EFC1, e).p != w.p)
        e++;
    if (e == m->experts.local)
        return;                        /* another layer's weight, as the shared expert's */
    spy.time[DISPATCH] += spy.gap;
    spy.gap = 0;
    if (!spy.forward || !x.rows)
        return;
    Arrived *to = &spy.arrived[e];
    Mat digits = mat(xcalloc((size_t)x.rows * DIGITS, sizeof(double)), x.rows, DIGITS, m->dim.real);
    x.cols = DIGITS;
    spy.real.copy(d, digits, x);
    to->row = xrealloc(to->row, (size_t)(to->n + x.rows) * sizeof *to->row);
    for (int64_t r = 0; r < x.rows; r++) {
        int64_t number = 0;
        for (int i = 0; i < DIGITS; i++) {
            const void *p = mat_at(digits, r, i);
            number = number * BASE + (int64_t)(m->dim.real == F64 ? *(const double *)p : *(const float *)p);
        }
        to->row[to->n++] = number;
    }
    free(digits.p);
}

/* Counts the time since the last op, when an op begins. */
static void begin(OpKind op)
{
    spy.gap += now() - spy.last;
    if (op == OPKIND_route_bwd) {      /* the rows are back */
        spy.time[RETURN] += spy.gap;
        spy.gap = 0;
    }
}

static void end(OpKind op, double start)
{
    spy.last = now();
    if (computes(op))
        spy.time[COMPUTE] += spy.last - start;
    else
        spy.gap += spy.last - start;
    if (op == OPKIND_route_fwd && spy.forward)     /* before, the router has worked */
        spy.gap = 0;
}

#define X(name, params, names) \
    static void seen_##name params \
    { \
        if (spy.inside++ == 0) \
            begin(OPKIND_##name); \
        double start = now(); \
        spy.real.name names; \
        if (--spy.inside == 0) \
            end(OPKIND_##name, start); \
    }
OPS(X)
#undef X

static void noted_linear_act_fwd(Device *d, Mat a, Mat h, Mat x, Mat w, Mat bias, ActKind kind)
{
    double start = now();
    spy.gap += start - spy.last;
    note_rows(d, x, w);
    spy.last = now();
    seen_linear_act_fwd(d, a, h, x, w, bias, kind);
}

static void watch(Device *d)
{
    spy.real = *d;
#define X(name, params, names) d->name = seen_##name;
    OPS(X)
#undef X
    d->linear_act_fwd = noted_linear_act_fwd;
}

/* ---- the oracle ---- */

static int by_number(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Gathers the rows' choices of all ranks whose rows may come here: [sources][R][1 + topk], a row's number and
 * its experts. *n: rows. On the heap. */
static int64_t *gather_choices(Model *m, const LayerActs *a, int64_t first, int64_t *n)
{
    Comm *ep = m->experts.ep, *etp = m->experts.etp;
    int64_t R = a->ln2.rows, k = m->experts.topk, each = R * (1 + k);
    int32_t *choice = xcalloc((size_t)(R * k) + 1, sizeof *choice);
    int64_t *mine = xcalloc((size_t)each + 1, sizeof *mine),
            *some = xcalloc((size_t)(each * ep->size) + 1, sizeof *some),
            *all = xcalloc((size_t)(each * ep->size * etp->size) + 1, sizeof *all);
    m->dev->get(m->dev, choice, a->choice, (size_t)(R * k) * sizeof *choice);
    for (int64_t r = 0; r < R; r++) {
        mine[r * (1 + k)] = first + r;
        for (int64_t j = 0; j < k; j++)
            mine[r * (1 + k) + 1 + j] = choice[r * k + j];
    }
    ep->wait(ep, ep->all_gather(ep, some, mine, each, I64));
    etp->wait(etp, etp->all_gather(etp, all, some, each * ep->size, I64));
    free(choice);
    free(mine);
    free(some);
    *n = R * ep->size * etp->size;
    return all;
}

/* Returns how many of this rank's experts have got other rows than those that chose them. */
static int64_t wrong_experts(Model *m, const LayerActs *a, int64_t first)
{
    int64_t n, k = m->experts.topk, wrong = 0, *all = gather_choices(m, a, first, &n);
    int64_t *due = xcalloc((size_t)n + 1, sizeof *due);
    for (int l = 0; l < m->experts.local; l++) {
        int64_t e = m->experts.ep->rank * m->experts.local + l, count = 0;
        Arrived *got = &spy.arrived[l];
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 1; j <= k; j++)
                if (all[i * (1 + k) + j] == e)
                    due[count++] = all[i * (1 + k)];
        qsort(due, (size_t)count, sizeof *due, by_number);
        if (got->n)
            qsort(got->row, (size_t)got->n, sizeof *got->row, by_number);
        wrong += count != got->n || (count && memcmp(due, got->row, (size_t)count * sizeof *due) != 0);
    }
    free(due);
    free(all);
    return wrong;
}

/* ---- a layer ---- */

/* Rows of a layer, and what its backward needs. */
typedef struct {
    Arena mem;
    Mat x, real;               /* [R,H] rows; the same as real */
    Mat y, dy, dx, stat;       /* [R,H]; real [R,2] */
    int64_t *sample;           /* [B] */
} BenchRows;

static void rows_open(BenchRows *s, Model *m, int64_t R, int64_t first)
{
    size_t bytes = (size_t)(R * m->dim.H) * 8 * 5 + (size_t)(R + m->now.B) * 16 + 4096;
    arena_open(&s->mem, "rows of experts", bytes);
    s->x = model_take(m, &s->mem, R, m->dim.H);
    s->real = mat_take(&s->mem, R, m->dim.H, m->dim.real);
    s->y = model_take(m, &s->mem, R, m->dim.H);
    s->dy = model_take(m, &s->mem, R, m->dim.H);
    s->dx = model_take(m, &s->mem, R, m->dim.H);
    s->stat = mat_take(&s->mem, R, 2, m->dim.real);
    s->sample = arena_take(&s->mem, (size_t)m->now.B * sizeof *s->sample);
    for (int64_t i = 0; i < R * m->dim.H; i++) {
        int64_t r = i / m->dim.H, col = i % m->dim.H, number = first + r;
        double x = rng_normal((uint64_t)m->cfg->seed, (uint64_t)first, (uint64_t)i);
        for (int64_t c = col; c < DIGITS; c++)
            x = (double)(c == DIGITS - 1 ? number % BASE : x), number /= BASE;
        if (m->dim.real == F64)
            *(double *)mat_at(s->real, r, col) = x;
        else
            *(float *)mat_at(s->real, r, col) = (float)x;
    }
    m->dev->copy(m->dev, s->x, s->real);
    m->dev->copy(m->dev, s->dy, s->real);
    for (int64_t r = 0; r < R * 2; r++)        /* mean 0, deviation 1 */
        if (m->dim.real == F64)
            ((double *)s->stat.p)[r] = (double)(r % 2);
        else
            ((float *)s->stat.p)[r] = (float)(r % 2);
}

/* Runs a layer forward and backward. Returns how many of its experts have got wrong rows. */
static int64_t run_layer(Model *m, const BenchRows *s, int part, int64_t first)
{
    SlotFD *fd = &m->slots.fd[0];
    LayerActs a = {.x = s->x, .x1 = s->x, .ln2 = s->x, .stat2 = s->stat};
    fd->mem.used = 0;
    fd->batch = (Batch){.batch = m->now.B, .seq = m->now.context.positions,
                        .runs = context_own(&m->now.context), .sample = s->sample};
    Pass p = {.batch = &fd->batch, .fd = fd, .keep_d = &fd->mem, .keep_w = &fd->mem, .late = &m->scratch};
    for (int l = 0; l < m->experts.local; l++)
        spy.arrived[l].n = 0;
    spy.part = part;
    spy.forward = 1;
    Comm *all = &m->grid->all;
    all->barrier(all);
    double start = spy.last = now();
    spy.gap = 0;
    moe_fwd(m, &p, part, &a, s->y);
    spy.time[RETURN] += spy.gap + now() - spy.last;
    spy.time[STEP] += now() - start;
    int64_t wrong = wrong_experts(m, &a, first);
    spy.forward = 0;
    all->barrier(all);
    start = spy.last = now();
    spy.gap = 0;
    moe_bwd(m, &p, part, &a, s->dx, s->dy);
    spy.time[STEP] += now() - start;
    return wrong;
}

/* ---- a workload ---- */

typedef struct {
    char *name;                        /* on the heap */
    double time[TIMES];                /* s of the fastest step, the longest of the ranks */
    double tokens;                     /* tokens/s */
    int64_t least, most, rounds, memory, wrong;        /* rows of a rank and layer, over all steps */
    double mean;
} Outcome;

static int64_t reduced(Comm *all, int64_t x, ReduceOp op)
{
    all->wait(all, all->all_reduce(all, &x, 1, I64, op));
    return x;
}

/* Does one step; adds its rows to *o, and keeps its times if it is the fastest. */
static void step(Run *r, Outcome *o, int64_t number, int64_t *layers)
{
    Model *m = &r->model;
    Comm *all = &r->grid.all;
    int64_t R = model_tokens(m) / m->tp.group.rows->size, first = all->rank * R;
    int64_t dp = r->grid.size[AXIS_DP], batch = m->now.B * dp;
    BenchRows s;
    rows_open(&s, m, R, first);
    for (int64_t b = 0; b < m->now.B; b++)
        s.sample[b] = number * batch + r->grid.index[AXIS_DP] * m->now.B + b;
    m->now.step = number;
    memset(spy.time, 0, sizeof spy.time);
    for (int part = 0; part < m->params->nparts; part++) {
        if (!model_is_moe(m, part))
            continue;
        o->wrong += run_layer(m, &s, part, first);
        int64_t n = 0;
        for (int l = 0; l < m->experts.local; l++)
            n += spy.arrived[l].n;
        o->least = n < o->least ? n : o->least;
        o->most = n > o->most ? n : o->most;
        o->mean += (double)n;
        o->rounds = m->experts.rounds > o->rounds ? m->experts.rounds : o->rounds;
        ++*layers;
    }
    arena_close(&s.mem);
    all->wait(all, all->all_reduce(all, spy.time, TIMES, F64, OP_MAX));
    if (number && (o->time[STEP] == 0 || spy.time[STEP] < o->time[STEP])) {    /* the first one warms up */
        memcpy(o->time, spy.time, sizeof o->time);
        o->tokens = (double)(batch * m->now.context.positions) / spy.time[STEP];
    }
}

static Outcome run_workload(Run *r, const Config *c, int steps)
{
    Outcome o = {.name = config_text(c, OPT_moe_router_force), .least = INT64_MAX};
    Comm *all = &r->grid.all;
    int64_t layers = 0;
    r->model.cfg = c;
    for (int64_t i = 0; i <= steps; i++)
        step(r, &o, i, &layers);
    o.least = -reduced(all, -o.least, OP_MAX);
    o.most = reduced(all, o.most, OP_MAX);
    o.rounds = reduced(all, o.rounds, OP_MAX);
    o.wrong = reduced(all, o.wrong, OP_SUM);
    o.memory = reduced(all, metrics_memory_resident(), OP_MAX);
    layers = reduced(all, layers, OP_SUM);
    all->wait(all, all->all_reduce(all, &o.mean, 1, F64, OP_SUM));
    o.mean /= layers ? (double)layers : 1;
    return o;
}

static json_t *outcome_json(const Outcome *o)
{
    return json_pack("{s:s s:b s:o s:o s:o s:o s:o s:I s:o s:I s:I s:I}", "routing", o->name, "ok", !o->wrong,
                     "dispatch_ms", json_number(1e3 * o->time[DISPATCH]), "compute_ms",
                     json_number(1e3 * o->time[COMPUTE]), "return_ms", json_number(1e3 * o->time[RETURN]),
                     "step_ms", json_number(1e3 * o->time[STEP]), "tokens_per_second", json_number(o->tokens),
                     "rows_least", (json_int_t)o->least, "rows_mean", json_number(o->mean), "rows_most",
                     (json_int_t)o->most, "rounds", (json_int_t)o->rounds, "memory_bytes",
                     (json_int_t)o->memory);
}

static void print(const Outcome *o)
{
    printf("%-9s %11.2f %11.2f %11.2f %11.2f %11.0f %8ld %10.1f %8ld %6ld %9.1f  %s\n", o->name,
           1e3 * o->time[DISPATCH], 1e3 * o->time[COMPUTE], 1e3 * o->time[RETURN], 1e3 * o->time[STEP],
           o->tokens, o->least, o->mean, o->most, o->rounds, (double)o->memory / 1e6,
           o->wrong ? textf("%ld experts got WRONG rows", o->wrong) : "");
}

static void check_config(const Config *c)
{
    const char *change = c->num_moe_experts == CFG_ABSENT     ? "num_moe_experts=N"
                         : c->device != DEVICE_CPU            ? "device=cpu"
                         : c->fp8 != FP8_NONE                 ? "fp8=none"
                         : !isnan(c->moe_expert_capacity_factor) ? "moe_expert_capacity_factor=null"
                         : c->overlap_moe_expert_parallel_comm
                             ? "overlap_moe_expert_parallel_comm=false"
                         : c->recompute_granularity == RECOMPUTE_GRANULARITY_FULL
                             ? "recompute_granularity=none"
                         : c->data_parallel_sharding_strategy >= DATA_PARALLEL_SHARDING_STRATEGY_OPTIM_GRADS
                             ? "data_parallel_sharding_strategy=optim"
                         : c->hidden_size < DIGITS ? "hidden_size=4 or more" : NULL;
    if (change)
        die(EXIT_CONFIG, "experts", "train experts runs layers with experts alone, on CPUs, in no FP8, with "
            "all rows, in turn, kept, over parameters that each rank has; change: %s", change);
}

int command_experts(int argc, char **argv)
{
    static const char *const rules[] = {"uniform", "zipf", "hot", "changing"};
    Args a = cli_open("experts", argc, argv);
    int json = args_switch(&a, "--json"), steps = (int)args_number(&a, "--steps"), n = 0, ok = 1;
    const char *path = cli_next(&a, "CONFIG");
    cli_end(&a);
    int nkeys;
    char *force[4] = {0}, **keys = start_args(path, a.n, a.v, &nkeys);
    const Config *c = start_config(path, &a, USE_MODEL), *rule[4] = {c};
    check_config(c);
    for (; n < 4 && (c->moe_router_force == MOE_ROUTER_FORCE_NONE || !n); n++)
        if (c->moe_router_force == MOE_ROUTER_FORCE_NONE) {
            keys[nkeys] = force[n] = xasprintf("moe_router_force=%s", rules[n]);
            rule[n] = config_load(path, nkeys + 1, keys, c->world, USE_MODEL);
        }
    static Run r;                      /* lives as long as the process */
    run_open(&r, c, RUN_GRADIENT, 0, NULL);
    spy.m = &r.model;
    spy.arrived = xcalloc((size_t)r.model.experts.local, sizeof *spy.arrived);
    watch(&r.dev);
    model_begin(&r.model, &run_lists(&r, config_batch_at(c, 0))->train, c->micro_batch_size, c->seq_length,
                1);
    int speaks = r.grid.rank == 0;
    json_t *list = json_array();
    if (speaks && !json)
        printf("%-9s %11s %11s %11s %11s %11s %8s %10s %8s %6s %9s\n", "routing", "dispatch ms", "compute ms",
               "return ms", "step ms", "tokens/s", "rows min", "mean", "max", "rounds", "MB");
    for (int i = 0; i < n; i++) {
        Outcome o = run_workload(&r, rule[i], steps);
        ok &= !o.wrong;
        json_array_append_new(list, outcome_json(&o));
        if (speaks && !json)
            print(&o);
        free(o.name);
        free(force[i]);
    }
    if (speaks && json)
        json_print(stdout, json_pack("{s:b s:o s:O}", "ok", ok, "layout", start_layout(c), "workloads", list),
                   JSON_INDENT(2));
    else if (speaks && ok)
        printf("every row arrived where it was sent\n");
    json_decref(list);
    r.dev = spy.real;
    run_close(&r);
    return ok ? EXIT_DONE : EXIT_COMPARE;
}
