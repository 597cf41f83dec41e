/* test_save_time -- the interval of saves that loses least */
#include "save_time.h"
#include "test.h"
#include <math.h>

/* The share of the time that saving every `steps` steps loses. */
static double loses(const SaveTimes *s, int64_t steps)
{
    double t = (double)steps * s->stepping / (double)s->steps;
    return s->lost / (double)s->saves / t + t / (2 * s->wall / s->failures);
}

static int64_t steps(SaveTimes *s)
{
    save_time_advice(s);
    return s->best;
}

/* T = sqrt(2 x 0.4 s x 18000 s) = 120 s: 240 steps of 0.5 s; no other number of steps loses less. */
static void closed_form(void)
{
    SaveTimes s = {.saves = 5, .steps = 1000, .lost = 2, .stepping = 500, .wall = 90000, .failures = 5};
    const char *text = save_time_advice(&s);
    int64_t best = s.best;
    CHECK(best == 240, "%ld steps", (long)best);
    for (int64_t n = 1; n < 2000; n++)
        CHECK(loses(&s, n) >= loses(&s, best), "%ld steps lose less than %ld", (long)n, (long)best);
    CHECK(!strcmp(text, "240 steps would lose least, at a save of 0.4 s and a failure every 5 h"), "%s",
          text);
    s.lost *= 4;
    CHECK(steps(&s) == 480, "a save of four times the cost");
    s.failures *= 16;
    CHECK(steps(&s) == 120, "sixteen times the failures");
    s.longest = 100;
    CHECK(steps(&s) == 200, "a save that takes 200 steps");
    s = (SaveTimes){.saves = 6, .steps = 100, .lost = 72, .stepping = 100, .wall = 600, .failures = 6};
    text = save_time_advice(&s);
    CHECK(strstr(text, " at a save of 12 s and a failure every 100 s"), "%s", text);
    s.wall = 4e7;
    CHECK(strstr(text = save_time_advice(&s), " a failure every 1852 h"), "%s", text);
    s = (SaveTimes){.saves = 1, .steps = 1, .lost = 1e-9, .stepping = 10, .wall = 100, .failures = 1};
    CHECK(steps(&s) == 1, "never less than a step");
}

static void nothing_known(void)
{
    const SaveTimes s = {.saves = 5, .steps = 1000, .lost = 2, .stepping = 500, .wall = 90000, .failures = 5};
    SaveTimes t = s;
    t.failures = 0;
    CHECK(!save_time_advice(&t), "no failure");
    t = s, t.saves = 0;
    CHECK(!save_time_advice(&t), "no save");
    t = s, t.steps = 0;
    CHECK(!save_time_advice(&t), "no step");
    CHECK(save_time_failures("/nowhere") == 0, "no record of failures");
}

static void grace(void)
{
    Config c = {.sigterm_grace = NAN};
    unsetenv("GRIDIRON_LAUNCH");
    unsetenv("OMPI_COMM_WORLD_SIZE");
    CHECK(save_time_grace(&c) == 30, "alone");
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    CHECK(save_time_grace(&c) == 2, "plain mpirun");
    setenv("GRIDIRON_LAUNCH", "scripts/launch", 1);
    CHECK(save_time_grace(&c) == 30, "scripts/launch");
    c.sigterm_grace = 0.5;
    CHECK(save_time_grace(&c) == 0.5, "as it is set");
    CHECK(save_time_fits(2, 2) && !save_time_fits(2.01, 2), "a save that is just in time");
}

int main(void)
{
    closed_form();
    nothing_known();
    grace();
    return test_end();
}
