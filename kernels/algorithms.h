/* algorithms -- which of its library's algorithms a device has found best for a product: what a run keeps in
 * a file, so that the next one has the same numbers and spends no time on it. A key says all that a choice
 * depends on, the device and the library's version included; the words are the library's own and mean nothing
 * to any other. */
#ifndef ALGORITHMS_H
#define ALGORITHMS_H
#include <stddef.h>
#include <stdint.h>

enum { ALGORITHM_KEY = 256, ALGORITHM_WORDS = 8 };

typedef struct {
    char key[ALGORITHM_KEY];
    uint64_t words[ALGORITHM_WORDS];
    double us;                 /* what it took when it was chosen */
} Algorithm;

typedef struct { Algorithm *list; int64_t n, room; } Algorithms;

/* The algorithm of a key, or NULL. */
const Algorithm *algorithms_find(const Algorithms *a, const char *key);
/* Adds one, unless there is one of its key. Start-up only. */
void algorithms_add(Algorithms *a, const Algorithm *one);
void algorithms_close(Algorithms *a);
#endif
