/* heap -- events in the order of their keys: the least key first. Private to this room. */
#ifndef HEAP_H
#define HEAP_H
#include <stdint.h>

enum { TICKS = 1 << 20, RANK_BITS = 13 };      /* ticks of the longest cost; bits of a key for a rank */

/* heap [*n]; there is room for one more. */
static inline void heap_push(uint64_t *heap, int *n, uint64_t key)
{
    int i = (*n)++;
    for (; i && heap[(i - 1) / 2] > key; i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = key;
}

/* Takes the least key out of a heap that is not empty. */
static inline uint64_t heap_pop(uint64_t *heap, int *n)
{
    uint64_t top = heap[0], key = heap[--*n];
    int i = 0;
    for (int c; (c = 2 * i + 1) < *n; i = c) {
        c += c + 1 < *n && heap[c + 1] < heap[c];
        if (heap[c] >= key)
            break;
        heap[i] = heap[c];
    }
    heap[i] = key;
    return top;
}
#endif
