/* comm_nccl -- device buffers over NCCL. The communicators of the groups are split from one of the world. An
 * operation runs on its group's own stream, after an event of the compute stream. Several runs may be open at
 * once, each with a world and a device of its own: train verify has the layout's and one rank's.
 *
 * Communicators do not block: a call that must wait for other ranks returns ncclInProgress and is asked again
 * until it is done, so that a lost rank ends the job instead of hanging it. Every rank starts the operations
 * of all groups in the order of the instruction list. NCCL_LAUNCH_ORDER_IMPLICIT makes the device keep that
 * order; without it two ranks could each run first what the other runs second. */
#define _GNU_SOURCE
#include "device_group.h"
#include "libraries.h"
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define EVENTS 64                  /* of a group: later operations use them again */

struct NcclWorld {
    ncclComm_t comm;
    Device *dev;
    int64_t rank;                  /* of the world */
    double timeout;                /* s */
    int groups;                    /* split from comm and open; comm is destroyed with the last of them */
};

typedef struct {
    NcclWorld *world;              /* of the run that the group belongs to */
    ncclComm_t comm;
    cudaStream_t stream;
    cudaEvent_t before;            /* on the compute stream, when the last operation started */
    cudaEvent_t done[EVENTS];      /* end of operation k at k % EVENTS */
    void *registered;              /* of comm_nccl_register */
    int64_t first;                 /* between together(1) and together(0): the first operation; else 0 */
} Nccl;

static struct {
    const NcclApi *api;
    DeviceGroup **group;           /* [groups] all that are open, of every world */
    int groups;
} all;

/* Aborts the operations of all groups and dies. */
static _Noreturn void abort_all(const char *id, const char *text)
{
    for (int i = 0; i < all.groups; i++) {
        Nccl *n = all.group[i]->impl;
        all.api->ncclCommAbort(n->comm);
    }
    die(EXIT_COMM, id, "%s", text);
}

static void check(ncclResult_t r, const char *what, const Comm *c)
{
    char text[512];
    if (r == ncclSuccess || r == ncclInProgress)
        return;
    snprintf(text, sizeof text, "NCCL: %s of group %s: %s; change: NCCL_DEBUG=WARN says more; see whether "
             "all GPUs of the job are well", what, c->name, all.api->ncclGetErrorString(r));
    abort_all("nccl", text);
}

static ncclResult_t state_of(ncclComm_t comm, const char *what, const Comm *c)
{
    ncclResult_t r = ncclSuccess;
    check(all.api->ncclCommGetAsyncError(comm, &r), what, c);
    return r;
}

/* Seconds to ask without a pause: a thread of NCCL launches an operation within about ten microseconds. */
#define AT_ONCE 2e-4

/* Returns when the communicator is done with its last call, which returned r. r may be success while the call
 * is under way (a split's is), so the communicator is asked. */
static void settle(const NcclWorld *w, ncclComm_t comm, ncclResult_t r, const char *what, const Comm *c)
{
    double start = now();
    check(r, what, c);
    while ((r = state_of(comm, what, c)) == ncclInProgress) {
        double waited = now() - start;
        if (waited > w->timeout) {
            char text[512];
            snprintf(text, sizeof text, "NCCL: %s of group %s has waited for %.0f s for the other ranks; "
                     "change: see which of them hangs, or raise distributed_timeout_minutes", what, c->name,
                     w->timeout);
            abort_all("nccl-timeout", text);
        }
        comm_progress();
        if (waited > AT_ONCE)
            nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
    check(r, what, c);
}

static ncclDataType_t type_of(Dtype t)
{
    static const ncclDataType_t types[DTYPES] = {
        [F64] = ncclFloat64, [F32] = ncclFloat32, [BF16] = ncclBfloat16,
        [F16] = ncclFloat16, [I32] = ncclInt32,   [I64] = ncclInt64};
    BUG_ON(t == I16 || t == U8 /* NCCL lacks the one; nobody sends the other */);
    return types[t];
}

static ncclRedOp_t op_of(ReduceOp op)
{
    static const ncclRedOp_t ops[] = {[OP_SUM] = ncclSum, [OP_MAX] = ncclMax, [OP_MIN] = ncclMin};
    return ops[op];
}

static ncclResult_t all_to_all(const DeviceGroup *g, const Operation *o)
{
    Nccl *n = g->impl;
    const NcclApi *api = all.api;
    size_t block = (size_t)o->n * dtype_size(o->type);
    ncclResult_t r = api->ncclGroupStart();
    for (int p = 0; p < g->host.size && r == ncclSuccess; p++) {
        r = api->ncclSend((const char *)o->in + (size_t)p * block, (size_t)o->n, type_of(o->type), p, n->comm,
                          n->stream);
        if (r == ncclSuccess)
            r = api->ncclRecv((char *)o->out + (size_t)p * block, (size_t)o->n, type_of(o->type), p, n->comm,
                              n->stream);
    }
    ncclResult_t end = api->ncclGroupEnd();
    return r == ncclSuccess ? end : r;
}

static ncclResult_t launch(const DeviceGroup *g, const Operation *o)
{
    Nccl *n = g->impl;
    const NcclApi *api = all.api;
    ncclDataType_t type = type_of(o->type);
    size_t count = (size_t)o->n;
    switch (o->kind) {
    case COMM_ALL_REDUCE:
        return api->ncclAllReduce(o->in, o->out, count, type, op_of(o->op), n->comm, n->stream);
    case COMM_REDUCE_SCATTER:
        return api->ncclReduceScatter(o->in, o->out, count, type, op_of(o->op), n->comm, n->stream);
    case COMM_ALL_GATHER:     return api->ncclAllGather(o->in, o->out, count, type, n->comm, n->stream);
    case COMM_BROADCAST: return api->ncclBroadcast(o->in, o->out, count, type, o->root, n->comm, n->stream);
    case COMM_SEND:           return api->ncclSend(o->in, count, type, o->root, n->comm, n->stream);
    case COMM_RECV:           return api->ncclRecv(o->out, count, type, o->root, n->comm, n->stream);
    case COMM_ALL_TO_ALL:     return all_to_all(g, o);
    default:                  BUG_ON(1);
    }
}

/* Makes the group's stream wait for what the compute stream has been given so far. */
static void follow_compute(DeviceGroup *g)
{
    Nccl *n = g->impl;
    CUDA_OK(cudaEventRecord(n->before, cuda_stream(g->dev)));
    CUDA_OK(cudaStreamWaitEvent(n->stream, n->before, 0));
}

static void nccl_start(DeviceGroup *g, const Operation *o)
{
    Nccl *n = g->impl;
    if (n->first) {
        check(launch(g, o), comm_kind_name[o->kind], &g->host);
        return;
    }
    follow_compute(g);
    settle(n->world, n->comm, launch(g, o), comm_kind_name[o->kind], &g->host);
    CUDA_OK(cudaEventRecord(n->done[g->started % EVENTS], n->stream));
}

static void nccl_together(DeviceGroup *g, int begin)
{
    Nccl *n = g->impl;
    if (begin) {
        follow_compute(g);
        n->first = g->started + 1;
        check(all.api->ncclGroupStart(), "messages", &g->host);
        return;
    }
    settle(n->world, n->comm, all.api->ncclGroupEnd(), "messages", &g->host);
    for (int64_t k = n->first; k <= g->started; k++)
        CUDA_OK(cudaEventRecord(n->done[k % EVENTS], n->stream));
    n->first = 0;
}

/* An event that was used again marks a later operation of the same stream, so waiting for it is right too. */
static void nccl_finish(DeviceGroup *g, int64_t k)
{
    Nccl *n = g->impl;
    CUDA_OK(cudaStreamWaitEvent(cuda_stream(g->dev), n->done[k % EVENTS], 0));
}

static void nccl_close(DeviceGroup *g)
{
    Nccl *n = g->impl;
    NcclWorld *w = n->world;
    if (g->started)                    /* operations that nobody waited for, such as the last gathers */
        cuda_await(g->dev, n->done[g->started % EVENTS]);
    if (n->registered)
        check(all.api->ncclCommDeregister(n->comm, n->registered), "deregister", &g->host);
    settle(w, n->comm, all.api->ncclCommFinalize(n->comm), "finalize", &g->host);
    check(all.api->ncclCommDestroy(n->comm), "destroy", &g->host);
    for (int i = 0; i < EVENTS; i++)
        CUDA_OK(cudaEventDestroy(n->done[i]));
    CUDA_OK(cudaEventDestroy(n->before));
    CUDA_OK(cudaStreamDestroy(n->stream));
    for (int i = 0; i < all.groups; i++)
        if (all.group[i] == g)
            all.group[i] = all.group[--all.groups];
    if (!--w->groups) {
        settle(w, w->comm, all.api->ncclCommFinalize(w->comm), "finalize", &g->host);
        check(all.api->ncclCommDestroy(w->comm), "destroy", &g->host);
        cuda_watch(w->dev, NULL);
        free(w);
    }
    free(n);
}

/* Called while the host waits for the device; waited: s so far. Dies if an operation fails or hangs. */
static void watch(double waited)
{
    for (int i = 0; i < all.groups; i++) {
        DeviceGroup *g = all.group[i];
        Nccl *n = g->impl;
        check(state_of(n->comm, "an operation", &g->host), "an operation", &g->host);
    }
    for (int i = 0; i < all.groups; i++) {
        DeviceGroup *g = all.group[i];
        Nccl *n = g->impl;
        if (waited <= n->world->timeout || !g->started || cuda_done(n->done[g->started % EVENTS]))
            continue;
        char text[512];
        snprintf(text, sizeof text, "no end of %s number %lld of group %s after %.0f s; change: see which "
                 "rank hangs, or raise distributed_timeout_minutes", comm_kind_name[g->last.kind],
                 (long long)g->started, g->host.name, waited);
        abort_all("nccl-timeout", text);
    }
}

/* ---- opening ---- */

static ncclConfig_t config_of(const char *name)
{
    ncclConfig_t c = NCCL_CONFIG_INITIALIZER;
    c.blocking = 0;
    c.commName = name;
    return c;
}

/* Opens the communicator of the world; the group c carries rank 0's id to all ranks. */
static void open_world(NcclWorld *w, Comm *c)
{
    ncclUniqueId id = {0};
    ncclConfig_t config = config_of("world");
    if (c->rank == 0)
        check(all.api->ncclGetUniqueId(&id), "invitation", c);
    c->wait(c, c->broadcast(c, &id, sizeof id / 4, I32, 0));
    ncclResult_t r = all.api->ncclCommInitRankConfig(&w->comm, c->size, id, c->rank, &config);
    settle(w, w->comm, r, "start", c);
}

/* Every rank of the world calls this once for each of its groups. Color of a group: its lowest world rank. */
void comm_nccl_wrap(void *world, Comm *c)
{
    NcclWorld *w = world;
    int64_t lowest = w->rank;
    int least, greatest;
    ncclComm_t comm = NULL;
    ncclConfig_t config = config_of(c->name);
    c->wait(c, c->all_reduce(c, &lowest, 1, I64, OP_MIN));
    ncclResult_t r = all.api->ncclCommSplit(w->comm, c->size > 1 ? (int)lowest : NCCL_SPLIT_NOCOLOR, c->rank,
                                            &comm, &config);
    settle(w, w->comm, r, "split", c);
    if (c->size == 1)
        return;
    BUG_ON(!comm);
    settle(w, comm, r, "split", c);
    Nccl *n = xcalloc(1, sizeof *n);
    n->world = w;
    n->comm = comm;
    /* NCCL's few blocks run before waiting compute kernels, since other ranks wait for them */
    CUDA_OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CUDA_OK(cudaStreamCreateWithPriority(&n->stream, cudaStreamNonBlocking, greatest));
    CUDA_OK(cudaEventCreateWithFlags(&n->before, cudaEventDisableTiming));
    for (int i = 0; i < EVENTS; i++)
        CUDA_OK(cudaEventCreateWithFlags(&n->done[i], cudaEventDisableTiming));
    DeviceGroup *g = device_group(c, w->dev);
    g->impl = n;
    g->start = nccl_start;
    g->finish = nccl_finish;
    g->together = nccl_together;
    g->close = nccl_close;
    w->groups++;
    all.group = xgrow(all.group, all.groups, sizeof *all.group);
    all.group[all.groups++] = g;
}

/* NCCL_LAUNCH_ORDER_IMPLICIT came with NCCL 2.26. */
static void check_version(void)
{
    int v = 0;
    all.api->ncclGetVersion(&v);
    if (v < 22600)
        die(EXIT_RESOURCE, "nccl", "this NCCL is %d.%d.%d, and before 2.26 operations of different groups "
            "may wait for each other in a circle; change: a newer libnccl.so.2 (LD_LIBRARY_PATH), or "
            "distributed_backend: staged", v / 10000, v / 100 % 100, v % 100);
}

NcclWorld *comm_nccl_start(Comm *world, Device *d, double timeout)
{
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
    all.api = nccl_api();
    if (world->size == 1)
        return NULL;
    check_version();
    NcclWorld *w = xcalloc(1, sizeof *w);
    *w = (NcclWorld){.dev = d, .rank = world->rank, .timeout = timeout};
    open_world(w, world);
    cuda_watch(d, watch);
    return w;
}

void comm_nccl_register(const Device *d, void *p, size_t bytes)
{
    for (int i = 0; i < all.groups; i++) {
        DeviceGroup *g = all.group[i];
        Nccl *n = g->impl;
        if (g->dev == d)
            check(all.api->ncclCommRegister(n->comm, p, bytes, &n->registered), "register", &g->host);
    }
}
