/* calibrate_links -- messages between two ranks of this host */
#ifndef CALIBRATE_LINKS_H
#define CALIBRATE_LINKS_H
#include "comm.h"
#include "machine.h"

/* Sets the keys of links: what a ring carries, warm and cold, what a rank sends to the other, and latencies.
 * Afterwards ranks that wait sleep at once. Collective over the two ranks of c. */
void calibrate_links(Machine *m, Comm *c);
#endif
