/* calibrate_turns -- what ranks lose that take turns on the cores of this host, for a machine description */
#include "calibrate_turns.h"
#include "calibrate_links.h"
#include "predict.h"
#include "samples.h"
#include <math.h>

enum { LAYOUTS = 2 };
#define STEPS 12               /* of each layout */
#define MOST 30.0              /* s of all turns */

int turns_ranks(void)
{
    int cores = pool_cores();
    return cores > 1 && cores <= TURNS_CORES ? 2 * cores : 0;
}

/* What the steps take beyond their prediction, as the logarithm of a ratio. */
static double beyond(const Machine *m, const Meter *meter, const Samples *s)
{
    Reference shared = {m->reference_shared_product_ms, m->reference_shared_copy_ms};
    double took = samples_typical(s, (Calibrated){shared, m->reference_products});
    Prediction p;
    predict(&p, meter_config(meter), m);
    double said = p.step;
    prediction_close(&p);
    return log(took / said);
}

void calibrate_turns(Machine *m, const Config *cfg, int world)
{
    Meter *meter[LAYOUTS];
    Samples s[LAYOUTS] = {{0}};
    double start = now(), apart = 0;
    int n = 0;
    const double state = (double)meter_state(cfg), room = m->memory_gib * (1 << 30) / 2;
    m->crowding = 0;
    if (meter_splits(cfg, world) && state < room)
        meter[n++] = meter_open(cfg, AXIS_TP, world, 1);
    if (state * world < room)
        meter[n++] = meter_open(cfg, AXIS_DP, world, 1);
    if (!n)
        return;
    Comm *all = &meter_run(meter[0])->grid.all;
    calibrate_sleepers(m, all);
    for (int64_t over = 0; !over;) {
        int least = STEPS;
        for (int k = 0; k < n; k++) {
            samples_turn(&s[k], meter[k]);
            least = s[k].n < least ? s[k].n : least;
        }
        over = (least > 1 && now() - start > MOST) || least >= STEPS;
        all->wait(all, all->broadcast(all, &over, 1, I64, 0));
    }
    for (int k = 0; k < n; k++) {
        apart += beyond(m, meter[k], &s[k]) / n;
        samples_close(&s[k]);
        meter_close(meter[k]);
    }
    m->crowding = fmin(1, fmax(0, exp(apart) - 1));
}
