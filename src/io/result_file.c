/* result_file -- a text file that a command writes for its user */
#include "result_file.h"
#include "file.h"
#include "base.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Whether the text goes to PATH.tmp first, which takes the name at the end: not for a link, a FIFO or
 * /dev/stdout.
 *   mode  out  that of the file that is there, 0: there is none */
static int renamed(const char *path, mode_t *mode)
{
    struct stat s;
    int there = lstat(path, &s) == 0;
    *mode = there ? s.st_mode & 07777 : 0;
    return there ? S_ISREG(s.st_mode) : errno == ENOENT;
}

FILE *result_open(const char *path)
{
    char why[WHY], *tmp = xasprintf("%s.tmp", path);
    mode_t mode;
    int aside = renamed(path, &mode), open = !aside || !mode || access(path, W_OK) == 0;
    int fd = aside && open ? file_create_anew(AT_FDCWD, tmp, why) : -1;
    FILE *f = !aside ? fopen(path, "we") : fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!f)
        die(EXIT_RESOURCE, "write", "cannot write %s: %s; change: give a path that this user may write", path,
            strerror(errno));
    if (mode && aside)
        fchmod(fd, mode);
    free(tmp);
    return f;
}

void result_close(FILE *f, const char *path)
{
    mode_t mode;
    char *tmp = xasprintf("%s.tmp", path);
    int aside = renamed(path, &mode), bad = ferror(f) || fflush(f) || (aside && fsync(fileno(f)));
    if (fclose(f) || bad || (aside && rename(tmp, path))) {
        int error = errno;
        if (aside)
            unlink(tmp);
        die(EXIT_RESOURCE, "write", "cannot write %s: %s; change: free space on its file system", path,
            strerror(error));
    }
    free(tmp);
}
