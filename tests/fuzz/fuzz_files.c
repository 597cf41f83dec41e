/* fuzz_files -- the files of a run lie in memory: stands in for the system calls that read files, by the
 * linker's --wrap. Outside of a run each call goes to the system. */
#define _GNU_SOURCE
#include "fuzz.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILES = 16, STREAMS = 16, FIRST = 100000, FOLDER = FIRST + FILES }; /* FIRST: of our descriptors */

static struct File {
    char name[64];
    const uint8_t *p;
    size_t n, read;
} file[FILES];
static int files;
static FILE *stream[STREAMS]; /* open ones; closed after die() */
static void *map[STREAMS];    /* what mmap gave out */

void fuzz_file(const char *name, const void *p, size_t n)
{
    if (files == FILES || strlen(name) >= sizeof file->name)
        fuzz_found("more than %d files, or a long name", FILES);
    struct File *f = &file[files++];
    *f = (struct File){.p = p, .n = n};
    strcpy(f->name, name);
}

/* The number of a file, by the last component of its path; -1: there is none. */
static int find(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    for (int i = 0; i < files; i++)
        if (!strcmp(file[i].name, name))
            return i;
    errno = ENOENT;
    return -1;
}

static struct File *of_fd(int fd)
{
    return fd >= FIRST && fd < FIRST + files ? &file[fd - FIRST] : NULL;
}

static void describe(struct stat *s, int i)
{
    *s = (struct stat){
        .st_mode = S_IFREG | 0644, .st_nlink = 1, .st_ino = (ino_t)i + 1, .st_size = (off_t)file[i].n};
}

/* ---- opening */

static int open_here(const char *path, int flags)
{
    int i;
    if (flags & O_DIRECTORY)
        return FOLDER;
    if ((flags & O_ACCMODE) != O_RDONLY) {
        errno = EROFS;
        return -1;
    }
    if ((i = find(path)) < 0)
        return -1;
    file[i].read = 0;
    return FIRST + i;
}

int __real_openat(int dir, const char *path, int flags, ...);
int __wrap_openat(int dir, const char *path, int flags, ...);
int __wrap_openat(int dir, const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    unsigned mode = flags & O_CREAT ? va_arg(ap, unsigned) : 0;
    va_end(ap);
    return fuzz_running ? open_here(path, flags) : __real_openat(dir, path, flags, mode);
}

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    unsigned mode = flags & O_CREAT ? va_arg(ap, unsigned) : 0;
    va_end(ap);
    return fuzz_running ? open_here(path, flags) : __real_open(path, flags, mode);
}

int __real_close(int fd);
int __wrap_close(int fd);
int __wrap_close(int fd)
{
    return fd >= FIRST ? 0 : __real_close(fd);
}

/* ---- what is known of a file */

int __real_fstat(int fd, struct stat *s);
int __wrap_fstat(int fd, struct stat *s);
int __wrap_fstat(int fd, struct stat *s)
{
    if (fd == FOLDER)
        *s = (struct stat){.st_mode = S_IFDIR | 0755, .st_nlink = 1, .st_ino = FOLDER};
    else if (of_fd(fd))
        describe(s, fd - FIRST);
    else
        return __real_fstat(fd, s);
    return 0;
}

static int stat_here(const char *path, struct stat *s)
{
    int i = find(path);
    if (i >= 0)
        describe(s, i);
    return i < 0 ? -1 : 0;
}

int __real_stat(const char *path, struct stat *s);
int __wrap_stat(const char *path, struct stat *s);
int __wrap_stat(const char *path, struct stat *s)
{
    return fuzz_running ? stat_here(path, s) : __real_stat(path, s);
}

int __real_fstatat(int dir, const char *path, struct stat *s, int flags);
int __wrap_fstatat(int dir, const char *path, struct stat *s, int flags);
int __wrap_fstatat(int dir, const char *path, struct stat *s, int flags)
{
    return fuzz_running ? stat_here(path, s) : __real_fstatat(dir, path, s, flags);
}

int __real_access(const char *path, int mode);
int __wrap_access(const char *path, int mode);
int __wrap_access(const char *path, int mode)
{
    return !fuzz_running ? __real_access(path, mode) : find(path) < 0 ? -1 : 0;
}

int __real_faccessat(int dir, const char *path, int mode, int flags);
int __wrap_faccessat(int dir, const char *path, int mode, int flags);
int __wrap_faccessat(int dir, const char *path, int mode, int flags)
{
    return !fuzz_running ? __real_faccessat(dir, path, mode, flags) : find(path) < 0 ? -1 : 0;
}

/* ---- reading */

static ssize_t read_here(const struct File *f, void *p, size_t n, size_t at)
{
    size_t left = at < f->n ? f->n - at : 0;
    n = n < left ? n : left;
    if (n)
        memcpy(p, f->p + at, n);
    return (ssize_t)n;
}

ssize_t __real_pread(int fd, void *p, size_t n, off_t at);
ssize_t __wrap_pread(int fd, void *p, size_t n, off_t at);
ssize_t __wrap_pread(int fd, void *p, size_t n, off_t at)
{
    if (!of_fd(fd))
        return __real_pread(fd, p, n, at);
    if (at < 0)
        fuzz_found("reads at byte %ld", (long)at);
    return read_here(of_fd(fd), p, n, (size_t)at);
}

ssize_t __real_read(int fd, void *p, size_t n);
ssize_t __wrap_read(int fd, void *p, size_t n);
ssize_t __wrap_read(int fd, void *p, size_t n)
{
    struct File *f = of_fd(fd);
    if (!f)
        return __real_read(fd, p, n);
    ssize_t got = read_here(f, p, n, f->read);
    f->read += (size_t)got;
    return got;
}

void *__real_mmap(void *at, size_t n, int protection, int flags, int fd, off_t from);
void *__wrap_mmap(void *at, size_t n, int protection, int flags, int fd, off_t from);
void *__wrap_mmap(void *at, size_t n, int protection, int flags, int fd, off_t from)
{
    struct File *f = of_fd(fd);
    if (!f)
        return __real_mmap(at, n, protection, flags, fd, from);
    for (int i = 0; i < STREAMS && n == f->n && !from; i++)
        if (!map[i]) /* a copy of the very size: reads beyond it are found */
            return map[i] = memcpy(xcalloc(n, 1), f->p, n);
    fuzz_found("maps %zu bytes of a file of %zu", n, f->n);
}

int __real_munmap(void *p, size_t n);
int __wrap_munmap(void *p, size_t n);
int __wrap_munmap(void *p, size_t n)
{
    for (int i = 0; i < STREAMS; i++)
        if (p && map[i] == p) {
            free(p);
            map[i] = NULL;
            return 0;
        }
    return __real_munmap(p, n);
}

/* ---- streams */

static FILE *keep(FILE *f)
{
    for (int i = 0; f && i < STREAMS; i++)
        if (!stream[i])
            return stream[i] = f;
    return f;
}

FILE *__real_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode)
{
    if (!fuzz_running || !strncmp(path, "/proc/", 6))
        return __real_fopen(path, mode);
    int i = *mode == 'r' ? find(path) : -1;
    return i < 0 ? NULL : keep(fmemopen((void *)(uintptr_t)file[i].p, file[i].n, "r"));
}

FILE *__real_open_memstream(char **text, size_t *n);
FILE *__wrap_open_memstream(char **text, size_t *n);
FILE *__wrap_open_memstream(char **text, size_t *n)
{
    FILE *f = __real_open_memstream(text, n);
    return fuzz_running ? keep(f) : f;
}

int __real_fclose(FILE *f);
int __wrap_fclose(FILE *f);
int __wrap_fclose(FILE *f)
{
    for (int i = 0; i < STREAMS; i++)
        if (stream[i] == f)
            stream[i] = NULL;
    return __real_fclose(f);
}

FILE *__real_fdopen(int fd, const char *mode);
FILE *__wrap_fdopen(int fd, const char *mode);
FILE *__wrap_fdopen(int fd, const char *mode)
{
    struct File *f = of_fd(fd);
    return f ? keep(fmemopen((void *)(uintptr_t)f->p, f->n, "r")) : __real_fdopen(fd, mode);
}

static ssize_t throw_away(void *ctx, const char *p, size_t n)
{
    (void)ctx, (void)p;
    return (ssize_t)n;
}

FILE *fuzz_nowhere(void)
{
    static FILE *f;
    if (!f)
        f = fopencookie(NULL, "w", (cookie_io_functions_t){.write = throw_away});
    return f;
}

/* ---- the folder of all files */

static int listed;

DIR *__real_opendir(const char *path);
DIR *__wrap_opendir(const char *path);
DIR *__wrap_opendir(const char *path)
{
    listed = 0;
    return fuzz_running ? (DIR *)file : __real_opendir(path);
}

struct dirent *__real_readdir(DIR *d);
struct dirent *__wrap_readdir(DIR *d);
struct dirent *__wrap_readdir(DIR *d)
{
    static struct dirent e;
    if (d != (DIR *)file)
        return __real_readdir(d);
    if (listed == files)
        return NULL;
    strcpy(e.d_name, file[listed++].name);
    return &e;
}

int __real_closedir(DIR *d);
int __wrap_closedir(DIR *d);
int __wrap_closedir(DIR *d)
{
    return d == (DIR *)file ? 0 : __real_closedir(d);
}

void fuzz_files_close(void)
{
    for (int i = 0; i < STREAMS; i++) {
        if (stream[i])
            __real_fclose(stream[i]);
        free(map[i]);
        stream[i] = NULL;
        map[i] = NULL;
    }
    files = 0;
}
