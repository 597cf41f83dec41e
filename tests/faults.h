/* faults -- system calls that fail on demand, for tests of saving. The functions below stand in front of the
 * C library's in the program that includes this header once.
 *
 * The environment variable FAULT asks for one fault in strace's words: "fsync:error=EIO:when=3" (the third
 * fsync fails), "when=3+" (the third and all later ones), "pwrite64:signal=KILL:when=2" (the process is
 * killed in place of the call). A fault that happens is noted in the file FAULT_LOG. Tests in the same
 * process set the variables below instead. */
#ifndef FAULTS_H
#define FAULTS_H
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int short_writes; /* pwrite moves half of what it is given, and every third call is interrupted */
static atomic_int held_writes;      /* not 0: pwrite waits */
static atomic_int held_reads;       /* not 0: pread waits */
static atomic_int held_saves;       /* not 0: pwrite waits where it is for that iteration's save */
static atomic_int full_memory;      /* bool: pwrite finds no room where it is for a copy in memory */
static atomic_int flips;            /* so many writes after the start of a file write one bit wrong */
static atomic_int sound;            /* so many such writes before those of flips are right */
static int plain_names;             /* bool: renameat2 knows no flags, as on NFS and Lustre */
static int slow_names;              /* ms that rename and unlink wait before they do it */
static int slow_report;             /* ms that a report waits before it gets its name */
static atomic_int slow_writes;      /* ms that pwrite waits before it writes */
static atomic_int slow_flush;       /* ms that the next fsync takes longer */
static atomic_int drops;            /* files taken out of memory so far */
static int fail_after = -1;         /* number of writes and flushes before all fail; -1: none fails */
static int fail_with;               /* errno of the calls that fail after fail_after */

static struct { char call[16]; int when, onward, error, ready; atomic_int count; } fault;

static void read_fault(void)
{
    static const struct { const char *name; int number;
    } errors[] = {
        {"ENOSPC", ENOSPC},
        {"EIO", EIO},
        {"EINTR", EINTR},
        {"EDQUOT", EDQUOT},
        {"EROFS", EROFS},
        {"EMFILE", EMFILE},
        {"ENAMETOOLONG", ENAMETOOLONG},
        {"EACCES", EACCES},
    };
    const char *text = getenv("FAULT"), *when = text ? strstr(text, ":when=") : NULL,
               *error = text ? strstr(text, "error=") : NULL;
    fault.ready = 1;
    if (!when)
        return;
    size_t n = strcspn(text, ":");
    memcpy(fault.call, text, n < sizeof fault.call ? n : sizeof fault.call - 1);
    fault.when = atoi(when + 6);
    fault.onward = strchr(when, '+') != NULL;
    for (size_t i = 0; error && i < sizeof errors / sizeof *errors; i++)
        if (!strncmp(error + 6, errors[i].name, strlen(errors[i].name)))
            fault.error = errors[i].number;
}

/* 1, with errno set, when this call must fail. */
static int faulty(const char *call)
{
    if (!fault.ready)
        read_fault();
    if (strcmp(call, fault.call))
        return 0;
    int n = atomic_fetch_add(&fault.count, 1) + 1;
    if (n < fault.when || (n > fault.when && !fault.onward))
        return 0;
    const char *log = getenv("FAULT_LOG");
    int fd = log ? (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;
    if (fd >= 0) {
        syscall(SYS_write, fd, "INJECTED\n", 9);
        syscall(SYS_close, fd);
    }
    if (!fault.error)
        kill(getpid(), SIGKILL);
    errno = fault.error;
    return 1;
}

static int full(void)
{
    if (fail_after < 0 || fail_after-- > 0)
        return 0;
    fail_after = 0;
    errno = fail_with;
    return 1;
}

/* Whether the file is part of a checkpoint on the disk, or with in_memory of a copy in memory; its name holds
 * `part`. */
static int is_of_save(int fd, int in_memory, const char *part)
{
    char link[32], path[512] = "";
    const char *memory = getenv("GRIDIRON_MEMORY");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    return readlink(link, path, sizeof path - 1) > 0 && strstr(path, "/checkpoints/") && strstr(path, part) &&
           in_memory == (memory && !strncmp(path, memory, strlen(memory)));
}

/* Whether fd is of the save that held_saves names. An earlier one that is being written goes on, and the
 * run comes to that save. */
static int is_held(int fd)
{
    char name[32];
    snprintf(name, sizeof name, "/iter_%07d", atomic_load(&held_saves));
    return atomic_load(&held_saves) && is_of_save(fd, 0, name);
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t at)
{
    static atomic_int calls;
    if (faulty("pwrite64") || full())
        return -1;
    if (atomic_load(&full_memory) && is_of_save(fd, 1, "")) {
        errno = ENOSPC;
        return -1;
    }
    while (atomic_load(&held_writes) || is_held(fd))
        usleep(1000);
    usleep((useconds_t)(1000 * atomic_load(&slow_writes)));
    if (short_writes && atomic_fetch_add(&calls, 1) % 3 == 0) {
        errno = EINTR;
        return -1;
    }
    if (at > 0 && n && atomic_load(&flips) > 0 && atomic_fetch_sub(&sound, 1) <= 0) {
        char *copy = malloc(n);
        memcpy(copy, p, n);
        copy[n / 2] ^= 4;
        atomic_fetch_sub(&flips, 1);
        ssize_t done = syscall(SYS_pwrite64, fd, copy, n, at);
        free(copy);
        return done;
    }
    return syscall(SYS_pwrite64, fd, p, short_writes && n > 7 ? n / 2 : n, at);
}

ssize_t pread(int fd, void *p, size_t n, off_t at)
{
    if (faulty("pread64"))
        return -1;
    while (atomic_load(&held_reads))
        usleep(1000);
    return syscall(SYS_pread64, fd, p, n, at);
}

int posix_fadvise(int fd, off_t at, off_t n, int advice)
{
    atomic_fetch_add(&drops, advice == POSIX_FADV_DONTNEED && !at && !n);
    return syscall(SYS_fadvise64, fd, at, n, advice) < 0 ? errno : 0;
}

int fsync(int fd)
{
    usleep((useconds_t)(1000 * atomic_exchange(&slow_flush, 0)));
    return faulty("fsync") || full() ? -1 : (int)syscall(SYS_fsync, fd);
}
#ifdef __SANITIZE_THREAD__          /* which must hear of it, or mixes up the files of one number */
int __interceptor_close(int fd);
int close(int fd) { return faulty("close") ? -1 : __interceptor_close(fd); }
#else
int close(int fd) { return faulty("close") ? -1 : (int)syscall(SYS_close, fd); }
#endif
int ftruncate(int fd, off_t n) { return faulty("ftruncate") ? -1 : (int)syscall(SYS_ftruncate, fd, n); }
/* a read is tried again after some seconds (file.h), which take no time where all fail */
int nanosleep(const struct timespec *t, struct timespec *left)
{
    return fault.onward ? 0 : clock_nanosleep(CLOCK_REALTIME, 0, t, left) ? -1 : 0;
}
int flock(int fd, int op) { return faulty("flock") ? -1 : (int)syscall(SYS_flock, fd, op); }
int unlinkat(int dir, const char *name, int flags)
{
    return faulty("unlinkat") ? -1 : (int)syscall(SYS_unlinkat, dir, name, flags);
}

/* A call that changes a name. */
static int faulty_name(const char *call)
{
    usleep((useconds_t)(1000 * slow_names));
    return faulty(call);
}
int unlink(const char *name)
{
    return faulty_name("unlink") ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, name, 0);
}
int rename(const char *a, const char *b)
{
    return faulty_name("rename") ? -1 : (int)syscall(SYS_renameat2, AT_FDCWD, a, AT_FDCWD, b, 0);
}

ssize_t write(int fd, const void *p, size_t n) { return faulty("write") ? -1 : syscall(SYS_write, fd, p, n); }
int mkdirat(int dir, const char *name, mode_t mode)
{
    return faulty("mkdirat") ? -1 : (int)syscall(SYS_mkdirat, dir, name, mode);
}
int renameat2(int from, const char *a, int to, const char *b, unsigned flags)
{
    if (plain_names && flags)
        return errno = EINVAL, -1;
    return faulty("renameat2") ? -1 : (int)syscall(SYS_renameat2, from, a, to, b, flags);
}
int renameat(int from, const char *a, int to, const char *b)
{
    if (!strcmp(b, "report.html"))
        usleep((useconds_t)(1000 * slow_report));
    return faulty("renameat") ? -1 : (int)syscall(SYS_renameat2, from, a, to, b, 0);
}

static int open_with_mode(int dir, const char *name, int flags, va_list ap)
{
    mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;
    return faulty("openat") ? -1 : (int)syscall(SYS_openat, dir, name, flags, mode);
}

int openat(int dir, const char *name, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    int fd = open_with_mode(dir, name, flags, ap);
    va_end(ap);
    return fd;
}

int open(const char *name, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    int fd = open_with_mode(AT_FDCWD, name, flags, ap);
    va_end(ap);
    return fd;
}
#endif
