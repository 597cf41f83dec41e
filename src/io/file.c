/* file -- reads, writes and commits files; a failure has a reason */
#define _GNU_SOURCE
#include "file.h"
#include "base.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Repeats a call that failed with EINTR (a signal) or EAGAIN (a file system out of buffers). */
#define AGAIN(result, call)                                                                                  \
    for (int tries_ = 0; ((result) = (call)) < 0 && (errno == EINTR || errno == EAGAIN) && tries_ < 1000;)   \
        if (tries_++, errno == EAGAIN)                                                                       \
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL)

/* Whether a read that failed as errno says is worth another try, because the file system may be back in a
 * moment. Waits before it, longer from try to try.
 *   at  in  byte, for the warning before the first wait; -1: the file is being opened */
static int read_again(const char *name, int64_t at, int try)
{
    static const int ms[] = {250, 1000, 3000};
    char why[WHY];
    if ((errno != EIO && errno != EREMOTEIO && errno != ETIMEDOUT && errno != EHOSTDOWN) ||
        try == sizeof ms / sizeof *ms)
        return 0;
    if (!try) {
        if (at < 0)
            file_errno(why, "cannot open %s", name);
        else
            file_errno(why, "cannot read %s at byte %ld", name, at);
        warn("%s; trying again for 4 s", why);
    }
    nanosleep(&(struct timespec){.tv_sec = ms[try] / 1000, .tv_nsec = ms[try] % 1000 * 1000000L}, NULL);
    return 1;
}

int file_why(char why[WHY], const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, WHY, fmt, ap);
    va_end(ap);
    return 0;
}

int file_errno(char why[WHY], const char *fmt, ...)
{
    int e = errno;
    char reason[160];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(why, WHY, fmt, ap);
    va_end(ap);
    snprintf(reason, sizeof reason, ": %s%s", strerror(e),
             e == EFBIG ? " (for the limit that `ulimit -f` shows, or for this file system)" : "");
    int room = WHY - (int)strlen(reason);
    if (n < room)
        snprintf(why + n, (size_t)(WHY - n), "%s", reason);
    else                               /* the name is long: the reason counts */
        snprintf(why + room - 4, (size_t)(WHY - room + 4), "...%s", reason);
    errno = e;
    return 0;
}

void file_limit_raise(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
}

int file_open(int dir, const char *name, int nofollow, int64_t *size, char why[WHY])
{
    int fd, try = 0;
    struct stat st;
    do
        AGAIN(fd, openat(dir, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | (nofollow ? O_NOFOLLOW : 0)));
    while (fd < 0 && read_again(name, -1, try++));
    if (fd < 0 && errno == ELOOP && nofollow)
        return file_why(why, "%s is a symbolic link", name) - 1;
    if (fd < 0)
        return file_errno(why, "cannot open %s", name) - 1;
    if (fstat(fd, &st) < 0)
        file_errno(why, "cannot read the size of %s", name);
    else if (!S_ISREG(st.st_mode))
        file_why(why, "%s is not a regular file", name);
    else {
        *size = st.st_size;
        return fd;
    }
    close(fd);
    return -1;
}

int file_create(int dir, const char *name, int exclusive, char why[WHY])
{
    int fd;
    AGAIN(fd, openat(dir, name, O_WRONLY | O_CREAT | O_CLOEXEC | (exclusive ? O_EXCL | O_NOFOLLOW : O_TRUNC),
                     0666));
    if (fd < 0)
        file_errno(why, "cannot create %s", name);
    return fd;
}

int file_create_anew(int dir, const char *name, char why[WHY])
{
    int fd, tries = 0;
    do {
        unlinkat(dir, name, 0);
        fd = file_create(dir, name, 1, why);
    } while (fd < 0 && errno == EEXIST && tries++ < 10);
    return fd;
}

int file_open_append(int dir, const char *name, int empty, char why[WHY])
{
    int fd, how = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | (empty ? O_TRUNC : 0);
    AGAIN(fd, openat(dir, name, how, 0666));
    if (fd < 0 && errno == ELOOP)
        file_why(why, "%s is a symbolic link", name);
    else if (fd < 0)
        file_errno(why, "cannot open %s", name);
    return fd;
}

int file_open_dir(int dir, const char *name, int nofollow, char why[WHY])
{
    int fd;
    AGAIN(fd, openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | (nofollow ? O_NOFOLLOW : 0)));
    if (fd < 0)
        file_errno(why, "cannot open the folder %s", name);
    return fd;
}

int file_read_at(int fd, const char *name, void *p, int64_t n, int64_t at, char why[WHY])
{
    int try = 0;
    for (int64_t done = 0; done < n;) {
        ssize_t r;
        AGAIN(r, pread(fd, (char *)p + done, (size_t)(n - done), at + done));
        if (r < 0 && read_again(name, at + done, try++))
            continue;
        if (r < 0)
            return file_errno(why, "cannot read %s at byte %ld", name, at + done);
        if (r == 0)
            return file_why(why, "%s ends at byte %ld, %ld more are needed", name, at + done, n - done);
        done += r;
    }
    return 1;
}

int file_write_at(int fd, const char *name, const void *p, int64_t n, int64_t at, char why[WHY])
{
    for (int64_t done = 0; done < n;) {
        ssize_t r;
        AGAIN(r, pwrite(fd, (const char *)p + done, (size_t)(n - done), at + done));
        if (r <= 0) {
            errno = r == 0 ? ENOSPC : errno;
            return file_errno(why, "cannot write %ld bytes to %s at byte %ld", n - done, name, at + done);
        }
        done += r;
    }
    return 1;
}

int file_append(int fd, const void *p, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t w = write(fd, (const char *)p + done, n - done);
        if (w <= 0 && !(w < 0 && errno == EINTR))
            return 0;
        done += w > 0 ? (size_t)w : 0;
    }
    return 1;
}

int file_sync_close(int fd, const char *name, char why[WHY])
{
    int r;
    AGAIN(r, fsync(fd));
    if (r < 0) {
        file_errno(why, "cannot flush %s", name);
        close(fd);
        return 0;
    }
    /* after fsync close has nothing to lose; with EINTR the descriptor is closed too */
    if (close(fd) < 0 && errno != EINTR)
        return file_errno(why, "cannot close %s", name);
    return 1;
}

void file_drop_cache(int dir, const char *name)
{
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return;
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

int file_sync_dir(int dir, const char *name, char why[WHY])
{
    int r;
    AGAIN(r, fsync(dir));
    return r < 0 ? file_errno(why, "cannot flush the folder %s", name) : 1;
}

char *file_parent(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return xstrdup(".");
    return xasprintf("%.*s", (int)(slash == path ? 1 : slash - path), path);
}

/* Flushes the folder above path, which makes the name of a new folder durable. */
static int sync_parent(const char *path, char why[WHY])
{
    char *up = file_parent(path);
    int fd = file_open_dir(AT_FDCWD, up, 0, why), ok = fd >= 0 && file_sync_dir(fd, up, why);
    if (fd >= 0)
        close(fd);
    free(up);
    return ok;
}

int file_make_dirs(const char *path, char why[WHY])
{
    char *p = xstrdup(path);
    int ok = 1, r;
    for (char *s = p + 1; ok; s++) {
        if (*s && *s != '/')
            continue;
        char c = *s;
        *s = 0;
        AGAIN(r, mkdir(p, 0777));
        if (r == 0)
            ok = sync_parent(p, why);
        else if (errno != EEXIST)
            ok = file_errno(why, "cannot make the folder %s", p);
        *s = c;
        if (!c)
            break;
    }
    free(p);
    return ok;
}

char *file_read_text(int dir, const char *name, int nofollow, int64_t limit, int64_t *size, char why[WHY])
{
    int64_t n;
    int fd = file_open(dir, name, nofollow, &n, why);
    if (fd < 0)
        return NULL;
    char *p = NULL;
    if (n > limit)
        file_why(why, "%s has %ld bytes, more than the %ld that such a file may have", name, n, limit);
    else if (p = xcalloc(1, (size_t)n + 1), !file_read_at(fd, name, p, n, 0, why)) {
        free(p);
        p = NULL;
    }
    close(fd);
    *size = n;
    return p;
}

char *file_read_lines(const char *path, int64_t limit, char why[WHY])
{
    int64_t size = 0, line = 1;
    char *p = file_read_text(AT_FDCWD, path, 0, limit, &size, why);
    char *end = p ? memchr(p, 0, (size_t)size) : NULL;
    if (!end)
        return p;
    for (const char *at = p; at < end; at++)
        line += *at == '\n';
    file_why(why, "%s:%ld: a byte 0, so this is no text", path, line);
    free(p);
    return NULL;
}

char *file_behind_mark(char *text) { return text + (strncmp(text, "\xef\xbb\xbf", 3) ? 0 : 3); }

int file_replace(int dir, const char *name, const void *p, int64_t n, char why[WHY])
{
    char *tmp = xasprintf("%s.tmp", name);
    int r, fd = file_create_anew(dir, tmp, why), ok = fd >= 0;
    if (ok && !file_write_at(fd, tmp, p, n, 0, why)) {
        close(fd);
        ok = 0;
    } else if (ok) {
        ok = file_sync_close(fd, tmp, why);
    }
    if (ok) {
        AGAIN(r, renameat(dir, tmp, dir, name));
        ok = r == 0 ? file_sync_dir(dir, name, why) : file_errno(why, "cannot rename %s to %s", tmp, name);
    }
    if (!ok && fd >= 0)
        unlinkat(dir, tmp, 0);
    free(tmp);
    return ok;
}

int file_replace_in(const char *folder, const char *name, const void *p, int64_t n, char why[WHY])
{
    int dir = file_open_dir(AT_FDCWD, folder, 0, why), ok = dir >= 0 && file_replace(dir, name, p, n, why);
    if (dir >= 0)
        close(dir);
    return ok;
}

int file_remove_dir(int parent, const char *name, char why[WHY])
{
    int r, ok = 1, fd;
    AGAIN(fd, openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    if (fd < 0 && (errno == ENOTDIR || errno == ELOOP))     /* a file or a link under the name */
        return unlinkat(parent, name, 0) == 0 ? 1 : file_errno(why, "cannot remove %s", name);
    if (fd < 0)
        return errno == ENOENT ? 1 : file_errno(why, "cannot open %s to remove it", name);
    DIR *d = fdopendir(fd);
    if (!d) {
        file_errno(why, "cannot list %s to remove it", name);
        close(fd);
        return 0;
    }
    for (struct dirent *e; ok && (errno = 0, e = readdir(d));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        AGAIN(r, unlinkat(fd, e->d_name, 0));
        if (r < 0 && errno != ENOENT)
            ok = file_errno(why, "cannot remove %s/%s", name, e->d_name);
    }
    closedir(d);
    if (ok) {
        AGAIN(r, unlinkat(parent, name, AT_REMOVEDIR));
        if (r < 0 && errno != ENOENT)
            ok = file_errno(why, "cannot remove %s", name);
    }
    return ok;
}

uint64_t file_random(void)
{
    uint64_t x;
    BUG_ON(getrandom(&x, sizeof x, 0) != sizeof x);
    return x;
}

int file_name_ok(const char *name)
{
    static const char legal[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
    size_t n = strlen(name);
    return n && n <= 200 && name[0] != '.' && strspn(name, legal) == n;
}

char *file_shipped(const char *name)
{
    char exe[4096];
    ssize_t n = access(name, R_OK) ? readlink("/proc/self/exe", exe, sizeof exe - 1) : 0;
    if (n <= 0)
        return xstrdup(name);
    exe[n] = 0;
    /* the executable of a test lies deeper in the tree */
    for (char *slash = strrchr(exe, '/'); slash; slash = strrchr(exe, '/')) {
        *slash = 0;
        char *path = xasprintf("%s/%s", exe, name);
        if (!access(path, R_OK))
            return path;
        free(path);
    }
    return xstrdup(name);
}
