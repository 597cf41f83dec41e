/* kept -- the batch of a step that went wrong, kept in RUN/replay/iter_N.json for `train replay`.
 *
 * The state before the step is not kept: the newest checkpoint before it and the steps from there on give the
 * same bits, unless deterministic_mode is false. The file names the step, what was wrong with it, its
 * samples, and their tokens, so that a corpus that has changed since is noticed. */
#ifndef KEPT_H
#define KEPT_H
#include "run.h"

typedef struct {
    char event[16];            /* "spike" or "not-finite" */
    int64_t iteration;
    int64_t first, samples;    /* in the run's order */
    double loss, norm;         /* NAN: not finite */
    Limits limits;             /* of a spike */
    int32_t *tokens;           /* [samples][seq_length + 1], from malloc */
} Kept;

/* Writes the file of a step: rank 0 of a run with a run directory and a corpus. A failure is a warning.
 *   m       in  the step: iteration, samples, loss, norm, loss scale, learning rate
 *   first   in  its first sample
 *   tensor  in  the first tensor that is not finite; NULL: a spike above `limits` */
void kept_write(const Run *r, const Metrics *m, int64_t first, Limits limits, const char *tensor);

/* Reads the file of `iteration`; -1: the newest. seq: tokens of a sample. Returns 1, or 0 and a reason. */
int kept_read(Kept *k, const char *run_dir, int64_t iteration, int64_t seq, char why[WHY]);
#endif
