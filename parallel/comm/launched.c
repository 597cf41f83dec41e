/* launched -- how a process begins: with its launcher, whose number of ranks the environment says */
#define _GNU_SOURCE
#include "crash.h"
#include "flight.h"
#include "job.h"
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

int job_launched(int *rank)
{
    static const char *const names[][2] = {{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
                                           {"PMI_SIZE", "PMI_RANK"},
                                           {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *size = getenv(names[i][0]), *mine = getenv(names[i][1]);
        if (size && mine) {
            *rank = atoi(mine);
            return atoi(size);
        }
    }
    *rank = 0;
    return 1;
}

/* Undoes what a parent may have left: with SIGCHLD ignored waitpid() learns nothing of a child, and a signal
 * that is blocked never asks for a save or an end. */
static void signals_begin(void)
{
    sigset_t none;
    sigemptyset(&none);
    signal(SIGCHLD, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Runs at the exit of the only rank, of whose code Open MPI 5 says nothing. */
static void leave(int status, void *unused)
{
    (void)unused;
    if (job_pid() == getpid())         /* a forked child is no rank */
        job_leave(status);
}

void job_begin(void)
{
    int rank;
    signals_begin();
    int ranks = job_launched(&rank);
    if (ranks > 1 || getenv("OMPI_COMM_WORLD_SIZE"))
        prctl(PR_SET_PDEATHSIG, SIGKILL);      /* no rank outlives its launcher */
    crash_listen();
    if (ranks == 1 && getenv("GRIDIRON_PAGE")) {       /* with more ranks, comm_mpi.c opens both */
        job_page_open(job_page_make(1, 0), 1, 0, 0);
        flight_open(flight_make(1, 0), 1, 0, 0, 1, 0);
        on_exit(leave, NULL);
    }
}
