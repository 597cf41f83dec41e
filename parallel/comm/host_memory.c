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
    if (fd < 0)                    /* no prefix, or a host where its folder does not exist */
        fd = memfd_create("gridiron-host", MFD_CLOEXEC);
    /* all of it now: a page that the disk has no room for would be a SIGBUS later */
    int why = fd < 0 ? errno : EINTR;
    while (why == EINTR)
        why = posix_fallocate(fd, 0, (off_t)bytes);
    if (why)
        die(EXIT_RESOURCE, "shared-memory", "cannot make %s that the ranks of a host share: %s; "
            "change: raise the limits on open files and file sizes (ulimit -n, -f), or free memory and space "
            "in TMPDIR", what, strerror(why));
    return fd;
}
