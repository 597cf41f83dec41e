/* file -- reading and writing whole byte ranges and committing names, with one way to say what went wrong.
 *
 * Every call returns 1, or 0 with a reason in `why` (what was tried, on which name, the system's word for it,
 * and for a full disk the bytes that were wanted). Interrupted calls and short transfers are continued; a
 * failed fsync is never repeated, because the kernel may have dropped the pages it could not write. `dir` is
 * a directory's descriptor or AT_FDCWD. Nothing here dies: saving must be able to fail and the run to go
 * on. */
#ifndef FILE_H
#define FILE_H
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#define WHY 512

/* Formats into why and returns 0, for `return file_why(why, ...)`. errno, when not 0, is appended by
 * file_errno. */
int file_why(char why[WHY], const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int file_errno(char why[WHY], const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Opens a regular file for reading and gives its size. FIFOs, devices and folders are refused without
 * blocking; with nofollow so is a symbolic link. Returns the descriptor, -1 on failure. */
int file_open(int dir, const char *name, int nofollow, int64_t *size, char why[WHY]);

/* Opens a new file for writing, mode 0666 less the umask; one that exists is an error with exclusive, else
 * emptied. */
int file_create(int dir, const char *name, int exclusive, char why[WHY]);

/* Opens a folder. nofollow: the last component must not be a symbolic link. */
int file_open_dir(int dir, const char *name, int nofollow, char why[WHY]);

int file_read_at(int fd, const char *name, void *p, int64_t n, int64_t at, char why[WHY]);
int file_write_at(int fd, const char *name, const void *p, int64_t n, int64_t at, char why[WHY]);

/* Flushes to the disk and closes; the descriptor is gone either way. */
int file_sync_close(int fd, const char *name, char why[WHY]);

/* Flushes a folder: the names in it are durable afterwards. */
int file_sync_dir(int dir, const char *name, char why[WHY]);

/* Creates a folder and those above it, mode 0777 less the umask; one that exists is fine. */
int file_make_dirs(const char *path, char why[WHY]);

/* The whole of a small text, NUL-terminated, from malloc; at most `limit` bytes. NULL on failure. */
char *file_read_text(int dir, const char *name, int nofollow, int64_t limit, int64_t *size, char why[WHY]);

/* Writes a small file as NAME.tmp, flushes, renames it to NAME, flushes the folder: readers see the old or
 * the new. */
int file_replace(int dir, const char *name, const void *p, int64_t n, char why[WHY]);

/* Removes a folder and the files in it, one level deep: what a checkpoint is. Missing is fine. */
int file_remove_dir(int parent, const char *name, char why[WHY]);

/* 1 if a name from a file may be used as a name in a folder: [A-Za-z0-9_.-]+, not starting with '.', at most
 * 200 bytes. */
int file_name_ok(const char *name);
#endif
