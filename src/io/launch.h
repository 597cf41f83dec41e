/* launch -- jobs of several ranks of this very executable, started from a process that no launcher started.
 */
#ifndef LAUNCH_H
#define LAUNCH_H

/* Runs `train ARGV...` on `ranks` ranks through scripts/launch of the tree in which the executable lies
 * (mpirun, where it lies in none; one rank needs neither) and returns its exit code; LAUNCH_LATE when it has
 * been ended after `seconds` (0: no limit). Standard output goes to the file `out`, errors to `errors`; NULL:
 * nowhere, and where ours go. SIGINT, SIGTERM and SIGHUP end the job first and then this process; when this
 * process is killed the job ends after the step that it is at. */
#define LAUNCH_LATE 124
int launch_job(int ranks, int argc, char **argv, const char *out, const char *errors, double seconds);
#endif
