/* cudnn_graphs -- asks cuDNN whether it has kernels for the graphs of attention that runs ask for, on
 * GPUs that this machine does not have. The library gets a description of each GPU and compiles nothing.
 * Prints a table; exits with 0 when cuDNN accepts every shape that a GPU should have (all head sizes of
 * attention, except a backward of 256 on sm_80). For developers: tests/cuda/cudnn_graphs.sh builds and
 * runs it. */
#include "sdpa.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { int sm, sms, shared, l2, head_most; const char *name; } Gpu;

static const Gpu gpus[] = {
    {80, 108, 166912, 41943040, 128, "NVIDIA A100-SXM4-80GB"},
    {90, 132, 232448, 52428800, 256, "NVIDIA H100 80GB HBM3"},
    {100, 148, 232448, 132644864, 256, "NVIDIA B200"},
};

/* Description of a GPU as cuDNN writes it. Names and units are those of the runtime's device attributes. */
static char *description(const Gpu *g)
{
    char *text = xcalloc(2048, 1);
    snprintf(
        text, 2048,
        "{\"deviceVer\": %d, \"driverVer\": 13000, \"cudaDeviceId\": 0, \"totalGlobalMem\": 85000000000, "
        "\"maxGridSize\": [2147483647, 65535, 65535], \"maxBlockSize\": [1024, 1024, 64], \"regsPerBlock\": "
        "65536, \"multiProcessorCount\": %d, \"smCountOrigin\": 0, \"warpSize\": 32, "
        "\"maxSharedMemoryPerBlock\": 49152, \"maxSharedMemoryPerBlockOptin\": %d, "
        "\"oversizedSharedMemoryPerBlock\": 0, \"reservedSharedMemoryPerBlock\": 1024, "
        "\"maxRegistersPerSM\": 65536, \"maxCtasPerSM\": 32, \"maxThreadsPerBlock\": 1024, "
        "\"maxThreadsPerSM\": 2048, \"pciDeviceId\": 0, \"isTccDriver\": 0, \"supportCoopLaunch\": 1, "
        "\"smClockRateKHz\": 1980000, \"memClockRateKHz\": 2619000, \"memoryBusWidth\": 5120, "
        "\"l2CacheSize\": %d, \"deviceName\": \"%s\"}",
        10 * g->sm, g->sms, g->shared, g->l2, g->name);
    return text;
}

enum { FORWARD, BACKWARD, BACKWARD_ANY, KINDS };        /* BACKWARD_ANY: dq in any order */

/* Shape of a layer's attention: q, k and v are columns of one matrix, and so are their gradients. */
static SdpaShape layer(int kind, Dtype type, int64_t batch, int64_t seq, int heads, int kv, int dim,
                       int64_t window)
{
    int64_t all = (int64_t)(heads + 2 * kv) * dim, one = (int64_t)heads * dim;
    SdpaShape a = {.backward = kind != FORWARD, .type = type, .batch = batch, .seq = seq, .window = window,
                   .heads = heads, .kv_heads = kv, .dim = dim, .any_order = kind == BACKWARD_ANY,
                   .scale = 0.125, .ld = {all, all, all, one}};
    if (a.backward)
        for (int i = SDPA_DOUT; i <= SDPA_DV; i++)
            a.ld[i] = i == SDPA_DOUT ? one : all;
    return a;
}

static int tried, failed;

static void try(Sdpa *s, const Gpu *g, SdpaShape a, int should)
{
    SdpaWhy why = {""};
    SdpaPlan *p = sdpa_plan(s, &a, (size_t)1 << 40, &why);
    tried++;
    if (!p == !!should)
        failed++;
    if (!p || getenv("VERBOSE"))
        printf("sm_%d %s%s %s: %lld x %lld, heads %d of %d, %d to a key, window %lld: %s%s\n", g->sm,
               a.backward ? "bwd" : "fwd", a.any_order ? " in any order" : "", dtype_name(a.type),
               (long long)a.batch, (long long)a.seq, a.heads, a.dim, a.heads / a.kv_heads,
               (long long)a.window, p ? "accepted" : should ? "REFUSED: " : "refused: ", why.text);
    sdpa_plan_close(p);
}

static void try_gpu(const Gpu *g)
{
    static const int dims[] = {64, 80, 96, 128, 256};
    SdpaWhy why;
    char *text = description(g);
    Sdpa *s = sdpa_open_absent(g->sm, text, &why);
    if (!s)
        die(EXIT_RESOURCE, "cudnn", "%s", why.text);
    printf("sm_%d: %s\n", g->sm, sdpa_name(s));
    for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
        for (int kind = 0; kind < KINDS; kind++)
            for (int f16 = 0; f16 < 2; f16++)
                for (int kv = 1; kv <= 8; kv *= 8)
                    for (int window = 0; window <= 256; window += 256) {
                        int should = kind == FORWARD || dims[d] <= g->head_most;
                        Dtype type = f16 ? F16 : BF16;
                        try(s, g, layer(kind, type, 4, 1024, 8, kv, dims[d], window), should);
                        try(s, g, layer(kind, type, 3, 1000, 8, kv, dims[d], window), should);
                        try(s, g, layer(kind, type, 1, 8192, 8, kv, dims[d], window), should);
                    }
    sdpa_close(s);
    free(text);
}

int main(void)
{
    for (size_t i = 0; i < sizeof gpus / sizeof *gpus; i++)
        try_gpu(&gpus[i]);
    printf("# %d graphs, %d not as expected\n", tried, failed);
    return failed != 0;
}
