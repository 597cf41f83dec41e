/* job -- the ranks that a launcher started on this host, and what they know of each other whatever their
 * main threads are doing: doorbells that wake a rank, which ranks are alive, which rank prints the one
 * error line of the job. All of it lies in one small page of memory that the ranks of a host share.
 *
 * A thread of every rank watches the other ranks of the host. A rank that ends without job_leave is lost:
 * the first rank to see that prints `error[rank-lost]` with what the lost rank was doing, and the job ends
 * with EXIT_COMM. The page is a file where GRIDIRON_PAGE gives a path (scripts/launch reads it when no
 * rank was left to print the line), else anonymous memory. All functions are local. */
#ifndef JOB_H
#define JOB_H
#include "base.h"

/* The number of ranks that a launcher (mpirun, srun) started, from its environment; 1 without a launcher.
 *   rank     out   this process's world rank; 0 without a launcher */
int job_launched(int *rank);

/* Makes the page of a host with `ranks` ranks; returns its descriptor.
 *   host     in    distinguishes the hosts of a job */
int job_page_make(int ranks, int host);

/* Maps the page and announces this process in it.
 *   fd       in    of the page; this call closes it
 *   ranks    in    on this host
 *   local    in    this rank's place among them
 *   rank     in    its world rank */
void job_page_open(int fd, int ranks, int local, int rank);
/* Starts the watch over the ranks of the host; from now on one rank prints the error line for all. Call it
 * when all ranks of the host have opened the page.
 *   abort_job  in  ends all ranks of the job with this code; does not return */
void job_watch(void (*abort_job)(int code));

/* Says goodbye: from now on this process may end without being lost. Rank 0 tells the launcher the code. */
void job_leave(int code);
int job_left(void);              /* whether this rank has said goodbye, and no rank here ends the job */
/* Waits, at most `seconds`, until every rank of the host has said goodbye. Returns whether all have. */
int job_all_left(double seconds);

/* Call it first: unblocks all signals and no longer ignores SIGCHLD, makes this process end with its
 * launcher, if it has one, and sets crash.h's handlers. The only rank of a job of scripts/launch opens its
 * page and flight record here; nobody watches over it. */
void job_begin(void);
/* Tells scripts/launch, if it has started this process: "together" (all ranks have found each other and
 * listen to signals, or one rank alone runs this command), "code N" (the code with which the job ends). */
void job_tell(const char *text);

int job_here(void);              /* whether job_watch watches over this process */
int job_ranks(void);             /* on this host; 1 without a page */
int job_local(void);             /* this rank's place among them */
int job_pid(void);               /* of the process that opened the page */
int job_cores(void);             /* number of cores that this rank may keep busy */
int job_sharers(void);           /* ranks of the host, this one too, that may run on some of these cores */

/* Doorbells. A rank with nothing to do sleeps on its own bell; a rank that changes what another may wait
 * for rings that one's bell. Any number of threads of a rank may sleep:
 *     seen = job_bell(); job_sleepy(1); if there is nothing to do: job_sleep(seen, seconds); job_sleepy(-1)
 * Before job_sleepy(1) nobody rings, so the look comes after it; a later ring ends the sleep at once. */
uint32_t job_bell(void);         /* counts the rings of this rank's bell */
void job_sleepy(int change);     /* adds to the number of threads that sleep or are about to */
void job_sleep(uint32_t seen, double seconds);     /* until the bell differs from seen, or for `seconds` */
void job_ring(int local);        /* wakes the threads of rank `local` that sleep, if any */

/* Notes where this rank stands in the grid ("rank 3 tp 1 cp 0 dp 0 pp 1"), for the error line. */
void job_where(const char *text);
const char *job_place(void);     /* what job_where noted; "" where no job was joined */
const char *job_doing(void);     /* what comm_note noted */

/* For a process that crashes with `code`: whether this rank is the one of its host that prints the error
 * line. */
int job_claim(int code);
void job_claimed(int code);      /* says that the line is printed, to the ranks and the launcher */
#endif
