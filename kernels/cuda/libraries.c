/* libraries -- opens cuBLASLt, NCCL and cuDNN when they are first used */
#include "libraries.h"
#include "base.h"
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>

void *library_find(const char *name, char *why, size_t bytes)
{
    void *l = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!l)
        snprintf(why, bytes, "cannot open %s: %.200s", name, dlerror());
    return l;
}

void *library_symbol(void *l, const char *name) { return dlsym(l, name); }

static void *library(const char *name, const char *package)
{
    char why[256];
    void *l = library_find(name, why, sizeof why);
    if (!l)
        die(EXIT_RESOURCE, "cuda", "%s; change: install %s, or set LD_LIBRARY_PATH to the folder that has it",
            why, package);
    return l;
}

static void *function(void *l, const char *library, const char *name)
{
    void *f = library_symbol(l, name);
    if (!f)
        die(EXIT_RESOURCE, "cuda", "%s has no %s; change: install a newer release of it", library, name);
    return f;
}

const LtApi *lt_api(void)
{
    static LtApi api;
    if (!api.cublasLtCreate) {
        char name[32];
        snprintf(name, sizeof name, "libcublasLt.so.%d", CUDART_VERSION / 1000);
        void *l = library(name, "cuBLAS of the CUDA release that this was built with");
#define X(f) api.f = (__typeof__(api.f))function(l, name, #f);
        LT_FUNCTIONS(X)
#undef X
    }
    return &api;
}

const NcclApi *nccl_api(void)
{
    static NcclApi api;
    if (!api.ncclGetUniqueId) {
        void *l = library("libnccl.so.2", "NCCL, or set distributed_backend: staged");
#define X(f) api.f = (__typeof__(api.f))function(l, "libnccl.so.2", #f);
        NCCL_FUNCTIONS(X)
#undef X
    }
    return &api;
}
