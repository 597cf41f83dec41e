/* train sweep -- the command: its arguments and its output */
#define _GNU_SOURCE
#include "calibrate.h"
#include "commands.h"
#include "config_table.h"
#include "file.h"
#include "hints.h"
#include "job.h"
#include "json_number.h"
#include "result_file.h"
#include "run.h"
#include "start.h"
#include "sweep.h"
#include "sweep_smallest.h"
#include <ctype.h>
#include <jansson.h>
#include <unistd.h>

/* How often a machine that has changed is calibrated again by one command. */
enum { CALIBRATIONS = 2 };

/* ---- arguments ---- */

/* Keys in which layouts differ; the command line may fix each of them. alone: its setting on one rank. */
static const struct { int option; unsigned fixed; const char *alone;
} swept[] = {{OPT_tensor_model_parallel_size, FIXED_TP, "tensor_model_parallel_size=1"},
             {OPT_sequence_parallel, FIXED_ROWS, "sequence_parallel=false"},
             {OPT_pipeline_model_parallel_size, FIXED_PP, "pipeline_model_parallel_size=1"},
             {OPT_num_virtual_stages_per_pipeline_rank, FIXED_V, "num_virtual_stages_per_pipeline_rank=null"},
             {OPT_context_parallel_size, FIXED_CP, "context_parallel_size=1"},
             {OPT_expert_model_parallel_size, FIXED_EP, "expert_model_parallel_size=1"},
             {OPT_expert_tensor_parallel_size, FIXED_ETP, "expert_tensor_parallel_size=null"},
             {OPT_data_parallel_sharding_strategy, FIXED_ZERO, "data_parallel_sharding_strategy=no_shard"},
             {OPT_overlap_grad_reduce, FIXED_GRADS, "overlap_grad_reduce=false"},
             {OPT_overlap_param_gather, FIXED_PARAMS, "overlap_param_gather=false"},
             {OPT_micro_batch_size, FIXED_MICRO, "micro_batch_size=1"},
             {OPT_recompute_granularity, FIXED_RECOMPUTE, "recompute_granularity=none"},
             {OPT_pipeline_schedule, 0, "pipeline_schedule=1f1b"},
             {OPT_recompute_method, 0, "recompute_method=none"},
             {OPT_recompute_num_layers, 0, "recompute_num_layers=null"}};
enum { SWEPT = sizeof swept / sizeof *swept };

/* The option of "key=value"; -1: there is none of that name. */
static int option_of(const char *arg)
{
    char *key = text_copy(arg);
    key[strcspn(key, "=")] = 0;
    return option_find(key);
}

static int swept_at(int option)
{
    for (int i = 0; i < SWEPT; i++)
        if (swept[i].option == option)
            return i;
    return -1;
}

/* The configuration without the sizes that layouts get, and its command line. modules: bool, as in Sweep. */
typedef struct { const Config *c; char **line; int n, alone, modules; } Rest;

/* The setting of swept[i] on one rank; recompute_modules needs another than none. */
static char *alone_at(const Rest *r, int i)
{
    int modules = swept[i].option == OPT_recompute_granularity && r->modules;
    return (char *)(modules ? "recompute_granularity=selective" : swept[i].alone);
}

/* Leaves out the sizes of the command line; where those of the file break a rule, sizes of one rank take
 * their place (alone). */
static Rest load_rest(const Sweep *s)
{
    Rest r = {.line = keep_alloc((size_t)s->nargs + SWEPT + 1, sizeof *r.line)};
    Check as_is;
    for (int i = 0; i < s->nargs; i++) {
        int option = option_of(s->args[i]);
        if (option == OPT_micro_batch_size)        /* asked for where layouts are measured */
            r.line[r.n++] = "micro_batch_size=1";
        else if (swept_at(option) < 0 || option == OPT_pipeline_schedule)
            r.line[r.n++] = s->args[i];
    }
    r.line[r.n++] = "memory_save_interval=null";   /* as in every launch, which nothing restarts */
    config_check(&as_is, s->path, r.n, r.line, WORLD_SMALLEST, s->measure ? USE_TRAIN : USE_MODEL);
    r.alone = as_is.n + as_is.dropped > 0;
    r.modules = as_is.cfg->recompute_modules.n > 0;
    for (int i = 0; i < SWEPT && r.alone; i++)
        r.line[r.n++] = alone_at(&r, i);
    r.c = start_load(s->path, r.n, r.line, WORLD_SMALLEST, s->measure ? USE_TRAIN : USE_MODEL);
    return r;
}

/* Returns the configuration with these sizes. Dies when one of them is no value of its key. */
static const Config *read_fixed(const Sweep *s)
{
    Check k;
    config_check(&k, s->path, s->nargs, s->args, WORLD_SMALLEST, USE_MODEL);
    for (int i = 0; i < SWEPT; i++)
        if (k.bad[swept[i].option])
            return config_load(s->path, s->nargs, s->args, WORLD_SMALLEST, USE_MODEL);
    return k.cfg;
}

/* Moves key=value of swept keys from the arguments to s->fixed: a job gets these keys from its layout.
 * rest->alone: layouts stand over sizes of one rank, not over the file's. */
static void take_fixed(Sweep *s, const Rest *rest)
{
    int kept = 0;
    char **args = keep_alloc((size_t)s->nargs + SWEPT, sizeof *args);
    const Config *c = read_fixed(s);
    s->fixed = c->cp_comm_type.n > 1 ? FIXED_KIND : 0;         /* a kind for each layer */
    s->only = (SweepLayout){.tp = (int)c->tensor_model_parallel_size,
                            .rows = c->sequence_parallel,
                            .pp = (int)c->pipeline_model_parallel_size,
                            .v = (int)c->num_virtual_stages_per_pipeline_rank,
                            .cp = (int)c->context_parallel_size,
                            .ep = (int)c->expert_model_parallel_size,
                            .zero = c->data_parallel_sharding_strategy,
                            .micro = (int)c->micro_batch_size,
                            .recompute = c->recompute_granularity,
                            .overlap = c->overlap_param_gather
                                           ? c->overlap_grad_reduce ? OVERLAP_ALL : OVERLAP_PARAMS
                                       : c->overlap_grad_reduce ? OVERLAP_GRADS
                                                                : OVERLAP_NONE};
    if (c->given[OPT_pipeline_schedule])
        s->schedule = options[OPT_pipeline_schedule].choices[c->pipeline_schedule];
    for (int i = 0; i < s->nargs; i++) {
        int option = option_of(s->args[i]), at = swept_at(option);
        if (option == OPT_recompute_method || option == OPT_recompute_num_layers)
            die(EXIT_CONFIG, "sweep", "train sweep recomputes whole layers one by one and has no use for %s; "
                "change: leave it out", options[option].key);
        if (option == OPT_cp_comm_type || option == OPT_hierarchical_context_parallel_sizes)
            s->fixed |= FIXED_KIND;            /* they stay in the arguments: layouts do not name them */
        if (option == OPT_expert_tensor_parallel_size)
            s->only.etp = (int)c->expert_tensor_parallel_size;
        if (at >= 0)
            s->fixed |= swept[at].fixed;
        else
            args[kept++] = s->args[i];
    }
    for (int i = 0; i < SWEPT && rest->alone; i++)
        args[kept++] = alone_at(rest, i);
    s->args = args;
    s->nargs = kept;
}

/* Returns a hash of everything that measured rows depend on: build, world, and all keys that are set
 * other than the swept ones. */
static uint64_t identity_of(const Sweep *s, const Config *c)
{
    const char *build = config_build_id();
    uint64_t h = hash64(build, strlen(build) + 1, hash64(&s->world, sizeof s->world, HASH_SEED));
    for (int i = 0; i < OPTIONS; i++)
        if (c->given[i] && (swept_at(i) < 0 || i == OPT_pipeline_schedule))
            h = config_hash_key(c, i, h);
    return h;
}

/* Dies if no batch size is given: it would follow from the layout. */
static void check_config(const Sweep *s, const Rest *r)
{
    const Config *c = r->c;
    Check twice;
    config_check(&twice, s->path, r->n, r->line, 2 * c->world, USE_MODEL);
    if (twice.cfg->batch_steps == 1 && twice.cfg->batch_step[0].batch != c->batch_step[0].batch)
        die(EXIT_CONFIG, "sweep", "%s says no batch size: each layout would have another one, and steps that "
            "do not compare; change: global_batch_size=N", c->path);
}

/* Dies if the corpus that the launches read cannot be used. */
static void check_corpus(const Config *c)
{
    Positions all = positions_one(0, c->seq_length);
    loader_close(loader_open(c, SPLIT_TRAIN, start_samples(c, c->batch_step[c->batch_steps - 1].batch), 0, 1,
                             &all, &sharers_none));
}

enum { WORLDS = 64, WORLD_MOST = 65536 };

/* Reads the ranks of --world N or N,N,...; without it the tasks of a Slurm allocation, else 1.
 *   world  out  [WORLDS]  in the order given
 * Returns their number. given: bool, out: the command line says them. */
static int worlds_of(Args *a, int world[WORLDS], int *given)
{
    const char *tasks = getenv("SLURM_NTASKS"), *list = args_value(a, "--world"), *c = list;
    int n = 0;
    *given = list != NULL;
    if (!list) {
        world[0] = tasks && atoi(tasks) > 0 ? atoi(tasks) : 1;
        return 1;
    }
    do {
        char *end;
        long w = isdigit((unsigned char)*c) ? strtol(c, &end, 10) : 0;
        int ok = w >= 1 && w <= WORLD_MOST && (*end == ',' || !*end) && n < WORLDS;
        for (int i = 0; i < n; i++)
            ok &= world[i] != w;
        if (!ok)
            die(EXIT_CONFIG, "usage",
                "train sweep --world %s: expected numbers of ranks from 1 to %d, each once, "
                "at most %d of them with commas between; change: for example --world 8,16,32",
                list, WORLD_MOST, WORLDS);
        world[n++] = (int)w;
        c = *end ? end + 1 : NULL;
    } while (c);
    return n;
}

static Objective objective_of(Args *a)
{
    const char *name = args_value(a, "--objective");
    for (int i = 0; i < OBJECTIVES; i++)
        if (!name || !strcmp(name, objective_name[i]))
            return (Objective)i;
    int guess = choice_suggest(name, objective_name);
    die(EXIT_CONFIG, "usage", "train sweep --objective %s: expected tokens, cost or energy; change: %s", name,
        guess < 0 ? "one of these" : textf("--objective %s", objective_name[guess]));
}

/* Returns K of --measure K; SWEEP_ALL for `all`. */
static int measure_of(Args *a)
{
    for (int i = 0; i + 1 < a->n; i++)
        if (!strcmp(a->v[i], "--measure") && !strcmp(a->v[i + 1], "all"))
            return args_value(a, "--measure"), (int)SWEEP_ALL;
    return (int)args_number(a, "--measure");
}

/* Without --machine: measures this host, once for this model, and keeps the result in the sweep's folder.
 * again: bool: measures it even if there is a result, which the new one replaces. */
static void find_machine(Sweep *s, const Config *c, int again)
{
    if (s->machine && !again)
        return;
    s->calibrations = again ? s->calibrations - 1 : CALIBRATIONS;
    if (!again)
        s->machine = textf("%s/machine-%08x.yaml", s->dir, (unsigned)(s->identity ^ s->identity >> 32));
    if (!again && !access(s->machine, R_OK))
        return;
    char **line = xcalloc((size_t)s->nargs + 5, sizeof *line);
    int n = 0;
    line[n++] = "plan";
    line[n++] = (char *)s->path;
    for (int i = 0; i < s->nargs; i++)
        line[n++] = s->args[i];
    line[n++] = "--calibrate";
    line[n++] = "--machine";
    line[n++] = (char *)s->machine;
    fprintf(stderr, again ? "product and copy have changed apart: measuring this machine again\n"
                          : "measuring this machine\n");
    calibrate(c, s->machine, n, line);
    free(line);
}

/* ---- output ---- */

static json_t *number(double x) { return x > 0 ? json_number(x) : json_null(); }

static json_t *row_of(const Sweep *s, const SweepLayout *l)
{
    static const char *const kinds[TIMES] = {"predicted", "measured"};
    int known = l->state != LAYOUT_LARGER;
    char kind[24];
    json_t *j = json_pack("{s:i s:i s:i s:b s:i s:i s:i s:s s:i s:i s:i s:s s:i s:s s:b s:b}", "world",
                          l->world, "global_batch_size", (int)l->batch, "tp", l->tp, "sp", l->rows, "pp",
                          l->pp, "v", l->v, "cp", l->cp, "cp_comm_type", layout_kind(s, l, kind), "ep", l->ep,
                          "etp", l->etp, "dp", l->dp, "zero", layout_zero[l->zero], "micro_batch_size",
                          l->micro, "recompute", layout_recompute[l->recompute], "overlap_grad_reduce",
                          overlap_grads(l->overlap), "overlap_param_gather", overlap_params(l->overlap));
    json_object_update_new(j, json_pack("{s:o s:o s:o s:o s:o s:b s:i s:o s:o s:b s:s}", "predicted_ms",
                                        number(l->predicted), "measured_ms", number(layout_measured(l)),
                                        "measured_low_ms", number(l->measured.low), "measured_high_ms",
                                        number(l->measured.high), "measured_raw_ms", number(l->raw),
                                        "measured_equal", l->equal, "rounds", l->rounds, "bubble",
                                        known ? json_number(l->bubble) : json_null(), "memory",
                                        known ? json_integer((json_int_t)l->memory) : json_null(), "fits",
                                        l->state == LAYOUT_FITS, "state", layout_state(l)));
    for (int i = 0; i < RATES * TIMES; i++)
        json_object_set_new(j, textf("%s_%s", kinds[i % TIMES], rate_name[i / TIMES]),
                            json_number(layout_rate(s, l, (RateKind)(i / TIMES), (TimeKind)(i % TIMES))));
    return j;
}

/* Returns the winner's settings as arguments of `train`. */
static json_t *winner_of(const Sweep *s)
{
    const SweepLayout *l = sweep_best(s);
    LayoutArg text[LAYOUT_ARGS];
    json_t *args = json_array();
    for (int i = 0, n = l ? layout_args(s, l, text) : 0; i < n; i++)
        json_array_append_new(args, json_string(text[i]));
    if (l && s->weak)
        json_array_append_new(args, json_string(textf("global_batch_size=%lld", (long long)l->batch)));
    return args;
}

/* Finds the hints of the winner; returns their number. */
static int winner_hints(const Sweep *s, Hint hint[HINTS])
{
    const SweepLayout *l = sweep_best(s);
    LayoutArg text[LAYOUT_ARGS];
    Check k;
    if (!l)
        return 0;
    int n = s->nargs, more = layout_args(s, l, text);
    char **line = keep_alloc((size_t)(n + more) + 1, sizeof *line);
    memcpy(line, s->args, (size_t)n * sizeof *line);
    for (int i = 0; i < more; i++)
        line[n++] = text[i];
    line[n++] = (char *)textf("global_batch_size=%lld", (long long)l->batch);
    config_check(&k, s->path, n - !s->weak, line, l->world, USE_MODEL);
    BUG_ON(k.n || k.dropped);
    return hints(hint, &(HintAsk){s->path, n - !s->weak, l->world, line, k.cfg, machine_load(s->machine),
                                  (int)(l->batch / l->dp / l->micro), l->bubble, l->predicted / 1e3});
}

/* The worlds, and how the best layout of each does. */
static json_t *worlds_json(const Sweep *s)
{
    json_t *list = json_array();
    for (int i = 0; i < s->nworlds; i++) {
        const SweepWorld *w = &s->worlds[i];
        const SweepLayout *p = sweep_best_of(s, w->world, PREDICTED);
        json_array_append_new(
            list, json_pack("{s:i s:I s:i s:i s:I s:o s:o s:o}", "world", w->world, "global_batch_size",
                            (json_int_t)w->batch, "legal", w->legal, "fit", w->fit, "memory_of_a_rank",
                            (json_int_t)w->room, "best_predicted_ms", number(p ? p->predicted : 0),
                            "predicted_tokens_per_second",
                            p ? json_number(layout_rate(s, p, RATE_TOKENS, PREDICTED)) : json_null(),
                            "predicted_efficiency_percent",
                            p ? json_number(layout_rate(s, p, RATE_EFFICIENCY, PREDICTED)) : json_null()));
    }
    return list;
}

static json_t *as_json(const Sweep *s, const Hint *hint, int n)
{
    json_t *rows = json_array();
    for (int i = 0; i < s->n; i++)
        json_array_append_new(rows, row_of(s, &s->layout[i]));
    int one = s->nworlds == 1;
    json_t *lines = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(lines, json_string(hint[i].text));
    return json_pack("{s:o s:s s:s s:I s:I s:o s:i s:i s:o s:o s:o s:o}", "world",
                     one ? json_integer(s->world) : json_null(), "machine", s->machine, "objective",
                     objective_name[s->objective], "global_batch_size", (json_int_t)s->batch, "seq_length",
                     (json_int_t)s->seq, "memory_of_a_rank",
                     one ? json_integer((json_int_t)s->worlds[0].room) : json_null(), "legal", s->n, "fit",
                     s->fit, "winner", winner_of(s), "hints", lines, "worlds", worlds_json(s), "layouts",
                     rows);
}

/* Prints the average error of the prediction, and how much worse its best layout is than the best one. */
static void print_errors(const Sweep *s)
{
    double sum = 0, slow = 0;
    const SweepLayout *best = NULL, *chosen = NULL;
    int n = 0, equal = 0;
    for (int i = 0; i < s->n; i++) {
        const SweepLayout *l = &s->layout[i];
        double measured = layout_measured(l) * l->weight, predicted = l->predicted * l->weight;
        if (!(measured > 0))
            continue;
        sum += fabs(predicted / measured - 1);
        slow += log(l->raw / layout_measured(l));
        best = !best || measured < layout_measured(best) * best->weight ? l : best;
        chosen = !chosen || predicted < chosen->predicted * chosen->weight ? l : chosen;
        equal += l->equal;
        n++;
    }
    if (!n)
        return;
    printf("%d measured: predictions are off by %.1f %% on average; the layout predicted to be best takes "
           "%.1f %% more than the best%s\n", n, 100 * sum / n,
           100 * (layout_measured(chosen) * chosen->weight / (layout_measured(best) * best->weight) - 1),
           chosen->world == best->world && chosen->equal ? ", within its spread" : "");
    printf("measured in units of the reference: by the clock, steps took %.2f times as long as %s; %d as "
           "fast as the best%s within the spread (=)\n", exp(slow / n),
           s->calibrated ? "while the machine was calibrated" : "in the middle launch", equal,
           s->nworlds > 1 ? " of their world" : "");
}

/* Whether some layouts share a sequence out. */
static int any_context(const Sweep *s)
{
    int any = 0;
    for (int i = 0; i < s->n; i++)
        any |= s->layout[i].cp > 1;
    return any;
}

/* Whether the table has a column: those that several worlds or an objective ask for. */
static int shows_rate(const Sweep *s, RateKind rate)
{
    return sweep_has_rate(s, rate) && (s->nworlds > 1 ? rate <= RATE_EFFICIENCY : 0) +
           (rate == RATE_COST && s->objective == OBJECTIVE_COST) +
           (rate == RATE_ENERGY && s->objective == OBJECTIVE_ENERGY);
}

/* What follows from predicted times and, where there are any, from measured ones. */
static void print_rates(const Sweep *s, const SweepLayout *l, int measured)
{
    for (int i = 0; i < RATES; i++)
        for (int kind = 0; kind <= measured && shows_rate(s, (RateKind)i); kind++) {
            double x = l ? layout_rate(s, l, (RateKind)i, (TimeKind)kind) : NAN;
            const char *number = l ? isfinite(x) ? textf(rate_format[i], x) : ""
                                   : textf("%s%s", kind ? "measured " : "", rate_title[i]);
            printf(" %*s", kind ? 27 : 18, number);
        }
}

static int any_measured(const Sweep *s)
{
    int any = 0;
    for (int i = 0; i < s->n; i++)
        any |= layout_measured(&s->layout[i]) > 0;
    return any;
}

static void print_row(const Sweep *s, const SweepLayout *l)
{
    char measured[32] = "", spread[32] = "", predicted[32] = "", context[32] = "", experts[32] = "";
    char world[16] = "", kind[24];
    if (layout_measured(l) > 0) {
        snprintf(measured, sizeof measured, "%s%.1f", l->equal ? "= " : "", layout_measured(l));
        snprintf(spread, sizeof spread, "%.1f-%.1f", l->measured.low, l->measured.high);
    }
    if (l->predicted > 0)
        snprintf(predicted, sizeof predicted, "%.1f", l->predicted);
    if (any_context(s))
        snprintf(context, sizeof context, " %4d %-12s", l->cp, layout_kind(s, l, kind));
    if (s->experts)
        snprintf(experts, sizeof experts, " %4d %4d", l->ep, l->etp);
    if (s->nworlds > 1)
        snprintf(world, sizeof world, " %6d", l->world);
    printf(" %s %4d %3s%s%s %4d %3d %4d  %-18s %-13s %5d  %-9s %12s %12s %13s %8.1f %9.2f", world, l->tp,
           l->rows ? "yes" : "", context, experts, l->pp, l->v, l->dp, layout_zero[l->zero],
           layout_overlap[l->overlap], l->micro, layout_recompute[l->recompute], predicted, measured,
           spread, 100 * l->bubble, (double)l->memory / (1 << 30));
    print_rates(s, l, any_measured(s));
    printf("  %s\n", layout_failed(l) || l->state != LAYOUT_FITS ? layout_state(l) : "");
}

/* Prints a line for each of several worlds: its best layout. */
static void print_worlds(const Sweep *s)
{
    int measured = any_measured(s);
    printf("worlds     their best layouts, %s\n  %8s %10s %8s %8s %14s %14s %10s%s\n",
           s->weak ? "the batch growing with the world (weak scaling)"
                   : "all with the same batch (strong scaling)", "ranks", "sequences", "legal",
           "fit", "predicted ms", "tokens/s", "efficiency", measured ? "   measured ms efficiency" : "");
    for (int i = 0; i < s->nworlds; i++) {
        const SweepWorld *w = &s->worlds[i];
        const SweepLayout *p = sweep_best_of(s, w->world, PREDICTED),
                          *m = sweep_best_of(s, w->world, MEASURED);
        printf("  %8d %10lld %8d %8d", w->world, (long long)w->batch, w->legal, w->fit);
        if (p)
            printf(" %14.1f %14.0f %8.1f %%", p->predicted, layout_rate(s, p, RATE_TOKENS, PREDICTED),
                   layout_rate(s, p, RATE_EFFICIENCY, PREDICTED));
        if (m)
            printf(" %13.1f %8.1f %%", layout_measured(m), layout_rate(s, m, RATE_EFFICIENCY, MEASURED));
        printf("\n");
    }
}

/* Prints the best layouts and all measured ones. */
static void print(const Sweep *s)
{
    enum { SHOWN = 20 };
    for (int i = 0; i < s->nworlds; i++) {
        const SweepWorld *w = &s->worlds[i];
        printf("%d legal layouts of %d ranks; %d fit %.1f GiB a rank%s, predicted for %s\n", w->legal,
               w->world, w->fit, w->room / (1 << 30),
               w->reserve ? textf(" beside %.3g GiB for libraries", (double)w->reserve / (1 << 30)) : "",
               s->machine);
    }
    if (!s->fit)
        printf("none fits; this one needs least:\n");
    printf(" %s %4s %3s%s%s %4s %3s %4s  %-18s %-13s %5s  %-9s %12s %12s %13s %8s %9s",
           s->nworlds > 1 ? "  ranks" : "", "tp", "sp", any_context(s) ? "   cp             " : "",
           s->experts ? "   ep  etp" : "", "pp", "v", "dp", "sharding", "overlap", "micro", "recompute",
           "predicted ms", "measured ms", "spread", "bubble %", "GiB");
    print_rates(s, NULL, any_measured(s));
    printf("\n");
    for (int i = 0, shown = 0; i < s->n && (i < s->fit || !i); i++) {
        const SweepLayout *l = &s->layout[i];
        if (shown++ < SHOWN || layout_measured(l) > 0 || layout_failed(l))
            print_row(s, l);
    }
    if (s->fit > SHOWN)
        printf("  best %d of %d, and all that were tried; the files below have every layout\n", SHOWN, s->n);
    if (s->nworlds > 1)
        print_worlds(s);
    print_errors(s);
}

static void write_file(const Sweep *s, const char *path, void (*put)(FILE *f, const Sweep *s))
{
    FILE *f = result_open(path);
    put(f, s);
    result_close(f, path);
}

static void answer(const Sweep *s, int json, const char *csv)
{
    const char *page = textf("%s/sweep.html", s->dir), *data = textf("%s/sweep.json", s->dir),
               *table = csv ? csv : textf("%s/sweep.csv", s->dir);
    Hint hint[HINTS];
    int hinted = winner_hints(s, hint);
    json_t *j = as_json(s, hint, hinted);
    write_file(s, page, sweep_page);
    write_file(s, table, sweep_csv);
    FILE *f = result_open(data);
    json_dumpf(j, f, JSON_INDENT(1));
    result_close(f, data);
    if (json) {
        json_dumpf(j, stdout, JSON_INDENT(2));
        printf("\n");
    } else {
        print(s);
        printf("written: %s, %s, %s\n", page, table, data);
        sweep_winner(stdout, s);
        for (int i = 0; i < hinted; i++)
            printf("hint       %s\n", hint[i].text);
    }
    json_decref(j);
}

/* ---- the command ---- */

/* Dies: no layout of any world is legal. */
static void die_illegal(const Sweep *s, const int *world, int n)
{
    char list[WORLDS * 7] = "";
    for (int i = 0; i < n; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%d", i ? ", " : "", world[i]);
    die(EXIT_CONFIG, "sweep",
        "no layout of %s ranks is legal for %s with a batch of %lld%s; change: --world, "
        "the batch size%s; `train plan` with one layout says which rule it breaks",
        list, s->path, (long long)s->batch, s->fixed ? " and the sizes given" : "",
        s->fixed ? " or a size that is given" : "");
}

/* With --weak-scaling: gives the world a batch that is to that of the smallest world as the worlds are. */
static void scale_batch(Sweep *s, const Config *c, const int *world, int n)
{
    int least = world[0];
    for (int i = 1; i < n; i++)
        least = world[i] < least ? world[i] : least;
    int64_t batch = c->batch_step[c->batch_steps - 1].batch;
    if (c->batch_steps > 1 || batch * s->world % least)
        die(EXIT_CONFIG, "sweep",
            "--weak-scaling cannot give %d ranks %d/%d of the batch of %lld sequences; "
            "change: a global_batch_size that divides so, without step_batch_size_schedule",
            s->world, s->world, least, (long long)batch);
    s->args[s->nargs++] = textf("global_batch_size=%lld", (long long)(batch * s->world / least));
    s->batch = batch * s->world / least;
}

/* Plans and measures one world, and joins it to all others. Returns 1, and joins nothing, when it had to
 * calibrate the machine again: the worlds before this one are predicted with the old calibration. */
static int do_world(Sweep *all, const Sweep *common, const Rest *rest, const int *world, int n, int i)
{
    Sweep one = *common;
    one.world = world[i];
    one.args = keep_alloc((size_t)common->nargs + 1, sizeof *one.args);
    memcpy(one.args, common->args, (size_t)common->nargs * sizeof *one.args);
    if (one.weak)
        scale_batch(&one, rest->c, world, n);
    one.identity = hash64(&one.batch, sizeof one.batch, identity_of(&one, rest->c));
    find_machine(&one, rest->c, 0);
    sweep_prices(&one, all->price);
    sweep_plan(&one, rest->c);
    int again = sweep_measure(&one);
    if (again)
        find_machine(&one, rest->c, 1);
    else
        sweep_join(all, &one);
    all->machine = one.machine;
    all->calibrations = one.calibrations;
    all->calibrated = one.calibrated;
    all->batch = all->nworlds == 1 ? one.batch : all->batch;
    all->watts = one.watts;
    free(one.layout);
    return again;
}

/* Plans and measures all worlds with one calibration. After a new one it begins again with the first world;
 * launches that the new one fits are taken from the file. */
static void do_worlds(Sweep *all, Sweep *common, const Rest *rest, const int *world, int n)
{
    *all = *common;
    for (int i = 0; i < n; i++) {
        int again = do_world(all, common, rest, world, n, i);
        common->machine = all->machine;
        common->calibrations = all->calibrations;
        if (again) {
            free(all->layout);
            free(all->worlds);
            *all = *common;
            i = -1;
        }
    }
}

int command_sweep(int argc, char **argv)
{
    Args a = cli_open("sweep", argc, argv);
    char why[WHY];
    int json = args_switch(&a, "--json"), rank, world[WORLDS], given;
    int n = worlds_of(&a, world, &given), smallest = args_switch(&a, "--smallest-world");
    const char *csv = args_value(&a, "--csv"), *dir = args_value(&a, "-o");
    Sweep s = {.machine = args_value(&a, "--machine"), .world = world[0], .measure = measure_of(&a),
               .steps = (int)args_number(&a, "--steps"), .rounds = (int)args_number(&a, "--rounds"),
               .timeout = args_number(&a, "--timeout"), .weak = args_switch(&a, "--weak-scaling"),
               .objective = objective_of(&a), .price = args_number(&a, "--price"), .watts = NAN};
    s.path = cli_next(&a, "CONFIG");
    cli_end(&a);
    s.given = a.v;
    s.ngiven = a.n;
    s.args = start_args(s.path, a.n, a.v, &s.nargs);
    if (job_launched(&rank) > 1)
        die(EXIT_CONFIG, "usage",
            "train sweep starts its ranks itself; change: start it alone, with --world N");
    Rest rest = load_rest(&s);
    const Config *c = rest.c;
    check_config(&s, &rest);
    s.batch = c->batch_step[c->batch_steps - 1].batch;
    s.seq = c->seq_length;
    s.experts = c->num_moe_experts == CFG_ABSENT ? 0 : c->num_moe_experts;
    s.modules = rest.modules;
    take_fixed(&s, &rest);
    char *own = dir ? NULL : xasprintf("%s-sweep", c->save);
    s.dir = dir ? dir : own;
    if (smallest) {
        sweep_smallest(&s, c, given ? world : NULL, n, json);
        free(own);
        free(a.v);
        return EXIT_DONE;
    }
    cli_may_write("--csv", csv);
    if (s.measure)
        check_corpus(c);
    if (!file_make_dirs(s.dir, why))
        die(EXIT_RESOURCE, "write", "%s; change: -o with a folder that you may write to", why);
    sweep_open(&s);
    Sweep all;
    do_worlds(&all, &s, &rest, world, n);
    if (!all.n)
        die_illegal(&all, world, n);
    sweep_prices(&all, all.price);
    sweep_compare(&all);
    answer(&all, json, csv);
    close(s.rows);
    free(all.layout);
    free(all.worlds);
    free(own);
    free(a.v);
    return EXIT_DONE;
}
