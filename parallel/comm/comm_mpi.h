/* comm_mpi -- how the ranks that a launcher started find each other over MPI. Ranks of one host do not
 * send each other messages through MPI (group.h). */
#ifndef COMM_MPI_H
#define COMM_MPI_H
#include "comm.h"

/* Joins the job that the launcher started: MPI, the page of this host, the watch over its ranks. A second
 * call does nothing. The process leaves the job when it ends. With GRIDIRON_RANKS_PER_HOST=k in the
 * environment, every k ranks in world order behave as one host. Collective over all ranks. */
void comm_mpi_start(void);

/* The lowest world rank of this rank's host; 0 when no job was joined. Local. */
int comm_mpi_host(void);

/* Opens a group. All ranks of the world open their groups in the same order; a rank outside the group
 * calls comm_mpi_skip instead. No operation may be under way. Collective over the members.
 *   c        out   local
 *   name     in    global        for messages; a constant
 *   member   in    global [n]    world ranks in group order, this one among them; n >= 2 */
void comm_mpi_open(Comm *c, const char *name, const int *member, int n);
void comm_mpi_skip(void);
#endif
