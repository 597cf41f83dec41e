/* save_time -- grace of a signal, and advice on the interval of saves */
#include "save_time.h"
#include "config_table.h"
#include "file.h"
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>

double save_time_grace(const Config *c)
{
    int plain_mpirun = getenv("OMPI_COMM_WORLD_SIZE") && !getenv("GRIDIRON_LAUNCH");
    return !isnan(c->sigterm_grace) ? c->sigterm_grace : plain_mpirun ? 2 : 30;
}

int save_time_fits(double end, double grace) { return end <= grace; }

static double mean_cost(const SaveTimes *s) { return s->lost / (double)s->saves; }

static int64_t best_steps(const SaveTimes *s)
{
    if (!s->saves || !s->steps || !s->failures || !(s->stepping > 0))
        return 0;
    double best = sqrt(2 * mean_cost(s) * s->wall / s->failures), step = s->stepping / (double)s->steps;
    return (int64_t)fmax(1, fmax(round(best / step), ceil(s->longest / step)));
}

/* Returns "0.4 s", "12 s", "12 min" or "5 h". */
static const char *duration(double s)
{
    if (s < 120)
        return textf(s < 10 ? "%.2g s" : "%.0f s", s);
    return s < 7200 ? textf("%.0f min", s / 60) : textf(s < 3e6 ? "%.3g h" : "%.0f h", s / 3600);
}

const char *save_time_advice(SaveTimes *s)
{
    int64_t steps = s->best = best_steps(s);
    return !steps ? NULL
                  : textf("%ld step%s would lose least, at a save of %s and a failure every %s", steps,
                          steps == 1 ? "" : "s", duration(mean_cost(s)), duration(s->wall / s->failures));
}

int save_time_failures(const char *run_dir)
{
    char why[WHY], *name = xasprintf("%s/restarts.jsonl", run_dir);
    int64_t size = 0;
    char *text = file_read_text(AT_FDCWD, name, 0, 1 << 30, &size, why);
    int n = 0;
    for (int64_t i = 0; text && i < size; i++)
        n += text[i] == '\n';
    free(text);
    free(name);
    return n;
}
