/* launch -- LAUNCH(kernel, grid, block, shared_bytes, stream, arguments...): the only way a kernel is
 * launched. A kernel that is a template with a comma in its arguments stands in parentheses. More than 48 KB
 * of shared memory: first cudaFuncSetAttribute. */
#ifndef LAUNCH_CUH
#define LAUNCH_CUH
#include "cuda.h"

#define LAUNCH(kernel, grid, block, shared, stream, ...)              \
    do {                                                              \
        (kernel)<<<grid, block, shared, stream>>>(__VA_ARGS__);       \
        CUDA_OK(cudaPeekAtLastError());                               \
    } while (0)
#endif
