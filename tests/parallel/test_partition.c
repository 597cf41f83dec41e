/* test_partition -- units shared out over a pipeline: the bound against all partitions, the found one against
 * the best */
#include "partition.h"
#include "bound.h"
#include "test.h"
#include <math.h>
#include <stdlib.h>

typedef struct { double bound, makespan; int count; } Best;

static double ordered(const Units *u, int *first, double *bound)
{
    double cost[3 * 8];
    ScheduleSet set;
    Simulation sim;
    PipeShape s = partition_shape(u, &(Partition){.kind = SCHEDULE_ZB_AUTO, .v = 1, .first = first}, cost);
    *bound = step_bound(&s, s.limit ? s.limit : s.p);
    schedules_open(&set, &s);
    simulate(&set, &sim, 0);
    double makespan = sim.makespan;
    simulation_close(&sim);
    schedules_close(&set);
    return makespan;
}

/* Goes over all partitions whose first k stages are given. */
static void all(const Units *u, int *first, int k, Best *best)
{
    int p = u->shape.p;
    if (k == p) {
        double bound, makespan = ordered(u, first, &bound);
        best->bound = fmin(best->bound, bound);
        best->makespan = fmin(best->makespan, makespan);
        best->count++;
        return;
    }
    for (first[k] = first[k - 1] + 1; first[k] <= u->n - (p - k); first[k]++)
        all(u, first, k + 1, best);
}

static void against_all(int seed)
{
    enum { N = 8 };
    double cost[3][N], bound;
    int p = 2 + seed % 3, first[9] = {0};
    srand((unsigned)seed);
    Units u = {.n = N, .cost = {cost[0], cost[1], cost[2]},
               .shape = {.p = p, .m = 4 + seed % 5, .limit = seed % 4 ? p + seed % 2 : 2, .weight_share = 1}};
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < N; i++)
            cost[k][i] = i || !k ? 1 + rand() % 9 : 0;     /* the embedding has no D */
    Best best = {INFINITY, INFINITY, 0};
    first[p] = N;
    all(&u, first, 1, &best);
    Partition found;
    partition_search(&found, &u, SCHEDULE_ZB_AUTO, 240);
    double makespan = ordered(&u, found.first, &bound);
    CHECK(found.first[0] == 0 && found.first[p] == N, "units %d to %d", found.first[0], found.first[p]);
    CHECK(fabs(found.bound / best.bound - 1) < 1e-12, "seed %d: bound %g, least of %d partitions %g", seed,
          found.bound, best.count, best.bound);
    CHECK(fabs(makespan - found.makespan) < 1e-9, "seed %d: %g said, %g is", seed, found.makespan, makespan);
    CHECK(found.makespan <= 1.03 * best.makespan, "seed %d: %g found, %g possible", seed, found.makespan,
          best.makespan);
    partition_close(&found);
}

/* Equal layers and a head as heavy as three of them: the head gets a rank of its own. */
static void head_alone(void)
{
    double cost[3][10];
    Units u = {.n = 10, .cost = {cost[0], cost[1], cost[2]},
               .shape = {.p = 3, .m = 30, .limit = 6, .weight_share = 1}};
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < 10; i++)
            cost[k][i] = i == 0 ? 0 : i == 9 ? 4 : 1;
    Partition p;
    partition_search(&p, &u, SCHEDULE_ZB_AUTO, 240);
    CHECK(p.first[1] == 5 && p.first[2] == 9, "stages begin at %d and %d", p.first[1], p.first[2]);
    CHECK(p.makespan < 1.02 * p.bound, "%g, bound %g", p.makespan, p.bound);
    partition_close(&p);
}

/* In a V: a head as heavy as three layers of which every second is heavy too. */
static void in_vee(void)
{
    double cost[3][18];
    Units u = {.n = 18, .cost = {cost[0], cost[1], cost[2]},
               .shape = {.p = 4, .m = 24, .limit = 4, .weight_share = 1}};
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < 18; i++)
            cost[k][i] = i == 0 ? 0.1 : i == 17 ? 6 : i % 2 ? 1 : 3;
    Partition p;
    partition_search(&p, &u, SCHEDULE_ZB_V, 100);
    CHECK(p.bound <= p.makespan && p.makespan < 1.05 * p.bound, "%g, bound %g", p.makespan, p.bound);
    partition_close(&p);
}

/* The bound of a V beside the best of all partitions of few units over two ranks. */
static void all_vees(int seed)
{
    enum { N = 7 };
    double cost[3][N], of[3 * 4], best = INFINITY;
    int first[5] = {0, 0, 0, 0, N};
    srand((unsigned)seed);
    Units u = {.n = N, .cost = {cost[0], cost[1], cost[2]},
               .shape = {.p = 2, .m = 5, .limit = 5, .weight_share = 1}};
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < N; i++)
            cost[k][i] = 1 + rand() % 9;
    for (first[1] = 1; first[1] < N - 2; first[1]++)
        for (first[2] = first[1] + 1; first[2] < N - 1; first[2]++)
            for (first[3] = first[2] + 1; first[3] < N; first[3]++) {
                ScheduleSet set;
                Simulation sim;
                PipeShape s = partition_shape(&u, &(Partition){SCHEDULE_ZB_V, 2, 0, first, 0, 0, 0}, of);
                schedules_open(&set, &s);
                simulate(&set, &sim, 0);
                CHECK(step_bound(&s, 5) >= partition_bound(&u, 2) - 1e-9, "seed %d: %g, of all %g", seed,
                      step_bound(&s, 5), partition_bound(&u, 2));
                best = fmin(best, sim.makespan);
                simulation_close(&sim);
                schedules_close(&set);
            }
    Partition found;
    partition_search(&found, &u, SCHEDULE_ZB_V, 100);
    CHECK(found.makespan >= best - 1e-9 && found.makespan <= 1.1 * best, "seed %d: %g found, %g possible",
          seed, found.makespan, best);
    partition_close(&found);
}

/* Layers of equal times, of which a rank has room for three and one microbatch of each, or for two and two:
 * the bound and the search keep to it. */
static void in_memory(void)
{
    double cost[3][9], fixed[9], held[9], scratch[9] = {0};
    Units u = {.n = 9, .cost = {cost[0], cost[1], cost[2]}, .fixed = fixed, .held = held, .scratch = scratch,
               .room = 12, .shape = {.p = 3, .m = 12, .limit = 12, .weight_share = 1}};
    for (int i = 0; i < 9; i++) {
        cost[0][i] = cost[1][i] = cost[2][i] = 1;
        fixed[i] = 3;
        held[i] = 1;
    }
    double tight = partition_bound(&u, 1);
    u.room = 1000;
    double wide = partition_bound(&u, 1);
    CHECK(tight > 1.5 * wide, "with room for one microbatch %g, for all %g", tight, wide);
    u.room = 11.9;
    CHECK(isinf(partition_bound(&u, 1)), "nothing fits and the bound is %g", partition_bound(&u, 1));
    u.room = 18;
    u.shape.limit = 3;
    Partition p;
    partition_search(&p, &u, SCHEDULE_ZB_AUTO, 50);
    CHECK(p.first[1] == 3 && p.first[2] == 6 && isfinite(p.makespan), "stages begin at %d and %d, %g",
          p.first[1], p.first[2], p.makespan);
    partition_close(&p);
}

int main(void)
{
    for (int seed = 0; seed < 60; seed++)
        against_all(seed);
    head_alone();
    in_vee();
    for (int seed = 0; seed < 20; seed++)
        all_vees(seed);
    in_memory();
    return test_end();
}
