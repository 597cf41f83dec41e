/* scale -- arithmetic of a plot: round ticks, labels of ticks, thinned series */
#include "scale.h"
#include <math.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#define THIN_ABOVE 1000            /* points: a plot with more is thinned */
#define COLUMNS 250                /* columns of a thinned plot, on either axis; each has up to 4 points */

double scale_step(double least)
{
    double p = pow(10, floor(log10(least)));
    for (int i = 0; i < 3; i++)
        if (least <= p * (double[]){1, 2, 5}[i] * (1 + 1e-9))
            return p * (double[]){1, 2, 5}[i];
    return 10 * p;
}

const char *scale_label(char text[32], double v, double step, double most)
{
    static const struct { double by; const char *unit; } big[] = {
        {1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}};
    double size = fmax(fabs(v), most), grain = step;
    const char *unit = "";
    if (v == 0)
        return strcpy(text, "0");
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

/* The column of point i: columns are as narrow as a linear axis and a logarithmic one need. */
static int column_of(const double *xs, int64_t n, int64_t i)
{
    double at = xs[i] - xs[0], all = fmax(xs[n - 1] - xs[0], 1e-12);
    return (int)(COLUMNS * (at / all + log1p(at) / log1p(all)));
}

/* A column of the picture keeps its first, lowest, highest and last point: dropping the others does not
 * show. */
int64_t scale_thin(const double *xs, const double *ys, int64_t n, int64_t *keep)
{
    int64_t kept = 0;
    if (n <= THIN_ABOVE) {
        for (int64_t i = 0; i < n; i++)
            keep[kept++] = i;
        return kept;
    }
    for (int64_t i = 0, end; i < n; i = end) {
        int column = column_of(xs, n, i);
        int64_t low = -1, high = -1, first = -1, last = -1;
        for (end = i; end < n && column_of(xs, n, end) == column; end++) {
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
