/* bubble -- the table of `train bubble`. A cell is a pipeline with the times of its instructions, and
 * its bubble: simulated, in closed form, measured on the clock device, published by others. */
#ifndef BUBBLE_H
#define BUBBLE_H
#include "closed_form.h"
#include "config.h"
#include "custom.h"
#include <stdio.h>

enum { TIME_F, TIME_D, TIME_W, TIME_HOP, TIMES };      /* F, D, W, a message */
/* Given times of one kind, [n] ms. n > 1: one for each virtual stage. n 1: of a rank, shared evenly by
 * its chunks, or of any message. */
typedef struct { int n; double *ms; } Times;
/* "forward_ms", ...; the configuration's key has clock_ before it. */
extern const char *const bubble_time_name[TIMES];

typedef struct {
    char *label;                   /* from the cells' file; NULL: none */
    PipeShape shape;               /* its costs point into `cost`, its lists into `custom` */
    CustomLists *custom;           /* NULL: the schedule is not `custom` */
    ScheduleSet set;               /* the simulated lists */
    Times time[TIMES];             /* as given */
    double *cost;                  /* [TIMES][p*v] ms */
    double published;              /* rate; NAN: none */
    double published_peak;         /* activations of the fullest rank; NAN: none */
    Rates simulated, closed_form, measured;
    double span, *peak;            /* simulated: ms of the step; [p] peak activations, in microbatches */
    int steps;                     /* measured steps; 0: not measured */
    double measured_span;          /* ms of the measured step in the middle */
    double least, most;            /* ms of the fastest and of the slowest measured step */
} Cell;

typedef struct {
    int n;
    Cell *cell;
    int steps;                     /* to measure of every cell; 0: chosen by the length of a step */
} Table;

/* What the command line names instead of the configuration: lists with commas; NULL: not given. */
typedef struct { const char *schedules, *p, *m, *v; } BubbleRange;

/* Adds the cells of cfg->clock_cells that the range names to a table without cells; without clock_cells, with
 * every legal combination of the range and the configuration. Dies with EXIT_CONFIG when there is no
 * cell.
 *   timeless  in  bool: a configuration without times means 1 ms for each of F, D, W of a rank
 *   says      in  bool: name illegal combinations on standard error */
void bubble_open(Table *t, const Config *cfg, const BubbleRange *range, int timeless, int says);
void bubble_close(Table *t);

/* Adds a cell. time: copied. shape: without costs. Returns NULL, or on the heap why it is illegal. */
char *bubble_add(Table *t, const PipeShape *shape, const Times time[TIMES], Cell **cell);

/* The range as overrides of a configuration, for runs that really compute.
 *   raw   in   the configuration, read with USE_BUBBLE
 *   list  out  one entry for each pipeline; on the heap
 * Returns the number of entries. */
typedef struct { int n; char *v[5]; } Overrides;       /* [n] "key=value" */
int bubble_overrides(const Config *raw, const BubbleRange *range, Overrides **list);

/* Fills in the simulated and closed-form results of every cell. */
void bubble_simulate(Table *t);
/* Fills them in for one cell. made: the shape for making the lists; its costs may differ from c's. */
void bubble_simulate_cell(Cell *c, const PipeShape *made);

/* The schedule, and its bound where it has one: "zb-auto 8". Returns name. */
const char *bubble_name(const Cell *c, char name[32]);

/* Measures the cells whose p is the number of ranks of this job, on the clock device: several steps, of
 * which the one in the middle counts. A job of several ranks dies with EXIT_CONFIG when there is another
 * cell. Collective over all ranks. */
void bubble_measure(Table *t);

/* Measures the cells without measurements, from a process that no launcher started. For each p it starts
 * a job of p ranks of this program, which measures the cells of that p, and reads the job's CSV. argv:
 * `bubble` CONFIG and the flags that select cells, without --p and outputs. Returns 0, or the exit code
 * of the first failed job, which has printed why. */
int bubble_launch(Table *t, int argc, char **argv);

/* Starts a job of cfg->world ranks that really computes cfg's model, and adds its cell.
 * argv: `bubble` CONFIG --real and the overrides of cfg. Returns as bubble_launch does. */
int bubble_launch_real(Table *t, const Config *cfg, int argc, char **argv);

/* The bubble of a step, with T from the shape's costs. span: ms from the first start to the last end of
 * all ranks. cost: the longest such ms of a rank. */
Rates bubble_rates(const PipeShape *s, double span, double cost);

/* Runs cfg's model and schedule on made-up tokens: one step of warm-up, then `steps` steps without an
 * update. Adds on rank 0 a cell of the step in the middle. Collective over all ranks. */
void bubble_real(Table *t, const Config *cfg, int steps);

/* Adds the cells of a file that bubble_csv wrote, with all results. */
void bubble_read(Table *t, const char *path);

void bubble_print(FILE *f, const Table *t);
void bubble_json(FILE *f, const Table *t);
void bubble_csv(FILE *f, const Table *t);
void bubble_svg(FILE *f, const Table *t);
#endif
