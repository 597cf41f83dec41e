/* comm_device -- groups whose buffers lie in the memory of a GPU.
 *
 * Every group is wrapped. An operation on device buffers runs on the group's own stream, after what the
 * compute stream has been given so far; wait(token) makes the compute stream wait for it. The host does
 * not wait. An operation on host buffers goes to the wrapped group. One thread starts the operations of
 * all groups in the order of the instruction list, so that they cannot wait for each other in a circle.
 *
 * Two transports: nccl; and staged, which copies through pinned host memory and sends with the wrapped
 * group. With staged several ranks may share one GPU, and the host waits: for tests. */
#ifndef COMM_DEVICE_H
#define COMM_DEVICE_H
#include "comm.h"

/* Wraps group c over `device`, a Device of kind cuda, through the host. Local. */
void comm_staged_wrap(void *device, Comm *c);

/* The same over NCCL: comm_nccl_start opens the communicator of the world, comm_nccl_wrap splits that of
 * group c from it. Both die with EXIT_COMM. Collective over the world, groups of one included.
 *   world    in   the group of all ranks
 *   timeout  in   global   seconds that the host waits for an operation before it ends the job */
void comm_nccl_start(Comm *world, Device *d, double timeout);
void comm_nccl_wrap(void *device, Comm *c);
/* Has NCCL prepare p[0..bytes) once, from and to which messages will go. Local. */
void comm_nccl_register(void *p, size_t bytes);
#endif
