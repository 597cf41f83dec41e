/* bubble_range -- the cells of a range and the configuration */
#define _GNU_SOURCE
#include "bubble_table.h"
#include "config_table.h"
#include "file.h"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

/* ---- lists of the command line ---- */

char *bubble_next_piece(const char **rest)
{
    if (!*rest)
        return NULL;
    size_t n = strcspn(*rest, ","), from = strspn(*rest, " \t"), to = n;
    while (to > from && strchr(" \t", (*rest)[to - 1]))
        to--;
    char *piece = xasprintf("%.*s", to > from ? (int)(to - from) : 0, *rest + from);
    *rest = (*rest)[n] ? *rest + n + 1 : NULL;
    return piece;
}

ScheduleKind bubble_kind(const char *name, const char *where)
{
    ScheduleKind kind = schedule_find(name);
    if (kind != SCHEDULE_CHOICES)
        return kind;
    USAGE_ERROR("%s: there is no schedule '%s'; change: see `train help pipeline_schedule`", where, name);
}

static Numbers kinds_of(const char *list)
{
    Numbers n = {0};
    for (char *piece; (piece = bubble_next_piece(&list)); free(piece)) {
        n.x = xrealloc(n.x, (size_t)(n.n + 1) * sizeof *n.x);
        n.x[n.n++] = (int)bubble_kind(piece, "--schedules");
    }
    return n;
}

static Numbers numbers_of(const char *list, const char *flag)
{
    Numbers n = {0};
    for (char *piece; (piece = bubble_next_piece(&list)); free(piece)) {
        char *end;
        long x = strtol(piece, &end, 10);
        if (end == piece || *end || x < 1 || x > UINT16_MAX)
            USAGE_ERROR("%s: '%s' is not a whole number in [1, 65535]; change: numbers with commas between",
                        flag, piece);
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
    return !n->n;                      /* an empty list holds everything */
}

Wanted wanted_open(const BubbleRange *s)
{
    return (Wanted){kinds_of(s->schedules), numbers_of(s->p, "--p"), numbers_of(s->m, "--m"),
                    numbers_of(s->v, "--v")};
}

void wanted_close(Wanted *w)
{
    free(w->kind.x);
    free(w->p.x);
    free(w->m.x);
    free(w->v.x);
}

int wanted_holds(const Wanted *w, const PipeShape *s)
{
    return holds(&w->kind, (int)s->kind) && holds(&w->p, s->p) && holds(&w->m, s->m) && holds(&w->v, s->v);
}

/* An empty list becomes {x}. */
static void otherwise(Numbers *n, int64_t x)
{
    if (n->n)
        return;
    n->x = xcalloc(1, sizeof *n->x);
    n->x[n->n++] = (int)x;
}

/* ---- the range ---- */

/* The first mistake in lists; "": none. */
typedef struct { char text[256]; } Mistake;

static void note_mistake(void *ctx, int line, int col, const char *what)
{
    Mistake *m = ctx;
    if (!*m->text)
        snprintf(m->text, sizeof m->text, "%d:%d: %s", line, col, what);
}

#define SAID 8                         /* most lines about combinations left out */

static void say(int says, int *said, const PipeShape *s, const char *why)
{
    if (says && *said < SAID)
        fprintf(stderr, "left out: %s, p %d, v %d, m %d: %s\n", schedule_name(s->kind), s->p, s->v, s->m,
                why);
    else if (says && *said == SAID)
        fprintf(stderr, "left out: more of that kind\n");
    ++*said;
}

/* The samples of a step: the first one of a schedule of batch sizes. Nothing is derived in c. */
static int64_t first_batch(const Config *c)
{
    Config own = *c;
    if (!c->step_batch_size_schedule)
        return c->global_batch_size;
    own.seq_length = 1;                /* the thresholds are of no use here */
    own.micro_batch_size = own.data_parallel_size = 1;
    char *error = config_parse_schedule(&own, 1);
    if (error)
        USAGE_ERROR("step_batch_size_schedule %s; change: give --m, or another schedule", error);
    return own.batch_step[0].batch;
}

static void fill_wanted(Wanted *w, const Config *c)
{
    int64_t batch = w->m.n ? CFG_ABSENT : first_batch(c);
    int64_t micro = c->micro_batch_size == CFG_ABSENT ? 1 : c->micro_batch_size;
    int64_t v = c->num_virtual_stages_per_pipeline_rank;
    otherwise(&w->kind, c->pipeline_schedule >= 0 ? c->pipeline_schedule
                        : v != CFG_ABSENT && v > 1 ? SCHEDULE_INTERLEAVED : SCHEDULE_1F1B);
    otherwise(&w->p, c->pipeline_model_parallel_size);
    otherwise(&w->v, v == CFG_ABSENT ? 1 : v);
    if (!w->m.n && batch == CFG_ABSENT)
        USAGE_ERROR("no number of microbatches; change: give --m, or global_batch_size in %s", c->path);
    if (!w->m.n && (batch % micro || batch / micro > UINT16_MAX))
        USAGE_ERROR("%s %lld is no number of microbatches of %lld that can be; change: give --m",
                    c->step_batch_size_schedule ? "step_batch_size_schedule's first batch of"
                                                : "global_batch_size",
                    (long long)batch, (long long)micro);
    otherwise(&w->m, batch / micro);
}

/* Reads the lists of pipeline_schedule_file for s->p ranks into *s. Returns NULL, with *why on the heap,
 * when they do not fit. */
static CustomLists *read_custom(const Config *c, PipeShape *s, char **why)
{
    CustomLists *lists = xcalloc(1, sizeof *lists);
    char reason[WHY];
    int64_t size;
    char *from, *text = c->pipeline_schedule_file
                     ? file_read_text(AT_FDCWD, c->pipeline_schedule_file, 0, CUSTOM_BYTES_MOST, &size,
                                      reason)
                     : NULL;
    Mistake first = {0};
    from = text ? file_behind_mark(text) : NULL;
    if (!text)
        *why = c->pipeline_schedule_file ? xstrdup(reason) : xstrdup("custom needs pipeline_schedule_file");
    else if (!custom_read(lists, from, (size_t)(text + size - from), s->p, note_mistake, &first))
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

void bubble_add_range(Table *t, const Config *c, Wanted *w, const Times time[TIMES], int says)
{
    int said = 0;
    char *first = NULL;
    fill_wanted(w, c);
    for (int p = 0; p < w->p.n; p++)
        for (int m = 0; m < w->m.n; m++)
            for (int k = 0; k < w->kind.n; k++)
                for (int v = 0; v < w->v.n; v++) {
                    ScheduleKind kind = (ScheduleKind)w->kind.x[k];
                    int chunks = schedule_chunks(kind);
                    PipeShape s = {.kind = kind, .p = w->p.x[p], .v = chunks ? chunks : w->v.x[v],
                                   .m = w->m.x[m], .group = bubble_group(c), .limit = bubble_limit(c),
                                   .weight_share = bubble_weight_share(c)};
                    if ((chunks || kind == SCHEDULE_CUSTOM) && v)
                        continue;              /* --v has no effect on this schedule: one cell */
                    if (s.v < schedule_info[kind].chunks && w->v.n > 1)
                        continue;              /* this v is for other schedules of the range */
                    char *why = add_pipeline(t, c, &s, time);
                    if (why)
                        say(says, &said, &s, why);
                    if (why && !first)
                        first = why;
                    else
                        free(why);
                }
    if (!t->n)
        USAGE_ERROR("no pipeline is left: %s; change: --schedules, --p, --m or --v",
                    first ? first : "interleaved needs --v of 2 or more");
    free(first);
}

/* The overrides of one pipeline. p, m, v 0 and kind -1: not overridden. */
static Overrides overrides_of(const Config *raw, int kind, int p, int m, int v)
{
    Overrides o = {0};
    int64_t micro = raw->micro_batch_size == CFG_ABSENT ? 1 : raw->micro_batch_size;
    int fixed = kind < 0 ? 0 : schedule_chunks((ScheduleKind)kind), chunks = fixed ? fixed : v;
    if (kind >= 0)
        o.v[o.n++] = xasprintf("pipeline_schedule=%s", schedule_name((ScheduleKind)kind));
    if (p)
        o.v[o.n++] = xasprintf("pipeline_model_parallel_size=%d", p);
    if (m)
        o.v[o.n++] = xasprintf("global_batch_size=%lld", (long long)(m * micro));
    if (m && raw->step_batch_size_schedule)
        o.v[o.n++] = xstrdup("step_batch_size_schedule=null");
    if (chunks)
        o.v[o.n++] = xasprintf("num_virtual_stages_per_pipeline_rank=%d", chunks);
    return o;
}

int bubble_overrides(const Config *raw, const BubbleRange *range, Overrides **list)
{
    Wanted w = wanted_open(range);
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
                    int kind = w.kind.x[k], fixed = kind >= 0 && schedule_chunks((ScheduleKind)kind);
                    if (!(fixed && v) && !(kind >= 0 && !fixed && w.v.x[v] == 1 && w.v.n > 1))
                        (*list)[n++] = overrides_of(raw, kind, w.p.x[p], w.m.x[m], w.v.x[v]);
                }
    wanted_close(&w);
    return n;
}
