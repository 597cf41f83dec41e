/* libraries -- what is opened when a GPU is used, not when the program starts: cuBLASLt, NCCL. The functions of each, under
 * their own names, in a table; asked for the first time it is filled, and a library that is not there dies with
 * EXIT_RESOURCE. The runtime itself is linked in. */
#ifndef LIBRARIES_H
#define LIBRARIES_H
#if __has_include(<cublasLt.h>)
#include <cublasLt.h>

#define LT_FUNCTIONS(X)                                                                                      \
    X(cublasLtGetVersion) X(cublasLtGetStatusString) X(cublasLtCreate) X(cublasLtDestroy)                    \
    X(cublasLtMatmulDescCreate) X(cublasLtMatmulDescDestroy) X(cublasLtMatmulDescSetAttribute)               \
    X(cublasLtMatrixLayoutCreate) X(cublasLtMatrixLayoutDestroy)                                             \
    X(cublasLtMatmulPreferenceCreate) X(cublasLtMatmulPreferenceDestroy)                                     \
    X(cublasLtMatmulPreferenceSetAttribute) X(cublasLtMatmulAlgoGetHeuristic) X(cublasLtMatmulAlgoCheck)     \
    X(cublasLtMatmul)
#define X(f) __typeof__(f) *f;
typedef struct { LT_FUNCTIONS(X) } LtApi;
#undef X
const LtApi *lt_api(void);
#endif

#if __has_include(<nccl.h>)
#include <nccl.h>

#define NCCL_FUNCTIONS(X)                                                                                    \
    X(ncclGetErrorString) X(ncclGetUniqueId) X(ncclCommInitRankConfig) X(ncclCommSplit) X(ncclCommGetAsyncError) \
    X(ncclCommFinalize) X(ncclCommDestroy) X(ncclCommAbort) X(ncclCommRegister) X(ncclCommDeregister)        \
    X(ncclGroupStart) X(ncclGroupEnd) X(ncclAllReduce) X(ncclReduceScatter) X(ncclAllGather) X(ncclBroadcast) \
    X(ncclSend) X(ncclRecv)
#define X(f) __typeof__(f) *f;
typedef struct { NCCL_FUNCTIONS(X) } NcclApi;
#undef X
const NcclApi *nccl_api(void);
#endif
#endif
