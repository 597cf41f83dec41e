/* calibrate -- what this machine reaches, as a machine description. */
#ifndef CALIBRATE_H
#define CALIBRATE_H
#include "machine.h"

/* Times the operations of a step of cfg's model at their sizes, with all cores of this host, then messages between two ranks,
 * and writes the description to `path`. Started alone, it starts its two ranks itself, with `argv`, the whole command.
 * Collective over the ranks of a launch. */
void calibrate(const Config *cfg, const char *path, int argc, char **argv);
#endif
