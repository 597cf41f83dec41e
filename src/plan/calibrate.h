/* calibrate -- measures this machine and writes its description. */
#ifndef CALIBRATE_H
#define CALIBRATE_H
#include "machine.h"

/* Times every operation in steps of a small model like cfg's, on one rank with all cores of this host
 * and on two ranks that share them, beside the reference of log_reference; then messages between the two
 * ranks; then steps of two ranks a core (calibrate_turns.h). Takes 20 s where steps are short, and up to 2
 * minutes on a host that others keep busy. A process that no launcher started starts the ranks. Collective
 * over the ranks of a launch.
 *   path  in  file for the description
 *   argv  in  [argc] the whole command, for the ranks */
void calibrate(const Config *cfg, const char *path, int argc, char **argv);

/* Whether nothing is at `path`, or a file that `calibrate` has written. */
int calibrate_may_write(const char *path);
#endif
