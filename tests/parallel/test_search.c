/* test_search -- schedules without a published list: searched ones, those from a file, DualPipeV */
#define _GNU_SOURCE
#include "bound.h"
#include "custom.h"
#include "schedules.h"
#include <math.h>
#include <time.h>

static double cpu_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double most(const Simulation *sim, int p)
{
    double peak = 0;
    for (int r = 0; r < p; r++)
        peak = fmax(peak, sim->peak[r]);
    return peak;
}

/* ---- zb-auto ---- */

/* Cells of tables 4 and 5 of the Zero Bubble paper (Qi et al. 2023, arXiv:2401.10241), for sequences of 1024.
 *
 *   a, h           heads and width of the model
 *   p, m           ranks, microbatches
 *   f, d, w, hop   ms: T_F, T_B, T_W, T_comm
 *   rate           bubble rates of ZB-1p and ZB-2p */
static const struct { int a, h, p, m; double f, d, w, hop, rate[2]; } cells[] = {
    {24, 2304, 8, 24, 18.522, 18.086, 9.337, 0.601, {0.1585, 0.0433}},
    {24, 2304, 8, 32, 18.513, 18.086, 9.331, 0.626, {0.1242, 0.0039}},
    {24, 2304, 8, 64, 18.546, 18.097, 9.321, 0.762, {0.0674, 0.0026}},
    {32, 4096, 8, 24, 29.718, 29.444, 19.927, 0.527, {0.1323, 0.0029}},
    {32, 4096, 8, 32, 29.802, 29.428, 19.530, 0.577, {0.1045, 0.0022}},
    {32, 4096, 8, 64, 29.935, 29.621, 19.388, 0.535, {0.0554, 0.0010}},
    {40, 5120, 16, 48, 11.347, 11.248, 8.132, 0.377, {0.1397, 0.0066}},
    {40, 5120, 16, 64, 11.307, 11.254, 8.101, 0.379, {0.1088, 0.0054}},
    {40, 5120, 16, 128, 11.325, 11.308, 8.109, 0.378, {0.0576, 0.0028}},
    {48, 6144, 32, 96, 10.419, 10.207, 7.715, 0.408, {0.1421, 0.0038}},
    {48, 6144, 32, 128, 10.408, 10.204, 7.703, 0.408, {0.1106, 0.0029}},
    {48, 6144, 32, 256, 10.402, 10.248, 7.698, 0.460, {0.0594, 0.0018}}};

/* The paper's cells. In its memory model an activation has s b (34 h + 5 a s) bytes; W needs 32 s b h of
 * them. */
static void published(void)
{
    double worst = -1, longest = 0, start = cpu_now();
    for (size_t k = 0; k < sizeof cells / sizeof *cells; k++)
        for (int limit = 1; limit <= 2; limit++) {
            int p = cells[k].p;
            double cost[3][64], before = cpu_now();
            PipeShape s = {.kind = SCHEDULE_ZB_AUTO, .p = p, .v = 1, .m = cells[k].m, .hop = cells[k].hop,
                           .limit = limit * p,
                           .weight_share = 32.0 * cells[k].h / (34.0 * cells[k].h + 5.0 * cells[k].a * 1024)};
            for (int i = 0; i < p; i++)
                cost[0][i] = cells[k].f, cost[1][i] = cells[k].d, cost[2][i] = cells[k].w;
            for (int i = 0; i < 3; i++)
                s.cost[i] = cost[i];
            ScheduleSet set;
            Simulation sim;
            schedules_open(&set, &s);
            double took = cpu_now() - before, want = cells[k].rate[limit - 1];
            longest = fmax(longest, took);
            check_set(&set, "zb-auto");
            simulate(&set, &sim, 0);
            CHECK(sim.rate <= want + 0.002 && most(&sim, p) <= s.limit + 1e-9,
                  "p %d m %d limit %d: %.5f, the paper's %.4f; peak %g",
                  p, s.m, s.limit, sim.rate, want, most(&sim, p));
            worst = fmax(worst, sim.rate - want);
            schedules_close(&set);
            simulation_close(&sim);
        }
    printf("# 24 published cells: at most %.5f above; %.2f s, %.2f s the longest\n", worst, cpu_now() - start,
           longest);
}

enum { EQUAL, SHORT_W, UNEVEN, FAR, LONG_LAST, WAYS };

static void cost_ways(PipeShape *s, int way, double *cost)
{
    for (int k = 0; k < 3; k++) {
        s->cost[k] = way == EQUAL ? NULL : cost + 64 * k;
        for (int i = 0; i < s->p; i++)
            cost[64 * k + i] = way == UNEVEN                       ? 0.3 + dice(1000) / 700.0
                               : way == LONG_LAST && i == s->p - 1 ? 1.5
                               : k == 2 && way == SHORT_W          ? 0.4
                                                                   : 1;
    }
    s->hop = way == FAR ? 0.7 : 0;
    for (int i = 0; i < s->p; i++)
        cost[192 + i] = 0.05 + 0.001 * dice(200);
    s->hops = way == UNEVEN ? cost + 192 : NULL;
}

/* Simulates schedule `kind` on the shape s. t: makespan and bubble rate. Returns 1: its peak is within
 * s.limit. */
static int times_of(PipeShape s, ScheduleKind kind, double t[2])
{
    ScheduleSet set;
    Simulation sim;
    s.kind = kind;
    schedules_open(&set, &s);
    simulate(&set, &sim, 0);
    int fits = most(&sim, s.p) <= (s.limit ? s.limit : s.p) + 1e-9;
    t[0] = sim.makespan;
    t[1] = sim.rate;
    simulation_close(&sim);
    schedules_close(&set);
    return fits;
}

static void one_search(PipeShape s, int way)
{
    ScheduleSet set;
    Simulation sim;
    double cost[4 * 64], other[2];
    cost_ways(&s, way, cost);
    schedules_open(&set, &s);
    check_set(&set, "zb-auto");
    simulate(&set, &sim, 0);
    double limit = s.limit ? s.limit : s.p, beside = model_run(&set, 1);
    CHECK(model_run(&set, 0) > 0 && beside >= sim.makespan * (1 - 1e-12),
          "p %d m %d costs %d limit %g: does not come to its end", s.p, s.m, way, limit);
    CHECK(most(&sim, s.p) <= limit + 1e-9, "p %d m %d costs %d: holds %g of %g", s.p, s.m, way,
          most(&sim, s.p), limit);
    static const ScheduleKind known[] = {SCHEDULE_1F1B, SCHEDULE_ZB_H1, SCHEDULE_ZB_H2};
    for (int k = 0; k < 3; k++)
        if (times_of(s, known[k], other))
            CHECK(sim.makespan <= other[0] * (1 + 1e-6) && (way == UNEVEN || sim.rate <= other[1] + 1e-6),
                  "p %d m %d costs %d limit %g share %g: %g (%g), %s takes %g (%g)", s.p, s.m, way, limit,
                  s.weight_share, sim.makespan, sim.rate, schedule_name(known[k]), other[0], other[1]);
    schedules_close(&set);
    simulation_close(&sim);
}

static void sweep(void)
{
    static const int ms[] = {1, 2, 3, 5, 8, 13, 24, 40};
    int n = 0;
    for (int p = 1; p <= 10; p++)
        for (size_t i = 0; i < sizeof ms / sizeof *ms; i++)
            for (int limit = 0; limit < 5; limit++) {
                int limits[] = {0, 1, p / 2 + 1, p + 1, 2 * p};
                one_search((PipeShape){.kind = SCHEDULE_ZB_AUTO, .p = p, .v = 1, .m = ms[i],
                                       .limit = limits[limit],
                                       .weight_share = n % 3   ? 1
                                                       : n % 2 ? 0.4
                                                               : 0},
                           n % WAYS);
                n++;
            }
    printf("# %d searches\n", n);
}

/* Lists all orders of F, D and W of m microbatches on one rank: no D before its F, no W before its D. */
enum { ORDERS = 512 };
static int orders(int m, char (*out)[16])
{
    int n = 0;
    for (int code = 0, all = (int)pow(3, 3 * m); code < all; code++) {
        int done[3] = {0}, rest = code, ok = 1;
        char text[16] = "";
        for (int i = 0; i < 3 * m && ok; i++, rest /= 3) {
            int op = rest % 3;
            text[i] = "FDW"[op];
            done[op]++;
            ok = done[op] <= m && done[0] >= done[1] && done[1] >= done[2];
        }
        if (ok)
            memcpy(out[n++], text, sizeof text);
    }
    return n;
}

/* Time of a step of two ranks in these orders, by its definition; -1: the ranks wait for each other, or
 * a rank holds more than `limit` microbatches. */
static double time_of_two(const char *order[2], const double *cost, int m, int limit)
{
    double end[3][2][4], at[2] = {0, 0};
    int done[2][3] = {{0}}, moved = 1;
    while (moved)
        for (int r = moved = 0; r < 2; r++)
            for (;;) {
                int *n = done[r], i = n[0] + n[1] + n[2],
                    op = i < 3 * m ? (order[r][i] == 'D') + 2 * (order[r][i] == 'W') : -1;
                if (op < 0 || (op == 0 && r && n[0] >= done[0][0]) || (op == 1 && !r && n[1] >= done[1][1]))
                    break;
                double ready = op == 0 && r ? end[0][0][n[0]] : op == 1 && !r ? end[1][1][n[1]] : 0;
                at[r] = fmax(at[r], ready) + cost[2 * op + r];
                end[op][r][n[op]++] = at[r];
                if (n[0] - n[2] > limit)
                    return -1;
                moved = 1;
            }
    return done[0][2] == m && done[1][2] == m ? fmax(at[0], at[1]) : -1;
}

/* The search against all orders of two ranks. */
static void exhaustive(void)
{
    static char order[ORDERS][16];
    int exact = 0, all = 0;
    double worst = 0, tight = 0;
    for (int round = 0; round < 40; round++) {
        int m = 1 + round % 3, n = orders(m, order), limit = 1 + dice(3);
        double cost[6], best = INFINITY;
        for (int i = 0; i < 6; i++)
            cost[i] = 0.2 + dice(1000) / 500.0;
        for (int a = 0; a < n; a++)
            for (int b = 0; b < n; b++) {
                double t = time_of_two((const char *[]){order[a], order[b]}, cost, m, limit);
                best = t >= 0 && t < best ? t : best;
            }
        PipeShape s = {.kind = SCHEDULE_ZB_AUTO, .p = 2, .v = 1, .m = m, .limit = limit, .weight_share = 1,
                       .cost = {cost, cost + 2, cost + 4}};
        ScheduleSet set;
        Simulation sim;
        schedules_open(&set, &s);
        simulate(&set, &sim, 0);
        CHECK(sim.makespan >= best * (1 - 1e-9) && sim.makespan <= best * 1.1,
              "m %d limit %d: %g, possible %g", m, limit, sim.makespan, best);
        CHECK(step_bound(&s, limit) <= best * (1 + 1e-12), "m %d limit %d: bound %g, possible %g", m, limit,
              step_bound(&s, limit), best);
        tight = fmax(tight, best / step_bound(&s, limit) - 1);
        exact += sim.makespan <= best * (1 + 1e-6);
        worst = fmax(worst, sim.makespan / best - 1);
        all++;
        schedules_close(&set);
        simulation_close(&sim);
    }
    printf(
        "# beside every order of two ranks: %d of %d searches find the best, others %.1f %% more at most; "
        "the bound is at most %.1f %% below the best\n", exact, all, 100 * worst, 100 * tight);
    CHECK(exact >= all * 3 / 4, "%d of %d", exact, all);
}

/* Renumbers the microbatches of a rank's compute, after two neighbours have been exchanged. */
static void recount(InstrList *l)
{
    int n[4] = {0};
    for (int i = 0; i < l->n; i++)
        l->list[i].mb = (uint16_t)n[l->list[i].op]++;
}

/* The exchange of two neighbouring instructions of a rank never makes the step shorter. */
static void no_exchange_helps(void)
{
    for (int round = 0; round < 30; round++) {
        int p = 2 + round % 4, m = 4 + round % 7, tried = 0;
        double cost[4 * 64];
        PipeShape s = {
            .kind = SCHEDULE_ZB_AUTO, .p = p, .v = 1, .m = m, .limit = 1 + dice(2 * p), .weight_share = 1};
        ScheduleSet set, other;
        Simulation sim, now;
        InstrList list[8];
        cost_ways(&s, UNEVEN, cost);
        schedules_open(&set, &s);
        simulate(&set, &sim, 0);
        for (int r = 0; r < p; r++) {
            list[r] = (InstrList){0, xcalloc(3 * (size_t)m, sizeof(Instr))};
            for (int i = 0; i < set.rank[r].n; i++)
                if (set.rank[r].list[i].op <= I_W)
                    list[r].list[list[r].n++] = set.rank[r].list[i];
        }
        for (int r = 0; r < p; r++)
            for (int i = 0; i + 1 < list[r].n; i++)
                for (int back = 0; back < 2; back++) {
                    char why[256];
                    uint8_t *a = &list[r].list[i].op, *b = &list[r].list[i + 1].op, op = *a;
                    *a = *b;
                    *b = op;
                    recount(&list[r]);
                    if (back || list[r].list[i].op == list[r].list[i + 1].op)
                        continue;
                    schedules_lower(&other, &s, list);
                    if (schedules_check(&other, why, sizeof why)) {
                        simulate(&other, &now, 0);
                        CHECK(now.makespan >= sim.makespan * (1 - 1e-6) || most(&now, p) > s.limit,
                              "p %d m %d limit %d rank %d at %d: %g, exchanged %g",
                              p, m, s.limit, r, i, sim.makespan, now.makespan);
                        simulation_close(&now);
                        tried++;
                    }
                    schedules_close(&other);
                }
        CHECK(tried > p * m / 2, "%d exchanges", tried);
        for (int r = 0; r < p; r++)
            free(list[r].list);
        schedules_close(&set);
        simulation_close(&sim);
    }
}

/* With memory for 2p microbatches the step takes the least time possible: the last stage starts after p - 1
 * forwards and never waits. */
static void reaches_bound(void)
{
    for (int p = 2; p <= 16; p *= 2) {
        PipeShape s = {
            .kind = SCHEDULE_ZB_AUTO, .p = p, .v = 1, .m = 4 * p, .limit = 2 * p, .weight_share = 1};
        ScheduleSet set;
        Simulation sim;
        schedules_open(&set, &s);
        simulate(&set, &sim, 0);
        CHECK(fabs(sim.makespan - (3 * s.m + p - 1)) < 1e-9 && fabs(sim.rate) < 1e-9, "p %d: %g, bubble %g",
              p, sim.makespan, sim.rate);
        schedules_close(&set);
        simulation_close(&sim);
    }
}

/* ---- dualpipev ---- */

static void dualpipev(void)
{
    for (int p = 2; p <= 12; p++)
        for (int m = 2 * p; m <= 4 * p + 3; m++) {
            PipeShape s = {.kind = SCHEDULE_DUALPIPEV, .p = p, .v = 2, .m = m, .weight_share = 1};
            ScheduleSet set;
            Simulation sim;
            schedules_open(&set, &s);
            check_set(&set, "dualpipev");
            simulate(&set, &sim, 0);
            CHECK(model_run(&set, 0) > 0, "p %d m %d: deadlock", p, m);
            CHECK(fabs(sim.makespan - (6 * m + p - 1)) < 1e-9, "p %d m %d: time %g", p, m, sim.makespan);
            for (int r = 0; r < p; r++) {
                int n[4] = {0};
                for (int i = 0; i < set.rank[r].n; i++)
                    if (set.rank[r].list[i].op <= I_W)
                        n[set.rank[r].list[i].op]++;
                CHECK(n[I_F] == 2 * m && n[I_B] + n[I_D] == 2 * m && n[I_D] == n[I_W] &&
                          n[I_D] == 2 * (p - 1 - r) + r + 1,
                      "p %d m %d rank %d: %d F %d B %d D %d W", p, m, r, n[I_F], n[I_B], n[I_D], n[I_W]);
                CHECK(sim.peak[r] <= p + 0.5, "p %d m %d rank %d holds %g", p, m, r, sim.peak[r]);
            }
            schedules_close(&set);
            simulation_close(&sim);
        }
}

/* Lists of two ranks and four microbatches, written by hand from the phases of DualPipeV. */
static void dualpipev_by_hand(void)
{
    static const char want[] = "0F0,0F1,0F2,3F0,3I0,3W0,3F1,0F3,3B1,3F2,0B0,3B2,3F3,0B1,3B3,0I2,0W2,0I3,0W3\n"
                               "1F0,2F0,1F1,2F1,1F2,2B0,2F2,1B0,1F3,2B1,2F3,1B1,2B2,1B2,2I3,1I3,2W3,1W3\n";
    PipeShape s = {.kind = SCHEDULE_DUALPIPEV, .p = 2, .v = 2, .m = 4, .weight_share = 1};
    ScheduleSet set;
    char *text;
    size_t size;
    schedules_open(&set, &s);
    FILE *f = open_memstream(&text, &size);
    custom_write(f, &set);
    fclose(f);
    CHECK(!strcmp(text, want), "%s", text);
    free(text);
    schedules_close(&set);
}

/* ---- custom ---- */

static char said[4096];
static int mistakes;

static void say(void *ctx, int line, int col, const char *what)
{
    (void)ctx;
    size_t at = strlen(said);
    snprintf(said + at, sizeof said - at, "%d:%d: %s\n", line, col, what);
    mistakes++;
}

static int read_lists(CustomLists *c, const char *text, int p)
{
    *said = 0;
    mistakes = 0;
    return custom_read(c, text, strlen(text), p, say, NULL);
}

static void round_trip(PipeShape s)
{
    ScheduleSet set, again;
    CustomLists c;
    char *text;
    size_t size;
    schedules_open(&set, &s);
    FILE *f = open_memstream(&text, &size);
    custom_write(f, &set);
    fclose(f);
    int ok = read_lists(&c, text, s.p), split = 0, vee = s.p > 1 && is_v(&s);
    CHECK(ok && c.p == s.p && c.v == s.v && c.m == s.m && c.vee == vee, "%s p %d v %d m %d: %s",
          schedule_name(s.kind), s.p, s.v, s.m, said);
    if (ok) {
        PipeShape own = {.kind = SCHEDULE_CUSTOM, .p = s.p, .v = c.v, .m = c.m, .vee = vee, .lists = c.list,
                         .weight_share = 1};
        schedules_open(&again, &own);
        for (int r = 0; r < s.p; r++) {
            CHECK(again.rank[r].n == set.rank[r].n &&
                      !memcmp(again.rank[r].list, set.rank[r].list, (size_t)set.rank[r].n * sizeof(Instr)),
                  "%s p %d v %d m %d: rank %d has another list", schedule_name(s.kind), s.p, s.v, s.m, r);
            for (int i = 0; i < set.rank[r].n; i++)
                split |= set.rank[r].list[i].op == I_D;
        }
        CHECK(c.split == split, "%s: split", schedule_name(s.kind));
        schedules_close(&again);
        custom_close(&c);
    }
    free(text);
    schedules_close(&set);
}

static void round_trips(void)
{
    static const int ms[] = {1, 2, 4, 8, 16, 40};
    for (int kind = 0; kind < SCHEDULE_CHOICES; kind++)
        for (int p = 1; p <= 8; p = p < 4 ? p + 1 : 2 * p)
            for (size_t i = 0; i < sizeof ms / sizeof *ms; i++)
                for (int v = 1; v <= (kind == SCHEDULE_INTERLEAVED ? 3 : 1); v++)
                    if ((fits(kind, p, ms[i]) || kind == SCHEDULE_ZB_AUTO) &&
                        (p > 1 || !is_v(&(PipeShape){.kind = (ScheduleKind)kind})))
                        round_trip(shape_of(kind, p, v, ms[i]));
}

static void broken_files(void)
{
    static const struct { int p; const char *text, *says; int mistakes;
    } want[] = {
        {2, "0F0,0B0\n1F0,1B0\n", NULL, 0},
        {2, "\r\n 0F0 ,, 0I0,\t0W0,\r\n\r\n,1F0,1B0,,\r\n,,\n", NULL, 0},
        {2, "0F0,3F0,3I0,3W0,0I0,0W0\n1F0,2F0,2B0,1B0", NULL, 0}, /* a V */
        {2, "0F0,2F0,2B0,0B0\n1F0,3F0,3B0,1B0", NULL, 0},         /* a loop */
        {2, "", "1:1: the file ends with 0 lines of actions, but the pipeline has 2 ranks", 1},
        {2, "0F0,0B0\n", "1:1: the file ends with 1 line of actions", 1},
        {1, "0F0,0B0\n0F1,0B1\n", "2:1: the file ends with 2 lines", 1},
        {2, "0F0,0B0\n1F0, 1X0\n", "2:6: '1X0' is no action", 1},
        {2, "F0,0B0\n1F0,1B\n", "1:1: 'F0' is no action", 2},
        {2, "0F0,0B0\n1F0,1B\n", "2:5: '1B' is no action", 1},
        {2, "0F0 0B0\n1F0,1B0\n", "1:1: '0F0 0B0' is no action", 1},
        {2, "0F65535,0B0\n1F0,1B0\n", "1:1: '0F65535' is no action", 1},
        {2, "0F0,0B99999999999999999999\n1F0,1B0\n", "1:5: '0B999", 1},
        {2, "0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0\n", "1:5: 0SEND_F0: messages, gathered parameters", 2},
        {2, "0UNSHARD,0F0,0B0\n1F0,1B0,1REDUCE_GRAD\n", "2:9: 1REDUCE_GRAD: messages", 2},
        {2, "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1B0,1F1,1B1\n",
         "1:5: (0F1;0B0)OVERLAP_F_B: this build has no overlapped pairs", 1},
        {2, "0F0,0B0\n2F0,2B0\n", "2:1: stage 2 makes 3 stages; 2 ranks have as many each", 1},
        {2, "1F0,1B0\n0F0,0B0\n",
         "1:1: stage 1 stands in the line of rank 0; 2 stages on 2 ranks in a loop have it on rank 1", 2},
        {2, "0F0,3F0,3B0,2F0,2B0,0B0\n1F0,1B0\n", "1:5: stage 3 stands in the line of rank 0", 1},
        {2, "0F0,2F0,2B0,0B0\n1F0,2F0,3F0,3B0,1B0\n", "2:5: stage 2 stands in the line of rank 1", 1},
        {2, "0F0,0F1,0B1,0B0\n1F0,1B0,1F1,1B1\n", "1:9: 0B1 is out of order: the microbatches of a stage", 1},
        {2, "0F1,0F0,0B0,0B1\n1F0,1B0,1F1,1B1\n", "1:1: 0F1 is out of order", 1},
        {2, "0F0,0F0,0B0\n1F0,1B0\n", "1:5: 0F0 stands twice", 1},
        {2, "0F0,0B0\n1B0,1F0\n", "2:1: 1B0 comes before its F", 1},
        {2, "0F0,0W0,0I0\n1F0,1B0\n", "1:5: 0W0 comes before its I", 1},
        {2, "0F0,0F1,0I0,0B1,0W0\n1F0,1B0,1F1,1B1\n", "1:13: 0B1 is out of order: a W of an earlier", 1},
        {2, "0F0,0I0,0W0,0B0\n1F0,1B0\n", "1:13: 0B0 stands twice", 1},
        {2, "0F0,0F1,0B0,0B1\n1F0,1B0\n",
         "2:5: the line ends with 1 F, 1 I or B, 1 W or B of stage 1; the file has 2", 1},
        {2, "0F0,0I0\n1F0,1B0\n", "1:5: the line ends with 1 F, 1 I or B, 0 W or B of stage 0", 1},
        {2, "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", "1:5: 0B0: rank 0 never gets to B0.0", 1},
    };
    for (size_t k = 0; k < sizeof want / sizeof *want; k++) {
        CustomLists c;
        int ok = read_lists(&c, want[k].text, want[k].p);
        CHECK(ok == !want[k].says && mistakes == want[k].mistakes && (ok || strstr(said, want[k].says)),
              "%s: %d mistakes:\n%s", want[k].text, mistakes, said);
        if (ok)
            custom_close(&c);
    }
}

/* Files with random bytes in place of others are read, or refused with a message. */
static void damaged(void)
{
    static const char bytes[] = "0123456789FBIW, \n\r;(xSEND\0";
    PipeShape s = shape_of(SCHEDULE_ZB_V, 3, 2, 6);
    ScheduleSet set;
    char *text;
    size_t size;
    int refused = 0;
    schedules_open(&set, &s);
    FILE *f = open_memstream(&text, &size);
    custom_write(f, &set);
    fclose(f);
    for (int round = 0; round < 4000; round++) {
        char *bad = malloc(size + 1);
        CustomLists c;
        memcpy(bad, text, size + 1);
        for (int n = 1 + dice(3); n; n--)
            bad[dice((int)size)] = bytes[dice(sizeof bytes)];
        *said = 0;
        mistakes = 0;
        if (custom_read(&c, bad, size - (size_t)dice(2), 3, say, NULL))
            custom_close(&c);
        else
            refused++;
        CHECK(!*said == !mistakes, "refused without a message, or read with one");
        free(bad);
    }
    CHECK(refused > 2000, "%d of 4000 refused", refused);
    free(text);
    schedules_close(&set);
}

int main(void)
{
    published();
    sweep();
    exhaustive();
    no_exchange_helps();
    reaches_bound();
    dualpipev();
    dualpipev_by_hand();
    round_trips();
    broken_files();
    damaged();
    return test_end();
}
