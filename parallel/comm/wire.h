/* wire -- messages between hosts over MPI, in bytes between world ranks. Call wire_send, wire_recv and
 * wire_done under the engine's lock. */
#ifndef WIRE_H
#define WIRE_H
#include "engine.h"

/* Call it once, before the first message.
 *   communicator  in            of the world, as MPI_Comm_c2f gives it
 *   place         in  [world]   place of each world rank in the page of this real host (job.h); -1: the rank
 *                               lives elsewhere. The caller's */
void wire_open(int communicator, const int *place);

#define WIRE_BYTES (1 << 30)       /* most bytes of a message: MPI counts in int */

/* They return a number that names the message until wire_done, which returns 1 and sets it to -1 when the
 * message is through, or it was -1 before.
 *   r        in                the operation. If it is checked, a message of 8 bytes follows with the hash,
 *                              and the receiver's wire_done checks it (checksum.h)
 *   bytes    in                at most WIRE_BYTES
 *   tag      in                id of the group * TAGS + one of the tags below */
int wire_send(const Request *r, const void *p, size_t bytes, int to, int tag);
int wire_recv(const Request *r, void *p, size_t bytes, int from, int tag);
int wire_done(int *id);
enum { TAG_PARTIAL, TAG_BLOCK, TAG_MESSAGE, TAG_EXCHANGE, TAGS };

/* Dies unless rc, what a call of MPI returned, is MPI_SUCCESS. what: for the error line. */
void wire_check(int rc, const char *what);
#endif
