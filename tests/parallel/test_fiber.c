/* test_fiber -- two functions that run by turns: the order of their pieces, their times, what is deep on
 * their stacks, and what happens when one of them ends first or never gives its turn away */
#include "fiber.h"
#include "base.h"
#include "test.h"
#include <time.h>

static struct {
    Fiber *f;
    char text[256];            /* pieces of both in their order: letters of `here`, digits of `there` */
    int n, turns[2];           /* how often each gives its turn away */
    int changes, last;         /* calls of turned */
    double sleep;              /* s of each piece of `there` */
} run;

static void piece(int there, int i)
{
    run.text[run.n++] = (char)((there ? '0' : 'a') + i);
    if (there && run.sleep > 0)
        nanosleep(&(struct timespec){.tv_nsec = (long)(run.sleep * 1e9)}, NULL);
}

/* Gives its turn away from a deep place, and finds its stack as it was. */
static int deep(int depth, int there)
{
    volatile char room[1024];
    memset((char *)room, depth + there, sizeof room);
    if (depth)
        return deep(depth - 1, there) + room[1000] - depth - there;
    fiber_turn(run.f);
    return room[1000] - there;
}

static void part(int there)
{
    for (int i = 0; i < run.turns[there]; i++) {
        piece(there, i);
        CHECK(deep(60, there) == 0, "the stack has changed");
    }
    piece(there, run.turns[there]);
}

static void here(void *ctx) { part(ctx != &run); }
static void there(void *ctx) { part(ctx == &run); }
static void turned(void *ctx)
{
    run.changes++;
    run.last = ctx == &run;
}

static void order(int of_here, int of_there, const char *want)
{
    double took[2];
    memset(run.text, 0, sizeof run.text);
    run.n = run.changes = 0;
    run.turns[0] = of_here;
    run.turns[1] = of_there;
    double start = now();
    fiber_run(run.f, here, there, turned, &run, took);
    CHECK(!strcmp(run.text, want), "%d, %d turns: %s, not %s", of_here, of_there, run.text, want);
    CHECK(run.changes % 2 == 0 && run.changes >= 2 && run.last, "%d changes", run.changes);
    CHECK(took[0] >= 0 && took[1] >= run.sleep * (of_there + 1), "times %g %g", took[0], took[1]);
    /* whichever of the two is held up, a moment is one's alone */
    CHECK(took[0] + took[1] <= now() - start, "times %g %g of %g", took[0], took[1], now() - start);
}

int main(void)
{
    run.f = fiber_open();
    fiber_turn(run.f);                 /* nothing runs: no effect */
    for (int again = 0; again < 3; again++) {
        order(0, 0, "a0");
        order(1, 1, "a0b1");
        order(3, 3, "a0b1c2d3");
        order(1, 3, "a0b123");
        order(3, 1, "a0b1cd");
        order(0, 3, "a0123");
        order(3, 0, "a0bcd");
    }
    run.sleep = 0.02;
    order(2, 2, "a0b1c2");
    fiber_close(run.f);
    fiber_close(NULL);
    return test_end();
}
