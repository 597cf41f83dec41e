/* dataset -- which tokens make up sample k of a run: Megatron-LM's GPTDataset and BlendedDataset, to the bit.
 *
 * A Dataset is one corpus, one split, `seq` tokens a sample. Three arrays say everything:
 *
 *   document  [documents]  the window's sequences, once an epoch, shuffled; a text of epochs * tokens tokens
 *   sample    [samples+1]  where sample s of that text starts: (index into document, token in that sequence).
 *                          Sample s is seq + 1 tokens; it shares its last one with the first of sample s + 1
 *   shuffle   [samples]    the k-th sample of the run is shuffle[k]
 *
 * When the last epoch is needed for less than 80% of its samples it is shuffled apart, after the others.
 * All draws come from one MT19937 stream, numpy.random.RandomState(seed).
 *
 * A Blend takes its k-th sample from the corpus that lags furthest behind its share.
 *
 * Sources: Megatron-LM core/datasets (gpt_dataset, blended_dataset, helpers.cpp); the rules are restated in
 * data/README.md. Memory: 4 bytes a sequence, 4 a sequence-epoch, 12 a sample; blends 6 more a sample. */
#ifndef DATASET_H
#define DATASET_H
#include "corpus.h"

typedef struct {
    const Corpus *corpus;
    Window window;
    int64_t seq;                /* tokens of a sample, the shared one not counted */
    int64_t wanted;             /* samples asked for; < 0: one epoch */
    int64_t epochs;             /* passes over the window that `wanted` samples need */
    int separate;               /* the last epoch is shuffled apart */
    int64_t documents, samples;
    uint32_t *document;         /* [documents] rows of the corpus: window.first + index into the window */
    int32_t *sample;            /* [samples + 1][2] */
    uint32_t *shuffle;          /* [samples] */
} Dataset;

/* Where token t of the k-th sample lies: row of the corpus's table (piece of a stream), token in it. */
void dataset_where(const Dataset *d, int64_t k, int64_t t, int64_t *sequence, int64_t *offset);

/* "969, 30, 1" -> edges[4] = 0, .969, .999, 1: numbers >= 0 with commas, missing ones are 0. 0 and *why. */
int split_parse(const char *text, double edges[4], char **why);

typedef struct {
    int corpora;
    Corpus **corpus;
    Dataset *set;               /* [corpora] */
    int64_t samples;
    int16_t *which;             /* [samples] corpus of sample k; NULL: there is one, and nth is k */
    uint32_t *nth;              /* [samples] its number in that corpus's order */
} Blend;

/* data_path as the config has it: one spec; specs (each corpus used once, in proportion to its size, except
 * that streams become one); or weights > 0 and specs in turn. split is 0 train, 1 validation, 2 test;
 * at least `wanted` samples of `seq` tokens, wanted < 0: as many as one epoch gives. 0 and *why: a corpus has
 * fewer tokens than one sample needs, an index too large for its integers, a failing read. */
int blend_open(Blend *b, int n, const char *const *path, const char *split, int which, int64_t wanted,
               int64_t seq, uint32_t seed, char **why);
void blend_close(Blend *b);

/* Text of sample k, out[seq + 1]; *set its corpus's number, may be NULL. 0 and *why on a failing
 * read. Thread-safe. */
int blend_read(const Blend *b, int64_t k, int32_t *out, int *set, char **why);

/* The most passes over any of its corpora. */
int64_t blend_epochs(const Blend *b);
#endif
