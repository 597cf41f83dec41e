/* test_bound -- the bound of a step's time: below every schedule, and as high as can be shown by hand */
#include "bound.h"
#include "schedules.h"
#include <math.h>

static double most(const Simulation *sim, int p)
{
    double peak = 0;
    for (int r = 0; r < p; r++)
        peak = fmax(peak, sim->peak[r]);
    return peak;
}

/* By hand, with F, D, W of 1 a rank and no messages, so half of that for each of two chunks.
 *
 *   peak    activations that a rank may hold
 *   want    which time decides */
static void by_hand(void)
{
    static const struct { ScheduleKind kind; int p, m; double share, peak, want; } rows[] = {
        {SCHEDULE_ZB_H2, 1, 7, 1, 1, 21},              /* one rank never waits */
        {SCHEDULE_ZB_H2, 4, 1, 1, 8, 9},               /* one microbatch: 4 F, 4 D, W of stage 0 */
        {SCHEDULE_ZB_H2, 4, 8, 1, 8, 27},              /* 3 F on the way to the last rank, then 24 */
        {SCHEDULE_ZB_H2, 4, 8, 1, 4, 27},              /* rank 0 waits for 7 - 4, then 24 */
        {SCHEDULE_ZB_H2, 4, 8, 1, 3, 28},              /* rank 0 waits from 3 to 7, then 21 are left */
        {SCHEDULE_ZB_H2, 4, 80, 1, 2, 360},            /* rank 0 holds each of 80 for 9, two at a time */
        {SCHEDULE_ZB_H2, 4, 80, 0, 2, 320},            /* for 8 where D frees all */
        {SCHEDULE_ZB_V, 4, 8, 1, 4, 25.5},             /* 3 F of half a rank, then 24 */
        {SCHEDULE_V_MIN, 4, 80, 1, 2, 243.5},          /* rank 3's first D is at 5.5, behind 4 F of 0.5 */
        {SCHEDULE_V_MIN, 4, 80, 1, 1.5, 268 + 1.0 / 6}, /* rank 3: from 1.5 on 80 (5.5 + 4.5) / 3 */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int v = schedule_chunks(rows[i].kind), n = rows[i].p * v;
        double one[16];
        for (int k = 0; k < n; k++)
            one[k] = 1.0 / v;
        PipeShape s = {.kind = rows[i].kind, .p = rows[i].p, .v = v, .m = rows[i].m, .cost = {one, one, one},
                       .weight_share = rows[i].share};
        double x = step_bound(&s, rows[i].peak);
        CHECK(fabs(x - rows[i].want) < 1e-9, "%s p %d m %d peak %g: %g, by hand %g", schedule_name(s.kind),
              s.p, s.m, rows[i].peak, x, rows[i].want);
    }
}

/* No schedule is below it, with its own peak as memory, whatever the times. */
static void below_all(void)
{
    int n = 0, met = 0;
    for (int round = 0; round < 4000; round++) {
        double cost[3][48], hops[48];
        int kind = dice(SCHEDULE_CHOICES), p = 1 + dice(8), m = 1 + dice(24), each = dice(3);
        if (!fits(kind, p, m))
            continue;
        PipeShape s = shape_of(kind, p, 3, m);
        for (int stage = 0; stage < p * s.v; stage++) {
            hops[stage] = dice(2) ? 0 : 0.01 * dice(60);
            for (int k = 0; k < 3; k++)
                cost[k][stage] = each == 2 ? 1 : stage && each ? cost[k][0] : 0.1 * dice(20);
        }
        for (int k = 0; k < 3; k++)
            s.cost[k] = cost[k];
        s.hops = each == 2 ? NULL : hops;
        s.weight_share = 0.5 * dice(3);
        s.paired = dice(2) &&
                   (kind == SCHEDULE_1F1B || kind == SCHEDULE_INTERLEAVED || kind == SCHEDULE_DUALPIPEV);
        ScheduleSet set;
        Simulation sim;
        schedules_open(&set, &s);
        simulate(&set, &sim, 0);
        double x = step_bound(&s, most(&sim, p));
        CHECK(x <= sim.makespan * (1 + 1e-12), "%s p %d v %d m %d share %g paired %d: %g, bound %g",
              schedule_name(s.kind), p, s.v, m, s.weight_share, s.paired, sim.makespan, x);
        n++;
        met += x >= sim.makespan * (1 - 1e-12);
        simulation_close(&sim);
        schedules_close(&set);
    }
    printf("# %d schedules, %d of them take no more than the bound\n", n, met);
}

int main(void)
{
    by_hand();
    below_all();
    return test_end();
}
