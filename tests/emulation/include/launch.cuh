/* launch -- LAUNCH on the host: enqueues the kernel as work on the stream, with a copy of its arguments.
 *
 * The templates are static, because different files may have different types of one name. */
#ifndef LAUNCH_CUH
#define LAUNCH_CUH
#include <cuda_runtime.h>
#include <emulation.h>

template <class... P, class... A>
static void emulation_call(const char *name, const char *file, int line, void (*kernel)(P...), dim3 grid,
                           dim3 block, size_t shared, cudaStream_t s, A... a)
{
    static_assert(sizeof...(P) == sizeof...(A), "arguments of a launch");
    emulation_launch(name, reinterpret_cast<const void *>(kernel), grid, block, shared, s,
                     [kernel, a...] { kernel(a...); }, file, line);
}

#define LAUNCH(kernel, grid, block, shared, stream, ...) \
    emulation_call(#kernel, __FILE__, __LINE__, kernel, grid, block, shared, stream, ##__VA_ARGS__)
#endif
