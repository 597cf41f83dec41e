/* losses -- where a step goes, measured and planned by the same names.
 *
 * A recorded step on a rank lasts from its first instruction's preparation until the next step begins,
 * with the save or the evaluation behind it. Each rank keeps the seconds of each loss as events of the
 * timeline that fill this time one behind the other (SPAN_LOSS). From the ranks together follow the losses
 * of the step: they are those of the rank that waits least for others. What this rank takes longer for its
 * own work than the ranks of equal work is LOSS_SLOWEST, what its stage takes longer than the mean stage
 * is LOSS_IMBALANCE. */
#ifndef LOSSES_H
#define LOSSES_H
#include <stdint.h>

/* X(id, name in JSON, text) */
#define LOSS_NAMES(X)                                                                                        \
    X(PEAK, "peak", "products and attention at the peak")                                                    \
    X(PRODUCTS, "below_peak", "products and attention below the peak")                                       \
    X(MEMORY, "memory", "memory traffic of other operations")                                                \
    X(CAST, "cast", "casts to FP8, bf16 or fp32")                                                            \
    X(LAUNCH, "launch", "launches")                                                                          \
    X(TENSOR, "tensor", "waiting for the tensor group")                                                      \
    X(CONTEXT, "context", "waiting for the context group")                                                   \
    X(EXPERT, "expert", "waiting for the expert group")                                                      \
    X(PIPELINE, "pipeline", "waiting for the pipeline")                                                      \
    X(DATA, "data", "waiting for the data group, or for all ranks")                                          \
    X(SLOWEST, "slowest", "waiting for the slowest rank")                                                    \
    X(IMBALANCE, "imbalance", "a stage with more work than the mean one")                                    \
    X(HOST, "host", "waiting for the host's launches")                                                       \
    X(LOADER, "loader", "waiting for a microbatch of the corpus")                                            \
    X(SAVE, "save", "waiting for a save")                                                                    \
    X(EVALUATION, "evaluation", "evaluation")                                                                \
    X(CORE, "core", "waiting for a core")                                                                    \
    X(OTHER, "other", "everything else")

typedef enum {
#define X(id, ...) LOSS_##id,
    LOSS_NAMES(X)
#undef X
    LOSSES
} LossKind;
extern const char *const loss_name[LOSSES], *const loss_text[LOSSES];

/* A step's losses. They add up to step. */
typedef struct Losses {
    int64_t iteration;             /* of a measured step */
    int rank;                      /* whose losses they are; of a planned step: of the pipeline */
    double step;                   /* s */
    double s[LOSSES];              /* s */
} Losses;

/* The largest loss beside LOSS_PEAK, which is none. */
LossKind losses_largest(const Losses *l);

/* The losses of the newest recorded step that all ranks have whole; fills *l.
 *   planned  in  NULL, or the same step's: its LOSS_PEAK then is the measured step's, of the same arithmetic
 *                at the machine's peak. Without it the peak is the speed of the step's fastest product
 * Returns 0 when no step has losses: none was recorded, or a GPU did the work, which is not measured. */
struct Timeline;
int losses_measured(Losses *l, const struct Timeline *t, const Losses *planned);
#endif
