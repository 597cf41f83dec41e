/* bubble_measure -- a bubble table measured on the ranks of this job, or in jobs of its own */
#define _GNU_SOURCE
#include "bubble.h"
#include "base.h"
#include "clock.h"
#include "file.h"
#include "job.h"
#include "launch.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- on the ranks of this job ---- */

enum { STEPS_LEAST = 2, STEPS_MOST = 5 };
#define SECONDS_ENOUGH 2.0             /* s of measured steps that are enough for a cell */
#define SPREAD_CALM 0.01               /* most by which steps may differ without more steps */

/* T: ms of one microbatch on the slowest rank. */
static double work_of(const PipeShape *s)
{
    double most = 0;
    for (int r = 0; r < s->p; r++) {
        double sum = 0;
        for (int c = 0; c < s->v; c++)
            for (int k = 0; k < 3; k++)
                sum += s->cost[k][pipe_stage(s, r, c)];
        most = fmax(most, sum);
    }
    return most;
}

Rates bubble_rates(const PipeShape *s, double span, double cost)
{
    double work = s->m * work_of(s);
    return (Rates){(cost - work) / cost, (span - work) / span};
}

/* Steps to measure of a cell at first; their spread may ask for more. */
static int steps_of(const Table *t, const Cell *c)
{
    double fit = ceil(SECONDS_ENOUGH * 1e3 / fmax(c->span, 1e-3));
    return t->steps ? t->steps : fit < STEPS_LEAST ? STEPS_LEAST : fit < STEPS_MOST ? (int)fit : STEPS_MOST;
}

/* Measures a cell. A disturbance longer than a computation lengthens a step; then more steps are
 * measured. All ranks measure the same number, because the times of a step are the same on all ranks. */
static void measure(const Table *t, Cell *c, Grid *g)
{
    Clock clock;
    int planned = steps_of(t, c), most = t->steps || planned > STEPS_MOST ? planned : STEPS_MOST;
    ClockStep *step = xcalloc((size_t)most, sizeof *step);
    clock_open(&clock, g, &c->set);
    for (int n = 0; n < planned || (n < most && step[n - 1].span > step[0].span * (1 + SPREAD_CALM));
         c->steps = n) {
        step[n++] = clock_step(&clock);
        qsort(step, (size_t)n, sizeof *step, by_double);
    }
    clock_close(&clock);
    ClockStep middle = step[(c->steps - 1) / 2];
    c->measured_span = middle.span;
    c->least = step[0].span;
    c->most = step[c->steps - 1].span;
    c->measured = bubble_rates(&c->shape, middle.span, middle.cost);
    free(step);
}

void bubble_measure(Table *t)
{
    Grid g;
    int rank, world = job_launched(&rank);
    GridSpec spec = grid_along(AXIS_PP, world);
    int mine = 0;
    for (int i = 0; i < t->n; i++) {
        mine += t->cell[i].shape.p == world;
        if (t->cell[i].shape.p != world && world > 1)
            die(EXIT_CONFIG, "bubble", "a pipeline of p = %d in a job of %d ranks; change: --p %d, or start "
                "`train bubble` alone: it starts its ranks itself", t->cell[i].shape.p, world, world);
    }
    if (!mine)
        return;
    grid_open(&g, &spec, world, rank);
    for (int i = 0; i < t->n; i++)
        if (t->cell[i].shape.p == world)
            measure(t, &t->cell[i], &g);
    grid_close(&g);
}

/* ---- in jobs of their own ---- */

/* Runs `bubble ...` on p ranks, which write their results to the file `out`. Returns the exit code. */
static int run_job(int p, int argc, char **argv, const char *out)
{
    char **line = xcalloc((size_t)argc + 2, sizeof *line);
    memcpy(line, argv, (size_t)argc * sizeof *argv);
    line[argc] = "--csv";
    line[argc + 1] = (char *)out;
    int code = launch_job(p, argc + 2, line, NULL, NULL, 0);
    free(line);
    return code;
}

/* Reads the results of the job of p ranks, which has the cells of p in t's order. */
static void take(Table *t, int p, const char *path)
{
    Table got = {0};
    int n = 0;
    bubble_read(&got, path);
    for (int i = 0; i < t->n; i++) {
        Cell *c = &t->cell[i];
        if (c->shape.p != p)
            continue;
        BUG_ON(n == got.n || got.cell[n].shape.kind != c->shape.kind || got.cell[n].shape.m != c->shape.m);
        c->steps = got.cell[n].steps;
        c->measured_span = got.cell[n].measured_span;
        c->least = got.cell[n].least;
        c->most = got.cell[n].most;
        c->measured = got.cell[n++].measured;
    }
    BUG_ON(n != got.n);
    bubble_close(&got);
}

static void announce(const Table *t, int p)
{
    double seconds = 0;
    int n = 0;
    for (int i = 0; i < t->n; i++) {
        const Cell *c = &t->cell[i];
        n += c->shape.p == p;
        seconds += c->shape.p == p ? c->span / 1e3 * steps_of(t, c) : 0;
    }
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "measuring %d pipeline%s of %d ranks, about %.0f s\n", n, n == 1 ? "" : "s", p,
                seconds);
}

/* Makes a folder for results. *out: the path of a file in it. Both on the heap. */
static char *make_folder(char **out)
{
    const char *folder = getenv("TMPDIR");
    char *dir = xasprintf("%s/bubble-XXXXXX", folder && *folder ? folder : "/tmp");
    if (!mkdtemp(dir))
        die(EXIT_RESOURCE, "folder",
            "cannot make %s: %s; change: set TMPDIR to a folder that you may write to", dir, strerror(errno));
    *out = xasprintf("%s/cells.csv", dir);
    return dir;
}

static void remove_folder(char *dir, char *out)
{
    char why[WHY];
    file_remove_dir(AT_FDCWD, dir, why);
    free(out);
    free(dir);
}

int bubble_launch(Table *t, int argc, char **argv)
{
    char *out, *dir = make_folder(&out), **line = xcalloc((size_t)argc + 2, sizeof *line);
    int code = 0;
    memcpy(line, argv, (size_t)argc * sizeof *argv);
    line[argc] = "--p";
    for (int i = 0; i < t->n && !code; i++) {
        int p = t->cell[i].shape.p;
        if (t->cell[i].steps)
            continue;                  /* measured together with an earlier cell */
        announce(t, p);
        line[argc + 1] = xasprintf("%d", p);
        code = run_job(p, argc + 2, line, out);
        free(line[argc + 1]);
        if (!code)
            take(t, p, out);
    }
    free(line);
    remove_folder(dir, out);
    return code;
}

int bubble_launch_real(Table *t, const Config *cfg, int argc, char **argv)
{
    char *out, *dir = make_folder(&out);
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "measuring %s on %d rank%s\n", schedule_name((ScheduleKind)cfg->pipeline_schedule),
                cfg->world, cfg->world == 1 ? "" : "s");
    int code = run_job(cfg->world, argc, argv, out);
    if (!code)
        bubble_read(t, out);
    remove_folder(dir, out);
    return code;
}
