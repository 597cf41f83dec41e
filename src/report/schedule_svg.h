/* schedule_svg -- a simulated pipeline as a drawing of its own: a row a rank, time to the right. */
#ifndef SCHEDULE_SVG_H
#define SCHEDULE_SVG_H
#include "schedule.h"
#include "svg.h"

/* sim: with spans. unit: of the time axis. */
void schedule_svg(FILE *f, const ScheduleSet *set, const Simulation *sim, const char *title,
                  const char *unit);

/* For every drawing of a pipeline's instructions: the bar of instruction i, of a rank with v chunks, with the
 * number of its microbatch where that has room. Later chunks are fainter. title: shown on hover. */
void lane_bar(const Svg *s, const Instr *i, int v, Span at, double y, double height, const char *title);
/* The legend of the instructions that are used[INSTR_KINDS]; returns how many. */
enum { LANE_KEYS = 9 };
int lane_keys(Key key[LANE_KEYS], const int *used, int v);
#endif
