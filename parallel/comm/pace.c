/* pace -- sums of what the main thread does beside its own work, and how long it waits for a core */
#define _GNU_SOURCE
#include "pace.h"
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static double away, moving, starved_away, idle_away;

static int is_main(void)
{
    static _Thread_local int known;    /* 1: it is; -1: it is not */
    if (!known)
        known = gettid() == getpid() ? 1 : -1;
    return known > 0;
}

/* The file that the kernel makes for the main thread: "ns it ran, ns it waited for a core, time slices". */
static int schedstat(void)
{
    static int fd = -2;                /* -2: not opened yet; -1: the kernel has none */
    if (fd == -2)
        fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    return fd;
}

int pace_knows_cores(void) { return is_main() && schedstat() >= 0; }

static double starved_now(void)
{
    char text[96], *end;
    ssize_t n = pace_knows_cores() ? pread(schedstat(), text, sizeof text - 1, 0) : 0;
    if (n <= 0)
        return 0;
    text[n] = 0;
    strtoull(text, &end, 10);
    return 1e-9 * (double)strtoull(end, NULL, 10);
}

PaceMark pace_mark(void)
{
    struct timespec t = {0};
    if (!is_main())
        return (PaceMark){0};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (PaceMark){starved_now(), (double)t.tv_sec + 1e-9 * (double)t.tv_nsec, now()};
}

static double idle_between(const PaceMark *from, const PaceMark *to)
{
    return to->at - from->at - (to->ran - from->ran) - (to->starved - from->starved);
}

void pace_away(double seconds, const PaceMark *waits)
{
    if (!is_main())
        return;
    away += seconds;
    if (!waits)
        return;
    PaceMark end = pace_mark();
    starved_away += end.starved - waits->starved;
    idle_away += idle_between(waits, &end);
}

void pace_moving(double seconds)
{
    if (is_main())                     /* the progress thread does not write, not even the same value */
        moving += seconds;
}
double pace_moved(void) { return is_main() ? moving : 0; }

Pace pace_now(void)
{
    if (!is_main())
        return (Pace){0};
    PaceMark m = pace_mark(), start = {0};
    return (Pace){m.at, away, moving, m.starved - starved_away, idle_between(&start, &m) - idle_away};
}
