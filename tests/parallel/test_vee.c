/* test_vee -- zb-v, v-half and v-min with unequal times, beside what their authors' program makes */
#include "schedules.h"
#include <math.h>

enum { KINDS = 3, SHORT_W = 0, LONG_D, TINY_W, LONG_W };
static const ScheduleKind kind_of[KINDS] = {SCHEDULE_ZB_V, SCHEDULE_V_HALF, SCHEDULE_V_MIN};
static const double times[][3] = {{18.522, 18.086, 9.337}, {10, 13, 7}, {10, 9, 4}, {8, 9, 12}};

/* Lists that the program of the schedules' authors makes (sail-sg/zero-bubble-pipeline-parallelism on GitHub,
 * commit 39f2c186), replayed by simulate().
 *
 *   times     F, D, W of a chunk: the row of `times`
 *   far       0: messages take no time; 1: 0.12 F; 2: 0.601
 *   want      of zb-v, v-half, v-min: step and bubble rate */
static const struct { int p, m, times, far; struct { double step, rate; } want[KINDS]; } cells[] = {
    {4, 8, SHORT_W, 0, {{791.994, 0.05933}, {874.091, 0.15899}, {1076.637, 0.31721}}},
    {4, 8, SHORT_W, 1, {{824.0256, 0.10307}, {922.1171, 0.20279}, {1165.107, 0.36905}}},
    {4, 8, LONG_D, 0, {{519, 0.05697}, {572, 0.16084}, {737, 0.34871}}},
    {4, 8, LONG_D, 1, {{537, 0.09536}, {596.2, 0.19490}, {785, 0.38854}}},
    {4, 8, TINY_W, 0, {{401, 0.08000}, {449, 0.18040}, {568, 0.35211}}},
    {4, 8, TINY_W, 1, {{418.6, 0.12088}, {473.8, 0.22330}, {615, 0.40163}}},
    {4, 8, LONG_W, 0, {{494, 0.01277}, {512, 0.08841}, {552, 0.15942}}},
    {4, 8, LONG_W, 1, {{502.64, 0.02864}, {526.36, 0.11342}, {576.96, 0.19578}}},
    {4, 16, SHORT_W, 0, {{1527.114, 0.03057}, {1609.211, 0.08636}, {1965.693, 0.25205}}},
    {4, 16, SHORT_W, 1, {{1559.146, 0.05433}, {1657.237, 0.11284}, {2125.287, 0.30822}}},
    {4, 16, LONG_D, 0, {{999, 0.02932}, {1052, 0.08745}, {1361, 0.29464}}},
    {4, 16, LONG_D, 1, {{1017, 0.05007}, {1087.4, 0.11716}, {1447.4, 0.33674}}},
    {4, 16, TINY_W, 0, {{769, 0.04167}, {817, 0.09914}, {1048, 0.29771}}},
    {4, 16, TINY_W, 1, {{786.6, 0.06433}, {845, 0.12899}, {1133.4, 0.35063}}},
    {4, 16, LONG_W, 0, {{958, 0.00642}, {976, 0.04625}, {1016, 0.08661}}},
    {4, 16, LONG_W, 1, {{966.64, 0.01453}, {990.36, 0.06012}, {1056.32, 0.12148}}},
    {7, 14, SHORT_W, 0, {{1400.208, 0.07272}, {1663.885, 0.22683}, {1960.461, 0.34380}}},
    {7, 14, SHORT_W, 1, {{1464.742, 0.12172}, {1756.364, 0.26754}, {2155.617, 0.40321}}},
    {7, 14, LONG_D, 0, {{918, 0.07182}, {1085, 0.22581}, {1343, 0.37454}}},
    {7, 14, LONG_D, 1, {{951.8, 0.11186}, {1140.8, 0.26367}, {1448.6, 0.42013}}},
    {7, 14, TINY_W, 0, {{712, 0.09551}, {852, 0.24413}, {1036, 0.37838}}},
    {7, 14, TINY_W, 1, {{749.2, 0.14042}, {902.4, 0.28635}, {1140.6, 0.43539}}},
    {7, 14, LONG_W, 0, {{869, 0.02051}, {960, 0.15417}, {1001, 0.18881}}},
    {7, 14, LONG_W, 1, {{900.2, 0.04069}, {987.72, 0.17791}, {1056.6, 0.23150}}},
    {8, 16, SHORT_W, 0, {{1602.946, 0.07503}, {1866.035, 0.21210}, {2256.377, 0.34841}}},
    {8, 16, SHORT_W, 1, {{1679.792, 0.12475}, {1971.414, 0.25422}, {2486.66, 0.40875}}},
    {8, 16, LONG_D, 0, {{1051, 0.07425}, {1220, 0.21311}, {1536, 0.37500}}},
    {8, 16, LONG_D, 1, {{1090.8, 0.11521}, {1281.6, 0.25094}, {1658.4, 0.42113}}},
    {8, 16, TINY_W, 0, {{816, 0.09804}, {956, 0.23013}, {1195, 0.38410}}},
    {8, 16, TINY_W, 1, {{859.4, 0.14359}, {1013, 0.27344}, {1317.8, 0.44149}}},
    {8, 16, LONG_W, 0, {{991, 0.02213}, {1074, 0.13594}, {1147, 0.19093}}},
    {8, 16, LONG_W, 1, {{1023.16, 0.03770}, {1106.64, 0.16143}, {1214.12, 0.23566}}},
    {8, 32, SHORT_W, 0, {{3073.186, 0.03898}, {3336.275, 0.11863}, {4034.489, 0.27116}}},
    {8, 32, SHORT_W, 1, {{3150.032, 0.06652}, {3441.654, 0.14562}, {4442.583, 0.33811}}},
    {8, 32, LONG_D, 0, {{2011, 0.03856}, {2180, 0.11927}, {2784, 0.31034}}},
    {8, 32, LONG_D, 1, {{2050.8, 0.06112}, {2264, 0.15194}, {3002.4, 0.36051}}},
    {8, 32, TINY_W, 0, {{1552, 0.05155}, {1692, 0.13002}, {2155, 0.31694}}},
    {8, 32, TINY_W, 1, {{1595.4, 0.07735}, {1755.4, 0.16145}, {2373.8, 0.37990}}},
    {8, 32, LONG_W, 0, {{1919, 0.01119}, {2002, 0.07293}, {2075, 0.10554}}},
    {8, 32, LONG_W, 1, {{1951.16, 0.01921}, {2034.64, 0.08780}, {2182.52, 0.14961}}},
    {16, 32, SHORT_W, 0, {{3224.85, 0.08302}, {3858.672, 0.23795}, {4612.805, 0.36254}}},
    {16, 32, SHORT_W, 1, {{3400.191, 0.13520}, {4079.182, 0.27915}, {5127.15, 0.42649}}},
    {16, 32, LONG_D, 0, {{2115, 0.08266}, {2521, 0.23840}, {3161, 0.39260}}},
    {16, 32, LONG_D, 1, {{2202.8, 0.12672}, {2660.4, 0.27830}, {3439.4, 0.44176}}},
    {16, 32, TINY_W, 0, {{1648, 0.10680}, {1975, 0.25468}, {2446, 0.39820}}},
    {16, 32, TINY_W, 1, {{1741, 0.15451}, {2098.4, 0.29851}, {2719, 0.45862}}},
    {16, 32, LONG_W, 0, {{2000, 0.01747}, {2213, 0.16132}, {2344, 0.20819}}},
    {16, 32, LONG_W, 1, {{2056.04, 0.03746}, {2283.04, 0.18705}, {2482.92, 0.25249}}},
    {16, 64, SHORT_W, 0, {{6165.33, 0.04331}, {6799.152, 0.13504}, {8169.029, 0.28009}}},
    {16, 64, SHORT_W, 1, {{6340.671, 0.07250}, {7019.662, 0.16222}, {9080.833, 0.35238}}},
    {16, 64, LONG_D, 0, {{4035, 0.04311}, {4441, 0.13533}, {5657, 0.32120}}},
    {16, 64, LONG_D, 1, {{4122.8, 0.06764}, {4625.2, 0.16977}, {6151.4, 0.37575}}},
    {16, 64, TINY_W, 0, {{3120, 0.05641}, {3447, 0.14592}, {4366, 0.32570}}},
    {16, 64, TINY_W, 1, {{3213, 0.08372}, {3583.2, 0.17839}, {4852.6, 0.39332}}},
    {16, 64, LONG_W, 0, {{3856, 0.00881}, {4069, 0.08774}, {4200, 0.11619}}},
    {16, 64, LONG_W, 1, {{3912.04, 0.01909}, {4139.04, 0.10317}, {4419.8, 0.16014}}},
    {8, 64, SHORT_W, 2, {{6031.649, 0.02349}, {6304.295, 0.06715}, {7796.585, 0.24570}}}};

/* The most microbatches that a rank holds in them. */
static double peak_of(int kind, int p)
{
    return kind == 0 ? p : kind == 1 ? p / 2 + 1 : (double)lround(p / 3.0 + 1);
}

static double most(const Simulation *sim, int p)
{
    double peak = 0;
    for (int r = 0; r < p; r++)
        peak = fmax(peak, sim->peak[r]);
    return peak;
}

/* Opens and replays the lists of a shape, and checks them. */
static void open_lists(const PipeShape *s, ScheduleSet *set, Simulation *sim)
{
    schedules_open(set, s);
    check_set(set, "vee");
    simulate(set, sim, 0);
    double beside = model_run(set, 1);
    CHECK(model_run(set, 0) > 0 && beside >= sim->makespan * (1 - 1e-12),
          "%s p %d m %d: does not come to its end", schedule_name(s->kind), s->p, s->m);
}

static void beside_published(void)
{
    double mean[KINDS] = {0}, least[KINDS] = {0};
    int n = sizeof cells / sizeof *cells;
    for (int i = 0; i < n; i++)
        for (int kind = 0; kind < KINDS; kind++) {
            const double *t = times[cells[i].times];
            double cost[3][32], step = cells[i].want[kind].step, rate = cells[i].want[kind].rate;
            int p = cells[i].p;
            PipeShape s = {.kind = kind_of[kind], .p = p, .v = 2, .m = cells[i].m, .weight_share = 1,
                           .hop = cells[i].far == 2 ? 0.601 : 0.12 * t[0] * cells[i].far};
            for (int k = 0; k < 3; k++) {
                s.cost[k] = cost[k];
                for (int stage = 0; stage < 2 * p; stage++)
                    cost[k][stage] = t[k];
            }
            ScheduleSet set;
            Simulation sim;
            open_lists(&s, &set, &sim);
            CHECK(sim.makespan <= step * (1 + 1e-4) && sim.rate <= rate + 1e-4 &&
                  most(&sim, p) <= peak_of(kind, p) + 1e-9,
                  "%s p %d m %d times %d far %d: step %.7g, rate %.5f, peak %g; published %.7g, %.5f, %g",
                  schedule_name(s.kind), p, s.m, cells[i].times, cells[i].far, sim.makespan, sim.rate,
                  most(&sim, p), step, rate, peak_of(kind, p));
            mean[kind] += (sim.makespan / step - 1) / n;
            least[kind] = fmin(least[kind], sim.makespan / step - 1);
            simulation_close(&sim);
            schedules_close(&set);
        }
    for (int kind = 0; kind < KINDS; kind++)
        printf("# %s: step beside the authors' %+.2f %% on average of %d cells, at best %+.2f %%\n",
               schedule_name(kind_of[kind]), 100 * mean[kind], n, 100 * least[kind]);
}

/* v-min with equal times: with p a multiple of 3 the pattern has a gap, which squeezing twice takes out. */
static void squeezed_twice(void)
{
    static const int want[][3] = {{6, 12, 89}, {6, 48, 305}, {9, 18, 137}, {12, 24, 185}, {8, 16, 123}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        PipeShape s = shape_of(SCHEDULE_V_MIN, want[i][0], 2, want[i][1]);
        ScheduleSet set;
        Simulation sim;
        open_lists(&s, &set, &sim);
        CHECK(sim.makespan <= want[i][2], "v-min p %d m %d takes %g, published %d", s.p, s.m, sim.makespan,
              want[i][2]);
        simulation_close(&sim);
        schedules_close(&set);
    }
}

/* Any times, of stages too, hold, with few microbatches as with many, and memory stays the schedule's own. */
static void any_times(void)
{
    for (int n = 0; n < 600; n++) {
        double cost[3][32], hops[32];
        int p = 1 + dice(9), m = 1 + dice(4 * p), kind = dice(KINDS), each = dice(2);
        PipeShape s = shape_of((int)kind_of[kind], p, 2, m), equal = s;
        s.weight_share = equal.weight_share = 0.5 * dice(3);
        for (int stage = 0; stage < 2 * p; stage++) {
            hops[stage] = 0.01 * dice(30);
            for (int k = 0; k < 3; k++)
                cost[k][stage] = stage && !each ? cost[k][0] : 0.1 * dice(20);
        }
        for (int k = 0; k < 3; k++)
            s.cost[k] = cost[k];
        s.hops = hops;
        ScheduleSet set, own;
        Simulation sim, its;
        open_lists(&s, &set, &sim);
        open_lists(&equal, &own, &its);
        CHECK(most(&sim, p) <= most(&its, p) + 1e-9, "%s p %d m %d share %g: holds %g, with equal times %g",
              schedule_name(s.kind), p, m, s.weight_share, most(&sim, p), most(&its, p));
        simulation_close(&sim);
        simulation_close(&its);
        schedules_close(&set);
        schedules_close(&own);
    }
}

int main(void)
{
    beside_published();
    squeezed_twice();
    any_times();
    return test_end();
}
