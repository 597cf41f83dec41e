/* crash -- what a process says when a bug of this program ends it: SIGSEGV, SIGBUS, SIGILL, SIGFPE,
 * SIGABRT. It writes one error line with the signal, the rank and what the rank was doing, then the calls
 * that led there, and exits with EXIT_BUG. At HANG_SIGNAL it writes its
 * calls to the flight record and goes on. */
#ifndef CRASH_H
#define CRASH_H

/* Sets the signal handlers. A handler that is there already (a sanitizer's) stays. */
void crash_listen(void);
#endif
