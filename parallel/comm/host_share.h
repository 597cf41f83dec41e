/* host_share -- memory that one rank of a host writes and all of them read. */
#ifndef HOST_SHARE_H
#define HOST_SHARE_H
#include "comm.h"

/* The first rank of c on this rank's host. Collective over c. */
int host_share_first(Comm *c);

/* Memory that rank `first` (host_share_first) writes and the other ranks of its host only read, filled with
 * zeros; munmap gives it back. Collective over c.
 *   bytes    in    on rank `first`; out on the others
 *   what     in    what the error line calls it
 * Dies with EXIT_RESOURCE where the host has not that much left. */
void *host_share(Comm *c, int first, size_t *bytes, const char *what);
#endif
