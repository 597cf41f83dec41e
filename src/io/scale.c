/* scale -- axes of plots: positions, round ticks, labels of ticks, thinned series */
#include "scale.h"
#include <math.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#define THIN_ABOVE 1000            /* points: a plot with more is thinned */
#define COLUMNS 250                /* columns of a thinned plot; each has up to 4 points */

double scale_at(Scale s, double v)
{
    return s.log ? log(v / s.lo) / log(s.hi / s.lo) : (v - s.lo) / (s.hi - s.lo);
}

/* Returns the smallest of 1, 2 or 5 times a power of ten that is not below v. */
static double round_up(double v)
{
    double p = pow(10, floor(log10(v)));
    for (int i = 0; i < 3; i++)
        if (v <= p * (double[]){1, 2, 5}[i] * (1 + 1e-9))
            return p * (double[]){1, 2, 5}[i];
    return 10 * p;
}

static int log_ticks(Scale s, int want, double tick[12], double *step)
{
    /* powers of ten if they are enough, else also their 2- and 5-fold */
    double decades = log10(s.hi / s.lo);
    int every = (int)ceil(decades / want), n = 0, fine = decades < want / 2.0;
    for (int e = (int)floor(log10(s.lo)); e <= (int)ceil(log10(s.hi)); e++)
        for (int i = 0; i < (fine ? 3 : 1); i++) {
            double v = pow(10, e) * (double[]){1, 2, 5}[i];
            if (v >= s.lo * (1 - 1e-9) && v <= s.hi * (1 + 1e-9) && n < 12 && (fine || e % every == 0))
                tick[n++] = v;
        }
    *step = 0;
    return n;
}

int scale_ticks(Scale s, int want, double tick[12], double *step)
{
    int n = s.log ? log_ticks(s, want, tick, step) : 0;
    if (n >= 2)
        return n;
    *step = round_up((s.hi - s.lo) / want);
    n = 0;
    for (double k = ceil(s.lo / *step - 1e-9); k * *step <= s.hi + 1e-9 * *step && n < 12; k++)
        tick[n++] = k * *step;
    return n;
}

const char *scale_tick_text(char t[32], double v, double by) { return scale_axis_text(t, v, by, fabs(v)); }

const char *scale_axis_text(char text[32], double v, double step, double most)
{
    static const struct { double by; const char *unit; } big[] = {
        {1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}};
    double size = step > 0 ? fmax(fabs(v), most) : fabs(v), grain = step > 0 ? step : size;
    const char *unit = "";
    if (v == 0 || !isfinite(v))
        return strcpy(text, isfinite(v) ? "0" : "n/a");
    if (size < 1e-3) {                             /* 3e-4: what a learning rate is called */
        int e = (int)floor(log10(fabs(v)) + 1e-9), digits = (int)ceil(e - log10(grain) - 1e-9);
        snprintf(text, 32, "%.*fe%d", digits < 0 ? 0 : digits > 3 ? 3 : digits, v / pow(10, e), e);
        return text;
    }
    for (int i = 0; i < 4 && size >= 99999.5; i++)
        if (size >= big[i].by) {
            v /= big[i].by;
            grain /= big[i].by;
            unit = big[i].unit;
            break;
        }
    int digits = grain < 1 ? (int)ceil(-log10(grain) - 1e-9) : 0;
    if (size >= 1e4 && !*unit)
        snprintf(text, 32, "%d,%03d", (int)rint(v) / 1000, abs((int)rint(v)) % 1000);
    else
        snprintf(text, 32, "%.*f%s", digits > 6 ? 6 : digits, v, unit);
    return text;
}

/* Below 1e-3 zeros at the end are dropped: 6e-5, not 6.000e-5. */
const char *scale_number_text(char text[32], double v)
{
    double size = fabs(v);
    if (size >= 1e-3 || size == 0 || !isfinite(v))
        return scale_tick_text(text, v, v != 0 && isfinite(v) ? pow(10, floor(log10(size)) - 3) : 1);
    int e = (int)floor(log10(size) + 1e-9);
    snprintf(text, 32, "%.3ge%d", v / pow(10, e), e);
    return text;
}

/* A column of the picture keeps its first, lowest, highest and last point: dropping the others does not
 * show. */
int64_t scale_thin(Scale x, const double *xs, const double *ys, int64_t n, int64_t *keep)
{
    int64_t kept = 0;
    if (n <= THIN_ABOVE) {
        for (int64_t i = 0; i < n; i++)
            keep[kept++] = i;
        return kept;
    }
    for (int64_t i = 0, end; i < n; i = end) {
        int column = (int)(scale_at(x, xs[i]) * COLUMNS);
        int64_t low = -1, high = -1, first = -1, last = -1;
        for (end = i; end < n && (int)(scale_at(x, xs[end]) * COLUMNS) == column; end++) {
            if (!isfinite(ys[end]))
                continue;
            first = first < 0 ? end : first;
            last = end;
            low = low < 0 || ys[end] < ys[low] ? end : low;
            high = high < 0 || ys[end] > ys[high] ? end : high;
        }
        if (first < 0) {
            keep[kept++] = i;                      /* a whole column without a number is a gap */
            continue;
        }
        int64_t pick[4] = {first, low < high ? low : high, low < high ? high : low, last};
        for (int k = 0; k < 4; k++)
            if (!kept || keep[kept - 1] < pick[k])
                keep[kept++] = pick[k];
    }
    return kept;
}
