/* host_memory -- memory that the ranks of a host share */
#define _GNU_SOURCE
#include "host_memory.h"
#include "base.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Reserves all of it now: a page that there is no room for would be a SIGBUS later. Returns fd. */
static int reserve(int fd, size_t bytes, const char *what)
{
    int why = fd < 0 ? errno : EINTR;
    while (why == EINTR)
        why = posix_fallocate(fd, 0, (off_t)bytes);
    if (why)
        die(EXIT_RESOURCE, "shared-memory", "cannot make %s that the ranks of a host share: %s; "
            "change: raise the limits on open files and file sizes (ulimit -n, -f), or free memory and space "
            "in TMPDIR", what, strerror(why));
    return fd;
}

int host_memory_take(size_t bytes, const char *what)
{
    return reserve(memfd_create("gridiron-host", MFD_CLOEXEC), bytes, what);
}

int host_memory_make(const char *name, int host, size_t bytes, const char *what)
{
    const char *prefix = getenv("GRIDIRON_PAGE");
    int fd = -1;
    if (prefix && *prefix) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s%s.%d", prefix, name, host);
        /* not a result: for this job's user alone, whatever the umask */
        fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    }
    /* else no prefix, or a host where its folder does not exist */
    return fd < 0 ? host_memory_take(bytes, what) : reserve(fd, bytes, what);
}

int host_memory_open(int pid, int fd, int owner, int rank)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
    if ((fd = open(path, O_RDWR | O_CLOEXEC)) < 0)
        die(EXIT_RESOURCE, "shared-memory", "cannot open the memory shared by ranks %d and %d of this host: "
            "%s: %s; change: run both as one user in one container, or set GRIDIRON_RANKS_PER_HOST=1, or "
            "raise the limit on open files (ulimit -n)", owner, rank, path, strerror(errno));
    return fd;
}
