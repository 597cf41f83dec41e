/* launch -- starts a job of several ranks of this executable, from a process without a launcher */
#ifndef LAUNCH_H
#define LAUNCH_H

/* Runs `train ARGV...` and waits until it has ended.
 *
 *   ranks    ranks of the job. Several are started by scripts/launch of the executable's tree, or by
 *            mpirun if the executable lies in no tree
 *   out      file for the job's standard output; NULL: it is dropped
 *   errors   file for its standard error; NULL: this process's standard error
 *   seconds  time limit; 0: none
 *
 * Returns the job's exit code, or LAUNCH_LATE if the limit ended it. SIGINT, SIGTERM and SIGHUP end the
 * job first, then this process. If this process is killed, the job ends after its current step. */
#define LAUNCH_LATE 124
int launch_job(int ranks, int argc, char **argv, const char *out, const char *errors, double seconds);
#endif
