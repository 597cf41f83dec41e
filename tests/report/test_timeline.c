/* test_timeline -- the timeline of many ranks: its format, overlapped reductions, bubbles of known
 * schedules. As `test_timeline check RUN_DIR LISTS STEPS MINIMUM`: the trace.json of a run against the
 * lists that `train schedule --json` prints. */
#include "custom.h"
#include "losses.h"
#include "test.h"
#include "timeline.h"

/* ---- synthetic timelines ---- */

static Timeline new_timeline(int pp, int dp)
{
    Timeline t = {.ranks = pp * dp, .rank = xcalloc((size_t)(pp * dp), sizeof(TimelineRank))};
    for (int r = 0; r < t.ranks; r++) {
        t.rank[r].index[AXIS_DP] = r % dp;
        t.rank[r].index[AXIS_PP] = r / dp;
        t.rank[r].event = xcalloc(4096, sizeof(TraceEvent));
    }
    return t;
}

static TraceEvent *add(Timeline *t, int rank, TraceEvent e)
{
    TraceEvent *to = &t->rank[rank].event[t->rank[rank].n++];
    *to = e;
    to->step = e.step ? e.step : 1;
    return to;
}

static void add_instr(Timeline *t, int rank, InstrKind op, int chunk, int mb, double start, double end)
{
    add(t, rank, (TraceEvent){.start = start, .end = end, .kind = (uint16_t)op, .chunk = (uint8_t)chunk,
                              .mb = (uint16_t)mb, .unit = WHOLE, .peer = -1});
}

static void add_comm(Timeline *t, int rank, CommKind kind, TraceGroup group, int peer, double called,
                     double end, int64_t moved, int64_t behind)
{
    add(t, rank,
        (TraceEvent){.start = called, .called = called, .end = end, .kind = (uint16_t)(SPAN_END + kind),
                     .group = (uint8_t)group, .peer = peer, .bytes = moved, .moved = moved, .behind = behind,
                     .unit = WHOLE});
}

static json_t *as_json(const Timeline *t)
{
    char *text = NULL;
    size_t size;
    json_error_t error;
    FILE *f = open_memstream(&text, &size);
    timeline_put(f, t);
    fclose(f);
    json_t *o = json_loads(text, 0, &error);
    CHECK(o, "%s at %d of %s", error.text, error.position, text);
    free(text);
    return o;
}

static void test_form(void)
{
    Timeline t = new_timeline(2, 1), back;
    t.shape = (PipeShape){.kind = SCHEDULE_ZB_V, .p = 2, .v = 2, .vee = 1};
    for (int k = 0; k < INSTR_KINDS; k++)
        add(&t, 0, (TraceEvent){.start = 100 + k, .end = 100.5 + k, .kind = (uint16_t)k, .chunk = 1, .mb = 7,
                                .phase = k == I_R, .unit = k == I_R ? 3 : WHOLE, .peer = -1});
    for (int s = SPAN_FIRST + 1; s < SPAN_END; s++)
        add(&t, 1,
            (TraceEvent){.start = 200 + s, .end = 201 + s, .kind = (uint16_t)s, .unit = WHOLE, .peer = -1,
                         .step = 1ll << 40});
    for (int k = 0; k < COMM_KINDS; k++)
        for (int g = 0; g < GROUPS; g++)
            add_comm(&t, 1, (CommKind)k, (TraceGroup)g, k == COMM_SEND || k == COMM_RECV ? 0 : -1,
                     300 + 10 * k + g * 0.125,
                     301 + 10 * k + g * 0.125, 1ll << 45, 12345);
    t.rank[1].lost = 17;
    timeline_settle(&t);
    json_t *o = as_json(&t);
    timeline_read(&back, o);
    CHECK(back.ranks == 2 && back.rank[1].lost == 17 && back.rank[1].index[AXIS_PP] == 1, "%d ranks",
          back.ranks);
    CHECK(back.shape.kind == SCHEDULE_ZB_V && back.shape.p == 2 && back.shape.v == 2 && back.shape.vee == 1,
          "the pipeline");
    for (int r = 0; r < 2; r++) {
        CHECK(back.rank[r].n == t.rank[r].n, "%lld events of %lld", (long long)back.rank[r].n,
              (long long)t.rank[r].n);
        for (int64_t i = 0; i < t.rank[r].n && i < back.rank[r].n; i++) {
            const TraceEvent *a = &t.rank[r].event[i], *b = &back.rank[r].event[i];
            char name[64];
            timeline_name(a, name, sizeof name);
            CHECK(a->kind == b->kind && a->step == b->step && a->chunk == b->chunk && a->mb == b->mb &&
                  a->unit == b->unit &&
                  a->phase == b->phase && a->group == b->group && a->peer == b->peer, "%s", name);
            CHECK(a->bytes == b->bytes && a->moved == b->moved && a->behind == b->behind, "%s", name);
            CHECK(fabs(a->start - b->start - 100) < 2e-9 && fabs(a->end - b->end - 100) < 2e-9, "%s: %.9f",
                  name, b->start);
            CHECK(!timeline_is_comm(a) || fabs(a->called - b->called - 100) < 4e-9, "%s: %.9f", name,
                  b->called);
        }
    }
    json_decref(o);
    timeline_close(&back);
    timeline_close(&t);
}

/* timeline_settle: an operation of a group begins when the group's previous one has ended; a receive
 * begins with its send. */
static void test_settle(void)
{
    Timeline t = new_timeline(2, 1);
    add_comm(&t, 0, COMM_REDUCE_SCATTER, GROUP_SHARD, -1, 1, 4, 8, 0);
    add_comm(&t, 0, COMM_REDUCE_SCATTER, GROUP_SHARD, -1, 2, 6, 8, 0);
    add_comm(&t, 0, COMM_ALL_REDUCE, GROUP_TP, -1, 2.5, 3, 8, 0);
    for (int i = 0; i < 2; i++) {
        add_comm(&t, 0, COMM_SEND, GROUP_PP, 1, 7 + i, 9 + i, 8, 0);
        add_comm(&t, 1, COMM_RECV, GROUP_PP, 0, 1 + i, 9.5 + i, 8, 0);
    }
    timeline_settle(&t);
    const TraceEvent *a = t.rank[0].event, *b = t.rank[1].event;
    CHECK(a[0].start == 1 && a[1].start == 2.5 && a[2].start == 4 && a[2].called == 2, "%g %g %g", a[0].start,
          a[1].start, a[2].start);
    CHECK(a[3].start == 7 && a[4].start == 9, "sends to one rank follow each other: %g %g", a[3].start,
          a[4].start);
    CHECK(b[0].start == 7 && b[1].start == 9.5, "%g %g", b[0].start, b[1].start);
    timeline_close(&t);
}

/* Adds a rank's losses of step 1: 1 s of products, 2 of memory traffic, the given others, 9 s in all. */
static void add_losses(Timeline *t, int rank, double more, double pipeline, double data)
{
    double at = 0, s[LOSSES] = {[LOSS_PEAK] = 1, [LOSS_MEMORY] = 2, [LOSS_OTHER] = more,
                                [LOSS_PIPELINE] = pipeline, [LOSS_DATA] = data};
    s[LOSS_LOADER] = 6 - more - pipeline - data;
    for (int i = 0; i < LOSSES; at += s[i++])
        add(t, rank, (TraceEvent){.start = at, .end = at + s[i], .kind = SPAN_LOSS, .unit = (uint16_t)i,
                                  .peer = -1});
}

/* Two stages of two ranks: the second stage has 1 s more work, and its first rank takes 2 s more again. */
static void test_losses(void)
{
    Timeline t = new_timeline(2, 2);
    Losses l, planned = {.step = 5, .s = {[LOSS_PEAK] = 0.25}};
    add_losses(&t, 0, 0, 5, 1);
    add_losses(&t, 1, 0, 5.5, 0.25);
    add_losses(&t, 2, 3, 0.5, 0.25);
    CHECK(!losses_measured(&l, &t, NULL), "a rank has nothing");
    add_losses(&t, 3, 1, 1, 3);
    CHECK(losses_measured(&l, &t, NULL) && l.rank == 2 && l.iteration == 1, "rank %d", l.rank);
    double sum = 0, wanted[LOSSES] = {[LOSS_PEAK] = 1, [LOSS_MEMORY] = 2, [LOSS_OTHER] = 0.5,
                                      [LOSS_IMBALANCE] = 0.5, [LOSS_SLOWEST] = 2, [LOSS_PIPELINE] = 0.5,
                                      [LOSS_DATA] = 0.25, [LOSS_LOADER] = 2.25};
    for (int i = 0; i < LOSSES; i++) {
        CHECK(fabs(l.s[i] - wanted[i]) < 1e-12, "%s: %g s, not %g", loss_name[i], l.s[i], wanted[i]);
        sum += l.s[i];
    }
    CHECK(fabs(sum - 9) < 1e-12 && fabs(l.step - 9) < 1e-12, "%g of %g", sum, l.step);
    CHECK(losses_largest(&l) == LOSS_LOADER, "%s", loss_name[losses_largest(&l)]);
    CHECK(losses_measured(&l, &t, &planned) && l.s[LOSS_PEAK] == 0.25 && l.s[LOSS_PRODUCTS] == 0.75,
          "the machine's peak: %g, %g", l.s[LOSS_PEAK], l.s[LOSS_PRODUCTS]);
    planned.s[LOSS_PEAK] = 3;                      /* faster than the description allows */
    CHECK(losses_measured(&l, &t, &planned) && l.s[LOSS_PEAK] == 1 && l.s[LOSS_PRODUCTS] == 0, "%g",
          l.s[LOSS_PEAK]);
    timeline_close(&t);
}

static void test_overlap(void)
{
    Timeline t = new_timeline(1, 2);
    add_instr(&t, 0, I_B, 0, 0, 0, 10);
    add_instr(&t, 0, I_R, 0, 0, 10, 11);       /* no computation */
    add_instr(&t, 0, I_W, 0, 0, 11, 12);
    add_instr(&t, 0, I_S, 0, 0, 12, 20);
    add_comm(&t, 0, COMM_REDUCE_SCATTER, GROUP_SHARD, -1, 2, 6, 100, 80); /* under B: `behind` counts */
    add_comm(&t, 0, COMM_REDUCE_SCATTER, GROUP_SHARD, -1, 8, 16, 100,
             90);                                                         /* 2 + 1 of 8 s: at most 3/8 */
    add_comm(&t, 0, COMM_ALL_REDUCE, GROUP_SHARD, -1, 1, 2, 1000, 1000);  /* 4 that do not count */
    add_comm(&t, 0, COMM_ALL_REDUCE, GROUP_EMBEDDING, -1, 1, 2, 1000, 1000);
    add_comm(&t, 0, COMM_ALL_GATHER, GROUP_SHARD, -1, 1, 2, 1000, 1000);
    add_comm(&t, 0, COMM_ALL_REDUCE, GROUP_WORLD, -1, 1, 2, 1000, 1000);
    add_comm(&t, 1, COMM_ALL_REDUCE, GROUP_DATA, -1, 3, 5, 200, 200); /* rank 1 does not compute then */
    add_instr(&t, 1, I_F, 0, 0, 5, 6);
    add_comm(&t, 0, COMM_SEND, GROUP_CP_RING, 1, 13, 14, 64, 48);   /* no computation: no byte of 64 */
    add_comm(&t, 0, COMM_SEND, GROUP_CP, 1, 3, 4, 64, 48);
    add_comm(&t, 1, COMM_ALL_TO_ALL, GROUP_CP_HEADS, -1, 5, 6, 16, 0);
    add_comm(&t, 0, COMM_RECV, GROUP_EP, 1, 4, 5, 32, 16);
    add_comm(&t, 1, COMM_SEND, GROUP_ETP, 0, 6, 7, 8, 8);           /* rank 1 does not compute then */
    timeline_settle(&t);
    Overlap rows = timeline_overlap(&t, OVERLAP_EXPERT, 1, -1);
    CHECK(rows.bytes == 40 && rows.bytes_under == 16, "expert: %g of %g", rows.bytes_under, rows.bytes);
    Overlap ring = timeline_overlap(&t, OVERLAP_CONTEXT, 1, -1);
    CHECK(ring.bytes == 144 && ring.bytes_under == 48, "context: %g of %g", ring.bytes_under, ring.bytes);
    Overlap o = timeline_overlap(&t, OVERLAP_DATA, 1, 0), both = timeline_overlap(&t, OVERLAP_DATA, -1, -1),
            none = timeline_overlap(&t, OVERLAP_DATA, 2, -1);
    CHECK(o.bytes == 200 && fabs(o.bytes_under - (80 + 37.5)) < 1e-9, "%g of %g", o.bytes_under, o.bytes);
    CHECK(fabs(o.seconds - 12) < 1e-9 && fabs(o.seconds_under - 7) < 1e-9, "%g of %g s", o.seconds_under,
          o.seconds);
    CHECK(both.bytes == 400 && both.bytes_under == o.bytes_under && fabs(both.seconds - 14) < 1e-9, "%g",
          both.bytes);
    CHECK(none.bytes == 0 && none.seconds == 0, "another step");
    timeline_close(&t);
}

/* A timeline that follows its simulated schedule exactly: the measured and the replayed bubble equal the
 * simulated one and `closed`, the closed form (< 0: none). hold: seconds by which the second half is
 * late. */
static void bubble_of(ScheduleKind kind, int p, int v, int m, double forward, double dx, double dw,
                      double closed, double hold, const CustomLists *lists)
{
    int n = p * v, lane[64];
    double cost[3][64];
    for (int s = 0; s < n; s++) {
        cost[0][s] = forward / v;
        cost[1][s] = dx / v;
        cost[2][s] = dw / v;
    }
    PipeShape shape = {.kind = kind, .p = p, .v = v, .m = m, .cost = {cost[0], cost[1], cost[2]},
                       .lists = lists ? lists->list : NULL, .vee = lists && lists->vee};
    ScheduleSet set;
    Simulation sim;
    schedules_open(&set, &shape);
    simulate(&set, &sim, 1);
    Timeline t = new_timeline(p, 1);
    t.shape = (PipeShape){.kind = kind, .p = p, .v = v, .vee = shape.vee};
    for (int r = 0; r < p; r++) {
        for (int i = 0; i < set.rank[r].n; i++) {
            const Instr *x = &set.rank[r].list[i];
            Span s = sim.span[r][i];
            /* instructions of the second half are late by `hold`: the step is longer, instructions are
             * not */
            double late = s.start >= sim.makespan / 2 ? hold : 0;
            double half = 50 + late + 0.5 * (s.start + s.end);
            if (instr_info[x->op].message)
                continue;
            add_instr(&t, r, (InstrKind)x->op, x->chunk, x->mb, 50 + s.start + late, half); /* in two units */
            add_instr(&t, r, (InstrKind)x->op, x->chunk, x->mb, half, 50 + s.end + late);
        }
        add_instr(&t, r, I_S, 0, 0, 50 + sim.makespan + hold, 51 + sim.makespan + hold);
    }
    timeline_settle(&t);
    CHECK(timeline_step(&t) == 1 && timeline_pipeline(&t, 0, lane) == p && lane[p - 1] == p - 1, "lanes");
    PipelineTimes x;
    timeline_times(&x, &t, lane, p, 1);
    CHECK(x.m == m && fabs(x.schedule.rate - sim.rate) < 1e-9 &&
              fabs(x.schedule.step_rate - sim.step_rate) < 1e-9,
          "%s: %g %g, simulated %g %g", schedule_name(kind), x.schedule.rate, x.schedule.step_rate, sim.rate,
          sim.step_rate);
    double work = m * (forward + dx + dw), cost_step = work / (1 - sim.step_rate) + hold;
    CHECK(fabs(x.measured.step_rate - (cost_step - work) / cost_step) < 1e-9, "%s: %g, wanted %g",
          schedule_name(kind), x.measured.step_rate, (cost_step - work) / cost_step);
    CHECK(hold > 0 || fabs(x.measured.rate - sim.rate) < 1e-9, "%s: %g, simulated %g", schedule_name(kind),
          x.measured.rate, sim.rate);
    CHECK(closed < 0 || hold > 0 || fabs(x.measured.step_rate - closed) < 1e-9, "%s: %g, closed form %g",
          schedule_name(kind),
          x.measured.step_rate, closed);
    timeline_times_close(&x);
    /* a step that is not whole is measured and not replayed */
    t.rank[0].event[0].kind = t.rank[0].event[1].kind = I_G;
    timeline_times(&x, &t, lane, p, 1);
    CHECK(isfinite(x.measured.rate) && isnan(x.schedule.rate) && !x.set.rank, "%s: an F is missing",
          schedule_name(kind));
    timeline_times_close(&x);
    timeline_close(&t);
    simulation_close(&sim);
    schedules_close(&set);
}

static void mistake(void *ctx, int line, int col, const char *what)
{
    (void)ctx;
    CHECK(0, "%d:%d: %s", line, col, what);
}

static void test_bubble(void)
{
    /* joined backwards beside split ones; a V */
    static const char *const texts[] = {
        "0F0,0F1,0I0,0F2,0W0,0B1,0B2\n1F0,1I0,1F1,1I1,1F2,1W0,1W1,1B2\n",
        "0F0,0F1,3F0,3B0,3F1,0B0,3I1,0I1,3W1,0W1\n1F0,2F0,1F1,2F1,2B0,1B0,2B1,1B1\n"};
    for (double hold = 0; hold < 6; hold += 5) {
        bubble_of(SCHEDULE_1F1B, 4, 1, 8, 1, 1, 1, 3.0 / 11, hold, NULL);        /* (p - 1) / (m + p - 1) */
        bubble_of(SCHEDULE_GPIPE, 3, 1, 6, 2, 3, 1, 2.0 / 8, hold, NULL);
        bubble_of(SCHEDULE_INTERLEAVED, 4, 2, 8, 2, 2, 2, 3.0 / 2 / (8 + 3.0 / 2), hold, NULL);
        bubble_of(SCHEDULE_ZB_H1, 4, 1, 8, 1, 1, 1, -1, hold, NULL);
        bubble_of(SCHEDULE_ZB_V, 4, 2, 12, 2, 2, 2, -1, hold, NULL);
        bubble_of(SCHEDULE_V_MIN, 3, 2, 6, 2, 2, 2, -1, hold, NULL);
        bubble_of(SCHEDULE_1F1B, 1, 1, 4, 1, 1, 1, 0, hold, NULL);
        bubble_of(SCHEDULE_DUALPIPEV, 4, 2, 8, 2, 2, 2, -1, hold, NULL);
        bubble_of(SCHEDULE_ZB_AUTO, 4, 1, 9, 1, 1.5, 0.75, -1, hold, NULL);
        for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
            CustomLists lists;
            CHECK(custom_read(&lists, texts[i], strlen(texts[i]), 2, mistake, NULL), "lists %zu", i);
            bubble_of(SCHEDULE_CUSTOM, 2, lists.v, lists.m, 1, 1.5, 0.75, -1, hold, &lists);
            custom_close(&lists);
        }
    }
}

/* Two stages of tensor-parallel ranks share cores: an instruction takes twice as long while the other
 * stage computes. Messages take no time and instructions wait for their input alone, so the replay
 * equals the step. With mean times the first and the last instruction, which run alone, would be longer
 * than they were, and the replay's bubble larger. */
static void test_shared_cores(void)
{
    static const struct { int rank; InstrKind op; int mb; double start, end; } ran[] = {
        {0, I_F, 0, 0, 1}, {0, I_F, 1, 1, 3}, {1, I_F, 0, 1, 3}, {1, I_B, 0, 3, 5},
        {0, I_B, 0, 5, 9}, {1, I_F, 1, 5, 7}, {1, I_B, 1, 7, 9}, {0, I_B, 1, 9, 11}};
    int lane[2];
    for (int gap = 0; gap < 2; gap++) {        /* gap: a delay that is measured, not replayed */
        Timeline t = new_timeline(2, 1);
        t.shape = (PipeShape){.kind = SCHEDULE_1F1B, .p = 2, .v = 1};
        for (size_t i = 0; i < sizeof ran / sizeof *ran; i++)
            add_instr(&t, ran[i].rank, ran[i].op, 0, ran[i].mb, ran[i].start + (ran[i].start >= 9 ? gap : 0),
                      ran[i].end + (ran[i].start >= 9 ? gap : 0));
        add_instr(&t, 0, I_S, 0, 0, 12, 13);
        timeline_settle(&t);
        PipelineTimes x;
        timeline_times(&x, &t, lane, timeline_pipeline(&t, 0, lane), 1);
        CHECK(fabs(x.schedule.step_rate - 2.0 / 11) < 1e-9, "replayed %g, wanted %g", x.schedule.step_rate,
              2.0 / 11);
        CHECK(fabs(x.measured.step_rate - (2.0 + gap) / (11 + gap)) < 1e-9, "measured %g",
              x.measured.step_rate);
        timeline_times_close(&x);
        timeline_close(&t);
    }
}

/* ---- a run's trace ---- */

/* Checks that events of one row do not overlap; returns the number of events. */
static int64_t check_rows(json_t *events)
{
    json_t *e, *last = json_object();
    size_t i;
    int64_t n = 0;
    json_array_foreach(events, i, e) {
        if (strcmp(json_string_value(json_object_get(e, "ph")), "X"))
            continue;
        char row[64];
        snprintf(row, sizeof row, "%lld/%lld", json_integer_value(json_object_get(e, "pid")),
                 json_integer_value(json_object_get(e, "tid")));
        double ts = json_number_value(json_object_get(e, "ts")),
            end = ts + json_number_value(json_object_get(e, "dur"));
        CHECK(ts >= json_number_value(json_object_get(last, row)) - 0.002, "%s overlaps in row %s at %.3f us",
              json_string_value(json_object_get(e, "name")), row, ts);
        json_object_set_new(last, row, json_real(end));
        n++;
    }
    json_decref(last);
    return n;
}

/* The number of reductions called within the instruction `within`. */
static int reductions(const TimelineRank *r, const TraceEvent *within)
{
    int n = 0;
    for (int64_t i = 0; i < r->n; i++) {
        const TraceEvent *e = &r->event[i];
        n += (e->kind == SPAN_END + COMM_ALL_REDUCE || e->kind == SPAN_END + COMM_REDUCE_SCATTER) &&
             (e->group == GROUP_DATA || e->group == GROUP_SHARD) && e->called >= within->start - 2e-9 &&
             e->called <= within->end + 2e-9;
    }
    return n;
}

/* Compares one rank's instructions of a step, in the order in which they ran, with its list, and the
 * number of its messages with the list's. */
static void check_list(const Timeline *t, int rank, int dp, int64_t step, json_t *list)
{
    const TimelineRank *r = &t->rank[rank];
    size_t at = 0;
    int64_t listed[2] = {0}, found[2] = {0};
    double last = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *s = json_string_value(json_array_get(list, i));
        listed[0] += !strncmp(s, "SA", 2) || !strncmp(s, "SG", 2);
        listed[1] += !strncmp(s, "RA", 2) || !strncmp(s, "RG", 2);
    }
    for (int64_t i = 0; i < r->n; i++) {
        const TraceEvent *e = &r->event[i];
        char name[64];
        if (e->step != step)
            continue;
        if (e->kind == I_R && dp > 1 && e->phase != 2) /* no reduction after W of embedding or head */
            CHECK(reductions(r, e) > 0, "rank %d step %lld: nothing is reduced by R/%d", rank,
                  (long long)step, e->unit);
        if (timeline_is_comm(e)) {
            found[0] += e->group == GROUP_PP && e->kind == SPAN_END + COMM_SEND;
            found[1] += e->group == GROUP_PP && e->kind == SPAN_END + COMM_RECV;
            CHECK(e->end >= e->start && e->start >= e->called && e->behind >= 0 && e->behind <= e->moved,
                  "times, bytes");
        } else if (e->kind <= SPAN_FIRST) {
            timeline_name(e, name, sizeof name);
            const char *wanted = json_string_value(json_array_get(list, at++));
            CHECK(wanted && !strcmp(name, wanted), "rank %d step %lld, instruction %zu is %s, not %s", rank,
                  (long long)step, at,
                  name, wanted ? wanted : "nothing");
            CHECK(e->start >= last, "%s begins before the end of the one before", name);
            last = e->end - 2e-9;
            if (!wanted || strcmp(name, wanted))
                return;
        }
    }
    CHECK(at == json_array_size(list), "rank %d step %lld: %zu instructions of %zu", rank, (long long)step,
          at, json_array_size(list));
    CHECK(found[0] == listed[0] && found[1] == listed[1],
          "rank %d step %lld: %lld sends of %lld, %lld receives of %lld", rank, (long long)step,
          (long long)found[0], (long long)listed[0], (long long)found[1], (long long)listed[1]);
}

/* All ranks have one clock: a message is received after it was sent, to within `slack` seconds. On one
 * host slack is two nanoseconds. Between hosts the clocks are 1000 s apart, and slack covers half the
 * time of the fastest message by which they were compared, which is long on a busy machine. */
static int64_t check_clock(const Timeline *t, int64_t step, double slack)
{
    int64_t pairs = 0;
    for (int a = 0; a < t->ranks; a++)
        for (int b = 0; b < t->ranks; b++) {
            int64_t from = 0;
            const TimelineRank *s = &t->rank[a], *r = &t->rank[b];
            int lane[64], p = timeline_pipeline(t, a, lane), same = 0;
            for (int k = 0; k < p; k++)
                same |= lane[k] == b;
            if (!same || a == b)
                continue;
            for (int64_t i = 0; i < r->n; i++) {
                const TraceEvent *got = &r->event[i];
                if (got->step != step || got->kind != SPAN_END + COMM_RECV || got->group != GROUP_PP ||
                    lane[got->peer] != a)
                    continue;
                for (; from < s->n; from++) {
                    const TraceEvent *sent = &s->event[from];
                    if (sent->step == step && sent->kind == SPAN_END + COMM_SEND && sent->group == GROUP_PP &&
                        lane[sent->peer] == b)
                        break;
                }
                CHECK(from < s->n, "a receive without its send");
                if (from == s->n)
                    return pairs;
                const TraceEvent *sent = &s->event[from++];
                CHECK(sent->bytes == sent->moved && sent->moved == got->moved &&
                          got->end >= sent->called - slack,
                      "ranks %d to %d: received %.3f us before it was sent", a, b,
                      1e6 * (sent->called - got->end));
                pairs++;
            }
        }
    return pairs;
}

/* Checks the clock without messages: the optimizer's step adds over all ranks, so at one moment all
 * ranks are inside it. */
static void check_order(const Timeline *t, int64_t step, double slack)
{
    double end[64] = {0}, start[64] = {0};
    for (int r = 0; r < t->ranks && r < 64; r++)
        for (int64_t i = 0; i < t->rank[r].n; i++) {
            const TraceEvent *e = &t->rank[r].event[i];
            if (e->step == step && e->kind == I_S) {
                start[r] = e->start;
                end[r] = e->end;
            }
        }
    for (int a = 0; a < t->ranks; a++)
        for (int b = 0; b < t->ranks; b++)
            CHECK(start[a] <= end[b] + slack, "rank %d begins its optimizer step after rank %d ended its own",
                  a, b);
}

/* The replay leaves out waiting alone, so a pipeline's measured bubble is not below the replayed one. */
static void check_replay(const Timeline *t, int64_t step, double slack)
{
    int lane[64];
    for (int r = 0; r < t->ranks; r++) {
        int p = timeline_pipeline(t, r, lane);
        PipelineTimes x;
        timeline_times(&x, t, lane, p, step);
        double measured = x.measured.step_rate, replayed = x.schedule.step_rate;
        CHECK(measured >= replayed - 1e-4 - slack / fmax(x.sim.makespan, 1e-6),
              "rank %d step %lld: a bubble of %g, replayed %g", r, (long long)step, measured, replayed);
        timeline_times_close(&x);
    }
}

static int check_run(char **arg)
{
    char *path = xasprintf("%s/trace.json", arg[0]), *steps = arg[2];
    json_error_t error;
    json_t *trace = json_load_file(path, 0, &error), *lists = json_load_file(arg[1], 0, NULL);
    double minimum = atof(arg[3]), slack = getenv("GRIDIRON_RANKS_PER_HOST") ? 0.1 : 2e-9;
    CHECK(trace && lists, "%s: %s", path, error.text);
    if (!trace || !lists)
        return test_end();
    json_t *ranks = json_object_get(lists, "ranks");
    Timeline t;
    int64_t n = check_rows(json_object_get(trace, "traceEvents")), sum = 0, pairs = 0, seen[STREAMS] = {0};
    timeline_read(&t, trace);
    for (int r = 0; r < t.ranks; r++) {
        sum += t.rank[r].n;
        CHECK(!t.rank[r].lost, "rank %d lost %lld events", r, (long long)t.rank[r].lost);
        for (int64_t i = 0; i < t.rank[r].n; i++)
            seen[timeline_stream(&t.rank[r].event[i])]++;
    }
    int tp = 0, cp = 0, dp = 0;    /* bool; context ranks add gradients, as data ranks do */
    for (int r = 0; r < t.ranks; r++) {
        tp |= t.rank[r].index[AXIS_TP] > 0;
        cp |= t.rank[r].index[AXIS_CP] > 0;
        dp |= cp || t.rank[r].index[AXIS_DP] > 0;
    }
    CHECK(n == sum && n > 0, "%lld events in the file, %lld read", (long long)n, (long long)sum);
    for (char *s = strtok(steps, ","); s; s = strtok(NULL, ",")) {
        int64_t step = atoll(s);
        for (int r = 0; r < t.ranks; r++)
            check_list(&t, r, dp + 1, step, json_array_get(ranks, (size_t)t.rank[r].index[AXIS_PP]));
        pairs += check_clock(&t, step, slack);
        check_order(&t, step, slack);
        check_replay(&t, step, 64 * slack);
    }
    CHECK(!seen[STREAM_TP] == !tp && !seen[STREAM_CP] == !cp && !seen[STREAM_DP] == !dp &&
              !seen[STREAM_PP] == (t.shape.p == 1) && seen[STREAM_WORLD],
          "rows: tp %lld, cp %lld, dp %lld, pp %lld, world %lld", (long long)seen[STREAM_TP],
          (long long)seen[STREAM_CP], (long long)seen[STREAM_DP], (long long)seen[STREAM_PP],
          (long long)seen[STREAM_WORLD]);
    Overlap o = timeline_overlap(&t, OVERLAP_DATA, -1, -1), c = timeline_overlap(&t, OVERLAP_CONTEXT, -1, -1);
    CHECK(!cp == !(c.bytes > 0) && c.bytes_under <= c.bytes, "%.0f of %.0f bytes under computation",
          c.bytes_under, c.bytes);
    CHECK(!dp == !(o.bytes > 0) && o.bytes_under <= o.bytes && o.bytes_under >= minimum * o.bytes,
          "%.0f of %.0f bytes under computation",
          o.bytes_under, o.bytes);
    char said[TRACE_SAID];
    timeline_say(&t, said, sizeof said);
    printf("# %lld events, %lld messages; %s\n", (long long)n, (long long)pairs, said);
    timeline_close(&t);
    json_decref(trace);
    json_decref(lists);
    free(path);
    return test_end();
}

int main(int argc, char **argv)
{
    if (argc == 6 && !strcmp(argv[1], "check"))
        return check_run(argv + 2);
    test_form();
    test_settle();
    test_losses();
    test_overlap();
    test_bubble();
    test_shared_cores();
    return test_end();
}
