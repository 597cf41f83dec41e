/* calibrate_turns -- what ranks lose that take turns on the cores of this host, for a machine description */
#ifndef CALIBRATE_TURNS_H
#define CALIBRATE_TURNS_H
#include "machine.h"

/* Ranks that the measurement takes on this host: two a core. 0: none, with one core, whose two ranks take
 * turns already, or more than TURNS_CORES. */
enum { TURNS_CORES = 16 };
int turns_ranks(void);

/* Times steps of a small model like cfg's on `world` ranks, as a tensor group where its sizes can be divided
 * by them, and as a data group, beside the reference. Sets link_latency_crowded_us, and crowding to the mean
 * of what steps take beyond their predictions. A group whose model would need half of the host's memory is
 * left out; without any, both keys are. Takes 4 to 8 s, up to 30 s on a host that others keep busy.
 * Collective over the world.
 *   m  in/out  a description of this host without crowding */
void calibrate_turns(Machine *m, const Config *cfg, int world);
#endif
