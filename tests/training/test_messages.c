/* test_messages -- the executable with messages whose bits flip on their way, for tests/training/flips.sh
 *
 * The linker wraps the functions declared below (Makefile); all else is the program itself. A flip hits the
 * shared memory of a group while an operation is under way: a slot of another member, or a message that its
 * receiver has not taken yet; or the memory into which MPI has just received a piece from another host.
 *
 * MESSAGES="COUNT SEED": before the first step COUNT operations on known numbers over all ranks, each with a
 * flip at a random moment, every fourth without. Rank 0 prints one line: how many flips changed a result,
 * how many of these were found, how many operations had no flip, and how many of these were reported.
 * MESSAGE="RANK ITERATION SEED": a bit flips in a message of the run that rank RANK takes, once, in or after
 * that iteration. */
#include "checksum.h"
#include "group.h"
#include "job.h"
#include "run.h"
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

static int trying;      /* bool: what is found is counted */
static int found;       /* bool: a piece of the trial has changed */
static int left;        /* calls until the flip; < 0: none */
static int messages_alone; /* bool: the flip hits a message, which its receiver has not taken yet */
static int flipped;     /* bool: the flip was made */
static uint64_t draws, seed;

int __real_collective_advance(Request *r);
int __wrap_collective_advance(Request *r);
int __real_message_advance(Request *r);
int __wrap_message_advance(Request *r);
int __real_MPI_Irecv(void *p, int n, MPI_Datatype t, int from, int tag, MPI_Comm c, MPI_Request *q);
int __wrap_MPI_Irecv(void *p, int n, MPI_Datatype t, int from, int tag, MPI_Comm c, MPI_Request *q);
int __real_MPI_Test(MPI_Request *q, int *done, MPI_Status *s);
int __wrap_MPI_Test(MPI_Request *q, int *done, MPI_Status *s);
void __real_piece_check(const Request *r, const void *p, size_t bytes, uint64_t sum, int from);
void __wrap_piece_check(const Request *r, const void *p, size_t bytes, uint64_t sum, int from);
void __real_comm_note(const char *text);
void __wrap_comm_note(const char *text);
void __real_run_check(Run *r);
void __wrap_run_check(Run *r);

static uint64_t draw(uint64_t below)
{
    Philox p = philox(seed, draws++, 0);
    return ((uint64_t)p.v[0] << 32 | p.v[1]) % below;
}

static void flip(void *p, size_t bytes)
{
    uint64_t bit = draw(8 * bytes);
    ((volatile unsigned char *)p)[bit / 8] ^= (unsigned char)(1 << bit % 8);
    flipped = 1;
    left = -1;
}

/* ---- where bits flip ---- */

int __wrap_collective_advance(Request *r)
{
    Group *g = r->group;
    if (left >= 0 && !messages_alone && r->checked && r->begun && g->m > 1 && left-- == 0) {
        int i = (g->me + 1 + (int)draw((uint64_t)g->m - 1)) % g->m;
        int k = r->small || r->kind == COMM_ALL_GATHER || r->kind == COMM_BROADCAST ? GATHER
                : r->kind == COMM_REDUCE_SCATTER || r->kind == COMM_ALL_TO_ALL      ? SCATTER
                                                                                    : (int)draw(2);
        size_t piece = (size_t)r->e * dtype_size(r->type), all = piece * (k == SCATTER ? (size_t)g->size : 1);
        flip(group_slot(g, k, i, k == SCATTER ? r->scatter_base + r->summed : r->gather_base + r->copied),
             r->small ? (size_t)r->n * dtype_size(r->type) : all);
    }
    return __real_collective_advance(r);
}

int __wrap_message_advance(Request *r)
{
    Group *g = r->group;
    if (left >= 0 && r->checked && r->kind == COMM_RECV && g->host[r->root] == g->my_host) {
        Pair *p = group_message_pair(g, r->root, g->rank);
        int64_t taken = atomic_load(&p->head->taken);
        GroupPiece *piece = &p->head->piece[taken % PAIR_SLOTS];
        if (atomic_load(&p->head->sent) > taken && left-- == 0)
            flip(p->slots + (size_t)piece->slot * PAIR_SLOT, piece->bytes);
    }
    return __real_message_advance(r);
}

#define WIRES 256
static struct { MPI_Request *q; void *p; int n; } wire[WIRES];

int __wrap_MPI_Irecv(void *p, int n, MPI_Datatype t, int from, int tag, MPI_Comm c, MPI_Request *q)
{
    for (int i = 0; i < WIRES; i++)
        if (!wire[i].q) {
            wire[i].q = q, wire[i].p = p, wire[i].n = n;
            break;
        }
    return __real_MPI_Irecv(p, n, t, from, tag, c, q);
}

int __wrap_MPI_Test(MPI_Request *q, int *done, MPI_Status *s)
{
    int rc = __real_MPI_Test(q, done, s);
    for (int i = 0; i < WIRES && *done; i++)
        if (wire[i].q == q) {
            wire[i].q = NULL;
            if (left >= 0 && left-- == 0)
                flip(wire[i].p, (size_t)wire[i].n);
        }
    return rc;
}

void __wrap_piece_check(const Request *r, const void *p, size_t bytes, uint64_t sum, int from)
{
    if (!trying)
        __real_piece_check(r, p, bytes, sum, from);
    else if (bytes && piece_sum(r, p, bytes) != sum)
        found = 1;
}

/* ---- trials ---- */

#define MOST 30000                     /* elements a rank: several steps and several pieces */

/* Element i of what a rank brings. */
static int32_t value(int rank, int64_t i)
{
    return (int32_t)(philox(7, (uint64_t)i, (uint64_t)rank).v[0] >> 8);
}

/* Element i of what this rank must have. */
static int32_t wanted(const Comm *c, int kind, int64_t n, int64_t i)
{
    int32_t sum = 0;
    int ring = (c->rank + c->size - 1) % c->size;
    switch (kind) {
    case COMM_ALL_GATHER: return value((int)(i / n), i % n);
    case COMM_ALL_TO_ALL: return value((int)(i / n), c->rank * n + i % n);
    case COMM_BROADCAST:  return value(0, i);
    case COMM_SEND:       return value(ring, i);
    case COMM_REDUCE_SCATTER: i += c->rank * n; break;
    default: break;
    }
    for (int q = 0; q < c->size; q++)
        sum += value(q, i);
    return sum;
}

static int32_t in[MOST * 8], out[MOST * 8];

/* Runs one operation. Returns whether this rank's result is wrong. */
static int operation_differs(Comm *c, int kind, int64_t n)
{
    int64_t brought = n * (kind == COMM_REDUCE_SCATTER || kind == COMM_ALL_TO_ALL ? c->size : 1);
    int64_t got = n * (kind == COMM_ALL_GATHER || kind == COMM_ALL_TO_ALL ? c->size : 1);
    int in_place = kind == COMM_ALL_REDUCE || kind == COMM_BROADCAST;
    for (int64_t i = 0; i < brought; i++)
        (in_place ? out : in)[i] = value(c->rank, i);
    Token t = 0;
    switch (kind) {
    case COMM_ALL_REDUCE:     t = c->all_reduce(c, out, n, I32, OP_SUM); break;
    case COMM_REDUCE_SCATTER: t = c->reduce_scatter(c, out, in, n, I32, OP_SUM); break;
    case COMM_ALL_GATHER:     t = c->all_gather(c, out, in, n, I32); break;
    case COMM_ALL_TO_ALL:     t = c->all_to_all(c, out, in, n, I32); break;
    case COMM_BROADCAST:      t = c->broadcast(c, out, n, I32, 0); break;
    default:
        t = c->send(c, in, n, I32, (c->rank + 1) % c->size);
        c->wait(c, c->recv(c, out, n, I32, (c->rank + c->size - 1) % c->size));
    }
    c->wait(c, t);
    int64_t i = 0;
    while (i < got && out[i] == wanted(c, kind, n, i))
        i++;
    return i < got;
}

static void trials(Comm *c, long long number)
{
    int64_t changed = 0, seen = 0, without = 0, alarms = 0, made = 0;
    BUG_ON(c->size > 8);
    for (long long k = 0; k < number; k++) {
        int kind = (int)draw(6), none = k % 4 == 3, victim = (int)draw((uint64_t)c->size);
        int64_t n = draw(2) ? 1 + (int64_t)draw(1000) : 1000 + (int64_t)draw(MOST - 1000);
        int64_t calls = (int64_t)draw(6);
        draws = (uint64_t)k << 32;                 /* ranks draw differently often inside */
        flipped = found = 0;
        trying = 1;
        left = victim == c->rank && !none ? (int)calls : -1;
        int32_t differs = operation_differs(c, kind == 5 ? COMM_SEND : kind, n);
        left = -1;
        c->barrier(c);
        int32_t all[3] = {differs, found, flipped};
        c->wait(c, c->all_reduce(c, all, 3, I32, OP_MAX));
        trying = 0;
        draws = ((uint64_t)k << 32) + 1000;
        without += !all[2];
        made += all[2];
        alarms += !all[2] && (all[1] || all[0]);
        changed += all[2] && all[0];
        seen += all[2] && all[0] && all[1];
    }
    if (c->rank == 0)
        printf("messages %lld flips %ld changed %ld found %ld without %ld false %ld\n", number, made, changed,
               seen, without, alarms);
}

/* ---- hooks ---- */

void __wrap_run_check(Run *r)
{
    const char *text = getenv("MESSAGES");
    static int done;
    long long number;
    unsigned long long from;
    __real_run_check(r);
    if (!done++ && text && sscanf(text, "%lld %llu", &number, &from) == 2) {
        seed = from;
        trials(&r->grid.all, number);
    }
}

void __wrap_comm_note(const char *text)
{
    const char *want = getenv("MESSAGE"), *of = strstr(text, " of iteration ");
    static int done;
    int rank = 0, victim;
    long long iteration;
    unsigned long long from;
    __real_comm_note(text);
    job_launched(&rank);
    if (done || !want || !of || sscanf(want, "%d %lld %llu", &victim, &iteration, &from) < 3 ||
        rank != victim || atoll(of + 14) < iteration)
        return;
    done = messages_alone = 1;
    seed = from;
    left = (int)draw(3);
}

__attribute__((constructor)) static void begin(void) { left = -1; }
