/* The cells of a bubble table: from a sweep and the configuration, or from a file. */
#define _GNU_SOURCE
#include "bubble.h"
#include "base.h"
#include "config_table.h"
#include "file.h"
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *const time_name[TIMES] = {"forward_ms", "backward_input_ms", "backward_weight_ms", "p2p_ms"};

#define USAGE_ERROR(...) die(EXIT_CONFIG, "bubble", "train bubble: " __VA_ARGS__)

/* ---- one cell ---- */

/* Chunks that the schedule has whatever is asked for; 0: it takes what it is told, or is read. */
static int chunks_of(ScheduleKind k)
{
    return k == SCHEDULE_INTERLEAVED || k == SCHEDULE_CUSTOM ? 0 : k >= SCHEDULE_ZB_V && k <= SCHEDULE_DUALPIPEV ? 2 : 1;
}

const char *bubble_name(const Cell *c, char name[32])
{
    if (c->shape.kind == SCHEDULE_ZB_AUTO && c->shape.limit)
        snprintf(name, 32, "zb-auto %d", c->shape.limit);
    else
        snprintf(name, 32, "%s", schedule_name(c->shape.kind));
    return name;
}

static char *why_not(const PipeShape *s, const Times time[TIMES])
{
    int group = s->group ? s->group : s->p, chunks = chunks_of(s->kind);
    const char *name = schedule_name(s->kind);
    if (s->p < 1 || s->p > 4096 || s->m < 1 || s->m > UINT16_MAX || s->v < 1 || s->v > 255 || s->p * s->v > STAGES_MAX)
        return xasprintf("%s takes p from 1 to 4096, v to 255, m to 65535, and p v to %d", name, STAGES_MAX);
    if (chunks ? s->v != chunks : s->v < 2 && s->kind == SCHEDULE_INTERLEAVED)
        return chunks ? xasprintf("%s has %d chunk%s a rank", name, chunks, chunks == 1 ? "" : "s")
                      : xasprintf("%s needs 2 or more chunks a rank", name);
    if (s->kind == SCHEDULE_INTERLEAVED && s->p > 1 && (group < s->p || group > s->m))
        return xasprintf("%s runs groups of %d microbatches, which must be from p = %d to m = %d", name, group, s->p, s->m);
    if (s->kind == SCHEDULE_INTERLEAVED && s->p > 1 && s->m % group && s->m % group < s->p)
        return xasprintf("%s leaves %d of %d microbatches in groups of %d, fewer than p = %d", name, s->m % group, s->m,
                         group, s->p);
    if (s->kind == SCHEDULE_DUALPIPEV && s->m < 2 * s->p)
        return xasprintf("dualpipev needs two microbatches a rank: m from %d on", 2 * s->p);
    for (int k = 0; k < TIMES; k++)
        if (time[k].n > 1 && time[k].n != s->p * s->v)
            return xasprintf("%s has %d numbers for %d virtual stages", time_name[k], time[k].n, s->p * s->v);
    return NULL;
}

char *bubble_add(Table *t, const PipeShape *shape, const Times time[TIMES], Cell **cell)
{
    char *why = why_not(shape, time);
    if (why)
        return why;
    if ((t->n & (t->n - 1)) == 0)
        t->cell = xrealloc(t->cell, (t->n ? 2 * (size_t)t->n : 1) * sizeof *t->cell);
    Cell *c = &t->cell[t->n++];
    int stages = shape->p * shape->v;
    *c = (Cell){.shape = *shape, .published = NAN, .published_peak = NAN, .simulated = NO_RATES, .closed_form = NO_RATES,
                .measured = NO_RATES};
    c->cost = xcalloc((size_t)(TIMES * stages), sizeof *c->cost);
    for (int k = 0; k < TIMES; k++) {
        c->time[k] = (Times){time[k].n, xcalloc((size_t)time[k].n, sizeof(double))};
        memcpy(c->time[k].ms, time[k].ms, (size_t)time[k].n * sizeof(double));
        for (int s = 0; s < stages; s++)
            c->cost[k * stages + s] = time[k].n > 1 ? time[k].ms[s] : time[k].ms[0] / (k == TIME_HOP ? 1 : shape->v);
        if (k != TIME_HOP)
            c->shape.cost[k] = c->cost + k * stages;
    }
    c->shape.hops = c->cost + TIME_HOP * stages;
    *cell = c;
    return NULL;
}

void bubble_close(Table *t)
{
    for (int i = 0; i < t->n; i++) {
        for (int k = 0; k < TIMES; k++)
            free(t->cell[i].time[k].ms);
        if (t->cell[i].custom)
            custom_close(t->cell[i].custom);
        free(t->cell[i].custom);
        schedules_close(&t->cell[i].set);
        free(t->cell[i].label);
        free(t->cell[i].cost);
        free(t->cell[i].peak);
    }
    free(t->cell);
    *t = (Table){0};
}

/* ---- lists of the command line ---- */

typedef struct { int n, *x; } Numbers;

/* The pieces of a list with commas, one a call; NULL at its end. *rest begins as the whole list; piece is on the heap. */
static char *next_piece(const char **rest)
{
    if (!*rest)
        return NULL;
    size_t n = strcspn(*rest, ",");
    char *piece = xasprintf("%.*s", (int)n, *rest);
    *rest = (*rest)[n] ? *rest + n + 1 : NULL;
    return piece;
}

static ScheduleKind kind_of(const char *name, const char *where)
{
    for (int k = 0; k < SCHEDULE_FORWARD; k++)
        if (!strcmp(schedule_name((ScheduleKind)k), name))
            return (ScheduleKind)k;
    USAGE_ERROR("%s: there is no schedule '%s'; change: see `train help pipeline_schedule`", where, name);
}

static Numbers kinds_of(const char *list)
{
    Numbers n = {0};
    for (char *piece; (piece = next_piece(&list)); free(piece)) {
        n.x = xrealloc(n.x, (size_t)(n.n + 1) * sizeof *n.x);
        n.x[n.n++] = (int)kind_of(piece, "--schedules");
    }
    return n;
}

static Numbers numbers_of(const char *list, const char *flag)
{
    Numbers n = {0};
    for (char *piece; (piece = next_piece(&list)); free(piece)) {
        char *end;
        long x = strtol(piece, &end, 10);
        if (end == piece || *end || x < 1 || x > UINT16_MAX)
            USAGE_ERROR("%s: '%s' is not a whole number in [1, 65535]; change: numbers with commas between", flag, piece);
        n.x = xrealloc(n.x, (size_t)(n.n + 1) * sizeof *n.x);
        n.x[n.n++] = (int)x;
    }
    return n;
}

static int holds(const Numbers *n, int x)
{
    for (int i = 0; i < n->n; i++)
        if (n->x[i] == x)
            return 1;
    return !n->n;                      /* nothing said: everything */
}

typedef struct { Numbers kind, p, m, v; } Wanted;

static Wanted wanted_open(const Sweep *s)
{
    return (Wanted){kinds_of(s->schedules), numbers_of(s->p, "--p"), numbers_of(s->m, "--m"), numbers_of(s->v, "--v")};
}

static void wanted_close(Wanted *w)
{
    free(w->kind.x);
    free(w->p.x);
    free(w->m.x);
    free(w->v.x);
}

static void otherwise(Numbers *n, int64_t x)
{
    if (n->n)
        return;
    n->x = xcalloc(1, sizeof *n->x);
    n->x[n->n++] = (int)x;
}

/* ---- times ---- */

static const List *key_of(const Config *c, int k)
{
    const List *const key[TIMES] = {&c->clock_forward_ms, &c->clock_backward_input_ms, &c->clock_backward_weight_ms,
                                    &c->clock_p2p_ms};
    return key[k];
}

/* Those of the configuration. A message takes nothing unless it says something; what it says of the others is checked. */
static void times_of(const Config *cfg, Times time[TIMES])
{
    for (int k = 0; k < TIMES; k++) {
        const List *l = key_of(cfg, k);
        time[k] = (Times){l->n, xcalloc((size_t)l->n + 1, sizeof(double))};
        for (int i = 0; i < l->n; i++)
            time[k].ms[i] = strtod(l->v[i], NULL);
        if (k == TIME_HOP && !l->n)
            time[k].n = 1;
    }
}

static void times_close(Times time[TIMES])
{
    for (int k = 0; k < TIMES; k++)
        free(time[k].ms);
}

/* ---- the sweep ---- */

/* The first thing that is wrong with lists. */
typedef struct { char text[256]; } Mistake;

static void note_mistake(void *ctx, int line, int col, const char *what)
{
    Mistake *m = ctx;
    if (!*m->text)
        snprintf(m->text, sizeof m->text, "%d:%d: %s", line, col, what);
}

#define SAID 8                         /* lines about what is left out */

static void say(int says, int *said, const PipeShape *s, const char *why)
{
    if (says && *said < SAID)
        fprintf(stderr, "left out: %s, p %d, v %d, m %d: %s\n", schedule_name(s->kind), s->p, s->v, s->m, why);
    else if (says && *said == SAID)
        fprintf(stderr, "left out: more of that kind\n");
    ++*said;
}

static void fill_wanted(Wanted *w, const Config *c)
{
    int64_t batch = c->global_batch_size, micro = c->micro_batch_size == CFG_ABSENT ? 1 : c->micro_batch_size;
    int64_t v = c->num_virtual_stages_per_pipeline_rank;
    otherwise(&w->kind, c->pipeline_schedule >= 0 ? c->pipeline_schedule
                        : v != CFG_ABSENT && v > 1 ? SCHEDULE_INTERLEAVED : SCHEDULE_1F1B);
    otherwise(&w->p, c->pipeline_model_parallel_size);
    otherwise(&w->v, v == CFG_ABSENT ? 1 : v);
    if (!w->m.n && batch == CFG_ABSENT)
        USAGE_ERROR("no number of microbatches; change: give --m, or global_batch_size in %s", c->path);
    if (!w->m.n && (batch % micro || batch / micro > UINT16_MAX))
        USAGE_ERROR("global_batch_size %lld is no number of microbatches of %lld that can be; change: give --m",
                    (long long)batch, (long long)micro);
    otherwise(&w->m, batch / micro);
}

/* Lists from the configuration's file for p ranks; p 0 afterwards: they cannot be. */
static CustomLists *read_custom(const Config *c, PipeShape *s, char **why)
{
    CustomLists *lists = xcalloc(1, sizeof *lists);
    char reason[WHY];
    int64_t size;
    char *text = c->pipeline_schedule_file ? file_read_text(AT_FDCWD, c->pipeline_schedule_file, 0, 256 << 20, &size, reason)
                                           : NULL;
    Mistake first = {0};
    if (!text)
        *why = c->pipeline_schedule_file ? xstrdup(reason) : xstrdup("custom needs pipeline_schedule_file");
    else if (!custom_read(lists, text, (size_t)size, s->p, note_mistake, &first))
        *why = xasprintf("%s:%s", c->pipeline_schedule_file, first.text);
    else if (lists->m != s->m)
        *why = xasprintf("%s is for %d microbatches", c->pipeline_schedule_file, lists->m);
    free(text);
    if (*why) {
        custom_close(lists);
        free(lists);
        return NULL;
    }
    s->v = lists->v;
    s->vee = lists->vee;
    s->lists = lists->list;
    return lists;
}

static char *add_pipeline(Table *t, const Config *c, PipeShape *s, const Times time[TIMES])
{
    Cell *cell;
    char *why = NULL;
    CustomLists *lists = s->kind == SCHEDULE_CUSTOM ? read_custom(c, s, &why) : NULL;
    why = why ? why : bubble_add(t, s, time, &cell);
    if (!why) {
        cell->custom = lists;
    } else if (lists) {
        custom_close(lists);
        free(lists);
    }
    return why;
}

static void add_sweep(Table *t, const Config *c, Wanted *w, const Times time[TIMES], int says)
{
    int said = 0, group = c->microbatch_group_size_per_vp_stage == CFG_ABSENT ? 0 : (int)c->microbatch_group_size_per_vp_stage;
    int limit = c->pipeline_max_activations == CFG_ABSENT ? 0 : (int)c->pipeline_max_activations;
    char *first = NULL;
    fill_wanted(w, c);
    for (int p = 0; p < w->p.n; p++)
        for (int m = 0; m < w->m.n; m++)
            for (int k = 0; k < w->kind.n; k++)
                for (int v = 0; v < w->v.n; v++) {
                    ScheduleKind kind = (ScheduleKind)w->kind.x[k];
                    int chunks = chunks_of(kind);
                    PipeShape s = {.kind = kind, .p = w->p.x[p], .v = chunks ? chunks : w->v.x[v], .m = w->m.x[m],
                                   .group = group, .limit = limit, .weight_share = isnan(c->clock_weight_share) ? 1 : c->clock_weight_share};
                    if ((chunks || kind == SCHEDULE_CUSTOM) && v)
                        continue;              /* --v is for schedules that have a choice */
                    if (kind == SCHEDULE_INTERLEAVED && s.v < 2 && w->v.n > 1)
                        continue;              /* of a list meant for other schedules too */
                    char *why = add_pipeline(t, c, &s, time);
                    if (why)
                        say(says, &said, &s, why);
                    if (why && !first)
                        first = why;
                    else
                        free(why);
                }
    if (!t->n)
        USAGE_ERROR("no pipeline is left: %s; change: --schedules, --p, --m or --v", first ? first : "interleaved needs --v "
                    "of 2 or more");
    free(first);
}

/* One pipeline: what the sweep says; 0: nothing. kind -1: nothing. */
static Overrides overrides_of(const Config *raw, int kind, int p, int m, int v)
{
    Overrides o = {0};
    int64_t micro = raw->micro_batch_size == CFG_ABSENT ? 1 : raw->micro_batch_size;
    int chunks = kind < 0 ? v : chunks_of((ScheduleKind)kind) ? chunks_of((ScheduleKind)kind) : v;
    if (kind >= 0)
        o.v[o.n++] = xasprintf("pipeline_schedule=%s", schedule_name((ScheduleKind)kind));
    if (p)
        o.v[o.n++] = xasprintf("pipeline_model_parallel_size=%d", p);
    if (m)
        o.v[o.n++] = xasprintf("global_batch_size=%lld", (long long)(m * micro));
    if (chunks)
        o.v[o.n++] = xasprintf("num_virtual_stages_per_pipeline_rank=%d", chunks);
    return o;
}

int bubble_overrides(const Config *raw, const Sweep *sweep, Overrides **list)
{
    Wanted w = wanted_open(sweep);
    int n = 0;
    otherwise(&w.kind, -1);
    otherwise(&w.p, 0);
    otherwise(&w.m, 0);
    otherwise(&w.v, 0);
    *list = xcalloc((size_t)w.kind.n * (size_t)w.p.n * (size_t)w.m.n * (size_t)w.v.n, sizeof **list);
    for (int p = 0; p < w.p.n; p++)
        for (int m = 0; m < w.m.n; m++)
            for (int k = 0; k < w.kind.n; k++)
                for (int v = 0; v < w.v.n; v++) {
                    int kind = w.kind.x[k], fixed = kind >= 0 && chunks_of((ScheduleKind)kind);
                    if (!(fixed && v) && !(kind >= 0 && !fixed && w.v.x[v] == 1 && w.v.n > 1))
                        (*list)[n++] = overrides_of(raw, kind, w.p.x[p], w.m.x[m], w.v.x[v]);
                }
    wanted_close(&w);
    return n;
}

/* ---- a file of cells ---- */

enum { COLUMN_LABEL = TIMES, COLUMN_SCHEDULE, COLUMN_P, COLUMN_V, COLUMN_M, COLUMN_LIMIT, COLUMN_SHARE, COLUMN_PUBLISHED, COLUMN_PEAK, COLUMN_STEPS,
       COLUMN_RESULTS, COLUMNS = COLUMN_RESULTS + 11 };
static const char *const column_name[COLUMNS] = {
    "forward_ms", "backward_input_ms", "backward_weight_ms", "p2p_ms", "label", "schedule", "p", "v", "m",
    "max_activations", "weight_share", "published",
    "published_peak", "steps", "measured_ms", "measured_least_ms", "measured_most_ms", "measured_rate",
    "measured_step_rate", "simulated_ms", "simulated_rate", "simulated_step_rate", "closed_form_rate",
    "closed_form_step_rate", "peak_activations"};

/* As bubble_csv writes them. standard: the times that a line does not give, and what of an activation stays until W. */
typedef struct {
    const char *path;
    int line, at[COLUMNS], results;            /* results: measurements are taken over */
    Times standard[TIMES];
    double weight_share;
} Reader;

static void read_head(Reader *r, const char *line)
{
    int n = 0;
    for (int k = 0; k < COLUMNS; k++)
        r->at[k] = -1;
    for (char *name; (name = next_piece(&line)); free(name), n++) {
        int k = 0;
        while (k < COLUMNS && strcmp(column_name[k], name))
            k++;
        if (k == COLUMNS)
            USAGE_ERROR("%s:%d: there is no column '%s'; change: label, schedule, p, v, m, forward_ms, "
                        "backward_input_ms, backward_weight_ms, p2p_ms, max_activations, weight_share, published, "
                        "published_peak", r->path, r->line,
                        name);
        r->at[k] = n;
    }
    for (int k = COLUMN_SCHEDULE; k <= COLUMN_M; k++)
        if (r->at[k] < 0 && k != COLUMN_V)
            USAGE_ERROR("%s:%d: the column '%s' is missing; change: name the columns in the first line", r->path,
                        r->line, column_name[k]);
}

/* One number, or one a virtual stage with blanks between; empty: the standard. */
static Times read_times(const Reader *r, const char *text, int k)
{
    Times new = {0};
    for (const char *s = text + strspn(text, " "); *s; s += strspn(s, " ")) {
        char *end;
        double x = strtod(s, &end);
        if (end == s || !(x >= 0) || !isfinite(x))
            USAGE_ERROR("%s:%d: %s '%s' is no time; change: a number of ms, or one a virtual stage", r->path, r->line,
                        column_name[k], text);
        new.ms = xrealloc(new.ms, (size_t)(new.n + 1) * sizeof *new.ms);
        new.ms[new.n++] = x;
        s = end;
    }
    if (new.n)
        return new;
    if (!r->standard[k].n)
        USAGE_ERROR("%s:%d: no %s; change: give it there, or clock_%s in the configuration", r->path, r->line,
                    time_name[k], time_name[k]);
    new = (Times){r->standard[k].n, xcalloc((size_t)r->standard[k].n, sizeof(double))};
    memcpy(new.ms, r->standard[k].ms, (size_t)new.n * sizeof(double));
    return new;
}

static double read_number(const Reader *r, char *const field[], int k, int whole)
{
    char *end;
    double x = strtod(field[k], &end);
    if (!*field[k] && !whole)
        return NAN;
    if (end == field[k] || *end || !isfinite(x) || (whole && (x < 1 || x > UINT16_MAX || x != floor(x))))
        USAGE_ERROR("%s:%d: %s '%s' is not a%s number; change: give one", r->path, r->line, column_name[k], field[k],
                    whole ? " whole" : "");
    return x;
}

/* The line's fields by column, "" where there is none; on the heap. */
static void read_fields(const Reader *r, const char *line, char *field[COLUMNS])
{
    int n = 0;
    memset(field, 0, COLUMNS * sizeof *field);
    for (char *piece; (piece = next_piece(&line)); n++) {
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
    double *to[] = {&c->measured_span, &c->least, &c->most, &c->measured.rate, &c->measured.step_rate, &c->span,
                    &c->simulated.rate, &c->simulated.step_rate, &c->closed_form.rate, &c->closed_form.step_rate};
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
    ScheduleKind kind = kind_of(field[COLUMN_SCHEDULE], r->path);
    int chunks = chunks_of(kind);
    PipeShape s = {.kind = kind, .p = (int)read_number(r, field, COLUMN_P, 1),
                   .v = *field[COLUMN_V] || !chunks ? (int)read_number(r, field, COLUMN_V, 1) : chunks,
                   .m = (int)read_number(r, field, COLUMN_M, 1), .weight_share = r->weight_share,
                   .limit = *field[COLUMN_LIMIT] ? (int)read_number(r, field, COLUMN_LIMIT, 1) : 0};
    if (*field[COLUMN_SHARE])
        s.weight_share = read_number(r, field, COLUMN_SHARE, 0);
    if (!(s.weight_share >= 0 && s.weight_share <= 1))
        USAGE_ERROR("%s:%d: weight_share %s is not in [0, 1]; change: the part of an activation that stays until W", r->path,
                    r->line, field[COLUMN_SHARE]);
    if (kind == SCHEDULE_CUSTOM && !r->results)
        USAGE_ERROR("%s:%d: lists of a file are no cell; change: pipeline_schedule=custom without clock_cells", r->path,
                    r->line);
    if (holds(&w->kind, (int)kind) && holds(&w->p, s.p) && holds(&w->m, s.m) && holds(&w->v, s.v)) {
        Cell *cell;
        char *why = bubble_add(t, &s, time, &cell);
        if (why)
            USAGE_ERROR("%s:%d: %s; change: that cell", r->path, r->line, why);
        cell->published = read_number(r, field, COLUMN_PUBLISHED, 0);
        cell->published_peak = read_number(r, field, COLUMN_PEAK, 0);
        cell->label = *field[COLUMN_LABEL] ? xstrdup(field[COLUMN_LABEL]) : NULL;
        if (r->results)
            read_results(r, field, cell);
    }
    times_close(time);
    for (int k = 0; k < COLUMNS; k++)
        free(field[k]);
}

static void read_file(Table *t, Reader *r, const Wanted *w)
{
    char why[WHY], *rest;
    int64_t size;
    char *text = file_read_text(AT_FDCWD, r->path, 0, 64 << 20, &size, why);
    int headed = 0;
    if (!text)
        USAGE_ERROR("%s; change: clock_cells, a path from here or from the folder of the configuration", why);
    rest = text;
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

/* The path itself, or, where nothing is there and it is relative, from the configuration's folder on. */
static char *find_cells(const Config *c)
{
    const char *slash = strrchr(c->path, '/');
    if (!access(c->clock_cells, F_OK) || *c->clock_cells == '/' || !slash)
        return xstrdup(c->clock_cells);
    return xasprintf("%.*s/%s", (int)(slash - c->path), c->path, c->clock_cells);
}

static void add_file(Table *t, const Config *c, const Wanted *w)
{
    char *path = find_cells(c);
    Reader r = {.path = path, .weight_share = isnan(c->clock_weight_share) ? 1 : c->clock_weight_share};
    times_of(c, r.standard);
    read_file(t, &r, w);
    if (!t->n)
        USAGE_ERROR("%s has no cell that --schedules, --p, --m and --v let pass; change: leave some of them out", path);
    times_close(r.standard);
    free(path);
}

void bubble_read(Table *t, const char *path)
{
    Reader r = {.path = path, .weight_share = 1, .results = 1};
    Wanted all = {0};
    read_file(t, &r, &all);
}

/* ---- all ---- */

void bubble_open(Table *t, const Config *cfg, const Sweep *sweep, int timeless, int says)
{
    Wanted w = wanted_open(sweep);
    *t = (Table){0};
    if (cfg->clock_cells) {
        add_file(t, cfg, &w);
    } else {
        Times time[TIMES];
        times_of(cfg, time);
        int given = (time[TIME_F].n > 0) + (time[TIME_D].n > 0) + (time[TIME_W].n > 0);
        if (given && given < 3)
            USAGE_ERROR("clock_forward_ms, clock_backward_input_ms and clock_backward_weight_ms go together; change: "
                        "give all three, or none");
        if (!given && !timeless)
            USAGE_ERROR("nothing says how long a computation takes; change: give clock_forward_ms, "
                        "clock_backward_input_ms and clock_backward_weight_ms (20 each, for example), or --simulate");
        for (int k = 0; k < TIME_HOP && !given; k++)
            time[k].ms[0] = time[k].n = 1;
        add_sweep(t, cfg, &w, time, says);
        times_close(time);
    }
    wanted_close(&w);
}

void bubble_simulate_cell(Cell *c, const PipeShape *made)
{
    Simulation sim;
    char why[WHY];
    schedules_open(&c->set, made);
    if (!schedules_check(&c->set, why, sizeof why))
        die(EXIT_BUG, "schedule", "the lists of %s, p %d, v %d, m %d are wrong: %s; change: report this",
            schedule_name(c->shape.kind), c->shape.p, c->shape.v, c->shape.m, why);
    c->set.shape = c->shape;
    simulate(&c->set, &sim, 0);
    c->span = sim.makespan;
    c->simulated = (Rates){sim.rate, sim.step_rate};
    c->closed_form = closed_form(&c->shape);
    c->peak = sim.peak;
    sim.peak = NULL;
    simulation_close(&sim);
}

void bubble_simulate(Table *t)
{
    for (int i = 0; i < t->n; i++)
        bubble_simulate_cell(&t->cell[i], &t->cell[i].shape);
}
