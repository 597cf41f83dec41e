/* save_time -- what the time of a save decides: whether a run that must stop saves first. */
#ifndef SAVE_TIME_H
#define SAVE_TIME_H
#include "config.h"

/* Seconds from SIGTERM to the kill, as far as this process knows: sigterm_grace, or its default. */
double save_time_grace(const Config *c);

/* Whether a save that ends `end` seconds after a signal is on the disk before the kill, `grace` seconds after
 * the signal. */
int save_time_fits(double end, double grace);
#endif
