/* libraries -- cuBLASLt, NCCL and cuDNN, which are opened when a GPU is used, not when the program
 * starts. The functions of a library are a table with their own names, filled at the first call of
 * lt_api or nccl_api. A missing library dies with EXIT_RESOURCE, except for cuDNN, which is optional
 * (attention_cudnn.cpp). The CUDA runtime is linked in. */
#ifndef LIBRARIES_H
#define LIBRARIES_H
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif
/* Opens a library. If it is missing, returns NULL and writes the reason.
 *   why  out  [bytes]  text */
void *library_find(const char *name, char *why, size_t bytes);
/* Returns a function of library l, or NULL if it has no such function. */
void *library_symbol(void *l, const char *name);
#ifdef __cplusplus
}
#endif

#if __has_include(<cublasLt.h>) && !defined __cplusplus
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

#if __has_include(<nccl.h>) && !defined __cplusplus
#include <nccl.h>

#define NCCL_FUNCTIONS(X)                                                                                    \
    X(ncclGetVersion) X(ncclGetErrorString) X(ncclGetUniqueId) X(ncclCommInitRankConfig) X(ncclCommSplit)    \
    X(ncclCommGetAsyncError) X(ncclCommFinalize) X(ncclCommDestroy) X(ncclCommAbort) X(ncclCommRegister)     \
    X(ncclCommDeregister) X(ncclGroupStart) X(ncclGroupEnd) X(ncclAllReduce) X(ncclReduceScatter)            \
    X(ncclAllGather) X(ncclBroadcast) X(ncclSend) X(ncclRecv)
#define X(f) __typeof__(f) *f;
typedef struct { NCCL_FUNCTIONS(X) } NcclApi;
#undef X
const NcclApi *nccl_api(void);
#endif
#endif
