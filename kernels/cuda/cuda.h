/* cuda -- what the files of this folder share, and the groups whose buffers lie on a GPU
 * (parallel/comm/comm_*): a GPU's streams, memory and waits.
 *
 * Ops are enqueued on one stream, `compute`, and return at once; the host waits in get, read_wait and sync
 * alone. A call that fails, and a launch that cannot be, dies with EXIT_RESOURCE. One thread of the host, but
 * for read_wait. */
#ifndef CUDA_H
#define CUDA_H
#include "device.h"
#include <cuda_runtime_api.h>
#include <pthread.h>
#ifdef __cplusplus
extern "C" {
#endif

#define CUDA_OK(call)                                                 \
    do {                                                              \
        cudaError_t error_ = (call);                                  \
        if (error_ != cudaSuccess)                                    \
            cuda_failed(error_, #call, __FILE__, __LINE__);           \
    } while (0)
_Noreturn void cuda_failed(cudaError_t e, const char *call, const char *file, int line);

#define CUDA_PIECE ((size_t)1 << 20) /* bytes of pinned memory that one copy of put or get takes at most */
#define CUDA_WORDS ((size_t)4 << 10)           /* bytes that read_async has an op copy */
enum { CUDA_PIECES = 16, CUDA_TICKETS = 256 };
enum { CUDA_OFFLOADS, CUDA_PREFETCHES, CUDA_ASIDE, CUDA_WAYS };
enum { CUDA_FEW = 16 }; /* blocks of an op aside: they wait for the bus, which they fill */

typedef struct { char *p; size_t bytes; } CudaRange;
typedef struct { CudaRange *at; int n, room; } CudaRanges;

/* Copies on a stream; event of ticket t: [t % CUDA_TICKETS]. */
typedef struct { cudaStream_t stream; cudaEvent_t event[CUDA_TICKETS]; int64_t tickets; } CudaCopies;

typedef struct {
    int index;                         /* which GPU */
    pthread_t thread;                  /* that opened it */
    char gpu[256];                     /* its name */
    int sms, major, minor;
    size_t shared;                     /* bytes of shared memory that a block may ask for */
    cudaStream_t compute;
    char *workspace;
    CudaRanges taken, mapped, pinned;   /* what take, mapped_take and host_take gave */
    /* put: pinned pieces, filled in turn; `sent` of a piece is recorded when it is full */
    char *piece;
    cudaEvent_t sent[CUDA_PIECES];
    size_t filled;                     /* bytes of the piece in turn */
    int turn;
    /* get: two pinned pieces */
    char *landing;
    cudaEvent_t landed[2];
    CudaCopies reads;                   /* among the ops */
    CudaCopies snapshots; /* beside the ops, each copy behind `before`, recorded anew for it: of saves, */
    CudaCopies trips[CUDA_WAYS];       /* of what layers keep on the host, there and back; and ops aside */
    cudaStream_t ops;                  /* aside: where `compute` is to go back to; else NULL */
    cudaEvent_t before;
    int unsettled;                     /* the ops are behind none of the last snapshots */
    void (*watch)(double waited);
    struct Lt *lt;                     /* matrix products */
    struct CudaAttention *attention;   /* what cuDNN does of attention; NULL: nothing */
} Cuda;

static inline Cuda *cuda_of(const Device *d) { return (Cuda *)d->impl; }
/* Blocks of an op that would have as many, and can do with fewer. */
static inline int64_t cuda_few(const Cuda *c, int64_t blocks)
{
    return c->ops && blocks > CUDA_FEW ? (int64_t)CUDA_FEW : blocks;
}
static inline cudaStream_t cuda_stream(const Device *d) { return cuda_of(d)->compute; }

/* Device memory for the op that asks, until it has run: at most CUDA_WORKSPACE bytes, aligned to 256; not
 * cleared. */
void *cuda_workspace(Cuda *c, size_t bytes);

/* Device memory until cudaFree, not cleared; dies with EXIT_RESOURCE. Start-up only. */
void *cuda_memory(size_t bytes);

/* Whether p lies in memory of the host that ops can use: what mapped_take or host_take gave. */
int cuda_on_host(Device *d, const void *p);

/* Whether what `e` was recorded behind has run. */
int cuda_done(cudaEvent_t e);
/* The host waits for what `e` was recorded behind. Any thread. */
void cuda_await(Device *d, cudaEvent_t e);
/* watch(seconds that the host has waited so far) is called now and then while the thread that opened d waits;
 * it may die. NULL: never. */
void cuda_watch(Device *d, void (*watch)(double waited));

/* The kernels of attention and of xent may use the shared memory that they need: once, when the device is
 * opened. */
void cuda_attention_open(const Cuda *c);
void cuda_xent_open(const Cuda *c);

/* Every row of the table: cuda_add, cuda_adam, ... */
#define X(name, params, names) void cuda_##name params;
OPS(X)
#undef X

#ifdef __cplusplus
}
#endif
#endif
