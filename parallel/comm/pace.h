/* pace -- where the time of this process's main thread goes: messages, waiting for a core, its own work.
 *
 * Time in which the thread is ready to run and another thread has its core is told by the kernel
 * (schedstat). A thread that is stopped or asleep, or waits for a page of the disk, is not ready. The engine
 * notes waits and messages. All functions are local; on other threads they do nothing and give zeros. */
#ifndef PACE_H
#define PACE_H
#include "base.h"

typedef struct {
    double wall;                   /* s: now() */
    double away;                   /* s so far in waits for messages, and in moving them */
    double moving;                 /* s of away in which bytes were moved or added */
    double starved;                /* s so far without a core, waits for messages apart */
} Pace;
Pace pace_now(void);
int pace_knows_cores(void);        /* whether the kernel tells how long a thread waits for a core */

/* A stretch in which the thread waits for messages or moves them; there is none within another.
 *   starved  in  value of pace_starved when it began to wait; < 0: it did not wait */
void pace_away(double seconds, double starved);
void pace_moving(double seconds);  /* seconds of it in which something moved */
double pace_moved(void);           /* the sum of these seconds */
double pace_starved(void);         /* s so far that the thread has waited for a core, waits included */
#endif
