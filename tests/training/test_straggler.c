/* test_straggler -- which ranks are found slow from recorded own times, and what counts as own time */
#include "straggler.h"
#include "test.h"
#include <math.h>
#include <unistd.h>

enum { MOST = 8 };

/* A job whose ranks take known times, with noise of a few percent. */
typedef struct {
    Judge judge;
    int ranks, work[MOST];
    double noise, usual[MOST][OWN_PHASES], idle[MOST][OWN_PHASES];
    uint64_t drawn;
    int found, rank, peers, by_idling; /* alarms so far; of the last one */
    const char *phase;
    double excess;
    int64_t at;                    /* interval of the last alarm, from 1 */
} Job;

static void job_make(Job *j, int ranks, int stages, double threshold, double noise)
{
    *j = (Job){.ranks = ranks, .noise = noise, .rank = -1};
    for (int r = 0; r < ranks; r++) {
        int stage = r * stages / ranks;
        double more = 1 + 0.5 * stage;         /* stages have unequal work */
        const double ms[OWN_PHASES] = {0.001, 20 * more, 40 * more, 2, 10 * more, 0, 0.5};
        j->work[r] = stage;
        for (int k = 0; k < OWN_PHASES; k++)
            j->usual[r][k] = 1e-3 * ms[k];
    }
    judge_open(&j->judge, ranks, threshold, j->work);
}

/* One interval in which rank `slow` takes `more` times as long in `phase`, and everyone `all` times. */
static void interval(Job *j, int slow, int phase, double more, double all)
{
    OwnSum own[MOST];
    for (int r = 0; r < j->ranks; r++)
        for (int k = 0; k < OWN_PHASES; k++) {
            own[r].idle[k] = j->idle[r][k];
            own[r].took[k] = j->idle[r][k] + j->usual[r][k] * all * (r == slow && k == phase ? more : 1) *
                                      (1 + j->noise * rng_normal(rng_key(3, "noise"), 0, j->drawn++));
        }
    judge_interval(&j->judge, own);
    for (int i = 0; i < j->judge.n; i++) {
        const SlowRank *s = &j->judge.slow[i];
        if (!s->fresh)
            continue;
        j->found++;
        j->rank = s->rank;
        j->phase = s->phase;
        j->peers = s->peers;
        j->by_idling = s->idle;
        j->excess = s->excess;
        j->at = j->judge.intervals;
    }
}

static void calm(Job *j, int n)
{
    for (int i = 0; i < n; i++)
        interval(j, -1, 0, 1, 1);
}

/* Every rank of every shape, slowed by a fifth for 20 steps. */
static void test_each(void)
{
    static const int phases[] = {OWN_FORWARD, OWN_BACKWARD, OWN_OPTIMIZER};
    for (int ranks = 2; ranks <= MOST; ranks *= 2)
        for (int stages = 1; stages <= ranks; stages *= 2)
            for (int slow = 0; slow < ranks; slow++)
                for (int k = 0; k < 3; k++) {
                    Job j;
                    job_make(&j, ranks, stages, 0.1, 0.002);
                    j.usual[slow][OWN_OPTIMIZER] *= 2;     /* an uneven shard is no straggler */
                    for (int i = 0; i < 9; i++)
                        interval(&j, -1, 0, 1, 1 + 0.1 * (i % 4));
                    CHECK(!j.found, "%d ranks, %d stages: rank %d is slow", ranks, stages, j.rank);
                    for (int i = 0; i < INTERVAL_STEPS; i++)   /* on a machine that is faster and slower */
                        interval(&j, slow, phases[k], 1.2, ranks > 2 ? 0.8 + 0.2 * i : 1);
                    CHECK(j.found == 1 && j.rank == slow && j.phase == own_phase_name[phases[k]] &&
                              j.at == 12,
                          "%d ranks, %d stages, rank %d in %s: %d alarms, rank %d in %s", ranks, stages, slow,
                          own_phase_name[phases[k]], j.found, j.rank, j.phase ? j.phase : "nothing");
                    CHECK(fabs(j.excess - 0.2) < 0.02, "by %.3f", j.excess);
                    judge_close(&j.judge);
                }
}

/* What is no straggler: noise, all ranks together, the other ranks' haste, two intervals of five. */
static void test_none(void)
{
    Job j;
    job_make(&j, 4, 2, 0.1, 0.03);
    calm(&j, 2000);
    CHECK(!j.found, "noise of 3 %%: rank %d in %s", j.rank, j.phase);
    judge_close(&j.judge);
    job_make(&j, 4, 4, 0.1, 0.002);
    calm(&j, 10);
    for (int i = 0; i < 8; i++)
        interval(&j, -1, 0, 1, 1.5);
    CHECK(!j.found, "all are slower: rank %d", j.rank);
    judge_close(&j.judge);
    job_make(&j, 2, 2, 0.1, 0.002);
    calm(&j, 10);
    j.usual[0][OWN_BACKWARD] *= 0.7;
    calm(&j, 8);
    CHECK(!j.found, "the other is faster: rank %d", j.rank);
    judge_close(&j.judge);
    job_make(&j, 2, 1, 0.1, 0.002);
    interval(&j, 0, OWN_BACKWARD, 3, 1);
    calm(&j, 8);
    for (int i = 0; i < 20; i++) {
        interval(&j, 1, OWN_BACKWARD, 2, 1);
        interval(&j, 1, OWN_BACKWARD, 2, 1);
        calm(&j, 3);
    }
    CHECK(!j.found, "two intervals of five: rank %d", j.rank);
    for (int i = 0; i < 3; i++) {
        CHECK(!j.found, "found too early");
        interval(&j, 1, OWN_BACKWARD, 2, 1);
        calm(&j, i < 2);
    }
    CHECK(j.found == 1 && j.judge.slow[0].intervals == 43, "three of five: %d alarms", j.found);
    judge_close(&j.judge);
    job_make(&j, 1, 1, 0.1, 0);
    calm(&j, 10);
    interval(&j, 0, OWN_FORWARD, 5, 1);
    CHECK(!j.found, "one rank alone");
    judge_close(&j.judge);
}

/* Reported once, until it is over; and once more when it comes back. */
static void test_episodes(void)
{
    Job j;
    job_make(&j, 4, 1, 0.1, 0.002);
    calm(&j, 10);
    for (int i = 0; i < 100; i++)
        interval(&j, 2, OWN_FORWARD, 1.3, 1);
    CHECK(j.found == 1 && j.judge.n == 1 && j.judge.slow[0].intervals == 100, "%d alarms, %d slow", j.found,
          j.judge.n);
    calm(&j, 2);
    CHECK(j.judge.n == 1, "two intervals are no end");
    calm(&j, 1);
    CHECK(!j.judge.n, "%d still slow", j.judge.n);
    for (int i = 0; i < 3; i++)
        interval(&j, 2, OWN_FORWARD, 1.3, 1);
    CHECK(j.found == 2, "%d alarms", j.found);
    judge_close(&j.judge);
}

/* A rank that is on no core for a sixth of its time is found although the speeds of cores differ as much; one
 * that was so from the start, or as all are, is not. */
static void test_idle(void)
{
    for (int ranks = 2; ranks <= MOST; ranks *= 2)
        for (int phase = OWN_FORWARD; phase <= OWN_BACKWARD; phase++) {
            Job j;
            int slow = ranks - 1;
            job_make(&j, ranks, 1, 0.1, 0.08);
            j.idle[0][phase] = 0.05 * j.usual[0][phase];
            calm(&j, 40);
            CHECK(!j.found, "%d ranks, noise of 8 %%: rank %d in %s", ranks, j.rank, j.phase);
            for (int r = 0; r < ranks; r++)
                j.idle[r][phase] += 0.4 * j.usual[r][phase];
            calm(&j, 8);
            CHECK(!j.found, "%d ranks, all are idle: rank %d in %s", ranks, j.rank, j.phase);
            j.idle[slow][phase] += 0.2 * j.usual[slow][phase];
            calm(&j, 3);
            CHECK(j.found == 1 && j.rank == slow && j.phase == own_phase_name[phase] && j.by_idling,
                  "%d ranks, rank %d in %s: %d alarms, rank %d in %s", ranks, slow, own_phase_name[phase],
                  j.found, j.rank, j.phase ? j.phase : "nothing");
            judge_close(&j.judge);
        }
}

static void test_threshold(void)
{
    Job j;
    job_make(&j, 4, 2, 0.3, 0.002);
    calm(&j, 10);
    for (int i = 0; i < 20; i++)
        interval(&j, 3, OWN_BACKWARD, 1.2, 1);
    CHECK(!j.found, "a fifth is below 0.3");
    for (int i = 0; i < 3; i++)
        interval(&j, 3, OWN_BACKWARD, 1.4, 1);
    CHECK(j.found == 1 && j.rank == 3, "%d alarms", j.found);
    judge_close(&j.judge);
}

/* A rank that is slow from the start has peers that are not. */
static void test_from_the_start(void)
{
    Job j;
    job_make(&j, 4, 2, 0.1, 0.002);
    j.usual[1][OWN_FORWARD] *= 1.2;
    j.usual[1][OWN_BACKWARD] *= 1.2;
    calm(&j, 20);
    CHECK(j.found == 1 && j.rank == 1 && j.peers == 1 && j.phase == own_phase_name[OWN_BACKWARD] &&
              j.judge.slow[0].others == 1 && j.judge.slow[0].other[0] == own_phase_name[OWN_FORWARD],
          "%d alarms, rank %d, %d peers", j.found, j.rank, j.peers);
    judge_close(&j.judge);
}

/* Ranks that share experts out have work of their own, and no peers: one that takes longer is no news. */
static void test_without_peers(void)
{
    Job j;
    job_make(&j, 4, 1, 0.1, 0.002);
    judge_close(&j.judge);
    for (int r = 0; r < 4; r++)
        j.work[r] = -1;
    judge_open(&j.judge, 4, 0.1, j.work);
    j.usual[1][OWN_FORWARD] *= 1.2;
    j.usual[1][OWN_BACKWARD] *= 1.2;
    calm(&j, 20);
    CHECK(j.found == 0, "%d alarms, rank %d, %d peers", j.found, j.rank, j.peers);
    judge_close(&j.judge);
}

/* Phases without a usual length: they count by what they cost. */
static void test_rare(void)
{
    Job j;
    job_make(&j, 4, 2, 0.1, 0.002);
    calm(&j, 10);
    for (int i = 0; i < 5; i++)
        interval(&j, 0, OWN_DATA, 1000, 1);    /* 1 ms of 70 */
    CHECK(!j.found, "1 ms is little");
    for (int i = 0; i < 5; i++)
        interval(&j, 0, OWN_DATA, 20000, 1);
    CHECK(j.found == 1 && j.rank == 0 && j.phase == own_phase_name[OWN_DATA], "%d alarms", j.found);
    judge_close(&j.judge);
    job_make(&j, 4, 2, 0.1, 0.002);
    for (int i = 0; i < 60; i++) {             /* a save in every third interval */
        for (int r = 0; r < 4; r++)
            j.usual[r][OWN_SAVE] = i % 3 ? 0 : r ? 5e-3 : 9e-3;
        interval(&j, 2, OWN_SAVE, i < 40 ? 1 : 4, 1);
    }
    CHECK(j.found == 1 && j.rank == 2 && j.phase == own_phase_name[OWN_SAVE], "%d alarms", j.found);
    judge_close(&j.judge);
    job_make(&j, 2, 1, 0.1, 0.002);
    calm(&j, 10);
    for (int i = 0; i < LONG; i++) {
        CHECK(!j.found, "a core is lost for %d intervals", i);
        interval(&j, 1, OWN_CORE, 100, 1);
    }
    CHECK(j.found == 1 && j.rank == 1 && j.phase == own_phase_name[OWN_CORE], "%d alarms", j.found);
    judge_close(&j.judge);
}

/* Waits and messages are not own time; a pair of instructions shares what the two took. Whether it looks so:
 * where the thread loses its core between the end of an instruction and own_instr, part of the time is the
 * next one's. */
static int shows_own(void)
{
    OwnTime o;
    Instr f = {.op = I_F}, b = {.op = I_B}, s = {.op = I_S};
    own_open(&o, 1, 1, 1);
    double first = now();
    own_begin(&o);
    double start = now();
    usleep(30000);
    pace_away(0.02, NULL);
    double end = now();
    own_instr(&o, &f, start, end, 0.004);
    double own = o.own.took[OWN_FORWARD];
    CHECK(own <= now() - first - 0.02 - o.own.took[OWN_DATA], "%.4f s of %.4f s, 0.02 s of which it waited",
          own, end - start);
    int seen = own > 0.004 && o.own.took[OWN_DATA] == 0.004;
    start = now();
    usleep(20000);
    own_instr(&o, &s, start, now(), 0);
    start = now();
    usleep(20000);
    end = now();
    double half = start + (end - start) / 2;
    own_instr(&o, &f, start, half, 0);
    own_instr(&o, &b, half, end, 0);
    seen = seen && o.own.took[OWN_OPTIMIZER] >= 0.02 && o.own.took[OWN_BACKWARD] > 0.005 &&
           o.own.took[OWN_FORWARD] - own > 0.005;
    if (!seen)
        printf("# own %.4f s, for data %.4f; %.4f s, and a pair of %.4f and %.4f\n", own,
               o.own.took[OWN_DATA], o.own.took[OWN_OPTIMIZER], o.own.took[OWN_FORWARD] - own,
               o.own.took[OWN_BACKWARD]);
    own_close(&o);
    return seen;
}

static void compute(double seconds)
{
    for (double from = pace_mark().ran; pace_mark().ran < from + seconds;)
        ;
}

/* Sleep is idle time, but not while the rank waits for messages; computing is none. Whether it looks so, as
 * for shows_own. */
static int shows_idle(void)
{
    OwnTime o;
    Instr f = {.op = I_F}, b = {.op = I_B};
    own_open(&o, 1, 1, 1);
    own_begin(&o);
    double start = now();
    usleep(20000);
    compute(0.03);
    PaceMark waits = pace_mark();
    usleep(50000);
    pace_away(now() - waits.at, &waits);
    own_instr(&o, &f, start, now(), 0);
    start = now();
    compute(0.02);
    own_instr(&o, &b, start, now(), 0);
    const double *idle = o.own.idle, *took = o.own.took;
    int seen = idle[OWN_FORWARD] >= 0.019 && idle[OWN_FORWARD] <= took[OWN_FORWARD] - 0.029 &&
               took[OWN_BACKWARD] > 0.019 && idle[OWN_BACKWARD] <= took[OWN_BACKWARD] - 0.019;
    if (!seen)
        printf("# idle for %.4f s of %.4f s, for %.4f s of %.4f s while it computes\n", idle[OWN_FORWARD],
               took[OWN_FORWARD], idle[OWN_BACKWARD], took[OWN_BACKWARD]);
    own_close(&o);
    return seen;
}

/* A machine may hold up any thread at any moment, but not at the same one each time. */
static int in_some_try(int (*shows)(void))
{
    int seen = 0;
    for (int tries = 0; tries < 20 && !seen; tries++)
        seen = shows();
    return seen;
}

/* Of a device that runs late: the waits of each phase are its own, the loader's a forward's. */
static void test_own_device(void)
{
    OwnTime o;
    double ran[OWN_PHASES] = {[OWN_FORWARD] = 30, [OWN_BACKWARD] = 50, [OWN_OPTIMIZER] = 7};
    DeviceWaits w = {.message = {[OWN_FORWARD] = 4, [OWN_BACKWARD] = 20, [OWN_OPTIMIZER] = 7.5}, .loader = 6};
    double want[OWN_PHASES] = {[OWN_DATA] = 0.012, [OWN_FORWARD] = 0.04, [OWN_BACKWARD] = 0.06};
    own_open(&o, 1, 1, 0);
    own_device(&o, ran, &w);
    own_device(&o, ran, &w);
    for (int p = 0; p < OWN_PHASES; p++)
        CHECK(fabs(o.own.took[p] - want[p]) < 1e-12 && !o.own.idle[p], "%s: %g s, not %g", own_phase_name[p],
              o.own.took[p], want[p]);
    own_close(&o);
}

int main(void)
{
    test_each();
    test_none();
    test_episodes();
    test_idle();
    test_threshold();
    test_from_the_start();
    test_without_peers();
    test_rare();
    CHECK(in_some_try(shows_own), "waits or messages look like own time");
    CHECK(in_some_try(shows_idle), "sleep does not look idle, or computing does");
    test_own_device();
    return test_end();
}
