/* checkpoint -- the whole state of a run on disk, readable by any layout.
 *
 * RUN/checkpoints/iter_0000100/ holds manifest.json and safetensors shards: model-RRRRR.safetensors with the
 * weights in their storage type, optim-RRRRR.safetensors with masters and moments; RRRRR is the rank that
 * wrote. The manifest names every global tensor, the boxes of it that lie in each shard, a hash of every
 * HASH_BLOCK bytes, and the caller's state (step, consumed samples, configuration ...). One manifest commits
 * all: it is written last, ends in its own hash, and only then the folder gets its name.
 * RUN/checkpoints/latest is a hint for people; nothing here reads it.
 *
 * A save, on all ranks: iter_X.tmp; each rank writes its shards, flushes; a barrier; rank 0 writes the
 * manifest, flushes it and the folder, renames it to iter_X, flushes the parent. Only then it counts.
 * Deleting renames to iter_X.trash first. What a killed save or deletion leaves behind (*.tmp, *.trash) goes
 * with the next save. A write or flush that fails discards the whole attempt and writes it again to new
 * files, once; a save that fails twice is a warning, and the run goes on until `max_failed_saves` in a row.
 * The same state gives the same bytes: no times, no host names inside. After Pillai et al. 2014, "All File
 * Systems Are Not Created Equal", OSDI. */
#ifndef CHECKPOINT_H
#define CHECKPOINT_H
#include "comm.h"
#include "config.h"
#include "params.h"
#include <jansson.h>

/* A box of a global tensor in this rank's memory. Names are legal file names (file_name_ok). */
typedef struct {
    const char *name; /* a parameter's, or that + ".master", ".exp_avg", ".exp_avg_sq", FP8_SCALES */
    Dtype type;
    int ndim;                       /* of the global tensor: 1 or 2 */
    int64_t shape[2];               /* global; a vector's shape[1] is not used */
    int64_t row0, col0, rows, cols; /* the box, in global indices; a vector is rows x 1 */
    void *data;                     /* element (r, c) of the box at r*ld + c */
    int64_t ld;
    Device *dev;                    /* whose memory data is; NULL: the host's */
    int optim;                      /* in the optimizer's shard; weights_only leaves all but masters */
    int may_lack;                   /* what a checkpoint without it leaves as it is */
} TensorPiece;

/* Pieces of the parameter table: weights, masters where they are not the weights themselves, and moments;
 * what params_layout has been asked for. SAVE: over all ranks each element once, spread over the
 * data-parallel ranks in every layout. LOAD: all that this rank holds. GRADIENT: like SAVE, of the gradients,
 * whose sums must be done. On the heap; the Params must outlive them. */
typedef enum { PIECES_SAVE, PIECES_LOAD, PIECES_GRADIENT } PieceUse;
TensorPiece *pieces_open(const Params *p, PieceUse use, int *n);
void pieces_add(TensorPiece **list, int *n, TensorPiece p);
void pieces_close(TensorPiece *p, int n);

/* Pieces of a model's delayed FP8 scales, added to a list. Of each linear layer that multiplies in FP8 the
 * tensor WEIGHT.fp8_scales, F32 [3, 1 + FP8_HISTORY]: input, weight, gradient of the output; each the scale,
 * and the largest magnitudes of the steps before, the last one first: of whole tensors, whatever the layout.
 * SAVE: over all ranks each once. loaded: after a load, which of them were there. */
#define FP8_SCALES ".fp8_scales"
struct Model;
void fp8_scales_pieces(const struct Model *m, PieceUse use, TensorPiece **list, int *n);
void fp8_scales_loaded(struct Model *m);

typedef struct Saver Saver;

/* p[0..n): what this rank writes; over all ranks each element of each tensor once. Takes the snapshot's bytes
 * from `host` (host_arena) when cfg->async_save, and returns NULL when it is counting. run_dir must be this
 * job's alone (run_directory.h). Touches no file. */
Saver *saver_open(const Config *cfg, const char *run_dir, Comm *all, const TensorPiece *p, int n,
                  Arena *host);

/* Makes and opens run_dir/checkpoints: once, before the first save. Collective; dies with EXIT_RESOURCE. */
void saver_start(Saver *s);

/* Saves. state is copied and kept whole in the manifest; it must say everything that a resume needs and
 * holds, as "config", the text of config_write. With async_save it returns once the copy of the
 * pieces to the snapshot is asked for; one save can be under way, a second one waits for it with a warning.
 * Collective. */
void saver_save(Saver *s, int64_t iteration, const json_t *state);

/* Moves a save under way along without waiting, and reports how it ended: call it once a step. Collective. */
void saver_poll(Saver *s);

/* Waits until nothing is under way. Returns the iteration of the newest checkpoint that this saver has
 * committed, -1 when there is none. Collective. */
int64_t saver_wait(Saver *s);

/* The same without waiting: what saver_poll, _save and _wait have heard of. Not collective. */
int64_t saver_committed(const Saver *s);
/* Why the last save was given up, on the rank that could not write; NULL elsewhere, and when it was not. */
const char *saver_lost(const Saver *s);
void saver_close(Saver *s);         /* waits first */

/* 1 if path, a checkpoint or a run directory, holds a checkpoint with a manifest, of whatever run. Not
 * collective. */
int checkpoint_exists(const char *path);

/* Fills the pieces by name from a checkpoint directory, or from the newest whole checkpoint of a run
 * directory, its own run's (run_directory.h): checkpoints of other runs are passed over with a warning, and
 * those that a run still going on deletes under way are looked for again. Any boxes, whatever layout wrote
 * them; only the blocks that hold them are read, each against its hash. Types are converted, rounding to
 * nearest even. A piece NAME.master that the file lacks is read from NAME; a weight of a wider type than the
 * stored one is read from NAME.master where there is one, so that a change of params_dtype loses nothing.
 * With weights_only, and for a checkpoint that says so itself
 * ("weights_only" in its state), moments are left as they are. Returns the state (json_decref it);
 * *found_dir, when not NULL, the directory (free it). Collective over all.
 *
 * Dies with EXIT_CHECKPOINT: no checkpoint; a file missing, foreign, cut short or damaged (named, with the
 * tensor), unless cfg->on_corrupt is `previous` and an older one loads; a model of another shape, with every
 * key and tensor that differs. Weights alone under another rotary_base, rotary_percent, norm_epsilon or
 * window_size are a warning. */
json_t *checkpoint_load(const char *path, const Config *cfg, Comm *all, const TensorPiece *p, int n,
                        int weights_only, char **found_dir);
#endif
