/* pace -- sums of what the main thread does beside its own work, and how long it waits for a core */
#define _GNU_SOURCE
#include "pace.h"
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static double away, moving, starved_away;

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

double pace_starved(void)
{
    char text[96], *end;
    ssize_t n = pace_knows_cores() ? pread(schedstat(), text, sizeof text - 1, 0) : 0;
    if (n <= 0)
        return 0;
    text[n] = 0;
    strtoull(text, &end, 10);
    return 1e-9 * (double)strtoull(end, NULL, 10);
}

void pace_away(double seconds, double starved)
{
    if (!is_main())
        return;
    away += seconds;
    if (starved >= 0)
        starved_away += pace_starved() - starved;
}

void pace_moving(double seconds) { moving += is_main() ? seconds : 0; }
double pace_moved(void) { return is_main() ? moving : 0; }

Pace pace_now(void)
{
    if (!is_main())
        return (Pace){0};
    return (Pace){now(), away, moving, pace_starved() - starved_away};
}
