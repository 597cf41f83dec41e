/* sweep -- every legal layout of a world, ranked by what the planner predicts; the best of them measured.
 *
 * A layout is tensor x sequence parallel x pipeline x chunks x data x sharding x micro batch x recomputation;
 * all else is the configuration's. What the rules of the configuration allow is legal, nothing is decided
 * here. */
#ifndef SWEEP_H
#define SWEEP_H
#include <stdint.h>
#include <stdio.h>

typedef enum {
    LAYOUT_NONE,               /* not legal */
    LAYOUT_FITS,
    LAYOUT_TOO_LARGE,          /* `memory` is more than a rank has */
    LAYOUT_LARGER              /* a smaller micro batch of the same is too large: nothing was predicted */
} LayoutState;
typedef enum { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL, RECOMPUTES } Recompute;

typedef struct {
    int tp, rows, pp, v, dp, zero, micro, recompute;   /* rows: sequence parallel; zero: ZeRO's stage */
    LayoutState state;
    double predicted, bubble;      /* ms of a step; rate */
    int64_t memory;                /* bytes of the fullest rank */
    uint64_t id;                   /* of its settings: how measured rows are found again */
    double measured;               /* ms of the fastest step; 0: not measured, or see why */
    int rounds;                    /* launches behind `measured` */
    char why[200];                 /* it could not be measured */
} SweepLayout;

typedef struct {
    const char *path;              /* of the configuration */
    int nargs;
    char **args;                   /* key=value of the command line, those that say what is swept left out */
    int world;
    const char *machine;           /* as machine_load takes it */
    const char *schedule;          /* the configuration's, NULL: it names none */
    const char *dir;
    uint64_t identity;             /* of model, batch, world and build: what measured rows are kept for */
    int64_t batch, seq;            /* samples of the last segment's step; tokens of a sample */
    int context;                   /* ranks of the context group */
    int measure, rounds, steps;    /* layouts to measure; launches of each, and their steps */
    double timeout;                /* s of a layout */
    double room;                   /* bytes that a rank may take */
    int64_t reserve;               /* bytes beside them that a GPU's libraries have */
    SweepLayout only;                   /* sizes that the command line has fixed */
    unsigned fixed;                /* bits of FIXED_ */
    SweepLayout *layout;                /* the legal ones in order: sweep_sort */
    int n, fit;                    /* all; those that fit */
} Sweep;

enum { FIXED_TP = 1, FIXED_ROWS = 2, FIXED_PP = 4, FIXED_V = 8, FIXED_ZERO = 16, FIXED_MICRO = 32,
      FIXED_RECOMPUTE = 64 };

/* A layout's settings as arguments of `train`; returns how many. */
#define LAYOUT_ARGS 10
typedef char LayoutArg[64];
int layout_args(const Sweep *s, const SweepLayout *l, LayoutArg text[LAYOUT_ARGS]);
extern const char *const layout_zero[4], *const layout_recompute[RECOMPUTES];
double layout_tokens_per_second(const Sweep *s, const SweepLayout *l);
/* "measured", "predicted", "does not fit", or why it could not be measured. */
const char *layout_state(const SweepLayout *l);
static inline int layout_failed(const SweepLayout *l) { return l->why[0] != 0; }

/* Finds and predicts all of them, on all cores. Dies with EXIT_CONFIG when none is legal. */
void sweep_plan(Sweep *s);
/* Measures the first `measure` that fit, each in launches of its own: all of them once, then all of them
 * again, `rounds` times, so that what disturbs the machine for a while does not meet the same layouts in all
 * of them; the fastest step counts. One that fails before it has been measured is not tried again. Every
 * result is in dir/sweep.jsonl before the next launch begins; what is known there for the same identity is
 * not measured again, unless over fewer steps, or too late within a shorter timeout. */
void sweep_measure(Sweep *s);
/* The measured first, in order; then those that fit by prediction, those that failed, those that do not fit.
 */
void sweep_sort(Sweep *s);

/* A line a layout; empty: not known. */
void sweep_csv(FILE *f, const Sweep *s);
/* One self-contained page: bars of the best, and a table that sorts. */
void sweep_page(FILE *f, const Sweep *s);
/* The fastest that works as YAML; nothing, if there is none. */
void sweep_winner(FILE *f, const Sweep *s);
const SweepLayout *sweep_best(const Sweep *s);
#endif
