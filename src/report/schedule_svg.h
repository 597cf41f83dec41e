/* schedule_svg -- a simulated pipeline as an SVG file: a row for each rank, time to the right. */
#ifndef SCHEDULE_SVG_H
#define SCHEDULE_SVG_H
#include "schedule.h"
#include <stdio.h>

/* Prints the SVG file. sim: simulated with spans. unit: of the time axis. */
void schedule_svg(FILE *f, const ScheduleSet *set, const Simulation *sim, const char *title,
                  const char *unit);
#endif
