/* algorithms -- which algorithm of a library was the fastest for a product. A run keeps the list in a
 * file, so that the next run computes the same bits and does not time anything again. */
#ifndef ALGORITHMS_H
#define ALGORITHMS_H
#include <stdint.h>

enum { ALGORITHM_KEY = 256, ALGORITHM_WORDS = 8 };

typedef struct {
    char key[ALGORITHM_KEY];            /* what the choice depends on: device, library, version, product */
    uint64_t words[ALGORITHM_WORDS];    /* the algorithm as the library describes it */
    double us;                          /* microseconds of the product when it was timed */
} Algorithm;

typedef struct { Algorithm *list; int64_t n; } Algorithms;

/* Returns the algorithm of a key, or NULL. */
const Algorithm *algorithms_find(const Algorithms *a, const char *key);
/* Adds one, unless the list has its key already. Start-up only. */
void algorithms_add(Algorithms *a, const Algorithm *one);
void algorithms_close(Algorithms *a);
#endif
