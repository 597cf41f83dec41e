/* train bubble -- the bubbles of pipelines: measured, simulated, in closed form, and as others have published them. */
#define _GNU_SOURCE
#include "bubble.h"
#include "args.h"
#include "commands.h"
#include "grid.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void write_to(const char *path, const Table *t, void (*put)(FILE *f, const Table *t))
{
    FILE *f = fopen(path, "w");
    if (f)
        put(f, t);
    int bad = !f || ferror(f);
    if ((f && fclose(f)) || bad)
        die(EXIT_RESOURCE, "write", "cannot write %s: %s; change: free space, or give a path in a folder that is there", path,
            strerror(errno));
}

/* What the ranks of a job are told: `bubble` CONFIG, what selects the cells, and the overrides. */
static int job_line(char **line, const char *path, const Sweep *sweep, const char *steps, const Args *a)
{
    const char *flag[][2] = {{"--schedules", sweep->schedules}, {"--m", sweep->m}, {"--v", sweep->v}, {"--steps", steps}};
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

int command_bubble(int argc, char **argv)
{
    Args a = args_open("bubble", argc, argv);
    int json = args_flag(&a, "--json"), simulated = args_flag(&a, "--simulate"), real = args_flag(&a, "--real");
    const char *csv = args_value(&a, "--csv"), *svg = args_value(&a, "--svg");
    Sweep sweep = {.schedules = args_value(&a, "--schedules"), .p = args_value(&a, "--p"), .m = args_value(&a, "--m"),
                   .v = args_value(&a, "--v")};
    double steps = args_number(&a, "--steps", 0, 1, 1000);
    const char *path = args_next(&a, "CONFIG");
    args_end(&a, 1);
    if (simulated + real > 1)
        die(EXIT_CONFIG, "usage", "train bubble: --simulate measures nothing, --real measures; change: give one of them");
    if (real)
        die(EXIT_CONFIG, "not-built", "train bubble: --real is not built; change: leave it out");
    int rank, world = grid_launched(&rank), code = 0;
    Table t;
    bubble_open(&t, config_load(path, a.n, a.v, 0, USE_BUBBLE), &sweep, simulated, rank == 0);
    t.steps = (int)steps;
    bubble_simulate(&t);
    if (!simulated)
        bubble_measure(&t);
    if (!simulated && world == 1) {
        char **line = xcalloc((size_t)argc + 16, sizeof *line), *text = xasprintf("%d", t.steps);
        int n = job_line(line, path, &sweep, t.steps ? text : NULL, &a);
        code = bubble_launch(&t, n, line);
        free(text);
        free(line);
    }
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
