/* train bubble -- pipeline bubbles: measured, simulated, in closed form, published */
#define _GNU_SOURCE
#include "bubble.h"
#include "commands.h"
#include "job.h"
#include "balance.h"
#include "result_file.h"
#include "start.h"
#include <stdlib.h>
#include <string.h>

#define STEPS_REAL 5                   /* steps that --real records */

static void write_to(const char *path, const Table *t, void (*put)(FILE *f, const Table *t))
{
    FILE *f = result_open(path);
    put(f, t);
    result_close(f, path);
}

/* Writes the arguments of a job to line: `bubble` CONFIG, flags that select the cells, key=value.
 * Returns their number. */
static int job_line(char **line, const char *path, const BubbleRange *range, const char *steps, const Args *a)
{
    const char *flag[][2] = {
        {"--schedules", range->schedules}, {"--m", range->m}, {"--v", range->v}, {"--steps", steps}};
    int n = 0;
    line[n++] = "bubble";
    line[n++] = (char *)path;
    for (size_t i = 0; i < sizeof flag / sizeof *flag; i++)
        if (flag[i][1]) {
            line[n++] = (char *)flag[i][0];
            line[n++] = (char *)flag[i][1];
        }
    for (int i = 0; i < a->n; i++)
        line[n++] = a->v[i];
    return n;
}

/* Measures on the clock device, or only simulates. Returns 0, or the exit code of a job that failed. */
static int clocked(Table *t, const char *path, const BubbleRange *range, const Args *a, int simulated)
{
    int rank, world = job_launched(&rank), code = 0;
    bubble_open(t, config_load(path, a->n, a->v, 0, USE_BUBBLE), range, simulated, rank == 0);
    bubble_simulate(t);
    if (simulated)
        return EXIT_DONE;
    bubble_measure(t);
    if (world == 1) {
        char **line = xcalloc((size_t)a->n + 16, sizeof *line),
             *steps = t->steps ? xasprintf("%d", t->steps) : NULL;
        int n = job_line(line, path, range, steps, a);
        code = bubble_launch(t, n, line);
        free(steps);
        free(line);
    }
    return code;
}

/* Writes the arguments of a job to line: `bubble` CONFIG --real, then key=value for one pipeline.
 * Returns their number. */
static int real_line(char **line, const char *path, const char *steps, const Args *a, const Overrides *o)
{
    const char *head[] = {"bubble", path, "--real", "--steps", steps};
    int n = sizeof head / sizeof *head;
    memcpy(line, head, sizeof head);
    memcpy(line + n, a->v, (size_t)a->n * sizeof *line);
    memcpy(line + n + a->n, o->v, (size_t)o->n * sizeof *line);
    return n + a->n + o->n;
}

/* Runs one job a pipeline, from a process without a launcher. All configurations are checked before the
 * first job starts. */
static int compute_alone(Table *t, const char *path, const Args *a, const Overrides *list, int n)
{
    const Config **cfg = xcalloc((size_t)n, sizeof *cfg);
    char **line = xcalloc((size_t)a->n + 16, sizeof *line), *steps = xasprintf("%d", t->steps);
    int code = 0;
    for (int i = 0; i < n; i++) {
        int words = real_line(line, path, steps, a, &list[i]), given = a->n + list[i].n;
        cfg[i] = start_load(path, given, line + words - given, WORLD_SMALLEST, USE_CLOCK);
    }
    for (int i = 0; i < n && !code; i++) {
        int words = real_line(line, path, steps, a, &list[i]);
        if (cfg[i]->world > 1)
            code = bubble_launch_real(t, cfg[i], words, line);
        else
            bubble_real(t, balance_choose(cfg[i]), t->steps);
    }
    free(steps);
    free(line);
    free(cfg);
    return code;
}

/* Measures by computing: in this job, or in one job for each pipeline of the range. */
static int computed(Table *t, const char *path, const BubbleRange *range, Args *a)
{
    int rank, code = 0;
    t->steps = t->steps ? t->steps : STEPS_REAL;
    if (job_launched(&rank) > 1) {
        if (range->schedules || range->p || range->m || range->v)
            die(EXIT_CONFIG, "usage",
                "train bubble: a launched job measures the configuration's own pipeline; change: start it "
                "alone, or say it with pipeline_schedule=..., pipeline_model_parallel_size=...");
        bubble_real(t, start_config(path, a, USE_CLOCK), t->steps);
        *a = (Args){0};
    } else {
        Overrides *list;
        int n = bubble_overrides(config_load(path, a->n, a->v, 0, USE_BUBBLE), range, &list);
        code = compute_alone(t, path, a, list, n);
        for (int i = 0; i < n; i++)
            for (int k = 0; k < list[i].n; k++)
                free(list[i].v[k]);
        free(list);
    }
    return code;
}

int command_bubble(int argc, char **argv)
{
    Args a = cli_open("bubble", argc, argv);
    int json = args_switch(&a, "--json"), simulated = args_switch(&a, "--simulate"),
        real = args_switch(&a, "--real"), rank;
    const char *csv = args_value(&a, "--csv"), *svg = args_value(&a, "--svg");
    BubbleRange range = {.schedules = args_value(&a, "--schedules"),
                   .p = args_value(&a, "--p"), .m = args_value(&a, "--m"), .v = args_value(&a, "--v")};
    Table t = {.steps = (int)args_number(&a, "--steps")};
    const char *path = cli_next(&a, "CONFIG");
    cli_end(&a);
    if (simulated + real > 1)
        die(EXIT_CONFIG, "usage",
            "train bubble: --simulate measures nothing, --real measures; change: give one of them");
    job_launched(&rank);
    cli_may_write("--csv", rank ? NULL : csv);
    cli_may_write("--svg", rank ? NULL : svg);
    int code = real ? computed(&t, path, &range, &a) : clocked(&t, path, &range, &a, simulated);
    if (!code && rank == 0) {
        if (csv)
            write_to(csv, &t, bubble_csv);
        if (svg)
            write_to(svg, &t, bubble_svg);
        if (json)
            bubble_json(stdout, &t);
        else
            bubble_print(stdout, &t);
    }
    bubble_close(&t);
    free(a.v);
    return code;
}
