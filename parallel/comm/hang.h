/* hang -- the watch for ranks that stand still. A job hangs when no rank of a host has made progress for
 * longer than the limit of what they do. Progress is an instruction, an operation or a piece of a message
 * that begins or ends, so what is slow is no hang. The rank that the others wait for is found in the flight
 * record; where it is on another host, its own host speaks first. A rank that is ready to run but gets no
 * processor, one whose pages come from the disk, and one that a debugger holds are no hang; after a stop of
 * the whole job or of the machine the count begins again. All functions are local. */
#ifndef HANG_H
#define HANG_H
#include "flight.h"

/* Switches the watch on.
 *   seconds  in    limit of a step; NAN: the longer of 10 s and three times the 99th percentile of this
 *                  run's steps; 0: no watch
 *   other    in    s: limit of what is not measured yet: the start, the first steps, the first save
 *   watched  in    bool: a thread of this host's ranks calls hang_look; else this process, which is the
 *                  whole job, starts one that does */
void hang_limits(double seconds, double other, int watched);

/* Looks once; the thread that watches the ranks calls it about every HANG_LOOK_MS. Dies with EXIT_COMM if
 * the job hangs.
 *   local    in    this rank's place on the host */
void hang_look(int local);
#define HANG_LOOK_MS 500
#define HANG_THREAD "watch"        /* name of that thread */

/* After hang_look has died: prints the calls of the rank that hangs, on standard error. */
void hang_calls(void);

/* The signal at which a rank writes its calls to the flight record (crash.c). */
#define HANG_SIGNAL (SIGRTMIN + 6)
#endif
