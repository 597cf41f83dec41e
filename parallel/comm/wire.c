/* wire -- messages between hosts, over MPI */
#include "wire.h"
#include "engine.h"
#include "job.h"
#include <mpi.h>

static MPI_Comm world;
static const int *place_of;                /* [world] as in wire_open */

static MPI_Request *wire;
static int *vacant_wire;
static int wires, nvacant;

static int new_wire(void)
{
    if (!nvacant) {
        wire = xrealloc(wire, (size_t)(wires + 64) * sizeof *wire);
        vacant_wire = xrealloc(vacant_wire, (size_t)(wires + 64) * sizeof *vacant_wire);
        for (int i = 63; i >= 0; i--)
            vacant_wire[nvacant++] = wires + i;
        wires += 64;
    }
    engine_wires(1);
    return vacant_wire[--nvacant];
}

void wire_check(int rc, const char *what)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n;
    if (rc == MPI_SUCCESS)
        return;
    MPI_Error_string(rc, text, &n);
    die(EXIT_COMM, "mpi", "%s: %s; change: see whether all hosts of the job are up and reach each other",
        what, text);
}

void wire_open(int communicator, const int *place)
{
    world = MPI_Comm_f2c(communicator);
    place_of = place;
}

int wire_send(const void *p, size_t bytes, int to, int tag)
{
    int id = new_wire();
    wire_check(MPI_Isend(p, (int)bytes, MPI_BYTE, to, tag, world, &wire[id]), "send");
    if (place_of[to] >= 0)                 /* same real host: its ranks may sleep */
        job_ring(place_of[to]);
    return id;
}

int wire_recv(void *p, size_t bytes, int from, int tag)
{
    int id = new_wire();
    wire_check(MPI_Irecv(p, (int)bytes, MPI_BYTE, from, tag, world, &wire[id]), "receive");
    return id;
}

int wire_done(int *id)
{
    int done;
    if (*id < 0)
        return 1;
    wire_check(MPI_Test(&wire[*id], &done, MPI_STATUS_IGNORE), "test");
    if (!done)
        return 0;
    vacant_wire[nvacant++] = *id;
    *id = -1;
    engine_wires(-1);
    return 1;
}
