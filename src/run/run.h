/* run -- a model opened for a command: grid, device, memory, parameters, optimizer; and the training
 * step.
 *
 * Memory is sized by a rehearsal: the layout code and one step of the real schedule run over a device
 * that does nothing and over arenas that only count. Then one arena of the exact size is mapped. `train
 * plan` stops before that. */
#ifndef RUN_H
#define RUN_H
#include "account.h"
#include "checkpoint.h"
#include "metrics.h"
#include "model.h"
#include "optimizer.h"
#include "pipeline.h"
#include "placement.h"
#include "products.h"
#include "spike.h"
#include "straggler.h"
#include "trace.h"

typedef enum {
    RUN_FORWARD,               /* weights only: eval, generate */
    RUN_GRADIENT,              /* weights and gradients: dump */
    RUN_TRAIN                  /* also masters, moments, the snapshot of asynchronous saves */
} RunUse;

/* Memory of this rank in bytes, exact. */
typedef struct {
    int64_t parameters, gradients, optimizer, activations, buffers;
    int64_t data[SLOT_KINDS];  /* of activations, a microbatch's data of each lifetime in chunk 0 */
    int64_t total;             /* device memory; on a CPU the memory of the process */
    int64_t host;              /* host memory: offloaded data, the staging of copies from a GPU, `copies` */
    int64_t copies;            /* of it in the memory file system: memory_save_interval */
    int64_t arena, mapped, staging;    /* sizes of the arenas of RunArenas: run, mapped, host */
    int64_t reserve;           /* GPU memory left free for libraries, not in total; 0 on a CPU */
    /* the peaks beside a step, all counted above */
    int64_t saving;            /* host memory of saves: snapshots, blocks on their way to and from the disk */
    int64_t evaluation;        /* device memory that an evaluation takes beyond that of a step */
} Memory;
/* GPU memory left free for libraries. NCCL takes buffers at the first operation of each group. */
#define RUN_RESERVE      ((int64_t)1 << 30)
#define RUN_RESERVE_NCCL ((int64_t)3 << 30)
int64_t run_reserve(const Config *c);

/* The instruction lists of a step of one batch size. */
typedef struct {
    int64_t batch;             /* samples of the step, all ranks together */
    int m;                     /* microbatches of this rank */
    Schedule train, forward;   /* a training step; an evaluation of as many samples */
} Lists;

/* Messages that this rank sends on one axis of the grid in a step. */
typedef struct { int64_t ops, bytes; } Traffic;

/* An instruction that computes, on a device that runs late: the device's marks before and behind it. */
typedef struct { InstrKind op; int64_t begin, end; } InstrSpan;

/* A step that has been launched. */
typedef struct {
    Metrics m;                 /* what the host knows of the step so far */
    int64_t ticket;            /* read_wait's, for the step's verdict */
    double counted;            /* share of its tokens with a loss, as ModelNow has it */
    int64_t consumed_samples;  /* before the step */
    int64_t begin, end;        /* the device's marks, before the step's first op and behind its last op */
    int spans;                 /* instructions in RunFlight.span */
    GroupTotals groups;        /* at the end of its launch */
    DeviceWaits waits;         /* of a late device, where own times are measured */
    Limits limits;             /* a step above them is a spike */
} Launched;
#define STEPS_OPEN 2

/* What follows from the configuration. */
typedef struct {
    Placement placement;
    PipeShape shape;
    Simulation sim;            /* rank 0: replay of the last segment's training step */
    Lists *lists;              /* [cfg->batch_steps], one for each segment of the batch-size schedule */
    uint64_t hash;             /* of all lists of all ranks */
    Traffic traffic[AXES];     /* of a step of the last segment */
    ModelBytes bytes;          /* sizes of the model's slots */
    ModelBytes trained;        /* what training alone needs of them */
    Memory memory;             /* the arenas, and `workspace` */
    int64_t workspace;         /* bytes that device and transport take for themselves */
    int64_t evaluation;        /* as in Memory */
    int apart;                 /* bool: device and host have separate memories */
    int fp8_recast;            /* layers of a rank that cast their FP8 weights in every microbatch */
    int64_t logits_rows;       /* rows of a slice of logits, of all ranks that share rows */
} RunPlan;

/* All memory of a run, mapped or counting. */
typedef struct {
    Arena run;                 /* device memory */
    Arena mapped;              /* host memory that the device reads and writes */
    Arena host;                /* host memory: copies from the device, the timeline */
} RunArenas;

/* What a run on a GPU has found and chosen before its first step. */
typedef struct {
    int sharing;               /* ranks on this rank's GPU, itself included */
    Products products;         /* matrix products that the rehearsal has met */
    Algorithms algorithms;     /* the algorithm chosen for each of `products` */
    char attention[640];       /* text: which kernels attention uses, and why */
    int fused;                 /* bool: attention uses cuDNN, at least in one direction */
} RunGpu;

/* One sequence that grows token by token. */
typedef struct {
    int64_t kv_length;         /* positions of the key/value cache; 0: no generation */
    Schedule list;             /* one microbatch forward */
    KvCache cache;
    Mat logits;                /* real [1,V], of the position after the last token */
    Batch sequence;            /* on the host: the tokens of the next run_extend */
} RunGeneration;

/* What this rank saves. */
typedef struct {
    TensorPiece *pieces;       /* [npieces] what this rank writes */
    int npieces;
    Saver *saver;              /* NULL unless RUN_TRAIN with a run directory */
    Saver *memory;             /* of the copies in memory; NULL without memory_save_interval, or as above */
    int from_memory;           /* bool: run_load takes a copy in memory where that is the newest state */
    int64_t corpus;            /* fingerprint of the training corpus of the steps before the load; 0: not
                                * known, or another corpus is asked for */
    int64_t passes;            /* loader_passes of the same */
    json_t *huggingface;       /* family, special tokens of the weights' Hugging Face folder; NULL: none */
    const char *id;            /* id of the run that saves (run_directory.h); NULL: none */
    const char *dir;           /* the run directory; NULL: none */
} RunCheckpoint;

/* How far the run is. Every checkpoint holds all of it. */
typedef struct {
    int64_t iteration, consumed_samples, skipped, nans;    /* skipped: by fp16's overflows */
    struct { int64_t iterations, samples; } unscheduled; /* skipped steps: lr's schedule stood still */
    struct {
        int64_t iteration, samples, tokens;            /* done before the present batch sizes took effect */
    } batches;
} RunProgress;

/* Steps launched whose verdict the host has not seen: numbers [collected, launched), at most
 * STEPS_OPEN. */
typedef struct {
    int64_t launched, collected;
    Launched step[STEPS_OPEN]; /* step number n is at n % STEPS_OPEN */
    Verdict *verdict;          /* [STEPS_OPEN] on the host, written by the device */
    InstrSpan *span;           /* [STEPS_OPEN][step_instructions()] on a GPU; else NULL */
    int64_t *counts;           /* [STEPS_OPEN] RouterStats.count of each; NULL: no experts */
    double *sums;              /* [STEPS_OPEN] RouterStats.sums of each, on the host, written by the device */
    RouterMetrics routers;     /* of the step collected last; its counts are among `counts` */
} RunFlight;

/* A tensor whose bytes are hashed, and the groups (bits) whose ranks all hold the same bytes of it. */
typedef struct { const char *tensor, *suffix; unsigned groups; } SdcTensor;
#define SDC_GROUPS 8

/* Silent data corruption (sdc_check_interval): hashes of the weights, masters and moments of this rank. */
typedef struct {
    int n;
    Hashed *list;              /* [n] */
    SdcTensor *what;           /* [n] */
    Comm *comm[SDC_GROUPS];    /* group k of SdcTensor.groups */
    uint64_t *sum;             /* [n] on the device */
    uint64_t *kept, *seen;     /* [n] as an update has left them; as they are */
    int sealed;                /* bool: nothing may have changed since `kept` */
    int64_t iteration;         /* of `kept` */
} RunSdc;

/* What a rank brings to its groups in a step that runs for comparison: hashes, in the order of the calls. */
typedef struct {
    int64_t n;
    uint64_t *sum;             /* [room] on the device */
    double *time;              /* [room] s, the time of the call */
} RerunPass;
#define RERUN_PASSES 4
#define RERUN_GROUPS 16
enum { EXIT_TRANSIENT = 16, EXIT_PERSISTENT = 17 };    /* a step that ran again disagreed; beside base.h's */

/* Steps that run twice (sdc_rerun). */
typedef struct {
    Device *dev;
    int apart, comparing;      /* bools: device and host have separate memories; this step runs twice */
    int64_t room, shift;       /* hashes of a pass; samples from this rank's to those of the first pass */
    RerunPass pass[RERUN_PASSES], *now;    /* now: that is recorded; NULL: none */
    int ncomm, ndata;          /* groups; the first ndata of them are data ranks */
    Comm *comm[RERUN_GROUPS];
    Token (*start[RERUN_GROUPS])(Comm *c, Operation o);    /* their own start */
} RunRerun;

/* A fixed product and a fixed copy (log_reference), in pieces: how fast this machine is at the moment. */
#define REFERENCE_PIECES 16
typedef struct {
    int on;                    /* bool: it has memory */
    Mat a, b, c;               /* storage: c = a b^T, again in each piece */
    Mat from, to;              /* storage [pieces, n]: a piece copies a row */
} RunReference;
/* ms of all pieces, on a core of its own for each thread */
typedef struct { double product_ms, copy_ms; } ReferenceTime;

/* The list that runs now. */
typedef struct {
    int64_t shift;             /* samples from this data rank's to those that it takes */
    int64_t ticket;            /* read_wait's, for the verdict of this step */
    Metrics *metrics;          /* of this step; NULL: STEP does not update the parameters */
    const Batch *(*feed)(void *run, int mb);   /* gives microbatch mb; default: from `source` */
    Loader *source;
    int64_t source_first;      /* first sample of the step in `source` */
    double loader_waited;      /* loader_wait_seconds at the end of the last instruction */
    int64_t mark;              /* the device's mark before the instruction that is launched */
    Verdict verdict;           /* the last one seen; gscale times a gradient is that of the mean loss */
} RunStep;

typedef struct Run {
    const Config *cfg;
    RunUse use;
    Grid grid;
    Device dev;
    Params params;
    Model model;
    Optimizer opt;
    Stage stage;               /* functions that the executor calls */
    RunPlan plan;
    RunArenas arenas;
    RunGpu gpu;
    RunGeneration generation;
    RunCheckpoint checkpoint;
    RunProgress progress;
    RunFlight flight;
    Spikes spikes;
    RunSdc sdc;
    RunRerun rerun;
    RunReference reference;
    RunStep step;
    Loader *loader;            /* the training split; opened by the caller */
    Trace trace;               /* the timeline of the steps that trace_steps lists */
    OwnTime own;               /* what this rank's time goes to, and the groups' times */
    Straggler straggler;       /* ranks that are slower than others */
    Account account;           /* where the time of a recorded step goes */
} Run;

/* Opens the device, the grid of cfg->world ranks and all memory, and gives the parameters their initial
 * values. Checks that all ranks have the same configuration and lists, and that the lists can run. Dies
 * with EXIT_RESOURCE, and names three changes that would help, when this host's ranks need more memory
 * than is left. Collective.
 *   kv_length  in  positions of the key/value cache; 0: none
 *   run_dir    in  where checkpoints go; NULL: nowhere */
void run_open(Run *r, const Config *cfg, RunUse use, int64_t kv_length, const char *run_dir);
void run_close(Run *r);

/* Writes the algorithms of a GPU's products into run_dir, unless a file is there already, so that a
 * resume computes with the same ones. Collective. */
void run_keep_tuned(Run *r, const char *run_dir);

/* Opens the groups of all ranks and nothing else. Collective. */
void run_grid(Grid *g, const Config *cfg);

/* Plans rank `rank` of cfg->world without opening anything: fills r->plan, memory and traffic
 * included. */
void run_plan(Run *r, const Config *cfg, RunUse use, int64_t kv_length, int rank);
void run_plan_close(Run *r);

/* The checked lists of all ranks, one training step and one evaluation for each segment of the
 * batch-size schedule. Plans of several ranks share them. */
typedef struct {
    int n;                         /* segments */
    PipeShape shape;               /* of the last segment */
    ScheduleSet *train, *forward;  /* [n] */
} StepLists;
void step_lists_open(StepLists *l, const Config *cfg, const Placement *pl);
void step_lists_close(StepLists *l);

/* Sizes that a rehearsal has found, as in RunPlan. They are the same on ranks whose stages hold the same and
 * have the same neighbours on the rank, and whose lists differ in their order only. */
typedef struct { ModelBytes trained, bytes; int64_t workspace; Traffic traffic[AXES]; } RunPeaks;

/* What a plan runs over in place of the device and the groups that only count. */
typedef struct {
    Device *dev;                   /* NULL: a device that does nothing */
    GridOpener open;               /* NULL: groups that only count */
    void (*step)(void *ctx, Run *r, const Lists *l); /* last segment's step; NULL: run_rehearse_step */
    void *ctx;                     /* argument of open and step */
    const StepLists *lists;        /* of this configuration, made before; NULL: the plan makes them */
    int apart;                     /* bool: the device has its own memory, whatever `device` says */
    int fp8_recast;                /* as in RunPlan */
    int64_t logits_rows;           /* as in RunPlan, at most; 0: as many as run_logits_rows says */
    const RunPeaks *peaks;         /* known, so that `step` need not run the layers, and without a `step`
                                      no list is run; NULL: found here */
} Rehearsal;
void run_plan_over(Run *r, const Config *cfg, RunUse use, int64_t kv_length, int rank, const Rehearsal *over);
RunPeaks run_plan_peaks(const Run *r);      /* what the plan's rehearsal has found */

/* A rank whose optional memory is chosen (room.c): its plan, for a device with limited memory.
 *   bytes   in      of the device that the rank may take
 *   opened  in      bool: the device is open, and its workspace taken
 *   over    in/out  what the plan runs over; the functions below change fp8_recast, run_slice logits_rows
 *   need    in      of a rank with a head: bytes with the largest slice, where they are known; else 0 */
typedef struct {
    const Config *cfg;
    RunUse use;
    int64_t kv_length, bytes;
    int rank, opened;
    Rehearsal over;
    int64_t need;
} RunRoom;
/* Rows of a slice of logits, of all ranks that share rows: logits_slice_rows, or as many as a CPU's caches
 * hold, or on a GPU the most that are worth their memory, at most `most`.
 *   apart  in  bool: the device has its own memory
 *   most   in  0: no limit; else a GPU's, where the key does not say */
int64_t run_logits_rows(const Config *cfg, int apart, int64_t most);
/* The most rows with which the rank fits, halved down to 2,048; a rank without a head has no need of less. */
int64_t run_slice(RunRoom *f);
/* The fewest layers of the rank that must go without copies of FP8 weights so that it fits. All its FP8
 * layers when even that is too much. */
int run_recast(RunRoom *f);
/* Says which layers keep copies of FP8 weights, as "copies of weights kept by all layers". NULL without
 * FP8. */
const char *run_fp8_text(const Config *cfg, int recast);
/* Says in how many slices the logits of a microbatch are made. */
const char *run_logits_text(const Config *cfg, int64_t rows);
/* Runs a training step and, for RUN_TRAIN, the update. */
void run_rehearse_step(Run *r, const Lists *l);

/* The pipeline of a training step, without its number of microbatches. With one pipeline rank every
 * schedule is the plain loop. Only a searched schedule has costs (run_costs.h), on the heap. */
PipeShape run_shape(const Config *cfg, const Placement *pl);
void run_shape_close(PipeShape *s);
/* How the lists of `rank` are expanded.
 *   units  out  [chunks of the rank]  room for the Expand's numbers; must live as long as the Expand */
Expand run_expand(const Config *cfg, int rank, int *units);
/* The place of world rank `rank` on an axis. */
int run_index(const Config *cfg, int rank, Axis axis);
/* The lowest world rank at place `index` of an axis. */
int run_first(const Config *cfg, Axis axis, int index);

/* Loads the checkpoint at `path`: the weights, and for RUN_TRAIN the whole state unless the checkpoint
 * or `finetune` says weights only. Checks which keys of the configuration have changed since, and that
 * the weights are finite. Returns the directory read; free it. */
char *run_load(Run *r, const char *path);
/* Steps of the whole run. With train_samples these are the steps done before the present batch sizes took
 * effect, and the steps of the samples that were left then. */
int64_t run_iterations(const Run *r);

/* After a load from `dir`: dies with EXIT_NUMERIC and names the first weight that is not finite.
 * Collective. */
void run_check_weights(Run *r, const char *dir);

/* The state that a checkpoint keeps beside the tensors; the caller owns it. */
json_t *run_state(const Run *r);

/* Runs the instruction list over the global batch that starts at consumed_samples, and sets the verdict.
 * STEP updates the parameters only within run_step. Collective. */
void run_gradients(Run *r);

/* Halves the loss scale of fp16 until the gradients of the first batch are finite, as training would.
 * Collective. */
void run_find_scale(Run *r);

/* Launches one step: gradients, checks, clip, update, progress. Waits for the device only with fp16.
 * Collective.
 *   so_far  in  metrics of the step that are known before it */
void run_step(Run *r, const Metrics *so_far);
/* How many steps have been launched and not collected; at most STEPS_OPEN. */
int run_open_steps(const Run *r);
/* Waits for the oldest step that is not collected and fills its metrics. Dies with EXIT_NUMERIC
 * when its loss or a gradient was not finite: neither this step nor a later one has updated
 * anything. Collective. */
void run_collect(Run *r, Metrics *m);
/* Goes back to the weights and the optimizer of a checkpoint, in place, after a spike: what came after it
 * counts as skipped, up to the spike. Iteration and samples go on behind the spike; steps that were launched
 * meanwhile are dropped and come again. Sets spikes.now.back. Collective. */
void run_rewind(Run *r, const LoadFrom *from);
/* Reduces the metrics of the step collected last over all ranks, with the times of the groups (r->own) and
 * slow ranks (r->straggler). Collective. */
void run_reduce(Run *r, Metrics *m);
/* What the routers of the step collected last did, until the next step is launched; NULL: the model has no
 * experts. */
const RouterMetrics *run_routers(const Run *r);
/* Runs the next batch once more, without an update, and names the first tensor that is not finite: a weight,
 * an output or a gradient. Returns the rank that found it; every rank gets the name. -1: all is finite, and
 * the name says so. Collective. */
int run_locate(Run *r, char name[160]);
/* Dies, and names the first tensor of step s that is not finite; the rank that found it reports. Keeps the
 * batch (kept.h). Collective. */
_Noreturn void run_not_finite(Run *r, const Launched *s);

/* Dies with EXIT_RESOURCE, and names tensor, rank and host, where replicas of a tensor differ, or memory has
 * changed since it was hashed. Call it before a save and before the first step. Does nothing with
 * sdc_check_interval 0. Waits for the device; collective. */
void run_check(Run *r);

/* A feed for r->step: the batch in generation.sequence, for every microbatch. */
const Batch *run_sequence(void *run, int mb);

/* Extends one sequence, whose earlier tokens are in the cache, by n tokens. Collective.
 *   tokens  in   [n]  NULL: only counts memory
 *   logits  out  [V]  on the host of every rank, of type Params.real: the position after the last token */
void run_extend(Run *r, const int32_t *tokens, int64_t n, void *logits);

/* What the groups have sent since own_groups wrote `from` belongs to no step. */
void run_leave_out(Run *r, const GroupTotals *from);

/* Mean loss, nats a token, and number of tokens that have a loss; without such tokens NaN and 0. */
typedef struct { double loss; int64_t tokens; } Evaluated;

/* Evaluates the first `batches` global batches of a loader. Collective.
 *   tick  in  called with ctx after each batch; may be NULL */
Evaluated run_evaluate(Run *r, Loader *l, int64_t batches, void (*tick)(void *ctx, int64_t done), void *ctx);

/* The lists of a step of `batch` samples. */
const Lists *run_lists(const Run *r, int64_t batch);

/* Times the reference of log_reference on all ranks at once. Call it between steps, with no step open.
 * Where ranks share cores, times are multiplied by a rank's share of them, so that all layouts of a quiet
 * machine get the same times. NAN without log_reference. Collective.
 *   d       in/out  the run's device, or the one that a meter has replaced
 *   calm    out     the lower quartiles of the pieces of each kind, times their number, means over the ranks:
 *                   hardly disturbed by other programs that take turns with the ranks
 *   whole   out     the same, longer by what all pieces together took beyond calm, so that the two add up to
 *                   it. Turns of other programs are longer than a copy, and would hit it or miss it */
void run_reference(Run *r, Device *d, ReferenceTime *whole, ReferenceTime *calm);

/* Fills r->stage with the functions of step.c, and sets where the model's microbatches come from. */
void step_open(Run *r);
/* The most instructions of a training list of this rank. */
int step_instructions(const Run *r);
/* Stage.settle of a recorded step on a device that runs late: waits until it has done the instruction. */
void step_settle(void *run, const Instr *i);
/* Runs one training step. Its microbatches come from r->step.feed. */
void step_train(Run *r, const Lists *l);
/* Runs one evaluation. share_rows: as model_begin's. */
void step_forward(Run *r, const Schedule *s, int64_t B, int64_t S, int share_rows);

/* What this rank has sent so far on each axis; groups within an axis count towards it. */
void run_traffic(const Grid *g, Traffic t[AXES]);

/* FLOPs of a token's forward and backward: 6 for each weight of a matrix product (output layer included)
 * and 12 L A D S for attention, causal mask or not, as Megatron-LM and PaLM count (Chowdhery et al.
 * 2022, arXiv:2204.02311, app. B); window_size in the place of S where it is smaller. */
double run_flops_per_token(const Config *cfg);
#endif
