/* wire -- messages between hosts, over MPI */
#include "wire.h"
#include "checksum.h"
#include "job.h"
#include <mpi.h>

static MPI_Comm world;
static const int *place_of;                /* [world] as in wire_open */

#define BLOCK 64                   /* messages are allocated in blocks, which never move */

typedef struct {
    MPI_Request bytes, hash;       /* hash: not started if the operation is not checked */
    const Request *r;
    const void *p;
    size_t n;                      /* bytes */
    int from;                      /* world rank; -1: sent by this rank */
    uint64_t sum;
} Wire;

static Wire **block;               /* [blocks][BLOCK] */
static int *vacant_wire;
static int blocks, nvacant;

static int new_wire(void)
{
    if (!nvacant) {
        block = xrealloc(block, (size_t)(blocks + 1) * sizeof *block);
        block[blocks] = xcalloc(BLOCK, sizeof **block);
        vacant_wire = xrealloc(vacant_wire, (size_t)(blocks + 1) * BLOCK * sizeof *vacant_wire);
        for (int i = BLOCK - 1; i >= 0; i--)
            vacant_wire[nvacant++] = blocks * BLOCK + i;
        blocks++;
    }
    engine_wires(1);
    return vacant_wire[--nvacant];
}

static Wire *find(int id) { return &block[id / BLOCK][id % BLOCK]; }

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

int wire_send(const Request *r, const void *p, size_t bytes, int to, int tag)
{
    int id = new_wire();
    Wire *w = find(id);
    *w = (Wire){MPI_REQUEST_NULL, MPI_REQUEST_NULL, r, p, bytes, -1, piece_sum(r, p, bytes)};
    wire_check(MPI_Isend(p, (int)bytes, MPI_BYTE, to, tag, world, &w->bytes), "send");
    if (r->checked)
        wire_check(MPI_Isend(&w->sum, sizeof w->sum, MPI_BYTE, to, tag, world, &w->hash), "send");
    if (place_of[to] >= 0)                 /* same real host: its ranks may sleep */
        job_ring(place_of[to]);
    return id;
}

int wire_recv(const Request *r, void *p, size_t bytes, int from, int tag)
{
    int id = new_wire();
    Wire *w = find(id);
    *w = (Wire){MPI_REQUEST_NULL, MPI_REQUEST_NULL, r, p, bytes, from, 0};
    wire_check(MPI_Irecv(p, (int)bytes, MPI_BYTE, from, tag, world, &w->bytes), "receive");
    if (r->checked)
        wire_check(MPI_Irecv(&w->sum, sizeof w->sum, MPI_BYTE, from, tag, world, &w->hash), "receive");
    return id;
}

/* Whether the bytes of a message are through. Dies unless there are as many as this rank expects. */
static int test_bytes(Wire *w)
{
    MPI_Status status;
    int done, class = MPI_SUCCESS, n = (int)w->n, rc;
    if (w->bytes == MPI_REQUEST_NULL)          /* seen before, while the hash was on its way */
        return 1;
    rc = MPI_Test(&w->bytes, &done, &status);
    if (rc != MPI_SUCCESS)
        MPI_Error_class(rc, &class);
    else if (done && w->from >= 0)
        MPI_Get_count(&status, MPI_BYTE, &n);
    if (class == MPI_ERR_TRUNCATE || n != (int)w->n)
        die(EXIT_BUG, "comm-mismatch", "group %s, %s of %lld %s: rank %d of the world sent %s than the %zu "
            "bytes that this rank receives; change: please report this line with your config", w->r->name,
            comm_kind_name[w->r->kind], (long long)w->r->n, dtype_name(w->r->type), w->from,
            n < (int)w->n ? "fewer" : "more", w->n);
    wire_check(rc, "test");
    return done;
}

int wire_done(int *id)
{
    if (*id < 0)
        return 1;
    Wire *w = find(*id);
    int done = test_bytes(w);
    if (done && w->hash != MPI_REQUEST_NULL)
        wire_check(MPI_Test(&w->hash, &done, MPI_STATUS_IGNORE), "test");
    if (!done)
        return 0;
    if (w->from >= 0)
        piece_check(w->r, w->p, w->n, w->sum, w->from);
    vacant_wire[nvacant++] = *id;
    *id = -1;
    engine_wires(-1);
    return 1;
}
