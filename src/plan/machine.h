/* machine -- descriptions of machines, for planning. They are read from configs/machines/NAME.yaml; only
 * `train plan --calibrate` measures hardware. machine.def is the table of keys. */
#ifndef MACHINE_H
#define MACHINE_H
#include "config.h"
#include "cost.h"

/* Share of a peak by size: [n] points in order of size. Between points the share is linear in the
 * logarithm of the size; beyond them it is constant. */
typedef struct { int n; double *size, *share; } Curve;
double curve_at(const Curve *c, double size);

typedef struct Machine {
#define FIELD(section, key, type, def, legal, help) FIELD_##type key;
#include "machine.def"
#undef FIELD
    const char *path;          /* of the file */
    Curve matmul, memory;      /* matmul_efficiency, memory_efficiency */
    double speed[OPKINDS];     /* op_speed; 1: not given */
    double together[OPKINDS];  /* op_speed_shared; 1: not given */
    int unfused, separate;     /* bool: op_set is unfused, is separate */
} Machine;

/* Reads a description. name: of a file in configs/machines, below the current directory or beside the
 * executable, or a path that ends in .yaml. Lists mistakes with their places, then dies with
 * EXIT_CONFIG. The result lives as long as the process. */
const Machine *machine_load(const char *name);

/* Bytes of memory that each of `world` ranks has. */
static inline double machine_room(const Machine *m, int world)
{
    double here = world < m->ranks ? (double)world : (double)m->ranks;
    return m->memory_gib * (1 << 30) / (m->shared ? here : 1);
}

/* Bytes of a rank's memory that driver and libraries take beside a plan, in a job of `world` ranks: 0 where
 * memory is the host's. */
int64_t machine_reserve(const Machine *m, int world);
/* Bytes that a plan of a rank may have, in a job of `world` ranks: machine_room without machine_reserve. */
double machine_space(const Machine *m, int world);
/* Whether a plan of `bytes` fits. */
int machine_fits(const Machine *m, int world, int64_t bytes);

/* A description without values, to be filled in and written; keys without a value are not written. It
 * lives as long as the process. */
Machine *machine_blank(void);
/* Writes a file that machine_load reads. notes: comment lines for its head. */
void machine_write(FILE *f, const Machine *m, const char *notes);
#endif
