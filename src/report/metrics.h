/* metrics -- the metrics table, and the log of a run.
 *
 * One row of METRICS is one number of a step; the row feeds the progress line, metrics.jsonl,
 * TensorBoard and the report. The report's curves are made from metrics.jsonl alone, so a resumed run's
 * report shows the whole history. Only rank 0 opens a Log.
 * X(field, type, unit, over ranks, over steps, tag, label)
 *   over ranks   SAME: every rank has the same value; MAX, MEAN: metrics_reduce combines them
 *   over steps   what a line says about the steps since the line before it:
 *                OWN   the value of the line's own step: nothing that describes the training is averaged,
 *                      so that a resumed run writes the same bits
 *                TIME  the mean a step
 *                COUNT the growth of a total that the caller counts from the start of training and keeps
 *                      in its checkpoint: exact when a run stops between two lines
 *                RATE  filled in by log_step from the others, over the same steps; the caller leaves 0
 *   tag          the name in TensorBoard: Megatron-LM's where it has one; "": not written there
 *   label        the name in the report
 * Units: ms of wall time; tokens/s of the whole job; TFLOP/s and bytes of one rank. A number that is not
 * finite or not known is null in JSON. */
#ifndef METRICS_H
#define METRICS_H
#include "comm.h"
#include "config.h"
#include "file.h"
#include <jansson.h>

/* reference_product_ms, reference_copy_ms: before the step, with log_reference, else NAN.
 * params_norm, num_zeros: filled in on logged steps where log_params_norm and log_num_zeros_in_grad are
 * set, else NAN. elapsed_ms: a whole step by the device's clock, from the end of the step before, or from its
 * launch where that is later, to its own end; without saving and evaluating, which checkpoint_ms and eval_ms
 * count. forward_ms, backward_ms, optimizer_ms: on a GPU by its clock, too. The report's "other" is
 * elapsed_ms less data, forward, backward and optimizer.
 * goodput: time of the run's steps over its wall time, from its first start to this line. A step that was
 * lost and run again counts once; start-ups, saves, evaluations, and waits between a death and its
 * restart are wall time. The time between a run that was stopped, or died without a supervisor, and the
 * start that goes on with it is none. */
#define METRICS(X)                                                                                           \
    X(iteration,          INT, "",         SAME, OWN,   "",                    "iteration")                  \
    X(consumed_samples,   INT, "samples",  SAME, OWN,   "consumed-samples",    "samples")                    \
    X(consumed_tokens,    INT, "tokens",   SAME, OWN,   "consumed-tokens",     "tokens")                     \
    X(lm_loss,            NUM, "nats",     SAME, OWN,   "lm loss",             "loss")                       \
    X(grad_norm,          NUM, "",         SAME, OWN,   "grad-norm",           "gradient norm")              \
    X(learning_rate,      NUM, "",         SAME, OWN,   "learning-rate",       "learning rate")              \
    X(loss_scale,         NUM, "",         SAME, OWN,   "loss-scale",          "loss scale")                 \
    X(global_batch_size,  INT, "samples",  SAME, OWN,   "batch-size",          "global batch")               \
    X(elapsed_ms,         NUM, "ms",       MAX,  TIME,  "",                    "step time")                  \
    X(tokens_per_second,  NUM, "tokens/s", SAME, RATE,  "tokens-per-second",   "throughput")                 \
    X(tflops_per_device,  NUM, "TFLOP/s",  SAME, RATE,  "throughput",          "arithmetic")                 \
    X(mfu,                NUM, "",         SAME, RATE,  "mfu",                 "model FLOPs utilisation")    \
    X(memory_bytes,       INT, "bytes",    MAX,  OWN,   "mem-allocated-bytes", "memory")                     \
    X(skipped_iterations, INT, "steps",    SAME, COUNT, "skipped-iterations",  "skipped steps")              \
    X(nan_iterations,     INT, "steps",    SAME, COUNT, "nan-iterations",      "steps that were not finite") \
    X(goodput,            NUM, "",         SAME, RATE,  "goodput",             "goodput")                    \
    X(params_norm,        NUM, "",         SAME, OWN,   "params-norm",         "parameter norm")             \
    X(num_zeros,          NUM, "",         SAME, OWN,   "num-zeros",           "zeros in the gradient")      \
    X(data_ms,            NUM, "ms",       MEAN, TIME,  "time/data",           "data")                       \
    X(forward_ms,         NUM, "ms",       MEAN, TIME,  "time/forward",        "forward")                    \
    X(backward_ms,        NUM, "ms",       MEAN, TIME,  "time/backward",       "backward")                   \
    X(optimizer_ms,       NUM, "ms",       MEAN, TIME,  "time/optimizer",      "optimizer")                  \
    X(checkpoint_ms,      NUM, "ms",       MAX,  TIME,  "time/checkpoint",     "checkpoint")                 \
    X(eval_ms,            NUM, "ms",       MAX,  TIME,  "time/eval",           "evaluation")                 \
    X(reference_product_ms, NUM, "ms",     MAX,  TIME,  "",                    "reference product")          \
    X(reference_copy_ms,  NUM, "ms",       MAX,  TIME,  "",                    "reference copy")

typedef enum { METRIC_INT, METRIC_NUM } MetricType;
typedef enum { RANKS_SAME, RANKS_MAX, RANKS_MEAN } MetricRanks;
typedef enum { STEPS_OWN, STEPS_TIME, STEPS_COUNT, STEPS_RATE } MetricSteps;

typedef struct {
    const char *name, *unit, *tag, *label;
    MetricType type;
    MetricRanks ranks;
    MetricSteps steps;
    size_t offset;                 /* of the field in Metrics */
} MetricDef;

typedef int64_t metric_INT;
typedef double metric_NUM;
typedef struct {
#define X(field, type, ...) metric_##type field;
    METRICS(X)
#undef X
} Metrics;

enum { METRIC_COUNT = sizeof(Metrics) / 8 };
extern const MetricDef metric_defs[METRIC_COUNT];

/* Reads and writes the value of row i as a double (integers are exact up to 2^53). */
double metric_get(const Metrics *m, int i);
void metric_set(Metrics *m, int i, double v);

/* Reduces a step's numbers over the ranks of `all` as the table says, in place. Collective.
 *   more  in/out  [METRIC_COUNT + n]  from METRIC_COUNT on: n numbers that are summed in the same message;
 *                                     NULL: none. n: global */
void metrics_reduce(Metrics *m, Comm *all, double *more, int n);

/* The messages of a group in a step: means over the ranks that are in such a group. */
typedef struct {
    const char *name;              /* of the group: "tp" */
    double wait_ms;                /* the main thread stood still; NAN: not known */
    double busy_ms;                /* bytes were copied or added, by any thread; NAN: not known */
    double bytes;                  /* brought to the operations, as Comm counts them */
} GroupTimes;
enum { GROUP_NAMES = 32 };         /* the most groups that have a name */

/* A layer's losses, with their coefficients, as they are in the loss whose gradient is used; NAN: there is no
 * such loss. Mean entropy of a token's scores, in nats. */
typedef struct { double balance, z, entropy; } RouterRow;

/* The routers of a step; a row for each layer with experts of the whole model. */
typedef struct {
    int layers, experts;       /* rows; experts of each */
    const int *layer;          /* [layers] numbers of the layers, from 0 */
    int64_t *count;            /* [layers][experts + 1] choices of each expert; those dropped */
    RouterRow *row;            /* [layers] */
    const char *balance;       /* Megatron-LM's name of the balance loss */
    double balance_coeff, z_coeff;     /* coefficients of the losses */
} RouterMetrics;

/* Bytes of anonymous and shared resident memory of this process, without mapped files (a corpus). */
int64_t metrics_memory_resident(void);

/* ---- The log of a run ---- */

typedef struct {
    const char *run_dir;           /* must exist; NULL: console only, no files */
    int64_t resume_iteration;      /* iteration of the loaded checkpoint; 0: a fresh start */
    int64_t total_iterations;
    int devices;                   /* ranks that compute; 0: 1 */
    double flops_per_token;        /* of forward and backward of the whole model; 0: not known */
    int64_t parameters;            /* of the whole model, for the report; 0: not known */
    const char *command, *build;   /* for the report; NULL: left out */
    const char *id;                /* of the run, for every line of metrics.jsonl; NULL: left out */
    int64_t skipped, nans;         /* iterations before resume_iteration, for a folder without lines */
    double age;                    /* s since the command began */
} LogStart;

/* Only rank 0 has a Log; the functions below do nothing with NULL. */
typedef struct Log Log;

/* Opens the log and, in a run directory, its files. A fresh start empties metrics.jsonl. A resumed run
 * continues it: lines of iterations after resume_iteration are dropped (the file is rewritten beside and
 * renamed), so that a resumed run's file equals an undisturbed run's, times apart. Ignores SIGPIPE: a
 * closed standard output or a full disk never stops training; lost lines are counted, and log_close
 * reports them on standard error. Dies with EXIT_RESOURCE when a file cannot be opened. */
Log *log_open(const Config *cfg, const LogStart *start);

/* What the routers of the step did that log_step records next. NULL: the model has no experts. Is copied. */
void log_routers(Log *l, const RouterMetrics *m);

/* The messages of the step that log_step records next: n groups, the same ones in every step. */
void log_groups(Log *l, const GroupTimes *g, int n);

/* A rank that takes longer for its own work than others. */
typedef struct {
    int rank;
    const char *host, *where;      /* where: "tp 0 cp 0 dp 1 pp 0" */
    const char *phase;             /* where it loses most: "backward" */
    const char *other[8];          /* [others] further phases in which it is slow */
    int others;
    double excess;                 /* time it loses, as a share: of the phase, or of its step */
    int of_phase;                  /* bool: of the phase */
    int peers;                     /* ranks of equal work that it is compared with; 0: its own past */
    int idle;                      /* bool: its main thread was on no core for so long */
    int intervals;                 /* in a row that it has been slow */
    int fresh;                     /* bool: it is found in this interval */
} SlowRank;
/* Ranks that are slow in the step that log_step records next. Texts are kept by address. */
void log_stragglers(Log *l, const SlowRank *s, int n);

/* Records a finished step. Redraws the live line on a terminal. Every cfg->log_interval iterations, and
 * after the last one, writes a line to every output. m is copied; its RATE fields are ignored. */
void log_step(Log *l, const Metrics *m);

/* The run stops after the step recorded last: writes that step's line unless it is written already. */
void log_last(Log *l);

/* Records the mean validation loss (nats a token) after `iteration` steps. */
void log_eval(Log *l, int64_t iteration, double loss);

/* Writes an object with `iteration` as a line of metrics.jsonl. */
void log_event(Log *l, const json_t *event);

/* Seconds of wall time since the run's first start, without the time in which no launcher ran. */
double log_wall(const Log *l);

/* Prints a line of text on standard output, above the live line. fmt: without a newline at its end. */
void log_note(Log *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Sets what the live line says the run is doing ("evaluating 3/10"). fmt NULL: training again. */
void log_status(Log *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Adds a named fact ("tokenizer", "corpus") to run.json, for the report. */
void log_fact(Log *l, const char *name, const char *text);
/* Sets the planned and used bytes of a memory category in run.json; -1: not known. */
void log_memory(Log *l, const char *category, int64_t planned, int64_t used);

/* Calls log_last, ends the live line, writes report.html and closes the files. Returns 1 if report.html is
 * written.
 * why: one line, how the run ended ("finished", "stopped by SIGTERM after a checkpoint"). */
int log_close(Log *l, const char *why);

/* Writes run_dir/report.html anew from metrics.jsonl, run.json, config.yaml, samples.jsonl, trace.json and
 * plan.json; any of them may be missing. Returns 1, or 0 with a reason in why when the page cannot be
 * written. */
int report_write(const char *run_dir, char why[WHY]);
/* Whether run_dir has no report.html that is as new as its metrics.jsonl: the job died before it wrote it. */
int report_lacks(const char *run_dir);
/* Writes run_dir/plan.json: the losses of a planned step, which the report sets beside those of the recorded
 * step of its iteration. Returns 1, or 0 with a reason in why. */
struct Losses;
int report_keep_plan(const char *run_dir, const struct Losses *planned, char why[WHY]);
/* Reads what report_keep_plan has written of the step `iteration`. plan: plan.json, or NULL. Returns 0 when
 * it is not there, not whole, or of another step. */
int report_kept_plan(struct Losses *planned, const json_t *plan, int64_t iteration);
#endif
