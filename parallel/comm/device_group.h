/* device_group -- what the transports between GPUs share (comm_device.h): a group as it was, and its
 * operations on the device. */
#ifndef DEVICE_GROUP_H
#define DEVICE_GROUP_H
#include "comm_device.h"
#include "cuda.h"

typedef struct {
    CommKind kind;
    void *out;
    const void *in;
    int64_t n;                     /* elements, as in the call */
    Dtype type;
    ReduceOp op;
    int root;                      /* of a broadcast; the peer of a message */
} Operation;

#define DEVICE_TOKENS 64           /* operations whose ends are told apart */

typedef struct DeviceGroup DeviceGroup;
struct DeviceGroup {
    Comm host;                     /* the group as it was */
    Device *dev;
    int64_t started;               /* operations on the device so far: token -k is the k-th */
    int64_t number[DEVICE_TOKENS]; /* which of them each entry below is about */
    Operation last;
    void *impl;
    /* starts number g->started; makes the compute stream wait for the k-th; NULL where nothing is to be
     * closed */
    void (*start)(DeviceGroup *g, const Operation *o);
    void (*finish)(DeviceGroup *g, int64_t k);
    void (*together)(DeviceGroup *g, int begin);   /* NULL: nothing to be done */
    void (*close)(DeviceGroup *g);
};

/* Wraps c, a group of several ranks. impl and the functions are set by the caller. */
DeviceGroup *device_group(Comm *c, Device *d);
/* The elements that `o` reads from in, and writes to out. */
int64_t operation_reads(const Comm *c, const Operation *o);
int64_t operation_writes(const Comm *c, const Operation *o);
#endif
