/* machine -- what a machine can do, for planning: read from configs/machines/NAME.yaml, never asked of
 * hardware (that is `train plan --calibrate`). machine.def is the table of keys. */
#ifndef MACHINE_H
#define MACHINE_H
#include "config.h"
#include "cost.h"

/* Share of a peak by size: points in order of size, between them linear in its logarithm, beyond them
 * constant. */
typedef struct { int n; double *size, *share; } Curve;
double curve_at(const Curve *c, double size);

typedef struct {
#define FIELD(section, key, type, def, legal, help) FIELD_##type key;
#include "machine.def"
#undef FIELD
    const char *path;
    Curve matmul, memory;      /* matmul_efficiency, memory_efficiency */
    double speed[OPKINDS];       /* op_speed; 1 */
    double together[OPKINDS];    /* op_speed_shared; 1 */
    int unfused;               /* op_set */
} Machine;

/* NAME (of configs/machines beside the executable, or below the current directory) or a path ending in .yaml.
 * Mistakes are listed with their places, then it dies with EXIT_CONFIG. As long as the process. */
const Machine *machine_load(const char *name);

/* Bytes of memory of each of `world` ranks. */
static inline double machine_room(const Machine *m, int world)
{
    double here = world < m->ranks ? (double)world : (double)m->ranks;
    return m->memory_gib * (1 << 30) / (m->shared ? here : 1);
}

/* One without values, to be filled in and written; absent keys are left out. As long as the process. */
Machine *machine_blank(void);
/* Writes what machine_load reads. `notes`: comment lines for its head. */
void machine_write(FILE *f, const Machine *m, const char *notes);
#endif
