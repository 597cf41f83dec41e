/* test_cuda_fp8 -- FP8 on the GPU: casts, scales and products against F64 and against the CPU's, and what is
 * made and cast in one pass against what is stored first */
#include "cuda_pairs.h"
#include "fp8.h"
#include "linear.h"
#include "products.h"

static Fp8Scaling blocks;              /* of inputs and gradients, as this GPU multiplies them */

/* ---- FP8, against rounded numbers multiplied and summed in F64 ---- */

static double fp8(double x, Fp8Format f)
{
    double top = f == E4M3 ? 448 : 57344, y = rounded_to(x, f == E4M3 ? 4 : 3, f == E4M3 ? -6 : -14, top);
    return fabs(y) > top ? copysign(top, x) : y;
}
static double fp8_value(uint8_t u, Fp8Format f)
{
    int bits = f == E4M3 ? 3 : 2, bias = f == E4M3 ? 7 : 15;
    int e = u >> bits & (f == E4M3 ? 15 : 31), m = u & ((1 << bits) - 1);
    return (u >> 7 ? -1 : 1) * ldexp(e ? m + (1 << bits) : m, (e ? e : 1) - bias - bits);
}

/* A matrix in FP8 on the GPU, by rows and transposed. want: the rounded numbers in F64; inverse: 1 /
 * scale. */
typedef struct { Pair x; Mat8 rows, cols; Fp8Scale *scale; double *want, inverse; size_t bytes; } Eight;

/* What the tensor cores' sums lose, relative to the largest product of 32: they keep some 14 bits on
 * Hopper (DeepSeek-AI 2024, arXiv:2412.19437, sec 3.5.2), and all on the emulated GPU. Adds a product of
 * 2^-e to 1. */
static double grain;
static void measure_grain(void)
{
    enum { N = 16, K = 32, ONE = 7 << 3, TINY = 1 /* 2^-9 */ };
    uint8_t *a = gpu.take(&gpu, N * K), *b = gpu.take(&gpu, N * K), host[2][N * K] = {{0}};
    Fp8Scale *scale = gpu.take(&gpu, sizeof *scale);
    float *c = gpu.take(&gpu, N * N * sizeof *c), one = 1, got;
    gpu.put(&gpu, &scale->inverse, &one, sizeof one);
    for (int e = 15; e > 8; e--) {
        host[0][0] = host[1][0] = ONE, host[0][1] = TINY, host[1][1] = (uint8_t)((7 - (e - 9)) << 3);
        gpu.put(&gpu, a, host[0], sizeof host[0]);
        gpu.put(&gpu, b, host[1], sizeof host[1]);
        gpu.fp8_matmul(&gpu, mat(c, N, N, F32), (Mat8){a, N, K, E4M3, &scale->inverse},
                       (Mat8){b, N, K, E4M3, &scale->inverse}, none, 0);
        gpu.get(&gpu, &got, c, sizeof got);
        if (got == 1)
            grain = ldexp(1, -e);
    }
    printf("# sums lose %g of the largest product\n", grain);
    CHECK(grain <= 0x1p-12, "sums lose %g of the largest product", grain);
    gpu.give(&gpu, a, N * K), gpu.give(&gpu, b, N * K);
    gpu.give(&gpu, scale, sizeof *scale), gpu.give(&gpu, c, N * N * sizeof *c);
}

/* Limit of difference for a sum of k products of numbers whose deviations have the product `size`. */
static double limit(Dtype out, int64_t k, double size)
{
    return tolerance(out, k) + 2 * grain * size * (double)(k + 32);
}

/* Fills e->want with the elements rounded to FP8 under `scale`; 0: the scale of their own largest
 * magnitude. Returns 1 / scale. */
static double round_all(Eight *e, Fp8Format f, double scale)
{
    float by = scale > 0 ? (float)scale : (f == E4M3 ? 448.0f : 57344.0f) / (float)largest_of(&e->x);
    for (int64_t i = 0; i < e->x.host.rows * e->x.host.cols; i++)
        e->want[i] = fp8((float)cell(&e->x, i) * by, f);
    return 1 / by;
}

static Eight eight_open(int64_t rows, int64_t cols, Dtype t, uint64_t stream, double size, Fp8Format f,
                        double scale)
{
    Eight e = {.bytes = (size_t)(fp8_padded(rows, FP8_OWN) * cols)};
    e.x = pair_open(rows, cols, 8 * (int64_t)(stream % 3), 0, t, stream, size);
    e.want = xcalloc((size_t)(rows * cols), sizeof *e.want);
    e.inverse = round_all(&e, f, scale);
    e.scale = gpu.take(&gpu, sizeof *e.scale);
    e.rows = (Mat8){gpu.take(&gpu, e.bytes), rows, cols, f, &e.scale->inverse};
    e.cols = (Mat8){gpu.take(&gpu, e.bytes), cols, fp8_padded(rows, FP8_OWN), f, &e.scale->inverse};
    return e;
}
static void eight_close(Eight *e)
{
    gpu.give(&gpu, e->rows.p, e->bytes);
    gpu.give(&gpu, e->cols.p, e->bytes);
    gpu.give(&gpu, e->scale, sizeof *e->scale);
    free(e->want);
    pair_close(&e->x);
}

/* Number of wrong bytes in both FP8 copies. */
static int64_t eight_wrong(const Eight *e)
{
    int64_t r = e->rows.rows, c = e->rows.cols, padded = e->cols.cols, wrong = 0;
    uint8_t *y = xcalloc(2, e->bytes), *yt = y + e->bytes;
    gpu.get(&gpu, y, e->rows.p, e->bytes);
    gpu.get(&gpu, yt, e->cols.p, e->bytes);
    for (int64_t i = 0; i < r * c; i++)
        wrong += (fp8_value(y[i], e->rows.format) != e->want[i]) + (y[i] != yt[i % c * padded + i / c]);
    for (int64_t i = r * c; i < padded * c; i++)
        wrong += yt[i % c * padded + i / c] != 0;
    free(y);
    return wrong;
}

/* Sum over j of a[i][j] b[l][j], divided by both scales. ta, tb: a or b is read transposed. */
static double eight_product(const Eight *a, int ta, int64_t i, const Eight *b, int tb, int64_t l)
{
    int64_t k = ta ? a->rows.rows : a->rows.cols;
    double sum = 0;
    for (int64_t j = 0; j < k; j++)
        sum +=
            a->want[ta ? j * a->rows.cols + i : i * k + j] * b->want[tb ? j * b->rows.cols + l : l * k + j];
    return sum * a->inverse * b->inverse;
}

static void test_fp8(void)
{
    uint64_t s = 4000;
    for (int i = 0; i < 24; i++) {
        Dtype t = i % 2 ? F16 : BF16, out = draw(&s, 2) ? F32 : t;
        Fp8Format fa = draw(&s, 2) ? E5M2 : E4M3;
        int64_t m = 1 + (int64_t)draw(&s, 160), n = 16 + 16 * (int64_t)draw(&s, 6);
        int64_t k = 16 + 16 * (int64_t)draw(&s, 9);
        int acc = (int)draw(&s, 2), with = !acc && out == t;
        double size = ldexp(1, (int)draw(&s, 9) - 6);
        Eight a = eight_open(m, k, t, 10 * s, size, fa, 0);
        Eight b = eight_open(n, k, t, 10 * s + 1, 1, E4M3, 0);
        Pair c = pair_open(m, n, 0, 0, out, 10 * s + 2, acc ? 1 : NAN);
        Pair bias = pair_open(1, n, 0, 0, t, 10 * s + 3, 1);
        gpu.fp8_cast(&gpu, a.rows.p, a.cols.p, a.x.dev, a.scale, fa, 0);
        gpu.fp8_cast(&gpu, b.rows.p, NULL, b.x.dev, b.scale, E4M3, 0);
        gpu.fp8_cast(&gpu, NULL, b.cols.p, b.x.dev, b.scale, E4M3, 0);
        CHECK(!eight_wrong(&a) && !eight_wrong(&b), "%s %lld x %lld: %lld bytes are wrong", dtype_name(t),
              (long long)m, (long long)k, (long long)(eight_wrong(&a) + eight_wrong(&b)));
        gpu.fp8_matmul(&gpu, c.dev, a.rows, b.rows, with ? bias.dev : none, acc);
        for (int64_t r = 0; r < m; r++)
            for (int64_t l = 0; l < n; l++) {
                double sum = eight_product(&a, 0, r, &b, 0, l);
                sum += with ? cell(&bias, l) : acc ? cell(&c, r * n + l) : 0;
                put(c.host.p, r * n + l, out, sum);
            }
        double e = difference(&c);
        CHECK(e <= limit(out, k, size), "FP8 %lld x %lld x %lld to %s: off by %g", (long long)m, (long long)n,
              (long long)k, dtype_name(out), e);
        eight_close(&a);
        eight_close(&b);
        pair_close(&c);
        pair_close(&bias);
    }
}

/* The three products of a linear layer in FP8. */
static void test_layer_fp8(void)
{
    enum { T = 45, IN = 80, OUT = 112 };
    Arena scratch = {.name = "scratch", .size = 1 << 16};
    scratch.base = gpu.take(&gpu, scratch.size);
    Eight x = eight_open(T, IN, BF16, 70, 2, E4M3, 0), w = eight_open(OUT, IN, BF16, 71, 0.5, E4M3, 0);
    Eight dy = eight_open(T, OUT, BF16, 72, 3, E5M2, 0);
    Pair b = pair_open(1, OUT, 0, 0, BF16, 73, 1), y = pair_open(T, OUT, 0, 0, BF16, 0, NAN);
    Pair dx = pair_open(T, IN, 0, 0, BF16, 0, NAN), dw = pair_open(OUT, IN, 0, 0, F32, 74, 1);
    Pair db = pair_open(1, OUT, 0, 0, F32, 75, 1);
    Precision p = {x.scale, w.scale, dy.scale, .fp8 = 1};
    linear_fwd(&gpu, &scratch, y.dev, x.x.dev, w.x.dev, b.dev, p);
    linear_bwd_x(&gpu, &scratch, dx.dev, dy.x.dev, w.x.dev, p);
    linear_bwd_w(&gpu, &scratch, (Sum){dw.dev, NULL}, db.dev, dy.x.dev, x.x.dev, p);
    CHECK(scratch.used == 0, "scratch was not given back");
    for (int64_t t = 0; t < T; t++) {
        for (int64_t o = 0; o < OUT; o++)
            put(y.host.p, t * OUT + o, BF16, eight_product(&x, 0, t, &w, 0, o) + cell(&b, o));
        for (int64_t i = 0; i < IN; i++)
            put(dx.host.p, t * IN + i, BF16, eight_product(&dy, 0, t, &w, 1, i));
    }
    for (int64_t o = 0; o < OUT; o++)
        for (int64_t i = 0; i < IN; i++)
            put(dw.host.p, o * IN + i, F32, cell(&dw, o * IN + i) + eight_product(&dy, 1, o, &x, 1, i));
    for (int64_t t = 0; t < T; t++)
        for (int64_t o = 0; o < OUT; o++)
            put(db.host.p, o, F32, cell(&db, o) + cell(&dy.x, t * OUT + o));
    double e[] = {difference(&y), difference(&dx), difference(&dw), difference(&db)};
    CHECK(e[0] <= limit(BF16, IN, 1) && e[1] <= limit(BF16, OUT, 1.5), "y is off by %g, dx by %g", e[0],
          e[1]);
    CHECK(e[2] <= limit(F32, T, 6) && e[3] <= tolerance(F32, T), "dw is off by %g, db by %g", e[2], e[3]);
    Pair *pairs[] = {&b, &y, &dx, &dw, &db};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        pair_close(pairs[i]);
    eight_close(&x);
    eight_close(&w);
    eight_close(&dy);
    gpu.give(&gpu, scratch.base, scratch.size);
}

/* Transposed copies that the casts of rows have made give the bits of the weight gradient's own casts, also
 * where another microbatch has changed the scales in between; x itself is not read. */
static void test_layer_turned(Fp8Scaling scaling)
{
    enum { T = 64, IN = 160, OUT = 288 };
    Arena scratch = {.name = "scratch", .size = 1 << 17};
    scratch.base = gpu.take(&gpu, scratch.size);
    Eight x = eight_open(T, IN, BF16, 80, 2, E4M3, 0), other = eight_open(T, IN, BF16, 81, 90, E4M3, 0);
    Eight w = eight_open(OUT, IN, BF16, 82, 0.5, E4M3, 0), dy = eight_open(T, OUT, BF16, 83, 3, E5M2, 0);
    Pair y = pair_open(T, OUT, 0, 0, BF16, 0, NAN), dx = pair_open(T, IN, 0, 0, BF16, 0, NAN);
    Pair dw[] = {pair_open(OUT, IN, 0, 0, F32, 84, 1), pair_open(OUT, IN, 0, 0, F32, 84, 1)};
    Mat none = {.type = BF16}, no_bias = {.type = F32}, gone = x.x.dev;
    gone.p = NULL;
    for (int turned = 0; turned < 2; turned++) {
        Fp8Turned xt = linear_turned(&scratch, T, IN, scaling),
                  dyt = linear_turned(&scratch, T, OUT, scaling);
        Precision p = {x.scale, w.scale, dy.scale, .fp8 = 1, .scaling = scaling}, with = p;
        with.xt = turned ? &xt : NULL;
        with.dyt = turned ? &dyt : NULL;
        linear_fwd(&gpu, &scratch, y.dev, x.x.dev, w.x.dev, none, with);
        linear_fwd(&gpu, &scratch, y.dev, other.x.dev, w.x.dev, none, p);
        linear_bwd_x(&gpu, &scratch, dx.dev, dy.x.dev, w.x.dev, with);
        Sum sum = {dw[turned].dev, NULL};
        linear_bwd_w(&gpu, &scratch, sum, no_bias, dy.x.dev, turned ? gone : x.x.dev, with);
        CHECK(xt.there == turned && dyt.there == turned, "copies: %d %d", xt.there, dyt.there);
        arena_reset(&scratch, 0);
    }
    float got[2][OUT * IN];
    for (int i = 0; i < 2; i++)
        gpu.get(&gpu, got[i], dw[i].dev.p, sizeof got[i]);
    CHECK(!memcmp(got[0], got[1], sizeof got[0]), "scaling %d: dw from kept copies has other bits", scaling);
    Pair *pairs[] = {&y, &dx, &dw[0], &dw[1]};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        pair_close(pairs[i]);
    Eight *eights[] = {&x, &other, &w, &dy};
    for (size_t i = 0; i < sizeof eights / sizeof *eights; i++)
        eight_close(eights[i]);
    gpu.give(&gpu, scratch.base, scratch.size);
}

/* Delayed scales: a cast uses the magnitudes of earlier steps; only the last LENGTH steps count; a step
 * of zeros or with an infinity leaves the scale as it is. */
static void test_delayed(void)
{
    enum { STEPS = 12, LENGTH = 3, N = 32 };
    for (int recent = 0; recent < 2; recent++) {
        Fp8Scale *state = gpu.take(&gpu, 2 * sizeof *state), got;
        double seen[STEPS], scale = 1;
        Fp8Scale *s = state + 1;
        for (int step = 0; step < STEPS; step++) {
            double size = step == 5   ? 0
                          : step == 7 ? INFINITY
                                      : ldexp(1, (step * 5) % 7 - 3),
                   largest = 0, top = 0;
            seen[step] = 0;
            for (int mb = 0; mb < 2; mb++) {
                Eight e =
                    eight_open(N, N, BF16, (uint64_t)(50 + step * 2 + mb), isinf(size) ? 1 : size, E4M3, 1);
                if (isinf(size))
                    put(e.x.host.p, 0, BF16, INFINITY);
                gpu.put(&gpu, e.x.dev_base, e.x.base, e.x.bytes);
                largest = fmax(largest, largest_of(&e.x));
                round_all(&e, E4M3, step ? scale : 0);
                gpu.fp8_cast(&gpu, e.rows.p, e.cols.p, e.x.dev, s, E4M3, step > 0);
                CHECK(!eight_wrong(&e), "step %d: %lld bytes are wrong", step, (long long)eight_wrong(&e));
                eight_close(&e);
            }
            seen[step] = largest;
            gpu.fp8_next(&gpu, state, 2, LENGTH, recent);
            for (int i = recent ? step : step - LENGTH + 1 > 0 ? step - LENGTH + 1 : 0; i <= step; i++)
                top = fmax(top, seen[i]);
            if (top > 0 && isfinite(top))
                scale = 448.0f / (float)top;
            gpu.get(&gpu, &got, s, sizeof got);
            CHECK(got.scale == (float)scale && got.seen == 0, "step %d: scale %g, not %g", step, got.scale,
                  scale);
            for (int i = 0; i < FP8_HISTORY; i++)
                CHECK(got.history[i] == (float)(i <= step ? seen[step - i] : 0),
                      "step %d: %g was there %d steps before", step, got.history[i], i);
        }
        gpu.get(&gpu, &got, state, sizeof got);
        CHECK(got.scale == 0 && got.history[0] == 0, "a scale that nothing was cast with has changed");
        gpu.give(&gpu, state, 2 * sizeof *state);
    }
}

/* The CPU's casts and scales have the GPU's bits: numbers of any size, one infinity or NaN, over steps. */
static void test_fp8_twin(void)
{
    uint64_t s = 4400;
    Fp8Scale *theirs = gpu.take(&gpu, sizeof *theirs), *ours = xcalloc(1, sizeof *ours), got;
    for (int i = 0; i < 32; i++) {
        int64_t rows = 1 + (int64_t)draw(&s, 90), cols = 16 + 16 * (int64_t)draw(&s, 20);
        Fp8Format f = draw(&s, 2) ? E5M2 : E4M3;
        Dtype t = draw(&s, 2) ? F16 : BF16;
        int delayed = (int)draw(&s, 2);
        int small = i % 8 == 3 && t == BF16;       /* the quotient that is its scale is infinite */
        Eight e = eight_open(rows, cols, t, 10 * s, ldexp(1, small ? -126 : (int)draw(&s, 18) - 12), f, 1);
        if (i % 8 == 7)
            put(e.x.host.p, 0, t, i % 16 == 7 ? INFINITY : NAN);
        gpu.put(&gpu, e.x.dev_base, e.x.base, e.x.bytes);
        uint8_t *y = xcalloc(4, e.bytes), *yt = y + e.bytes, *want = yt + e.bytes, *want_t = want + e.bytes;
        cpu.fp8_cast(&cpu, want, want_t, e.x.host, ours, f, delayed);
        gpu.fp8_cast(&gpu, e.rows.p, e.cols.p, e.x.dev, theirs, f, delayed);
        gpu.get(&gpu, y, e.rows.p, (size_t)(rows * cols));
        gpu.get(&gpu, yt, e.cols.p, e.bytes);
        gpu.get(&gpu, &got, theirs, sizeof got);
        CHECK(!memcmp(y, want, (size_t)(rows * cols)) && !memcmp(yt, want_t, e.bytes),
              "%lld x %lld, delayed %d: other bytes than the CPU's", (long long)rows, (long long)cols,
              delayed);
        CHECK(!memcmp(&got, ours, sizeof got) || (isnan(got.inverse) && isnan(ours->inverse)),
              "cast %d: another scale than the CPU's: %g, %g", i, got.inverse, ours->inverse);
        if (i % 5 == 4) {
            cpu.fp8_next(&cpu, ours, 1, 1 + i % 3, i % 2);
            gpu.fp8_next(&gpu, theirs, 1, 1 + i % 3, i % 2);
        }
        free(y);
        eight_close(&e);
    }
    gpu.give(&gpu, theirs, sizeof *theirs);
    free(ours);
}

/* Casts of blocks have the CPU's bytes and scales, by rows and transposed, and products those of the same
 * bytes on the CPU. Scales of FP8_MX are written in memory of any content. */
static void test_blocks_twin(void)
{
    uint64_t s = 4500;
    for (int i = 0; i < 40; i++) {
        int64_t m = fp8_rows_piece(blocks) * (1 + (int64_t)draw(&s, 90)), n = 16 + 16 * (int64_t)draw(&s, 20);
        int64_t k = fp8_padded(16 + 16 * (int64_t)draw(&s, 80), blocks), padded = fp8_padded(m, blocks);
        int64_t kn = fp8_padded(n, blocks), each = fp8_across(blocks);
        Fp8Format f = draw(&s, 2) ? E5M2 : E4M3;
        Fp8Scaling of_b = draw(&s, 2) ? linear_weights(blocks) : blocks;
        Dtype t = draw(&s, 2) ? F16 : BF16, out = draw(&s, 2) ? F32 : t;
        int acc = (int)draw(&s, 2), bias = !acc && out == t;
        Pair x = pair_open(m, k, 8 * (i % 3), 0, t, 10 * s, 1), w = pair_open(n, k, 0, 0, t, 10 * s + 1, 1);
        Pair c = pair_open(m, n, 0, 0, out, 10 * s + 2, acc ? 1 : NAN),
             b = pair_open(1, n, 0, 0, out, 10 * s + 3, 1);
        for (int64_t e = 0; e < m * k; e++)
            put(x.host.p, e / k * x.host.ld + e % k, t,
                ldexp(cell(&x, e), (int)(e / k * 7 + e % k / each * 5) % 15 - 14) * (e / k % 9 != 4));
        for (int64_t e = 0; e < n * k; e++)
            put(w.host.p, e, t, ldexp(cell(&w, e), (int)(e / k / each * 5 + e % k / each * 3) % 11 - 10));
        gpu.put(&gpu, x.dev_base, x.base, x.bytes);
        gpu.put(&gpu, w.dev_base, w.base, w.bytes);
        const size_t bytes[] = {fp8_bytes(m, k, blocks), fp8_bytes(k, padded, blocks),
                                fp8_bytes(n, k, of_b), fp8_bytes(k, kn, of_b)};
        char *on[4], *ours[4], *got[4];
        for (int p = 0; p < 4; p++) {
            on[p] = gpu.take(&gpu, bytes[p]);
            ours[p] = xcalloc(bytes[p], 1);
            got[p] = xcalloc(bytes[p], 1);
            memset(got[p], blocks == FP8_MX ? 0xff : 0, bytes[p]);
            gpu.put(&gpu, on[p], got[p], bytes[p]);
        }
        cpu.fp8_cast(&cpu, ours[0], ours[1], x.host, NULL, f, blocks);
        cpu.fp8_cast(&cpu, ours[2], ours[3], w.host, NULL, E4M3, of_b);
        gpu.fp8_cast(&gpu, on[0], i % 2 ? NULL : on[1], x.dev, NULL, f, blocks);
        gpu.fp8_cast(&gpu, i % 3 ? NULL : on[2], on[3], w.dev, NULL, E4M3, of_b);
        if (i % 2)
            gpu.fp8_cast(&gpu, NULL, on[1], x.dev, NULL, f, blocks);
        if (i % 3)
            gpu.fp8_cast(&gpu, on[2], NULL, w.dev, NULL, E4M3, of_b);
        for (int p = 0; p < 4; p++) {
            gpu.get(&gpu, got[p], on[p], bytes[p]);
            CHECK(!memcmp(got[p], ours[p], bytes[p]),
                  "%d x %d x %d, operand %d, scaling %d: other bytes than the CPU's", (int)m, (int)n, (int)k,
                  p, of_b);
        }
        cpu.fp8_matmul(&cpu, c.host, mat8(ours[0], m, k, f, blocks, NULL),
                       mat8(ours[2], n, k, E4M3, of_b, NULL), bias ? b.host : (Mat){.type = out}, acc);
        gpu.fp8_matmul(&gpu, c.dev, mat8(on[0], m, k, f, blocks, NULL),
                       mat8(on[2], n, k, E4M3, of_b, NULL), bias ? b.dev : (Mat){.type = out}, acc);
        double e = difference(&c);
        CHECK(e <= limit(out, k, 1), "%d x %d x %d by blocks, scaling %d, to %s: off by %g", (int)m, (int)n,
              (int)k, of_b, dtype_name(out), e);
        for (int p = 0; p < 4; p++) {
            gpu.give(&gpu, on[p], bytes[p]);
            free(ours[p]);
            free(got[p]);
        }
        Pair *pairs[] = {&x, &w, &c, &b};
        for (size_t p = 0; p < sizeof pairs / sizeof *pairs; p++)
            pair_close(pairs[p]);
    }
}

/* Fills the memory of a scratch arena with bytes that are NaN as a number of FP8 and as a scale. */
static void spoil(Device *d, const Arena *scratch)
{
    char *all = xcalloc(1, scratch->size);
    memset(all, 0xff, scratch->size);
    d->put(d, scratch->base, all, scratch->size);
    free(all);
}

/* The products of one expert's rows, whose number is any that an expert has: those of the CPU. What lies
 * around the rows, the next expert's, stays. */
static void test_expert_rows(void)
{
    uint64_t s = 5000;
    Arena on_gpu = {.name = "scratch", .size = 1 << 20}, on_cpu = on_gpu;
    on_gpu.base = gpu.take(&gpu, on_gpu.size);
    on_cpu.base = xcalloc(1, on_cpu.size);
    for (int i = 0; i < 24; i++) {
        uint64_t few = i % 2 ? 8 : 300 / (uint64_t)fp8_rows_piece(blocks);
        int64_t rows = fp8_rows_piece(blocks) * (1 + (int64_t)draw(&s, few));
        int64_t in = 32 + 32 * (int64_t)draw(&s, 8), out = 32 + 32 * (int64_t)draw(&s, 8);
        Pair x = pair_open(rows, in, 0, 8, BF16, 10 * s, 2), y = pair_open(rows, out, 0, 8, BF16, 0, NAN);
        Pair w = pair_open(out, in, 0, 0, BF16, 10 * s + 1, 1), b = pair_open(1, out, 0, 0, BF16, 2, 1);
        Pair dx = pair_open(rows, in, 0, 8, BF16, 0, NAN), dy = pair_open(rows, out, 0, 8, BF16, s, 3);
        Pair dw = pair_open(out, in, 0, 0, F32, 10 * s + 4, 1), db = pair_open(1, out, 0, 0, F32, 10 * s, 1);
        Precision p = {.fp8 = 1, .e4m3 = i / 2 % 2, .scaling = blocks};
        for (int host = 0; host < 2; host++) {
            Device *d = host ? &cpu : &gpu;
            Arena *scratch = host ? &on_cpu : &on_gpu;
#define SIDE(pair) (host ? (pair).host : (pair).dev)
            spoil(d, scratch);
            scratch->peak = 0;
            linear_reserve(scratch, rows, w.host, p);
            size_t most = scratch->peak;
            linear_fwd(d, scratch, SIDE(y), SIDE(x), SIDE(w), SIDE(b), p);
            linear_bwd_x(d, scratch, SIDE(dx), SIDE(dy), SIDE(w), p);
            linear_bwd_w(d, scratch, (Sum){SIDE(dw), NULL}, SIDE(db), SIDE(dy), SIDE(x), p);
            CHECK(scratch->peak == most, "%d rows: more scratch than was reserved", (int)rows);
#undef SIDE
        }
        double e[] = {difference(&y), difference(&dx), difference(&dw), difference(&db)};
        CHECK(e[0] <= limit(BF16, in, 2) && e[1] <= limit(BF16, out, 3),
              "%d rows, scaling %d: y is off by %g, dx by %g", (int)rows, blocks, e[0], e[1]);
        CHECK(e[2] <= limit(F32, rows, 6) && e[3] <= tolerance(F32, rows),
              "%d rows, scaling %d: dw is off by %g, db by %g", (int)rows, blocks, e[2], e[3]);
        Pair *pairs[] = {&x, &w, &b, &y, &dy, &dx, &dw, &db};
        for (size_t k = 0; k < sizeof pairs / sizeof *pairs; k++)
            pair_close(pairs[k]);
    }
    free(on_cpu.base);
    gpu.give(&gpu, on_gpu.base, on_gpu.size);
}

static int64_t timed, torn;    /* products that cuda_tune has made; those whose operands overlap */
static void (*multiply)(Device *d, Mat c, Mat8 a, Mat8 b, Mat bias, int acc);
static void see_operands(Device *d, Mat c, Mat8 a, Mat8 b, Mat bias, int acc)
{
    const char *behind = (char *)a.p + fp8_bytes(a.rows, a.cols, a.scaling);
    timed++;
    torn += behind > (char *)b.p || (char *)a.p < (char *)c.p + mat_bytes(c);
    multiply(d, c, a, b, bias, acc);
}

/* Products of an expert's few rows are timed, whose scales may be more than their numbers. */
static void test_tune(void)
{
    Device counting;
    Products p = {0};
    Algorithms list = {0};
    size_t bytes = 1 << 16;
    void *room = gpu.take(&gpu, bytes);
    null_open(&counting, F32);
    products_watch(&counting, &p);
    for (int64_t rows = 4; rows <= 20; rows += 4)
        counting.fp8_matmul(&counting, mat(NULL, rows, 48, BF16),
                            (Mat8){.rows = rows, .cols = 32, .format = E5M2, .scaling = blocks},
                            (Mat8){.rows = 48, .cols = 32, .scaling = linear_weights(blocks)}, none, 0);
    multiply = gpu.fp8_matmul;
    gpu.fp8_matmul = see_operands;
    cuda_tune(&gpu, &p, &list, 8, room, bytes);
    gpu.fp8_matmul = multiply;
    CHECK(timed == 5 && list.n == 5 && !torn, "%d products were made, %d timed, operands of %d overlap",
          (int)timed, (int)list.n, (int)torn);
    gpu.give(&gpu, room, bytes);
    products_close(&p);
    algorithms_close(&list);
}

/* Bytes of the larger of a cast matrix and its transpose, a multiple of 16. */
static size_t cast_bytes(int64_t rows, int64_t cols, Fp8Scaling scaling)
{
    size_t y = fp8_bytes(rows, cols, scaling), yt = fp8_bytes(cols, fp8_padded(rows, scaling), scaling);
    return ((y > yt ? y : yt) + 15) / 16 * 16;
}

/* fp8_act gives the bytes and the scale of a matrix that act_fwd or act_bwd has stored. */
static void test_fp8_act(void)
{
    uint64_t s = 4600;
    for (int i = 0; i < 48; i++) {
        ActKind kind = (ActKind)(i % 6);
        Dtype t = draw(&s, 2) ? F16 : BF16;
        Fp8Scaling scaling = i / 12 % 3 < 2 ? (Fp8Scaling)(i / 12 % 3) : blocks;
        int64_t rows = 1 + (int)draw(&s, 150), f = 16 + 16 * (int)draw(&s, 12);
        if (fp8_blocked(scaling) && act_gated(kind))
            f = fp8_across(scaling) * (1 + f / 100);
        int64_t wide = act_width(kind, f);
        int back = i / 6 % 2;
        size_t bytes = cast_bytes(rows, wide, scaling);
        Pair h = pair_open(rows, wide, 8 * (i % 2), 0, t, 10 * s, 2), da = pair_open(rows, f, 0, 0, t, 3, 1);
        Pair out = pair_open(rows, back ? wide : f, 0, 0, t, 0, NAN);
        char *y = gpu.take(&gpu, 4 * bytes), *host = xcalloc(4, bytes);
        Fp8Scale *scale = gpu.take(&gpu, 2 * sizeof *scale), got[2];
        gpu.zero(&gpu, scale, 2 * sizeof *scale);
        gpu.zero(&gpu, y, 4 * bytes);
        if (back)
            gpu.act_bwd(&gpu, out.dev, da.dev, h.dev, kind);
        else
            gpu.act_fwd(&gpu, out.dev, h.dev, kind);
        Fp8Format format = back && !(fp8_blocked(scaling) && i % 2) ? E5M2 : E4M3;
        gpu.fp8_cast(&gpu, y, y + bytes, out.dev, scale, format, scaling);
        gpu.fp8_act(&gpu, y + 2 * bytes, y + 3 * bytes, back ? da.dev : none, h.dev, kind, scale + 1, format,
                    scaling);
        gpu.get(&gpu, got, scale, sizeof got);
        gpu.get(&gpu, host, y, 4 * bytes);
        CHECK(!memcmp(host, host + 2 * bytes, 2 * bytes) && !memcmp(&got[0], &got[1], sizeof got[0]),
              "%d x %d %s, activation %d, backward %d, scaling %d: other bytes than stored", (int)rows,
              (int)f, dtype_name(t), kind, back, scaling);
        gpu.give(&gpu, y, 4 * bytes);
        gpu.give(&gpu, scale, 2 * sizeof *scale);
        free(host);
        pair_close(&h);
        pair_close(&da);
        pair_close(&out);
    }
}

/* fp8_norm gives the bytes, scale, sum and statistics of a norm that has stored its result. Rows of all
 * lengths that norms are cut by: lanes of a warp, a block with two pieces a thread or four, elements. */
static void test_fp8_norm(void)
{
    static const int64_t cols[] = {16, 208, 1040, 3584, 8192, 8208, 33024};
    static const int64_t sample[] = {5, 9};
    uint64_t s = 4800;
    for (int i = 0; i < 56; i++) {
        Dtype t = draw(&s, 2) ? F16 : BF16;
        NormKind kind = draw(&s, 2) ? NORM_RMS : NORM_LAYER;
        int64_t n = cols[i % 7], rows = 1 + (int)draw(&s, 50);
        Fp8Scaling scaling = i / 7 % 3 < 2 ? (Fp8Scaling)(i / 7 % 3) : blocks;
        int adds = (int)draw(&s, 4), drops = (int)draw(&s, 2);
        size_t bytes = cast_bytes(rows, n, scaling);
        Positions runs = positions_one(0, 32);
        Dropout drop = {.p = drops ? 0.3 : 0, .key = 77, .runs = &runs};
        drop.sample = gpu.take(&gpu, sizeof sample);
        gpu.put(&gpu, (void *)drop.sample, sample, sizeof sample);
        Pair x = pair_open(rows, n, 0, 0, t, 10 * s, 2), res = pair_open(rows, n, 0, 0, t, 10 * s + 1, 1);
        Pair gain = pair_open(1, n, 0, 0, t, 10 * s + 2, 1), bias = pair_open(1, n, 0, 0, t, 10 * s + 3, 1);
        Pair sum = pair_open(rows, n, 0, 0, t, 0, NAN), sum2 = pair_open(rows, n, 0, 0, t, 0, NAN);
        Pair stat = pair_open(rows, 2, 0, 0, F32, 0, NAN), stat2 = pair_open(rows, 2, 0, 0, F32, 0, NAN);
        Pair ln = pair_open(rows, n, 0, 0, t, 0, NAN);
        Mat r = adds > 1 ? res.dev : none, b = kind == NORM_LAYER ? bias.dev : none;
        char *y = gpu.take(&gpu, 4 * bytes), *host = xcalloc(4, bytes);
        Fp8Scale *scale = gpu.take(&gpu, 2 * sizeof *scale), got[2] = {{.scale = 19}, {.scale = 19}};
        gpu.put(&gpu, scale, got, sizeof got);
        gpu.zero(&gpu, y, 4 * bytes);
        if (adds)
            gpu.add_norm_fwd(&gpu, sum.dev, ln.dev, stat.dev, x.dev, r, &drop, gain.dev, b, 1e-5, kind);
        else
            gpu.norm_fwd(&gpu, ln.dev, stat.dev, x.dev, gain.dev, b, 1e-5, kind, 1);
        gpu.fp8_cast(&gpu, y, y + bytes, ln.dev, scale, E4M3, scaling);
        gpu.fp8_norm(&gpu, i % 5 ? y + 2 * bytes : NULL, i % 5 != 1 ? y + 3 * bytes : NULL,
                     adds ? sum2.dev : none, stat2.dev, x.dev, r, adds ? &drop : NULL, gain.dev, b, 1e-5,
                     kind, scale + 1, scaling);
        gpu.get(&gpu, got, scale, sizeof got);
        gpu.get(&gpu, host, y, 4 * bytes);
        CHECK((!(i % 5) || !memcmp(host, host + 2 * bytes, bytes)) &&
                  (i % 5 == 1 || !memcmp(host + bytes, host + 3 * bytes, bytes)) &&
                  !memcmp(&got[0], &got[1], sizeof got[0]),
              "%d x %d %s, norm %d, scaling %d, adds %d: other bytes than stored", (int)rows, (int)n,
              dtype_name(t), kind, scaling, adds);
        gpu.get(&gpu, sum.base, sum.dev_base, sum.bytes);
        gpu.get(&gpu, stat.base, stat.dev_base, stat.bytes);
        gpu.get(&gpu, sum2.base, sum2.dev_base, sum2.bytes);
        gpu.get(&gpu, stat2.base, stat2.dev_base, stat2.bytes);
        CHECK(!memcmp(sum.base, sum2.base, sum.bytes) && !memcmp(stat.base, stat2.base, stat.bytes),
              "%d x %d: another sum or other statistics", (int)rows, (int)n);
        gpu.give(&gpu, y, 4 * bytes);
        gpu.give(&gpu, scale, 2 * sizeof *scale);
        gpu.give(&gpu, (void *)drop.sample, sizeof sample);
        free(host);
        Pair *all[] = {&x, &res, &gain, &bias, &sum, &sum2, &stat, &stat2, &ln};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            pair_close(all[k]);
    }
}

int main(void)
{
    cpu_open(&cpu, F32, test_isa(), 2);
    cuda_open(&gpu, F32, 0);
    blocks = cuda_of(&gpu)->major < 10 ? FP8_VECTORS : FP8_MX;
    measure_grain();
    test_fp8();
    test_layer_fp8();
    test_layer_turned(FP8_OWN);
    test_layer_turned(FP8_DELAYED);
    test_layer_turned(blocks);
    test_delayed();
    test_fp8_twin();
    test_blocks_twin();
    test_expert_rows();
    test_tune();
    test_fp8_act();
    test_fp8_norm();
    cuda_close(&gpu);
    cpu_close(&cpu);
    return test_end();
}
