/* tuned -- the file in which a run keeps its device's algorithms (kernels/algorithms.h), JSON:
 *
 *   {"format": "gridiron algorithms 1",
 *    "algorithms": {KEY: {"words": [16 hexadecimal digits, 8 times], "us": NUMBER}, ...}}
 *
 * Ranks and runs may share one: what others have added meanwhile stays. */
#ifndef TUNED_H
#define TUNED_H
#include "algorithms.h"

/* Adds what `path` holds. No file: nothing. One that is broken, or something else: a warning, and nothing. */
void tuned_read(Algorithms *a, const char *path);
/* Adds `a` to the file. One that tuned_read would not read stays as it is; one that cannot be written is a
 * warning. */
void tuned_write(const Algorithms *a, const char *path);
#endif
