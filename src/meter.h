/* meter -- steps of a small model of a configuration's kind, on this host, every operation timed where it stands:
 * between the operations that surround it in training, with what they have left in the caches. */
#ifndef METER_H
#define METER_H
#include "machine.h"
#include "run.h"

/* One operation of a step. size: FLOPs of a product and of attention, else the bytes that it reads and writes; 0 of
 * what is not the device's: messages of the tensor group, their starts and the waiting for them. */
#define METER_MESSAGE WORKS
typedef struct { Work work; double size, seconds; } Call;

typedef struct Meter Meter;

/* Two layers, the embedding, the head and the optimizer, one microbatch, shorter where it is very long. world 1: this
 * process alone, on all cores. world 2: a tensor group where the model's sizes can be halved, else replicas. Collective
 * over `world` ranks. */
Meter *meter_open(const Config *cfg, int world);
void meter_close(Meter *m);
Run *meter_run(Meter *m);

/* A step; returns its seconds. The first is not recorded. Collective like meter_open. */
double meter_step(Meter *m);

/* What a step usually takes (the median of the steps so far, each call on its own) and consists of. */
int meter_calls(const Meter *m, Call **call);

/* Whether an operation's time follows from its arithmetic. */
int meter_is_product(Work w);
#endif
