/* result_file -- a text file that a command writes for its user */
#include "result_file.h"
#include "base.h"
#include <errno.h>
#include <string.h>

FILE *result_open(const char *path)
{
    FILE *f = fopen(path, "we");
    if (!f)
        die(EXIT_RESOURCE, "write", "cannot write %s: %s; change: give a path that this user may write", path,
            strerror(errno));
    return f;
}

void result_close(FILE *f, const char *path)
{
    int bad = ferror(f);
    if (fclose(f) || bad)
        die(EXIT_RESOURCE, "write", "cannot write %s: %s; change: free space on its file system", path,
            strerror(errno));
}
