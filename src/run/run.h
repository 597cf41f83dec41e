/* run -- everything a command needs of one model, opened in the order in which it must be, and the step of
 * training.
 *
 * Memory is found by running: the layout code and one step of the real schedule go over a device that does
 * nothing and arenas without memory, which count; then one arena of the exact size is mapped. `train plan`
 * stops before that. */
#ifndef RUN_H
#define RUN_H
#include "checkpoint.h"
#include "metrics.h"
#include "model.h"
#include "optimizer.h"
#include "pipeline.h"
#include "placement.h"
#include "products.h"
#include "trace.h"

typedef enum {
    RUN_FORWARD,               /* weights only: eval, generate */
    RUN_GRADIENT,              /* and gradients: dump */
    RUN_TRAIN                  /* and masters, moments, the snapshot of asynchronous saves */
} RunUse;

/* Bytes of this rank, exact. */
typedef struct {
    int64_t parameters, gradients, optimizer, activations, buffers;
    int64_t total;             /* of the device; without one of its own, of the process */
    int64_t host;              /* of the host: what is offloaded, and what copies of a device go through */
    int64_t arena, mapped, staging;    /* sizes of RunArenas: run, mapped, host */
    int64_t reserve;           /* of a device of its own, not in total: left free for its libraries */
} Memory;
#define RUN_RESERVE ((int64_t)1 << 30)

/* The lists of a step of one size, and what it sends: operations and bytes of this rank on every axis. */
typedef struct {
    int64_t batch;             /* samples of the step, all ranks together */
    int m;                     /* microbatches of this rank */
    Schedule train, forward;   /* forward: evaluation of a batch of this size */
} Lists;

typedef struct { int64_t ops, bytes; } Traffic;

/* A step that has been launched: what the host knows of it, and the ticket of what the device finds. */
typedef struct {
    Metrics m;
    int64_t ticket;            /* of its verdict */
    int64_t consumed_samples;  /* before the step */
    double start;
} Launched;
#define STEPS_OPEN 2

/* What follows from the configuration. */
typedef struct {
    Placement placement;
    PipeShape shape;
    Simulation sim;            /* rank 0: of the last segment's training step */
    Lists *lists;              /* one for each segment of the batch-size schedule */
    uint64_t hash;             /* of all lists of all ranks */
    Traffic traffic[AXES];     /* of the last segment's step */
    ModelBytes bytes;          /* of the model's slots */
    Memory memory;             /* what the arenas hold, and `workspace` */
    int64_t workspace;         /* bytes that device and transport take for themselves */
    int apart;                 /* bool: device and host have a memory each */
    int fp8_recast;            /* layers of a rank whose FP8 weights are cast in every microbatch: no room for
                                  copies */
} RunPlan;

/* All memory of a run, in place or counting. */
typedef struct {
    Arena run;                 /* of the device */
    Arena mapped;              /* of the host, for the device's use */
    Arena host;                /* of the host: what is copied from the device, the timeline */
} RunArenas;

/* What a run on a GPU has found and chosen before its first step. */
typedef struct {
    int sharing;               /* ranks on this one's GPU */
    Products products;         /* matrix products that the rehearsal has met */
    Algorithms algorithms;     /* how the GPU does them */
    char attention[640];       /* what attention computes with, and why */
    int fused;                 /* bool: cuDNN has a part in it */
} RunGpu;

/* One sequence that grows token by token. */
typedef struct {
    int64_t kv_length;         /* positions of the cache, 0: no generation */
    Schedule list;             /* one microbatch forward */
    KvCache cache;
    Mat logits;                /* real [1,V] of the position after */
    Batch sequence;            /* on the host: the tokens that come next */
} RunGeneration;

/* What this rank saves, and where it comes from. */
typedef struct {
    TensorPiece *pieces;       /* what this rank writes */
    int npieces;
    Saver *saver;              /* RUN_TRAIN with a run directory */
    json_t *huggingface;       /* family and special tokens of the directory that the weights once came from;
                                  NULL: of none */
    const char *id;            /* of the run whose checkpoints these are (run_directory.h); NULL: of none */
} RunCheckpoint;

/* How far the run is: all of it is in a checkpoint. */
typedef struct {
    int64_t iteration, consumed_samples, skipped, nans;
    struct { int64_t iteration, samples; } batches;    /* when the run took the batch sizes that it has */
} RunProgress;

/* Steps launched whose verdict the host has not seen: numbers [collected, launched), at most STEPS_OPEN. */
typedef struct {
    int64_t launched, collected;
    Launched step[STEPS_OPEN];
    Verdict *verdict;          /* [STEPS_OPEN] on the host: written by the device */
    double seen;               /* when the last verdict came */
} RunFlight;

/* The list that runs now. */
typedef struct {
    int64_t ticket;            /* of its verdict */
    Metrics *metrics;          /* NULL: STEP leaves the parameters alone */
    const Batch *(*feed)(void *run, int mb);   /* its microbatches; from `source` as a rule */
    Loader *source;
    int64_t source_first;      /* first sample of them in `source` */
    Verdict verdict;           /* the last one seen; gscale times a gradient is that of the mean loss */
} RunStep;

typedef struct {
    const Config *cfg;
    RunUse use;
    Grid grid;
    Device dev;
    Params params;
    Model model;
    Optimizer opt;
    Stage stage;               /* what the executor calls */
    RunPlan plan;
    RunArenas arenas;
    RunGpu gpu;
    RunGeneration generation;
    RunCheckpoint checkpoint;
    RunProgress progress;
    RunFlight flight;
    RunStep step;
    Loader *loader;            /* of training; opened by the caller */
    Trace trace;               /* the timeline of the steps that trace_steps lists */
} Run;

/* Opens the device, the grid of cfg->world ranks, and all memory, and gives the parameters their initial
 * values. kv_length: positions of the key/value cache, 0 for none. run_dir: where checkpoints go, NULL for
 * none. Checks that all ranks have the same configuration and lists, and that the lists can run. Dies with
 * EXIT_RESOURCE, and three changes that would help, when the plan of this host's ranks is larger than the
 * memory that it has left. Collective. */
void run_open(Run *r, const Config *cfg, RunUse use, int64_t kv_length, const char *run_dir);
void run_close(Run *r);

/* Keeps the algorithms of a GPU's products in run_dir, unless they are kept there already: a resume computes
 * with the same. Collective. */
void run_keep_tuned(Run *r, const char *run_dir);

/* The groups of all ranks alone. Collective. */
void run_grid(Grid *g, const Config *cfg);

/* What rank `rank` of cfg->world would hold and send, without opening anything: memory and traffic of *r are
 * filled. */
void run_plan(Run *r, const Config *cfg, RunUse use, int64_t kv_length, int rank);
void run_plan_close(Run *r);

/* The lists of all ranks of a training step and of its evaluation, by segment of the batch-size schedule,
 * checked: for plans that ask several ranks. */
typedef struct {
    int n;
    PipeShape shape;               /* of the last segment */
    ScheduleSet *train, *forward;  /* [n] */
} StepLists;
void step_lists_open(StepLists *l, const Config *cfg, const Placement *pl);
void step_lists_close(StepLists *l);

/* What a plan runs over in place of a device and groups that only count, and what it does with a training
 * step of the last segment in place of run_rehearse_step. */
typedef struct {
    Device *dev;
    GridOpener open;
    void (*step)(void *ctx, Run *r, const Lists *l);
    void *ctx;                     /* of open and step */
    const StepLists *lists;        /* of the same configuration, where they are there already, else NULL */
    int apart; /* the plan is of a device with a memory of its own, whatever `device` says */
    int fp8_recast;                /* as RunPlan's */
} Rehearsal;
void run_plan_over(Run *r, const Config *cfg, RunUse use, int64_t kv_length, int rank, const Rehearsal *over);

/* How many layers' copies of FP8 weights `rank` has to do without, at least, to take no more than `room`
 * bytes of a device in training; all of its FP8 layers where that does not suffice either. lists, apart: as a
 * Rehearsal's. */
int run_recast(const Config *cfg, RunUse use, int rank, int64_t room, const StepLists *lists, int apart);
/* "copies of weights kept by all layers": where FP8 weights are; NULL without FP8. */
const char *run_fp8_text(const Config *cfg, int recast);
/* A step and, for RUN_TRAIN, the update. */
void run_rehearse_step(Run *r, const Lists *l);

/* The pipeline of a training step, but for its number of microbatches. With one pipeline rank every schedule
 * is the plain loop. A searched schedule has costs (run_costs.h), the others have none; they are on the heap.
 */
PipeShape run_shape(const Config *cfg, const Placement *pl);
void run_shape_close(PipeShape *s);
/* How the lists of `rank` are expanded. units: room for one number a chunk, as long as the Expand. */
Expand run_expand(const Config *cfg, int rank, int *units);
/* The pipeline rank of `rank`. */
int run_stage(const Config *cfg, int rank);

/* Fills the model, and for RUN_TRAIN the whole state unless the checkpoint or `finetune` says weights only.
 * Checks what has changed in the config since, and that the weights are finite. Returns the directory read;
 * free it. */
char *run_load(Run *r, const char *path);

/* Dies with EXIT_NUMERIC, and names the first weight that is not finite, after a load from `dir`. Collective.
 */
void run_check_weights(Run *r, const char *dir);

/* The state that a checkpoint keeps beside the tensors; the caller owns it. */
json_t *run_state(const Run *r);

/* Runs the instruction list over the global batch that starts at consumed_samples. Sets the verdict; STEP
 * updates the parameters only within run_step. Collective. */
void run_gradients(Run *r);

/* fp16 may overflow at the first loss scale, as training does: halves it until the gradients of the first
 * batch are finite. Collective. */
void run_find_scale(Run *r);

/* Launches one step: gradients, checks, clip, update, progress. Nothing waits for the device, but with fp16.
 * so_far: what is known of its metrics. Collective. */
void run_step(Run *r, const Metrics *so_far);
/* How many steps have been launched and not collected; at most STEPS_OPEN. */
int run_open_steps(const Run *r);
/* Waits for the oldest of them and fills its metrics. Dies with EXIT_NUMERIC when its loss or a gradient was
 * not finite: neither it nor those launched since have updated anything. Collective. */
void run_collect(Run *r, Metrics *m);
/* Dies, and names the first tensor of step s that is not finite: the rank that finds the earliest one speaks.
 * Collective. */
_Noreturn void run_not_finite(Run *r, const Launched *s);

/* Logits ([V], in the type of run's reals, on the host) of the position after n more tokens of one sequence,
 * whose earlier ones are in the cache, on every rank. tokens NULL: only counts. Collective. */
void run_extend(Run *r, const int32_t *tokens, int64_t n, void *logits);

/* Mean loss over the first `batches` global batches of a loader, nats a token. Collective. tick may be NULL.
 */
double run_evaluate(Run *r, Loader *l, int64_t batches, void (*tick)(void *ctx, int64_t done), void *ctx);

/* The lists of a step of `batch` samples. */
const Lists *run_lists(const Run *r, int64_t batch);

/* Gives the executor this run's functions (step.c), and the model its microbatches. */
void step_open(Run *r);
/* One step of training of this size, and one of evaluation, as the executor runs them; microbatches come from
 * r->step.source. */
void step_train(Run *r, const Lists *l);
void step_forward(Run *r, const Schedule *s, int64_t B, int64_t S, int share_rows);

/* Arithmetic of a token's forward and backward: 6 FLOPs a weight of a matrix product (output layer included)
 * and 12 L A D S of attention without regard to the mask, as Megatron-LM and PaLM count (Chowdhery et al.
 * 2022, arXiv:2204.02311, app. B). */
double run_flops_per_token(const Config *cfg);
#endif
