/* test_drift -- steps of a machine whose speed changes between launches: the outcome is a steady machine's */
#include "test.h"
#include "sweep_visits.h"
#include <stdlib.h>
#include <string.h>

/* A machine that is made up. True times of LAYOUTS layouts, ms; layouts 0 and 1 are within their noise. */
enum { LAYOUTS = 5, ROUNDS = 3, STEPS = 4 };
static const double truth[LAYOUTS] = {100, 100.5, 110, 130, 170};
static const Calibrated base = {{20, 8}, 0.7};

/* A step of a machine that is `slow` times as slow, with product and copy slower by further factors. */
static TimedStep step_at(double ms, double slow, double product, double copy)
{
    return (TimedStep){ms * slow, {20 * slow * product, 8 * slow * copy}};
}

/* The speed of the machine in launch i: it changes by 1.6 from launch to launch; steady: not at all. */
static double speed_at(int i, int steady)
{
    static const double slow[] = {1, 1.6, 1.26, 1.6, 1, 1.1, 1.45};
    return steady ? 1 : slow[i % 7];
}

/* Noise of 1 % between launches, alike on both machines. */
static double noise_at(int layout, int round, int step)
{
    static const double noise[] = {0, 0.01, -0.01, 0.005, -0.005};
    return 1 + noise[(3 * layout + 2 * round) % 5] + 0.001 * (step % 2);
}

static SweepLayout layouts[LAYOUTS];

static Sweep sweep_of(int calibrations)
{
    Sweep s = {.layout = layouts, .n = LAYOUTS, .base = base, .calibrated = 1, .calibrations = calibrations};
    memset(layouts, 0, sizeof layouts);
    for (int i = 0; i < LAYOUTS; i++)
        layouts[i].id = (uint64_t)i + 1;
    return s;
}

/* Adds a launch of a layout. copy: how much slower copies are than the machine is. */
static void launch(Visits *all, int layout, int round, double slow, double copy)
{
    Visit v = {.layout = layout, .n = STEPS, .step = calloc(STEPS, sizeof *v.step)};
    for (int k = 0; k < STEPS && v.step; k++)
        v.step[k] = step_at(truth[layout] * noise_at(layout, round, k), slow, 1, copy);
    visits_add(all, &v);
}

static void rounds_of(Visits *all, int steady)
{
    for (int r = 0, i = 0; r < ROUNDS; r++)
        for (int l = 0; l < LAYOUTS; l++, i++)
            launch(all, l, r, speed_at(i, steady), 1);
}

static void same_spread(const Spread *a, const Spread *b, const char *what)
{
    CHECK(fabs(a->ms / b->ms - 1) < 1e-12 && fabs(a->low / b->low - 1) < 1e-12 &&
              fabs(a->high / b->high - 1) < 1e-12,
          "%s: %g (%g - %g), steady %g (%g - %g)", what, a->ms, a->low, a->high, b->ms, b->low, b->high);
}

/* The machine that changes by 1.6 gives the times, spreads and equals of the steady one. */
static void test_drifting(void)
{
    SweepLayout steady[LAYOUTS];
    Sweep s = sweep_of(2);
    Visits calm = {0}, wild = {0};
    rounds_of(&calm, 1);
    visits_settle(&s, &calm, 1);
    memcpy(steady, layouts, sizeof steady);
    s = sweep_of(2);
    rounds_of(&wild, 0);
    visits_settle(&s, &wild, 1);
    for (int i = 0; i < LAYOUTS; i++) {
        same_spread(&layouts[i].measured, &steady[i].measured, "a layout");
        CHECK(layouts[i].equal == steady[i].equal && layouts[i].rounds == ROUNDS,
              "layout %d: equal %d, %d launches", i, layouts[i].equal, layouts[i].rounds);
        CHECK(fabs(layouts[i].measured.ms / truth[i] - 1) <= 0.012, "layout %d: %g ms", i,
              layouts[i].measured.ms);
    }
    CHECK(layouts[0].equal && layouts[1].equal && !layouts[2].equal && !layouts[4].equal,
          "equals: %d %d %d %d", layouts[0].equal, layouts[1].equal, layouts[2].equal, layouts[4].equal);
    CHECK(layouts[1].raw > 1.05 * steady[1].raw, "the clock says %g, steady %g", layouts[1].raw,
          steady[1].raw);
    sweep_sort(&s);
    for (int i = 0; i < LAYOUTS; i++)
        CHECK(i < 2 || layouts[i].id == (uint64_t)i + 1, "place %d has layout %d", i, (int)layouts[i].id);
    visits_close(&calm);
    visits_close(&wild);
}

/* A step in which products take more time counts them for more. */
static void test_factor(void)
{
    Reference now = {40, 8};
    TimedStep one = {170, now}, blind = {170, {NAN, NAN}};
    CHECK(fabs(drift_steps(&one, 1, base).ms - 100) < 1e-9, "%g", drift_steps(&one, 1, base).ms);
    CHECK(drift_steps(&one, 1, (Calibrated){0}).ms == 170 && drift_steps(&blind, 1, base).ms == 170,
          "what is not known changes nothing");
    TimedStep steps[] = {step_at(100, 1, 1, 1), step_at(101, 1.6, 1, 1), step_at(99, 1.3, 1, 1)};
    Spread s = drift_steps(steps, 3, base);
    CHECK(fabs(s.ms - 100) < 1e-9 && fabs(s.low - 99) < 1e-9 && fabs(s.high - 101) < 1e-9, "%g %g %g", s.ms,
          s.low, s.high);
    CHECK(drift_launches(&s, 1).high == s.high, "one launch has the spread of its steps");
    CHECK(drift_equal((Spread){105, 103, 107}, (Spread){100, 99, 103}) &&
              !drift_equal((Spread){105, 103.1, 107}, (Spread){100, 99, 103}),
          "spreads that touch are equal");
}

/* Products and copies change apart: a factor explains 1.4, and not 1.6. One odd launch among others does not
 * call for a calibration, and too few launches do not. */
static void test_apart(void)
{
    Reference r[12];
    for (int i = 0; i < 12; i++)
        r[i] = (Reference){20 * speed_at(i, 0), 8 * speed_at(i, 0) * 1.4};
    CHECK(drift_fits(r, 12, 11, base), "copies 1.4 times as slow");
    for (int i = 0; i < 12; i++)
        r[i].copy *= 1.6 / 1.4;
    CHECK(!drift_fits(r, 12, 11, base) && !drift_fits(r, 12, 0, base), "copies 1.6 times as slow");
    CHECK(drift_fits(r, 4, 3, base), "four launches are too few");
    CHECK(!drift_fits(r, 5, 4, base), "five are enough");
    CHECK(drift_fits(r, 12, 11, (Calibrated){0}), "without a calibration everything fits");
    for (int i = 0; i < 12; i++)
        r[i].copy /= i == 8 ? 1 : 1.6;
    CHECK(drift_fits(r, 12, 8, base), "one odd launch");
    for (int i = 0; i < 12; i++)
        r[i] = (Reference){20 * 1.6, 8};
    CHECK(!drift_fits(r, 12, 6, base), "products 1.6 times as slow");
}

/* Copies become twice as slow in the second round: the calibration is doubted, the launches from then on do
 * not count, and count again where it cannot be made again. With the calibration of that moment they count,
 * and those before do not. */
static void test_again(void)
{
    Visits all = {0};
    Sweep s = sweep_of(2);
    for (int r = 0; r < ROUNDS; r++)
        for (int l = 0; l < LAYOUTS; l++)
            if (r < 2)
                launch(&all, l, r, speed_at(all.n, 0), r ? 2 : 1);
    visits_settle(&s, &all, 0);
    CHECK(!visits_fit(&s, &all, 0) && !visits_fit(&s, &all, LAYOUTS), "the calibration still fits");
    CHECK(visits_fit(&s, &all, LAYOUTS + 1), "fewer than five launches are proof");
    int counted = 0;
    for (int i = 0; i < LAYOUTS; i++)
        counted += layouts[i].rounds;
    CHECK(counted == LAYOUTS, "%d launches count", counted);
    s = sweep_of(0);
    visits_settle(&s, &all, 0);
    CHECK(layouts[0].rounds == 2, "without another calibration %d launches count", layouts[0].rounds);
    s = sweep_of(1);
    s.base.reference.copy *= 2;
    visits_settle(&s, &all, 0);
    CHECK(visits_fit(&s, &all, 0), "the new calibration does not fit");
    for (int i = 0; i < LAYOUTS; i++)
        CHECK(layouts[i].rounds == 1 && fabs(layouts[i].measured.ms / truth[i] - 1) <= 0.012,
              "layout %d: %d, %g", i, layouts[i].rounds, layouts[i].measured.ms);
    visits_close(&all);
}

/* A description without a reference: times are in units of the launches' median. */
static void test_uncalibrated(void)
{
    Sweep s = sweep_of(0);
    Visits all = {0};
    s.base = (Calibrated){0};
    s.calibrated = 0;
    rounds_of(&all, 0);
    visits_settle(&s, &all, 1);
    double middle = s.base.reference.product / 20;
    CHECK(middle >= 1 && middle <= 1.6, "the median launch is %g times as slow", middle);
    for (int i = 0; i < LAYOUTS; i++)
        CHECK(fabs(layouts[i].measured.ms / truth[i] / middle - 1) <= 0.012, "layout %d: %g", i,
              layouts[i].measured.ms);
    visits_close(&all);
}

/* A layout that failed in one launch keeps the others; one that failed in all is failed. */
static void test_failed(void)
{
    Sweep s = sweep_of(2);
    Visits all = {0};
    launch(&all, 0, 0, 1, 1);
    visits_add(&all, &(Visit){.layout = 0, .why = "lost"});
    visits_add(&all, &(Visit){.layout = 1, .why = "no memory"});
    visits_settle(&s, &all, 1);
    CHECK(layouts[0].measured.ms > 0 && !layout_failed(&layouts[0]) && layouts[0].rounds == 2, "layout 0");
    CHECK(layout_failed(&layouts[1]) && !strcmp(layouts[1].why, "no memory"), "layout 1: %s", layouts[1].why);
    visits_close(&all);
}

int main(void)
{
    test_factor();
    test_drifting();
    test_apart();
    test_again();
    test_uncalibrated();
    test_failed();
    return test_end();
}
