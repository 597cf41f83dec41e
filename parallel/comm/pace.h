/* pace -- where the time of this process's main thread goes: messages, waiting for a core, its own work.
 *
 * Time in which the thread is ready to run and another thread has its core is told by the kernel
 * (schedstat). A thread that is stopped or asleep, or waits for a page of the disk, is not ready: it is
 * idle. The engine notes waits and messages. All functions are local; on other threads they do nothing and
 * give zeros. */
#ifndef PACE_H
#define PACE_H
#include "base.h"

typedef struct {
    double wall;                   /* s: now() */
    double away;                   /* s so far in waits for messages, and in moving them */
    double moving;                 /* s of away in which bytes were moved or added */
    double starved;                /* s so far without a core, waits for messages apart */
    double idle;                   /* s so far neither on a core nor without one, waits for messages apart */
} Pace;

/* What the thread has had so far, waits for messages included. */
typedef struct {
    double starved;                /* s without a core though it was ready; < 0: not asked */
    double ran;                    /* s on a core */
    double at;                     /* s: now() */
} PaceMark;
PaceMark pace_mark(void);
Pace pace_now(void);
int pace_knows_cores(void);        /* whether the kernel tells how long a thread waits for a core */

/* A stretch ends in which the thread waited for messages or moved them; there is none within another.
 *   waits  in  when it began to wait, NULL: it only moved them */
void pace_away(double seconds, const PaceMark *waits);
void pace_moving(double seconds);  /* seconds of it in which something moved */
double pace_moved(void);           /* the sum of these seconds */
#endif
