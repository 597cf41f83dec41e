/* test_races -- tests/emulation/races.cpp reports what nothing orders, in every order of the threads, and
 * nothing else. Each case runs in a process of its own. */
#include "child.h"
#include <cuda_runtime.h>
#include <launch.cuh>
#include <ptx.cuh>

enum { N = 128, SEEDS = 8 };
static float *device;
static float *words(void) { return reinterpret_cast<float *>(shared); }

/* Each thread writes a word of shared memory, and after `order` reads that of thread i ^ bit. */
template <class Order> static __device__ void exchange(int bit, Order order)
{
    int i = threadIdx.x;
    words()[i] = 1;
    order();
    device[blockIdx.x * N + i] = words()[i ^ bit];
}

/* ---- ordered ---- */

static __global__ void k_barrier(void)
{
    for (int round = 0; round < 2; round++) {
        exchange(64, [] { __syncthreads(); });
        __syncthreads();
    }
}
static __global__ void k_warp(void) { exchange(1, [] { __syncwarp(); }); }
static __global__ void k_some(void)
{
    exchange(32, [] { threadIdx.x < 64 ? barrier_some<1, 64>() : barrier_some<2, 64>(); });
}
/* warp 2 knows by warp 1 what warp 0 has done */
static __global__ void k_by_another(void)
{
    int w = threadIdx.x / 32;
    if (w == 0)
        words()[threadIdx.x] = 1;
    if (w < 2)
        barrier_some<1, 64>();
    if (w == 1 || w == 2)
        barrier_some<2, 64>();
    if (w == 2)
        device[threadIdx.x] = words()[threadIdx.x - 64];
}
static __global__ void k_atomics(void) { atomicAdd(reinterpret_cast<int *>(device), 1); }
static __global__ void k_bytes(void) { reinterpret_cast<char *>(device)[blockIdx.x * N + threadIdx.x] = 1; }
static __global__ void k_reads(void) { device[N + blockIdx.x * N + threadIdx.x] = device[0]; }
static __global__ void k_copy(void)
{
    exchange(64, [] {
        __syncthreads();
        cp_async4(4 * threadIdx.x, device + 4 * N + threadIdx.x, true);
        cp_async_commit();
        cp_async_wait<0>();
        __syncthreads();
    });
}

/* ---- not ordered ---- */

static __global__ void k_nothing(void) { exchange(64, [] {}); }
static __global__ void k_warp_only(void) { exchange(64, [] { __syncwarp(); }); }
static __global__ void k_shuffle(void) { exchange(1, [] { __shfl_xor_sync(~0u, 1, 1); }); }
static __global__ void k_other_some(void)
{
    exchange(64, [] { threadIdx.x < 64 ? barrier_some<1, 64>() : barrier_some<2, 64>(); });
}
static __global__ void k_again(void)
{
    for (int round = 0; round < 2; round++)
        exchange(64, [] { __syncthreads(); });
}
static __global__ void k_same_word(void) { device[N * blockIdx.x] = (float)threadIdx.x; }
static __global__ void k_blocks(void) { device[threadIdx.x] = 1; }
static __global__ void k_next_block(void)
{
    float x = device[(blockIdx.x + 1) % gridDim.x * N + threadIdx.x];
    device[blockIdx.x * N + threadIdx.x] = x;
}
static __global__ void k_atomic_and_plain(void)
{
    int *p = reinterpret_cast<int *>(device);
    threadIdx.x ? (void)atomicAdd(p, 1) : (void)(*p = 1);
}
/* the copy of another thread is waited for after the barrier */
static __global__ void k_late_copy(void)
{
    exchange(64, [] {
        __syncthreads();
        cp_async4(4 * threadIdx.x, device + 4 * N + threadIdx.x, true);
        cp_async_commit();
        __syncthreads();
    });
    cp_async_wait<0>();
}

#define CASE(kernel, blocks)                                                                                 \
    {#kernel, [](cudaStream_t s) { LAUNCH(kernel, blocks, N, 4 * N, s); }}
struct Case { const char *name; void (*run)(cudaStream_t s); };
static const Case right[] = {
    CASE(k_barrier, 2), CASE(k_warp, 2),  CASE(k_some, 2), CASE(k_by_another, 1), CASE(k_atomics, 3),
    CASE(k_bytes, 3),   CASE(k_reads, 3), CASE(k_copy, 2), CASE(k_blocks, 1),
};
static const Case wrong[] = {
    CASE(k_nothing, 1),   CASE(k_warp_only, 1), CASE(k_shuffle, 1),    CASE(k_other_some, 1),
    CASE(k_again, 1),     CASE(k_same_word, 1), CASE(k_blocks, 2),     CASE(k_next_block, 3),
    CASE(k_late_copy, 1), CASE(k_atomic_and_plain, 1),
};

static void run(void *c)
{
    cudaStream_t s;
    void *p;
    if (cudaMalloc(&p, 16 * N * sizeof *device) || cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) ||
        cudaMemsetAsync(p, 0, 16 * N * sizeof *device, s))
        _exit(3);
    device = static_cast<float *>(p);
    static_cast<const Case *>(c)->run(s);
    cudaStreamSynchronize(s);
}

int main(void)
{
    for (int seed = 0; seed < SEEDS; seed++) {
        char text[8];
        snprintf(text, sizeof text, "%d", seed);
        setenv("EMULATION_SEED", text, 1);
        for (Case c : right) {
            int rc = child(run, &c);
            CHECK(!rc && !lines(said), "%s, seed %d: %d %s", c.name, seed, rc, said);
        }
        for (Case c : wrong) {
            int rc = child(run, &c);
            CHECK(rc == 8 && lines(said) == 1 && strstr(said, "nothing orders the two") &&
                      strstr(said, c.name),
                  "%s, seed %d: %d %s", c.name, seed, rc, said);
        }
    }
    return test_end();
}
