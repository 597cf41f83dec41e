/* dataset -- tokens of sample k of a run: equal to Megatron-LM's GPTDataset and BlendedDataset to the
 * bit.
 *
 * A Dataset is one split of one corpus in samples of `seq` tokens. It consists of three arrays:
 *
 *   document  [documents]  sequences of the window, each once an epoch, shuffled. In this order they
 *                          form one text of epochs * tokens tokens
 *   sample    [samples+1]  start of sample s in that text: index into document, token in that sequence.
 *                          Sample s has seq + 1 tokens; its last one is the first one of sample s + 1
 *   shuffle   [samples]    the k-th sample of the run is sample shuffle[k]
 *
 * If the run needs less than 80% of the last epoch's samples, that epoch is shuffled by itself and comes
 * last. All random numbers come from one MT19937 generator, numpy.random.RandomState(seed).
 *
 * A Blend takes its k-th sample from the corpus that lags furthest behind its share.
 *
 * Sources: Megatron-LM core/datasets (gpt_dataset, blended_dataset, helpers.cpp); data/README.md states
 * the rules. Memory: 4 bytes a sequence, 4 a sequence and epoch, 12 a sample; a Blend has 6 more a
 * sample. The ranks of a host share it (Sharers). */
#ifndef DATASET_H
#define DATASET_H
#include "corpus.h"

typedef struct {
    const Corpus *corpus;
    Window window;
    int64_t seq;                /* tokens of a sample, without the one it shares */
    int64_t wanted;             /* samples asked for; < 0: one epoch */
    int64_t epochs;             /* passes over the window that `wanted` samples need */
    int separate;               /* bool: the last epoch is shuffled by itself */
    int64_t documents, samples; /* lengths of the arrays */
    uint32_t *document;         /* [documents] rows of the corpus: window.first + index in window */
    int32_t *sample;            /* [samples + 1][2] index into document, token in that sequence */
    uint32_t *shuffle;          /* [samples] indices into sample */
} Dataset;

/* Finds token t of the k-th sample. *sequence: row of the corpus's table, or piece of a stream; *offset:
 * token in it. */
void dataset_where(const Dataset *d, int64_t k, int64_t t, int64_t *sequence, int64_t *offset);

/* Reads "969, 30, 1" as edges[4] = 0, .969, .999, 1: one to three numbers >= 0 with commas, missing ones
 * are 0. Returns 0 and *why if text is anything else. */
int split_parse(const char *text, double edges[4], char **why);

/* How the ranks of a host that open the same corpora share what one of them, the maker, works out of these.
 * All of them call in the same order. */
typedef struct {
    int maker;                                  /* bool */
    void *(*take)(void *ctx, size_t *bytes);    /* memory of the maker's *bytes, zeros, which it alone
                                                   writes; munmap gives it back */
    void (*ready)(void *ctx);                   /* returns when the maker has called it: all is written */
    void *ctx;
} Sharers;
extern const Sharers sharers_none;              /* a process by itself */

typedef struct {
    int corpora;
    Corpus **corpus;
    Dataset *set;               /* [corpora] */
    void *shared;               /* what the arrays lie in */
    size_t shared_bytes;
    int64_t samples;
    int16_t *which;             /* [samples] corpus of sample k; NULL: there is one, and nth[k] is k */
    uint32_t *nth;              /* [samples] number of sample k in the order of its corpus */
} Blend;

/* Opens the corpora of a run and orders their samples.
 *
 *   path    in   [n]  data_path: one spec; several specs, each corpus used once in proportion to its
 *                     size, streams joined to one; or weights > 0 and specs in turn
 *   split   in        shares of the splits, as split_parse reads them; NULL: all is the split's own
 *   which   in        split to open: 0 train, 1 validation, 2 test
 *   wanted  in        samples needed; < 0: those of one epoch
 *   seq     in        tokens of a sample
 *   with    in        who shares the arrays: the maker alone looks for what is wrong with a share or a
 *                     number of samples
 *   why     out       if 0 is returned: a corpus has fewer tokens than one sample, an index does not fit
 *                     its integers, a read has failed, or split or path is wrong */
int blend_open(Blend *b, int n, const char *const *path, const char *split, int which, int64_t wanted,
               int64_t seq, uint32_t seed, const Sharers *with, char **why);
void blend_close(Blend *b);

/* Reads tokens [from, from + n) of the seq + 1 tokens of sample k into out[n], and touches no others; *set:
 * index of its corpus (set may be NULL). Returns 0 and *why on a failing read. Thread-safe. */
int blend_read(const Blend *b, int64_t k, int64_t from, int64_t n, int32_t *out, int *set, char **why);

/* Returns a hash of what the number of samples needed does to their order: the epochs of each corpus, and
 * whether the last one is shuffled by itself. */
uint64_t blend_passes(const Blend *b);

/* Returns the epochs of the corpus that has most. */
int64_t blend_epochs(const Blend *b);
#endif
