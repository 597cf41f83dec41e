/* metrics -- values of the metrics table read, set and reduced over ranks */
#define _GNU_SOURCE
#include "metrics.h"
#include <math.h>
#include <stdio.h>

const MetricDef metric_defs[METRIC_COUNT] = {
#define X(field, type, unit, ranks, steps, tag, label)                                                       \
    {#field, unit, tag, label, METRIC_##type, RANKS_##ranks, STEPS_##steps, offsetof(Metrics, field)},
    METRICS(X)
#undef X
};

double metric_get(const Metrics *m, int i)
{
    const char *p = (const char *)m + metric_defs[i].offset;
    return metric_defs[i].type == METRIC_INT ? (double)*(const int64_t *)p : *(const double *)p;
}

void metric_set(Metrics *m, int i, double v)
{
    char *p = (char *)m + metric_defs[i].offset;
    if (metric_defs[i].type == METRIC_INT)
        *(int64_t *)p = fabs(v) < 0x1p63 ? (int64_t)v : 0;
    else
        *(double *)p = v;
}

void metrics_reduce(Metrics *m, Comm *all, double *more, int n)
{
    double max[METRIC_COUNT], sums[METRIC_COUNT], *sum = sums;
    int nmax = 0, nsum = 0;
    for (int i = 0; i < METRIC_COUNT && more; i++)     /* the rows stand right before the caller's numbers */
        nsum += metric_defs[i].ranks == RANKS_MEAN;
    if (more)
        sum = more + METRIC_COUNT - nsum;
    nsum = 0;
    for (int i = 0; i < METRIC_COUNT; i++)
        if (metric_defs[i].ranks == RANKS_MAX)
            max[nmax++] = metric_get(m, i);
        else if (metric_defs[i].ranks == RANKS_MEAN)
            sum[nsum++] = metric_get(m, i);
    all->wait(all, all->all_reduce(all, max, nmax, F64, OP_MAX));
    all->wait(all, all->all_reduce(all, sum, nsum + (more ? n : 0), F64, OP_SUM));
    nmax = nsum = 0;
    for (int i = 0; i < METRIC_COUNT; i++)
        if (metric_defs[i].ranks == RANKS_MAX)
            metric_set(m, i, max[nmax++]);
        else if (metric_defs[i].ranks == RANKS_MEAN)
            metric_set(m, i, sum[nsum++] / all->size);
}

int64_t metrics_memory_resident(void)
{
    /* /proc/self/statm counts mapped files as shared memory, so it would count the corpus. */
    FILE *f = fopen("/proc/self/status", "re");
    long long kib, total = 0;
    char line[256];
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "RssAnon: %lld kB", &kib) == 1 || sscanf(line, "RssShmem: %lld kB", &kib) == 1)
            total += kib;
    if (f)
        fclose(f);
    return (int64_t)total * 1024;
}
