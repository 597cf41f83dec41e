/* comm_device -- groups whose buffers lie in the memory of a GPU.
 *
 * Every group is wrapped: an operation whose buffers are the device's goes on a stream of the
 * group's own, behind what the compute stream has been given so far; wait(token) makes the compute stream
 * wait for it. The host waits for neither. Buffers of the host go through the group as it was before.
 * Operations of all groups are started by one thread in the order of the instruction list, which is what
 * keeps them from waiting for each other in a circle.
 *
 * Two ways to carry: `staged` copies through pinned memory of the host and sends with the group underneath,
 * so that several ranks may share one GPU (the host waits: for tests); `nccl`. */
#ifndef COMM_DEVICE_H
#define COMM_DEVICE_H
#include "comm.h"

/* Wraps group c over `device`, a Device of kind cuda. Not collective. */
void comm_staged_wrap(void *device, Comm *c);

/* The same over NCCL: comm_nccl_start makes one communicator of the world, to which rank 0 invites, and
 * comm_nccl_wrap splits from it the one of group c. An operation that is not done `timeout` seconds after the
 * host has begun to wait for it ends the job. Collective over the world, groups of one included; both die
 * with EXIT_COMM. */
void comm_nccl_start(Comm *world, Device *d, double timeout);
void comm_nccl_wrap(void *device, Comm *c);
/* Says to NCCL that messages will come from and go to p[0..bytes): it prepares that memory once. Not
 * collective. */
void comm_nccl_register(void *p, size_t bytes);
#endif
