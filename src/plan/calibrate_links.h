/* calibrate_links -- messages between two ranks of this host */
#ifndef CALIBRATE_LINKS_H
#define CALIBRATE_LINKS_H
#include "comm.h"
#include "machine.h"

/* Sets the keys of links: what a ring carries, warm and cold, what a rank sends to the other, and latency.
 * Collective over the two ranks of c. */
void calibrate_links(Machine *m, Comm *c);
/* Sets link_latency_crowded_us: of many short all-reduces one after the other, with more ranks than cores.
 * Collective over the group. */
void calibrate_sleepers(Machine *m, Comm *c);
#endif
