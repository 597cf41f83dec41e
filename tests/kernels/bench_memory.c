/* bench_memory [rounds] [isa] [threads] -- operations that memory bounds beside STREAM's triad, a = b + 3 c
 * (McCalpin 1995), with streaming stores: GB/s of the bytes that a call must read and write. Every round
 * measures all of them: the memory of a shared machine drifts. Prints medians over the rounds, and their
 * share of the triad. */
#include "cpu.h"
#include <stdio.h>
#include <stdlib.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#define ROUNDS_MAX 101
#define N ((int64_t)32 << 20)    /* elements of an array: four of them are far more than any cache */
#define COLS 4096
#define ROWS (N / COLS)
#define PIECE 65536

typedef struct { float *a, *b, *c; } Triad;
static void triad_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const Triad *t = ctx;
    for (int64_t i = item * PIECE; i < (item + 1) * PIECE; i += 4) {
#ifdef __x86_64__
        __m128 three = _mm_set1_ps(3), c = _mm_load_ps(t->c + i);
        _mm_stream_ps(t->a + i, _mm_add_ps(_mm_load_ps(t->b + i), _mm_mul_ps(three, c)));
#else
        for (int k = 0; k < 4; k++)
            t->a[i + k] = t->b[i + k] + 3 * t->c[i + k];
#endif
    }
}

/* What the operations work on. */
typedef struct {
    Mat x[4], half[3], stats, gain;    /* F32 [ROWS, COLS]; BF16 [ROWS, COLS]; [ROWS, 2]; BF16 [1, COLS] */
    Verdict *verdict;
    Exact *sum;
} Memory;

static void triad(Device *d, const Memory *m)
{
    Triad t = {m->x[0].p, m->x[1].p, m->x[2].p};
    pool_run(d->pool, triad_item, &t, N / PIECE);
}
static void adam(Device *d, const Memory *m)
{
    Updated x = {.n = N, .w = m->x[0].p, .g = m->x[1].p, .m = m->x[2].p, .v = m->x[3].p, .out = m->half[0].p,
                 .wd = 0.1};
    Update u = {.list = &x, .count = 1, .out_type = BF16, .verdict = m->verdict, .lr = 1e-4, .beta1 = 0.9,
                .beta2 = 0.95, .eps = 1e-8, .bias1 = 0.1, .bias2 = 0.05, .before1 = 0.1, .before2 = 0.05};
    d->adam(d, &u);
}
static void squares(Device *d, const Memory *m)
{
    Squares s = {m->sum, m->x[1].p, N};
    d->squares(d, &s, 1, F32);
}
static void zero(Device *d, const Memory *m) { d->zero(d, m->x[3].p, N * 4); }
static void norm(Device *d, const Memory *m)
{
    d->norm_fwd(d, m->half[1], m->stats, m->half[0], m->gain, (Mat){0}, 1e-5, NORM_RMS, 1);
}
static void norm_bwd(Device *d, const Memory *m)
{
    Mat dgain = mat(m->x[3].p, 1, m->gain.cols, F32);
    d->norm_bwd(d, m->half[1], dgain, (Mat){0}, m->half[1], m->half[2], m->half[0], m->stats, m->gain,
                NORM_RMS, 1);
}
static void gelu(Device *d, const Memory *m) { d->act_fwd(d, m->half[1], m->half[0], ACT_GELU_TANH); }
static void gelu_bwd(Device *d, const Memory *m)
{
    d->act_bwd(d, m->half[1], m->half[1], m->half[0], ACT_GELU_TANH);
}

static const struct { const char *name; void (*run)(Device *d, const Memory *m); double bytes; } works[] = {
    {"triad", triad, 12}, {"AdamW, F32 with a copy in BF16", adam, 30}, {"sum of squares, F32", squares, 4},
    {"zeros, F32", zero, 4}, {"RMSNorm, BF16", norm, 4}, {"RMSNorm backward, BF16", norm_bwd, 8},
    {"GELU (tanh), BF16", gelu, 4}, {"GELU backward, BF16", gelu_bwd, 6},
};
#define WORKS ((int)(sizeof works / sizeof *works))

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 11;
    Device d;
    cpu_open(&d, F32, argc > 2 ? argv[2] : "auto", argc > 3 ? atoi(argv[3]) : 0);
    Arena arena;
    arena_open(&arena, "bench", (size_t)N * 24);
    Memory m = {.verdict = xcalloc(1, sizeof(Verdict)), .sum = xcalloc(1, sizeof(Exact))};
    *m.verdict = (Verdict){.go = 1, .multiplier = 1};
    for (int i = 0; i < 4; i++)
        m.x[i] = mat_take(&arena, ROWS, COLS, F32);
    for (int i = 0; i < 3; i++)
        m.half[i] = mat_take(&arena, ROWS, COLS, BF16);
    m.stats = mat_take(&arena, ROWS, 2, F32), m.gain = mat_take(&arena, 1, COLS, BF16);
    for (int64_t i = 0; i < N; i++)
        for (int k = 0; k < 4; k++)
            ((float *)m.x[k].p)[i] = 0.5f;
    for (int k = 0; k < 3; k++)
        d.copy(&d, m.half[k], m.x[k]);
    d.copy(&d, m.gain, (Mat){m.x[0].p, 1, COLS, COLS, F32});
    static double speed[WORKS][ROUNDS_MAX];
    rounds = rounds < 1 ? 1 : rounds > ROUNDS_MAX ? ROUNDS_MAX : rounds;
    for (int r = 0; r < rounds; r++)
        for (int w = 0; w < WORKS; w++) {
            double t = now();
            works[w].run(&d, &m);
            speed[w][r] = works[w].bytes * N / (now() - t) / 1e9;
        }
    printf("isa %s, %d threads, %d rounds\n", d.isa, pool_threads(d.pool), rounds);
    for (int w = 0; w < WORKS; w++) {
        qsort(speed[w], (size_t)rounds, sizeof(double), by_double);
        double mid = speed[w][rounds / 2], share = 100 * mid / speed[0][rounds / 2];
        printf("%-32s %6.1f GB/s (%.1f to %.1f)  %4.0f %%\n", works[w].name, mid, speed[w][0],
               speed[w][rounds - 1], share);
    }
    arena_close(&arena);
    cpu_close(&d);
    return 0;
}
