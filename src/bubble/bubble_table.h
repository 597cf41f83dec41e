/* bubble_table -- how a bubble table is filled: helpers for ranges, configurations and files of cells.
 * Private to the room. */
#ifndef BUBBLE_TABLE_H
#define BUBBLE_TABLE_H
#include "base.h"
#include "bubble.h"

#define USAGE_ERROR(...) die(EXIT_CONFIG, "bubble", "train bubble: " __VA_ARGS__)

typedef struct { int n, *x; } Numbers;             /* [n] */

/* The schedules, p, m and v that a range names; an empty list: everything. */
typedef struct { Numbers kind, p, m, v; } Wanted;
Wanted wanted_open(const BubbleRange *s);
void wanted_close(Wanted *w);
/* Whether the range names the pipeline. */
int wanted_holds(const Wanted *w, const PipeShape *s);

/* Returns the next piece of a list with commas, without blanks at its ends, on the heap; NULL at its end.
 * *rest: in/out, at first the whole list, then what is left of it. */
char *bubble_next_piece(const char **rest);

/* The schedule of that name. Dies, naming `where`, when there is none. */
ScheduleKind bubble_kind(const char *name, const char *where);

/* The times of the configuration; n 0: it has none. A message without a time takes 0 ms. */
void bubble_times(const Config *cfg, Times time[TIMES]);
void bubble_times_close(Times time[TIMES]);

/* The share of an activation that stays until W. */
double bubble_weight_share(const Config *cfg);
/* PipeShape's group and limit; 0: the configuration does not say. */
int bubble_group(const Config *cfg);
int bubble_limit(const Config *cfg);

/* Add the cells of cfg->clock_cells that w names; the cells of the range w. */
void bubble_add_file(Table *t, const Config *cfg, const Wanted *w);
void bubble_add_range(Table *t, const Config *cfg, Wanted *w, const Times time[TIMES], int says);
#endif
