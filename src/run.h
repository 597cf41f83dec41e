/* run -- everything a command needs of one model, opened in the order in which it must be, and the step of training.
 *
 * Memory is found by running: the layout code and one step of the real schedule go over a device that does nothing and
 * arenas without memory, which count; then one arena of the exact size is mapped. `train plan` stops before that. */
#ifndef RUN_H
#define RUN_H
#include "checkpoint.h"
#include "metrics.h"
#include "model.h"
#include "optimizer.h"
#include "trace.h"

typedef enum {
    RUN_FORWARD,               /* weights only: eval, generate */
    RUN_GRADIENT,              /* and gradients: dump */
    RUN_TRAIN                  /* and masters, moments, the snapshot of asynchronous saves */
} RunUse;

/* Bytes of this rank, exact. */
typedef struct { int64_t parameters, gradients, optimizer, activations, buffers, total; } Memory;

typedef struct {
    const Config *cfg;
    RunUse use;
    Grid grid;
    Device dev;
    Params params;
    Model model;
    Optimizer opt;
    Schedule *schedule;        /* one for each distinct number of microbatches of the batch-size schedule */
    int schedules;
    Stage stage;
    Pipeline pipe;
    Arena arena;
    Memory memory;
    KvCache cache;             /* generation: kv_length positions */
    int64_t kv_length;
    Piece *pieces;             /* what a checkpoint of this rank holds */
    int npieces;
    Saver *saver;              /* RUN_TRAIN with a run directory */
    Loader *loader;            /* of training; opened by the caller */

    Trace trace;               /* the timeline of the steps that trace_steps lists */

    /* progress: all of it is in a checkpoint */
    int64_t iteration, consumed_samples, skipped, nans;

    /* this step */
    Metrics *now;              /* NULL: STEP leaves the parameters alone */
    double loss, tokens;       /* mean over the global batch; tokens that count */
    double gscale;             /* params.grad times this is the gradient of the mean loss */
} Run;

/* Opens the device, the grid of one rank, and all memory, and gives the parameters their initial values. kv_length: positions
 * of the key/value cache, 0 for none. run_dir: where checkpoints go, NULL for none. Dies with EXIT_RESOURCE, and three
 * changes that would help, when the plan is larger than the memory that the machine has left. */
void run_open(Run *r, const Config *cfg, RunUse use, int64_t kv_length, const char *run_dir);
void run_close(Run *r);

/* The memory of rank 0 for this config, without opening anything. */
Memory run_plan(const Config *cfg, RunUse use, int64_t kv_length);

/* Fills the model, and for RUN_TRAIN the whole state unless the checkpoint or `finetune` says weights only. Checks what
 * has changed in the config since. Returns the directory read; free it. */
char *run_load(Run *r, const char *path);

/* The state that a checkpoint keeps beside the tensors; the caller owns it. */
json_t *run_state(const Run *r);

/* Runs the instruction list over the global batch that starts at consumed_samples. Sets loss, tokens and gscale; STEP
 * updates the parameters only within run_step. Collective. */
void run_gradients(Run *r);

/* One step: gradients, checks, clip, update, progress. Fills every metric that is not about time spent elsewhere. Dies with
 * EXIT_NUMERIC before the update when the loss or a gradient is not finite. Collective. */
void run_step(Run *r, Metrics *m);

/* Mean loss over the first `batches` global batches of a loader, nats a token. Collective. tick may be NULL. */
double run_evaluate(Run *r, Loader *l, int64_t batches, void (*tick)(void *ctx, int64_t done), void *ctx);

/* Microbatches of a step of `batch` samples on this rank. */
int64_t run_microbatches(const Run *r, int64_t batch);

/* Gives the executor this run's functions (step.c), and the model its microbatches. */
void step_open(Run *r);
const Batch *step_batch(void *run, int mb);

/* Arithmetic of a token's forward and backward: 6 FLOPs a weight of a matrix product (output layer included) and 12 L A D S of
 * attention without regard to the mask, as Megatron-LM and PaLM count (Chowdhery et al. 2022, arXiv:2204.02311, app. B). */
double run_flops_per_token(const Config *cfg);

/* runs/NAME for CONFIG/NAME.yaml, or `save`. On the heap. */
char *run_directory(const Config *cfg);
#endif
