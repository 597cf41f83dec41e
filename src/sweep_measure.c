/* Layouts in launches of their own; what was measured stays in dir/sweep.jsonl, a line a layout, whatever happens next. */
#define _GNU_SOURCE
#include "config_table.h"
#include "file.h"
#include "launch.h"
#include "sweep.h"
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <unistd.h>

/* "tensor_model_parallel_size=2 sequence_parallel=...": a layout's name in the file. */
static char *name_of(const Sweep *s, const Layout *l)
{
    char text[LAYOUT_ARGS][160], *name = xstrdup("");
    int n = layout_args(s, l, text);
    for (int i = 0; i < n; i++) {
        char *more = xasprintf("%s%s%s", name, i ? " " : "", text[i]);
        free(name);
        name = more;
    }
    return name;
}

static char *identity_text(const Sweep *s) { return xasprintf("%016llx", (unsigned long long)s->identity); }

/* ---- what is known already ---- */

static void recall_line(Sweep *s, const char *line)
{
    json_t *j = json_loads(line, 0, NULL);
    const char *id = json_string_value(json_object_get(j, "sweep")), *name = json_string_value(json_object_get(j, "layout"));
    const char *why = json_string_value(json_object_get(j, "reason"));
    char *mine = identity_text(s);
    for (int i = 0; i < s->n && id && name && !strcmp(id, mine); i++) {
        char *other = name_of(s, &s->layout[i]);
        if (!strcmp(other, name)) {
            s->layout[i].measured = json_number_value(json_object_get(j, "measured_ms"));
            snprintf(s->layout[i].why, sizeof s->layout[i].why, "%s", why ? why : "");
        }
        free(other);
    }
    free(mine);
    json_decref(j);
}

/* A line that was cut off when the machine stopped is not there. */
static void recall(Sweep *s, const char *path)
{
    FILE *f = fopen(path, "re");
    char *line = NULL;
    size_t room = 0;
    while (f && getline(&line, &room, f) > 0)
        recall_line(s, line);
    free(line);
    if (f)
        fclose(f);
}

static void keep(const Sweep *s, const Layout *l, const char *path)
{
    char *name = name_of(s, l), *id = identity_text(s);
    json_t *j = json_pack("{s:s s:i s:s s:f}", "sweep", id, "world", s->world, "layout", name, "predicted_ms", l->predicted);
    if (l->measured > 0)
        json_object_set_new(j, "measured_ms", json_real(l->measured));
    else
        json_object_set_new(j, "reason", json_string(l->why));
    char *line = json_dumps(j, JSON_COMPACT);
    FILE *f = fopen(path, "ae");
    if (!f || fprintf(f, "%s\n", line) < 0 || fclose(f))
        die(EXIT_RESOURCE, "write", "cannot write %s: %s; change: free space, or -o with another folder", path, strerror(errno));
    free(line);
    json_decref(j);
    free(name);
    free(id);
}

/* ---- one layout ---- */

/* The fastest step but the first: what disturbs a step only lengthens it. 0: there is none. */
static double fastest(const char *run)
{
    char *path = xasprintf("%s/metrics.jsonl", run), *line = NULL;
    FILE *f = fopen(path, "re");
    size_t room = 0;
    double best = 0;
    int steps = 0;
    while (f && getline(&line, &room, f) > 0) {
        json_t *j = json_loads(line, 0, NULL), *ms = json_object_get(j, "elapsed_ms");
        double t = json_number_value(ms);
        if (ms && steps++ && (best <= 0 || t < best))
            best = t;
        json_decref(j);
    }
    free(line);
    free(path);
    if (f)
        fclose(f);
    return best;
}

/* The line with which a job has ended. */
static void read_reason(const Sweep *s, Layout *l, const char *errors, int code)
{
    char *line = NULL;
    size_t room = 0;
    FILE *f = fopen(errors, "re");
    snprintf(l->why, sizeof l->why, "ended with %d", code);
    while (f && getline(&line, &room, f) > 0)
        if (!strncmp(line, "error[", 6)) {
            line[strcspn(line, "\n")] = 0;
            snprintf(l->why, sizeof l->why, "%.190s", line);
        }
    if (code == LAUNCH_LATE)
        snprintf(l->why, sizeof l->why, "not through after %g s", s->timeout);
    free(line);
    if (f)
        fclose(f);
}

/* Steps, then an end without evaluation; the folder is gone afterwards. */
static void measure(const Sweep *s, Layout *l)
{
    char text[LAYOUT_ARGS][160], steps[64], why[WHY], *run = xasprintf("%s/run", s->dir), *save = xasprintf("save=%s", run);
    char *errors = xasprintf("%s/errors", s->dir);
    char *fixed[] = {steps, save, "log_interval=1", "eval_interval=null", "save_interval=null", "load=null", "trace_steps=[]"};
    char **line = xcalloc((size_t)s->nargs + LAYOUT_ARGS + 12, sizeof *line);
    int n = 0, layout = layout_args(s, l, text);
    snprintf(steps, sizeof steps, "exit_interval=%d", s->steps);
    line[n++] = "run";
    line[n++] = (char *)s->path;
    for (int i = 0; i < s->nargs; i++)
        line[n++] = s->args[i];
    for (int i = 0; i < layout; i++)
        line[n++] = text[i];
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        line[n++] = fixed[i];
    file_remove_dir(AT_FDCWD, run, why);
    int code = launch_job(s->world, n, line, NULL, errors, s->timeout);
    l->measured = code == EXIT_DONE || code == EXIT_REQUEUE ? fastest(run) : 0;
    l->why[0] = 0;
    if (!(l->measured > 0))
        read_reason(s, l, errors, code);
    file_remove_dir(AT_FDCWD, run, why);
    unlink(errors);
    free(line);
    free(errors);
    free(save);
    free(run);
}

void sweep_measure(Sweep *s)
{
    char *path = xasprintf("%s/sweep.jsonl", s->dir);
    int most = s->measure < s->fit ? s->measure : s->fit;
    recall(s, path);
    for (int i = 0; i < most; i++) {
        Layout *l = &s->layout[i];
        if (l->measured > 0 || l->why[0])
            continue;
        char *name = name_of(s, l);
        fprintf(stderr, "%d of %d: %s\n", i + 1, most, name);
        measure(s, l);
        if (l->measured > 0)
            fprintf(stderr, "    %.1f ms a step, predicted %.1f\n", l->measured, l->predicted);
        else
            fprintf(stderr, "    %s\n", l->why);
        keep(s, l, path);
        free(name);
    }
    free(path);
}
