/* libraries -- what is opened when a GPU is used, not when the program starts: cuBLASLt, NCCL, cuDNN. The
 * functions of each, under their own names, in a table; asked for the first time it is filled, and a library
 * that is not there dies with EXIT_RESOURCE, but for cuDNN, which can be done without (attention_cudnn.cpp).
 * The runtime itself is linked in. */
#ifndef LIBRARIES_H
#define LIBRARIES_H
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif
/* A library that may be missing: NULL, and `why` (of `bytes`) says so. A function of it, NULL where it has
 * none. */
void *library_find(const char *name, char *why, size_t bytes);
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
    X(ncclGetVersion)                                                                                        \
    X(ncclGetErrorString) X(ncclGetUniqueId) X(ncclCommInitRankConfig) X(ncclCommSplit)                      \
        X(ncclCommGetAsyncError) X(ncclCommFinalize) X(ncclCommDestroy) X(ncclCommAbort) X(ncclCommRegister) \
            X(ncclCommDeregister) X(ncclGroupStart) X(ncclGroupEnd) X(ncclAllReduce) X(ncclReduceScatter)    \
                X(ncclAllGather) X(ncclBroadcast) X(ncclSend) X(ncclRecv)
#define X(f) __typeof__(f) *f;
typedef struct { NCCL_FUNCTIONS(X) } NcclApi;
#undef X
const NcclApi *nccl_api(void);
#endif
#endif
