/* bench_gemm [rounds] [isa] [threads] [type] [shape] -- speed of matrix products against the peak of the
 * CPU's multiply-add units. Every round measures the peak beside every shape: the CPU's clock drifts, so only
 * numbers of one round can be compared. Prints medians over the rounds: GFLOP/s, and the share of the
 * peak. shape: only those whose names hold this text. */
#include "cpu.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS_MAX 101
#define PEAK_STEPS 2000000       /* some ms: threads of a virtual machine take 0.1 ms to wake */

typedef struct { const char *name; int64_t m, n, k; int ta, tb, acc, wide; } Shape;   /* wide: c is F32 */
static const Shape shapes[] = {
    {"qkv fwd",      1024, 2304,  768, 0, 1, 0, 0}, {"proj fwd",   1024,  768,  768, 0, 1, 0, 0},
    {"fc fwd",       1024, 3072,  768, 0, 1, 0, 0}, {"fcproj fwd", 1024,  768, 3072, 0, 1, 0, 0},
    {"qkv dgrad",    1024,  768, 2304, 0, 0, 0, 0}, {"proj dgrad", 1024,  768,  768, 0, 0, 0, 0},
    {"fc dgrad",     1024,  768, 3072, 0, 0, 0, 0}, {"fcproj dgrad", 1024, 3072, 768, 0, 0, 0, 0},
    {"qkv wgrad",    2304,  768, 1024, 1, 0, 1, 1}, {"proj wgrad",  768,  768, 1024, 1, 0, 1, 1},
    {"fc wgrad",     3072,  768, 1024, 1, 0, 1, 1}, {"fcproj wgrad", 768, 3072, 1024, 1, 0, 1, 1},
    {"vocab slice",  1024, 1024,  768, 0, 1, 0, 1}, {"vocab dgrad", 1024,  768, 1024, 0, 0, 1, 1},
    {"vocab wgrad",  1024,  768, 1024, 1, 0, 1, 1}, {"vocab 256 rows", 256, 8192, 768, 0, 1, 0, 1},
    {"small fwd",    2048,  256,  256, 0, 1, 0, 0}, {"small fc",   2048, 1024,  256, 0, 1, 0, 0},
    {"small fcproj", 2048,  256, 1024, 0, 1, 0, 0}, {"small wgrad", 256, 1024, 2048, 1, 0, 1, 1},
    {"h384 qkv",     1024, 1152,  384, 0, 1, 0, 0}, {"h384 proj",  1024,  384,  384, 0, 1, 0, 0},
    {"generate 1",      1, 3072,  768, 0, 1, 0, 0}, {"generate 8",    8, 3072,  768, 0, 1, 0, 0},
    {"generate head",   1, 50304, 768, 0, 1, 0, 1}, {"square 2048", 2048, 2048, 2048, 0, 0, 0, 0},
};
#define SHAPES ((int)(sizeof shapes / sizeof *shapes))

/* The peak_ functions run independent chains of multiply-adds in registers, enough chains to hide the
 * latency, and return the number of operations. The chains are assembly: a compiler could spill or drop
 * them. */
#ifdef __x86_64__
#define ONE(op, r, n) op " %%" r "12, %%" r "13, %%" r #n "\n"
#define SIX(op, r, a, b, c, d, e, f)                                                                         \
    ONE(op, r, a) ONE(op, r, b) ONE(op, r, c) ONE(op, r, d) ONE(op, r, e) ONE(op, r, f)
#define LOW_12(op, r) SIX(op, r, 0, 1, 2, 3, 4, 5) SIX(op, r, 6, 7, 8, 9, 10, 11)
#define HIGH_12(op, r) SIX(op, r, 16, 17, 18, 19, 20, 21) SIX(op, r, 22, 23, 24, 25, 26, 27)
#define LOW_NAMES                                                                                            \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11"
#define ZERO_FACTORS()                                                                                       \
    __asm__ volatile("vpxor %%xmm12, %%xmm12, %%xmm12\nvpxor %%xmm13, %%xmm13, %%xmm13\n" ::                 \
                     : "xmm12", "xmm13")
static double peak_avx2(int steps)
{
    ZERO_FACTORS();
    for (int s = 0; s < steps; s++)
        __asm__ volatile(LOW_12("vfmadd231ps", "ymm")::: LOW_NAMES);
    return 12.0 * 16 * steps;
}
#define PEAK_AVX512(name, op, operations)                                                                    \
    __attribute__((target("avx512f"))) static double name(int steps)                                         \
    {                                                                                                        \
        ZERO_FACTORS();                                                                                      \
        for (int s = 0; s < steps; s++)                                                                      \
            __asm__ volatile(LOW_12(op, "zmm") HIGH_12(op, "zmm")::                                          \
                             : LOW_NAMES, "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22",     \
                               "xmm23", "xmm24", "xmm25", "xmm26", "xmm27");                                 \
        return 24.0 * (operations) * steps;                                                                  \
    }
PEAK_AVX512(peak_avx512, "vfmadd231ps", 32)
PEAK_AVX512(peak_avx512_bf16, "vdpbf16ps", 64)
/* Four sums take turns, as in the kernel: a tile product has a latency of 52 cycles and starts every 16. What
 * stands between them, see tiles_apart. */
#define APART ".rept 8\nnop\n.endr\n"
__attribute__((target("amx-tile,amx-bf16"))) static double peak_amx(int steps)
{
    amx_kernel.begin();
    for (int t = 0; t < steps / 16; t++)
        __asm__ volatile("tdpbf16ps %tmm6, %tmm4, %tmm0\n" APART "tdpbf16ps %tmm7, %tmm4, %tmm1\n" APART
                         "tdpbf16ps %tmm6, %tmm5, %tmm2\n" APART "tdpbf16ps %tmm7, %tmm5, %tmm3\n" APART);
    amx_kernel.end();
    return 4.0 * 2 * 16 * 16 * 32 * (steps / 16);
}
#endif

typedef struct { double (*fn)(int); double ops; } Peak;
static void peak_item(void *ctx, int64_t item, int thread)
{
    (void)item, (void)thread;
    Peak *p = ctx;
    p->ops = p->fn(PEAK_STEPS);
}

/* Peak GFLOP/s of all threads together; NAN: no peak_ function is made for this device. */
static double peak(Device *d, Dtype type)
{
    Peak p = {0};
#ifdef __x86_64__
    if (!strcmp(d->isa, "avx2"))
        p.fn = peak_avx2;
    else if (type == BF16 && !strcmp(d->bf16, "amx"))
        p.fn = peak_amx;
    else if (!strcmp(d->isa, "avx512") || !strcmp(d->isa, "amx"))
        p.fn = type == BF16 && !strcmp(d->bf16, "avx512_bf16") ? peak_avx512_bf16 : peak_avx512;
#else
    (void)type;
#endif
    if (!p.fn)
        return NAN;
    int n = pool_threads(d->pool);
    double t = now();
    pool_run(d->pool, peak_item, &p, n);
    t = now() - t;
    return p.ops * n / t / 1e9;
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_double);
    return v[n / 2];
}

static double measure(Device *d, const Shape *s, Mat a, Mat b, Mat c)
{
    a.rows = s->ta ? s->k : s->m, a.cols = a.ld = s->ta ? s->m : s->k;
    b.rows = s->tb ? s->n : s->k, b.cols = b.ld = s->tb ? s->k : s->n;
    c.rows = s->m, c.cols = c.ld = s->n, c.type = s->wide ? d->real : a.type;
    double ops = 2.0 * (double)s->m * (double)s->n * (double)s->k, start, t = 0;
    int done = 0;
    d->matmul(d, c, a, s->ta, b, s->tb, s->acc);    /* a host lends pages when they are first touched */
    for (start = now(); done < 1 || t < 0.02; done++, t = now() - start)
        d->matmul(d, c, a, s->ta, b, s->tb, s->acc);
    return ops * done / t / 1e9;
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 11, threads = argc > 3 ? atoi(argv[3]) : 0;
    Dtype type = argc > 4 && !strcmp(argv[4], "bf16") ? BF16 : F32;
    Device d;
    cpu_open(&d, F32, argc > 2 ? argv[2] : "auto", threads);
    int64_t most = 50304 * 1024;
    Arena arena;
    arena_open(&arena, "bench", (size_t)most * 12 + 4096);
    Mat a = mat_take(&arena, 1, most, type), b = mat_take(&arena, 1, most, type);
    Mat c = mat_take(&arena, 1, most, F32);
    for (int64_t i = 0; i < most; i++) {
        float v = (float)(rng_uniform(1, 0, (uint64_t)i) - 0.5);
        for (int x = 0; x < 2; x++)
            if (type == F32)
                ((float *)(x ? a : b).p)[i] = v;
            else
                memcpy((uint16_t *)(x ? a : b).p + i, (char *)&v + 2, 2);
    }
    static double top[ROUNDS_MAX], speed[SHAPES][ROUNDS_MAX], part[SHAPES][ROUNDS_MAX];
    rounds = rounds < 1 ? 1 : rounds > ROUNDS_MAX ? ROUNDS_MAX : rounds;
    for (int r = 0; r < rounds; r++)
        for (int s = 0; s < SHAPES; s++) {
            if (argc > 5 && !strstr(shapes[s].name, argv[5]))
                continue;
            top[r] = peak(&d, type);
            speed[s][r] = measure(&d, &shapes[s], a, b, c);
            part[s][r] = speed[s][r] / top[r];
        }
    printf("isa %s, bf16 by %s, %d threads, %s: peak %.0f GFLOP/s\n", d.isa, d.bf16, pool_threads(d.pool),
           dtype_name(type), median(top, rounds));
    for (int s = 0; s < SHAPES; s++) {
        const Shape *h = &shapes[s];
        if (speed[s][0] == 0)
            continue;
        printf("%-16s m %5ld n %5ld k %5ld", h->name, (long)h->m, (long)h->n, (long)h->k);
        printf("  %7.0f GFLOP/s  %3.0f %%\n", median(speed[s], rounds), 100 * median(part[s], rounds));
    }
    arena_close(&arena);
    cpu_close(&d);
    return 0;
}
