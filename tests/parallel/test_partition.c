/* test_partition -- units shared out over a pipeline: the bound against all partitions, the found one against
 * the best */
#include "partition.h"
#include "base.h"
#include "bound.h"
#include "test.h"
#include <math.h>
#include <stdlib.h>

typedef struct { double bound, makespan; int count; } Best;

/* The makespan of the lists of a shape. */
static double step_of(const PipeShape *s)
{
    ScheduleSet set;
    Simulation sim;
    schedules_open(&set, s);
    simulate(&set, &sim, 0);
    double makespan = sim.makespan;
    simulation_close(&sim);
    schedules_close(&set);
    return makespan;
}

static double ordered(const Units *u, int *first, double *bound)
{
    double cost[3 * 8];
    PipeShape s = partition_shape(u, &(Partition){.v = 1, .first = first}, cost);
    s.kind = SCHEDULE_ZB_AUTO;
    s.limit = u->shape.limit;
    *bound = step_bound(&s, s.limit ? s.limit : s.p);
    return step_of(&s);
}

/* The makespan of the lists of a partition; they are right, and no rank holds more than its
 * limit. */
static double makespan_of(const Units *u, const Partition *p)
{
    double cost[3 * 32];
    char why[256] = "";
    ScheduleSet set;
    Simulation sim;
    PipeShape s = partition_shape(u, p, cost);
    schedules_open(&set, &s);
    CHECK(schedules_check(&set, why, sizeof why), "%d stages a rank: %s", p->v, why);
    simulate(&set, &sim, 0);
    double makespan = sim.makespan;
    for (int r = 0; r < s.p; r++)
        CHECK(sim.peak[r] <= u->shape.limit + 1e-9, "rank %d holds %g", r, sim.peak[r]);
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
    partition_search(&found, &u, 1, 0, 0, 240);
    double makespan = makespan_of(&u, &found);
    ordered(&u, found.first, &bound);
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
    partition_search(&p, &u, 1, 0, 0, 240);
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
    partition_search(&p, &u, 2, 1, 0, 100);
    CHECK(p.bound <= p.makespan && p.makespan < 1.02 * p.bound, "%g, bound %g", p.makespan, p.bound);
    partition_close(&p);
}

/* As few units as stages of a V, two of them light: no stage may be without a unit there, as its bound takes
 * for granted, though the step would be shorter. */
static void small_vee(int m)
{
    double f[] = {0.9, 4, 4, 0}, d[] = {1.3, 4.3, 4.3, 3.6}, w[] = {0, 3.5, 3.5, 0};
    Units u = {.n = 4, .cost = {f, d, w}, .shape = {.p = 2, .m = m, .limit = m, .hop = 1}};
    Partition p;
    partition_search(&p, &u, 2, 1, 0, 100);
    partition_improve(&p, &u);
    for (int i = 0; i < 4; i++)
        CHECK(p.first[i] == i, "%d microbatches: stage %d begins at unit %d", m, i, p.first[i]);
    CHECK(p.makespan >= p.bound * (1 - 1e-9), "%d microbatches: %g, below the bound %g", m, p.makespan,
          p.bound);
    partition_close(&p);
}

/* The bounds of two stages a rank beside all partitions of few units over two ranks, and what is found beside
 * the best of them in the order that zb-v takes; nothing is below the bound of any placement. */
static void all_pairs(int seed, int vee)
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
    double bound = partition_bound(&u, 2, vee);
    for (first[1] = 1; first[1] < N - 2; first[1]++)
        for (first[2] = first[1] + 1; first[2] < N - 1; first[2]++)
            for (first[3] = first[2] + 1; first[3] < N; first[3]++) {
                PipeShape s = partition_shape(&u, &(Partition){.v = 2, .vee = vee, .first = first}, of);
                CHECK(step_bound(&s, 5) >= bound - 1e-9, "seed %d: %g, of all %g", seed, step_bound(&s, 5),
                      bound);
                s.kind = vee ? SCHEDULE_ZB_V : SCHEDULE_INTERLEAVED;
                s.group = 2;
                best = fmin(best, step_of(&s));
            }
    Partition found;
    partition_search(&found, &u, 2, vee, 0, 300);
    CHECK(fabs(makespan_of(&u, &found) - found.makespan) < 1e-9, "seed %d: %g said", seed, found.makespan);
    CHECK(found.makespan >= bound - 1e-9 && found.makespan <= 1.001 * best, "seed %d: %g found, %g possible, "
          "bound %g", seed, found.makespan, best, bound);
    CHECK(units_bound(&u) <= bound + 1e-9, "seed %d: any %g, these %g", seed, units_bound(&u), bound);
    partition_close(&found);
}

/* The least work of the fullest of p ranks, over all ways to put the units from i on into them. */
static double fullest(const double *work, int n, int i, double *sum, int p)
{
    double best = INFINITY, most = 0;
    for (int r = 0; r < p; r++)
        most = fmax(most, sum[r]);
    if (i == n)
        return most;
    for (int r = 0; r < p; r++) {
        sum[r] += work[i];
        best = fmin(best, fullest(work, n, i + 1, sum, p));
        sum[r] -= work[i];
    }
    return best;
}

/* The bound of any placement beside all of them: units of three kinds, so many microbatches that work
 * decides. */
static void any_placement(int seed)
{
    enum { N = 8 };
    double cost[3][N], work[N], sum[3] = {0};
    srand((unsigned)seed);
    Units u = {.n = N, .cost = {cost[0], cost[1], cost[2]},
               .shape = {.p = 2 + seed % 2, .m = 1000, .limit = 5, .weight_share = 1}};
    for (int i = 0; i < N; i++) {
        double each = i == N - 1 ? 7 : i % 3 ? 2 + seed % 4 : 4 + seed % 3;
        cost[0][i] = cost[1][i] = cost[2][i] = each;
        work[i] = 3 * each;
    }
    double exact = u.shape.m * fullest(work, N, 0, sum, u.shape.p), bound = units_bound(&u);
    CHECK(bound <= exact * (1 + 1e-9) + 100 && bound >= exact * (1 - 1e-9), "seed %d: bound %g, exactly %g",
          seed, bound, exact);
}

/* Memory in the bound of any placement: ranks that can hold one microbatch of what they have at a time,
 * and the whole way takes long. */
static void any_in_memory(void)
{
    double cost[3][8], fixed[8], held[8], scratch[8] = {0};
    Units u = {.n = 8, .cost = {cost[0], cost[1], cost[2]}, .fixed = fixed, .held = held, .scratch = scratch,
               .room = 1000, .shape = {.p = 4, .m = 40, .limit = 40, .weight_share = 1}};
    for (int i = 0; i < 8; i++) {
        cost[0][i] = cost[1][i] = cost[2][i] = 1;
        fixed[i] = 1;
        held[i] = 1;
    }
    double wide = units_bound(&u);
    u.room = 4;
    double tight = units_bound(&u);
    CHECK(fabs(wide - 243) < 4 && tight > 1.3 * wide, "with room for two %g, for all %g", tight, wide);
    for (int i = 0; i < 8; i++)
        fixed[i] = held[i] = ARENA_ALIGN;
    u.room = 4 * ARENA_ALIGN;
    Partition p;
    partition_search(&p, &u, 2, 1, 0, 100);
    CHECK(isfinite(p.makespan) && p.makespan >= tight, "%g is below the bound %g", p.makespan, tight);
    partition_close(&p);
}

/* Units of unequal times and bytes in little memory: what is found for two stages a rank is never below the
 * bound of its placement, and that not below the bound of all placements. Returns how many were found. */
static int bounds_in_memory(int seed, int vee)
{
    enum { N = 9 };
    double cost[3][N], fixed[N], held[N], scratch[N] = {0}, most = 0;
    Units u = {.n = N, .cost = {cost[0], cost[1], cost[2]}, .fixed = fixed, .held = held, .scratch = scratch,
               .shape = {.p = 2 + seed % 2, .m = 12, .limit = 12}};
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < 3; k++)
            cost[k][i] = 1 + (i * 7 + seed * (k + 3)) % 4;
        fixed[i] = ARENA_ALIGN * (1 + (i + seed) % 3);
        held[i] = ARENA_ALIGN * (1 + (i * 5 + seed) % 7);
        most += fixed[i] + held[i];
    }
    u.room = most * (0.5 + 0.1 * (seed % 5));
    Partition p;
    double bound = partition_bound(&u, 2, vee), any = units_bound(&u);
    partition_search(&p, &u, 2, vee, 0, 60);
    int found = isfinite(p.makespan);
    CHECK(!found || p.makespan >= bound * (1 - 1e-9), "seed %d vee %d: %g is below the bound %g", seed, vee,
          p.makespan, bound);
    CHECK(bound >= any * (1 - 1e-9), "seed %d vee %d: bound %g, of any placement %g", seed, vee, bound, any);
    partition_close(&p);
    return found;
}

/* Three stages a rank: one that is empty is legal, the first and the last have a unit. */
static void of_three(void)
{
    double cost[3][6];
    Units u = {.n = 6, .cost = {cost[0], cost[1], cost[2]},
               .shape = {.p = 3, .m = 12, .limit = 6, .weight_share = 1}};
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < 6; i++)
            cost[k][i] = i == 5 ? 3 : 1;
    Partition p;
    partition_search(&p, &u, 3, 0, 0, 300);
    CHECK(p.first[1] > 0 && p.first[8] < 6 && p.first[9] == 6, "ends at %d and %d", p.first[1], p.first[8]);
    CHECK(fabs(makespan_of(&u, &p) - p.makespan) < 1e-9 && p.makespan >= units_bound(&u), "%g", p.makespan);
    partition_close(&p);
}

/* The fullest rank's work in the partition of three stages a rank whose stages begin at `first`. */
static double fullest_of_three(const double *work, const int *first, int p)
{
    double most = 0;
    for (int r = 0; r < p; r++) {
        double sum = 0;
        for (int c = 0; c < 3; c++)
            for (int i = first[c * p + r]; i < first[c * p + r + 1]; i++)
                sum += work[i];
        most = fmax(most, sum);
    }
    return most;
}

/* The bound of three stages a rank beside all partitions of few units, stages without any too: what the
 * fullest rank of the best works when there are so many microbatches that work decides, and never more than a
 * step of few takes. */
static void all_trios(int seed)
{
    enum { N = 7, P = 2 };
    double cost[3][N], work[N] = {0}, of[3 * 6], best = INFINITY, shortest = INFINITY;
    int f[7] = {0, 0, 0, 0, 0, 0, N};
    srand((unsigned)seed);
    Units u = {.n = N, .cost = {cost[0], cost[1], cost[2]}, .shape = {.p = P, .m = 6, .limit = 6,
               .weight_share = 1}};
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < N; i++)
            work[i] += cost[k][i] = 1 + rand() % 9;
    for (f[1] = 1; f[1] < N; f[1]++)
        for (f[2] = f[1]; f[2] < N; f[2]++)
            for (f[3] = f[2]; f[3] < N; f[3]++)
                for (f[4] = f[3]; f[4] < N; f[4]++)
                    for (f[5] = f[4]; f[5] < N; f[5]++) {
                        PipeShape s = partition_shape(&u, &(Partition){.v = 3, .first = f}, of);
                        s.kind = SCHEDULE_INTERLEAVED;
                        s.group = 2;
                        shortest = fmin(shortest, step_of(&s));
                        best = fmin(best, fullest_of_three(work, f, P));
                    }
    double bound = partition_bound(&u, 3, 0);
    CHECK(bound <= shortest + 1e-9, "seed %d: bound %g, a step of %g", seed, bound, shortest);
    CHECK(bound >= units_bound(&u) - 1e-9, "seed %d: bound %g, of any %g", seed, bound, units_bound(&u));
    u.shape.m = u.shape.limit = 100000;
    bound = partition_bound(&u, 3, 0) / u.shape.m;
    CHECK(fabs(bound - best) < 0.01, "seed %d: bound %g a microbatch, exactly %g", seed, bound, best);
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
    double tight = partition_bound(&u, 1, 0);
    u.room = 1000;
    double wide = partition_bound(&u, 1, 0);
    CHECK(tight > 1.5 * wide, "with room for one microbatch %g, for all %g", tight, wide);
    u.room = 11.9;
    CHECK(isinf(partition_bound(&u, 1, 0)), "nothing fits and the bound is %g", partition_bound(&u, 1, 0));
    u.room = 18 * ARENA_ALIGN;
    u.shape.limit = 3;
    for (int i = 0; i < 9; i++) {
        fixed[i] *= ARENA_ALIGN;
        held[i] *= ARENA_ALIGN;
    }
    Partition p;
    partition_search(&p, &u, 1, 0, 0, 50);
    CHECK(p.first[1] == 3 && p.first[2] == 6 && isfinite(p.makespan), "stages begin at %d and %d, %g",
          p.first[1], p.first[2], p.makespan);
    partition_close(&p);
}

/* Most bytes that the data of rank r's list of `set`, one stage a rank, take at once: of a microbatch
 * `arrived` from its input's arrival to D, `kept` from F to W, `pending` from its gradient's arrival until W
 * is done and the result sent. */
static double most_bytes(const ScheduleSet *set, int r, double arrived, double kept, double pending)
{
    int last = r == set->shape.p - 1, *sent = xcalloc((size_t)set->shape.m, sizeof *sent);
    double now = 0, most = 0;
    for (int i = 0; i < set->rank[r].n; i++) {
        const Instr *in = &set->rank[r].list[i];
        now += in->op == I_RA || (in->op == I_F && r == 0) ? arrived : 0;
        now += in->op == I_F ? kept : 0;
        now += in->op == I_RG || ((in->op == I_D || in->op == I_B) && last) ? pending : 0;
        most = now > most ? now : most;
        now -= in->op == I_D || in->op == I_B ? arrived : 0;
        now -= in->op == I_W || in->op == I_B ? kept : 0;
        if (in->op == I_W || in->op == I_B || in->op == I_SG)
            now -= ++sent[in->mb] == 1 + (r > 0) ? pending : 0;
    }
    free(sent);
    return most;
}

static double gained;              /* by improving, as shares of steps */

/* Inputs that arrive early take as many bytes as those at work: the lists of what is found keep within a
 * rank's room, counted here from the lowered lists. The first stages are faster, so inputs would pile up.
 *   whole  in  bool: backwards are whole */
static void early_inputs(double room, int whole)
{
    enum { N = 10, K = ARENA_ALIGN };
    double cost[3][N], fixed[N], held[N], scratch[N], arrived[N], pending[N], of[3 * 5];
    Units u = {.n = N, .cost = {cost[0], cost[1], cost[2]}, .fixed = fixed, .held = held, .scratch = scratch,
               .arrived = arrived, .pending = pending, .room = room * K,
               .whole = whole,
               .shape = {.p = 5, .m = 24, .limit = 24, .hop = 0.1}};
    for (int i = 0; i < N; i++) {
        cost[0][i] = 1 + 0.1 * i;
        cost[1][i] = (1 + whole) * cost[0][i];
        cost[2][i] = whole ? 0 : cost[0][i];
        fixed[i] = 2 * K;
        held[i] = 5 * K;
        arrived[i] = 4 * K;
        pending[i] = 1 * K;
        scratch[i] = 3 * K;
    }
    Partition p;
    partition_search(&p, &u, 1, 0, 0, 60);
    CHECK(isfinite(p.makespan), "nothing fits into %g", room);
    for (int improved = 0; improved < 2 && isfinite(p.makespan); improved++) {
        double before = p.makespan;
        if (improved)
            partition_improve(&p, &u);
        PipeShape s = partition_shape(&u, &p, of);
        ScheduleSet set;
        schedules_open(&set, &s);
        for (int r = 0; r < 5; r++) {
            int units = p.first[r + 1] - p.first[r];
            double bytes = 3 + units * (2 + most_bytes(&set, r, 4, 1, 1));
            CHECK(bytes <= room, "rank %d: %d units, %g bytes of %g", r, units, bytes, room);
            for (int k = 0; k < p.list[r].n && whole; k++)
                CHECK(p.list[r].list[k].op <= I_B, "rank %d splits a backward", r);
        }
        schedules_close(&set);
        CHECK(p.makespan <= before && p.makespan >= p.bound * (1 - 1e-9), "%g, %g improved, bound %g", before,
              p.makespan, p.bound);
        CHECK(fabs(makespan_of(&u, &p) / p.makespan - 1) < 1e-9, "%g said", p.makespan);
        gained += improved ? before / p.makespan - 1 : 0;
    }
    partition_close(&p);
}

/* Equal numbers of layers in the order of interleaved 1F1B take the time of that schedule; of 1F1B with one
 * stage. Nothing fits where memory is too small. */
static void even_layers(void)
{
    enum { N = 14, P = 3 };
    double cost[3][N], bytes[N], of[3 * 4 * P];
    Units u = {.n = N, .cost = {cost[0], cost[1], cost[2]}, .whole = 1,
               .shape = {.p = P, .m = 9, .limit = 9, .hop = 0.1, .weight_share = 1}};
    for (int i = 0; i < N; i++) {
        cost[0][i] = i ? 1 + 0.01 * i : 0.5;
        cost[1][i] = 2 * cost[0][i];
        cost[2][i] = 0;
        bytes[i] = ARENA_ALIGN;
    }
    for (int v = 1; v <= 4; v += v < 2 ? 1 : 2) {
        Partition p;
        partition_even(&p, &u, v);
        PipeShape s = partition_shape(&u, &p, of);
        s.kind = v > 1 ? SCHEDULE_INTERLEAVED : SCHEDULE_1F1B;
        CHECK(fabs(makespan_of(&u, &p) - p.makespan) < 1e-9 && fabs(step_of(&s) - p.makespan) < 1e-9,
              "%d stages: %g, the schedule's %g", v, p.makespan, step_of(&s));
        CHECK(p.first[1] == 1 + 12 / (v * P) && p.first[v * P] == N, "the first stage has %d", p.first[1]);
        partition_close(&p);
    }
    u.fixed = u.held = u.scratch = bytes;
    u.room = 4 * ARENA_ALIGN;
    Partition p;
    partition_even(&p, &u, 2);
    CHECK(isinf(p.makespan), "too little room, and %g", p.makespan);
    partition_close(&p);
}

int main(void)
{
    for (int seed = 0; seed < 60; seed++)
        against_all(seed);
    head_alone();
    in_vee();
    for (int m = 1; m < 6; m++)
        small_vee(m);
    for (int seed = 0; seed < 40; seed++)
        all_pairs(seed / 2, seed % 2);
    for (int seed = 0; seed < 12; seed++)
        any_placement(seed);
    any_in_memory();
    int found = 0;
    for (int seed = 0; seed < 40; seed++)
        found += bounds_in_memory(seed / 2, seed % 2);
    CHECK(found >= 20, "%d of 40 partitions fit", found);
    of_three();
    for (int seed = 0; seed < 12; seed++)
        all_trios(seed);
    in_memory();
    for (double room = 30; room < 90; room += 10)
        for (int whole = 0; whole < 2; whole++)
            early_inputs(room, whole);
    even_layers();
    CHECK(gained > 0.03, "steps of six kinds of memory are shorter by %g in all", gained);
    return test_end();
}
