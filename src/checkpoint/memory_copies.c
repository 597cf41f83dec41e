/* memory_copies -- the folder of a host's copies: where it is, what is in it, how much room it has */
#define _GNU_SOURCE
#include "memory_copies.h"
#include "comm_mpi.h"
#include "config_table.h"
#include "source.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

const char *memory_folder(void)
{
    const char *made = getenv("GRIDIRON_MEMORY"), *pretended = getenv("GRIDIRON_RANKS_PER_HOST");
    if (!made || !*made)
        return NULL;
    return pretended && *pretended ? textf("%s/host.%d", made, comm_mpi_host()) : made;
}

/* Whether the folder `made` is one that only this user may enter: on another host than the launcher's,
 * another user may have made it first. */
static int is_private(const char *made)
{
    struct stat st;
    return !lstat(made, &st) && S_ISDIR(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 077);
}

int memory_make(char why[WHY])
{
    const char *made = getenv("GRIDIRON_MEMORY");
    if (mkdir(made, 0700) < 0 && errno != EEXIST)
        return file_errno(why, "cannot make %s", made);
    if (!is_private(made))
        return file_why(why, "%s is not a folder of this user alone", made);
    return 1;
}

char *memory_copy(int64_t iteration)
{
    return xasprintf("%s/checkpoints/iter_%07" PRId64, memory_folder(), iteration);
}

int memory_holds(const char *dir)
{
    const char *folder = memory_folder();
    size_t n = folder ? strlen(folder) : 0;
    return folder && !strncmp(dir, folder, n) && (!dir[n] || dir[n] == '/');
}

/* Folders of the copies on this host, newest first; free with source_list_free. */
static char **copies_here(int *n)
{
    *n = 0;
    return memory_folder() && is_private(getenv("GRIDIRON_MEMORY")) ? source_list(memory_folder(), n)
                                                                    : xcalloc(1, sizeof(char *));
}

int memory_list(int64_t iteration[MEMORY_LISTED], Comm *all)
{
    int64_t mine[MEMORY_LISTED], *each = xcalloc((size_t)all->size, sizeof mine);
    int n, found = 0, listed = all->size * MEMORY_LISTED;
    char **here = copies_here(&n);
    for (int i = 0; i < MEMORY_LISTED; i++) {
        mine[i] = -1;
        if (i < n)
            source_iteration(strrchr(here[i], '/') + 1, &mine[i]);
    }
    source_list_free(here, n);
    all->wait(all, all->all_gather(all, each, mine, MEMORY_LISTED, I64));
    qsort(each, (size_t)listed, sizeof *each, source_newest_first);
    for (int i = 0; i < listed && each[i] >= 0 && found < MEMORY_LISTED; i++)
        if (!found || each[i] != iteration[found - 1])
            iteration[found++] = each[i];
    free(each);
    return found;
}

void memory_forget(int64_t iteration, Comm *all)
{
    char why[WHY] = "";
    int ok = 1, n;
    char **here = copies_here(&n);
    for (int i = 0; ok && i < n && all->rank == comm_mpi_host(); i++) {
        int64_t its;
        if (source_iteration(strrchr(here[i], '/') + 1, &its) && its > iteration)
            ok = file_remove_dir(AT_FDCWD, here[i], why);
    }
    source_list_free(here, n);
    all_ok(all, ok, EXIT_RESOURCE, "memory-copies", "%s; change: let this user write in %s", why,
           memory_folder());
}

/* Bytes of the files in the folders of `top`. */
static int64_t bytes_below(const char *top)
{
    int64_t bytes = 0;
    DIR *d = opendir(top);
    for (struct dirent *e; d && (e = readdir(d));) {
        char *path = xasprintf("%s/%s", top, e->d_name);
        DIR *copy = *e->d_name == '.' ? NULL : opendir(path);
        struct stat st;
        for (struct dirent *f; copy && (f = readdir(copy));)
            if (*f->d_name != '.' && fstatat(dirfd(copy), f->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0)
                bytes += (int64_t)st.st_blocks * 512;
        if (copy)
            closedir(copy);
        free(path);
    }
    if (d)
        closedir(d);
    return bytes;
}

int64_t memory_room(void)
{
    struct statvfs fs;
    if (statvfs(memory_folder(), &fs))
        return 0;
    char *top = xasprintf("%s/checkpoints", memory_folder());
    int64_t room = (int64_t)fs.f_bavail * (int64_t)fs.f_frsize + bytes_below(top);
    free(top);
    return room;
}
