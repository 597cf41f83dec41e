/* comm_mpi -- how ranks find each other over MPI */
#define _GNU_SOURCE
#include "comm_mpi.h"
#include "flight.h"
#include "group.h"
#include "host_memory.h"
#include "job.h"
#include "wire.h"
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static MPI_Comm world = MPI_COMM_NULL; /* a duplicate, so that no other MPI user's message meets ours */
static int world_rank, world_size;
static int *host_of;                       /* [world] lowest world rank of the rank's host */
static int *place_of;                      /* [world] place in the page of this real host; -1: elsewhere */
static int next_id;                        /* groups that the world has opened */

#define BOOT_TAG 0                         /* groups have ids from 1 on, so their tags begin at TAGS */

/* ---- the job ---- */

/* Ends all ranks. Another thread may be inside MPI; if it does not leave MPI in time, the launcher ends
 * the job when it sees this rank end. */
static void abort_job(int code)
{
    if (engine_try_lock(0.2))
        MPI_Abort(MPI_COMM_WORLD, code);
    _exit(code);
}

/* Runs at exit: leaves the job together with the other ranks. After a failure of this rank alone the
 * others do not come, and MPI is left unfinished. */
static void leave(int status, void *unused)
{
    (void)unused;
    int over;
    if (job_pid() != getpid())             /* a forked child is no rank: it has no thread to end, no MPI */
        return;
    engine_close();
    MPI_Finalized(&over);
    if (over)
        return;
    job_leave(status);
    if (!status || job_all_left(2))
        MPI_Finalize();
}

/* Numbers the hosts by their lowest ranks. every > 0: within a real host, each `every` ranks count as one. */
static void find_hosts(int every)
{
    MPI_Comm host;
    wire_check(MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host), "find hosts");
    int lowest = world_rank, mine[2];
    wire_check(MPI_Bcast(&lowest, 1, MPI_INT, 0, host), "find hosts");
    wire_check(MPI_Comm_rank(host, &mine[1]), "find hosts");
    mine[0] = lowest;
    int *all = xcalloc(2 * (size_t)world_size, sizeof *all);
    wire_check(MPI_Allgather(mine, 2, MPI_INT, all, 2, MPI_INT, world), "find hosts");
    host_of = xcalloc((size_t)world_size, sizeof *host_of);
    place_of = xcalloc((size_t)world_size, sizeof *place_of);
    for (int r = 0; r < world_size; r++) {
        place_of[r] = all[2 * r] == lowest ? all[2 * r + 1] : -1;
        host_of[r] = r;
        for (int q = 0; q < r; q++)
            if (all[2 * q] == all[2 * r] && (!every || q / every == r / every)) {
                host_of[r] = q;
                break;
            }
    }
    free(all);
    wire_check(MPI_Comm_free(&host), "find hosts");
}

/* Shares memory that the first member of this host has made; the others open it through /proc. Returns
 * this process's descriptor.
 *   fd       in          of the memory; used on the first member only
 *   member   in   [n]    world ranks of the members of this host
 *   what     in          for error lines */
static int share_descriptor(int fd, const int *member, int n, const char *what)
{
    int mine[2] = {(int)getpid(), fd}, ack = 0;
    if (n > 1 && member[0] != world_rank) {
        wire_check(MPI_Recv(mine, 2, MPI_INT, member[0], BOOT_TAG, world, MPI_STATUS_IGNORE), what);
        fd = host_memory_open(mine[0], mine[1], member[0], world_rank);
        wire_check(MPI_Send(&ack, 1, MPI_INT, member[0], BOOT_TAG, world), what);
        return fd;
    }
    for (int i = 1; i < n; i++)
        wire_check(MPI_Send(mine, 2, MPI_INT, member[i], BOOT_TAG, world), what);
    for (int i = 1; i < n; i++)            /* the descriptor stays open until all have it */
        wire_check(MPI_Recv(&ack, 1, MPI_INT, member[i], BOOT_TAG, world, MPI_STATUS_IGNORE), what);
    return fd;
}

/* Opens the page of this host and starts the watch over its ranks. */
static void open_page(void)
{
    int n = 0, *member = xcalloc((size_t)world_size, sizeof *member);
    for (int r = 0; r < world_size; r++)
        if (place_of[r] >= 0)
            member[n++] = r;
    int fd = place_of[world_rank] ? -1 : job_page_make(n, world_rank);
    job_page_open(share_descriptor(fd, member, n, "start"), n, place_of[world_rank], world_rank);
    fd = place_of[world_rank] ? -1 : flight_make(n, world_rank);
    flight_open(share_descriptor(fd, member, n, "start"), n, place_of[world_rank], world_rank, world_size,
                member[0]);
    free(member);
    wire_check(MPI_Barrier(world), "start");
    job_watch(abort_job);
    wire_check(MPI_Barrier(world), "start");
    if (world_rank == 0)
        job_tell("together");
}

int comm_mpi_host(void) { return host_of ? host_of[world_rank] : 0; }

static int ranks_per_host(void)
{
    const char *text = getenv("GRIDIRON_RANKS_PER_HOST");
    if (!text || !*text)
        return 0;
    char *end;
    long k = strtol(text, &end, 10);
    if (*end || k < 1 || k > 1 << 20)
        die(EXIT_CONFIG, "environment", "GRIDIRON_RANKS_PER_HOST=%s; change: a number of ranks from 1 on, or "
            "leave it out", text);
    return (int)k;
}

void comm_mpi_start(void)
{
    int level;
    if (world != MPI_COMM_NULL)
        return;
    job_begin();
    MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    if (level < MPI_THREAD_SERIALIZED)
        die(EXIT_COMM, "mpi",
            "this MPI allows calls from one thread only; change: use one built with threads");
    MPI_Comm_dup(MPI_COMM_WORLD, &world);
    MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
    MPI_Comm_rank(world, &world_rank);
    MPI_Comm_size(world, &world_size);
    int rank, launched = job_launched(&rank);
    if (launched != world_size || rank != world_rank)
        die(EXIT_COMM, "mpi", "the launcher says rank %d of %d, MPI says %d of %d; change: start with the "
            "mpirun of the MPI that this was built with (srun: --mpi=pmix)", rank, launched, world_rank,
            world_size);
    find_hosts(ranks_per_host());
    wire_open(MPI_Comm_c2f(world), place_of);
    open_page();
    int threads = job_cores() / job_sharers();
    comm_threads(threads ? threads : 1);
    on_exit(leave, NULL);
}

void comm_mpi_skip(void) { next_id++; }

void comm_mpi_open(Comm *c, const char *name, const int *member, int n)
{
    engine_lock();
    Group *g = group_plan(name, ++next_id, member, n, host_of, world_rank);
    int *local = xcalloc((size_t)g->m, sizeof *local);
    for (int i = 0; i < g->m; i++) {
        local[i] = g->world[g->local[i]];
        g->bell[i] = place_of[local[i]];
    }
    if (g->m > 1) {
        int fd = share_descriptor(g->me ? -1 : group_segment_make(g), local, g->m, name);
        group_segment_map(g, fd);
    } else
        group_segment_map(g, group_segment_make(g));
    free(local);
    g->flight = flight_group(name, g->id, g->world, g->size);
    group_comm(g, c);
    engine_unlock();
}
