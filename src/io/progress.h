/* progress -- progress on standard error: one live line on a terminal, a line now and then in a file */
#ifndef PROGRESS_H
#define PROGRESS_H
#include <stdint.h>

/* Shows how much of a piece of work is done, its rate and the time left.
 *
 *   label  name of the work; the bar starts over when it changes
 *   done   units that are done
 *   total  units of the whole work, > 0
 *   unit   name of one unit: "B" is shown as MB
 *
 * A call is cheap: it draws at most ten times a second on a terminal, else once in 10 s, and always when
 * done == total. */
void progress_bar(const char *label, int64_t done, int64_t total, const char *unit);
#endif
