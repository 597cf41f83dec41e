/* trace -- the ring of a rank's events, and their gathering on rank 0 */
#define _GNU_SOURCE
#include "timeline.h"
#include "config_table.h"
#include "json_number.h"
#include "losses.h"
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void trace_open(Trace *t, const Config *cfg, int64_t per_step, Arena *host)
{
    *t = (Trace){.cfg = cfg, .max = cfg->trace_steps.n * per_step};
    t->ring = t->max ? arena_take(host, (size_t)t->max * sizeof *t->ring) : NULL;
}

void trace_close(Trace *t)
{
    if (t->max)
        comm_listen(NULL, NULL);
    *t = (Trace){0};
}

static void record(Trace *t, TraceEvent e)
{
    int64_t at = __atomic_fetch_add(&t->n, 1, __ATOMIC_RELAXED);
    t->ring[at % t->max] = e;
}

static uint8_t group_of(const char *name)
{
    int g = 0;
    while (g < GROUPS && strcmp(timeline_group_name[g], name))
        g++;
    BUG_ON(g == GROUPS);
    return (uint8_t)g;
}

/* Called when an operation has ended, on any thread, under the lock that comm_listen takes. */
static void heard(void *trace, const CommEvent *e)
{
    Trace *t = trace;
    for (int w = 0; w < 2; w++)
        if (e->start >= t->window[w].from && e->start < t->window[w].to)
            record(t, (TraceEvent){.start = e->start, .called = e->start, .end = e->end, .bytes = e->bytes,
                                   .moved = e->moved, .behind = e->behind, .step = t->window[w].step,
                                   .peer = e->peer, .unit = WHOLE, .kind = (uint16_t)(SPAN_END + e->kind),
                                   .group = group_of(e->comm)});
}

/* comm_listen(NULL) makes sure that `heard` does not run while its windows change. */
static void open_window(Trace *t, int64_t step)
{
    comm_listen(NULL, NULL);
    t->window[1] = t->window[0];
    t->window[0].step = step;
    t->window[0].from = now();
    t->window[0].to = INFINITY;
    comm_listen(heard, t);
}

static void close_window(Trace *t, double at)
{
    comm_listen(NULL, NULL);
    t->window[0].to = fmin(t->window[0].to, at);
    comm_listen(heard, t);
}

static int is_listed(const Trace *t, int64_t step)
{
    int listed = 0;
    for (int i = 0; t->max && i < t->cfg->trace_steps.n; i++)
        listed |= atoll(t->cfg->trace_steps.v[i]) == step;
    return listed;
}

void trace_step(Trace *t, int64_t step)
{
    int on = is_listed(t, step), was = t->on;
    if (was)
        close_window(t, now());
    if (on)
        open_window(t, step);
    else if (t->window[0].from > 0 && !was) /* operations of a recorded step have ended a step later */
        comm_listen(NULL, NULL);
    t->on = on;
}

int trace_due(Trace *t, int64_t step)
{
    t->steps_done += t->on;
    if (!t->on || (is_listed(t, step + 1) && t->steps_done < 2 * t->steps_kept))
        return 0;
    t->steps_kept = t->steps_done;
    return 1;
}

void trace_end(Trace *t, TraceSpan span, double start)
{
    if (t->on && start > 0)
        record(t, (TraceEvent){.start = start, .end = now(), .kind = (uint16_t)span, .unit = WHOLE,
                               .peer = -1, .step = t->window[0].step});
}

void trace_losses(Trace *t, double start, const double *s)
{
    for (int i = 0; i < LOSSES && t->on; i++) {
        record(t, (TraceEvent){.start = start, .end = start + s[i], .kind = SPAN_LOSS, .unit = (uint16_t)i,
                               .peer = -1, .step = t->window[0].step});
        start += s[i];
    }
}

void trace_instr(Trace *t, const Instr *i, double start, double end)
{
    if (!t->on)
        return;
    record(t, (TraceEvent){.start = start, .end = end, .kind = i->op, .mb = i->mb, .chunk = i->chunk,
                           .unit = i->unit, .phase = i->phase, .peer = -1, .step = t->window[0].step});
    if (i->op == I_S)
        close_window(t, end);
}

/* ---- one clock ---- */

enum { QUESTIONS = 16 };               /* round trips of a comparison */

/* The offset to be added to this host's clock to get rank 0's: rank 0 sends `leader` its time. Called by
 * these two ranks. */
static double compare_clocks(Comm *all, int leader)
{
    double best = INFINITY, offset = 0;
    for (int i = 0; i < QUESTIONS; i++) {
        double asked = now(), answer = 0;
        if (all->rank == 0) {
            all->wait(all, all->recv(all, &answer, 1, F64, leader));
            answer = now();
            all->wait(all, all->send(all, &answer, 1, F64, leader));
            continue;
        }
        all->wait(all, all->send(all, &answer, 1, F64, 0));
        all->wait(all, all->recv(all, &answer, 1, F64, 0));
        double back = now();
        if (back - asked < best) {
            best = back - asked;
            offset = answer - (asked + back) / 2;
        }
    }
    return offset;
}

/* The offset of this host, compared by its lowest rank. Collective over g->all. */
static double offset_of(Grid *g)
{
    Comm *all = &g->all;
    int64_t mine = grid_host(g), *host = xcalloc((size_t)all->size, sizeof *host);
    double *offset = xcalloc((size_t)all->size, sizeof *offset), leader = 0;
    all->wait(all, all->all_gather(all, host, &mine, 1, I64));
    for (int r = 1; r < all->size; r++)
        if (host[r] == r && (all->rank == 0 || all->rank == r))
            leader = compare_clocks(all, r);
    all->wait(all, all->all_gather(all, offset, &leader, 1, F64));
    leader = offset[mine];
    free(host);
    free(offset);
    return mine == 0 ? 0 : leader;
}

void trace_start(Trace *t, Grid *g)
{
    if (!t->max)
        return;
    t->offset[0] = offset_of(g);
    t->at[0] = now();
}

static double rank0_time(const Trace *t, double x)
{
    double between = t->at[1] > t->at[0] ? (x - t->at[0]) / (t->at[1] - t->at[0]) : 1;
    return x + t->offset[0] + between * (t->offset[1] - t->offset[0]);
}

/* ---- all ranks together ---- */

typedef struct { int64_t n, lost, index[AXES]; } RankHead;
enum { WORDS = sizeof(TraceEvent) / 8, HEAD_WORDS = sizeof(RankHead) / 8 };

/* This rank's last n events, the oldest first, on rank 0's clock. On the heap. */
static TraceEvent *own_events(const Trace *t, int64_t n)
{
    TraceEvent *e = xcalloc((size_t)n + 1, sizeof *e);
    for (int64_t i = 0; i < n; i++) {
        e[i] = t->ring[(t->n - n + i) % t->max];
        e[i].start = rank0_time(t, e[i].start);
        e[i].end = rank0_time(t, e[i].end);
        e[i].called = rank0_time(t, e[i].called);
    }
    return e;
}

/* mine: this rank's events, which are on the heap and belong to the timeline then. */
static void gather(Timeline *out, TraceEvent *mine, Grid *g, const RankHead *heads)
{
    Comm *all = &g->all;
    *out = (Timeline){0};
    if (all->rank) {
        if (heads[all->rank].n)
            all->wait(all, all->send(all, mine, heads[all->rank].n * WORDS, I64, 0));
        free(mine);
        return;
    }
    out->ranks = all->size;
    out->rank = xcalloc((size_t)all->size, sizeof *out->rank);
    for (int r = 0; r < all->size; r++) {
        TimelineRank *k = &out->rank[r];
        k->n = heads[r].n;
        k->lost = heads[r].lost;
        for (int a = 0; a < AXES; a++)
            k->index[a] = (int)heads[r].index[a];
        k->event = r ? xcalloc((size_t)k->n + 1, sizeof *k->event) : mine;
        if (r && k->n)
            all->wait(all, all->recv(all, k->event, k->n * WORDS, I64, r));
    }
}

/* Every key of the configuration with its value as `key=value` takes it. */
static json_t *config_object(const Config *cfg)
{
    json_t *o = json_object();
    for (int i = 0; i < OPTIONS; i++) {
        char *text = config_text(cfg, i);
        json_object_set_new(o, options[i].key, json_text(text));
        free(text);
    }
    return o;
}

static int put_file(const Timeline *t, const char *run_dir, char why[WHY])
{
    char *text = NULL;
    size_t size;
    FILE *f = xmemstream(&text, &size);
    timeline_put(f, t);
    fclose(f);
    int ok = file_replace_in(run_dir, "trace.json", text, (int64_t)size, why);
    free(text);
    return ok;
}

void timeline_gather(Timeline *out, Trace *t, Grid *g, const PipeShape *shape)
{
    Comm *all = &g->all;
    *out = (Timeline){0};
    if (!t->max)                                   /* the same on every rank */
        return;
    t->offset[1] = offset_of(g);
    t->at[1] = now();
    comm_listen(NULL, NULL);                       /* nothing is recorded while the events are copied */
    RankHead head = {.n = t->n < t->max ? t->n : t->max, .lost = t->n < t->max ? 0 : t->n - t->max};
    TraceEvent *mine = own_events(t, head.n);
    if (t->on)                                     /* operations of the step may end later */
        comm_listen(heard, t);
    RankHead *heads = xcalloc((size_t)all->size, sizeof *heads);
    for (int a = 0; a < AXES; a++)
        head.index[a] = g->index[a];
    all->wait(all, all->all_gather(all, heads, &head, HEAD_WORDS, I64));
    int64_t events = 0;
    for (int r = 0; r < all->size; r++)
        events += heads[r].n;
    if (events)
        gather(out, mine, g, heads);
    else
        free(mine);
    free(heads);
    if (!out->ranks)
        return;
    out->shape = *shape;
    out->config = config_object(t->cfg);
    timeline_settle(out);
}

int trace_write(Trace *t, const char *run_dir, Grid *g, const PipeShape *shape, char said[TRACE_SAID],
                char why[WHY])
{
    Timeline whole;
    int ok = 1;
    *said = 0;
    timeline_gather(&whole, t, g, shape);
    if (whole.ranks) {
        timeline_say(&whole, said, TRACE_SAID);
        ok = put_file(&whole, run_dir, why);
    }
    timeline_close(&whole);
    return ok;
}
