/* bubble_table -- inside the making of a bubble table: what the command line, a configuration and a file of
 * cells have in common. */
#ifndef BUBBLE_TABLE_H
#define BUBBLE_TABLE_H
#include "base.h"
#include "bubble.h"

#define USAGE_ERROR(...) die(EXIT_CONFIG, "bubble", "train bubble: " __VA_ARGS__)

typedef struct { int n, *x; } Numbers;

/* What a range names; an empty list: everything. */
typedef struct { Numbers kind, p, m, v; } Wanted;
Wanted wanted_open(const BubbleRange *s);
void wanted_close(Wanted *w);
int wanted_holds(const Wanted *w, const PipeShape *s);

/* The pieces of a list with commas, one a call; NULL at its end. *rest begins as the whole list; the piece is
 * on the heap. */
char *bubble_next_piece(const char **rest);

/* Dies, naming `where`, when there is none of that name. */
ScheduleKind bubble_kind(const char *name, const char *where);

/* Those of the configuration; n = 0: it has none. A message takes nothing unless it says something. */
void bubble_times(const Config *cfg, Times time[TIMES]);
void bubble_times_close(Times time[TIMES]);

/* What of an activation stays until W. */
double bubble_weight_share(const Config *cfg);

/* Cells of cfg->clock_cells; of the range. */
void bubble_add_file(Table *t, const Config *cfg, const Wanted *w);
void bubble_add_range(Table *t, const Config *cfg, Wanted *w, const Times time[TIMES], int says);
#endif
