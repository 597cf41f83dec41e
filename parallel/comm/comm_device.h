/* comm_device -- groups whose buffers lie in the memory of a GPU.
 *
 * Every group of an open grid is wrapped: an operation whose buffers are the device's goes on a stream of the
 * group's own, behind what the compute stream has been given so far; wait(token) makes the compute stream
 * wait for it. The host waits for neither. Buffers of the host go through the group as it was before.
 * Operations of all groups are started by one thread in the order of the instruction list, which is what
 * keeps them from waiting for each other in a circle.
 *
 * Two ways to carry: `staged` copies through pinned memory of the host and sends with the group underneath,
 * so that several ranks may share one GPU (the host waits: for tests); `nccl`. */
#ifndef COMM_DEVICE_H
#define COMM_DEVICE_H
#include "grid.h"

/* Wraps the groups of g over d, a cuda device. Collective over the world. Dies with EXIT_COMM; a build
 * without CUDA dies with EXIT_CONFIG. */
void comm_staged_grid(Grid *g, Device *d);

/* The same over NCCL: communicators split from one of the world, which rank 0 invites to; an operation that
 * is not done `timeout` seconds after the host has begun to wait for it ends the job. */
void comm_nccl_grid(Grid *g, Device *d, double timeout);
/* Says to NCCL that messages will come from and go to p[0..bytes): it prepares that memory once. Not
 * collective. */
void comm_nccl_register(void *p, size_t bytes);
#endif
