/* cuda -- the CUDA device: streams, events, memory, copies between host and GPU */
#include "cuda.h"
#include "lt.h"
#include "products.h"
#include <stdlib.h>
#include <string.h>

_Noreturn void cuda_failed(cudaError_t e, const char *call, const char *file, int line)
{
    struct cudaDeviceProp p;
    int device;
    if (e == cudaErrorNoKernelImageForDevice && !cudaGetDevice(&device) &&
        !cudaGetDeviceProperties(&p, device))
        die_at(file, line, EXIT_RESOURCE, "cuda", "this executable has no kernels for %s, of compute "
               "capability %d.%d; change: build it with `make CUDA=1 ARCHS=%d%d%s`", p.name, p.major, p.minor,
               p.major, p.minor, p.major == 9 ? "a" : "");
    die_at(file, line, EXIT_RESOURCE, "cuda", "%.80s: %s (%s); change: see what nvidia-smi and dmesg say of "
           "the GPU", call, cudaGetErrorString(e), cudaGetErrorName(e));
}

/* ---- memory ---- */

static void range_add(CudaRanges *r, void *p, size_t bytes)
{
    r->at = xgrow(r->at, r->n, sizeof *r->at);
    r->at[r->n++] = (CudaRange){p, bytes};
}

static void range_remove(CudaRanges *r, const void *p, size_t bytes)
{
    for (int i = 0; i < r->n; i++)
        if (r->at[i].p == p) {
            BUG_ON(r->at[i].bytes != bytes);
            r->at[i] = r->at[--r->n];
            return;
        }
    BUG_ON("given back, never taken");
}

static int range_has(const CudaRanges *r, const void *p)
{
    for (int i = 0; i < r->n; i++)
        if ((const char *)p >= r->at[i].p && (const char *)p < r->at[i].p + r->at[i].bytes)
            return 1;
    return 0;
}

/* Whether p lies in what mapped_take gave. */
static int cuda_owns_mapped(Device *d, const void *p) { return range_has(&cuda_of(d)->mapped, p); }

/* Whether p lies in what d->take or mapped_take gave. */
static int cuda_owns(Device *d, const void *p)
{
    return range_has(&cuda_of(d)->taken, p) || cuda_owns_mapped(d, p);
}

int cuda_on_host(Device *d, const void *p)
{
    return cuda_owns_mapped(d, p) || range_has(&cuda_of(d)->pinned, p);
}

static size_t cuda_left(Device *d)
{
    size_t left = 0, all = 0;
    (void)d;
    CUDA_OK(cudaMemGetInfo(&left, &all));
    return left;
}

void *cuda_memory(size_t bytes)
{
    void *p;
    cudaError_t e = cudaMalloc(&p, bytes ? bytes : 1);
    if (e == cudaErrorMemoryAllocation) {
        size_t left = 0, all = 0;
        cudaGetLastError();
        CUDA_OK(cudaMemGetInfo(&left, &all));
        die(EXIT_RESOURCE, "memory", "cannot take %zu bytes of the GPU's memory, of which %zu of %zu are "
            "free; change: lower micro_batch_size or the model, spread it over more GPUs, or see with "
            "nvidia-smi who else uses this one", bytes, left, all);
    }
    CUDA_OK(e);
    return p;
}

static void *pinned_memory(size_t bytes)
{
    void *p;
    cudaError_t e = cudaMallocHost(&p, bytes ? bytes : 1);
    if (e == cudaErrorMemoryAllocation)
        die(EXIT_RESOURCE, "memory", "cannot lock %zu bytes of this machine's memory for copies to the GPU; "
            "change: free memory on this machine", bytes);
    CUDA_OK(e);
    return p;
}

static void *cuda_take(Device *d, size_t bytes)
{
    Cuda *c = cuda_of(d);
    void *p = cuda_memory(bytes);
    CUDA_OK(cudaMemsetAsync(p, 0, bytes ? bytes : 1, c->compute));
    range_add(&c->taken, p, bytes);
    return p;
}

static void cuda_give(Device *d, void *p, size_t bytes)
{
    if (!p)
        return;
    range_remove(&cuda_of(d)->taken, p, bytes);
    CUDA_OK(cudaFree(p));
}

static void *pinned_take(CudaRanges *r, size_t bytes)
{
    void *p = pinned_memory(bytes);
    memset(p, 0, bytes);
    range_add(r, p, bytes);
    return p;
}

static void pinned_give(CudaRanges *r, void *p, size_t bytes)
{
    if (!p)
        return;
    range_remove(r, p, bytes);
    CUDA_OK(cudaFreeHost(p));
}

/* Pinned memory has the same address on the host and in kernels (unified addressing). */
static void *cuda_mapped_take(Device *d, size_t bytes) { return pinned_take(&cuda_of(d)->mapped, bytes); }
static void cuda_mapped_give(Device *d, void *p, size_t bytes) { pinned_give(&cuda_of(d)->mapped, p, bytes); }
static void *cuda_host_take(Device *d, size_t bytes) { return pinned_take(&cuda_of(d)->pinned, bytes); }
static void cuda_host_give(Device *d, void *p, size_t bytes) { pinned_give(&cuda_of(d)->pinned, p, bytes); }

void *cuda_workspace(Cuda *c, size_t bytes)
{
    BUG_ON(bytes > CUDA_WORKSPACE || c->ops /* ops of `compute` may use it at the same time */);
    return c->workspace;
}

/* ---- waits and copies ---- */

void cuda_watch(Device *d, void (*watch)(double waited)) { cuda_of(d)->watch = watch; }

/* cudaEventQuery leaves "not ready" as the thread's last error; it is cleared here, because the next
 * launch would report it as its own. */
int cuda_done(cudaEvent_t e)
{
    cudaError_t is = cudaEventQuery(e);
    if (is == cudaErrorNotReady) {
        cudaGetLastError();
        return 0;
    }
    CUDA_OK(is);
    return 1;
}

/* A thread starts on GPU 0, and a CUDA call would open that GPU too: other threads set the device first.
 * Only the thread that opened d calls watch. */
void cuda_await(Device *d, cudaEvent_t e)
{
    Cuda *c = cuda_of(d);
    if (!pthread_equal(c->thread, pthread_self())) {
        CUDA_OK(cudaSetDevice(c->index));
    } else if (c->watch) {
        double start = now(), asked = start;
        while (!cuda_done(e))
            if (now() - asked > 0.05) {
                asked = now();
                c->watch(asked - start);
            }
    }
    CUDA_OK(cudaEventSynchronize(e));
}

/* Returns room in the current pinned piece of put. If the piece is full, it takes the next one and waits
 * until that piece's earlier copies have run. */
static char *room_for(Device *d, size_t bytes)
{
    Cuda *c = cuda_of(d);
    BUG_ON(c->ops /* `sent` must be recorded on the ops' own stream */);
    if (c->filled + bytes > CUDA_PIECE) {
        CUDA_OK(cudaEventRecord(c->sent[c->turn], c->compute));
        c->turn = (c->turn + 1) % CUDA_PIECES;
        c->filled = 0;
        cuda_await(d, c->sent[c->turn]);
    }
    char *p = c->piece + (size_t)c->turn * CUDA_PIECE + c->filled;
    c->filled += (bytes + 255) / 256 * 256;
    return p;
}

static void cuda_put(Device *d, void *dst, const void *src, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        size_t n = bytes - at < CUDA_PIECE ? bytes - at : CUDA_PIECE;
        char *p = room_for(d, n);
        memcpy(p, (const char *)src + at, n);
        CUDA_OK(cudaMemcpyAsync((char *)dst + at, p, n, cudaMemcpyDefault, cuda_stream(d)));
        at += n;
    }
}

/* Piece i is copied off the device while the host empties piece i - 1. */
static void cuda_get(Device *d, void *dst, const void *src, size_t bytes)
{
    Cuda *c = cuda_of(d);
    size_t pieces = (bytes + CUDA_PIECE - 1) / CUDA_PIECE;
    for (size_t i = 0; i <= pieces; i++) {
        size_t at = i * CUDA_PIECE, n = bytes - at < CUDA_PIECE ? bytes - at : CUDA_PIECE;
        if (i < pieces) {
            CUDA_OK(cudaMemcpyAsync(c->landing + i % 2 * CUDA_PIECE, (const char *)src + at, n,
                                    cudaMemcpyDefault, c->compute));
            CUDA_OK(cudaEventRecord(c->landed[i % 2], c->compute));
        }
        if (i > 0) {
            size_t before = at - CUDA_PIECE, left = bytes - before;
            cuda_await(d, c->landed[(i - 1) % 2]);
            memcpy((char *)dst + before, c->landing + (i - 1) % 2 * CUDA_PIECE,
                   left < CUDA_PIECE ? left : CUDA_PIECE);
        }
    }
}

/* Returns an event recorded behind all ops so far. */
static cudaEvent_t ops_so_far(Cuda *c)
{
    CUDA_OK(cudaEventRecord(c->before, c->compute));
    return c->before;
}

/* Lets ops run on stream s, by few blocks and behind the ops so far, until ops_return: they are launched on
 * `compute` and know no other stream. */
static void ops_leave(Cuda *c, cudaStream_t s)
{
    BUG_ON(c->ops);
    CUDA_OK(cudaStreamWaitEvent(s, ops_so_far(c), 0));
    c->ops = c->compute;
    c->compute = s;
}
static void ops_return(Cuda *c)
{
    c->compute = c->ops;
    c->ops = NULL;
}

/* Records the next event of q behind all that q's stream has so far, and returns its ticket. */
static int64_t ticket_of(CudaCopies *q)
{
    CUDA_OK(cudaEventRecord(q->event[q->tickets % CUDA_TICKETS], q->stream));
    return q->tickets++;
}

/* Returns an event at the end of copy `ticket` of q or later: CUDA_TICKETS copies on its event is
 * recorded again. */
static cudaEvent_t end_of_copy(const CudaCopies *q, int64_t ticket)
{
    BUG_ON(ticket < 0 || ticket >= q->tickets);
    return q->event[ticket % CUDA_TICKETS];
}

/* Copies to the host on `compute`, by a kernel if asked for. So is mapped memory always: the CUDA runtime's
 * copy from host to host would make the host wait. */
static void copy_off(Device *d, void *dst, const void *src, size_t bytes, int by_kernel)
{
    if (by_kernel || cuda_owns_mapped(d, src))
        cuda_copy_bytes(d, dst, src, bytes);
    else
        CUDA_OK(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, cuda_stream(d)));
}

static int64_t cuda_read_async(Device *d, void *dst, const void *src, size_t bytes)
{
    Cuda *c = cuda_of(d);
    BUG_ON(!range_has(&c->pinned, dst) || c->ops);
    /* a few words by a kernel: the copy engine does one copy at a time, and may do a snapshot now */
    copy_off(d, dst, src, bytes, bytes <= CUDA_WORDS && bytes % 4 == 0);
    return ticket_of(&c->reads);
}

static int64_t cuda_snapshot(Device *d, void *dst, const void *src, size_t bytes)
{
    Cuda *c = cuda_of(d);
    BUG_ON(!range_has(&c->pinned, dst));
    ops_leave(c, c->snapshots.stream);
    copy_off(d, dst, src, bytes, 0);
    ops_return(c);
    c->unsettled = 1;
    return -1 - ticket_of(&c->snapshots);  /* read_async's tickets are >= 0, snapshot's < 0 */
}

static void cuda_wait_snapshots(Device *d)
{
    Cuda *c = cuda_of(d);
    if (!c->unsettled)
        return;
    CUDA_OK(cudaStreamWaitEvent(c->compute, end_of_copy(&c->snapshots, c->snapshots.tickets - 1), 0));
    c->unsettled = 0;
}

static void cuda_read_wait(Device *d, int64_t ticket)
{
    Cuda *c = cuda_of(d);
    cuda_await(d, ticket < 0 ? end_of_copy(&c->snapshots, -1 - ticket) : end_of_copy(&c->reads, ticket));
}

/* ---- copies beside the ops ---- */

/* Returns a ticket of offload, prefetch or side_end. It is above 0, since 0 means no copy, and contains
 * `way`. */
static int64_t trip_ticket(Cuda *c, int way) { return 1 + way + CUDA_WAYS * ticket_of(&c->trips[way]); }

static cudaEvent_t end_of_trip(const Cuda *c, int64_t ticket)
{
    return end_of_copy(&c->trips[(ticket - 1) % CUDA_WAYS], (ticket - 1) / CUDA_WAYS);
}

static int64_t cuda_offload(Device *d, void *mapped, const void *src, size_t bytes)
{
    Cuda *c = cuda_of(d);
    cudaStream_t s = c->trips[CUDA_OFFLOADS].stream;
    CUDA_OK(cudaStreamWaitEvent(s, ops_so_far(c), 0));
    CUDA_OK(cudaMemcpyAsync(mapped, src, bytes, cudaMemcpyDeviceToHost, s));
    return trip_ticket(c, CUDA_OFFLOADS);
}

static int64_t cuda_prefetch(Device *d, void *dst, const void *mapped, size_t bytes, int64_t after)
{
    Cuda *c = cuda_of(d);
    cudaStream_t s = c->trips[CUDA_PREFETCHES].stream;
    CUDA_OK(cudaStreamWaitEvent(s, ops_so_far(c), 0));
    if (after)
        CUDA_OK(cudaStreamWaitEvent(s, end_of_trip(c, after), 0));
    CUDA_OK(cudaMemcpyAsync(dst, mapped, bytes, cudaMemcpyHostToDevice, s));
    return trip_ticket(c, CUDA_PREFETCHES);
}

static void cuda_stream_wait(Device *d, int64_t ticket)
{
    Cuda *c = cuda_of(d);
    if (ticket)
        CUDA_OK(cudaStreamWaitEvent(c->compute, end_of_trip(c, ticket), 0));
}

static void cuda_side_begin(Device *d) { ops_leave(cuda_of(d), cuda_of(d)->trips[CUDA_ASIDE].stream); }

static int64_t cuda_side_end(Device *d)
{
    Cuda *c = cuda_of(d);
    BUG_ON(!c->ops);
    ops_return(c);
    return trip_ticket(c, CUDA_ASIDE);
}

static void open_events(cudaEvent_t *e, int n, unsigned flags)
{
    for (int i = 0; i < n; i++)
        CUDA_OK(cudaEventCreateWithFlags(&e[i], flags));
}

static void close_events(cudaEvent_t *e, int n)
{
    for (int i = 0; i < n; i++)
        CUDA_OK(cudaEventDestroy(e[i]));
}

static int64_t cuda_mark(Device *d)
{
    Cuda *c = cuda_of(d);
    BUG_ON(c->ops /* the moment is one of the ops' own stream */);
    CUDA_OK(cudaEventRecord(c->mark[c->marks % c->mark_room], c->compute));
    return c->marks++;
}

static double cuda_between(Device *d, int64_t from, int64_t to)
{
    Cuda *c = cuda_of(d);
    float ms;
    BUG_ON(from < 0 || from > to || to >= c->marks || c->marks - from > c->mark_room);
    cuda_await(d, c->mark[to % c->mark_room]);
    CUDA_OK(cudaEventElapsedTime(&ms, c->mark[from % c->mark_room], c->mark[to % c->mark_room]));
    return (double)ms;
}

/* Adds the ms of the stalls that are over, in their order. */
static void cuda_stalls(Device *d)
{
    Cuda *c = cuda_of(d);
    float ms;
    for (; c->told < c->stalls; c->told++) {
        const CudaStall *s = &c->stall[c->told % CUDA_STALLS];
        if (!cuda_done(s->at[1]))
            return;
        CUDA_OK(cudaEventElapsedTime(&ms, s->at[0], s->at[1]));
        *s->ms += (double)ms;
    }
}

static void cuda_stall(Device *d, double *ms)
{
    Cuda *c = cuda_of(d);
    if (c->stalling++ || c->ops)
        return;
    for (int i = 0; i < CUDA_STALLS && !c->stalls; i++)        /* most runs ask for none */
        open_events(c->stall[i].at, 2, cudaEventDefault);
    CudaStall *s = &c->stall[c->stalls % CUDA_STALLS];
    if (c->stalls - c->told == CUDA_STALLS) {
        cuda_await(d, s->at[1]);
        cuda_stalls(d);
    }
    s->ms = ms;
    CUDA_OK(cudaEventRecord(s->at[0], c->compute));
}

static void cuda_stall_end(Device *d)
{
    Cuda *c = cuda_of(d);
    BUG_ON(!c->stalling);
    if (--c->stalling || c->ops)
        return;
    CUDA_OK(cudaEventRecord(c->stall[c->stalls++ % CUDA_STALLS].at[1], c->compute));
}

static void cuda_sync(Device *d)
{
    Cuda *c = cuda_of(d);
    cuda_wait_snapshots(d);
    CUDA_OK(cudaEventRecord(c->landed[0], c->compute));
    cuda_await(d, c->landed[0]);
}

/* ---- opening ---- */

/* The streams of copies, NCCL's groups and compute are more than the 8 queues that CUDA takes by default; two
 * in one queue wait for each other. */
int cuda_count(void)
{
    int n = 0;
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || !n)
        die(EXIT_RESOURCE, "cuda",
            "no GPU can be used on this machine: %s (%s); change: device: cpu, or a machine with an "
            "NVIDIA GPU and a driver that knows CUDA %d", e ? cudaGetErrorString(e) : "there is none",
            cudaGetErrorName(e ? e : cudaErrorNoDevice), CUDART_VERSION / 1000);
    return n;
}

static void cuda_mark_room(Device *d, int n)
{
    Cuda *c = cuda_of(d);
    BUG_ON(c->marks || n < 1);
    close_events(c->mark, c->mark_room);
    c->mark = xrealloc(c->mark, (size_t)n * sizeof *c->mark);
    c->mark_room = n;
    open_events(c->mark, n, cudaEventDefault);
}

static void open_copies(CudaCopies *q, cudaStream_t stream)
{
    q->stream = stream;
    open_events(q->event, CUDA_TICKETS, cudaEventDisableTiming);
}

static cudaStream_t new_stream(void)
{
    cudaStream_t s;
    CUDA_OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return s;
}

/* Five sixths of the memory's data rate: what copies reach on an H200 (tests/BENCHMARKS.md). */
static double memory_speed(int index)
{
    int khz, bits;
    CUDA_OK(cudaDeviceGetAttribute(&khz, cudaDevAttrMemoryClockRate, index));
    CUDA_OK(cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, index));
    return 2e-3 * khz * bits / 8 * 5 / 6;
}

void cuda_open(Device *d, Dtype real, int index)
{
    int count = cuda_count();
    struct cudaDeviceProp p;
    BUG_ON(index < 0);
    if (real != F32)
        die(EXIT_CONFIG, "cuda", "a GPU computes in F32, not in %s; change: device: cpu, or another type",
            dtype_name(real));
    if (index >= count)
        die(EXIT_RESOURCE, "cuda", "GPU %d is asked for, and there are %d; change: start at most %d ranks on "
            "this machine", index, count, count);
    CUDA_OK(cudaSetDevice(index));
    CUDA_OK(cudaGetDeviceProperties(&p, index));
    Cuda *c = xcalloc(1, sizeof *c);
    *c = (Cuda){.index = index, .thread = pthread_self(), .sms = p.multiProcessorCount, .major = p.major,
                .minor = p.minor, .shared = p.sharedMemPerBlockOptin, .l2 = (size_t)p.l2CacheSize,
                .speed = memory_speed(index)};
    memcpy(c->gpu, p.name, sizeof c->gpu);
    *d = (Device){.name = "cuda", .isa = c->gpu, .bf16 = "mma", .real = real, .impl = c, .late = 1,
                  .unit = hash64(&p.uuid, sizeof p.uuid, HASH_SEED), .take = cuda_take, .give = cuda_give,
                  .owns = cuda_owns, .left = cuda_left, .mapped_take = cuda_mapped_take,
                  .mapped_give = cuda_mapped_give, .offload = cuda_offload, .prefetch = cuda_prefetch,
                  .stream_wait = cuda_stream_wait, .side_begin = cuda_side_begin, .side_end = cuda_side_end,
                  .put = cuda_put, .get = cuda_get, .read_async = cuda_read_async,
                  .read_wait = cuda_read_wait, .snapshot = cuda_snapshot,
                  .wait_snapshots = cuda_wait_snapshots, .mark = cuda_mark, .between = cuda_between,
                  .mark_room = cuda_mark_room, .stall = cuda_stall, .stall_end = cuda_stall_end,
                  .stalls = cuda_stalls,
                  .host_take = cuda_host_take, .host_give = cuda_host_give, .sync = cuda_sync};
#define X(name, params, names) d->name = cuda_##name;
    OPS(X)
#undef X
    c->compute = new_stream();
    open_copies(&c->reads, c->compute);
    open_copies(&c->snapshots, new_stream());
    for (int i = 0; i < CUDA_WAYS; i++)
        open_copies(&c->trips[i], new_stream());
    open_events(c->sent, CUDA_PIECES, cudaEventDisableTiming);
    open_events(c->landed, 2, cudaEventDisableTiming);
    open_events(&c->before, 1, cudaEventDisableTiming);
    cuda_mark_room(d, DEVICE_MARKS);
    c->workspace = cuda_memory(CUDA_WORKSPACE);
    c->piece = pinned_memory(CUDA_PIECES * CUDA_PIECE);
    c->landing = pinned_memory(2 * CUDA_PIECE);
    c->lt = lt_open(lt_api(), c->gpu, c->compute, c->workspace, CUDA_WORKSPACE);
    cuda_attention_open(c);
    cuda_xent_open(c);
    cuda_fp8_open(c);
}

void cuda_close(Device *d)
{
    Cuda *c = cuda_of(d);
    cuda_sync(d);
    cuda_attention_close(d);
    lt_close(c->lt);
    /* the stream of c->reads is c->compute */
    CudaCopies *copies[] = {&c->reads, &c->snapshots, &c->trips[CUDA_OFFLOADS], &c->trips[CUDA_PREFETCHES],
                            &c->trips[CUDA_ASIDE]};
    for (size_t i = 0; i < sizeof copies / sizeof *copies; i++) {
        CUDA_OK(cudaStreamDestroy(copies[i]->stream));
        close_events(copies[i]->event, CUDA_TICKETS);
    }
    close_events(c->sent, CUDA_PIECES);
    close_events(c->landed, 2);
    close_events(&c->before, 1);
    close_events(c->mark, c->mark_room);
    for (int i = 0; i < CUDA_STALLS && c->stalls; i++)
        close_events(c->stall[i].at, 2);
    CUDA_OK(cudaFree(c->workspace));
    CUDA_OK(cudaFreeHost(c->piece));
    CUDA_OK(cudaFreeHost(c->landing));
    free(c->mark);
    free(c->taken.at);
    free(c->mapped.at);
    free(c->pinned.at);
    free(c);
    *d = (Device){0};
}
