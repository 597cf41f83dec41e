/* save_time -- grace of a signal */
#include "save_time.h"
#include <math.h>
#include <stdlib.h>

double save_time_grace(const Config *c)
{
    int plain_mpirun = getenv("OMPI_COMM_WORLD_SIZE") && !getenv("GRIDIRON_LAUNCH");
    return !isnan(c->sigterm_grace) ? c->sigterm_grace : plain_mpirun ? 2 : 30;
}

int save_time_fits(double end, double grace) { return end <= grace; }
