/* host_memory -- memory that the ranks of a host share. Under scripts/launch it is a file in the launcher's
 * folder and outlives the ranks, else it is anonymous. All functions are local. */
#ifndef HOST_MEMORY_H
#define HOST_MEMORY_H
#include <stddef.h>

/* Makes it, filled with zeros; returns its descriptor.
 *   name     in    ends the file's name: GRIDIRON_PAGE, name, a dot, host
 *   host     in    distinguishes the hosts of a job
 *   what     in    what the error line calls it */
int host_memory_make(const char *name, int host, size_t bytes, const char *what);

/* The same, anonymous in any case. */
int host_memory_take(size_t bytes, const char *what);

/* Opens what process `pid` of this host has as descriptor fd.
 *   owner, rank  in    the ranks of that process and of this one */
int host_memory_open(int pid, int fd, int owner, int rank);
#endif
