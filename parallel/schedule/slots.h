/* slots -- private to this room: what expand.c asks for when a list is whole (schedule_pack: schedule.h) */
#ifndef SLOTS_H
#define SLOTS_H
#include "schedule.h"

/* Fills slots, slot, life of a schedule whose v, m are set, from the rank's list of compute and messages.
 *   units  in  [v] as in Expand */
void slots_open(Schedule *s, const ScheduleSet *set, int rank, const int *units);
#endif
