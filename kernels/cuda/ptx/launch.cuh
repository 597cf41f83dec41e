/* launch -- LAUNCH(kernel, grid, block, shared_bytes, stream, arguments...), the only way a kernel is
 * launched. A kernel whose template arguments have a comma must be in parentheses. More than 48 KB of
 * shared memory need cudaFuncSetAttribute first. */
#ifndef LAUNCH_CUH
#define LAUNCH_CUH
#include "cuda.h"

#define LAUNCH(kernel, grid, block, shared, stream, ...)              \
    do {                                                              \
        (kernel)<<<grid, block, shared, stream>>>(__VA_ARGS__);       \
        CUDA_OK(cudaPeekAtLastError());                               \
    } while (0)
#endif
