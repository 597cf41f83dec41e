/* loader -- microbatches of one data-parallel rank, read ahead by a thread.
 *
 * The global order is sequential: sample number s of the run is the s-th sample of the blend
 * (dataset.h). A run is therefore resumed by its number of consumed samples, in any layout. With n =
 * micro_batch_size * dp_size, microbatch m of a step that starts at `consumed` is the samples [consumed
 * + m * n, consumed + (m + 1) * n). Data rank r has the r-th of dp_size equal parts of them (Megatron's
 * "single" sampler).
 *
 * Tokens are checked against the vocabulary: those of each microbatch, and at open all tokens of a
 * corpus below 1 GiB. The files may not change after open. Every failure dies with EXIT_DATA, in the
 * thread that calls loader_open or loader_get. */
#ifndef LOADER_H
#define LOADER_H
#include "config.h"
#include "dataset.h"
#include "device.h"

/* What a rank has of a microbatch: B samples, and of each the positions in `runs`, S of them, row after
 * row. Everything that depends on a position reads it from here. */
typedef struct {
    int64_t batch, seq;         /* B samples on this rank; P = seq_length positions of a whole sample */
    Positions runs;             /* positions of the rows of a sample; runs.stride = S */
    int32_t *tokens, *labels;   /* [B * S] token ids; labels[i] follows tokens[i] in the text */
    int32_t *position;          /* [B * S] the position; with reset_position_ids 0 again at each document */
    int32_t *doc_start;         /* [B * P] of all positions of a sample, 0 .. P-1: where in the sample the
                                   token's document starts; NULL: no reset_attention_mask. End-of-document
                                   ends its document */
    float *loss_mask;           /* [B * S] 1; 0: end-of-document with eod_mask_loss */
    int64_t *sample;            /* [B] number of each sample in the run's global order */
} Batch;

typedef enum { SPLIT_TRAIN, SPLIT_VALID, SPLIT_TEST } Split;
typedef struct Loader Loader;

/* Opens a split with at least `samples` samples; -1: those of one epoch. If the configuration has
 * corpora for the splits (valid_data_path, ...), the split's own is read whole, else its share of
 * data_path. An empty list of corpora dies. runs: the positions of each sample that this rank gets; only
 * their tokens are read, but all of a sample where documents are told apart (reset_attention_mask,
 * reset_position_ids). with: who shares the order of the samples; the maker alone reads and checks whole
 * corpora, for all of them. */
Loader *loader_open(const Config *cfg, Split split, int64_t samples, int dp_rank, int dp_size,
                    const Positions *runs, const Sharers *with);
void loader_close(Loader *l);

/* Returns this rank's n / dp_size samples of the samples [first, first + n) of the global order.
 *
 * n must be a multiple of dp_size, first + n at most loader_samples. The thread reads [first + n, first
 * + 2n) ahead; other samples are read when they are asked for. The call blocks until its samples are
 * read. The batch is valid until the next call. */
const Batch *loader_get(Loader *l, int64_t first, int64_t n);

/* Copies the seq_length + 1 tokens of sample k. Returns 0 and *why, from malloc. */
int loader_copy(const Loader *l, int64_t k, int32_t *tokens, char **why);

/* Returns how many tokens of samples [first, first + n) have a loss: 1 in loss_mask. Reads them anew. */
int64_t loader_counted(const Loader *l, int64_t first, int64_t n);

/* Gives the samples [first, first + n) these tokens [n][seq_length + 1], which must outlive the loader, in
 * place of the corpus's. Call it before the first loader_get. Returns whether the corpus has others. */
int loader_give(Loader *l, int64_t first, int64_t n, const int32_t *tokens);

double loader_wait_seconds(const Loader *l);   /* seconds blocked in loader_get so far */
int64_t loader_samples(const Loader *l);       /* samples asked for, and the rest of the last epoch */
int64_t loader_epochs(const Loader *l);        /* passes over the corpus; blend: the most used one */
int64_t loader_tokens(const Loader *l);        /* tokens of one pass over this split of all corpora */

/* Returns a hash, at least 0, of the passes over each corpus that the samples asked for need: with others the
 * same corpora give their samples in another order. */
int64_t loader_passes(const Loader *l);

/* Returns the name of a corpus that has no end-of-document among its first ENDS_WITHIN tokens although
 * documents are told apart (reset_attention_mask, reset_position_ids, eod_mask_loss); NULL: there is none. */
enum { ENDS_WITHIN = 1 << 20 };
const char *loader_endless(const Loader *l);

/* Returns a hash, at least 0, of the corpora's counts and of their first and last tokens, to compare between
 * hosts, and with that of the run before a resume. */
int64_t loader_fingerprint(const Loader *l);
#endif
