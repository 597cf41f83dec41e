/* power_record -- for test_power: every change of files and folders below POWER_ROOT is appended to the file
 * POWER_LOG, by all processes and threads in one order. The functions below stand in front of the C library's
 * in the program that includes this header once. */
#ifndef POWER_RECORD_H
#define POWER_RECORD_H
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define POWER_NAME 128

/* One change. Files and folders are numbered by their inode. */
typedef enum { OP_WRITE, OP_CUT, OP_NAME, OP_MOVE, OP_SYNC } OpKind;
typedef struct {
    int32_t kind;
    int32_t made;                   /* OP_NAME: 1 a new file, 2 a new folder, 0 a name that is gone */
    int64_t ino, other;             /* other, of OP_MOVE: what is exchanged with ino; else 0 */
    int64_t dir[2];                 /* folders of the names */
    int64_t at, bytes;              /* OP_WRITE: that many bytes follow this record; OP_CUT: new size in at */
    char name[2][POWER_NAME];
} Op;

static int power_log = -1;
static char power_root[PATH_MAX];
static pthread_mutex_t power_one = PTHREAD_MUTEX_INITIALIZER;

/* From here to power_end no other thread or process changes anything. */
static void power_begin(void)
{
    pthread_mutex_lock(&power_one);
    syscall(SYS_flock, power_log, LOCK_EX);
}

static void power_end(void)
{
    int e = errno;
    syscall(SYS_flock, power_log, LOCK_UN);
    pthread_mutex_unlock(&power_one);
    errno = e;
}

static void power_put(const Op *op, const void *data)
{
    int e = errno;
    if (syscall(SYS_write, power_log, op, sizeof *op) != sizeof *op ||
        (op->kind == OP_WRITE && syscall(SYS_write, power_log, data, op->bytes) != op->bytes))
        abort();
    errno = e;
}

/* The inode of an open file or folder below the root; 0: it is none. */
static int64_t power_inode(int fd)
{
    struct stat s;
    char link[32], path[PATH_MAX];
    int e = errno;
    size_t n = strlen(power_root);
    int64_t ino = 0;
    if (power_log >= 0 && fstat(fd, &s) == 0 && (S_ISREG(s.st_mode) || S_ISDIR(s.st_mode))) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t got = readlink(link, path, sizeof path - 1);
        if (got >= (ssize_t)n && !memcmp(path, power_root, n) && (got == (ssize_t)n || path[n] == '/'))
            ino = (int64_t)s.st_ino;
    }
    errno = e;
    return ino;
}

/* Puts the last part of a path into the record as its name k, and the folder's inode. Returns 0 when that
 * folder does not lie below the root. */
static int power_name(Op *op, int k, int dir, const char *path)
{
    char folder[PATH_MAX];
    if (power_log < 0)
        return 0;
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    size_t from = n;
    while (from && path[from - 1] != '/')
        from--;
    if (n - from >= POWER_NAME)
        abort();
    snprintf(op->name[k], POWER_NAME, "%.*s", (int)(n - from), path + from);
    snprintf(folder, sizeof folder, "%.*s", from ? (int)from : 1, from ? path : ".");
    int e = errno, fd = (int)syscall(SYS_openat, dir, folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    op->dir[k] = fd < 0 ? 0 : power_inode(fd);
    if (fd >= 0)
        syscall(SYS_close, fd);
    errno = e;
    return op->dir[k] != 0;
}

/* The inode of a path itself; 0: there is none. */
static int64_t power_at(int dir, const char *path)
{
    struct stat s;
    int e = errno;
    int64_t ino = fstatat(dir, path, &s, AT_SYMLINK_NOFOLLOW) == 0 ? (int64_t)s.st_ino : 0;
    errno = e;
    return ino;
}

static int power_open(int dir, const char *name, int flags, mode_t mode)
{
    Op op = {.kind = OP_NAME, .made = 1};
    if (!(flags & (O_CREAT | O_TRUNC)) || !power_name(&op, 0, dir, name))
        return (int)syscall(SYS_openat, dir, name, flags, mode);
    power_begin();
    int there = power_at(dir, name) != 0, fd = (int)syscall(SYS_openat, dir, name, flags, mode);
    op.ino = fd < 0 ? 0 : power_inode(fd);
    op.kind = there ? OP_CUT : OP_NAME;
    if (op.ino && (!there || flags & O_TRUNC))
        power_put(&op, NULL);
    power_end();
    return fd;
}

int openat(int dir, const char *name, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    return power_open(dir, name, flags, mode);
}

int open(const char *name, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    return power_open(AT_FDCWD, name, flags, mode);
}

static ssize_t power_write(int fd, const void *p, size_t n, off_t at)
{
    Op op = {.kind = OP_WRITE, .ino = power_inode(fd)};
    if (!op.ino)
        return at < 0 ? syscall(SYS_write, fd, p, n) : syscall(SYS_pwrite64, fd, p, n, at);
    power_begin();
    op.bytes = at < 0 ? syscall(SYS_write, fd, p, n) : syscall(SYS_pwrite64, fd, p, n, at);
    op.at = at < 0 ? lseek(fd, 0, SEEK_CUR) - op.bytes : at;
    if (op.bytes > 0)
        power_put(&op, p);
    power_end();
    return op.bytes;
}

ssize_t write(int fd, const void *p, size_t n) { return power_write(fd, p, n, -1); }
ssize_t pwrite(int fd, const void *p, size_t n, off_t at) { return power_write(fd, p, n, at); }

/* A call that changes or flushes the open file fd. */
static int power_file(OpKind kind, int call, int fd, off_t at)
{
    Op op = {.kind = kind, .ino = power_inode(fd), .at = at};
    if (!op.ino)
        return (int)syscall(call, fd, at);
    power_begin();
    int r = (int)syscall(call, fd, at);
    if (!r)
        power_put(&op, NULL);
    power_end();
    return r;
}

int ftruncate(int fd, off_t n) { return power_file(OP_CUT, SYS_ftruncate, fd, n); }
int fsync(int fd) { return power_file(OP_SYNC, SYS_fsync, fd, 0); }
int fdatasync(int fd) { return power_file(OP_SYNC, SYS_fdatasync, fd, 0); }

int mkdirat(int dir, const char *name, mode_t mode)
{
    Op op = {.kind = OP_NAME, .made = 2};
    if (!power_name(&op, 0, dir, name))
        return (int)syscall(SYS_mkdirat, dir, name, mode);
    power_begin();
    int r = (int)syscall(SYS_mkdirat, dir, name, mode);
    op.ino = r ? 0 : power_at(dir, name);
    if (op.ino)
        power_put(&op, NULL);
    power_end();
    return r;
}

int unlinkat(int dir, const char *name, int flags)
{
    Op op = {.kind = OP_NAME};
    if (!power_name(&op, 0, dir, name))
        return (int)syscall(SYS_unlinkat, dir, name, flags);
    power_begin();
    int r = (int)syscall(SYS_unlinkat, dir, name, flags);
    if (!r)
        power_put(&op, NULL);
    power_end();
    return r;
}

int renameat2(int from, const char *a, int to, const char *b, unsigned flags)
{
    Op op = {.kind = OP_MOVE};
    int below = power_name(&op, 0, from, a) + power_name(&op, 1, to, b);
    if (!below)
        return (int)syscall(SYS_renameat2, from, a, to, b, flags);
    if (below < 2)
        abort();                    /* the root has only one side of it */
    power_begin();
    op.ino = power_at(from, a);
    op.other = flags & RENAME_EXCHANGE ? power_at(to, b) : 0;
    int r = (int)syscall(SYS_renameat2, from, a, to, b, flags);
    if (!r)
        power_put(&op, NULL);
    power_end();
    return r;
}

int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }
int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }
int rename(const char *a, const char *b) { return renameat2(AT_FDCWD, a, AT_FDCWD, b, 0); }
int renameat(int from, const char *a, int to, const char *b) { return renameat2(from, a, to, b, 0); }

__attribute__((constructor)) static void power_start(void)
{
    const char *root = getenv("POWER_ROOT"), *path = getenv("POWER_LOG");
    if (!root || !path || !realpath(root, power_root))
        return;
    power_log = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}
#endif
