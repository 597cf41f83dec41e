/* crash -- what a process says when a bug of this program ends it: SIGSEGV, SIGBUS, SIGILL, SIGFPE,
 * SIGABRT. It writes one error line with the signal, the rank and what the rank was doing, then the calls
 * that led there, and exits with EXIT_BUG. A rank that crashes after job_leave, in MPI or a library that
 * unloads, ends once the others have left too, with a warning: the job's code stands. At HANG_SIGNAL it
 * writes its calls to the flight record and goes on. */
#ifndef CRASH_H
#define CRASH_H

/* Sets the signal handlers, in the place of those that a library has left. */
void crash_listen(void);
#endif
