/* sweep_measure -- layouts measured in launches of their own; results are kept in dir/sweep.jsonl */
#define _GNU_SOURCE
#include "base.h"
#include "file.h"
#include "json_number.h"
#include "jsonl.h"
#include "launch.h"
#include "sweep.h"
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* Result of a launch. measured: ms of the fastest step; 0: failed, see why. late: bool, it timed out. */
typedef struct { double measured; int late; char why[sizeof((SweepLayout *)0)->why]; } Launch;

/* ---- results of earlier launches ---- */

static char *hex(uint64_t x) { return xasprintf("%016llx", (unsigned long long)x); }

static int same(const json_t *j, const char *key, uint64_t x)
{
    const char *text = json_string_value(json_object_get(j, key));
    return text && strtoull(text, NULL, 16) == x && strlen(text) == 16;
}

/* Adds a launch to a layout's result. A layout has failed when none of its launches was measured. */
static void take(SweepLayout *l, double measured, const char *why)
{
    if (measured > 0 && (l->measured <= 0 || measured < l->measured))
        l->measured = measured;
    snprintf(l->why, sizeof l->why, "%s", l->measured > 0 ? "" : why);
    l->rounds++;
}

/* Takes over a result. One over fewer steps, or a timeout with less time, does not count. */
static void recall_line(void *sweep, const json_t *j)
{
    Sweep *s = sweep;
    const char *name = json_string_value(json_object_get(j, "id"));
    const char *why = json_string_value(json_object_get(j, "reason"));
    uint64_t id = name ? strtoull(name, NULL, 16) : 0;
    double measured = json_number_value(json_object_get(j, "measured_ms"));
    double late = json_number_value(json_object_get(j, "late_s"));
    int use = name && same(j, "sweep", s->identity) &&
              json_integer_value(json_object_get(j, "steps")) >= s->steps && (measured > 0 || why) &&
              !(late > 0 && late < s->timeout);
    for (int i = 0; use && i < s->n; i++)
        if (s->layout[i].id == id)
            take(&s->layout[i], measured, why ? why : "");
}

/* Takes over the results of the file. A line cut off when the machine stopped is no JSON and is ignored;
 * a newline is added after it. */
static void recall(Sweep *s, int fd, const char *path)
{
    int last = jsonl_each(path, recall_line, s);
    if (last < 0 || (last && last != '\n' && !file_append(fd, "\n", 1)))
        die(EXIT_RESOURCE, "write", "cannot read and write %s: %s; change: free space, or -o with another "
            "folder", path, strerror(errno));
}

/* Appends the result of a layout's last launch. A line that is torn by the end of the machine is no JSON. */
static void keep(const Sweep *s, const SweepLayout *l, const Launch *last, int fd, const char *path)
{
    LayoutArg text[LAYOUT_ARGS];
    int n = layout_args(s, l, text);
    char *sweep = hex(s->identity), *id = hex(l->id);
    json_t *names = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(names, json_string(text[i]));
    json_t *j = json_pack("{s:s s:s s:i s:i s:o s:o}", "sweep", sweep, "id", id, "world", s->world, "steps",
                          s->steps, "predicted_ms", json_number(l->predicted), "layout", names);
    if (last->measured > 0)
        json_object_set_new(j, "measured_ms", json_number(last->measured));
    else
        json_object_set_new(j, "reason", json_string(last->why));
    if (last->late)
        json_object_set_new(j, "late_s", json_number(s->timeout));
    char *line = json_dumps(j, JSON_COMPACT), *whole = xasprintf("%s\n", line);
    if (!file_append(fd, whole, strlen(whole)) || fsync(fd))
        die(EXIT_RESOURCE, "write", "cannot write %s: %s; change: free space, or -o with another folder",
            path, strerror(errno));
    free(whole);
    free(line);
    json_decref(j);
    free(sweep);
    free(id);
}

/* ---- one layout ---- */

typedef struct { double best; int steps; } Fastest;

static void add_step(void *fastest, const json_t *line)
{
    Fastest *f = fastest;
    json_t *ms = json_object_get(line, "elapsed_ms");
    double t = json_number_value(ms);
    if (ms && f->steps++ && (f->best <= 0 || t < f->best))
        f->best = t;
}

/* ms of the fastest step without the first: noise only makes a step longer. 0: there is none. */
static double fastest(const char *run)
{
    char *path = xasprintf("%s/metrics.jsonl", run);
    Fastest f = {0};
    jsonl_each(path, add_step, &f);
    free(path);
    return f.best;
}

/* Sets why from the error line that a job ended with. Bytes that are not printable ASCII become '?', as
 * JSON takes only UTF-8. */
static void read_reason(const Sweep *s, Launch *l, const char *errors, int code)
{
    char *line = NULL;
    size_t room = 0;
    FILE *f = fopen(errors, "re");
    snprintf(l->why, sizeof l->why,
             code ? "ended with %d" : "ended with %d after one step: train_iters is too small", code);
    while (f && getline(&line, &room, f) > 0)
        if (!strncmp(line, "error[", 6)) {
            line[strcspn(line, "\n")] = 0;
            snprintf(l->why, sizeof l->why, "%s", line);
        }
    if (code == LAUNCH_LATE)
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

/* Removes a job's folder: the next job must not find it. */
static void remove_tree(const char *path)
{
    if (nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) && errno != ENOENT)
        die(EXIT_RESOURCE, "write", "cannot remove %s: %s; change: remove it, or -o with another folder",
            path, strerror(errno));
}

/* Settings of every launch: all steps are logged; no evaluation, no checkpoint. */
static const char *const still[] = {
    "log_interval=1", "eval_interval=null", "memory_save_interval=null", "save_interval=null",
    "save_retain_interval=null", "save_at_end=false", "load=null", "finetune=false", "trace_steps=[]",
    "exit_duration_in_mins=null", "exit_interval=", "save="};
enum { STILL = sizeof still / sizeof *still };

static int is_still(const char *arg)
{
    for (int i = 0; i < STILL; i++)
        if (!strncmp(arg, still[i], strcspn(still[i], "=") + 1))
            return 1;
    return 0;
}

/* Writes `train run CONFIG ...` to line; returns the number of arguments. */
static int job_of(const Sweep *s, const SweepLayout *l, LayoutArg text[LAYOUT_ARGS], char *steps, char *save,
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
    for (int i = 0; i < STILL - 2; i++)
        line[n++] = (char *)still[i];
    line[n++] = steps;
    line[n++] = save;
    return n;
}

static Launch measure(const Sweep *s, const SweepLayout *layout)
{
    Launch l = {0};
    LayoutArg text[LAYOUT_ARGS];
    char *run = xasprintf("%s/run", s->dir), *save = xasprintf("save=%s", run), **line;
    char *steps = xasprintf("exit_interval=%d", s->steps), *errors = xasprintf("%s/errors", s->dir);
    line = xcalloc((size_t)s->nargs + LAYOUT_ARGS + STILL + 2, sizeof *line);
    remove_tree(run);
    int code =
        launch_job(s->world, job_of(s, layout, text, steps, save, line), line, NULL, errors, s->timeout);
    l.measured = code == EXIT_DONE ? fastest(run) : 0;
    if (!(l.measured > 0))
        read_reason(s, &l, errors, code);
    l.late = code == LAUNCH_LATE;
    int started = strncmp(l.why, "error[launch]", 13) != 0;
    if (code == EXIT_DATA || !started)     /* every other layout would fail in the same way */
        die(code, "sweep", "%s: %s", started ? "the corpus cannot be read" : "no job can be started", l.why);
    remove_tree(run);
    unlink(errors);
    free(line);
    free(steps);
    free(errors);
    free(save);
    free(run);
    return l;
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

/* Opens the file of results and locks it: this process is its only writer. */
static int open_rows(const char *path)
{
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        die(EXIT_RESOURCE, "write", "cannot write %s: %s; change: -o with a folder that you may write to",
            path, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB))
        die(EXIT_RESOURCE, "sweep", "another sweep is at work in this folder (%s is locked); change: wait "
            "for it, or -o with another folder", path);
    return fd;
}

/* Launches a layout once more and keeps the result. */
static void visit(const Sweep *s, SweepLayout *l, int fd, const char *path)
{
    speak(s, l);
    Launch last = measure(s, l);
    keep(s, l, &last, fd, path);
    take(l, last.measured, last.why);
    if (last.measured > 0)
        fprintf(stderr, "    %.1f ms a step, predicted %.1f\n", last.measured, l->predicted);
    else
        fprintf(stderr, "    %s\n", last.why);
}

void sweep_measure(Sweep *s)
{
    char *path = xasprintf("%s/sweep.jsonl", s->dir);
    int most = s->measure < s->fit ? s->measure : s->fit, known = 0, fd = open_rows(path);
    recall(s, fd, path);
    for (int i = 0; i < most; i++)
        known += s->layout[i].rounds >= s->rounds || layout_failed(&s->layout[i]);
    if (most)
        fprintf(stderr, "measuring %d layouts in %d rounds, %d of them known already; interrupted, the same "
                "command goes on\n", most, s->rounds, known);
    for (int round = 1; round <= s->rounds; round++)
        for (int i = 0; i < most; i++) {
            SweepLayout *l = &s->layout[i];
            if (l->rounds >= round || layout_failed(l))
                continue;
            fprintf(stderr, "%d of %d, round %d:", i + 1, most, round);
            visit(s, l, fd, path);
        }
    close(fd);
    free(path);
}
