/* cpu -- the CPU device: the choice of an instruction set, memory, open and close */
#include "cpu.h"
#include "isas.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __x86_64__
#include <cpuid.h>
#elif defined __aarch64__
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif

#define X(id, name) ISA_##id,
enum { CPU_ISAS(X) ISA_COUNT };
#undef X
#define X(id, name) name,
static const char *const isa_names[ISA_COUNT] = {CPU_ISAS(X)};
#undef X

typedef struct { void (*fill)(Device *d); const GemmKernel *gemm; } IsaTable;

#define DECLARE(isa)                                                                                         \
    void cpu_fill_##isa##_f32(Device *d);                                                                   \
    void cpu_fill_##isa##_f64(Device *d);                                                                   \
    extern const GemmKernel gemm_kernel_##isa##_f32, gemm_kernel_##isa##_f64;
#define PAIR(isa, real) {cpu_fill_##isa##_##real, &gemm_kernel_##isa##_##real}
#define ROW(isa) {PAIR(isa, f64), PAIR(isa, f32)}
DECLARE(generic)
#ifdef __x86_64__
DECLARE(avx2)
DECLARE(avx512)
#elif defined __aarch64__
DECLARE(sve256)
#endif
static const IsaTable tables[ISA_COUNT][2] = {      /* [isa][real], F64 first as in Dtype */
#ifdef __x86_64__
    [ISA_AMX] = ROW(avx512), [ISA_AVX512] = ROW(avx512), [ISA_AVX2] = ROW(avx2),
#elif defined __aarch64__
    [ISA_SVE256] = ROW(sve256),
#endif
    [ISA_GENERIC] = ROW(generic),
};

/* What this CPU has. Asked once: CPUID leaves a virtual machine, which takes tens of microseconds. */
static int has[ISA_COUNT];
static pthread_once_t detected = PTHREAD_ONCE_INIT;

#ifdef __x86_64__
static int bf16dot;            /* bool: vdpbf16ps is the faster way to multiply BF16 */

static int bit(uint32_t word, int n) { return word >> n & 1; }

/* From CPUID and from XCR0, which says what registers the system saves at a task switch: instructions on
 * other registers trap. */
static void detect(void)
{
    uint32_t a, b, c, d, xcr0 = 0, eax7 = 0, ebx7 = 0, edx7 = 0, c1 = 0, top;
    has[ISA_GENERIC] = 1;
    if (__get_cpuid(1, &a, &b, &c, &d)) {
        c1 = c;
        if (bit(c, 27))
            __asm__("xgetbv" : "=a"(xcr0), "=d"(d) : "c"(0));
    }
    if (__get_cpuid_count(7, 0, &top, &ebx7, &c, &edx7) && top >= 1)
        __get_cpuid_count(7, 1, &eax7, &b, &c, &d);
    int avx = (xcr0 & 0x6) == 0x6, avx512 = (xcr0 & 0xe6) == 0xe6, tiles = (xcr0 & 0x60000) == 0x60000;
    has[ISA_AVX2] = avx && bit(c1, 12) && bit(c1, 29) && bit(ebx7, 5);        /* FMA, F16C, AVX2 */
    has[ISA_AVX512] = has[ISA_AVX2] && avx512 && bit(ebx7, 16) && bit(ebx7, 17) && bit(ebx7, 30)
                      && bit(ebx7, 31);                               /* F, DQ, BW, VL */
    int bf16 = has[ISA_AVX512] && bit(eax7, 5);
    has[ISA_AMX] = bf16 && tiles && bit(edx7, 22) && bit(edx7, 24) && amx_works();
    /* vdpbf16ps does twice the work of an F32 FMA on AMD's cores and half of it on Intel's (measured on
     * Zen 5 and on Granite Rapids), so Intel without AMX multiplies BF16 in F32. */
    if (bf16 && __get_cpuid(0, &a, &b, &c, &d))
        bf16dot = b == signature_AMD_ebx && c == signature_AMD_ecx && d == signature_AMD_edx;
}
#else
static void detect(void)
{
    has[ISA_GENERIC] = 1;
#ifdef __aarch64__
    /* code for vectors of 256 bits is wrong on any others */
    int length = getauxval(AT_HWCAP) & HWCAP_SVE ? prctl(PR_SVE_GET_VL) : -1;
    has[ISA_SVE256] = length >= 0 && (length & PR_SVE_VL_LEN_MASK) == 32;
#endif
}
#endif

static int choose(const char *isa)
{
    char list[64] = "auto";
    for (int i = 0; i < ISA_COUNT; i++)
        if (has[i] && (!strcmp(isa, isa_names[i]) || !strcmp(isa, "auto")))
            return i;
    for (int i = 0; i < ISA_COUNT; i++)
        if (has[i])
            snprintf(list + strlen(list), sizeof list - strlen(list), ", %s", isa_names[i]);
    die(EXIT_CONFIG, "isa", "this CPU cannot run cpu_isa %s; change: use one of %s", isa, list);
}

static void lay_out(Cpu *c, Dtype real, int threads)
{
    gemm_buffers(&c->buffers, &c->arena, real, c->gemm, c->gemm_bf16, threads);
    c->rows = arena_take(&c->arena, (size_t)threads * ROW_SLOTS * ROW_MAX * dtype_size(real));
    c->sums = arena_take(&c->arena, (size_t)threads * 2 * SUM_MAX * dtype_size(real));
}

/* Sets the kernels of c and returns the instruction set; dies when this CPU lacks `isa`. */
static int pick(Cpu *c, Dtype real, const char *isa)
{
    pthread_once(&detected, detect);
    int i = choose(isa);
    c->gemm = c->gemm_bf16 = tables[i][real].gemm;
#ifdef __x86_64__
    if (real == F32 && i == ISA_AMX)
        c->gemm_bf16 = &amx_kernel;
    else if (real == F32 && i == ISA_AVX512 && bf16dot)
        c->gemm_bf16 = &bf16dot_kernel;
#endif
    return i;
}

size_t cpu_workspace(Dtype real, const char *isa, int threads)
{
    Cpu c = {0};
    pick(&c, real, isa);
    lay_out(&c, real, threads ? threads : pool_cores());
    return c.arena.peak;
}

/* ---- memory: device memory is host memory, and every copy is done when its call returns ---- */

static void *take(Device *d, size_t bytes)
{
    Arena a;
    (void)d;
    arena_open(&a, "the run", bytes);
    return a.base;
}

static void give(Device *d, void *p, size_t bytes)
{
    Arena a = {.base = p, .size = bytes};
    (void)d;
    arena_close(&a);
}

static size_t left(Device *d) { return (void)d, host_left(); }
static int owns(Device *d, const void *p) { return (void)d, (void)p, 0; }

static void put(Device *d, void *dst, const void *src, size_t bytes)
{
    (void)d;
    if (bytes && dst != src)
        memcpy(dst, src, bytes);
}

static int64_t read_async(Device *d, void *dst, const void *src, size_t bytes)
{
    put(d, dst, src, bytes);
    return 0;
}

static int64_t prefetch(Device *d, void *dst, const void *mapped, size_t bytes, int64_t after)
{
    (void)after;
    return read_async(d, dst, mapped, bytes);
}

static void read_wait(Device *d, int64_t ticket) { (void)d, (void)ticket; }
static void in_step(Device *d) { (void)d; }
static int64_t side_end(Device *d) { (void)d; return 0; }

static int64_t mark(Device *d)
{
    Cpu *c = cpu_of(d);
    c->mark[c->marks % DEVICE_MARKS] = now();
    return c->marks++;
}

static double between(Device *d, int64_t from, int64_t to)
{
    const Cpu *c = cpu_of(d);
    BUG_ON(from < 0 || from > to || to >= c->marks || c->marks - from > DEVICE_MARKS);
    return (c->mark[to % DEVICE_MARKS] - c->mark[from % DEVICE_MARKS]) * 1e3;
}

/* ---- opening ---- */

void cpu_open(Device *d, Dtype real, const char *isa, int threads)
{
    BUG_ON((real != F64 && real != F32) || threads < 0);
    Cpu *c = xcalloc(1, sizeof *c);
    int i = pick(c, real, isa);
    if (!threads)
        threads = pool_cores();
    *d = (Device){.name = "cpu", .isa = isa_names[i],
                  .bf16 = c->gemm_bf16 != c->gemm ? c->gemm_bf16->name : "f32", .impl = c, .take = take,
                  .give = give, .owns = owns, .left = left, .mapped_take = take, .mapped_give = give,
                  .offload = read_async, .prefetch = prefetch, .stream_wait = read_wait,
                  .side_begin = in_step, .side_end = side_end, .put = put, .get = put,
                  .read_async = read_async, .read_wait = read_wait, .snapshot = read_async,
                  .wait_snapshots = in_step, .mark = mark, .between = between, .host_take = take,
                  .host_give = give, .sync = in_step};
    tables[i][real].fill(d);
#ifdef __x86_64__
    if (c->gemm_bf16 == &bf16dot_kernel)
        d->attention_fwd = cpu_attention_fwd_pairs, d->attention_bwd = cpu_attention_bwd_pairs;
    if (c->gemm_bf16 == &amx_kernel)
        d->attention_fwd = cpu_attention_fwd_tiles, d->attention_bwd = cpu_attention_bwd_tiles;
#endif
    lay_out(c, real, threads);
    arena_open(&c->arena, "cpu", c->arena.peak);
    lay_out(c, real, threads);
    c->arena.sealed = 1;
    d->pool = pool_open(threads);
}

void cpu_close(Device *d)
{
    Cpu *c = d->impl;
    pool_close(d->pool);
    arena_close(&c->arena);
    free(c);
    *d = (Device){0};
}
