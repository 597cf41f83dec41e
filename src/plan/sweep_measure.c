/* sweep_measure -- layouts measured in launches of their own, beside a reference */
#define _GNU_SOURCE
#include "base.h"
#include "file.h"
#include "jsonl.h"
#include "launch.h"
#include "sweep_visits.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>

/* ---- one layout ---- */

static double number_of(const json_t *line, const char *key)
{
    return json_number_value(json_object_get(line, key));
}

/* Adds a step, with the reference before it. */
static void add_step(void *visit, const json_t *line)
{
    Visit *v = visit;
    if (!json_object_get(line, "elapsed_ms"))
        return;
    v->step = xgrow(v->step, v->n, sizeof *v->step);
    v->step[v->n++] = (TimedStep){number_of(line, "elapsed_ms"), {number_of(line, "reference_product_ms"),
                                                                  number_of(line, "reference_copy_ms")}};
}

/* Reads the steps of a run without the first, which takes the memory of all later ones. Beside a step is the
 * mean of the references before and after it; the last step has only the one before. */
static void read_run(Visit *v, const char *run)
{
    char *path = xasprintf("%s/metrics.jsonl", run);
    jsonl_each(path, add_step, v);
    free(path);
    v->n -= v->n > 0;
    for (int i = 0; i < v->n; i++)
        v->step[i] = v->step[i + 1];
    for (int i = 0; i + 1 < v->n; i++) {
        Reference *a = &v->step[i].beside, b = v->step[i + 1].beside;
        *a = (Reference){(a->product + b.product) / 2, (a->copy + b.copy) / 2};
    }
}

/* Sets why from the error line that a job ended with. Bytes that are not printable ASCII become '?', as
 * JSON takes only UTF-8. */
static void read_reason(const Sweep *s, Visit *l, const char *errors)
{
    char *line = NULL;
    size_t room = 0;
    FILE *f = fopen(errors, "re");
    snprintf(l->why, sizeof l->why,
             l->code ? "ended with %d" : "ended with %d after one step: train_iters is too small", l->code);
    while (f && getline(&line, &room, f) > 0)
        if (!strncmp(line, "error[", 6)) {
            line[strcspn(line, "\n")] = 0;
            snprintf(l->why, sizeof l->why, "%s", line);
        }
    if (l->code == LAUNCH_LATE)
        snprintf(l->why, sizeof l->why, "not through after %g s", s->timeout);
    for (char *c = l->why; *c; c++)
        *c = (unsigned char)*c < 32 || (unsigned char)*c > 126 ? '?' : *c;
    free(line);
    if (f)
        fclose(f);
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    return remove(path);
}

static void remove_tree(const char *path)
{
    if (nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) && errno != ENOENT)
        die(EXIT_RESOURCE, "write", "cannot remove %s: %s; change: remove it, or -o with another folder",
            path, strerror(errno));
}

/* A launch has a folder of its own below s->dir, for its run and its errors: this and 16 random digits. */
#define LAUNCH "launch."

/* Makes the folder of a launch. Returns its path, from malloc. */
static char *make_folder(const Sweep *s)
{
    char why[WHY], *path = xasprintf("%s/" LAUNCH "%016" PRIx64, s->dir, file_random());
    if (!file_make_dirs(path, why))
        die(EXIT_RESOURCE, "write", "%s; change: -o with a folder that you may write to", why);
    return path;
}

/* Removes the folders of launches that an earlier sweep was stopped in. */
static void remove_left(const Sweep *s)
{
    DIR *d = opendir(s->dir);
    const size_t n = strlen(LAUNCH);
    for (struct dirent *e; d && (e = readdir(d));)
        if (!strncmp(e->d_name, LAUNCH, n) && strlen(e->d_name + n) == 16 &&
            strspn(e->d_name + n, "0123456789abcdef") == 16) {
            char *path = xasprintf("%s/%s", s->dir, e->d_name);
            remove_tree(path);
            free(path);
        }
    if (d)
        closedir(d);
}

/* Settings of every launch: all steps are logged, in its own folder; no evaluation, no checkpoint, which
 * moe_use_upcycling and on_spike rewind would need; every step has the batch of the last segment, for which
 * it is predicted. The last three have values of their own. */
static const char *const still[] = {
    "log_interval=1", "eval_interval=null", "memory_save_interval=null", "save_interval=null",
    "save_retain_interval=null", "save_at_end=false", "on_spike=warn", "load=null", "finetune=false",
    "trace_steps=[]", "exit_duration_in_mins=null", "log_reference=true", "tensorboard_dir=null",
    "moe_use_upcycling=false", "step_batch_size_schedule=null", "global_batch_size=", "exit_interval=",
    "save="};
enum { STILL = sizeof still / sizeof *still, OWN = 3 };

static int is_still(const char *arg)
{
    for (int i = 0; i < STILL; i++)
        if (!strncmp(arg, still[i], strcspn(still[i], "=") + 1))
            return 1;
    return 0;
}

/* Writes `train run CONFIG ...` to line; returns the number of arguments. */
static int job_of(const Sweep *s, const SweepLayout *l, LayoutArg text[LAYOUT_ARGS], char *const own[OWN],
                  char **line)
{
    int n = 0, layout = layout_args(s, l, text);
    line[n++] = "run";
    line[n++] = (char *)s->path;
    for (int i = 0; i < s->nargs; i++)
        if (!is_still(s->args[i]))
            line[n++] = s->args[i];
    for (int i = 0; i < layout; i++)
        line[n++] = text[i];
    for (int i = 0; i < STILL - OWN; i++)
        line[n++] = (char *)still[i];
    for (int i = 0; i < OWN; i++)
        line[n++] = own[i];
    return n;
}

/* Launches a layout. The steps are on the heap. */
static Visit measure(const Sweep *s, int at)
{
    Visit v = {.layout = at};
    LayoutArg text[LAYOUT_ARGS];
    char *folder = make_folder(s), *run = xasprintf("%s/run", folder), *name = config_string(run);
    char *errors = xasprintf("%s/errors", folder), **line;
    char *own[OWN] = {xasprintf("global_batch_size=%lld", (long long)s->layout[at].batch),
                      xasprintf("exit_interval=%d", s->steps), xasprintf("save=%s", name)};
    line = xcalloc((size_t)s->nargs + LAYOUT_ARGS + STILL + 2, sizeof *line);
    int n = job_of(s, &s->layout[at], text, own, line);
    v.code = launch_job(s->world, n, line, NULL, errors, s->timeout);
    if (v.code == EXIT_DONE)
        read_run(&v, run);
    if (!v.n)
        read_reason(s, &v, errors);
    remove_tree(folder);
    int started = strncmp(v.why, "error[launch]", 13) != 0;
    if (v.code == EXIT_DATA || !started)   /* every other layout would fail in the same way */
        die(v.code, "sweep", "%s: %s", started ? "the corpus cannot be read" : "no job can be started",
            v.why);
    for (int i = 0; i < OWN; i++)
        free(own[i]);
    free(line);
    free(errors);
    free(name);
    free(run);
    free(folder);
    return v;
}

/* ---- all of them ---- */

static void speak(const Sweep *s, const SweepLayout *l)
{
    LayoutArg text[LAYOUT_ARGS];
    int n = layout_args(s, l, text);
    for (int i = 0; i < n; i++)
        fprintf(stderr, " %s", strchr(text[i], '=') + 1);
    fputc('\n', stderr);      /* an error that comes now has a line of its own */
}

void sweep_open(Sweep *s)
{
    char *path = xasprintf("%s/sweep.jsonl", s->dir), why[WHY];
    s->rows = file_open_append(AT_FDCWD, path, 0, why);
    if (s->rows < 0)
        die(EXIT_RESOURCE, "write", "%s; change: -o with a folder that you may write to", why);
    if (flock(s->rows, LOCK_EX | LOCK_NB))
        die(EXIT_RESOURCE, "sweep", "another sweep is at work in this folder (%s is locked); change: wait "
            "for it, or -o with another folder", path);
    free(path);
    remove_left(s);
}

/* Launches a layout once more and keeps the result. */
static void visit(Sweep *s, Visits *all, int at, const char *path)
{
    const SweepLayout *l = &s->layout[at];
    speak(s, l);
    Visit v = measure(s, at);
    visits_keep(s, &v, s->rows, path);
    visits_add(all, &v);
    visits_settle(s, all, 0);
    if (!v.n)
        fprintf(stderr, "    %s\n", v.why);
    else
        fprintf(stderr, "    %.1f ms a step, %.1f by the clock, predicted %.1f\n",
                drift_steps(v.step, v.n, s->base).ms, drift_steps(v.step, v.n, (Calibrated){0}).ms,
                l->predicted);
}

/* Measures until each of the first `most` layouts has `rounds` launches that count. Launches that do not
 * count are done again at the end, twice at most. Returns 1 when the calibration does not fit any more. */
static int rounds(Sweep *s, Visits *all, int most, const char *path)
{
    int known = all->n;
    for (int pass = 1; pass <= s->rounds + 2; pass++)
        for (int i = 0; i < most; i++) {
            int round = pass < s->rounds ? pass : s->rounds;
            if (s->layout[i].rounds >= round || layout_failed(&s->layout[i]))
                continue;
            fprintf(stderr, "%d of %d, round %d:", i + 1, most, round);
            visit(s, all, i, path);
            if (s->calibrations && !visits_fit(s, all, known))
                return 1;
        }
    return 0;
}

int sweep_measure(Sweep *s)
{
    char *path = xasprintf("%s/sweep.jsonl", s->dir);
    int most = s->measure < s->fit ? s->measure : s->fit, known = 0;
    Visits all = {0};
    s->calibrated = s->base.reference.product > 0 && s->base.reference.copy > 0;
    s->calibrations = s->calibrated ? s->calibrations : 0;
    visits_recall(&all, s, s->rows, path);
    visits_settle(s, &all, 0);
    for (int i = 0; i < most; i++)
        known += s->layout[i].rounds >= s->rounds || layout_failed(&s->layout[i]);
    if (most)
        fprintf(stderr, "measuring %d layouts in %d rounds, %d of them known already; interrupted, the same "
                "command goes on\n", most, s->rounds, known);
    int again = rounds(s, &all, most, path);
    visits_settle(s, &all, 1);
    visits_close(&all);
    free(path);
    return again;
}
