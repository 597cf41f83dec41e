/* tuned -- the file in which a run keeps its device's algorithms (kernels/algorithms.h), JSON:
 *
 *   {"format": "gridiron algorithms 1",
 *    "algorithms": {KEY: {"words": [16 hexadecimal digits, 8 times], "us": NUMBER}, ...}}
 *
 * Ranks and runs may share a file: a write keeps the entries that others have added. */
#ifndef TUNED_H
#define TUNED_H
#include "algorithms.h"
#include "file.h"

/* Adds the algorithms in the file `path` to a. A missing file adds nothing; a broken or foreign file
 * adds nothing, with a warning. */
void tuned_read(Algorithms *a, const char *path);
/* Adds those algorithms of the file to a whose key begins with `prefix`. Returns their number; -1: the file
 * cannot be read, or is no list of algorithms, with the reason in why. */
int64_t tuned_table(Algorithms *a, const char *path, const char *prefix, char why[WHY]);
/* Adds the algorithms of a to the file. A broken or foreign file stays as it is. A file that cannot be
 * written is a warning. */
void tuned_write(const Algorithms *a, const char *path);
#endif
