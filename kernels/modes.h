/* modes -- the floating-point modes of a thread: how it rounds, what it does with denormal numbers, and
 * whether exceptions trap. All results rest on the modes with which the system starts a thread. A library
 * may change them, as those do that are linked with -ffast-math; nothing of this program does. */
#ifndef MODES_H
#define MODES_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

typedef enum { MAIN_THREAD, POOL_THREAD, MESSAGE_THREAD } ModesThread;

/* Notes what differs in the modes of the calling thread, for modes_check. It costs a few nanoseconds. */
void modes_look(ModesThread thread);

/* The main thread: dies with EXIT_NUMERIC if its modes differ, or if modes_look has noted something.
 *   iteration  in  the one that runs, for the message; 0: the start */
void modes_check(int64_t iteration);
#ifdef __cplusplus
}
#endif
#endif
