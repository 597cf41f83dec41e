/* hash -- hashes of bytes, so that a change of any bit of them is seen */
#include "isa.h"

#define BLOCK 32768 /* words of a work item */

typedef struct {
    uint64_t *sum;
    const char *x;
    int64_t bytes;
} HashJob;

/* The hash of words [from, from + n) of an array, which starts at x; the last word may be short. */
static uint64_t hash_words(const char *x, int64_t bytes, int64_t from, int64_t n)
{
    uint64_t sum = 0, w;
    int64_t whole = bytes / 8 - from < n ? bytes / 8 - from : n;
    for (int64_t k = from; k < from + whole; k++) {
        memcpy(&w, x + 8 * k, 8);
        sum += HASH_WORD(k, w);
    }
    if (whole < n) {
        w = 0;
        memcpy(&w, x + 8 * (from + whole), (size_t)(bytes % 8));
        sum += HASH_WORD(from + whole, w);
    }
    return sum;
}

static void hash_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const HashJob *j = ctx;
    int64_t from = item * BLOCK, left = (j->bytes + 7) / 8 - from;
    __atomic_fetch_add(j->sum, hash_words(j->x, j->bytes, from, left < BLOCK ? left : BLOCK),
                       __ATOMIC_RELAXED);
}

void FN(cpu_hash)(Device *d, const Hashed *list, int64_t count)
{
    for (const Hashed *h = list; h < list + count; h++) {
        HashJob j = {h->sum, h->x, h->bytes};
        pool_run(d->pool, hash_item, &j, ((h->bytes + 7) / 8 + BLOCK - 1) / BLOCK);
    }
}
