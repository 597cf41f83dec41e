/* meter -- steps of a small model of a configuration's kind, on this host, every operation timed where it
 * stands: between the operations that surround it in training, with what they have left in the caches. */
#ifndef METER_H
#define METER_H
#include "machine.h"
#include "run.h"

/* One operation of a step. size: FLOPs of a product and of attention, else its bytes, those that it reads and
 * writes; 0 of what is not the device's: messages of the tensor group, their starts and the waiting for them.
 */
#define METER_MESSAGE OPKINDS
typedef struct { OpKind work; double size, bytes, seconds; } Call;

typedef struct Meter Meter;

/* The sequences of a microbatch that are metered: one, and as many as the global batch and a bound on tokens
 * allow, from which on operations are as fast with more. Returns how many sizes these are, 1 or 2. */
enum { METER_SIZES = 2 };
int meter_sizes(const Config *cfg, int64_t size[METER_SIZES]);

/* Two layers, more of them where caches would hold so few, the embedding, the head and the optimizer, one
 * microbatch of `sequences`. world 1: this process alone, on all cores. world 2: a tensor group where the
 * model's sizes can be halved, else replicas. Collective over `world` ranks. */
Meter *meter_open(const Config *cfg, int world, int64_t sequences);
void meter_close(Meter *m);
Run *meter_run(Meter *m);

/* A step; returns its seconds. The first is not recorded. Collective like meter_open. */
double meter_step(Meter *m);

/* What a step usually takes (the median of the steps so far, each call on its own) and consists of. */
int meter_calls(const Meter *m, Call **call);

/* Whether an operation's time follows from its arithmetic. */
int meter_is_product(OpKind w);
#endif
