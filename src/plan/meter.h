/* meter -- steps of a small model like the configuration's, run on this host with every operation timed.
 * An operation runs between the same operations as in training, so the caches hold the same data. */
#ifndef METER_H
#define METER_H
#include "machine.h"
#include "run.h"

/* One operation of a step. work METER_MESSAGE: starting a message of the tensor group, or waiting for
 * it.
 *   size   FLOPs of a product or of attention, else bytes read and written; 0: a message
 *   bytes  read and written; 0: a message */
#define METER_MESSAGE OPKINDS
typedef struct { OpKind work; double size, bytes, seconds; } Call;

typedef struct Meter Meter;

/* Writes the microbatch sizes (sequences) that are metered: 1, and the most that the global batch and a
 * bound on tokens allow; operations are no faster beyond that bound. Returns the number of sizes, 1 or
 * 2. */
enum { METER_SIZES = 2 };
int meter_sizes(const Config *cfg, int64_t size[METER_SIZES]);

/* Bytes of its parameters, gradients and moments, at least; of all ranks of a tensor group together, and of
 * each replica. */
int64_t meter_state(const Config *cfg);

/* Opens a model with the embedding, the head, the optimizer and two layers, or more where caches would
 * hold two.
 *   axis       in  AXIS_TP or AXIS_DP: a tensor group of all ranks (meter_splits), or replicas
 *   world      in  1: this process alone, on all cores
 *   sequences  in  of the one microbatch of a step
 * Collective over `world` ranks. */
Meter *meter_open(const Config *cfg, Axis axis, int world, int64_t sequences);
void meter_close(Meter *m);
Run *meter_run(Meter *m);
const Config *meter_config(const Meter *m);

/* Whether heads and feed-forward width can be divided by a tensor group of n ranks. */
int meter_splits(const Config *cfg, int n);

/* Runs a step; returns its seconds. The first step is not recorded. Collective like meter_open. */
double meter_step(Meter *m);

/* Times the reference (run_reference) on the ranks of the meter, unmetered. Collective. */
void meter_reference(Meter *m, ReferenceTime *whole, ReferenceTime *calm);

/* Steps that are recorded. */
int meter_steps(const Meter *m);
/* *call: the calls of a step with the lower quartiles of their times over the recorded steps: what other
 * programs do not disturb, as long as they take a core for less than three quarters of the time. Returns
 * their number. */
int meter_calls(const Meter *m, Call **call);

/* Whether the time of an operation follows from its FLOPs. */
int meter_is_product(OpKind w);
#endif
