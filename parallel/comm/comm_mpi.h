/* comm_mpi -- what MPI is for: that the ranks a launcher started find each other, and messages between hosts.
 * Between ranks of one host nothing goes through it (group.h). */
#ifndef COMM_MPI_H
#define COMM_MPI_H
#include "comm.h"

/* Joins the job that the launcher started: MPI, the page of this host, the watch over its ranks. Once; the
 * process leaves the job by itself when it ends. Collective over all ranks. Where GRIDIRON_RANKS_PER_HOST=k
 * is in the environment every k ranks, in world order, behave as if they were a host. */
void comm_mpi_start(void);

/* The lowest world rank of this rank's host; 0 when no job was joined. */
int comm_mpi_host(void);

/* Opens the group of `n` >= 2 world ranks, given in group order, of which this process is one. All ranks of
 * the world open their groups in the same order, those outside a group call comm_mpi_skip; nothing may be
 * under way. Collective over the members. */
void comm_mpi_open(Comm *c, const char *name, const int *member, int n);
void comm_mpi_skip(void);
#endif
