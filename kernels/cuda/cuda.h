/* cuda -- the state of the CUDA device: streams, events, memory. Used by this folder and by the groups
 * whose buffers are on a GPU (parallel/comm/comm_*).
 *
 * Ops are enqueued on one stream, `compute`, and return at once; the host waits only in get, read_wait,
 * between and sync. A CUDA call or launch that fails dies with EXIT_RESOURCE. Only the thread that opened the
 * device may use it, except for read_wait. */
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

#define CUDA_PIECE ((size_t)1 << 20)   /* bytes of a pinned piece, the most of one copy of put or get */
#define CUDA_WORDS ((size_t)4 << 10)   /* most bytes that read_async copies by a kernel */
enum { CUDA_PIECES = 16, CUDA_TICKETS = 256, CUDA_STALLS = 512 };
enum { CUDA_OFFLOADS, CUDA_PREFETCHES, CUDA_ASIDE, CUDA_WAYS };
enum { CUDA_FEW = 16 };                /* blocks of an op on the side stream: enough to fill the bus */

typedef struct { char *p; size_t bytes; } CudaRange;
typedef struct { CudaRange *at; int n; } CudaRanges;

/* A stream whose copies have tickets 0, 1, ...; event[t % CUDA_TICKETS] is recorded behind copy t. */
typedef struct { cudaStream_t stream; cudaEvent_t event[CUDA_TICKETS]; int64_t tickets; } CudaCopies;

/* A stretch in which ops may stand still: its moments, and where its ms go. */
typedef struct { cudaEvent_t at[2]; double *ms; } CudaStall;

typedef struct {
    int index;                         /* number of the GPU */
    pthread_t thread;                  /* thread that opened the device */
    char gpu[256];                     /* name of the GPU */
    int sms, major, minor;             /* multiprocessors; compute capability */
    size_t shared, l2;                 /* bytes of shared memory that a block may ask for; of the L2 cache */
    double speed;                      /* bytes a microsecond that large passes over memory read and write */
    cudaStream_t compute;              /* stream of the ops */
    char *workspace;                   /* [CUDA_WORKSPACE] */
    CudaRanges taken, mapped, pinned;  /* memory that take, mapped_take, host_take have given */
    /* put goes through pinned pieces, filled in turn */
    char *piece;                       /* [CUDA_PIECES][CUDA_PIECE] */
    cudaEvent_t sent[CUDA_PIECES];     /* recorded behind the last copy of a piece */
    size_t filled;                     /* bytes used of the current piece */
    int turn;                          /* current piece */
    /* get goes through two pinned pieces */
    char *landing;                     /* [2][CUDA_PIECE] */
    cudaEvent_t landed[2];             /* recorded behind the copy into a piece */
    CudaCopies reads;                  /* read_async: on `compute` */
    CudaCopies snapshots;              /* snapshot: on a stream of its own */
    CudaCopies trips[CUDA_WAYS];       /* offload, prefetch, side stream: a stream each */
    cudaStream_t ops;                  /* while ops run aside: their stream at other times; else NULL */
    cudaEvent_t *mark;                 /* [mark_room] mark t is mark[t % mark_room]; these have times */
    int mark_room;
    int64_t marks;                     /* marks so far */
    CudaStall stall[CUDA_STALLS];      /* stall n is stall[n % CUDA_STALLS]; its moments have times */
    int64_t stalls, told;              /* stalls so far; those whose ms have been added */
    int stalling;                      /* calls of stall that stall_end is due for */
    cudaEvent_t before;                /* end of the ops so far; recorded for each copy beside them */
    int unsettled;                     /* bool: `compute` does not wait yet for the last snapshot */
    void (*watch)(double waited);      /* see cuda_watch */
    struct Lt *lt;                     /* matrix products */
    struct CudaAttention *attention;   /* attention by cuDNN; NULL: none */
} Cuda;

static inline Cuda *cuda_of(const Device *d) { return (Cuda *)d->impl; }
/* Blocks of an op that can do with fewer than `blocks`: aside at most CUDA_FEW. */
static inline int64_t cuda_few(const Cuda *c, int64_t blocks)
{
    return c->ops && blocks > CUDA_FEW ? (int64_t)CUDA_FEW : blocks;
}
static inline cudaStream_t cuda_stream(const Device *d) { return cuda_of(d)->compute; }

/* Returns device memory for one op, until the op has run: at most CUDA_WORKSPACE bytes, aligned to 256,
 * not cleared. */
void *cuda_workspace(Cuda *c, size_t bytes);

/* Returns device memory until cudaFree, not cleared; dies with EXIT_RESOURCE. Start-up only. */
void *cuda_memory(size_t bytes);

/* Whether p lies in memory that mapped_take or host_take gave, which is the host's and which ops can
 * use. */
int cuda_on_host(Device *d, const void *p);

/* Whether event e has completed. */
int cuda_done(cudaEvent_t e);
/* The host waits for event e. Any thread may call it. */
void cuda_await(Device *d, cudaEvent_t e);
/* Sets a function that cuda_await calls about every 50 ms on the thread that opened d. It may die. NULL:
 * none.
 *   waited  in  seconds of this wait so far */
void cuda_watch(Device *d, void (*watch)(double waited));

/* Copies bytes by a kernel on `compute`: words where both addresses and the number of bytes allow. One of the
 * two is the host's. */
void cuda_copy_bytes(Device *d, void *dst, const void *src, size_t bytes);
/* Dies unless this GPU multiplies FP8 of this scaling. */
void cuda_fp8_check(const Cuda *c, Fp8Scaling scaling);
/* The statistics of fp8_norm, and with sum that, in a pass of its own. Arguments as of fp8_norm. */
void cuda_norm_stats(Device *d, Mat sum, Mat stats, Mat x, Mat res, const Dropout *s, Mat gain, Mat bias,
                     double eps, NormKind kind);
/* fp8_norm with a delayed scale in one pass. Returns whether it did: rows may be too long or too short. */
int cuda_fp8_norm_once(Device *d, void *y, void *yt, Mat sum, Mat stats, Mat x, Mat res, const Dropout *drop,
                       Mat gain, Mat bias, double eps, NormKind kind, Fp8Scale *s);
/* Adds the gradients of a norm's gain and bias, by a pass of its own over dy and x: for rows that norm_bwd's
 * one pass does not take. Arguments as of norm_bwd. */
void cuda_norm_columns(Device *d, Mat dgain, Mat dbias, Mat dy, Mat x, Mat stats, int groups);
/* out += the sums of columns over parts, in an order that follows from `parts`.
 *   out    in/out  [n]         F32
 *   part   in      [parts, n]  F32 */
void cuda_add_parts(Cuda *c, Mat out, const float *part, int n, int parts);

/* Ask for the shared memory that kernels of attention, xent and fp8_norm need; called once, by cuda_open. */
void cuda_attention_open(const Cuda *c);
void cuda_xent_open(const Cuda *c);
void cuda_fp8_open(const Cuda *c);

/* The ops: cuda_add, cuda_adam, ... */
#define X(name, params, names) void cuda_##name params;
OPS(X)
#undef X

#ifdef __cplusplus
}
#endif
#endif
