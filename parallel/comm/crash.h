/* crash -- the last words of a process that the system kills for a mistake of ours: SIGSEGV, SIGBUS, SIGILL,
 * SIGFPE, SIGABRT. One error line with the signal, the rank and what it was doing, the calls that led there,
 * EXIT_BUG. */
#ifndef CRASH_H
#define CRASH_H

/* From now on. A handler that somebody else has set (a sanitizer) stays. */
void crash_listen(void);
#endif
