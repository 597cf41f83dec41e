/* bubble -- inside `train bubble`: a table of cells, each a pipeline with the times of its instructions, and
 * what is known of its bubble: simulated, in closed form, measured on the clock device, published by others.
 */
#ifndef BUBBLE_H
#define BUBBLE_H
#include "closed_form.h"
#include "config.h"
#include "custom.h"
#include <stdio.h>

/* Times of F, D, W and a message, ms, as they were given: one number (of a rank, shared evenly by its chunks;
 * of any message) or one a virtual stage. */
enum { TIME_F, TIME_D, TIME_W, TIME_HOP, TIMES };
typedef struct { int n; double *ms; } Times;
extern const char
    *const bubble_time_name[TIMES]; /* "forward_ms", ...: with clock_ before it the configuration's key */

typedef struct {
    char *label;                   /* of the cells' file; NULL */
    PipeShape shape;               /* its costs are in `cost`, its lists in `custom` */
    CustomLists *custom;           /* NULL: the schedule is no custom one */
    ScheduleSet set;               /* simulated: its lists */
    Times time[TIMES];
    double *cost;                  /* [TIMES][p*v] ms */
    double published, published_peak;      /* rate; activations of the fullest rank. NAN: none */
    Rates simulated, closed_form, measured;
    double span, *peak;            /* simulated: ms of the step; activations [p] */
    int steps; /* measured: how many steps; ms of the one in the middle, the fastest, the slowest */
    double measured_span, least, most;
} Cell;

typedef struct {
    int n;
    Cell *cell;
    int steps;                     /* to measure of every cell; 0: by their length */
} Table;

/* What the command line says instead of the configuration; NULL: nothing. Lists of names and numbers with
 * commas between. */
typedef struct { const char *schedules, *p, *m, *v; } BubbleRange;

/* The cells of cfg->clock_cells that the range lets pass, or else every legal combination of the range and
 * the configuration, whose times they take; with the times of 1 for the forward, and both halves of the
 * backward, of a rank where it has none and `timeless` allows it. Combinations that cannot be are named on
 * standard error when `says`; without any other it dies with EXIT_CONFIG. */
void bubble_open(Table *t, const Config *cfg, const BubbleRange *range, int timeless, int says);
void bubble_close(Table *t);

/* Adds a cell; time: of each kind, copied. shape: without costs. NULL, or why it cannot be; on the heap. */
char *bubble_add(Table *t, const PipeShape *shape, const Times time[TIMES], Cell **cell);

/* The same range as overrides of a configuration, for runs that really compute: one list for each pipeline.
 * raw: the configuration read with USE_BUBBLE. Returns their number; on the heap. */
typedef struct { int n; char *v[4]; } Overrides;
int bubble_overrides(const Config *raw, const BubbleRange *range, Overrides **list);

/* Simulated and closed form of every cell. */
void bubble_simulate(Table *t);
/* made: the shape whose lists run, where it has other costs than the cell. */
void bubble_simulate_cell(Cell *c, const PipeShape *made);

/* "zb-auto 8": the schedule, and its bound where it has one; in a memory of the caller's. */
const char *bubble_name(const Cell *c, char name[32]);

/* Measures the cells whose p is the world of this job on the clock device: some steps, of which the one in
 * the middle counts. A job of several ranks has no others, or dies with EXIT_CONFIG. Collective over all
 * ranks. */
void bubble_measure(Table *t);

/* The cells that are not measured yet, from a process that no launcher started: for one p after the other it
 * starts p ranks of this program, which measure the cells of that p, and takes over what they write. argv:
 * `bubble` CONFIG and what selects the cells, without
 * --p and outputs. Returns the exit code of a job that failed, which has said why, else 0. */
int bubble_launch(Table *t, int argc, char **argv);

/* One job that really computes what cfg says, on cfg->world ranks; argv: `bubble` CONFIG --real and what made
 * cfg. Adds its cell. Returns as bubble_launch does. */
int bubble_launch_real(Table *t, const Config *cfg, int argc, char **argv);

/* From the times of a step: its bubble, T from the shape's costs. span: of all ranks together, cost: the
 * longest of a rank. */
Rates bubble_rates(const PipeShape *s, double span, double cost);

/* Adds on rank 0 a cell of what the ranks of this job measure when they really compute: cfg's model and
 * schedule on tokens of no corpus, one step of warm-up, then `steps` steps without an update; the one in the
 * middle counts. Collective over all ranks. */
void bubble_real(Table *t, const Config *cfg, int steps);

/* Adds the cells that bubble_csv wrote, with all results. */
void bubble_read(Table *t, const char *path);

void bubble_print(FILE *f, const Table *t);
void bubble_json(FILE *f, const Table *t);
void bubble_csv(FILE *f, const Table *t);
void bubble_svg(FILE *f, const Table *t);
#endif
