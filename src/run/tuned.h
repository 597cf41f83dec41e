/* tuned -- the file in which a run keeps its device's algorithms (kernels/algorithms.h), JSON:
 *
 *   {"format": "gridiron algorithms 1",
 *    "algorithms": {KEY: {"words": [16 hexadecimal digits, 8 times], "us": NUMBER}, ...}}
 *
 * Ranks and runs may share a file: a write keeps the entries that others have added. */
#ifndef TUNED_H
#define TUNED_H
#include "algorithms.h"

/* Adds the algorithms in the file `path` to a. A missing file adds nothing; a broken or foreign file
 * adds nothing, with a warning. */
void tuned_read(Algorithms *a, const char *path);
/* Adds the algorithms of a to the file. A broken or foreign file stays as it is. A file that cannot be
 * written is a warning. */
void tuned_write(const Algorithms *a, const char *path);
#endif
