/* progress -- progress of a piece of work, on standard error */
#include "progress.h"
#include "base.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define WIDTH 24    /* characters of the bar */

/* Writes 12345678 of unit "B" as "12.3 MB". */
static void amount(char out[32], double x, const char *unit)
{
    static const char prefix[] = " kMGT";
    int k = 0;
    for (; x >= 1000 && prefix[k + 1]; k++)
        x /= 1000;
    snprintf(out, 32, "%.*f %.*s%s", x < 100 && k ? 1 : 0, x, k > 0, prefix + k, unit);
}

void progress_bar(const char *label, int64_t done, int64_t total, const char *unit)
{
    static char current[64];
    static double start, drawn;
    double t = now();
    int live = isatty(STDERR_FILENO);
    if (strncmp(current, label, sizeof current - 1)) {
        snprintf(current, sizeof current, "%s", label);
        start = t;
        drawn = live ? 0 : t;
    }
    if (done < total && t - drawn < (live ? 0.1 : 10))
        return;
    drawn = t;
    char have[32], all[32], speed[32], bar[WIDTH + 1];
    double part = (double)done / (double)total, rate = (double)done / fmax(t - start, 1e-3);
    for (int i = 0; i < WIDTH; i++)
        bar[i] = i < (int)(part * WIDTH) ? '=' : ' ';
    bar[WIDTH] = 0;
    amount(have, (double)done, unit);
    amount(all, (double)total, unit);
    amount(speed, rate, unit);
    double left = rate > 0 ? (double)(total - done) / rate : 0;
    fprintf(stderr, "%s%s [%s] %3.0f%%  %s of %s  %s/s  %.0f s left%s", live ? "\r\x1b[K" : "", label, bar,
            100 * part, have, all, speed, left, live && done < total ? "" : "\n");
    fflush(stderr);
    if (done == total)
        current[0] = 0;
}
