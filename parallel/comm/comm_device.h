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

/* The same over NCCL: comm_nccl_start opens the communicator of a world, comm_nccl_wrap splits that of
 * group c from it. Both die with EXIT_COMM. Collective over the world, groups of one included. The
 * world's communicator is closed with the last of its groups. A world of one rank has none: comm_nccl_start
 * returns NULL, and comm_nccl_wrap is not called.
 *   world    in   the group of all ranks; of comm_nccl_wrap: what comm_nccl_start returned
 *   timeout  in   global   seconds that the host waits for an operation before it ends the job */
typedef struct NcclWorld NcclWorld;
NcclWorld *comm_nccl_start(Comm *world, Device *d, double timeout);
void comm_nccl_wrap(void *world, Comm *c);
/* Has NCCL prepare p[0..bytes) of device d once, from and to which messages of d's groups will go. Local. */
void comm_nccl_register(const Device *d, void *p, size_t bytes);
#endif
