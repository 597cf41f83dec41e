/* train sweep -- the command: what is asked, and what is said. */
#define _GNU_SOURCE
#include "args.h"
#include "calibrate.h"
#include "commands.h"
#include "config_table.h"
#include "file.h"
#include "sweep.h"
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <unistd.h>

/* Keys that a sweep chooses itself. */
static void refuse_chosen(const Sweep *s)
{
    char text[LAYOUT_ARGS][160];
    Layout any = {.tp = 1, .pp = 1, .v = 1};
    int n = layout_args(s, &any, text);
    for (int i = 0; i < s->nargs; i++)
        for (int k = 0; k < n; k++) {
            size_t key = strcspn(text[k], "=") + 1;
            if (!strncmp(s->args[i], text[k], key) && strncmp(text[k], "pipeline_schedule", 17))
                die(EXIT_CONFIG, "sweep", "train sweep chooses %.*s itself; change: leave it out, or use `train plan`", (int)key - 1,
                    text[k]);
        }
}

/* The file's text and the arguments decide what a measured row belongs to. */
static uint64_t identity_of(const Sweep *s)
{
    char why[WHY], *text;
    int64_t size;
    uint64_t h = hash64(&s->world, sizeof s->world, HASH_SEED);
    text = file_read_text(AT_FDCWD, s->path, 0, 1 << 20, &size, why);
    if (!text)
        die(EXIT_CONFIG, "config", "%s; change: give the path of a configuration", why);
    h = hash64(text, (size_t)size, h);
    for (int i = 0; i < s->nargs; i++)
        h = hash64(s->args[i], strlen(s->args[i]) + 1, h);
    free(text);
    return h;
}

/* pipeline_schedule is the sweep's to combine with chunks: out of the arguments, into s->schedule. */
static void take_schedule(Sweep *s, const Config *c)
{
    if (c->given[OPT_pipeline_schedule])
        s->schedule = xstrdup(options[OPT_pipeline_schedule].choices[c->pipeline_schedule]);
    for (int i = 0; i < s->nargs; i++)
        if (!strncmp(s->args[i], "pipeline_schedule=", 18)) {
            memmove(s->args + i, s->args + i + 1, (size_t)(s->nargs - i - 1) * sizeof *s->args);
            s->nargs--;
        }
}

/* Without --machine: this host, measured once and kept in the sweep's folder. */
static void find_machine(Sweep *s, const Config *c)
{
    if (s->machine)
        return;
    s->machine = xasprintf("%s/machine.yaml", s->dir);
    if (!access(s->machine, R_OK))
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
    calibrate(c, s->machine, n, line);
    free(line);
}

static json_t *as_json(const Sweep *s)
{
    json_t *rows = json_array();
    for (int i = 0; i < s->n; i++) {
        const Layout *l = &s->layout[i];
        json_t *row = json_pack("{s:i s:b s:i s:i s:i s:s s:i s:s s:f s:o s:f s:I s:b}", "tp", l->tp, "sp", l->rows, "pp", l->pp, "v",
                                l->v, "dp", l->dp, "zero", layout_zero[l->zero], "micro_batch_size", l->micro, "recompute",
                                layout_recompute[l->recompute], "predicted_ms", l->predicted, "measured_ms",
                                l->measured > 0 ? json_real(l->measured) : json_null(), "bubble", l->bubble, "memory",
                                (json_int_t)l->memory, "fits", l->state == LAYOUT_PLANNED);
        if (l->why[0])
            json_object_set_new(row, "reason", json_string(l->why));
        json_array_append_new(rows, row);
    }
    return json_pack("{s:i s:s s:i s:i s:o}", "world", s->world, "machine", s->machine, "legal", s->n, "fit", s->fit, "layouts", rows);
}

/* Average error of the prediction, and how far its best is from the best. */
static void print_errors(const Sweep *s)
{
    double sum = 0, best = 0, chosen = 0, least = 0;
    int n = 0;
    for (int i = 0; i < s->n; i++) {
        const Layout *l = &s->layout[i];
        if (!(l->measured > 0))
            continue;
        sum += fabs(l->predicted / l->measured - 1);
        best = !n || l->measured < best ? l->measured : best;
        if (!n || l->predicted < least)
            least = l->predicted, chosen = l->measured;
        n++;
    }
    if (n)
        printf("%d measured: predictions are off by %.1f %% on average; the layout predicted to be best takes %.1f %% more than the best\n",
               n, 100 * sum / n, 100 * (chosen / best - 1));
}

static void print(const Sweep *s)
{
    enum { SHOWN = 20 };
    printf("%d legal layouts of %d ranks, %d fit the memory\n", s->n, s->world, s->fit);
    printf("  %4s %3s %4s %3s %4s  %-18s %5s  %-9s %12s %12s %8s %9s\n", "tp", "sp", "pp", "v", "dp", "sharding", "micro", "recompute",
           "predicted ms", "measured ms", "bubble", "GiB");
    for (int i = 0, shown = 0; i < s->n; i++) {
        const Layout *l = &s->layout[i];
        if (shown >= SHOWN && !(l->measured > 0) && !l->why[0])
            continue;
        char measured[32] = "";
        if (l->measured > 0)
            snprintf(measured, sizeof measured, "%.1f", l->measured);
        printf("  %4d %3s %4d %3d %4d  %-18s %5d  %-9s %12.1f %12s %6.1f %% %9.2f  %s\n", l->tp, l->rows ? "yes" : "", l->pp, l->v, l->dp,
               layout_zero[l->zero], l->micro, layout_recompute[l->recompute], l->predicted, measured, 100 * l->bubble,
               (double)l->memory / (1 << 30), l->why[0] ? l->why : l->state == LAYOUT_TOO_LARGE ? "does not fit" : "");
        shown++;
    }
    print_errors(s);
}

static void write_file(const Sweep *s, const char *path, void (*put)(FILE *f, const Sweep *s))
{
    FILE *f = fopen(path, "we");
    if (f)
        put(f, s);
    if (!f || fclose(f))
        die(EXIT_RESOURCE, "write", "cannot write %s: %s; change: free space, or another path", path, strerror(errno));
}

static void answer(const Sweep *s, int json, const char *csv)
{
    char *page = xasprintf("%s/sweep.html", s->dir), *table = csv ? xstrdup(csv) : xasprintf("%s/sweep.csv", s->dir);
    char *data = xasprintf("%s/sweep.json", s->dir);
    json_t *j = as_json(s);
    write_file(s, page, sweep_page);
    write_file(s, table, sweep_csv);
    if (json_dump_file(j, data, JSON_INDENT(1)))
        die(EXIT_RESOURCE, "write", "cannot write %s; change: free space, or -o with another folder", data);
    if (json) {
        json_dumpf(j, stdout, JSON_INDENT(2));
        printf("\n");
    } else {
        print(s);
        printf("%s, %s, %s\n", page, table, data);
        if (s->fit)
            sweep_winner(stdout, s);
    }
    json_decref(j);
    free(page);
    free(table);
    free(data);
}

int command_sweep(int argc, char **argv)
{
    Args a = args_open("sweep", argc, argv);
    char why[WHY];
    int json = args_flag(&a, "--json");
    const char *csv = args_value(&a, "--csv"), *dir = args_value(&a, "-o");
    Sweep s = {.dir = dir ? dir : "sweep", .machine = args_value(&a, "--machine"), .world = (int)args_number(&a, "--world", 1, 1, 65536),
               .measure = (int)args_number(&a, "--measure", 0, 0, 1e6), .steps = (int)args_number(&a, "--steps", 5, 2, 1000),
               .timeout = args_number(&a, "--timeout", 120, 1, 1e5)};
    s.path = args_next(&a, "CONFIG");
    args_end(&a, 1);
    s.nargs = a.n;
    s.args = a.v;
    refuse_chosen(&s);
    const Config *c = config_load(s.path, s.nargs, s.args, WORLD_SMALLEST, s.measure ? USE_TRAIN : USE_MODEL);
    if (c->pipeline_balance == PIPELINE_BALANCE_COST)
        die(EXIT_CONFIG, "sweep", "train sweep shares layers out by their number; change: pipeline_balance=count");
    s.identity = identity_of(&s);
    s.batch = c->batch_step[c->batch_steps - 1].batch;
    s.seq = c->seq_length;
    take_schedule(&s, c);
    if (!file_make_dirs(s.dir, why))
        die(EXIT_RESOURCE, "write", "%s; change: -o with a folder that you may write to", why);
    find_machine(&s, c);
    machine_load(s.machine);               /* its mistakes are told once */
    sweep_plan(&s);
    sweep_measure(&s);
    sweep_sort(&s);
    answer(&s, json, csv);
    free(s.layout);
    free(a.v);
    return EXIT_DONE;
}
