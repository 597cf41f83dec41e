/* sweep -- every legal layout of a world, ranked by what the planner predicts; the best of them measured. */
#ifndef SWEEP_H
#define SWEEP_H
#include <stdint.h>
#include <stdio.h>

typedef enum { LAYOUT_NONE, LAYOUT_PLANNED, LAYOUT_TOO_LARGE } LayoutState;
typedef enum { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL, RECOMPUTES } Recompute;

typedef struct {
    int tp, rows, pp, v, dp, zero, micro, recompute;   /* rows: sequence parallel */
    LayoutState state;
    double predicted, bubble;      /* ms; rate */
    int64_t memory;                /* bytes of the fullest rank */
    double measured;               /* ms; 0: not measured, or see why */
    char why[200];                 /* it could not be measured */
} Layout;

typedef struct {
    const char *path;              /* of the configuration */
    int nargs;
    char **args;                   /* key=value of the command line */
    int world;
    const char *machine;           /* as machine_load takes it */
    const char *schedule;          /* the configuration's, NULL: it names none */
    const char *dir;
    uint64_t identity;             /* of configuration, arguments and world: what measured rows are kept for */
    int64_t batch, seq;            /* of the last segment */
    int measure, steps;            /* layouts to measure; steps of each */
    double timeout;                /* s of a layout */
    Layout *layout;                /* those that are legal, fastest first, what does not fit at the end */
    int n, fit;                    /* all; those that fit */
} Sweep;

/* A layout's settings as arguments of `train`; returns how many. */
#define LAYOUT_ARGS 10
int layout_args(const Sweep *s, const Layout *l, char text[LAYOUT_ARGS][160]);
extern const char *const layout_zero[4], *const layout_recompute[RECOMPUTES];

/* Finds and predicts all of them, on all cores. */
void sweep_plan(Sweep *s);
/* Measures the first `measure` that fit, each in a launch of its own; what dir/sweep.jsonl knows is not measured again. */
void sweep_measure(Sweep *s);
/* The measured first, in order; then by prediction. */
void sweep_sort(Sweep *s);

void sweep_csv(FILE *f, const Sweep *s);
void sweep_page(FILE *f, const Sweep *s);
/* The winner as YAML. */
void sweep_winner(FILE *f, const Sweep *s);
#endif
