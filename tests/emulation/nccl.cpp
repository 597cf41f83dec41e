/* nccl -- NCCL between processes, over MPI. Every rank of a communicator has to issue the same calls in
 * the same order, a rank runs one operation at a time, and a send ends no sooner than its receive
 * begins. A call that breaks a rule is named and ends the job. Reductions add in rank order, but:
 *
 * With NCCL_LAUNCH_ORDER_IMPLICIT=1 a rank's operations run in the order of their launches, whatever their
 * streams; without it two communicators may cross, and hang (EMULATION_HANG seconds, default 240, then the
 * job ends). EMULATION_SWAP=RANK:K makes that rank's K-th launch come after the next one.
 * EMULATION_SUMS=1: groups of other ranks add in another order, as rings follow the wires. */
#include "runtime.h"
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
#include <nccl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <deque>
#include <vector>

/* Calls of MPI hold the transport's lock (parallel/comm/engine.h). */
extern "C" {
void engine_lock(void);
void engine_unlock(void);
}

namespace {

enum Kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, SEND, RECV };
const char *const kind_name[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "send", "recv"};

struct Call {
    Kind kind;
    const void *in;
    void *out;
    size_t n;
    ncclDataType_t type;
    ncclRedOp_t op;
    int peer;                  /* peer of a message, root of a broadcast */
    ncclComm_t comm;
    cudaStream_t stream;
};

/* The calls of a group, or a single call, and the progress of their execution. */
struct Launch {
    std::vector<Call> calls;
    size_t at;                                 /* index of the call that is running */
    int step;                                  /* 0: not begun; 1: exchanges signatures; 2: exchanges data */
    std::vector<MPI_Request> wait;
    std::vector<long> words;
    std::vector<std::vector<char>> data;
    double since;
};

std::vector<Call> open_group;
int group_depth;
std::deque<Launch *> launched;                 /* launches of this rank that are not complete */
Launch *running;

size_t size_of(ncclDataType_t t)
{
    static const size_t n[] = {4, 8, 2, 4, 8, 2};
    return n[t];
}

[[noreturn]] void broken(const Call &c, const char *what);

} // namespace

struct EmulatedComm {
    MPI_Comm mpi;
    char name[32];
    int rank, size;
    int first;      /* the rank that sums begin with */
    long calls;     /* calls of all ranks completed; messages are not counted: only two ranks make them */
    int blocking;
    int asked; /* bool: a nonblocking call returned ncclInProgress, and ncclCommGetAsyncError is due */
    int aborted;
    int registered;                            /* pieces of memory that are registered */
    pthread_t thread;            /* thread that made the communicator: only this thread may use it */
    ncclComm_t *child_at, child; /* a split in progress: address of its result, and the result */
};

namespace {

[[noreturn]] void broken(const Call &c, const char *what)
{
    fprintf(stderr, "emulated NCCL: %s, call %ld of rank %d of %d in group %s: %s\n", kind_name[c.kind],
            c.comm->calls, c.comm->rank, c.comm->size, c.comm->name, what);
    fflush(stderr);
    _exit(70);
}

void check_thread(ncclComm_t c)
{
    if (!pthread_equal(c->thread, pthread_self()))
        emulation_fail("NCCL: two threads use group %s", c->name);
}

double seconds()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* 1: the MPI requests of the launch are complete. */
int arrived(Launch *l)
{
    int done;
    engine_lock();
    MPI_Testall((int)l->wait.size(), l->wait.data(), &done, MPI_STATUSES_IGNORE);
    engine_unlock();
    if (!done && seconds() - l->since > (double)emulation_option("EMULATION_HANG", 240))
        broken(l->calls[l->at], "the other ranks do not come");
    return done;
}

float bf16(uint16_t x) { uint32_t u = (uint32_t)x << 16; float f; memcpy(&f, &u, 4); return f; }
uint16_t to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if (f != f)
        return 0x7fc0;
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

template <class T> T combine(ncclRedOp_t op, T a, T b)
{
    return op == ncclSum ? a + b : op == ncclMax ? (a > b ? a : b) : (a < b ? a : b);
}

/* out[i] = reduction of element at + i over all ranks, in rank order. all: inputs of the ranks, `each`
 * elements of one after the other. reduce_short does so for 16-bit types, in F32. */
template <class T> void reduce(const Call &c, const std::vector<char> &all, size_t each, size_t at, char *out)
{
    for (size_t i = 0; i < c.n; i++) {
        T sum{};
        for (int k = 0; k < c.comm->size; k++) {
            T x;
            size_t r = (size_t)((c.comm->first + k) % c.comm->size);
            memcpy(&x, &all[(r * each + at + i) * sizeof(T)], sizeof(T));
            sum = k ? combine(c.op, sum, x) : x;
        }
        memcpy(out + i * sizeof(T), &sum, sizeof(T));
    }
}

void reduce_short(const Call &c, const std::vector<char> &all, size_t each, size_t at, char *out)
{
    for (size_t i = 0; i < c.n; i++) {
        float sum = 0;
        for (int k = 0; k < c.comm->size; k++) {
            uint16_t bits;
            size_t r = (size_t)((c.comm->first + k) % c.comm->size);
            memcpy(&bits, &all[(r * each + at + i) * 2], 2);
            float x = c.type == ncclBfloat16 ? bf16(bits) : emulation_half_to_float(bits);
            sum = k ? combine(c.op, sum, x) : x;
        }
        uint16_t bits = c.type == ncclBfloat16 ? to_bf16(sum) : emulation_float_to_half(sum);
        memcpy(out + i * 2, &bits, 2);
    }
}

/* ---- collectives: all ranks exchange and compare signatures of their calls, then gather all inputs
 * ---- */

enum { WORDS = 6 };

void say(Launch *l, const Call &c)
{
    const long mine[WORDS] = {c.comm->calls,
                              c.kind,
                              (long)c.n,
                              c.type,
                              c.kind == ALL_REDUCE || c.kind == REDUCE_SCATTER ? c.op : 0,
                              c.kind == BROADCAST ? c.peer : 0};
    size_t ranks = (size_t)c.comm->size;
    l->words.assign(mine, mine + WORDS);
    l->words.resize(WORDS * (ranks + 1));
    l->wait.resize(1);
    engine_lock();
    MPI_Iallgather(l->words.data(), WORDS, MPI_LONG, l->words.data() + WORDS, WORDS, MPI_LONG, c.comm->mpi,
                   l->wait.data());
    engine_unlock();
}

void compare(const Launch *l, const Call &c)
{
    for (int p = 0; p < c.comm->size; p++) {
        const long *other = &l->words[WORDS * (size_t)(p + 1)];
        char text[160];
        if (!memcmp(other, l->words.data(), WORDS * sizeof(long)))
            continue;
        snprintf(text, sizeof text,
                 "%zu elements of type %d here, but rank %d calls %s of %ld of type %ld (its call %ld)", c.n,
                 (int)c.type, p, kind_name[other[1]], other[2], other[3], other[0]);
        broken(c, text);
    }
}

size_t each(const Call &c) { return c.kind == REDUCE_SCATTER ? c.n * (size_t)c.comm->size : c.n; }

void send_data(Launch *l, const Call &c)
{
    size_t size = size_of(c.type), bytes = each(c) * size, ranks = (size_t)c.comm->size;
    const char *in = (const char *)(c.kind == BROADCAST && c.comm->rank != c.peer ? c.out : c.in);
    emulation_check(in, bytes, kind_name[c.kind]);
    emulation_check(c.out, c.n * size * (c.kind == ALL_GATHER ? ranks : 1), kind_name[c.kind]);
    l->data.resize(2);
    l->data[0].assign(in, in + bytes);
    l->data[1].resize(bytes * ranks);
    engine_lock();
    MPI_Iallgather(l->data[0].data(), (int)bytes, MPI_BYTE, l->data[1].data(), (int)bytes, MPI_BYTE,
                   c.comm->mpi, l->wait.data());
    engine_unlock();
}

void take_data(const Launch *l, const Call &c)
{
    const std::vector<char> &all = l->data[1];
    size_t at = c.kind == REDUCE_SCATTER ? (size_t)c.comm->rank * c.n : 0, n = each(c);
    char *out = (char *)c.out;
    if (c.kind == ALL_GATHER)
        memcpy(out, all.data(), all.size());
    else if (c.kind == BROADCAST)
        memcpy(out, &all[(size_t)c.peer * n * size_of(c.type)], n * size_of(c.type));
    else if (c.type == ncclFloat64)
        reduce<double>(c, all, n, at, out);
    else if (c.type == ncclFloat32)
        reduce<float>(c, all, n, at, out);
    else if (c.type == ncclInt32)
        reduce<int>(c, all, n, at, out);
    else if (c.type == ncclInt64)
        reduce<long>(c, all, n, at, out);
    else
        reduce_short(c, all, n, at, out);
}

/* ---- messages: those of a launch start together, each behind a message with its length and type. A
 * send ends when its receive has begun ---- */

void start_messages(Launch *l)
{
    size_t n = l->calls.size();
    l->wait.resize(2 * n);
    l->words.resize(2 * n);
    l->data.resize(n);
    engine_lock();
    for (size_t i = 0; i < n; i++) {
        const Call &c = l->calls[i];
        size_t bytes = c.n * size_of(c.type);
        emulation_check(c.kind == SEND ? c.in : c.out, bytes, kind_name[c.kind]);
        l->words[2 * i] = (long)c.n;
        l->words[2 * i + 1] = c.type;
        l->data[i].resize(bytes);
        if (c.kind == SEND) {
            memcpy(l->data[i].data(), c.in, bytes);
            MPI_Issend(&l->words[2 * i], 2, MPI_LONG, c.peer, 1, c.comm->mpi, &l->wait[2 * i]);
            MPI_Issend(l->data[i].data(), (int)bytes, MPI_BYTE, c.peer, 2, c.comm->mpi, &l->wait[2 * i + 1]);
        } else {
            MPI_Irecv(&l->words[2 * i], 2, MPI_LONG, c.peer, 1, c.comm->mpi, &l->wait[2 * i]);
            MPI_Irecv(l->data[i].data(), (int)bytes, MPI_BYTE, c.peer, 2, c.comm->mpi, &l->wait[2 * i + 1]);
        }
    }
    engine_unlock();
}

void end_messages(Launch *l)
{
    for (size_t i = 0; i < l->calls.size(); i++) {
        const Call &c = l->calls[i];
        if (l->words[2 * i] != (long)c.n || l->words[2 * i + 1] != c.type)
            broken(c, "what comes has another length or type than what is received");
        if (c.kind == RECV)
            memcpy(c.out, l->data[i].data(), l->data[i].size());
    }
}

int ordered()
{
    const char *s = getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    return s && *s == '1';
}

int is_message(const Call &c) { return c.kind == SEND || c.kind == RECV; }

/* Advances a launch as far as possible without waiting. Returns 1 when the launch is complete. */
int advance(Launch *l)
{
    while (l->at < l->calls.size()) {
        const Call &c = l->calls[l->at];
        int message = is_message(c);
        if (l->step == 0) {
            l->since = seconds();
            if (message)
                start_messages(l);
            else
                say(l, c);
            l->step = message ? 2 : 1;
        }
        if (!arrived(l))
            return 0;
        if (message) {
            end_messages(l);
            l->at = l->calls.size();
        } else if (l->step == 1) {
            compare(l, c);
            send_data(l, c);
            l->step = 2;
        } else {
            take_data(l, c);
            c.comm->calls++;
            l->at++;
            l->step = 0;
        }
    }
    return 1;
}

/* Advances a launch when it is its turn: a rank runs one launch at a time. Returns 1 when it is
 * complete. */
int turn(Launch *l)
{
    if ((running && running != l) || (!running && ordered() && launched.front() != l))
        return 0;
    running = l;
    if (!advance(l))
        return 0;
    running = nullptr;
    for (size_t i = 0; i < launched.size(); i++)
        if (launched[i] == l)
            launched.erase(launched.begin() + (ptrdiff_t)i);
    delete l;
    return 1;
}

void start(const std::vector<Call> &calls)
{
    for (const Call &c : calls)
        if (c.stream != calls[0].stream || is_message(c) != is_message(calls[0]))
            broken(c, "a group of several streams, or of messages and collectives, is not emulated");
    Launch *l = new Launch();
    l->calls = calls;
    launched.push_back(l);
    emulation_enqueue_until(calls[0].stream, "nccl", [l] { return turn(l); });
}

/* EMULATION_SWAP=RANK:K: rank RANK makes its K-th launch after the next one. Returns 1: the calls are
 * taken care of. */
int held_back(const std::vector<Call> &calls)
{
    static std::vector<Call> held;
    static long made;
    const char *s = getenv("EMULATION_SWAP"), *colon = s ? strchr(s, ':') : nullptr;
    if (!colon || atol(s) != (long)emulation_option("OMPI_COMM_WORLD_RANK", 0))
        return 0;
    if (++made == atol(colon + 1)) {
        held = calls;
        return 1;
    }
    start(calls);
    if (!held.empty()) {
        start(held);
        held.clear();
    }
    return 1;
}

void launch(const std::vector<Call> &calls)
{
    if (!held_back(calls))
        start(calls);
}

ncclResult_t under_way(ncclComm_t c)
{
    return c->asked = !c->blocking, c->asked ? ncclInProgress : ncclSuccess;
}

ncclResult_t call(const Call &c)
{
    if (!c.comm || c.comm->aborted)
        return ncclInvalidArgument;
    check_thread(c.comm);
    if (c.comm->asked)
        broken(c, "what the group did last has not been seen to be through");
    if (c.kind == SEND || c.kind == RECV || c.kind == BROADCAST)
        if (c.peer < 0 || c.peer >= c.comm->size)
            return ncclInvalidArgument;
    if (group_depth) {
        open_group.push_back(c);
        return ncclSuccess;
    }
    launch({c});
    return under_way(c.comm);
}

ncclResult_t open(ncclComm_t *out, MPI_Comm mpi, const ncclConfig_t *config)
{
    EmulatedComm *c = new EmulatedComm();
    c->mpi = mpi;
    snprintf(c->name, sizeof c->name, "%s", config && config->commName ? config->commName : "?");
    MPI_Comm_rank(mpi, &c->rank);
    MPI_Comm_size(mpi, &c->size);
    int lowest;
    MPI_Comm_rank(MPI_COMM_WORLD, &lowest);
    MPI_Allreduce(MPI_IN_PLACE, &lowest, 1, MPI_INT, MPI_MIN, mpi);
    c->first = emulation_option("EMULATION_SUMS", 0) ? lowest / c->size % c->size : 0;
    c->blocking = !config || config->blocking;
    c->thread = pthread_self();
    *out = c;
    return under_way(c);
}

} // namespace

extern "C" {

ncclResult_t ncclGetVersion(int *version)
{
    return *version = (int)emulation_option("EMULATION_NCCL_VERSION", 22809), ncclSuccess;
}
const char *ncclGetErrorString(ncclResult_t r)
{
    return r == ncclSuccess ? "no error" : r == ncclInProgress ? "in progress" : "an error of the emulation";
}
ncclResult_t ncclGetUniqueId(ncclUniqueId *id) { return memset(id, 7, sizeof *id), ncclSuccess; }

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int n, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    MPI_Comm mpi;
    int size, mine;
    for (char c : id.internal)
        if (c != 7)
            return ncclInvalidArgument;
    engine_lock();
    MPI_Comm_dup(MPI_COMM_WORLD, &mpi);
    MPI_Comm_size(mpi, &size);
    MPI_Comm_rank(mpi, &mine);
    ncclResult_t r = size == n && mine == rank ? open(comm, mpi, config) : ncclInvalidArgument;
    engine_unlock();
    return r;
}

/* As in the library, a nonblocking split returns success at once; *out is set when ncclCommGetAsyncError
 * of the old communicator reports success. */
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out, ncclConfig_t *config)
{
    MPI_Comm mpi;
    check_thread(comm);
    if (comm->asked)
        return ncclInvalidArgument;
    engine_lock();
    MPI_Comm_split(comm->mpi, color < 0 ? MPI_UNDEFINED : color, key, &mpi);
    *out = comm->child = nullptr;
    comm->child_at = out;
    if (mpi != MPI_COMM_NULL && open(&comm->child, mpi, config) == ncclInProgress)
        comm->child->asked = 0;
    comm->asked = 1;
    engine_unlock();
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *r)
{
    if (!comm)
        return ncclInvalidArgument;
    check_thread(comm);
    *r = comm->asked ? ncclInProgress : ncclSuccess;
    if (!comm->asked && comm->child_at) {
        *comm->child_at = comm->child;
        comm->child_at = nullptr;
    }
    comm->asked = 0;
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) { return check_thread(comm), ncclSuccess; }

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (comm->registered)
        emulation_fail("NCCL: group %s is destroyed with %d registered pieces of memory", comm->name,
                       comm->registered);
    for (const Launch *l : launched)
        if (l->calls[0].comm == comm)
            broken(l->calls[0], "the communicator is destroyed before it has run");
    engine_lock();
    MPI_Comm_free(&comm->mpi);
    engine_unlock();
    delete comm;
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) { return comm->aborted = 1, ncclSuccess; }

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *p, size_t bytes, void **handle)
{
    emulation_check(p, bytes, "register");
    comm->registered++;
    return *handle = comm, ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
    return handle == comm && comm->registered-- > 0 ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ncclGroupStart(void) { return group_depth++, ncclSuccess; }

ncclResult_t ncclGroupEnd(void)
{
    if (--group_depth || open_group.empty())
        return ncclSuccess;
    std::vector<Call> calls;
    calls.swap(open_group);
    launch(calls);
    return under_way(calls[0].comm);
}

ncclResult_t ncclAllReduce(const void *in, void *out, size_t n, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t s)
{
    return call({ALL_REDUCE, in, out, n, type, op, 0, comm, s});
}

ncclResult_t ncclReduceScatter(const void *in, void *out, size_t n, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t s)
{
    return call({REDUCE_SCATTER, in, out, n, type, op, 0, comm, s});
}

ncclResult_t ncclAllGather(const void *in, void *out, size_t n, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t s)
{
    return call({ALL_GATHER, in, out, n, type, ncclSum, 0, comm, s});
}

ncclResult_t ncclBroadcast(const void *in, void *out, size_t n, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t s)
{
    return call({BROADCAST, in, out, n, type, ncclSum, root, comm, s});
}

ncclResult_t ncclSend(const void *in, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t s)
{
    return call({SEND, in, nullptr, n, type, ncclSum, peer, comm, s});
}

ncclResult_t ncclRecv(void *out, size_t n, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t s)
{
    return call({RECV, nullptr, out, n, type, ncclSum, peer, comm, s});
}
}
