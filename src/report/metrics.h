/* metrics -- the metrics table, and what a run tells about itself.
 *
 * One row of METRICS is one number of a step; it feeds the progress line, metrics.jsonl, TensorBoard and
 * the report. metrics.jsonl is the single source of truth: the report's curves are made from it alone, so a
 * resumed run's report shows the whole history. Only rank 0 opens a Log.
 * X(field, type, unit, over ranks, over steps, TensorBoard tag, Megatron-LM's where it has one, or "", label
 * in the report)
 *   over ranks   SAME: every rank has it already; MAX, MEAN: metrics_reduce makes it
 *   over steps   what a line says about the steps since the line before it:
 *                OWN   the value of the line's own step: nothing that describes the training is averaged, so
 *                      that a resumed run writes the same bits
 *                TIME  the mean a step
 *                COUNT the growth of a total that the caller counts from the start of training and keeps in
 *                      its checkpoint: exact when a run stops between two lines
 *                RATE  filled in by log_step from the others, over the same steps; the caller leaves it 0
 * Units: ms wall time; tokens a second of the whole job; TFLOP/s and bytes a rank. A number that is not
 * finite or not known is null in JSON. */
#ifndef METRICS_H
#define METRICS_H
#include "comm.h"
#include "config.h"
#include "file.h"

/* params_norm, num_zeros: of a logged step, where log_params_norm and log_num_zeros_in_grad ask for them,
 * else NAN. elapsed_ms is a whole step without saving and evaluating, which have times of their own; what
 * data, forward, backward and optimizer leave of it is the report's "other". */
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
    X(params_norm,        NUM, "",         SAME, OWN,   "params-norm",         "parameter norm")             \
    X(num_zeros,          NUM, "",         SAME, OWN,   "num-zeros",           "zeros in the gradient")      \
    X(data_ms,            NUM, "ms",       MEAN, TIME,  "time/data",           "data")                       \
    X(forward_ms,         NUM, "ms",       MEAN, TIME,  "time/forward",        "forward")                    \
    X(backward_ms,        NUM, "ms",       MEAN, TIME,  "time/backward",       "backward")                   \
    X(optimizer_ms,       NUM, "ms",       MEAN, TIME,  "time/optimizer",      "optimizer")                  \
    X(checkpoint_ms,      NUM, "ms",       MAX,  TIME,  "time/checkpoint",     "checkpoint")                 \
    X(eval_ms,            NUM, "ms",       MAX,  TIME,  "time/eval",           "evaluation")

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

/* The value of row i as a double (integers are exact up to 2^53), and back. */
double metric_get(const Metrics *m, int i);
void metric_set(Metrics *m, int i, double v);

/* Reduces a step's numbers over the ranks of `all` as the table says, in place. Collective. */
void metrics_reduce(Metrics *m, Comm *all);

/* Anonymous and shared resident memory of this process in bytes; mapped files (a corpus) do not count. */
int64_t metrics_memory_resident(void);

/* ---- The log of a run ---- */

typedef struct {
    const char *run_dir;           /* exists already; NULL: no files, console only */
    int64_t resume_iteration;      /* the iteration whose checkpoint was loaded, 0 for a fresh start */
    int64_t total_iterations;
    int devices;                   /* ranks that compute; 0 counts as 1 */
    double flops_per_token;        /* forward and backward of the whole model, 0 = not known */
    int64_t parameters;            /* of the whole model, for the report; 0 = not known */
    const char *command, *build;   /* for the report; NULL = left out */
    const char *id;                /* of the run, in every line of metrics.jsonl; NULL = left out */
} LogStart;

/* Only rank 0 has one: the functions below do nothing with NULL. */
typedef struct Log Log;

/* Opens the log and, in a run directory, its files. A metrics.jsonl that is there is continued: lines of
 * iterations after resume_iteration are dropped (whole file rewritten beside and renamed), so that a resumed
 * run's file equals an undisturbed run's, times apart; a fresh start empties it. Ignores SIGPIPE: a standard
 * output that has gone away or a full disk never stops training; the gap is counted and reported on standard
 * error by log_close. Files that cannot be opened at the start are EXIT_RESOURCE. */
Log *log_open(const Config *cfg, const LogStart *start);

/* One finished step. Redraws the live line on a terminal; every cfg->log_interval iterations, and after the
 * last one, writes a line everywhere. m is copied; RATE fields are ignored. */
void log_step(Log *l, const Metrics *m);

/* The run stops behind the last step: writes its line when it has none, in the middle of an interval. */
void log_last(Log *l);

/* Mean validation loss (nats a token) after `iteration` steps. */
void log_eval(Log *l, int64_t iteration, double loss);

/* A line of text on standard output that does not tear the live line; no newline at its end. */
void log_note(Log *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* What the run is doing now, for the live line of a terminal ("evaluating 3/10"); NULL: training again. */
void log_status(Log *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* For the report: a named fact ("tokenizer", "corpus"), memory of a category as planned and as used in bytes
 * (-1 = not known; the last call of a category wins). Kept in run.json. */
void log_fact(Log *l, const char *name, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void log_memory(Log *l, const char *category, int64_t planned, int64_t used);

/* log_last, then ends the live line, closes the files and writes report.html
 * last. why: how the run ended, one line
 * ("finished", "stopped by SIGTERM after a checkpoint"). */
void log_close(Log *l, const char *why);

/* Makes run_dir/report.html anew from metrics.jsonl, run.json, config.yaml, samples.jsonl and trace.json, of
 * which any may be missing. Returns 1, or 0 with a reason in why when the page cannot be written. */
int report_write(const char *run_dir, char why[WHY]);
#endif
