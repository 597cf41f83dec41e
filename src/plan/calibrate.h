/* calibrate -- what this machine reaches, as a machine description. */
#ifndef CALIBRATE_H
#define CALIBRATE_H
#include "machine.h"

/* Times every operation in steps of a small model of cfg's kind, on one rank with all cores of this host and
 * on two that share them, then messages between the two, and writes the description to `path`. Takes 15 s
 * where steps are short. Started alone, it starts its two ranks itself, with `argv`, the whole command.
 * Collective over the ranks of a launch. */
void calibrate(const Config *cfg, const char *path, int argc, char **argv);
#endif
