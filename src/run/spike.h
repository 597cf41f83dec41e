/* spike -- finite steps whose loss or gradient norm is far above those of the steps before (on_spike).
 *
 * A step is judged by the good steps up to the one before the last: of these the host has the verdicts on
 * every device, so that the limits are known before the step starts and nothing waits. A limit is
 *     median + spike_sigma max(1.4826 MAD, 1 % of the median)
 * over the newest spike_window good steps (MAD: median of the distances from the median; 1.4826 MAD is the
 * standard deviation of normal numbers). With fewer good steps nothing is judged. A spike is not a good step.
 * The loss and the norm are those of the whole batch, so that every rank decides alike. */
#ifndef SPIKE_H
#define SPIKE_H
#include "config.h"
#include "device.h"
#include <jansson.h>

typedef struct { int64_t iteration; double loss, norm; } GoodStep;

/* A step above a limit. */
typedef struct {
    int64_t iteration;         /* 0: there is none */
    int64_t first, samples;    /* the step's samples in the run's order */
    double loss, norm;
    Limits limits;
    int64_t back;              /* iteration that a rewind has gone back to; -1: none has */
} Spike;

/* Samples [first, first + samples), which the weights have not seen because of the spike at `iteration`. */
typedef struct { int64_t iteration, first, samples; } LeftOut;

typedef struct {
    GoodStep *good;            /* [spike_window + 1] newest good steps, oldest first; NULL: on_spike none */
    int64_t n;                 /* good steps that are known */
    double *work;              /* [spike_window] */
    int64_t in_a_row;          /* spikes since the last good step */
    int64_t skipped;           /* iterations that the weights have not seen */
    LeftOut *out;              /* [nout] in the samples' order */
    int64_t nout;
    Spike now;                 /* the step collected last */
} Spikes;

void spikes_open(Spikes *s, const Config *cfg);
void spikes_close(Spikes *s);

/* The limits of the step `iteration`; INFINITY while too few good steps are known. */
Limits spikes_limits(const Spikes *s, const Config *cfg, int64_t iteration);

/* Judges a finished step, whose loss and norm are finite, and remembers it. Sets s->now. */
void spikes_see(Spikes *s, const Config *cfg, const Spike *step);

/* Whether a whole window of steps in a row was held: the level has changed for good. spikes_end dies of that
 * with EXIT_NUMERIC, once the last one is recorded. */
int spikes_stay(const Spikes *s, const Config *cfg);
_Noreturn void spikes_end(const Spikes *s, const Config *cfg);

/* Records that the weights have not seen the samples [first, first + samples). */
void spikes_leave_out(Spikes *s, int64_t iteration, int64_t first, int64_t samples);

/* What a checkpoint keeps of s, and the way back; a state without it leaves s empty. spikes_load returns 0
 * when the state is none that a run of `iteration` steps has written. */
json_t *spikes_state(const Spikes *s);
int spikes_load(Spikes *s, const Config *cfg, const json_t *state, int64_t iteration);

/* s->now as a line for people, and as a line of metrics.jsonl. From malloc. */
char *spikes_text(const Spikes *s, const Config *cfg);
json_t *spikes_record(const Spikes *s, const Config *cfg);
#endif
