/* unfinished -- files and folders that a command writes under names of their own until they are whole.
 *
 * When the command dies or a signal ends it, those that it has added are removed. The names have random
 * digits, so that what lies there under such a name is the command's own. SIGKILL leaves them. */
#ifndef UNFINISHED_H
#define UNFINISHED_H
#include <stdint.h>

/* The name of `path` until it is whole, PATH.DIGITS.tmp, from malloc.
 *   drawn  in  file_random() of one process: its ranks write one file */
char *unfinished_name(const char *path, uint64_t drawn);

/* Adds a file or an empty folder that is about to be made. A folder's files are added after it. */
void unfinished_add(const char *path);

/* From here on the signals that would end the command are ignored: names are about to change. */
void unfinished_commit(void);

/* All is whole and has its name, or is gone: what was added is forgotten, and signals are as they were. */
void unfinished_end(void);
#endif
