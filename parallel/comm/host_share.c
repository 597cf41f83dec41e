/* host_share -- memory that one rank of a host writes and all of them read */
#include "host_share.h"
#include "comm_mpi.h"
#include "device.h"
#include "host_memory.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int host_share_first(Comm *c)
{
    int64_t mine = comm_mpi_host(), *host = xcalloc((size_t)c->size, sizeof *host);
    int first = 0;
    c->wait(c, c->all_gather(c, host, &mine, 1, I64));
    while (host[first] != mine)
        first++;
    free(host);
    return first;
}

void *host_share(Comm *c, int first, size_t *bytes, const char *what)
{
    /* what nobody else opens needs no descriptor: the limit on file sizes counts such memory as a file */
    int makes = c->rank == first, alone = c->size == 1;
    size_t left = makes ? host_left() : 0;
    if (makes && *bytes > left)
        die(EXIT_RESOURCE, "memory", "%s takes %.2f GB of the host's memory, beside what the plan counts; "
            "%.2f are left; change: free memory, raise the job's limit on it, or a shorter run", what,
            (double)*bytes / 1e9, (double)left / 1e9);
    int fd = makes && !alone ? host_memory_take(*bytes, what) : -1;
    int64_t mine[3] = {getpid(), fd, makes ? (int64_t)*bytes : 0};
    int64_t *all = xcalloc(3 * (size_t)c->size, sizeof *all);
    const int64_t *of = all + 3 * first;
    c->wait(c, c->all_gather(c, all, mine, 3, I64));
    if (!makes) {
        fd = host_memory_open((int)of[0], (int)of[1], first, c->rank);
        *bytes = (size_t)of[2];
    }
    void *p = mmap(NULL, *bytes, PROT_READ | (makes ? PROT_WRITE : 0),
                   MAP_SHARED | (alone ? MAP_ANONYMOUS : 0), fd, 0);
    if (p == MAP_FAILED)
        die(EXIT_RESOURCE, "shared-memory", "cannot map %s that the ranks of a host share: %s; change: free "
            "memory, or raise the limit on it (ulimit -v)", what, strerror(errno));
    c->barrier(c);             /* the descriptor stays open until all have it */
    if (!alone)
        close(fd);
    free(all);
    return p;
}
