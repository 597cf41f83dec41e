/* nccl -- the part of NCCL that the project uses, for the emulation (tests/emulation/nccl.cpp). */
#ifndef EMULATION_NCCL_H
#define EMULATION_NCCL_H
#include <cuda_runtime_api.h>
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif

typedef struct EmulatedComm *ncclComm_t;
typedef struct { char internal[128]; } ncclUniqueId;
typedef enum {
    ncclSuccess,
    ncclUnhandledCudaError,
    ncclSystemError,
    ncclInternalError,
    ncclInvalidArgument,
    ncclInvalidUsage,
    ncclRemoteError,
    ncclInProgress
} ncclResult_t;
typedef enum { ncclInt32, ncclInt64, ncclFloat16, ncclFloat32, ncclFloat64, ncclBfloat16 } ncclDataType_t;
typedef enum { ncclSum, ncclMax, ncclMin } ncclRedOp_t;
typedef struct { int blocking; const char *commName; } ncclConfig_t;
#define NCCL_CONFIG_INITIALIZER {1, NULL}
#define NCCL_SPLIT_NOCOLOR (-1)

ncclResult_t ncclGetVersion(int *version);
const char *ncclGetErrorString(ncclResult_t r);
ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int n, ncclUniqueId id, int rank, ncclConfig_t *config);
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out, ncclConfig_t *config);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *r);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommRegister(const ncclComm_t comm, void *p, size_t bytes, void **handle);
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclAllReduce(const void *in, void *out, size_t n, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t s);
ncclResult_t ncclReduceScatter(const void *in, void *out, size_t n, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t s);
ncclResult_t ncclAllGather(const void *in, void *out, size_t n, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t s);
ncclResult_t ncclBroadcast(const void *in, void *out, size_t n, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t s);
ncclResult_t ncclSend(const void *in, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t s);
ncclResult_t ncclRecv(void *out, size_t n, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t s);
#ifdef __cplusplus
}
#endif
#endif
