/* checkpoint -- the whole state of a run on disk, which any layout can load.
 *
 * RUN/checkpoints/iter_0000100/ holds manifest.json and safetensors shards: model-RRRRR.safetensors with
 * the weights in their storage type, optim-RRRRR.safetensors with masters and moments; RRRRR is the rank
 * that wrote. The manifest names every global tensor, the boxes of it that lie in each shard, a hash of
 * every HASH_BLOCK bytes, and the caller's state (step, consumed samples, configuration ...). One
 * manifest commits all: it is written last, ends in its own hash, and only then the folder gets its
 * name. RUN/checkpoints/latest is a hint for people; nothing here reads it.
 *
 * A save: the first rank makes iter_X.tmp; each writes and flushes its shards; a barrier; rank 0 writes the
 * manifest, flushes it and the folder, renames the folder to iter_X and flushes the parent. Only then
 * the checkpoint counts. A deletion renames to iter_X.trash first. The next start removes what a killed
 * save or deletion has left (*.tmp, *.trash). When a write or flush fails, the whole attempt is
 * discarded and written once more to new files. A save that fails twice is a warning, and the run goes
 * on until `max_failed_saves` in a row. With verify_saves each rank then reads its shards back from the
 * disk and compares every hash. A damaged checkpoint is renamed to iter_X.damaged and written once more.
 * Older ones are deleted only after a newer one has been verified. The same state gives the same bytes: no
 * times, no host names inside. After Pillai et al. 2014, "All File Systems Are Not Created Equal", OSDI. */
#ifndef CHECKPOINT_H
#define CHECKPOINT_H
#include "comm.h"
#include "config.h"
#include "params.h"
#include <jansson.h>

/* A box of a global tensor in this rank's memory. Names are legal file names (file_name_ok). */
typedef struct {
    const char *name;               /* PARAMETER, or that + .master, .exp_avg, .exp_avg_sq, .fp8_scales;
                                     * or expert_bias_name's */
    Dtype type;
    int ndim;                       /* of the global tensor: 1 or 2 */
    int64_t shape[2];               /* global; a vector's shape[1] is not used */
    int64_t row0, col0, rows, cols; /* the box in the global tensor; a vector is rows x 1 */
    void *data;                     /* element (r, c) of the box at r*ld + c */
    int64_t ld;
    int16_t *rest;                  /* masters in two halves (half.h): their remainders, and data has their
                                     * bf16 weights, both at r*ld + c; type is F32. NULL: data has the
                                     * elements */
    uint8_t *scale;                 /* moments with scales (moments.h): those of the blocks from data on;
                                     * data has numbers of `moment`, and `type` is one that holds their
                                     * values. NULL: data has the elements */
    MomentType moment;
    int second;                     /* bool: second moments */
    Device *dev;                    /* device whose memory data points to; NULL: host memory */
    int optim;                      /* bool: in the optim shard; weights_only loads masters alone of it */
    int may_lack;                   /* bool: a checkpoint may lack it; then data stays as it is */
} TensorPiece;

/* Pieces of the parameter table, on the heap: weights, masters where they differ from the weights, and
 * moments, as far as params_layout was asked for them. The Params must outlive the pieces.
 *   SAVE      each element once over all ranks, spread over the data-parallel ranks in every layout
 *   LOAD      all that this rank holds; bf16 weights that are halves of masters come with these, and
 *             pieces_loaded follows the load
 *   GRADIENT  as SAVE, of the gradients, which must be reduced */
typedef enum { PIECES_SAVE, PIECES_LOAD, PIECES_GRADIENT } PieceUse;
TensorPiece *pieces_open(const Params *p, PieceUse use, int *n);
/* Brings this rank the weights of other ranks' shards where the load brought its own shard alone. Collective
 * over the shard groups. */
void pieces_loaded(Params *p);
/* Copies n neighbouring elements of a piece, from data's element `at` on, to the host: [n] of its type. */
void piece_get(const TensorPiece *p, int64_t at, int64_t n, void *dst);
void pieces_add(TensorPiece **list, int *n, TensorPiece p);
void pieces_close(TensorPiece *p, int n);

/* Adds the pieces of a model's delayed FP8 scales to a list. Each linear layer that multiplies in FP8
 * has a tensor WEIGHT.fp8_scales, F32 [3, 1 + FP8_HISTORY], with a row for input, weight, and gradient
 * of the output; the experts of a layer have one together, named without an expert. A row is the scale and
 * the largest magnitudes of earlier steps, the last one first, of whole tensors in every layout. With SAVE
 * each tensor is there once over all ranks. Call fp8_scales_loaded after a load: it records which scales
 * were in the checkpoint. */
#define FP8_SCALES ".fp8_scales"
struct Model;
void fp8_scales_pieces(const struct Model *m, PieceUse use, TensorPiece **list, int *n);
void fp8_scales_loaded(struct Model *m);

/* Adds the pieces of the routers' biases (moe_router_enable_expert_bias) to a list: a tensor of each layer
 * with experts, real [E], the same on every rank of its stage. It is part of the weights. With SAVE each is
 * there once over all ranks. A checkpoint may lack them: they stay 0. Call expert_bias_loaded after a load.
 * expert_bias_name: a tensor's name, from malloc. */
#define EXPERT_BIAS ".expert_bias"
char *expert_bias_name(int layer);
void expert_bias_pieces(const struct Model *m, PieceUse use, TensorPiece **list, int *n);
void expert_bias_loaded(const struct Model *m);

typedef struct Saver Saver;

/* Bytes of the host that a save of these pieces takes beside the snapshot: a block on its way to the disk,
 * and with verify_saves one that is read back beside it. */
int64_t saver_workspace(const Config *cfg, const TensorPiece *p, int n);
/* Opens a saver; touches no file. Returns NULL when `host` only counts.
 *   run_dir  in      claimed by this job (run_directory.h)
 *   p        in      [n]  what this rank writes; over all ranks each element of each tensor once
 *   host     in/out  arena (host_arena) of the snapshot when cfg->async_save */
Saver *saver_open(const Config *cfg, const char *run_dir, Comm *all, const TensorPiece *p, int n,
                  Arena *host);

/* The same for the copies in memory (memory_copies.h). */
Saver *saver_open_memory(const Config *cfg, Comm *all, const TensorPiece *p, int n, Arena *host);

/* Makes and opens run_dir/checkpoints. Call once, before the first save. Collective; dies with
 * EXIT_RESOURCE. */
void saver_start(Saver *s);

/* Starts a save. With async_save it returns once the copy of the pieces to the snapshot is launched,
 * else when the checkpoint is written. Only one save can be under way: a second one waits for it, with a
 * warning. Collective.
 *   state  in  all that a resume needs, copied into the manifest; "config" is the text of config_write */
void saver_save(Saver *s, int64_t iteration, const json_t *state);

/* Advances a save under way without waiting for it, and reports how it ended. Call once a step. Returns the
 * seconds that it took this rank after all ranks had called it. Collective. */
double saver_poll(Saver *s);

/* Waits until no save is under way. Returns the iteration of the newest checkpoint that this saver has
 * committed; -1: none. Collective. */
int64_t saver_wait(Saver *s);

/* Whether a save is under way: it is not written yet, or not read back. The same on every rank. */
int saver_under_way(const Saver *s);

/* As saver_wait, without waiting: the newest commit that saver_poll, _save or _wait has seen. Not
 * collective. */
int64_t saver_committed(const Saver *s);
/* Why the last save was given up, on the rank that could not write; NULL on other ranks and after a
 * success. */
const char *saver_lost(const Saver *s);
void saver_close(Saver *s);         /* waits first */

/* Seconds that a save begun now should take on this rank: as long as the longest one so far, before the first
 * one as long as a slow disk needs for the bytes of all ranks (SAVE_RATE bytes/s); twice that if another one
 * is being written, which goes first. Not collective. */
#define SAVE_RATE 100e6
double saver_predict(const Saver *s);

/* Nothing is read back any more: little time is left. Not collective, but call it on all ranks. */
void saver_hurry(Saver *s);

/* The run goes on, and this is the newest checkpoint of its own folder; -1: none. verified: bool: the load
 * has read it; else the run goes on from a copy in memory. */
void saver_loaded(Saver *s, int64_t iteration, int verified);

/* Whether path, a checkpoint or a run directory, holds a checkpoint with a manifest, of any run. Not
 * collective. */
int checkpoint_exists(const char *path);

typedef struct {
    const char *path;               /* a checkpoint, or a run directory: the newest whole checkpoint of its
                                     * own run (run_directory.h); those of other runs are skipped with a
                                     * warning, and the search is repeated when a live run deletes one */
    int memory;                     /* bool: the newest state of disk and memory (memory_copies.h). A damaged
                                     * copy in memory is a warning, and the newest state before it is taken,
                                     * whatever on_corrupt says */
    void (*lost)(void *ctx);        /* called on every rank before the job ends because the checkpoint is
                                     * damaged or missing; NULL: no call */
    void *ctx;
} LoadFrom;

/* Fills the pieces by name. Any layout may have written the checkpoint; only blocks that hold wanted
 * elements are read, each checked against its hash. Types are converted, rounding to nearest even; to bf16
 * as a master is cast to its weight (half.h): a model has the same weights with masters and without. Moments
 * with scales are rounded as moments.h says, which changes none that had this type when it was saved. A
 * piece NAME.master that the file lacks is read from NAME. A weight whose stored type differs is read
 * from NAME.master where there is one, so that a change of params_dtype loses nothing. Returns the state
 * (json_decref it). Collective over all.
 *   weights_only  in   bool: leave moments as they are; so does "weights_only" in the checkpoint's state,
 *                      which is set in the returned one where cfg->moe_use_upcycling finds a dense model: an
 *                      expert is read from its layer's mlp, and routers stay as they are
 *   found_dir     out  the directory that was loaded (free it); may be NULL
 *
 * Dies with EXIT_CHECKPOINT: no checkpoint; a file missing, foreign, cut short or damaged (named, with
 * the tensor), unless cfg->on_corrupt is `previous` and an older one loads; a model of another shape,
 * with every key and tensor that differs. Weights alone under another rotary_base, rotary_percent,
 * rope_scaling, norm_epsilon or window_size are a warning. */
json_t *checkpoint_load(const LoadFrom *from, const Config *cfg, Comm *all, const TensorPiece *p, int n,
                        int weights_only, char **found_dir);

/* The configuration in a checkpoint's state; NULL: none.
 *   dir  in  the checkpoint: warns of settings that this build cannot read, as another one wrote them;
 *            NULL: says nothing */
const Config *checkpoint_config(const json_t *state, const char *dir);

/* The newest iteration up to `most` that path, a run directory, has a checkpoint of; -1: none. Not
 * collective. */
int64_t checkpoint_newest(const char *path, int64_t most);
#endif
