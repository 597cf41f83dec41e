/* loader -- the microbatches of one data-parallel rank, read ahead by a thread of its own.
 *
 * The global order is sequential: sample number s of the run is the s-th sample of the blend (dataset.h), so
 * a run is resumed by the number of samples it has consumed, in any layout. Microbatch m of a step that
 * starts at `consumed` is the samples [consumed + m * n, consumed + (m + 1) * n) with n = micro_batch_size *
 * dp_size, and data rank r has the r-th of dp_size equal parts of them (Megatron's "single" sampler).
 *
 * The tokens are checked against the vocabulary: all of them at open in corpora under 1 GiB, those of each
 * microbatch always. The files must stay as they were at open. All failures die with EXIT_DATA, in the thread
 * that calls loader_open or loader_get. */
#ifndef LOADER_H
#define LOADER_H
#include "config.h"

typedef struct {
    int64_t batch, seq;         /* B samples of S = seq_length tokens */
    int32_t *tokens, *labels;   /* [B * S]; labels[i] follows tokens[i] in the text */
    int32_t *position;          /* [B * S] 0 .. S-1; with reset_position_ids from 0 again in each document */
    int32_t *doc_start;         /* [B * S] place in the sample (0 .. S-1) where this token's document starts;
                                   NULL unless reset_attention_mask. End-of-document ends its document */
    float *loss_mask;           /* [B * S] 1; with eod_mask_loss 0 where the token is end-of-document */
    int64_t *sample;            /* [B] sample number in the run's global order */
} Batch;

typedef enum { SPLIT_TRAIN, SPLIT_VALID, SPLIT_TEST } Split;
typedef struct Loader Loader;

/* The split of cfg's corpus as at least `samples` samples; -1: one epoch. The split's own corpus
 * (valid_data_path, ...) is taken whole, where the configuration has such; else its share of data_path. With
 * the list empty, dies. */
Loader *loader_open(const Config *cfg, Split split, int64_t samples, int dp_rank, int dp_size);
void loader_close(Loader *l);

/* This rank's part, n / dp_size samples, of the samples [first, first + n) of the global order; n must be a
 * multiple of dp_size, first + n at most loader_samples. Blocks only while the thread is behind: it expects
 * [first + n, first + 2n) next, and anything else is read when asked for. The memory stays as it is until the
 * next call. */
const Batch *loader_get(Loader *l, int64_t first, int64_t n);

double loader_wait_seconds(const Loader *l);   /* time blocked in loader_get so far */
int64_t loader_samples(const Loader *l);       /* those asked for, and what the last epoch has beyond them */
int64_t loader_epochs(const Loader *l);        /* passes over the corpus (the most-used one of a blend) */
int64_t loader_tokens(const Loader *l);        /* tokens of one pass over this split of all corpora */

/* A number that differs when hosts see different corpus bytes (sizes, counts, first and last tokens). */
uint64_t loader_fingerprint(const Loader *l);
#endif
