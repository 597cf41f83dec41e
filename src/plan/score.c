/* score -- tables of measured runs read and predicted */
#define _GNU_SOURCE
#include "score.h"
#include "base.h"
#include "config_table.h"
#include "file.h"
#include "split.h"
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SCORE_ERROR(...) die(EXIT_CONFIG, "score", __VA_ARGS__)

enum {
    COLUMN_NAME, COLUMN_WORLD, COLUMN_CONFIG, COLUMN_STEP, COLUMN_TOKENS, COLUMN_SET, COLUMN_NOTE, COLUMNS
};
static const char *const column_name[COLUMNS] = {"name", "world", "config", "step_s", "tokens_per_second",
                                                 "set", "note"};

typedef struct {
    const char *path;
    int line, n;               /* line of the file, from 1; columns */
    char **head;               /* [n] names of the columns */
    char **cell;               /* [n] texts of the line that was read last */
    int at[COLUMNS];           /* place of a column; -1: the table does not have it */
} Table;

/* The next cell of a line, on the heap, without its quotes; two quotes within them are one of the cell (RFC
 * 4180). NULL at the end of the line. *rest: in/out. */
static char *next_cell(const Table *t, const char **rest)
{
    const char *s = *rest;
    if (!s)
        return NULL;
    int quoted = *s == '"';
    const char *end = s += quoted;
    while (*end && (quoted ? *end != '"' || end[1] == '"' : *end != ','))
        end += 1 + (quoted && *end == '"');
    char *cell = xasprintf("%.*s", (int)(end - s), s), *to = cell;
    for (const char *from = cell; *from; from += 1 + (quoted && *from == '"'))
        *to++ = *from;
    *to = 0;
    s = end;
    if (quoted && *s++ != '"')
        SCORE_ERROR("%s:%d: a quote is not closed; change: end the cell with \"", t->path, t->line);
    if (*s && *s != ',')
        SCORE_ERROR("%s:%d: '%.20s' behind a quoted cell; change: a comma", t->path, t->line, s);
    *rest = *s ? s + 1 : NULL;
    return cell;
}

/* Splits a line into cells. Returns their number. */
static int read_cells(const Table *t, const char *line, char ***cells)
{
    int n = 0;
    *cells = NULL;
    for (char *cell; (cell = next_cell(t, &line)); n++) {
        *cells = xrealloc(*cells, (size_t)(n + 1) * sizeof **cells);
        (*cells)[n] = cell;
    }
    return n;
}

static void free_cells(char **cell, int n)
{
    for (int i = 0; i < n; i++)
        free(cell[i]);
    free(cell);
}

static int column_of(const char *name)
{
    for (int k = 0; k < COLUMNS; k++)
        if (!strcmp(column_name[k], name))
            return k;
    return -1;
}

static void read_head(Table *t, const char *line)
{
    t->n = read_cells(t, line, &t->head);
    t->cell = NULL;
    for (int k = 0; k < COLUMNS; k++)
        t->at[k] = -1;
    for (int i = 0; i < t->n; i++) {
        int k = column_of(t->head[i]);
        for (int b = 0; b < i; b++)
            if (!strcmp(t->head[i], t->head[b]))
                SCORE_ERROR("%s:%d: column '%s' stands there twice; change: leave one", t->path, t->line,
                            t->head[i]);
        if (k < 0 && option_find(t->head[i]) < 0)
            SCORE_ERROR("%s:%d: column '%s' is none; change: name, world, config, step_s or "
                        "tokens_per_second, set, note, or a key of `train help keys`", t->path, t->line,
                        t->head[i]);
        if (k >= 0)
            t->at[k] = i;
    }
    for (int k = COLUMN_NAME; k <= COLUMN_CONFIG; k++)
        if (t->at[k] < 0)
            SCORE_ERROR("%s:%d: no column '%s'; change: add it", t->path, t->line, column_name[k]);
    if ((t->at[COLUMN_STEP] < 0) == (t->at[COLUMN_TOKENS] < 0))
        SCORE_ERROR("%s:%d: no column or two columns with what was measured; change: either step_s, seconds "
                    "of a step, or tokens_per_second, of the whole job", t->path, t->line);
}

static const char *cell_of(const Table *t, int k) { return t->at[k] < 0 ? "" : t->cell[t->at[k]]; }

static double number_of(const Table *t, int k)
{
    char *end;
    const char *text = cell_of(t, k);
    double x = strtod(text, &end);
    if (end == text || *end || !(x > 0) || !isfinite(x))
        SCORE_ERROR("%s:%d: %s '%s' is no number above 0; change: give one", t->path, t->line, column_name[k],
                    text);
    return x;
}

/* The configuration of a line. It lives until the caller's keep_mark is released. */
static const Config *config_of(const Table *t, int world, int nargs, char **args)
{
    const char *slash = strrchr(t->path, '/');
    char *file = textf("%.*s%s", slash ? (int)(slash + 1 - t->path) : 0, t->path, cell_of(t, COLUMN_CONFIG));
    char **line = keep_alloc((size_t)(t->n + nargs), sizeof *line);
    int n = 0;
    Check k;
    for (int i = 0; i < t->n; i++)
        if (column_of(t->head[i]) < 0 && t->cell[i][0])
            line[n++] = textf("%s=%s", t->head[i], t->cell[i]);
    memcpy(line + n, args, (size_t)nargs * sizeof *line);
    config_check(&k, file, n + nargs, line, world, USE_MODEL);
    if (!k.n)
        return k.cfg;
    check_print(&k, stderr);
    SCORE_ERROR("%s:%d: the list above is about this row, %s; change: what the list names", t->path, t->line,
                cell_of(t, COLUMN_NAME));
}

static void predict_row(ScoreRow *r, const Table *t, const Machine *m, int nargs, char **args)
{
    Prediction p;
    void *mark = keep_mark();
    const Config *c = config_of(t, r->world, nargs, args);
    const BatchStep *last = &c->batch_step[c->batch_steps - 1];
    if (t->at[COLUMN_TOKENS] >= 0)
        r->measured = (double)(last->batch * c->seq_length) / r->measured;
    predict_check(c, m);
    predict(&p, split_predicted(c, m, NULL), m);
    r->predicted = p.step;
    r->bubble = p.bubble;
    for (int i = 0; i < p.p; i++)
        r->memory = p.memory[i].total > r->memory ? p.memory[i].total : r->memory;
    r->fits = machine_fits(m, r->world, r->memory);
    prediction_close(&p);
    keep_release(mark);
}

static void add_row(Score *s, Table *t, const char *line, const Machine *m, int nargs, char **args)
{
    int n = read_cells(t, line, &t->cell);
    if (n != t->n)
        SCORE_ERROR("%s:%d: %d cells under %d columns; change: one cell a column, empty ones too", t->path,
                    t->line, n, t->n);
    double world = number_of(t, COLUMN_WORLD);
    if (world != floor(world) || world > 1e6)
        SCORE_ERROR("%s:%d: world '%s' is no number of ranks; change: a whole number up to 1000000", t->path,
                    t->line, cell_of(t, COLUMN_WORLD));
    s->row = xrealloc(s->row, (size_t)(s->n + 1) * sizeof *s->row);
    ScoreRow *r = &s->row[s->n++];
    *r = (ScoreRow){.name = text_shown(cell_of(t, COLUMN_NAME)), .set = text_shown(cell_of(t, COLUMN_SET)),
                    .line = t->line, .world = (int)world,
                    .measured = number_of(t, t->at[COLUMN_STEP] >= 0 ? COLUMN_STEP : COLUMN_TOKENS)};
    predict_row(r, t, m, nargs, args);
    free_cells(t->cell, n);
}

void score_open(Score *s, const char *path, const Machine *m, int nargs, char **args)
{
    char why[WHY];
    Table t = {.path = path};
    char *text = file_read_lines(path, 1 << 24, why);
    *s = (Score){.path = path};
    if (!text)
        SCORE_ERROR("%s; change: the path of a CSV file, as those of configs/published", why);
    for (char *line = file_behind_mark(text), *next; line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = 0;
        line[strcspn(line, "\r")] = 0;
        t.line++;
        if (!*line || *line == '#')
            continue;
        if (t.n)
            add_row(s, &t, line, m, nargs, args);
        else
            read_head(&t, line);
    }
    if (!s->n)
        SCORE_ERROR("%s: no rows; change: a line with the columns' names, then one line a run", path);
    free_cells(t.head, t.n);
    free(text);
}

void score_close(Score *s)
{
    for (int i = 0; i < s->n; i++) {
        free((char *)s->row[i].name);
        free((char *)s->row[i].set);
    }
    free(s->row);
}

int score_mean(const Score *s, const char *set, double *mean, double *most)
{
    int n = 0;
    *mean = *most = 0;
    for (int i = 0; i < s->n; i++)
        if (!set || !strcmp(s->row[i].set, set)) {
            double e = fabs(score_error(&s->row[i]));
            *mean += e;
            *most = fmax(*most, e);
            n++;
        }
    *mean /= n ? n : 1;
    return n;
}
