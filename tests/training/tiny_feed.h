/* tiny_feed -- microbatches of two sequences of 12 tokens of 61, for tests that run steps of a tiny model */
#ifndef TINY_FEED_H
#define TINY_FEED_H
#include "run.h"

/* The feed of a Run: tokens, labels and mask follow from the number of the microbatch. */
static const Batch *feed(void *run, int mb)
{
    static int32_t tokens[24], labels[24], position[24];
    static float mask[24];
    static int64_t sample[2];
    const Run *r = run;
    for (int i = 0; i < 24; i++) {
        tokens[i] = (i * 17 + 5 * mb) % 61;
        labels[i] = (i * 23 + 7 * mb) % 61;
        position[i] = i % 12;
        mask[i] = i % 5 != 0;
    }
    sample[0] = 2 * mb, sample[1] = 2 * mb + 1;
    static Batch batch;
    batch = (Batch){2, 12, context_own(&r->model.now.context), tokens, labels, position, NULL, mask, sample};
    return &batch;
}
#endif
