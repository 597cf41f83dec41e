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

int result_renamed(const char *path)
{
    struct stat s;
    return lstat(path, &s) == 0 ? S_ISREG(s.st_mode) : errno == ENOENT;
}

FILE *result_open(const char *path)
{
    char why[WHY], *tmp = xasprintf("%s.tmp", path);
    int aside = result_renamed(path), may = access(path, W_OK) == 0 || errno == ENOENT;
    int fd = aside && may ? file_create_anew(AT_FDCWD, tmp, why) : -1;
    FILE *f = !aside ? fopen(path, "we") : fd >= 0 ? fdopen(fd, "w") : NULL;
    struct stat old;
    if (!f)
        die(EXIT_RESOURCE, "write", "cannot write %s: %s; change: give a path that this user may write", path,
            strerror(errno));
    if (aside && lstat(path, &old) == 0)
        fchmod(fd, old.st_mode & 07777);
    free(tmp);
    return f;
}

void result_close(FILE *f, const char *path)
{
    char *tmp = xasprintf("%s.tmp", path);
    int aside = result_renamed(path);
    errno = EIO;                       /* of an earlier write: stdio keeps no reason */
    int bad = fflush(f) || ferror(f) || (aside && fsync(fileno(f)));
    if (fclose(f) || bad || (aside && rename(tmp, path))) {
        int error = errno;
        if (aside)
            unlink(tmp);
        die(EXIT_RESOURCE, "write", "cannot write %s: %s; change: free space on its file system", path,
            strerror(error));
    }
    free(tmp);
}
