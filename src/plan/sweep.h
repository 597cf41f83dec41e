/* sweep -- all legal layouts of a world, in the order of their predicted times; the best of them are
 * measured.
 *
 * A layout is tensor x sequence parallel x pipeline x chunks x context and its kind x data x expert x expert
 * tensor x sharding x micro batch x recomputation; all else comes from the configuration, whose rules decide
 * what is legal. Experts are cut over a divisor of the tensor ranks, or as the command line says.
 *
 * What overlaps with computing (overlap_grad_reduce, overlap_param_gather) is no layout of its own: a layout
 * gets the setting with the shortest predicted step. It is asked for where that can bring a layout among the
 * best OVERLAP_BEST (sweep_overlap.c).
 *
 * Sequences are shared out over ranks only where that can pay: a rank keeps at least CONTEXT_LEAST
 * positions, or the configuration has that context_parallel_size. */
#ifndef SWEEP_H
#define SWEEP_H
#include "config.h"
#include "drift.h"
#include <stdint.h>
#include <stdio.h>

typedef enum {
    LAYOUT_NONE,               /* not legal */
    LAYOUT_FITS,
    LAYOUT_TOO_LARGE,          /* memory is more than a rank has */
    LAYOUT_LARGER              /* the same with a smaller micro batch is too large; not predicted */
} LayoutState;
typedef enum { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL, RECOMPUTES } Recompute;
/* What overlaps with computing: nothing; the reduction of gradients; the gather of parameters, too. The last
 * breaks a rule, and is there because the command line may say it. */
typedef enum { OVERLAP_NONE, OVERLAP_GRADS, OVERLAP_ALL, OVERLAP_PARAMS, OVERLAPS } Overlap;

/* What layouts are ranked by: tokens a second, or what a token costs, in money or in energy. */
typedef enum { OBJECTIVE_TOKENS, OBJECTIVE_COST, OBJECTIVE_ENERGY, OBJECTIVES } Objective;
extern const char *const objective_name[OBJECTIVES + 1];
typedef enum { PREDICTED, MEASURED, TIMES } TimeKind;

/* X(id, name in files, title, format): what follows from the time of a step. */
#define RATE_NAMES(X)                                                                                        \
    X(TOKENS, "tokens_per_second", "tokens/s", "%.0f")                                                       \
    X(EFFICIENCY, "efficiency_percent", "efficiency %", "%.1f")                                              \
    X(COST, "cost_per_million_tokens", "cost of 1e6 tokens", "%.4g")                                         \
    X(ENERGY, "kwh_per_million_tokens", "kWh of 1e6 tokens", "%.4g")
typedef enum {
#define X(id, ...) RATE_##id,
    RATE_NAMES(X)
#undef X
    RATES
} RateKind;
extern const char *const rate_name[RATES], *const rate_title[RATES], *const rate_format[RATES];

typedef struct {
    int tp, rows, pp, v, dp, zero, micro, recompute; /* rows: bool, sequence parallel; zero: stage */
    int cp, kind, heads;           /* kind: ContextKind; heads: of a2a+p2p, ranks of an a2a group, else 0 */
    int ep, etp;                   /* without experts 1 and tp, as the configuration has it */
    Overlap overlap;
    int world;
    int64_t batch;                 /* samples of a step */
    double weight;                 /* the order is that of ms of a step times this */
    LayoutState state;
    double predicted, bubble;      /* ms of a step; its bubble rate */
    double exposed;                /* ms of it that a rank waits for the data group, at most */
    double sent; /* ms that messages of the data group are under way, of the rank with most */
    int64_t memory;                /* bytes of the fullest rank */
    uint64_t id;                   /* hash of the settings, by which measured rows are found again */
    Spread measured;               /* of its launches, in units of the reference; 0: not measured or failed */
    double raw;                    /* ms of a step as the clock said: median of the same launches */
    int rounds;                    /* launches behind `measured` */
    int equal;                     /* bool: as fast as the best of its world, as far as spreads tell */
    char why[200];                 /* why it could not be measured; "": it did not fail */
} SweepLayout;

/* One of the worlds that are compared. */
typedef struct {
    int world, legal, fit;         /* ranks; layouts */
    int64_t batch, reserve;        /* as in Sweep, as is */
    double room;
} SweepWorld;

typedef struct {
    const char *path;              /* of the configuration */
    int nargs;
    char **args;                   /* [nargs] key=value of the command line without swept keys */
    int ngiven;
    char **given;                  /* [ngiven] key=value of the command line, as given */
    int world;
    const char *machine;           /* as machine_load takes it */
    const char *schedule;          /* of the configuration; NULL: it names none */
    const char *dir;               /* folder for the results */
    int rows;                      /* sweep_open */
    uint64_t identity;             /* hash of model, batch, world and build of measured rows */
    int64_t batch, seq;            /* samples of a step of the last segment; tokens of a sample */
    int64_t experts;               /* of a layer; 0: layers are dense */
    int modules;                   /* bool: recompute_modules is set; layouts of `selective` have it */
    int layers;
    int measure, rounds, steps;    /* layouts to measure; launches of each; steps of a launch */
    double timeout;                /* s of a launch */
    Calibrated base;               /* unit of measured times; without a calibration, the launches' medians */
    int calibrated;                /* bool: base is a calibration's */
    int calibrations;              /* that may still be made; 0: a calibration that does not fit stays */
    double room;                   /* bytes that a rank may take */
    int64_t reserve;               /* bytes beside room that the libraries of a GPU take */
    SweepLayout only;              /* sizes that the command line fixes */
    unsigned fixed;                /* bits FIXED_*: which sizes of `only` */
    SweepLayout *layout;           /* [n] the legal layouts, in the order of sweep_sort */
    int n, fit;                    /* legal layouts; those that fit */
    int least;                     /* bool: only layouts that need least memory, and nothing overlaps */
    Objective objective;
    double price, watts;           /* of an hour of a rank; of a rank; NAN: not known */
    SweepWorld *worlds;            /* [nworlds] whose layouts are in `layout`; world is that of the first */
    int nworlds, weak;             /* weak: bool: the batch grows with the world */
    double alone[TIMES]; /* tokens/s of a rank in the best layout of the smallest world that has one */
} Sweep;

enum {
    FIXED_TP = 1,
    FIXED_ROWS = 2,
    FIXED_PP = 4,
    FIXED_V = 8,
    FIXED_ZERO = 16,
    FIXED_MICRO = 32,
    FIXED_RECOMPUTE = 64,
    FIXED_CP = 128,
    FIXED_KIND = 256,
    FIXED_EP = 512,
    FIXED_ETP = 1024,
    FIXED_GRADS = 2048,
    FIXED_PARAMS = 4096
};

#define CONTEXT_LEAST 4096
#define OVERLAP_BEST 50

/* Writes the settings of a layout as arguments of `train`; returns their number. */
#define LAYOUT_ARGS 18
typedef char LayoutArg[64];
int layout_args(const Sweep *s, const SweepLayout *l, LayoutArg text[LAYOUT_ARGS]);
/* How the context ranks of a layout exchange keys and values: "p2p", "a2a+p2p 2x4"; "": the configuration
 * says it, or there is one. */
const char *layout_kind(const Sweep *s, const SweepLayout *l, char text[24]);
extern const char *const layout_zero[4], *const layout_recompute[RECOMPUTES];
/* "", "grads", "grads, params": what overlaps. */
extern const char *const layout_overlap[OVERLAPS];
int overlap_grads(Overlap o);  /* whether it has overlap_grad_reduce, */
int overlap_params(Overlap o); /* overlap_param_gather */
/* Whether several ranks have the same parameters, so that a sharding strategy changes something. */
int layout_shards(const SweepLayout *l);
/* What follows from the predicted or the measured time; NAN: not known.
 * RATE_EFFICIENCY: tokens/s of a rank, in percent of those in the best layout of the smallest world of the
 * sweep that has one, predicted beside predicted and measured beside measured. */
double layout_rate(const Sweep *s, const SweepLayout *l, RateKind rate, TimeKind kind);
/* Whether it is known of some layout. */
int sweep_has_rate(const Sweep *s, RateKind rate);
/* SweepLayout.weight */
double layout_weight(const Sweep *s, int world, int64_t batch);
/* ms of a measured step, in units of the reference; 0: not measured. */
static inline double layout_measured(const SweepLayout *l) { return l->measured.ms; }
/* "measured", "predicted", "does not fit", or why it could not be measured. */
const char *layout_state(const SweepLayout *l);
static inline int layout_failed(const SweepLayout *l) { return l->why[0] != 0; }

/* Finds and predicts all legal layouts of s->world ranks, on all cores; s->n 0: none is legal.
 * c: the configuration with the sizes of any of them */
void sweep_plan(Sweep *s, const Config *c);
/* Opens dir/sweep.jsonl and locks it as s->rows, until the process closes it: this sweep is the only one that
 * writes into the folder. Removes the folders of launches that an earlier one has left. Dies with
 * EXIT_RESOURCE when it cannot be written or another sweep has it. */
void sweep_open(Sweep *s);
/* Measures the first s->measure layouts that fit, each in launches of its own. Every step is timed beside the
 * reference (drift.h), and counts in its units; the median of a launch's steps is the launch's time, the
 * median of its launches the layout's. There are `rounds` rounds over all of them, so that a passing
 * disturbance does not hit all launches of a layout. A layout that fails before it has been measured is not
 * tried again. Each result is written to dir/sweep.jsonl before the next launch. A result found there for
 * the same identity is not measured again, unless it was over fewer steps, or timed out with a shorter
 * timeout, or under conditions that the calibration does not fit.
 * Returns 1, before it is done, when the calibration does not fit any more and s->calibrations > 0:
 * calibrate, plan, and call it again. */
int sweep_measure(Sweep *s);
/* Bytes of parameters, gradients and optimizer state of the whole model, as one rank would have them:
 * however they are shared out, each is somewhere. 0: one rank cannot have the model. */
int64_t sweep_state(const Sweep *s);
/* Reads price and watts of the machine; price: the command line's, or NAN. Dies with EXIT_CONFIG when the
 * objective needs what is not there. */
void sweep_prices(Sweep *s, double price);
/* Adds the layouts of a sweep of one world to those of s. */
void sweep_join(Sweep *s, const Sweep *one);
/* Sorts all layouts of s, and finds s->alone. */
void sweep_compare(Sweep *s);
/* The fastest layout of a world; NULL: none fits, or none has such a time. */
const SweepLayout *sweep_best_of(const Sweep *s, int world, TimeKind kind);
/* Sorts: measured layouts by time, then those that fit by predicted time, then failed ones, then those
 * that do not fit. */
void sweep_sort(Sweep *s);

/* Prints a line for each layout; an empty field is not known. */
void sweep_csv(FILE *f, const Sweep *s);
/* Prints a self-contained page: bars of the best layouts, and a table that sorts. */
void sweep_page(FILE *f, const Sweep *s);
/* Prints the settings of the fastest working layout as YAML; nothing if there is none. */
void sweep_winner(FILE *f, const Sweep *s);
/* The first layout after sweep_sort; NULL: it does not fit or has failed. */
const SweepLayout *sweep_best(const Sweep *s);

/* ---- the parts, for sweep.c ---- */

struct Machine;
/* Predicts a layout. Returns 0 and leaves l->state when it is not legal. */
int sweep_predict(const Sweep *s, const struct Machine *m, SweepLayout *l);
/* Does one(ctx, i) for each i below n in processes of their own, as many as there are cores. They share only
 * memory that is mapped MAP_SHARED. what: what n counts, for the progress. */
void sweep_work(int n, void (*one)(void *ctx, int i), void *ctx, const char *what);
/* Whether the command line lets a layout have this setting. */
int sweep_may_overlap(const Sweep *s, Overlap o);
/* Chooses l->overlap of layouts l[n], which are shared by processes. */
void sweep_overlap(const Sweep *s, const struct Machine *m, SweepLayout *l, int n);
#endif
