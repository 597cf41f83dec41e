/* train replay -- a step that went wrong, once more: the newest checkpoint before it, the steps from there
 * on, and then its batch as a whole and microbatch by microbatch */
#include "commands.h"
#include "json_number.h"
#include "kept.h"
#include "start.h"
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What a batch, or one of its microbatches, does at the state before the step. */
typedef struct {
    int64_t first, samples;
    double loss, norm, most;   /* most: norm of the gradient of `tensor` */
    char tensor[160];          /* the first that is not finite, else the one with the largest gradient */
} Seen;

typedef struct {
    const char *dir;           /* the run directory */
    Kept kept;
    char *from;                /* checkpoint that the replay starts at; NULL: the run's beginning */
    int64_t steps;             /* steps that it runs before the kept one */
    int changed;               /* bool: the corpus has other tokens than the run had */
    Seen whole, *part;         /* [parts] */
    int parts;
} Replay;

/* ---- the state before the step ---- */

/* The newest checkpoint of the run before `iteration`; NULL: there is none. */
static char *newest_before(const char *dir, int64_t iteration)
{
    char *folder = xasprintf("%s/checkpoints", dir), *found = NULL;
    long long most = -1;
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        long long i;
        int end = 0;
        if (sscanf(e->d_name, "iter_%lld%n", &i, &end) != 1 || e->d_name[end] || i >= iteration || i <= most)
            continue;
        char *path = xasprintf("%s/%s", folder, e->d_name);
        if (checkpoint_exists(path)) {
            most = i;
            free(found);
            found = path;
        } else {
            free(path);
        }
    }
    if (d)
        closedir(d);
    free(folder);
    return found;
}

/* Whether the run began from another place than its own folder. What is not there any more is another. */
static int began_elsewhere(const Config *c, const char *dir)
{
    struct stat a, b;
    if (!c->load || !strcmp(c->load, "latest") || !strcmp(c->load, c->save))
        return 0;
    return stat(c->load, &a) || stat(dir, &b) || a.st_dev != b.st_dev || a.st_ino != b.st_ino;
}

/* Dies unless the kept step may begin at sample `starts`. Collective. */
static void same_place(const Replay *p, Run *r, int may, int64_t starts)
{
    all_ok(&r->grid.all, may, EXIT_CONFIG, "replay",
           "%s: iteration %lld starts at sample %lld, and the kept one did at %lld; change: the batch sizes "
           "of the run", p->dir, (long long)p->kept.iteration, (long long)starts, (long long)p->kept.first);
}

/* Opens the run as it was before the kept step. Collective. */
static void go_there(Replay *p, Run *r, const Config *cfg)
{
    RunProgress *at = &r->progress;
    run_open(r, cfg, RUN_TRAIN, 0, NULL);
    if (p->from)
        free(run_load(r, p->from));
    else if (began_elsewhere(cfg, p->dir))
        free(run_load(r, cfg->load));
    int64_t left = run_iterations(r) - at->iteration, kept = p->kept.first + p->kept.samples;
    int64_t before = p->kept.iteration - 1 - at->iteration;
    int64_t starts = config_samples_from(cfg, at->consumed_samples, before > 0 ? before : 0);
    same_place(p, r, starts <= p->kept.first, starts);         /* a rewind leaves samples out */
    int64_t all = left > 0 ? config_samples_wanted(cfg, at->consumed_samples, left) : 0;
    /* the run may have been made shorter since the step was kept */
    r->loader = start_loader(cfg, r, SPLIT_TRAIN, all > kept ? all : kept);
    p->changed = loader_give(r->loader, p->kept.first, p->kept.samples, p->kept.tokens);
    while (at->iteration < p->kept.iteration - 1) {
        Metrics m;
        run_step(r, &(Metrics){0});
        p->steps++;
        while (run_open_steps(r))
            run_collect(r, &m);
        if (r->spikes.now.iteration && cfg->on_spike == ON_SPIKE_REWIND)
            run_rewind(r, &(LoadFrom){.path = p->from});
    }
    same_place(p, r, at->consumed_samples == p->kept.first, at->consumed_samples);
}

/* ---- the step ---- */

static const Batch *(*whole_batch)(void *run, int mb);
static int only;                       /* the microbatch that stands in the place of all */
static const Batch *one_microbatch(void *run, int mb)
{
    (void)mb;
    return whole_batch(run, only);
}

/* Computes the gradients of the step's batch, as r->step.feed gives it. Collective. */
static Seen look(Run *r, int64_t first, int64_t samples)
{
    run_gradients(r);
    Verdict v = r->step.verdict;
    Seen s = {.first = first, .samples = samples, .loss = v.loss, .norm = v.norm};
    if (isfinite(v.loss) && isfinite(v.norm))
        snprintf(s.tensor, sizeof s.tensor, "%s", optimizer_largest(&r->opt, v.gscale, &s.most));
    else
        run_locate(r, s.tensor);
    return s;
}

/* Every microbatch in the place of all the step's: its own loss and gradient, in the run's own lists. */
static void look_at_each(Replay *p, Run *r)
{
    int64_t n = r->cfg->micro_batch_size * r->grid.size[AXIS_DP];
    p->parts = (int)(p->kept.samples / n);
    p->part = xcalloc((size_t)p->parts, sizeof *p->part);
    whole_batch = r->step.feed;
    r->step.feed = one_microbatch;
    for (only = 0; only < p->parts; only++)
        p->part[only] = look(r, p->kept.first + only * n, n);
    r->step.feed = whole_batch;
}

/* ---- the report ---- */

static int is_finite(const Seen *s) { return isfinite(s->loss) && isfinite(s->norm); }

static int came_again(const Replay *p)
{
    const Seen *s = &p->whole;
    if (strcmp(p->kept.event, "spike"))
        return !is_finite(s);
    return s->loss > p->kept.limits.loss || s->norm > p->kept.limits.norm;
}

static int same(double a, double b) { return a == b || (!isfinite(a) && !isfinite(b)); }
static int bitwise(const Replay *p)
{
    return same(p->whole.loss, p->kept.loss) && same(p->whole.norm, p->kept.norm);
}

static json_t *seen_json(const Seen *s)
{
    json_t *j = json_pack("{s:I s:I s:o s:o s:s s:o}", "first_sample", (json_int_t)s->first, "samples",
                          (json_int_t)s->samples, "loss", json_number(s->loss), "grad_norm",
                          json_number(s->norm), is_finite(s) ? "largest_gradient" : "first_not_finite",
                          s->tensor, "its_norm", json_number(is_finite(s) ? s->most : NAN));
    BUG_ON(!j);
    return j;
}

static void print_json(const Replay *p)
{
    json_t *parts = json_array();
    for (int i = 0; i < p->parts; i++)
        json_array_append_new(parts, seen_json(&p->part[i]));
    json_print(stdout, json_pack("{s:s s:I s:o s:I s:b s:b s:b s:o s:o s:o s:o}", "event", p->kept.event,
                                 "iteration", (json_int_t)p->kept.iteration,
                                 "checkpoint", p->from ? json_text(p->from) : json_null(), "steps",
                                 (json_int_t)p->steps, "again", came_again(p), "bitwise", bitwise(p),
                                 "corpus_changed", p->changed, "kept_loss", json_number(p->kept.loss),
                                 "kept_grad_norm", json_number(p->kept.norm), "batch", seen_json(&p->whole),
                                 "microbatches", parts), JSON_INDENT(2) | JSON_REAL_PRECISION(17));
}

static void print_seen(const Seen *s)
{
    if (is_finite(s))
        printf("loss %.6g, gradient norm %.6g, most of it %s: %.6g\n", s->loss, s->norm, s->tensor, s->most);
    else
        printf("loss %.6g, gradient norm %.6g, not finite: first %s\n", s->loss, s->norm, s->tensor);
}

static void print(const Replay *p)
{
    const Kept *k = &p->kept;
    printf("%s: %s at iteration %lld, samples %lld to %lld\n", p->dir, k->event, (long long)k->iteration,
           (long long)k->first, (long long)(k->first + k->samples - 1));
    printf("from %s, and %lld steps from there\n", p->from ? p->from : "the beginning of the run",
           (long long)p->steps);
    if (p->changed)
        printf("the corpus has other tokens now: these samples are the kept ones, earlier ones may differ\n");
    printf("then            loss %.17g, gradient norm %.17g\n", k->loss, k->norm);
    printf("now             loss %.17g, gradient norm %.17g: %s\n", p->whole.loss, p->whole.norm,
           bitwise(p) ? "the same bits" : "other bits");
    printf("whole batch     ");
    print_seen(&p->whole);
    for (int i = 0; i < p->parts; i++) {
        printf("microbatch %-5d", i);
        print_seen(&p->part[i]);
    }
    printf("%s\n", came_again(p) ? "it came again: the state and the samples make it"
                                 : "it did NOT come again: look at the machine, and at what differs from the "
                                   "run");
}

int command_replay(int argc, char **argv)
{
    static Run r;                      /* it lives as long as the process */
    Args a = cli_open("replay", argc, argv);
    Replay p = {.whole = {0}};
    char why[WHY];
    int json = args_switch(&a, "--json");
    double iteration = args_number(&a, "--iteration");
    p.dir = cli_next(&a, "RUN");
    cli_end(&a);
    char *path = xasprintf("%s/config.yaml", p.dir);
    cli_run_has("replay", p.dir, "config.yaml");
    a.v = xrealloc(a.v, (size_t)(a.n + 2) * sizeof *a.v);
    a.v[a.n++] = "memory_save_interval=null";  /* a replay keeps no copies, and needs no folder for them */
    a.v[a.n] = NULL;
    Config cfg = *start_config(path, &a, USE_TRAIN);
    if (!kept_read(&p.kept, p.dir, isnan(iteration) ? -1 : (int64_t)iteration, cfg.seq_length, why))
        die(EXIT_CONFIG, "replay", "%s; change: a run that has stopped at a number that is not finite, or "
            "that has met a spike under on_spike", why);
    p.from = newest_before(p.dir, p.kept.iteration);
    cfg.finetune = cfg.finetune && !p.from;    /* a checkpoint of the run is its whole state */
    go_there(&p, &r, &cfg);
    p.whole = look(&r, p.kept.first, p.kept.samples);
    look_at_each(&p, &r);
    if (r.grid.rank == 0 && json)
        print_json(&p);
    else if (r.grid.rank == 0)
        print(&p);
    int again = came_again(&p);
    free(p.part);
    free(p.from);
    free(p.kept.tokens);
    free(path);
    loader_close(r.loader);
    run_close(&r);
    return again ? EXIT_DONE : EXIT_COMPARE;
}
