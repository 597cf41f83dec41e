/* file -- reads and writes byte ranges of files, and commits files under their names.
 *
 * Unless said otherwise a function returns 1, or 0 with a reason in `why`: what was tried, on which
 * name, the system's error, and for a full disk the bytes that were needed. Interrupted calls and short
 * transfers are continued. What cannot be opened for reading, or read, by EIO, ETIMEDOUT or their like is
 * tried again for 4 s, with a warning: the file system may be back by then. A failed fsync is never repeated,
 * because the kernel may have dropped the pages that it could not write. `dir` is a folder's descriptor or
 * AT_FDCWD. No function here dies: a save may fail and the run goes on. */
#ifndef FILE_H
#define FILE_H
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#define WHY 512

/* Both format a reason into why and return 0, for `return file_why(why, ...)`; file_errno appends
 * errno's text, and leaves errno as it is. */
int file_why(char why[WHY], const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int file_errno(char why[WHY], const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Lets this process keep as many files open as the system allows it (`ulimit -Hn`): corpora and checkpoints
 * of large jobs have more files than the 1,024 that a shell begins with. */
void file_limit_raise(void);

/* Opens a regular file for reading; *size: its bytes. A FIFO, a device or a folder is refused without
 * blocking; so is a symbolic link if nofollow is set. Returns the descriptor, or -1. */
int file_open(int dir, const char *name, int nofollow, int64_t *size, char why[WHY]);

/* The path of a file that is shipped with the program: `name` below the current directory, or below a folder
 * above the executable. Returns text from malloc; name itself where there is no such file. */
char *file_shipped(const char *name);

/* Creates a file for writing, mode 0666 less the umask. A file that exists is emptied, or refused if
 * exclusive is set. Returns the descriptor, or -1. */
int file_create(int dir, const char *name, int exclusive, char why[WHY]);

/* Creates a file for writing, mode 0666 less the umask, in place of what may lie under the name: a file that
 * a process has left, a link of somebody else. Returns the descriptor, or -1. */
int file_create_anew(int dir, const char *name, char why[WHY]);

/* Opens a file of a run directory to append to it, after emptying it if `empty` is set; makes it if need
 * be. Follows no symbolic link and waits for no reader of a FIFO. Returns the descriptor, or -1. */
int file_open_append(int dir, const char *name, int empty, char why[WHY]);

/* Opens a folder; if nofollow is set, name's last component must not be a symbolic link. Returns the
 * descriptor, or -1. */
int file_open_dir(int dir, const char *name, int nofollow, char why[WHY]);

/* Read or write n bytes at offset `at`; name is for messages. */
int file_read_at(int fd, const char *name, void *p, int64_t n, int64_t at, char why[WHY]);
int file_write_at(int fd, const char *name, const void *p, int64_t n, int64_t at, char why[WHY]);

/* Writes all n bytes where the file stands; returns 0, with errno set, when that fails. */
int file_append(int fd, const void *p, size_t n);

/* Flushes the file to the disk and closes it; fd is closed on failure too. */
int file_sync_close(int fd, const char *name, char why[WHY]);

/* Takes a flushed file out of the memory of this host, where the file system can: the next read comes from
 * the disk. */
void file_drop_cache(int dir, const char *name);

/* Flushes a folder to the disk: the names in it are durable afterwards. */
int file_sync_dir(int dir, const char *name, char why[WHY]);

/* Returns the folder that a path is in, on the heap: what stands before the last slash, or "/", or ".". */
char *file_parent(const char *path);
/* Creates a folder and the folders above it, mode 0777 less the umask. A folder that exists is no
 * error. */
int file_make_dirs(const char *path, char why[WHY]);

/* Reads a whole text of at most `limit` bytes; *size: its bytes. Returns it from malloc, NUL-terminated,
 * or NULL. */
char *file_read_text(int dir, const char *name, int nofollow, int64_t limit, int64_t *size, char why[WHY]);
/* The same of a text whose reader would take a byte 0 for its end: with one, that is the reason, and NULL. */
char *file_read_lines(const char *path, int64_t limit, char why[WHY]);
/* Where a table's text begins: behind the byte-order mark that spreadsheets write. */
char *file_behind_mark(char *text);

/* Writes p[n] to NAME.tmp, flushes it, renames it to NAME and flushes the folder: a reader sees the old
 * file or the new one, whole. */
int file_replace(int dir, const char *name, const void *p, int64_t n, char why[WHY]);
/* The same in the folder of that path. */
int file_replace_in(const char *folder, const char *name, const void *p, int64_t n, char why[WHY]);

/* Removes a folder and the files in it, one level deep, as a checkpoint is. A missing folder is no
 * error. */
int file_remove_dir(int parent, const char *name, char why[WHY]);

/* Draws 64 random bits, for a name that nobody else has. */
uint64_t file_random(void);

/* Returns 1 if a name that was read from a file is safe as a file name: [A-Za-z0-9_.-]+, not starting
 * with '.', at most 200 bytes. */
int file_name_ok(const char *name);
#endif
