/* schedule_svg -- a simulated pipeline as an SVG file: a row for each rank, time to the right. */
#ifndef SCHEDULE_SVG_H
#define SCHEDULE_SVG_H
#include "schedule.h"
#include "svg.h"

/* Prints the SVG file. sim: simulated with spans. unit: of the time axis. */
void schedule_svg(FILE *f, const ScheduleSet *set, const Simulation *sim, const char *title,
                  const char *unit);

/* Draws the bar of instruction i, with its microbatch's number where there is room. Used by every
 * drawing of a pipeline. v: chunks of the rank; later chunks are fainter. unit: of the
 * times that are shown on hover, as " ms". */
void lane_bar(const Svg *s, const Instr *i, int v, Span at, double y, double height, const char *unit);
/* Fills in the legend of the kinds in used [INSTR_KINDS], bool. Returns the number of entries. */
enum { LANE_KEYS = 9 };
int lane_keys(Key key[LANE_KEYS], const int *used, int v);
#endif
