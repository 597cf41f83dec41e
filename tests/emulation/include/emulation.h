/* emulation -- a CUDA device on the host, for tests: each process has its own device, and none is fast.
 *
 * Streams are queues. Nothing runs when it is enqueued. A seed decides which work runs when, as far as
 * stream order, events and synchronisation allow, and mostly as late as possible: a missing wait gives a
 * wrong number under some seed. Each piece of work runs whole, on a host thread that calls the runtime.
 *
 * The threads of a block are fibers, switched at barriers and warp operations in an order that the seed
 * shuffles: in three blocks of four the warps have an order, and one may be far behind the others; in the
 * fourth any warp goes on at any time. The blocks of a grid run one after the other, in shuffled order. The
 * process ends with a message when threads of a warp meet at different warp operations, threads of a block
 * wait at different barriers, or no thread of a block can go on.
 *
 * Device memory is 0xff (NaN) when new, ends at a page that faults, and is never reused after cudaFree.
 * Shared memory is 0xff in every new block, and checked behind its end.
 *   EMULATION_SEED=N        the order (default 1)
 *   EMULATION_LAST=N        stream N, in the order in which they were made, 0 first, runs when no other can
 *   EMULATION_GUARD=1       the host faults when it touches device memory, or pinned memory that it has freed
 *   EMULATION_NO_DEVICE=1   as on a machine without a driver: cudaErrorInsufficientDriver
 *   EMULATION_DEVICES=N     how many devices there seem to be (default 1): their memory is one; processes
 *                           that are given this see the same ones, others have one each
 *   EMULATION_NCCL_VERSION=N  the version that NCCL reports
 *   EMULATION_ENGINES=1     copies to the host run one after the other, whatever their streams; so do copies
 *                           to the device
 *   EMULATION_QUEUE=N       a stream holds N items: the host waits until there is room for another
 *   EMULATION_CLOCK=NS      time is counted: a piece of work takes NS, and nothing else takes time; events
 *                           have that time
 *   EMULATION_MEMORY=BYTES  size of device memory (default 4 GiB)
 *   EMULATION_SMS=N         number of multiprocessors (default 4)
 *   EMULATION_CAPABILITY=N  compute capability, ten times the number (default 90); from 110 on kernels are
 *                           missing
 *   EMULATION_OPTIN_KIB=N   most shared memory of a block (default 227)
 *   EMULATION_SITES=FILE    adds to FILE, when the process ends, `KIND FILE:LINE COUNT` for each place that
 *                           has waited: event waits, synchronisations, barriers
 *   EMULATION_LAUNCHES=FILE adds to FILE, when the process ends, `COUNT KERNEL` for each kernel
 *   EMULATION_DROP=FILE:LINE  the call at this place does not wait
 *
 * The emulated libraries (matrix products, collectives, instructions) are written with this header. */
#ifndef EMULATION_H
#define EMULATION_H
#include "half.h"
#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <functional>

/* A mistake in the code under test: prints `emulation: ...` and ends the process with 8. */
[[noreturn]] void emulation_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Enqueues work on a stream. what: name of the work, a literal. */
void emulation_enqueue(cudaStream_t s, const char *what, std::function<void()> run);
/* Enqueues work that may wait for other processes. run returns 0 when it is not complete; it is called
 * again, and other streams' work may run in between. */
void emulation_enqueue_until(cudaStream_t s, const char *what, std::function<int()> run);

/* Ends the process unless [p, p + bytes) is within one allocation of device memory. bytes 0: not
 * checked. */
void emulation_check(const void *p, size_t bytes, const char *what);

/* With EMULATION_CLOCK. emulation_clock: seconds of the work so far. emulation_pass: the host is busy for so
 * many seconds; the device first runs all that it has. */
extern "C" double emulation_clock(void);
extern "C" void emulation_pass(double seconds);

/* Random number in [0, n), from the seed. */
uint64_t emulation_random(uint64_t n);

/* ---- in a kernel ---- */

/* Counts a place that waits. Returns 0 when EMULATION_DROP names the place: it must not wait.
 *
 *   state  in/out  memory of the place, 0 at first
 *   kind   in      "barrier", "event wait", ... */
int emulation_site(int *state, const char *kind, const char *file, int line);

void emulation_barrier(const char *file, int line);
/* A barrier of `threads` threads of the block, whole warps; id: 1 .. 15. */
void emulation_barrier_some(int id, int threads, const char *file, int line);
enum { EMULATION_LANE_BYTES = 256, EMULATION_SHARED = 228 * 1024 };    /* shared memory of a multiprocessor */
/* Waits for the other lanes of `mask` at this place and exchanges bytes with them. Returns the bytes of all
 * lanes, those of lane i at [i * bytes]; they stay valid until this lane's second meeting from here.
 *
 *   mine     in   [bytes]  bytes of this lane, at most EMULATION_LANE_BYTES
 *   present  out           mask of the lanes that took part */
const char *emulation_meet(unsigned mask, const void *mine, size_t bytes, unsigned *present, const char *what,
                           const char *file, int line);
/* An access of the running thread that the compiler does not see (races.cpp). writes, atomic: bool. */
void emulation_touch(const void *p, size_t bytes, int writes, int atomic);
/* Index of this thread in its block; number of the block, counted from the start of the process. */
int emulation_thread(void);
uint64_t emulation_block(void);

/* emulation_meet of a whole warp: returns `mine` of all 32 lanes, none of which may have ended. */
template <class T>
const T *emulation_lanes(const T &mine, const char *what, const char *file = __builtin_FILE(),
                         int line = __builtin_LINE())
{
    static_assert(sizeof(T) <= EMULATION_LANE_BYTES, "too much for a lane");
    unsigned present;
    const T *all =
        reinterpret_cast<const T *>(emulation_meet(~0u, &mine, sizeof mine, &present, what, file, line));
    if (present != ~0u)
        emulation_fail("%s:%d: %s with lanes that have ended (present %08x)", file, line, what, present);
    return all;
}

/* ---- numbers of 16 bits, rounded to nearest even ---- */
static inline float emulation_half_to_float(uint16_t h)
{
    return f16_to_f32(h);
}
static inline uint16_t emulation_float_to_half(float f)
{
    return f != f ? 0x7fff : f32_to_f16(f);
}
static inline float emulation_bf16_to_float(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
static inline uint16_t emulation_float_to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return f != f ? 0x7fff : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* ---- launches ---- */
struct dim3;
void emulation_launch(const char *kernel, const void *function, dim3 grid, dim3 block, size_t shared,
                      cudaStream_t s, std::function<void()> thread, const char *file, int line);
#endif
