/* schedule_svg -- a simulated pipeline as a drawing of its own: a row a rank, time to the right. */
#ifndef SCHEDULE_SVG_H
#define SCHEDULE_SVG_H
#include "schedule.h"
#include <stdio.h>

/* sim: with spans. unit: of the time axis. */
void schedule_svg(FILE *f, const ScheduleSet *set, const Simulation *sim, const char *title,
                  const char *unit);
#endif
