/* timeline -- trace.json read and written: the recorded steps of all ranks */
#include "timeline.h"
#include "losses.h"
#include "report_data.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const timeline_stream_name[STREAMS] = {
#define X(id, name) name,
    TRACE_STREAMS(X)
#undef X
};
static const struct { const char *name; TraceStream stream; } span_info[] = {
#define X(id, name, stream) {name, STREAM_##stream},
    SPANS(X)
#undef X
};
const char *const timeline_group_name[GROUPS] = {
#define X(id, name, stream) name,
    TRACE_GROUPS(X)
#undef X
};
static const TraceStream group_stream[GROUPS] = {
#define X(id, name, stream) STREAM_##stream,
    TRACE_GROUPS(X)
#undef X
};

/* The place of a text of `length` in a list of n; n: it is not there. */
static int find(const char *const *list, int n, const char *what, size_t length)
{
    int i = 0;
    while (i < n && (strncmp(list[i], what, length) || list[i][length]))
        i++;
    return i;
}

int timeline_is_compute(const TraceEvent *e)
{
    return e->kind == I_F || e->kind == I_B || e->kind == I_D || e->kind == I_W;
}

int timeline_is_comm(const TraceEvent *e) { return e->kind >= SPAN_END; }
static int is_message(const TraceEvent *e)
{
    return e->kind == SPAN_END + COMM_SEND || e->kind == SPAN_END + COMM_RECV;
}

TraceStream timeline_stream(const TraceEvent *e)
{
    return e->kind <= SPAN_FIRST ? STREAM_COMPUTE
           : e->kind < SPAN_END  ? span_info[e->kind - SPAN_FIRST - 1].stream : group_stream[e->group];
}

TraceStream timeline_group_stream(const char *name)
{
    int g = find(timeline_group_name, GROUPS, name, strlen(name));
    BUG_ON(g == GROUPS);
    return group_stream[g];
}

Instr timeline_instr(const TraceEvent *e)
{
    uint8_t op = (uint8_t)e->kind;
    return (Instr){.op = op, .chunk = e->chunk, .phase = e->phase, .unit = e->unit, .mb = e->mb};
}

void timeline_name(const TraceEvent *e, char *text, int size)
{
    if (e->kind <= SPAN_FIRST) {
        Instr i = timeline_instr(e);
        instr_print(&i, text, size);
    } else if (e->kind == SPAN_LOSS && e->unit < LOSSES) {
        snprintf(text, (size_t)size, "loss %s", loss_name[e->unit]);
    } else if (e->kind < SPAN_END) {
        snprintf(text, (size_t)size, "%s", span_info[e->kind - SPAN_FIRST - 1].name);
    } else {
        snprintf(text, (size_t)size, "%s %s", comm_kind_name[e->kind - SPAN_END],
                 timeline_group_name[e->group]);
    }
}

/* ---- starts corrected, events sorted ---- */

static int by_end(const void *a, const void *b)
{
    const TraceEvent *x = a, *y = b;
    return (x->end > y->end) - (x->end < y->end);
}

static int by_start(const void *a, const void *b)
{
    const TraceEvent *x = a, *y = b;
    return x->start != y->start ? (x->start > y->start) - (x->start < y->start)
                                : (x->end < y->end) - (x->end > y->end);
}

/* e: in order of end. An operation starts when the one before it in its queue has ended. A queue is a
 * group's collectives, or its messages to or from one peer. */
static void start_in_turn(TraceEvent *e, int64_t n, int ranks)
{
    double *last = xcalloc((size_t)GROUPS * (size_t)(2 * ranks + 1), sizeof *last);
    for (int64_t i = 0; i < n; i++) {
        if (!timeline_is_comm(&e[i]))
            continue;
        int queue = is_message(&e[i]) ? 1 + 2 * e[i].peer + (e[i].kind == SPAN_END + COMM_SEND) : 0;
        double *before = &last[e[i].group * (2 * ranks + 1) + queue];
        e[i].start = fmin(fmax(e[i].called, *before), e[i].end);
        *before = e[i].end;
    }
    free(last);
}

int timeline_pipeline(const Timeline *t, int rank, int *lane)
{
    int n = 0;
    for (int r = 0; r < t->ranks; r++) {
        int same = 1;
        for (int a = 0; a < AXES; a++)
            same &= a == AXIS_PP || t->rank[r].index[a] == t->rank[rank].index[a];
        if (!same)
            continue;
        int at = n++;
        for (; at > 0 && t->rank[lane[at - 1]].index[AXIS_PP] > t->rank[r].index[AXIS_PP]; at--)
            lane[at] = lane[at - 1];
        lane[at] = r;
    }
    return n;
}

/* Lists r's messages of one kind with pipeline rank `peer`, in order. Returns their number. */
static int64_t messages(const TimelineRank *r, int kind, int peer, TraceEvent **out)
{
    int64_t n = 0;
    for (int64_t i = 0; i < r->n; i++)
        if (r->event[i].kind == SPAN_END + kind && r->event[i].group == GROUP_PP && r->event[i].peer == peer)
            out[n++] = &r->event[i];
    return n;
}

/* Moves the start of each receive to that of its send: before it there is nothing to move. Messages
 * between two ranks keep their order. Where one of the ranks has lost events nothing is changed. */
static void start_with_sender(Timeline *t, int from, int to, int from_pp, int to_pp, TraceEvent **sent,
                              TraceEvent **got)
{
    int64_t n = messages(&t->rank[from], COMM_SEND, to_pp, sent),
            k = messages(&t->rank[to], COMM_RECV, from_pp, got);
    if (n != k)
        return;
    for (int64_t i = 0; i < n; i++)
        if (sent[i]->step == got[i]->step && sent[i]->moved == got[i]->moved)
            got[i]->start = fmin(fmax(got[i]->start, sent[i]->start), got[i]->end);
}

void timeline_settle(Timeline *t)
{
    int64_t most = 1;
    int *lane = xcalloc((size_t)t->ranks + 1, sizeof *lane);
    for (int r = 0; r < t->ranks; r++) {
        qsort(t->rank[r].event, (size_t)t->rank[r].n, sizeof *t->rank[r].event, by_end);
        start_in_turn(t->rank[r].event, t->rank[r].n, t->ranks);
        most = t->rank[r].n > most ? t->rank[r].n : most;
    }
    TraceEvent **sent = xcalloc((size_t)most, sizeof *sent), **got = xcalloc((size_t)most, sizeof *got);
    for (int r = 0; r < t->ranks; r++) {
        int p = timeline_pipeline(t, r, lane);
        for (int to = 0; to < p; to++)
            if (lane[to] != r)
                start_with_sender(t, r, lane[to], t->rank[r].index[AXIS_PP], to, sent, got);
    }
    for (int r = 0; r < t->ranks; r++)
        qsort(t->rank[r].event, (size_t)t->rank[r].n, sizeof *t->rank[r].event, by_start);
    free(sent);
    free(got);
    free(lane);
}

/* ---- trace.json ---- */

enum { ROWS = 100 };               /* most rows of a stream; row i has tid ROWS * stream + i */

/* Takes the first row of the event's stream that is free at its start. Returns the row's tid. */
static int row_of(double free_at[STREAMS][ROWS], const TraceEvent *e)
{
    int row = 0, s = timeline_stream(e);
    while (row < ROWS - 1 && free_at[s][row] > e->start)
        row++;
    free_at[s][row] = fmax(free_at[s][row], e->end);
    return s * ROWS + row;
}

static void put_event(FILE *f, const TraceEvent *e, int rank, int tid, double origin)
{
    char name[64];
    timeline_name(e, name, sizeof name);
    const char *cat = e->kind <= SPAN_FIRST ? instr_info[e->kind].letters
                      : timeline_is_comm(e) ? timeline_stream_name[timeline_stream(e)]
                                            : span_info[e->kind - SPAN_FIRST - 1].name;
    fprintf(f, ",\n{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f,\"pid\":%d,"
            "\"tid\":%d,\"args\":{\"step\":%lld", name, cat, (e->start - origin) * 1e6,
            (e->end - e->start) * 1e6, rank, tid, (long long)e->step);
    if (e->kind <= SPAN_FIRST)
        fprintf(f, ",\"chunk\":%d,\"microbatch\":%d,\"part\":%d,\"phase\":%d", e->chunk, e->mb,
                e->unit == WHOLE ? -1 : e->unit, e->phase);
    else if (e->kind == SPAN_LOSS)
        fprintf(f, ",\"part\":%d", e->unit == WHOLE ? -1 : e->unit);
    else if (timeline_is_comm(e))
        fprintf(f, ",\"group\":\"%s\",\"bytes\":%lld,\"moved\":%lld,\"behind\":%lld,\"peer\":%d,"
                "\"queued_us\":%.3f", timeline_group_name[e->group], (long long)e->bytes, (long long)e->moved,
                (long long)e->behind, e->peer, (e->start - e->called) * 1e6);
    fprintf(f, "}}");
}

static void put_rank(FILE *f, const TimelineRank *r, int rank, double origin)
{
    double (*free_at)[ROWS] = xcalloc(STREAMS, sizeof *free_at);
    fprintf(f, ",\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"rank %d (", rank,
            rank);
    for (int a = 0, sep = 0; a < AXES; a++)
        if (a != AXIS_EP)
            fprintf(f, "%s%s%d", sep++ ? " " : "", grid_axis_name[a], r->index[a]);
    fprintf(f, ")\"}},\n{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"sort_index\":"
            "%d}},\n{\"name\":\"grid\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"lost\":%lld", rank, rank, rank,
            (long long)r->lost);
    for (int a = 0; a < AXES; a++)
        fprintf(f, ",\"%s\":%d", grid_axis_name[a], r->index[a]);
    fprintf(f, "}}");
    for (int64_t i = 0; i < r->n; i++)
        put_event(f, &r->event[i], rank, row_of(free_at, &r->event[i]), origin);
    for (int s = 0; s < STREAMS; s++)
        for (int row = 0; row < ROWS && free_at[s][row] > 0; row++) {
            int tid = s * ROWS + row;
            char number[8] = "";
            if (row)
                snprintf(number, sizeof number, " %d", row + 1);
            fprintf(f, ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":"
                    "\"%s%s\"}},\n{\"name\":\"thread_sort_index\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,"
                    "\"args\":{\"sort_index\":%d}}", rank, tid, timeline_stream_name[s], number, rank, tid,
                    tid);
        }
    free(free_at);
}

void timeline_put(FILE *f, const Timeline *t)
{
    double origin = INFINITY;
    for (int r = 0; r < t->ranks; r++)
        for (int64_t i = 0; i < t->rank[r].n; i++)
            origin = fmin(origin, timeline_is_comm(&t->rank[r].event[i]) ? t->rank[r].event[i].called
                                                                          : t->rank[r].event[i].start);
    origin = isfinite(origin) ? origin : 0;            /* without events: JSON has no infinity */
    fprintf(f, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{\"name\":\"clock\",\"ph\":\"M\",\"pid\":0,"
            "\"args\":{\"origin_s\":%.9f}}", origin);
    if (t->shape.p)
        fprintf(f, ",\n{\"name\":\"pipeline\",\"ph\":\"M\",\"pid\":0,\"args\":{\"schedule\":\"%s\",\"p\":%d,"
                "\"v\":%d,\"group\":%d,\"vee\":%d}}", schedule_name(t->shape.kind), t->shape.p, t->shape.v,
                t->shape.group, t->shape.vee);
    if (t->config) {
        char *config = json_dumps(t->config, JSON_COMPACT);
        fprintf(f, ",\n{\"name\":\"configuration\",\"ph\":\"M\",\"pid\":0,\"args\":%s}", config);
        free(config);
    }
    for (int r = 0; r < t->ranks; r++)
        put_rank(f, &t->rank[r], r, origin);
    fprintf(f, "\n]}\n");
}

/* ---- reading it back ---- */

/* The member `name` as a whole number; `otherwise`: it is missing or not in [low, high]. */
static int64_t whole(const json_t *o, const char *name, int64_t low, int64_t high, int64_t otherwise)
{
    double x = report_number_of(o, name);
    return x >= (double)low && x <= (double)high ? (int64_t)x : otherwise;
}

/* Reads an event. Returns 1, or 0 when `o` is none that timeline_put writes. */
static int read_event(TraceEvent *e, const json_t *o)
{
    const json_t *args = json_object_get(o, "args");
    const char *name = report_text_of(o, "name"), *cat = report_text_of(o, "cat"), *space = strchr(name, ' ');
    double ts = report_number_of(o, "ts"), dur = report_number_of(o, "dur");
    int64_t step = whole(args, "step", 0, (int64_t)1 << 53, -1),
            part = whole(args, "part", -1, WHOLE - 1, -1);
    if (strcmp(report_text_of(o, "ph"), "X") || !isfinite(ts) || !(dur >= 0) || step < 0)
        return 0;
    *e = (TraceEvent){.start = ts * 1e-6, .end = (ts + dur) * 1e-6, .step = step, .peer = -1,
                      .kind = UINT16_MAX, .mb = (uint16_t)whole(args, "microbatch", 0, UINT16_MAX, 0),
                      .chunk = (uint8_t)whole(args, "chunk", 0, UINT8_MAX, 0),
                      .phase = (uint8_t)whole(args, "phase", 0, 2, 0),
                      .unit = part < 0 ? WHOLE : (uint16_t)part};
    for (int k = 0; k < INSTR_KINDS; k++)
        if (!strcmp(cat, instr_info[k].letters))
            e->kind = (uint16_t)k;
    for (int k = SPAN_FIRST + 1; k < SPAN_END; k++)
        if (!strcmp(cat, span_info[k - SPAN_FIRST - 1].name))
            e->kind = (uint16_t)k;
    const char *group = report_text_of(args, "group");
    if (*group && space) {
        int k = find(comm_kind_name, COMM_KINDS, name, (size_t)(space - name)),
            g = find(timeline_group_name, GROUPS, group, strlen(group));
        if (k == COMM_KINDS || g == GROUPS)
            return 0;
        e->kind = (uint16_t)(SPAN_END + k);
        e->group = (uint8_t)g;
        e->bytes = whole(args, "bytes", 0, (int64_t)1 << 53, 0);
        e->moved = whole(args, "moved", 0, (int64_t)1 << 53, 0);
        e->behind = whole(args, "behind", 0, (int64_t)1 << 53, 0);
        e->peer = (int32_t)whole(args, "peer", -1, INT32_MAX, -1);
        e->called = e->start - fmax(0, report_number_of(args, "queued_us")) * 1e-6;
    }
    return e->kind != UINT16_MAX;
}

static void read_record(Timeline *t, const json_t *o, int rank)
{
    const json_t *args = json_object_get(o, "args");
    if (strcmp(report_text_of(o, "ph"), "M"))
        return;
    if (!strcmp(report_text_of(o, "name"), "grid")) {
        t->rank[rank].lost = whole(args, "lost", 0, (int64_t)1 << 53, 0);
        for (int a = 0; a < AXES; a++)
            t->rank[rank].index[a] = (int)whole(args, grid_axis_name[a], 0, INT32_MAX, 0);
    } else if (!strcmp(report_text_of(o, "name"), "pipeline")) {
        ScheduleKind kind = schedule_find(report_text_of(args, "schedule"));
        int v = (int)whole(args, "v", 1, 255, 0), p = (int)whole(args, "p", 1, 65535, 0);
        if (kind != SCHEDULE_CHOICES && v)
            t->shape = (PipeShape){.kind = kind, .p = p, .v = v,
                                   .group = (int)whole(args, "group", 0, 65535, 0),
                                   .vee = (int)whole(args, "vee", 0, 1, 0)};
    } else if (!strcmp(report_text_of(o, "name"), "configuration") && json_is_object(args) && !t->config) {
        t->config = json_incref((json_t *)args);
    }
}

void timeline_read(Timeline *t, const json_t *trace)
{
    json_t *events = json_object_get(trace, "traceEvents"), *o;
    int64_t count = (int64_t)json_array_size(events);
    size_t i;
    *t = (Timeline){0};
    json_array_foreach(events, i, o) {
        int rank = (int)whole(o, "pid", 0, count - 1, -1);
        t->ranks = rank >= t->ranks ? rank + 1 : t->ranks;
    }
    t->rank = xcalloc((size_t)t->ranks + 1, sizeof *t->rank);
    json_array_foreach(events, i, o) {
        int rank = (int)whole(o, "pid", 0, count - 1, -1);
        TimelineRank *r = &t->rank[rank < 0 ? 0 : rank];
        TraceEvent e;
        if (rank < 0)
            continue;
        read_record(t, o, rank);
        if (!read_event(&e, o))
            continue;
        r->event = xgrow(r->event, r->n, sizeof e);
        r->event[r->n++] = e;
    }
    for (int r = 0; r < t->ranks; r++)
        if (t->rank[r].n)
            qsort(t->rank[r].event, (size_t)t->rank[r].n, sizeof(TraceEvent), by_start);
}

void timeline_close(Timeline *t)
{
    for (int r = 0; r < t->ranks; r++)
        free(t->rank[r].event);
    free(t->rank);
    json_decref(t->config);
    *t = (Timeline){0};
}
