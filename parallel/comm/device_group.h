/* device_group -- what the transports between GPUs share (comm_device.h): a wrapped group, and its
 * operations on device buffers. */
#ifndef DEVICE_GROUP_H
#define DEVICE_GROUP_H
#include "comm_device.h"
#include "cuda.h"

typedef struct DeviceGroup DeviceGroup;
struct DeviceGroup {
    Comm host;                     /* the wrapped group */
    Device *dev;
    int64_t started;               /* operations on device buffers so far: token -k is the k-th */
    Operation last;                /* the operation with k = started */
    int flight;                    /* in the flight record: of group_flight_device */
    void *impl;                    /* of the transport */
    void (*start)(DeviceGroup *g, const Operation *o);     /* starts operation k = started */
    void (*finish)(DeviceGroup *g, int64_t k);             /* makes the compute stream wait for operation k */
    void (*together)(DeviceGroup *g, int begin);           /* as Comm.together; NULL: nothing to do */
    void (*close)(DeviceGroup *g);                         /* NULL: nothing to give back */
};

/* Wraps c, a group of several ranks. The caller sets impl and the functions. Local. */
DeviceGroup *device_group(Comm *c, Device *d);
/* The elements that operation o reads from o->in, and those that it writes to o->out. */
int64_t operation_reads(const Comm *c, const Operation *o);
int64_t operation_writes(const Comm *c, const Operation *o);
#endif
