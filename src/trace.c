#define _GNU_SOURCE
#include "trace.h"
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const stream_name[STREAMS] = {"compute", "loader", "checkpoint"};
static const struct { const char *name; TraceStream stream; } span_info[] = {
#define X(id, name, stream) {name, STREAM_##stream},
    SPANS(X)
#undef X
};

void trace_open(Trace *t, const Config *cfg, int64_t per_step)
{
    *t = (Trace){.steps = cfg->trace_steps, .max = cfg->trace_steps.n * per_step};
    t->ring = t->max ? xcalloc((size_t)t->max, sizeof *t->ring) : NULL;
}

void trace_close(Trace *t)
{
    free(t->ring);
    *t = (Trace){0};
}

void trace_step(Trace *t, int64_t step)
{
    t->on = 0;
    t->step = step;
    for (int i = 0; i < t->steps.n && t->max; i++)
        t->on |= atoll(t->steps.v[i]) == step;
}

static void record(Trace *t, TraceEvent e)
{
    int64_t at = __atomic_fetch_add(&t->n, 1, __ATOMIC_RELAXED);
    e.step = t->step;
    t->ring[at % t->max] = e;
}

void trace_end(Trace *t, TraceSpan span, double start)
{
    if (t->on && start > 0)
        record(t, (TraceEvent){.start = start, .end = now(), .kind = (uint16_t)span, .part = WHOLE});
}

void trace_instr(Trace *t, const Instr *i, double start, double end)
{
    if (t->on)
        record(t, (TraceEvent){.start = start, .end = end, .kind = i->op, .mb = i->mb, .chunk = i->chunk,
                               .part = i->part, .phase = i->phase});
}

/* ---- The file ---- */

typedef struct { int64_t n, axis[AXES]; } RankHead;

static void put_event(FILE *f, const TraceEvent *e, int rank, double origin)
{
    char name[32];
    const char *category = name;
    TraceStream stream = STREAM_COMPUTE;
    if (e->kind < INSTR_KINDS) {
        Instr i = {.op = (uint8_t)e->kind, .chunk = e->chunk, .phase = e->phase, .part = e->part, .mb = e->mb};
        instr_print(&i, name, sizeof name);
        category = instr_info[e->kind].letters;
    } else {
        snprintf(name, sizeof name, "%s", span_info[e->kind - SPAN_FIRST - 1].name);
        stream = span_info[e->kind - SPAN_FIRST - 1].stream;
    }
    fprintf(f,
            ",\n{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f,\"pid\":%d,\"tid\":%d,"
            "\"args\":{\"step\":%lld,\"chunk\":%d,\"microbatch\":%d,\"part\":%d}}",
            name, category, (e->start - origin) * 1e6, (e->end - e->start) * 1e6, rank, stream,
            (long long)e->step, e->chunk, e->mb, e->part == WHOLE ? -1 : e->part);
}

static int put_file(const char *run_dir, const RankHead *head, const TraceEvent *event, int64_t most,
                    int ranks, double origin, char why[WHY])
{
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    fprintf(f, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{\"name\":\"clock\",\"ph\":\"M\",\"pid\":0,"
            "\"args\":{\"origin_s\":%.9f}}", origin);
    for (int r = 0; r < ranks; r++) {
        fprintf(f, ",\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"rank %d (", r,
                r);
        for (int a = 0, sep = 0; a < AXES; a++)
            if (a != AXIS_EP)
                fprintf(f, "%s%s%lld", sep++ ? " " : "", axis_name[a], (long long)head[r].axis[a]);
        fprintf(f, ")\"}}");
        for (int s = 0; s < STREAMS; s++)
            fprintf(f,
                    ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,"
                    "\"args\":{\"name\":\"%s\"}}",
                    r, s, stream_name[s]);
        for (int64_t i = 0; i < head[r].n; i++)
            put_event(f, &event[r * most + i], r, origin);
    }
    fprintf(f, "\n]}\n");
    fclose(f);
    int dir = file_open_dir(AT_FDCWD, run_dir, 0, why);
    int ok = dir >= 0 && file_replace(dir, "trace.json", text, (int64_t)size, why);
    if (dir >= 0)
        close(dir);
    free(text);
    return ok;
}

int trace_write(const Trace *t, const char *run_dir, Grid *g, char why[WHY])
{
    Comm *all = &g->all;
    RankHead head = {.n = t->n < t->max ? t->n : t->max}, *heads = xcalloc((size_t)all->size, sizeof *heads);
    for (int a = 0; a < AXES; a++)
        head.axis[a] = g->index[a];
    all->wait(all, all->all_gather(all, heads, &head, (int64_t)(sizeof head / 8), I64));
    int64_t most = 0;
    for (int r = 0; r < all->size; r++)
        most = heads[r].n > most ? heads[r].n : most;
    int ok = 1;
    if (most) {
        /* equal blocks: the ranks' lists differ by a few events, so padding costs little */
        const int64_t words = (int64_t)(sizeof(TraceEvent) / 8);
        TraceEvent *mine = xcalloc((size_t)most, sizeof *mine);
        TraceEvent *events = xcalloc((size_t)(most * all->size), sizeof *events);
        double origin = INFINITY;
        for (int64_t i = 0; i < head.n; i++) {
            mine[i] = t->ring[(t->n - head.n + i) % t->max];
            origin = fmin(origin, mine[i].start);
        }
        all->wait(all, all->all_reduce(all, &origin, 1, F64, OP_MIN));
        all->wait(all, all->all_gather(all, events, mine, most * words, I64));
        if (all->rank == 0)
            ok = put_file(run_dir, heads, events, most, all->size, origin, why);
        free(mine);
        free(events);
    }
    free(heads);
    return ok;
}
