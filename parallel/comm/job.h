/* job -- the processes that a launcher started on this host, and what they must know of each other whatever
 * the main thread of any of them is doing: doorbells to wake one that waits, who still lives, who may print
 * the one error line of the job. All of it lies in one small page that the ranks of a host share.
 *
 * A thread of every rank sleeps until another rank of the host ends. One that ends without having said
 * goodbye is lost: the first to see it prints `error[rank-lost]` with what that rank was doing, and the job
 * ends with EXIT_COMM. The page is a file when GRIDIRON_PAGE gives a path (scripts/launch reads it when
 * nobody was left to speak), else it has no name. */
#ifndef JOB_H
#define JOB_H
#include "base.h"

/* The number of ranks that a launcher (mpirun, srun) started, by its environment; 1 without a launcher.
 * rank: out, which of them this process is. */
int job_launched(int *rank);

/* Makes the page of a host of `ranks` ranks; returns its descriptor. host: distinguishes the hosts of a job.
 */
int job_page_make(int ranks, int host);

/* Maps the page (fd, closed by this) as local rank `local`, world rank `rank`, and announces this process;
 * job_watch, once all ranks of the host have done so, starts the watch over them and the rule that one rank
 * speaks for all. */
void job_page_open(int fd, int ranks, int local, int rank);
void job_watch(void (*abort_job)(int code));

/* Says goodbye: what happens to this process from now on is no loss to anybody. */
void job_leave(void);
/* Waits, at most `seconds`, until every rank of the host has said goodbye. Returns whether all have. */
int job_all_left(double seconds);

/* First of all: a process that a launcher has started ends with it, and one that crashes says so (crash.h).
 */
void job_begin(void);
/* Tells scripts/launch, where that has started this process: "together" (all ranks have found each other and
 * listen to signals, or this command is done by one of them), "code N" (with which code the job ends). */
void job_tell(const char *text);

int job_here(void);              /* whether there is a page */
int job_ranks(void);             /* on this host; 1 without a page */
int job_local(void);             /* which of them this is */
int job_pid(void);               /* of the process that opened the page */
int job_cores(void);             /* the cores this rank may run on */
int job_sharers(void); /* ranks of the host that may run on some of the same cores, this one included */

/* Doorbells. A rank that finds nothing to do sleeps on its own; who changes something that it may wait for
 * rings.
 *     seen = job_bell(); look; job_sleepy(1); look again; job_sleep(seen, seconds); job_sleepy(-1)
 * looks twice, so that a ring between the looks is not lost. Any number of threads of a rank may sleep. */
uint32_t job_bell(void);
void job_sleepy(int change);
void job_sleep(uint32_t seen, double seconds);
void job_ring(int local);        /* wakes the rank's sleepers, if it has any */

/* Where this rank stands ("rank 3 tp 1 cp 0 dp 0 pp 1") and what it is doing (comm_note), for whoever must
 * report its end. */
void job_where(const char *text);
const char *job_place(void);     /* "" where no job was joined */
const char *job_doing(void);

/* For a process that cannot come back: whether it is the one of its host that speaks, and that it has spoken.
 */
int job_claim(int code);
void job_claimed(void);
#endif
