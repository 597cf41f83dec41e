/* test_emulation -- the emulated device runs right code right and finds mistakes
 *
 * A case is a function that runs in a process of its own. A `right` case gives right results under every
 * seed; when any one place that waits is left out, it gives wrong results under some seed or ends with a
 * message. A `told` case ends with a message. */
#include "test.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <launch.cuh>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

enum { SEEDS = 20, N = 256 };
#define OK(call)                                                                                             \
    do {                                                                                                     \
        cudaError_t e_ = (call);                                                                             \
        if (e_ != cudaSuccess) {                                                                             \
            printf("# %s: %s\n", #call, cudaGetErrorString(e_));                                             \
            _exit(3);                                                                                        \
        }                                                                                                    \
    } while (0)

extern __shared__ __align__(16) char shared[];

/* Keeps a pointer to streams and events, which no case destroys: leak checkers then do not report them. */
template <class T> static T known(T made)
{
    static auto *all = new std::vector<T>;
    all->push_back(made);
    return made;
}
static cudaStream_t stream(void)
{
    cudaStream_t s;
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return known(s);
}
static cudaEvent_t event(void)
{
    cudaEvent_t e;
    OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    return known(e);
}
template <class T> static T *memory(size_t n)
{
    T *p;
    OK(cudaMalloc(&p, n * sizeof(T)));
    return p;
}
template <class T> static T *pinned(size_t n)
{
    T *p;
    OK(cudaMallocHost(&p, n * sizeof(T)));
    return p;
}

/* ---- right cases: streams ---- */

static __global__ void k_set(float *p, float x) { p[threadIdx.x + blockIdx.x * blockDim.x] = x; }
static __global__ void k_next(float *q, const float *p)
{
    int i = threadIdx.x + blockIdx.x * blockDim.x;
    q[i] = p[i] + 1;
}
static int all_are(const float *p, int n, float x)
{
    for (int i = 0; i < n; i++)
        if (p[i] != x)
            return 0;
    return 1;
}

/* Stream a writes a buffer and stream b reads it; a writes again after b has read. The host checks b's
 * results. */
static int producer_consumer(void)
{
    cudaStream_t a = stream(), b = stream();
    cudaEvent_t made = event(), used = event();
    float *p = memory<float>(N), *q = memory<float>(3 * N), *h = pinned<float>(3 * N);
    for (int i = 0; i < 3; i++) {
        LAUNCH(k_set, 4, N / 4, 0, a, p, (float)i);
        OK(cudaEventRecord(made, a));
        OK(cudaStreamWaitEvent(b, made, 0));
        LAUNCH(k_next, 4, N / 4, 0, b, q + i * N, p);
        OK(cudaEventRecord(used, b));
        OK(cudaStreamWaitEvent(a, used, 0));
    }
    OK(cudaMemcpyAsync(h, q, 3 * N * sizeof *h, cudaMemcpyDeviceToHost, b));
    OK(cudaStreamSynchronize(b));
    return all_are(h, N, 1) && all_are(h + N, N, 2) && all_are(h + 2 * N, N, 3);
}

/* The host refills one pinned buffer after each copy from it. */
static int one_buffer(void)
{
    cudaStream_t s = stream();
    cudaEvent_t read = event();
    float *p = memory<float>(4 * N), *h = pinned<float>(N), *back = pinned<float>(4 * N);
    for (int k = 0; k < 4; k++) {
        OK(cudaEventSynchronize(read));
        for (int i = 0; i < N; i++)
            h[i] = (float)k;
        OK(cudaMemcpyAsync(p + k * N, h, N * sizeof *h, cudaMemcpyHostToDevice, s));
        OK(cudaEventRecord(read, s));
    }
    OK(cudaMemcpyAsync(back, p, 4 * N * sizeof *h, cudaMemcpyDeviceToHost, s));
    OK(cudaDeviceSynchronize());
    for (int k = 0; k < 4; k++)
        if (!all_are(back + k * N, N, (float)k))
            return 0;
    return 1;
}

/* ---- right cases: blocks and warps ---- */

static __global__ void k_reverse(float *p, int rounds)
{
    float *s = reinterpret_cast<float *>(shared);
    int i = threadIdx.x, n = blockDim.x;
    float x = p[blockIdx.x * n + i];
    for (int r = 0; r < rounds; r++) {
        s[i] = x;
        __syncthreads();
        x = s[n - 1 - i];
        __syncthreads();
    }
    p[blockIdx.x * n + i] = x;
}
static int reversal(void)
{
    cudaStream_t s = stream();
    float *p = memory<float>(4 * N), h[4 * N];
    for (int i = 0; i < 4 * N; i++)
        h[i] = (float)i;
    OK(cudaMemcpyAsync(p, h, sizeof h, cudaMemcpyHostToDevice, s));
    LAUNCH(k_reverse, 4, N, N * sizeof(float), s, p, 3);
    OK(cudaMemcpyAsync(h, p, sizeof h, cudaMemcpyDeviceToHost, s));
    for (int i = 0; i < 4 * N; i++)
        if (h[i] != (float)(i / N * N + N - 1 - i % N))
            return 0;
    return 1;
}

static __global__ void k_rotate(int *p, int rounds)
{
    int *s = reinterpret_cast<int *>(shared), lane = threadIdx.x % 32, base = threadIdx.x - lane,
        x = p[threadIdx.x];
    for (int r = 0; r < rounds; r++) {
        s[threadIdx.x] = x;
        __syncwarp();
        x = s[base + (lane + 1) % 32];
        __syncwarp();
    }
    p[threadIdx.x] = x;
}
static int rotation(void)
{
    cudaStream_t s = stream();
    int *p = memory<int>(N), h[N];
    for (int i = 0; i < N; i++)
        h[i] = i;
    OK(cudaMemcpyAsync(p, h, sizeof h, cudaMemcpyHostToDevice, s));
    LAUNCH(k_rotate, 1, N, N * sizeof(int), s, p, 4);
    OK(cudaMemcpyAsync(h, p, sizeof h, cudaMemcpyDeviceToHost, s));
    for (int i = 0; i < N; i++)
        if (h[i] != i / 32 * 32 + (i + 4) % 32)
            return 0;
    return 1;
}

/* ---- right cases that need no wait ---- */

static __global__ void k_lanes(int *out)
{
    int i = threadIdx.x, lane = i % 32, sum = i;
    for (int o = 16; o; o >>= 1)
        sum += __shfl_xor_sync(~0u, sum, o);
    out[i] = sum;
    out[N + i] = __shfl_down_sync(~0u, i, 3);
    out[2 * N + i] = __shfl_up_sync(~0u, i, 3, 8);
    out[3 * N + i] = (int)__ballot_sync(~0u, lane % 3 == 0);
    long long wide = __shfl_sync(~0u, (long long)i << 32, 5, 16);
    out[4 * N + i] = (int)(wide >> 32);
}
static int lanes(void)
{
    cudaStream_t s = stream();
    int *p = memory<int>(5 * N), h[5 * N];
    LAUNCH(k_lanes, 1, N, 0, s, p);
    OK(cudaMemcpyAsync(h, p, sizeof h, cudaMemcpyDeviceToHost, s));
    for (int i = 0; i < N; i++) {
        int base = i / 32 * 32, lane = i % 32;
        int right = h[i] == 32 * base + 31 * 16 && h[N + i] == (lane + 3 < 32 ? i + 3 : i)
                    && h[2 * N + i] == (lane % 8 >= 3 ? i - 3 : i) && h[3 * N + i] == 0x49249249
                    && h[4 * N + i] == base + (lane & 16) + 5;
        if (!right)
            return 0;
    }
    return 1;
}

static __global__ void k_count(unsigned long long *total, int *order, int *next)
{
    atomicAdd(total, (unsigned long long)threadIdx.x + blockIdx.x);
    if (blockIdx.x == 0)
        order[atomicAdd(next, 1)] = threadIdx.x;
}
static int order_seen[N];
static int counting(void)
{
    cudaStream_t s = stream();
    struct { unsigned long long total; int next, order[N]; } *p, h;
    OK(cudaMalloc(&p, sizeof h));
    OK(cudaMemsetAsync(p, 0, sizeof h, s));
    LAUNCH(k_count, 8, N, 0, s, &p->total, p->order, &p->next);
    OK(cudaMemcpyAsync(&h, p, sizeof h, cudaMemcpyDeviceToHost, s));
    memcpy(order_seen, h.order, sizeof order_seen);
    return h.total == 8ull * (N * (N - 1) / 2) + N * 28ull && h.next == N;
}

/* A launch reads its arguments, and a copy from pageable memory its bytes, when it is called. */
static int taken_at_call(void)
{
    cudaStream_t s = stream();
    float *p = memory<float>(2 * N), h[2 * N], x = 7;
    for (int i = 0; i < N; i++)
        h[i] = 5;
    OK(cudaMemcpyAsync(p, h, N * sizeof *h, cudaMemcpyHostToDevice, s));
    LAUNCH(k_set, 1, N, 0, s, p + N, x);
    memset(h, 0, sizeof h);
    x = 0;
    OK(cudaMemcpyAsync(h, p, sizeof h, cudaMemcpyDeviceToHost, s));
    return all_are(h, N, 5) && all_are(h + N, N, 7) && x == 0;
}

static int tried_again(void)
{
    cudaStream_t a = stream(), b = stream();
    int calls = 0, after = 0;
    emulation_enqueue_until(a, "later", [&] { return ++calls >= 3; });
    emulation_enqueue(a, "after", [&] { after = calls; });
    emulation_enqueue(b, "beside", [] {});
    OK(cudaStreamSynchronize(a));
    return calls == 3 && after == 3;
}

static int new_memory(void)
{
    cudaStream_t s = stream();
    float *p = memory<float>(N), *q = memory<float>(N), h[N];
    LAUNCH(k_next, 1, N, 0, s, q, p);
    OK(cudaMemcpyAsync(h, q, sizeof h, cudaMemcpyDeviceToHost, s));
    for (int i = 0; i < N; i++)
        if (h[i] == h[i])
            return 0;
    return 1;
}

static int memory_ends(void)
{
    void *p;
    setenv("EMULATION_MEMORY", "1000000", 1);
    OK(cudaMalloc(&p, 900000));
    size_t left, all;
    OK(cudaMemGetInfo(&left, &all));
    void *q;
    return cudaMalloc(&q, 200000) == cudaErrorMemoryAllocation && left == 100000 && all == 1000000;
}

static int no_driver(void)
{
    setenv("EMULATION_NO_DEVICE", "1", 1);
    int n = -1;
    void *p;
    return cudaGetDeviceCount(&n) == cudaErrorInsufficientDriver && n == -1 &&
           cudaMalloc(&p, 1) == cudaErrorInsufficientDriver &&
           cudaGetLastError() == cudaErrorInsufficientDriver && cudaGetLastError() == cudaSuccess;
}

/* ---- told cases: they end with a message ---- */

static __global__ void k_diverged(int *p)
{
    int x = threadIdx.x;
    if (x % 32 < 16)
        x += __shfl_xor_sync(~0u, x, 1);
    else
        x -= __shfl_xor_sync(~0u, x, 1);
    p[threadIdx.x] = x;
}
static __global__ void k_half_warp(int *p)
{
    int x = threadIdx.x;
    if (x % 32 >= 16)
        return;
    p[x] = __shfl_xor_sync(~0u, x, 16);
}
static __global__ void k_two_barriers(void)
{
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
}
static __global__ void k_stuck(void)
{
    if (threadIdx.x < 16)
        __syncthreads();
    else
        __syncwarp();
}
static __global__ void k_store(float *p, int i) { p[i] = 1; }
static __global__ void k_store_shared(int i) { reinterpret_cast<float *>(shared)[i] = 1; }
static __global__ void k_deep(float *p, int n)
{
    volatile char room[4096];
    room[0] = (char)n;
    if (n)
        k_deep(p + room[0] * 0, n - 1);
    p[0] = room[0];
}
static void run_one(void (*launch)(cudaStream_t s))
{
    cudaStream_t s = stream();
    launch(s);
    OK(cudaStreamSynchronize(s));
}
static float *freed(void)
{
    float *p = memory<float>(N);
    OK(cudaFree(p));
    return p;
}

static const struct { const char *message; void (*run)(cudaStream_t s);
} told[] = {
    {"a warp has diverged", [](cudaStream_t s) { LAUNCH(k_diverged, 1, 32, 0, s, memory<int>(32)); }},
    {"which is not there", [](cudaStream_t s) { LAUNCH(k_half_warp, 1, 32, 0, s, memory<int>(32)); }},
    {"while others wait at", [](cudaStream_t s) { LAUNCH(k_two_barriers, 1, 64, 0, s); }},
    {"nobody can go on", [](cudaStream_t s) { LAUNCH(k_stuck, 1, 32, 0, s); }},
    {"that was freed", [](cudaStream_t s) { LAUNCH(k_store, 1, 1, 0, s, freed(), 0); }},
    {"touches what is not its own", [](cudaStream_t s) { LAUNCH(k_store, 1, 1, 0, s, memory<float>(N), N); }},
    {"wrote behind",
     [](cudaStream_t s) {
         float *p = memory<float>(N + 1);
         LAUNCH(k_store, 1, 1, 0, s, p, N + 2);
         OK(cudaFree(p));
     }},
    {"behind its 16 bytes of shared memory", [](cudaStream_t s) { LAUNCH(k_store_shared, 1, 1, 16, s, 4); }},
    {"no memory of the device", [](cudaStream_t s) { LAUNCH(k_store_shared, 1, 1, 16, s, 8192); }},
    {"no memory of the device", [](cudaStream_t s) { LAUNCH(k_deep, 1, 1, 0, s, memory<float>(1), 1000); }},
    {"bytes of shared memory, allowed are",
     [](cudaStream_t s) { LAUNCH(k_store_shared, 1, 1, 50000, s, 4); }},
    {"launched with grid", [](cudaStream_t s) { LAUNCH(k_store_shared, 1, 1025, 16, s, 4); }},
    {"launched with grid", [](cudaStream_t s) { LAUNCH(k_store_shared, 0, 32, 16, s, 4); }},
    {"not within a piece",
     [](cudaStream_t s) { OK(cudaMemsetAsync(memory<float>(N) + 1, 0, N * sizeof(float), s)); }},
    {"said to be of kind",
     [](cudaStream_t s) {
         float h[N];
         OK(cudaMemcpyAsync(h, memory<float>(N), sizeof h, cudaMemcpyHostToDevice, s));
     }},
    {"the host touches device memory", [](cudaStream_t) { *memory<float>(1) = 1; }},
    {"pinned memory that was freed",
     [](cudaStream_t) {
         float *p = pinned<float>(N);
         OK(cudaFreeHost(p));
         *p = 1;
     }},
    {"no open stream", [](cudaStream_t) { LAUNCH(k_store_shared, 1, 1, 16, 0, 0); }},
};

/* ---- running them ---- */

/* Runs fn(ctx) in a child process. Returns its exit code, or 128 + the signal that killed it.
 *
 *   drop    in   place that does not wait (EMULATION_DROP); NULL: none
 *   sites   in   file for the places that wait (EMULATION_SITES); NULL: none
 *   text    out  standard error of the child is appended */
static int child(int (*fn)(void *ctx), void *ctx, int seed, const char *drop, const char *sites,
                 std::string *text)
{
    int fd[2];
    if (pipe(fd))
        return -1;
    fflush(stdout);
    pid_t pid = fork();
    if (!pid) {
        dup2(fd[1], 2);
        close(fd[0]);
        close(fd[1]);
        setenv("EMULATION_SEED", std::to_string(seed).c_str(), 1);
        setenv("EMULATION_GUARD", "1", 1);
        drop ? setenv("EMULATION_DROP", drop, 1) : unsetenv("EMULATION_DROP");
        sites ? setenv("EMULATION_SITES", sites, 1) : unsetenv("EMULATION_SITES");
        int rc = fn(ctx);
        exit(rc);
    }
    close(fd[1]);
    char buffer[4096];
    for (ssize_t n; (n = read(fd[0], buffer, sizeof buffer)) > 0;)
        text->append(buffer, (size_t)n);
    close(fd[0]);
    int status;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

typedef int (*Case)(void);
static int run_case(void *ctx) { return !(*static_cast<Case *>(ctx))(); }
static int run_told(void *ctx)
{
    run_one(told[*static_cast<int *>(ctx)].run);
    return 0;
}

/* Checks that a case is right under all seeds, that it waits at `places` places, and that it is wrong
 * under some seed without any one of them. */
static void test_right(const char *name, Case fn, int places)
{
    char path[] = "/tmp/emulation_sites_XXXXXX";
    int fd = mkstemp(path);
    for (int seed = 0; seed < SEEDS; seed++) {
        std::string text;
        int rc = child(run_case, &fn, seed, nullptr, seed ? nullptr : path, &text);
        CHECK(rc == 0, "%s, seed %d: %d %s", name, seed, rc, text.c_str());
    }
    std::vector<std::string> places_seen;
    char line[512];
    FILE *f = fdopen(fd, "r");
    while (fgets(line, sizeof line, f)) {              /* a line: KIND FILE:LINE COUNT */
        *strrchr(line, ' ') = 0;
        places_seen.push_back(strrchr(line, ' ') + 1);
    }
    fclose(f);
    for (const std::string &place : places_seen) {
        int wrong = 0;
        for (int seed = 0; seed < SEEDS; seed++) {
            std::string text;
            wrong += child(run_case, &fn, seed, place.c_str(), nullptr, &text) != 0;
        }
        CHECK(wrong > 0, "%s without %s: nothing is wrong", name, place.c_str());
        printf("# %s without %s: wrong under %d of %d seeds\n", name, place.c_str(), wrong, SEEDS);
    }
    unlink(path);
    CHECK((int)places_seen.size() == places, "%s: %zu places wait, not %d", name, places_seen.size(), places);
}

static void test_told(void)
{
    for (int i = 0; i < (int)(sizeof told / sizeof *told); i++)
        for (int seed = 0; seed < 4; seed++) {
            std::string text;
            int rc = child(run_told, &i, seed, nullptr, nullptr, &text);
            CHECK(rc == 8 && text.find(told[i].message) != std::string::npos, "%s: %d %s", told[i].message,
                  rc, text.c_str());
        }
}

/* Prints the order in which the threads of a block run. A seed determines it; two seeds give two orders. */
static int run_order(void *)
{
    if (!counting())
        return 1;
    for (int i = 0; i < N; i++)
        fprintf(stderr, "%d ", order_seen[i]);
    return 0;
}
static void test_order(void)
{
    std::string text[3];
    for (int i = 0; i < 3; i++)
        CHECK(child(run_order, nullptr, i / 2, nullptr, nullptr, &text[i]) == 0, "order");
    CHECK(text[0] == text[1], "one seed, two orders");
    CHECK(text[0] != text[2], "two seeds, one order");
}

/* ---- numbers ---- */

/* 1: `bits` is the number of a type that is nearest to x, of two equally near ones the even one. The
 * type's numbers are value(b), b < count. */
template <class Value> static int nearest(double x, unsigned bits, unsigned count, Value value)
{
    double best = fabs(value(bits) - x);
    for (unsigned b = 0; b < count; b++) {
        double far = fabs(value(b) - x);
        if (far < best || (far == best && b != bits && value(b) != value(bits) && (bits & 1)))
            return 0;
    }
    return 1;
}

static double random_number(uint64_t *s)
{
    *s = *s * 6364136223846793005ull + 1442695040888963407ull;
    double x = (double)(int64_t)(*s >> 11) / 9007199254740992.0 - 0.5;
    *s = *s * 6364136223846793005ull + 1442695040888963407ull;
    return x * exp2((double)(int)(*s >> 33) / (1u << 31) * 40 - 24);
}

static void test_numbers(void)
{
    for (unsigned b = 0; b < 65536; b++) {
        float h = __half2float(__ushort_as_half((unsigned short)b)),
            g = __bfloat162float(__ushort_as_bfloat16((unsigned short)b));
        CHECK(h != h || __half_as_ushort(__float2half_rn(h)) == b, "F16 %04x", b);
        CHECK(g != g || __bfloat16_as_ushort(__float2bfloat16_rn(g)) == b, "BF16 %04x", b);
    }
    CHECK(__half2float(__ushort_as_half(0x3555)) == 0.333251953125f &&
              __half2float(__ushort_as_half(1)) == 0x1p-24f,
          "F16");
    CHECK(__half_as_ushort(__float2half_rn(65520)) == 0x7c00 &&
              __half_as_ushort(__float2half_rn(65519)) == 0x7bff,
          "F16");
    CHECK(__bfloat16_as_ushort(__float2bfloat16_rn(1.00390625f)) == 0x3f80
          && __bfloat16_as_ushort(__float2bfloat16_rn(1.01171875f)) == 0x3f82, "BF16");
    uint64_t s = 1;
    static const __nv_fp8_interpretation_t kinds[] = {__NV_E4M3, __NV_E5M2};
    for (__nv_fp8_interpretation_t kind : kinds) {
        auto value = [kind](unsigned b) {
            double v = emulation_fp8_to_float((__nv_fp8_storage_t)b, kind);
            return isfinite(v) ? v : 1e30;
        };
        for (int i = 0; i < 20000; i++) {
            float x = (float)random_number(&s) * (i % 3 ? 1.0f : 1000.0f);
            if (i % 5 == 0)
                x = (float)(value((unsigned)i % 100) + value((unsigned)i % 100 + 1)) / 2;
            unsigned b = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, kind);
            CHECK(nearest(x, b, 256, value), "FP8 %d: %a gives %02x", kind, x, b);
        }
    }
    CHECK(emulation_fp8_to_float(0x7e, __NV_E4M3) == 448 &&
              emulation_fp8_to_float(0x7b, __NV_E5M2) == 57344 &&
              emulation_fp8_to_float(1, __NV_E4M3) == 0x1p-9f &&
              emulation_fp8_to_float(1, __NV_E5M2) == 0x1p-16f,
          "FP8");
}

int main(void)
{
    test_right("producer and consumer", producer_consumer, 3);
    test_right("one buffer", one_buffer, 2);
    test_right("reversal", reversal, 2);
    test_right("rotation", rotation, 2);
    test_right("lanes", lanes, 0);
    test_right("counting", counting, 0);
    test_right("taken at the call", taken_at_call, 0);
    test_right("new memory", new_memory, 0);
    test_right("memory ends", memory_ends, 0);
    test_right("no driver", no_driver, 0);
    test_right("tried again", tried_again, 1);
    test_told();
    test_order();
    test_numbers();
    return test_end();
}
