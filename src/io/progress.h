/* progress -- one live line on a terminal, a plain line now and then in a file; on standard error. */
#ifndef PROGRESS_H
#define PROGRESS_H
#include <stdint.h>

/* `done` of `total` (any unit, total > 0) of the work `label`, with rate and time left. Cheap to call often:
 * it draws at most ten times a second on a terminal, else at the first call after each 10 s, and always when
 * done == total. The bar starts over when the label changes. `unit` names what done counts, one of a kind:
 * "B" is shown as MB. */
void progress_bar(const char *label, int64_t done, int64_t total, const char *unit);
#endif
