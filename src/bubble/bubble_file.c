/* bubble_file -- cells read from a file: clock_cells, or the CSV that bubble_csv wrote */
#define _GNU_SOURCE
#include "bubble_table.h"
#include "file.h"
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    COLUMN_LABEL = TIMES, COLUMN_SCHEDULE, COLUMN_P, COLUMN_V, COLUMN_M, COLUMN_GROUP, COLUMN_LIMIT,
    COLUMN_SHARE, COLUMN_PUBLISHED, COLUMN_PEAK, COLUMN_STEPS, COLUMN_RESULTS, COLUMNS = COLUMN_RESULTS + 11
};
static const char *const column_name[COLUMNS] = {
    "forward_ms", "backward_input_ms", "backward_weight_ms", "p2p_ms", "label", "schedule", "p", "v", "m",
    "microbatch_group_size", "max_activations", "weight_share", "published", "published_peak", "steps",
    "measured_ms", "measured_least_ms", "measured_most_ms", "measured_rate", "measured_step_rate",
    "simulated_ms", "simulated_rate", "simulated_step_rate", "closed_form_rate",
    "closed_form_step_rate", "peak_activations"};

typedef struct {
    const char *path;
    int line;                      /* from 1 */
    int at[COLUMNS];               /* place of each column in a line; -1: the file does not have it */
    int results;                   /* bool: read the results too */
    Times standard[TIMES];         /* times of a line that does not give them */
    double weight_share;           /* the same, of an activation that stays until W */
    int group, limit;              /* the same, of PipeShape; 0: p */
    int cells;                     /* read so far, those included that no flag lets pass */
} Reader;

static void read_head(Reader *r, const char *line)
{
    int n = 0;
    for (int k = 0; k < COLUMNS; k++)
        r->at[k] = -1;
    for (char *name; (name = bubble_next_piece(&line)); free(name), n++) {
        int k = 0;
        while (k < COLUMNS && strcmp(column_name[k], name))
            k++;
        if (k == COLUMNS)
            USAGE_ERROR("%s:%d: there is no column '%s'; change: label, schedule, p, v, m, forward_ms, "
                        "backward_input_ms, backward_weight_ms, p2p_ms, microbatch_group_size, "
                        "max_activations, weight_share, published, published_peak", r->path, r->line, name);
        if (r->at[k] >= 0)
            USAGE_ERROR("%s:%d: the column '%s' is there twice; change: leave one of them out", r->path,
                        r->line, name);
        r->at[k] = n;
    }
    for (int k = COLUMN_SCHEDULE; k <= COLUMN_M; k++)
        if (r->at[k] < 0 && k != COLUMN_V)
            USAGE_ERROR("%s:%d: the column '%s' is missing; change: name the columns in the first line",
                        r->path, r->line, column_name[k]);
}

/* text: one number, or one for each virtual stage with blanks between; "": the standard times. */
static Times read_times(const Reader *r, const char *text, int k)
{
    Times times = {0};
    for (const char *s = text + strspn(text, " "); *s; s += strspn(s, " ")) {
        char *end;
        double x = strtod(s, &end);
        if (end == s || !(x >= 0) || !isfinite(x))
            USAGE_ERROR("%s:%d: %s '%s' is no time; change: a number of ms, or one a virtual stage", r->path,
                        r->line, column_name[k], text);
        times.ms = xrealloc(times.ms, (size_t)(times.n + 1) * sizeof *times.ms);
        times.ms[times.n++] = x;
        s = end;
    }
    if (times.n)
        return times;
    if (!r->standard[k].n)
        USAGE_ERROR("%s:%d: no %s; change: give it there, or clock_%s in the configuration", r->path, r->line,
                    bubble_time_name[k], bubble_time_name[k]);
    times = (Times){r->standard[k].n, xcalloc((size_t)r->standard[k].n, sizeof(double))};
    memcpy(times.ms, r->standard[k].ms, (size_t)times.n * sizeof(double));
    return times;
}

static double read_number(const Reader *r, char *const field[], int k, int whole)
{
    char *end;
    double x = strtod(field[k], &end);
    if (!*field[k] && !whole)
        return NAN;
    if (end == field[k] || *end || !isfinite(x) || (whole && (x < 1 || x > UINT16_MAX || x != floor(x))))
        USAGE_ERROR("%s:%d: %s '%s' is not a%s number; change: give one", r->path, r->line, column_name[k],
                    field[k], whole ? " whole" : "");
    return x;
}

/* A whole number, or `standard` where the line does not give it. */
static int read_size(const Reader *r, char *const field[], int k, int standard)
{
    return *field[k] ? (int)read_number(r, field, k, 1) : standard;
}

/* Splits a line into fields by column, on the heap; "": the column is missing. */
static void read_fields(const Reader *r, const char *line, char *field[COLUMNS])
{
    int n = 0;
    memset(field, 0, COLUMNS * sizeof *field);
    for (char *piece; (piece = bubble_next_piece(&line)); n++) {
        int k = 0;
        while (k < COLUMNS && r->at[k] != n)
            k++;
        if (k == COLUMNS)
            USAGE_ERROR("%s:%d: more fields than columns; change: one field a column", r->path, r->line);
        field[k] = piece;
    }
    for (int k = 0; k < COLUMNS; k++)
        field[k] = field[k] ? field[k] : xstrdup("");
}

static void read_results(const Reader *r, char *const field[], Cell *c)
{
    double *to[] = {&c->measured_span, &c->least, &c->most, &c->measured.rate, &c->measured.step_rate,
                    &c->span, &c->simulated.rate, &c->simulated.step_rate, &c->closed_form.rate,
                    &c->closed_form.step_rate};
    const char *peak = field[COLUMNS - 1];
    for (size_t i = 0; i < sizeof to / sizeof *to; i++)
        *to[i] = read_number(r, field, COLUMN_RESULTS + (int)i, 0);
    c->steps = atoi(field[COLUMN_STEPS]);
    c->peak = xcalloc((size_t)c->shape.p, sizeof *c->peak);
    for (int rank = 0; rank < c->shape.p; rank++) {
        char *end;
        c->peak[rank] = strtod(peak, &end);
        peak = end;
    }
}

static void read_cell(Table *t, Reader *r, const Wanted *w, const char *line)
{
    char *field[COLUMNS];
    Times time[TIMES];
    read_fields(r, line, field);
    for (int k = 0; k < TIMES; k++)
        time[k] = read_times(r, field[k], k);
    ScheduleKind kind = bubble_kind(field[COLUMN_SCHEDULE], r->path);
    int chunks = schedule_chunks(kind);
    PipeShape s = {.kind = kind, .p = (int)read_number(r, field, COLUMN_P, 1),
                   .v = *field[COLUMN_V] || !chunks ? (int)read_number(r, field, COLUMN_V, 1) : chunks,
                   .m = (int)read_number(r, field, COLUMN_M, 1), .weight_share = r->weight_share,
                   .group = read_size(r, field, COLUMN_GROUP, r->group),
                   .limit = read_size(r, field, COLUMN_LIMIT, r->limit)};
    r->cells++;
    if (*field[COLUMN_SHARE])
        s.weight_share = read_number(r, field, COLUMN_SHARE, 0);
    if (!(s.weight_share >= 0 && s.weight_share <= 1))
        USAGE_ERROR("%s:%d: weight_share %s is not in [0, 1]; change: the part of an activation that stays "
                    "until W", r->path, r->line, field[COLUMN_SHARE]);
    double published = read_number(r, field, COLUMN_PUBLISHED, 0);
    if (published < 0 || published >= 1)
        USAGE_ERROR("%s:%d: published %s is no share in [0, 1); change: a share, 0.2727 for 27.27 %%",
                    r->path, r->line, field[COLUMN_PUBLISHED]);
    double peak = read_number(r, field, COLUMN_PEAK, 0);
    if (peak < 0)
        USAGE_ERROR("%s:%d: published_peak %s is below 0; change: activations of the fullest rank, in "
                    "microbatches", r->path, r->line, field[COLUMN_PEAK]);
    if (kind == SCHEDULE_CUSTOM && !r->results)
        USAGE_ERROR("%s:%d: lists of a file are no cell; change: pipeline_schedule=custom without "
                    "clock_cells", r->path, r->line);
    if (wanted_holds(w, &s)) {
        Cell *cell;
        char *why = bubble_add(t, &s, time, &cell);
        if (why)
            USAGE_ERROR("%s:%d: %s; change: that cell", r->path, r->line, why);
        cell->published = published;
        cell->published_peak = peak;
        cell->label = *field[COLUMN_LABEL] ? xstrdup(field[COLUMN_LABEL]) : NULL;
        if (r->results)
            read_results(r, field, cell);
    }
    bubble_times_close(time);
    for (int k = 0; k < COLUMNS; k++)
        free(field[k]);
}

static void read_file(Table *t, Reader *r, const Wanted *w)
{
    char why[WHY], *rest, *text = file_read_lines(r->path, 64 << 20, why);
    int headed = 0;
    if (!text)
        USAGE_ERROR("%s; change: clock_cells, a path from here or from the folder of the configuration", why);
    rest = file_behind_mark(text);
    for (char *line; (line = strsep(&rest, "\n"));) {
        r->line++;
        line[strcspn(line, "\r")] = 0;
        if (!*line || *line == '#')
            continue;
        if (headed)
            read_cell(t, r, w, line);
        else
            read_head(r, line);
        headed = 1;
    }
    free(text);
}

/* The path of clock_cells; a relative one that does not exist is below the configuration's folder. */
static char *find_cells(const Config *c)
{
    const char *slash = strrchr(c->path, '/');
    if (!access(c->clock_cells, F_OK) || *c->clock_cells == '/' || !slash)
        return xstrdup(c->clock_cells);
    return xasprintf("%.*s/%s", (int)(slash - c->path), c->path, c->clock_cells);
}

void bubble_add_file(Table *t, const Config *c, const Wanted *w)
{
    char *path = find_cells(c);
    Reader r = {.path = path, .weight_share = bubble_weight_share(c), .group = bubble_group(c),
                .limit = bubble_limit(c)};
    bubble_times(c, r.standard);
    read_file(t, &r, w);
    if (!r.cells)
        USAGE_ERROR("%s has no cells; change: a line with the names of the columns, and one a cell below",
                    path);
    if (!t->n)
        USAGE_ERROR("%s has no cell that --schedules, --p, --m and --v let pass; change: leave some of them "
                    "out", path);
    bubble_times_close(r.standard);
    free(path);
}

void bubble_read(Table *t, const char *path)
{
    Reader r = {.path = path, .weight_share = 1, .results = 1};
    Wanted all = {0};
    read_file(t, &r, &all);
}
