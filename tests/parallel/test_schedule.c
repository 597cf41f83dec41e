/* test_schedule -- pipeline schedules against their published orders, times, bubbles and memory */
#include "closed_form.h"
#include "schedules.h"

static char *text_of(const Instr *list, int n)
{
    size_t room = (size_t)n * 12 + 1, at = 0;
    char *all = xcalloc(room, 1), one[24];
    for (int i = 0; i < n; i++) {
        instr_print(&list[i], one, sizeof one);
        at += (size_t)snprintf(all + at, room - at, "%s%s", i ? (list[i].join ? "+" : " ") : "", one);
    }
    return all;
}

/* ---- the lists, letter by letter ---- */

static void published_orders(void)
{
    static const struct { ScheduleKind kind; const char *rank[4]; } want[] = {
        {SCHEDULE_GPIPE, {"FFFFFFFFBBBBBBBB", "FFFFFFFFBBBBBBBB", "FFFFFFFFBBBBBBBB", "FFFFFFFFBBBBBBBB"}},
        {SCHEDULE_1F1B, {"FFFFBFBFBFBFBBBB", "FFFBFBFBFBFBFBBB", "FFBFBFBFBFBFBFBB", "FBFBFBFBFBFBFBFB"}},
        {SCHEDULE_ZB_H1, {"FFFFDWFDWFDWFDWFDWDWDWDW", "FFFDFDWFDWFDWFDWFDWDWDWW",
                          "FFDFDFDWFDWFDWFDWFDWDWWW", "FDFDFDFDWFDWFDWFDWFDWWWW"}},
    };
    for (size_t k = 0; k < sizeof want / sizeof *want; k++) {
        PipeShape s = {.kind = want[k].kind, .p = 4, .v = 1, .m = 8};
        Instr memory[4][24];
        InstrList list[4] = {{0, memory[0]}, {0, memory[1]}, {0, memory[2]}, {0, memory[3]}};
        schedule_generate(&s, list);
        for (int rank = 0; rank < 4; rank++) {
            char text[25] = {0};
            for (int i = 0; i < list[rank].n; i++)
                text[i] = *instr_info[list[rank].list[i].op].letters;
            CHECK(!strcmp(text, want[k].rank[rank]), "%s rank %d: %s", schedule_name(s.kind), rank, text);
        }
    }
}

/* Messages of one moment are grouped (+). The groups of 1F1B are Megatron's fused
 * send_forward_recv_backward and send_backward_recv_forward. */
static void published_messages(void)
{
    static const struct { ScheduleKind kind; int rank; const char *text; int paired;
    } want[] = {
        {SCHEDULE_1F1B, 0,
         "F0.0 SA0.0 F1.0 SA1.0 F2.0 SA2.0 F3.0 SA3.0 RG0.0 B0.0 F4.0 SA4.0+RG1.0 B1.0 F5.0 "
         "SA5.0+RG2.0 B2.0", 0},
        {SCHEDULE_1F1B, 1,
         "RA0.0 F0.0 RA1.0+SA0.0 F1.0 RA2.0+SA1.0 F2.0 RA3.0+SA2.0 RG0.0 B0.0 SG0.0 F3.0 "
         "SA3.0+RG1.0 B1.0 RA4.0+SG1.0 F4.0", 0},
        {SCHEDULE_1F1B, 3,
         "RA0.0 F0.0 RA1.0 B0.0 SG0.0 F1.0 B1.0 RA2.0+SG1.0 F2.0 B2.0 RA3.0+SG2.0 F3.0 B3.0 "
         "RA4.0+SG3.0 F4.0 B4.0", 0},
        {SCHEDULE_ZB_H1, 3,
         "RA0.0 F0.0 RA1.0 D0.0 SG0.0 F1.0 D1.0 RA2.0+SG1.0 F2.0 D2.0 RA3.0+SG2.0 F3.0 D3.0 "
         "SG3.0 W0.0 RA4.0 F4.0 D4.0 SG4.0 W1.0", 0},
        {SCHEDULE_1F1B, 2,
         "RA0.0 F0.0 RA1.0+SA0.0 F1.0 RA2.0+SA1.0 F2.0 RA3.0+SA2.0 RA4.0 RG0.0 F3.0+B0.0 "
         "SA3.0+SG0.0+RG1.0 F4.0+B1.0", 1},
    };
    for (size_t k = 0; k < sizeof want / sizeof *want; k++) {
        PipeShape s = {.kind = want[k].kind, .p = 4, .v = 1, .m = 8, .paired = want[k].paired};
        ScheduleSet set;
        schedules_open(&set, &s);
        char *text = text_of(set.rank[want[k].rank].list, set.rank[want[k].rank].n);
        CHECK(!strncmp(text, want[k].text, strlen(want[k].text)), "%s rank %d: %s", schedule_name(s.kind),
              want[k].rank, text);
        free(text);
        schedules_close(&set);
    }
}

/* The lists of one rank are the plain training loop. */
static void one_rank(void)
{
    static const struct { ScheduleKind kind; int slots; const char *text; int paired; } want[] = {
        {SCHEDULE_1F1B, 1, "F0.0 B0.0 F1.0 B1.0 F2.0 B2.0 R/3 R/2 R/1 R/0 S", 0},
        {SCHEDULE_1F1B, 2, "F0.0 F1.0+B0.0 F2.0+B1.0 B2.0 R/3 R/2 R/1 R/0 S", 1},
        {SCHEDULE_GPIPE, 3, "F0.0 F1.0 F2.0 B0.0 B1.0 B2.0 R/3 R/2 R/1 R/0 S", 0},
        {SCHEDULE_ZB_H1, 1, "F0.0 D0.0 W0.0 F1.0 D1.0 W1.0 F2.0 D2.0 W2.0 R/3 R/2 R/1 R/0 S", 0},
        {SCHEDULE_FORWARD, 1, "F0.0 F1.0 F2.0", 0},
    };
    for (size_t k = 0; k < sizeof want / sizeof *want; k++) {
        PipeShape shape = {.kind = want[k].kind, .p = 1, .v = 1, .m = 3, .paired = want[k].paired};
        ScheduleSet set;
        Schedule s;
        schedules_open(&set, &shape);
        check_set(&set, want[k].text);
        schedule_open(&s, &set, 0, &(Expand){.units = (const int[]){4}});
        char *text = text_of(s.list, s.n);
        CHECK(!strcmp(text, want[k].text), "%s", text);
        CHECK(s.slots[SLOT_FD] == want[k].slots && s.units == 4, "%s: %d slots", want[k].text,
              s.slots[SLOT_FD]);
        free(text);
        schedule_close(&s);
        schedules_close(&set);
    }
}

/* Megatron-LM's order of virtual microbatches: 5 microbatches, 2 chunks, groups of 3. */
static void order_table(void)
{
    static const int mb[] = {0, 1, 2, 0, 1, 2, 3, 4, 3, 4}, chunk[] = {0, 0, 0, 1, 1, 1, 0, 0, 1, 1};
    PipeShape s = {.kind = SCHEDULE_INTERLEAVED, .p = 2, .v = 2, .m = 5, .group = 3};
    Instr memory[2][30];
    InstrList list[2] = {{0, memory[0]}, {0, memory[1]}};
    schedule_generate(&s, list);
    for (int r = 0; r < 2; r++) {
        int f = 0, b = 0, before_b = 0;
        for (int i = 0; i < list[r].n; i++) {
            const Instr *k = &list[r].list[i];
            int n = k->op == I_F ? f++ : b++;
            before_b += k->op == I_F && !b;
            CHECK(n < 10 && k->mb == mb[n] && k->chunk == (k->op == I_F ? chunk[n] : 1 - chunk[n]),
                  "rank %d at %d: %d.%d",
                  r, i, k->mb, k->chunk);
        }
        CHECK(f == 10 && b == 10 && before_b == 2 * (1 - r) + 3 + 1, "rank %d: %d F, %d B, %d F ahead", r, f,
              b, before_b);
    }
}

/* Invariants of interleaved's order that Megatron-LM's own test checks, on the sizes of that test. */
static void order_invariants(void)
{
    static const int sizes[][2] = {{1, 1}, {2, 2}, {2, 4}, {4, 4}, {4, 5}, {8, 9}, {8, 11}},
                     chunks[] = {1, 2, 4, 8};
    for (int k = 0; k < 7; k++)
        for (int m = 8; m <= 32; m *= 4)
            for (int c = 0; c < 4; c++) {
                int v = chunks[c], p = sizes[k][0];
                if (sizes[k][1] > m)
                    continue;
                PipeShape s = {.kind = v > 1 ? SCHEDULE_INTERLEAVED : SCHEDULE_1F1B, .p = p, .v = v, .m = m,
                               .group = sizes[k][1]};
                Instr *memory = xcalloc((size_t)(p * v * m * 3), sizeof *memory);
                InstrList list[8];
                for (int r = 0; r < p; r++)
                    list[r] = (InstrList){0, memory + r * v * m * 3};
                schedule_generate(&s, list);
                for (int r = 0; r < p; r++) {
                    int held = 0, least = 0, of[8] = {0};
                    for (int i = 0; i < list[r].n; i++) {
                        int sign = list[r].list[i].op == I_F ? 1 : -1;
                        held += sign;
                        of[list[r].list[i].chunk] += sign;
                        least = of[list[r].list[i].chunk] < least ? of[list[r].list[i].chunk] : least;
                    }
                    CHECK(list[r].n == 2 * m * v && !held && !least,
                          "p %d v %d m %d rank %d: %d instructions, %d left, %d",
                          p, v, m, r, list[r].n, held, least);
                }
                free(memory);
            }
}

/* ---- time and memory ---- */

/* Checks and simulates a schedule whose F, D and W take `unit` each. Returns the makespan. */
static double overhead_of(PipeShape s, double unit, Simulation *sim)
{
    double cost[256];
    ScheduleSet set;
    for (int i = 0; i < s.p * s.v; i++)
        cost[i] = unit;
    s.cost[0] = s.cost[1] = s.cost[2] = cost;
    schedules_open(&set, &s);
    check_set(&set, schedule_name(s.kind));
    simulate(&set, sim, 0);
    double queues = model_run(&set, 1);
    CHECK(fabs(queues - sim->makespan) < 1e-9 * queues, "%s p %d v %d m %d: %g by the replay, %g with queues",
          schedule_name(s.kind), s.p,
          s.v, s.m, sim->makespan, queues);
    schedules_close(&set);
    return sim->makespan;
}

static void closed_forms(void)
{
    static const int kinds[] = {SCHEDULE_GPIPE, SCHEDULE_1F1B, SCHEDULE_INTERLEAVED, SCHEDULE_ZB_H1};
    for (int p = 1; p <= 12; p++)
        for (int m = p; m <= 32; m++)
            for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
                for (int kind = kinds[i], v = 1; v <= (kind == SCHEDULE_INTERLEAVED ? 4 : 1); v++) {
                    if (!fits(kind, p, m))
                        continue;
                    PipeShape s = shape_of(kind, p, v, m);
                    Simulation sim;
                    double time = overhead_of(s, 1, &sim);
                    int want = kind == SCHEDULE_ZB_H1 ? 3 * m + p - 1 : 3 * (m * v + p - 1);
                    CHECK(fabs(time - want) < 1e-9, "%s p %d v %d m %d: time %g, closed form %d",
                          schedule_name(kind), p, v, m, time, want);
                    for (int r = 0; r < p; r++) {
                        double peak = kind == SCHEDULE_GPIPE ? m : kind == SCHEDULE_1F1B ? p - r : p;
                        if (kind == SCHEDULE_INTERLEAVED)
                            peak = fmin(2 * (p - r - 1) + (v - 1) * p + 1, m * v) / v;
                        CHECK(fabs(sim.peak[r] - peak) < 1e-9, "%s p %d v %d m %d rank %d: peak %g, not %g",
                              schedule_name(kind), p, v, m, r,
                              sim.peak[r], peak);
                    }
                    simulation_close(&sim);
                }
}

/* Time beyond 3m, wait inside a stage, and peaks of the first, the last and the fullest rank, in
 * forwards of a whole rank. The numbers are those of an event simulation of the Zero Bubble authors'
 * scheduler. Its V schedules come from a search; the generators here reach the same. The numbers do not
 * depend on m >= 2p - 1. */
static void published_overheads(void)
{
    static const struct { int kind, p; double overhead, wait, first, last, most;
    } want[] = {
        {SCHEDULE_1F1B, 4, 9, 9, 4, 1, 4},
        {SCHEDULE_1F1B, 8, 21, 21, 8, 1, 8},
        {SCHEDULE_INTERLEAVED, 4, 4.5, 4.5, 5.5, 2.5, 5.5},
        {SCHEDULE_INTERLEAVED, 8, 10.5, 10.5, 11.5, 4.5, 11.5},
        {SCHEDULE_ZB_H1, 4, 3, 3, 4, 4, 4},
        {SCHEDULE_ZB_H1, 8, 7, 7, 8, 8, 8},
        {SCHEDULE_ZB_H2, 4, 3, 0, 7, 7, 7},
        {SCHEDULE_ZB_H2, 8, 7, 0, 15, 15, 15},
        {SCHEDULE_ZB_V, 4, 1.5, 0, 4, 4, 4},
        {SCHEDULE_ZB_V, 8, 3.5, 0, 8, 8, 8},
        {SCHEDULE_V_HALF, 4, 2.5, 2.5, 3, 3, 3},
        {SCHEDULE_V_HALF, 8, 8.5, 8.5, 5, 5, 5},
        {SCHEDULE_V_MIN, 4, 5.5, 5.5, 2, 2, 2},
        {SCHEDULE_V_MIN, 8, 13.5, 13.5, 3.5, 4, 4},
    };
    for (size_t k = 0; k < sizeof want / sizeof *want; k++)
        for (int m = 16; m <= 40; m += 8) {
            PipeShape s = shape_of(want[k].kind, want[k].p, 2, m);
            Simulation sim;
            double most = 0, over = overhead_of(s, 1.0 / s.v, &sim) - 3 * m,
                   wait = 3 * m * sim.rate / (1 - sim.rate);
            for (int r = 0; r < s.p; r++)
                most = fmax(most, sim.peak[r]);
            CHECK(fabs(over - want[k].overhead) < 1e-9, "%s p %d m %d: overhead %g, not %g",
                  schedule_name(s.kind), s.p, m, over, want[k].overhead);
            CHECK(fabs(wait - want[k].wait) < 1e-9, "%s p %d m %d: wait %g, not %g", schedule_name(s.kind),
                  s.p, m, wait, want[k].wait);
            CHECK(sim.peak[0] == want[k].first && sim.peak[s.p - 1] == want[k].last && most == want[k].most,
                  "%s p %d m %d: peaks %g .. %g, at most %g", schedule_name(s.kind), s.p, m, sim.peak[0],
                  sim.peak[s.p - 1], most);
            simulation_close(&sim);
        }
}

static void few_microbatches(void)
{
    static const struct { int kind, p, m; double overhead;
    } want[] = {{SCHEDULE_ZB_V, 4, 4, 3},
                {SCHEDULE_ZB_H1, 4, 2, 5},
                {SCHEDULE_1F1B, 4, 2, 9},
                {SCHEDULE_GPIPE, 8, 1, 21}};
    for (size_t k = 0; k < sizeof want / sizeof *want; k++) {
        PipeShape s = shape_of(want[k].kind, want[k].p, 2, want[k].m);
        Simulation sim;
        double over = overhead_of(s, 1.0 / s.v, &sim) - 3 * s.m;
        CHECK(fabs(over - want[k].overhead) < 1e-9, "%s p %d m %d: overhead %g, not %g",
              schedule_name(s.kind), s.p, s.m, over, want[k].overhead);
        simulation_close(&sim);
    }
}

/* Bubble rates of Qi et al. 2023, arXiv:2401.10241, table of measured times and computed rates: all 36
 * cells of the schedules that follow a rule (1f1b, zb-h1, zb-h2). */
static void published_rates(void)
{
    static const struct { int p, m; double f, d, w, hop, rate[3]; } row[] = {
        {8, 24, 18.522, 18.086, 9.337, .601, {.2431, .1585, .1083}},
        {8, 32, 18.513, 18.086, 9.331, .626, {.1985, .1242, .0837}},
        {8, 64, 18.546, 18.097, 9.321, .762, {.1240, .0674, .0444}},
        {8, 24, 29.718, 29.444, 19.927, .527, {.2347, .1323, .0698}},
        {8, 32, 29.802, 29.428, 19.530, .577, {.1898, .1045, .0559}},
        {8, 64, 29.935, 29.621, 19.388, .535, {.1091, .0554, .0294}},
        {16, 48, 11.347, 11.248, 8.132, .377, {.2552, .1397, .0672}},
        {16, 64, 11.307, 11.254, 8.101, .379, {.2082, .1088, .0516}},
        {16, 128, 11.325, 11.308, 8.109, .378, {.1251, .0576, .0266}},
        {32, 96, 10.419, 10.207, 7.715, .408, {.2646, .1421, .0641}},
        {32, 128, 10.408, 10.204, 7.703, .408, {.2168, .1106, .0490}},
        {32, 256, 10.402, 10.248, 7.698, .460, {.1352, .0594, .0257}},
    };
    static const int kinds[] = {SCHEDULE_1F1B, SCHEDULE_ZB_H1, SCHEDULE_ZB_H2};
    for (size_t k = 0; k < sizeof row / sizeof *row; k++)
        for (int i = 0; i < 3; i++) {
            double f[32], d[32], w[32];
            PipeShape s = shape_of(kinds[i], row[k].p, 1, row[k].m);
            ScheduleSet set;
            Simulation sim;
            for (int r = 0; r < s.p; r++)
                f[r] = row[k].f, d[r] = row[k].d, w[r] = row[k].w;
            s.cost[0] = f, s.cost[1] = d, s.cost[2] = w;
            s.hop = row[k].hop;
            schedules_open(&set, &s);
            check_set(&set, schedule_name(s.kind));
            simulate(&set, &sim, 0);
            CHECK(fabs(sim.rate - row[k].rate[i]) < 5.05e-5, "%s p %d m %d: rate %.5f, published %.4f",
                  schedule_name(s.kind), s.p, s.m, sim.rate, row[k].rate[i]);
            simulation_close(&sim);
            schedules_close(&set);
        }
}

/* Peaks of zb-h1 when W needs a share of a microbatch's memory: a microbatch between D and W counts as that
 * share. */
static void weight_share(void)
{
    PipeShape s = shape_of(SCHEDULE_ZB_H1, 4, 1, 8);
    for (int i = 0; i <= 4; i++) {
        ScheduleSet set;
        Simulation sim;
        s.weight_share = i / 4.0;
        schedules_open(&set, &s);
        simulate(&set, &sim, 0);
        for (int r = 0; r < 4; r++) /* rank r holds p - r microbatches between F and D, r between D and W */
            CHECK(fabs(sim.peak[r] - (4 - r + r * s.weight_share)) < 1e-12, "share %g rank %d: %g",
                  s.weight_share, r, sim.peak[r]);
        simulation_close(&sim);
        schedules_close(&set);
    }
}

/* Checks the spans of single instructions. Computes follow each other in the list's order; so do messages.
 * A message starts after the compute before it has started, and a send by the end of that compute.
 * A compute starts no earlier than the message before it. The last compute ends at the makespan. */
static void spans_of(const ScheduleSet *set, const Simulation *sim)
{
    const PipeShape *s = &set->shape;
    const char *name = schedule_name(s->kind);
    double busy = 0, last = 0;
    for (int r = 0; r < s->p; r++) {
        double end = 0, started = -1, sent = 0;
        for (int i = 0; i < set->rank[r].n; i++) {
            const Instr *k = &set->rank[r].list[i];
            const Span *t = &sim->span[r][i];
            int receive = k->op == I_RA || k->op == I_RG;
            if (is_message(k)) {
                CHECK(fabs(t->end - t->start - s->hop) < 1e-12 && (receive || t->start <= end),
                      "%s rank %d at %d: a message from %g to %g", name, r, i, t->start, t->end);
                CHECK(started < t->start && sent <= t->start, "%s rank %d at %d: a message of %g is late",
                      name, r, i, t->start);
                sent = t->start;
                continue;
            }
            CHECK(t->start >= end && t->start >= sent, "%s rank %d at %d: starts at %g, before %g", name, r,
                  i, t->start, fmax(end, sent));
            started = t->start;
            end = t->end;
            busy += t->end - t->start;
        }
        last = fmax(last, end);
    }
    CHECK(fabs(busy - 3.0 * s->p * s->v * s->m) < 1e-9 && fabs(last - sim->makespan) < 1e-12,
          "%s: busy %g, end %g of %g", name, busy, last, sim->makespan);
}

/* Every row of SCHEDULES: its name finds it, and its closed form gives the rates of its simulated lists. */
static void rows(void)
{
    int known = 0;
    for (int kind = 0; kind < SCHEDULE_CHOICES; kind++) {
        CHECK(schedule_find(schedule_name(kind)) == (ScheduleKind)kind, "%s is another", schedule_name(kind));
        for (int p = 2; p <= 6; p++)
            for (int m = 1; m <= 24; m++) {
                PipeShape s = shape_of(kind, p, 2, m);
                Rates want = closed_form(&s);
                Simulation sim;
                if (!fits(kind, p, m) || isnan(want.rate))
                    continue;
                overhead_of(s, 1, &sim);
                CHECK(fabs(sim.rate - want.rate) < 1e-12 && fabs(sim.step_rate - want.step_rate) < 1e-12,
                      "%s p %d m %d: rates %g %g, closed form %g %g", schedule_name(kind), p, m, sim.rate,
                      sim.step_rate, want.rate, want.step_rate);
                simulation_close(&sim);
                known++;
            }
    }
    CHECK(known > 300, "only %d closed forms", known);
    CHECK(schedule_find("forward") == SCHEDULE_CHOICES, "forward is no choice");
}

static void spans(void)
{
    for (int kind = 0; kind < SCHEDULE_CHOICES; kind++)
        for (int hop = 0; hop < 3; hop++) {
            PipeShape s = shape_of(kind, 4, 3, 8);
            ScheduleSet set;
            Simulation sim;
            if (!fits(kind, 4, 8))
                continue;
            s.hop = 0.25 * hop;
            schedules_open(&set, &s);
            simulate(&set, &sim, 1);
            spans_of(&set, &sim);
            simulation_close(&sim);
            schedules_close(&set);
        }
}

int main(void)
{
    published_orders();
    published_messages();
    one_rank();
    order_table();
    order_invariants();
    closed_forms();
    published_overheads();
    few_microbatches();
    published_rates();
    weight_share();
    spans();
    rows();
    return test_end();
}
