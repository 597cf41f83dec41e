/* test_fp8 -- FP8 on the CPU: every number of both formats, casts of every BF16 and F16, scales, of
 * blocks, too, products, against arithmetic in F64
 *
 *   test_fp8 [ISA]      only this instruction set */
#include "fp8.h"
#include "ops.h"

static const Fp8Format formats[] = {E4M3, E5M2};
/* Those of inputs and gradients. */
static const Fp8Scaling scalings[] = {FP8_OWN, FP8_DELAYED, FP8_VECTORS, FP8_MX};

/* The value of a code, from its fields. */
static double value(uint8_t u, Fp8Format f)
{
    int bits = f == E4M3 ? 3 : 2, bias = f == E4M3 ? 7 : 15;
    int e = u >> bits & (f == E4M3 ? 15 : 31), m = u & ((1 << bits) - 1);
    double sign = u >> 7 ? -1 : 1;
    if (f == E4M3 ? (u & 0x7f) == 0x7f : e == 31)
        return f == E5M2 && !m ? sign * INFINITY : NAN;
    return sign * ldexp(e ? m + (1 << bits) : m, (e ? e : 1) - bias - bits);
}
/* x as a cast rounds it. */
static double cast(double x, Fp8Format f)
{
    double top = f == E4M3 ? 448 : 57344, y = rounded_to(x, f == E4M3 ? 4 : 3, f == E4M3 ? -6 : -14, top);
    return fabs(y) > top ? copysign(top, x) : y;
}
static int same(double a, double b) { return isnan(a) ? isnan(b) : a == b && !signbit(a) == !signbit(b); }

/* Each code to F32 and back; numbers in the middle of two codes, and their neighbours. */
static void codes(void)
{
    for (int k = 0; k < 2; k++) {
        Fp8Format f = formats[k];
        int wrong = 0, lost = 0, off = 0;
        for (int i = 0; i < 256; i++) {
            double x = value((uint8_t)i, f), next = value((uint8_t)(i + 1), f);
            wrong += !same(fp8_to_f32((uint8_t)i, f), x);
            lost += isfinite(x) && fp8_from_f32((float)x, f) != i;
            float middle = (float)((x + next) / 2),
                  near[] = {nextafterf(middle, -INFINITY), middle, nextafterf(middle, INFINITY)};
            for (int n = 0; n < 3; n++)
                off += !same(value(fp8_from_f32(near[n], f), f), cast(near[n], f));
        }
        CHECK(!wrong && !lost && !off, "E%dM%d: %d wrong, %d lost on the way back, %d rounded wrongly", 4 + k,
              3 - k, wrong, lost, off);
    }
}

/* One cast of each BF16 or F16, by rows and transposed, of a matrix with gaps whose last rows are missing. */
static void casts(Device *d, Dtype t, Fp8Format f, float scale)
{
    enum { COLS = 288, ROWS = 65536 / COLS, PADDED = (ROWS + 15) / 16 * 16, LD = COLS + 3 };
    static uint16_t x[ROWS * LD];
    static uint8_t y[ROWS * COLS], yt[COLS * PADDED];
    Fp8Scale s = {.scale = scale};
    int wrong = 0, turned = 0;
    for (int i = 0; i < ROWS * COLS; i++)
        x[i / COLS * LD + i % COLS] = (uint16_t)(i + (i >= 32768 ? 65536 - ROWS * COLS : 0));
    memset(yt, 77, sizeof yt);
    d->fp8_cast(d, y, yt, (Mat){x, ROWS, COLS, LD, t}, &s, f, 1);
    for (int i = 0; i < ROWS * COLS; i++) {
        double v = get(x, i / COLS * LD + i % COLS, t);
        wrong += !same(value(y[i], f), cast((float)v * scale, f));
        turned += yt[i % COLS * PADDED + i / COLS] != y[i];
    }
    for (int i = ROWS * COLS; i < PADDED * COLS; i++)
        turned += yt[i % COLS * PADDED + i / COLS] != 0;
    CHECK(!wrong && !turned, "%s %s times %g: %d wrong, %d in the transpose", d->isa, dtype_name(t), scale,
          wrong, turned);
    CHECK(s.inverse == 1 / scale && s.largest == (f == E4M3 ? 448 : 57344) && s.scale == scale,
          "1 / %g is %g", scale, s.inverse);
}

/* Scales of a matrix's own largest element, and over steps: only the last LENGTH count, and a step of zeros
 * or with an infinity changes nothing. */
static void scales(Device *d, int recent)
{
    enum { STEPS = 12, LENGTH = 3, N = 64 };
    static uint16_t x[N * N];
    static uint8_t y[N * N];
    static Fp8Scale all[2];
    Fp8Scale *s = &all[1], own;
    double seen[STEPS], scale = 1;
    memset(all, 0, sizeof all);
    for (int step = 0; step < STEPS; step++) {
        double size = step == 5 ? 0 : ldexp(1, step * 5 % 7 - 3), top = 0;
        seen[step] = 0;
        for (int mb = 0; mb < 2; mb++) {
            for (int i = 0; i < N * N; i++)
                put(x, i, BF16, size * normal((uint64_t)(2 * step + mb), i));
            if (step == 7)
                put(x, 99, BF16, mb ? 1 : -INFINITY);
            double largest = 0;
            for (int i = 0; i < N * N; i++)
                if (fabs(get(x, i, BF16)) > largest)   /* fmax here is what GCC 12 for Arm cannot compile */
                    largest = fabs(get(x, i, BF16));
            memset(&own, 0, sizeof own);
            own.seen = s->seen;
            d->fp8_cast(d, y, NULL, mat(x, N, N, BF16), &own, E4M3, 0);
            float inverse = step == 5 ? 1 : 1 / (448 / (float)largest);
            CHECK(isinf(largest) ? isnan(own.inverse) : own.inverse == inverse,
                  "step %d: 1 / scale is %g, not %g", step, own.inverse, inverse);
            d->fp8_cast(d, y, NULL, mat(x, N, N, BF16), s, E4M3, step > 0);
            CHECK(own.seen == s->seen || step, "step %d: both casts see the largest", step);
            seen[step] = fmax(seen[step], largest);
        }
        d->fp8_next(d, all, 2, LENGTH, recent);
        for (int i = recent ? step : step - LENGTH + 1 > 0 ? step - LENGTH + 1 : 0; i <= step; i++)
            top = fmax(top, seen[i]);
        if (top > 0 && isfinite(top))
            scale = 448.0f / (float)top;
        CHECK(s->scale == (float)scale && s->seen == 0, "step %d: scale %g, not %g", step, s->scale, scale);
        for (int i = 0; i < FP8_HISTORY; i++)
            CHECK(s->history[i] == (float)(i <= step ? seen[step - i] : 0),
                  "step %d: %g was there %d steps before", step, s->history[i], i);
    }
    CHECK(all[0].scale == 0 && all[0].history[0] == 0, "a scale that nothing was cast with has changed");
}

/* Magnitudes so small that the quotient of the format's largest number and them is infinite: zeros stay
 * zeros, and the next scale is a finite number. */
static void small_scales(Device *d, Fp8Format f, Fp8Scaling scaling)
{
    enum { N = 16 };
    static uint16_t x[N * N];
    static uint8_t y[N * N], yt[N * N];
    Fp8Scale s = {0};
    int wrong = 0;
    for (int i = 0; i < N * N; i++)
        put(x, i, BF16, i % 3 ? 0 : ldexp(1 + i % 5, -127));
    for (int step = 0; step < 2; step++) {
        d->fp8_cast(d, y, yt, mat(x, N, N, BF16), &s, f, scaling);
        d->fp8_next(d, &s, 1, 1, 1);
    }
    for (int i = 0; i < N * N; i++) {
        double want = get(x, i, BF16);
        wrong += !(fabs(value(y[i], f) * s.inverse - want) <= 0.0625 * fabs(want) * (f == E5M2 ? 2 : 1));
    }
    CHECK(!wrong && isfinite(s.scale) && s.inverse > 0, "E%dM%d: %d wrong, scale %g, its inverse %g",
          f == E4M3 ? 4 : 5, f == E4M3 ? 3 : 2, wrong, s.scale, s.inverse);
}

/* ---- blocks ---- */

/* The inverse scale of element (r, c) of a matrix [rows, cols], whose scales begin at `from`, by what the
 * library says of their places. A tile has 128 rows of 4 bytes; rows r, r + 32, r + 64 and r + 96 lie in one
 * piece of 16 bytes. */
static double inverse_of(const void *from, int64_t rows, int64_t cols, int64_t r, int64_t c, Fp8Scaling s)
{
    const float *inverse = from;
    if (s == FP8_VECTORS)
        return inverse[c / 128 * rows + r];
    if (s == FP8_SQUARES)
        return inverse[r / 128 * ((cols + 511) / 512 * 4) + c / 128];
    const uint8_t *tile = (const uint8_t *)from + (r / 128 * ((cols + 127) / 128) + c / 128) * 512;
    int byte = tile[16 * (r % 32) + 4 * (r / 32 % 4) + c / 32 % 4];
    return byte == 255 ? NAN : ldexp(1, byte - 127);
}

/* The least power of two that brings `most` into the format; for 0, and in a byte, the least one. */
static double power_for(double most, Fp8Format f, Fp8Scaling s)
{
    int e;
    double m = frexp(most / (f == E4M3 ? 448 : 57344), &e), least = s == FP8_MX ? -127 : -126;
    if (!isfinite(most))
        return NAN;
    if (most == 0)
        return s == FP8_MX ? ldexp(1, -127) : 1;
    return ldexp(1, (int)fmax(least, m == 0.5 ? e - 1 : e));
}

/* Wrong numbers and scales of a matrix [rows, cols] whose element (r, c) is x[r * down + c * across], and
 * which was cast to y. */
static int blocks_wrong(const uint8_t *y, const double *x, int64_t rows, int64_t cols, int64_t down,
                        int64_t across, Fp8Format f, Fp8Scaling scaling)
{
    const int64_t high = scaling == FP8_SQUARES ? 128 : 1, wide = scaling == FP8_MX ? 32 : 128;
    int wrong = 0;
    for (int64_t r0 = 0; r0 < rows; r0 += high)
        for (int64_t c0 = 0; c0 < cols; c0 += wide) {
            double most = 0;
            int64_t r1 = r0 + high < rows ? r0 + high : rows, c1 = c0 + wide < cols ? c0 + wide : cols;
            for (int64_t i = 0; i < (r1 - r0) * (c1 - c0); i++) {
                double v = fabs(x[(r0 + i / (c1 - c0)) * down + (c0 + i % (c1 - c0)) * across]);
                most = v > most || isnan(v) ? v : most;
            }
            double want = power_for(most, f, scaling), is = isnan(want) ? 1 : want;
            double got = inverse_of(y + rows * cols, rows, cols, r0, c0, scaling);
            wrong += isnan(want) ? !isnan(got) : got != want;
            for (int64_t i = 0; i < (r1 - r0) * (c1 - c0); i++) {
                int64_t r = r0 + i / (c1 - c0), c = c0 + i % (c1 - c0);
                wrong += !same(value(y[r * cols + c], f), cast(x[r * down + c * across] / is, f));
            }
        }
    for (int64_t r = 0; scaling == FP8_MX && r < (rows + 127) / 128 * 128; r++)
        for (int64_t c = r < rows ? (cols + 31) / 32 * 32 : 0; c < (cols + 127) / 128 * 128; c += 32)
            wrong += inverse_of(y + rows * cols, rows, cols, r, c, scaling) != ldexp(1, -127);
    return wrong;
}

/* Casts by blocks, by rows and transposed, with magnitudes that differ between them; kind 1: some are
 * zeros, 2: some are not finite, 3: some are at the end of BF16's range. */
static void blocks(Device *d, int64_t rows, int64_t cols, Dtype t, Fp8Format f, Fp8Scaling scaling, int kind)
{
    const int64_t ld = cols + 3, each = scaling == FP8_MX ? 32 : 128, piece = scaling == FP8_MX ? 32 : 16;
    const int64_t padded = (rows + piece - 1) / piece * piece;
    const size_t n = fp8_bytes(rows, cols, scaling), nt = fp8_bytes(cols, padded, scaling);
    uint16_t *x = xcalloc((size_t)(rows * ld), 2);
    double *was = xcalloc((size_t)(padded * cols), sizeof *was);
    uint8_t *y = xcalloc(n, 1), *yt = xcalloc(nt, 1);
    for (int64_t i = 0; i < rows * cols; i++) {
        int64_t block = i / cols / each * 7 + i % cols / each * 3 + i / cols % 5;
        int size = t == BF16 && kind == 3 ? (block % 3 == 0 ? -125 : 100) : (int)(block % 11) - 6;
        double v = ldexp(normal(21, i), size);
        v = kind == 1 && i % cols % each == 0 ? ldexp(1.75, size + 4) : v; /* the format's largest number */
        v = kind == 1 && block % 4 == 1 ? 0 : v;
        put(x, i / cols * ld + i % cols, t, kind == 2 && i % 1777 == 5 ? (i % 2 ? INFINITY : NAN) : v);
        was[i] = get(x, i / cols * ld + i % cols, t);
    }
    memset(y, 77, n);
    memset(yt, 77, nt);
    d->fp8_cast(d, y, yt, (Mat){x, rows, cols, ld, t}, NULL, f, scaling);
    int wrong = blocks_wrong(y, was, rows, cols, cols, 1, f, scaling),
        turned = blocks_wrong(yt, was, cols, padded, 1, cols, f, scaling);
    CHECK(!wrong && !turned, "%s %s %ld x %ld, scaling %d, kind %d: %d wrong, %d in the transpose", d->isa,
          dtype_name(t), rows, cols, scaling, kind, wrong, turned);
    free(x);
    free(was);
    free(y);
    free(yt);
}

/* What the codes of a matrix that was cast by blocks stand for. */
static double *values_of(const uint8_t *y, int64_t rows, int64_t cols, Fp8Format f, Fp8Scaling scaling)
{
    double *x = xcalloc((size_t)(rows * cols), sizeof *x);
    for (int64_t i = 0; i < rows * cols; i++)
        x[i] = value(y[i], f) * inverse_of(y + rows * cols, rows, cols, i / cols, i % cols, scaling);
    return x;
}

/* c (+)= a b^T + bias of matrices that were cast by blocks. */
static void blocks_product(Device *d, int64_t m, int64_t n, int64_t k, Fp8Scaling of_b, Dtype out, int acc)
{
    Fp8Format fa = acc ? E5M2 : E4M3;
    Fp8Scaling of_a = of_b == FP8_MX ? FP8_MX : FP8_VECTORS;
    uint16_t *x = xcalloc((size_t)(m * k), 2), *w = xcalloc((size_t)(n * k), 2);
    uint8_t *a = xcalloc(fp8_bytes(m, k, of_a), 1), *b = xcalloc(fp8_bytes(n, k, of_b), 1);
    char *c = xcalloc((size_t)(m * n), 4), bias[4 * 512];
    double worst = 0, *want = xcalloc((size_t)(m * n), sizeof *want);
    for (int64_t i = 0; i < m * k; i++)
        put(x, i, BF16, ldexp(normal(31, i), (int)(i / k * 3 + i % k / 32) % 9 - 4));
    for (int64_t i = 0; i < n * k; i++)
        put(w, i, BF16, ldexp(normal(32, i), (int)(i / k / 128 * 5 + i % k / 32) % 7 - 3));
    for (int64_t i = 0; i < n; i++)
        put(bias, i, out, normal(33, i));
    d->fp8_cast(d, a, NULL, mat(x, m, k, BF16), NULL, fa, of_a);
    d->fp8_cast(d, b, NULL, mat(w, n, k, BF16), NULL, E4M3, of_b);
    double *av = values_of(a, m, k, fa, of_a), *bv = values_of(b, n, k, E4M3, of_b);
    for (int64_t i = 0; i < m * n; i++) {
        put(c, i, out, acc ? normal(34, i) : NAN);
        want[i] = acc ? get(c, i, out) : get(bias, i % n, out);
        for (int64_t l = 0; l < k; l++)
            want[i] += av[i / n * k + l] * bv[i % n * k + l];
    }
    d->fp8_matmul(d, mat(c, m, n, out), mat8(a, m, k, fa, of_a, NULL), mat8(b, n, k, E4M3, of_b, NULL),
                  acc ? (Mat){.type = out} : mat(bias, 1, n, out), acc);
    for (int64_t i = 0; i < m * n; i++) {
        double e = fabs(get(c, i, out) - want[i]) / (fabs(want[i]) + 16 * sqrt((double)k));
        worst = e > worst || isnan(e) ? e : worst;
    }
    CHECK(worst <= (out == F32 ? 1e-5 : 5e-3), "%s %ld x %ld x %ld by blocks, scaling %d: off by %g", d->isa,
          m, n, k, of_b, worst);
    void *all[] = {x, w, a, b, c, want, av, bv};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* A number that is not finite makes its block NaN, and with it what is multiplied by the block, alone. */
static void blocks_nan(Device *d)
{
    enum { M = 3, N = 16, K = 96, BYTES = N * K + 512 };
    static uint16_t x[N * K];
    static uint8_t a[BYTES], b[BYTES];
    float c[M * N];
    for (int i = 0; i < N * K; i++)
        put(x, i, BF16, 1);
    d->fp8_cast(d, b, NULL, mat(x, N, K, BF16), NULL, E4M3, FP8_MX);
    put(x, K + 40, BF16, -INFINITY);
    d->fp8_cast(d, a, NULL, mat(x, M, K, BF16), NULL, E4M3, FP8_MX);
    d->fp8_matmul(d, mat(c, M, N, F32), mat8(a, M, K, E4M3, FP8_MX, NULL), mat8(b, N, K, E4M3, FP8_MX, NULL),
                  (Mat){.type = F32}, 0);
    for (int i = 0; i < M * N; i++)
        CHECK(i / N == 1 ? isnan(c[i]) : c[i] == K, "%s: row %d is %g", d->isa, i / N, c[i]);
}

/* fp8_act gives the bytes and the scale of a matrix that act_fwd or act_bwd has stored. */
static void activations(Device *d, ActKind kind, Dtype t, Fp8Scaling scaling)
{
    enum { T = 77, MOST = 384, PADDED = 96, BYTES = 2 * MOST * (PADDED + 2 * 4) };
    static uint16_t h[T * 2 * MOST], da[T * MOST], out[T * 2 * MOST];
    static uint8_t y[4][BYTES];
    const int F = scaling == FP8_MX ? 352 : MOST;
    int64_t wide = act_width(kind, F);
    for (int i = 0; i < T * wide; i++)
        put(h, i, t, 2 * normal(5, i));
    for (int i = 0; i < T * F; i++)
        put(da, i, t, normal(6, i));
    for (int back = 0; back < 2; back++) {
        Fp8Scale one = {.scale = 19}, two = one;
        Fp8Format f = back && !(fp8_blocked(scaling) && kind % 2) ? E5M2 : E4M3;
        Mat hm = mat(h, T, wide, t), dam = mat(da, T, F, t), om = mat(out, T, back ? wide : F, t);
        memset(y, 77, sizeof y);
        if (back)
            d->act_bwd(d, om, dam, hm, kind);
        else
            d->act_fwd(d, om, hm, kind);
        d->fp8_cast(d, y[0], y[1], om, &one, f, scaling);
        d->fp8_act(d, y[2], y[3], back ? dam : (Mat){.type = t}, hm, kind, &two, f, scaling);
        CHECK(!memcmp(y[0], y[2], sizeof y[0]) && !memcmp(y[1], y[3], sizeof y[0]) &&
                  !memcmp(&one, &two, sizeof one),
              "%s %s, activation %d, backward %d, scaling %d: other bytes than stored", d->isa, dtype_name(t),
              kind, back, scaling);
    }
}

/* fp8_norm gives the bytes, the scale, the sum and the statistics of a norm that has stored its result. */
static void norms(Device *d, NormKind kind, Dtype t, int adds, Fp8Scaling scaling)
{
    enum { T = 45, H = 4112, PADDED = 64 };
    static uint16_t x[T * H], res[T * H], gain[H], bias[H], sum[2][T * H], ln[T * H];
    static float stat[2][T * 2];
    static uint8_t y[4][H * (PADDED + 8)];
    static const int64_t sample[] = {5, 9};
    Positions runs = positions_one(0, 32);
    Dropout drop = {.p = 0.3, .key = 77, .sample = sample, .runs = &runs};
    Fp8Scale one = {.scale = 19}, two = one;
    Mat none = {.type = t}, xm = mat(x, T, H, t), rm = adds > 1 ? mat(res, T, H, t) : none,
        g = mat(gain, 1, H, t), b = kind == NORM_LAYER ? mat(bias, 1, H, t) : none;
    for (int i = 0; i < T * H; i++) {
        put(x, i, t, 2 * normal(7, i));
        put(res, i, t, normal(8, i));
    }
    for (int i = 0; i < H; i++) {
        put(gain, i, t, normal(9, i));
        put(bias, i, t, normal(10, i));
    }
    memset(y, 77, sizeof y);
    memset(sum, 77, sizeof sum);
    if (adds)
        d->add_norm_fwd(d, mat(sum[0], T, H, t), mat(ln, T, H, t), mat(stat[0], T, 2, F32), xm, rm, &drop, g,
                        b, 1e-5, kind);
    else
        d->norm_fwd(d, mat(ln, T, H, t), mat(stat[0], T, 2, F32), xm, g, b, 1e-5, kind, 1);
    d->fp8_cast(d, y[0], y[1], mat(ln, T, H, t), &one, E4M3, scaling);
    d->fp8_norm(d, y[2], y[3], adds ? mat(sum[1], T, H, t) : none, mat(stat[1], T, 2, F32), xm, rm,
                adds ? &drop : NULL, g, b, 1e-5, kind, &two, scaling);
    CHECK(!memcmp(y[0], y[2], sizeof y[0]) && !memcmp(y[1], y[3], sizeof y[0]) &&
              !memcmp(&one, &two, sizeof one) && !memcmp(sum[0], sum[1], sizeof sum[0]) &&
              !memcmp(stat[0], stat[1], sizeof stat[0]),
          "%s %s, norm %d, adds %d, scaling %d: other bytes than stored", d->isa, dtype_name(t), kind, adds,
          scaling);
}

/* c (+)= a b^T + bias of random codes. */
static void product(Device *d, int64_t m, int64_t n, int64_t k, Fp8Format fa, Dtype out, int acc)
{
    float inverse[] = {0.37f, 5.5f};
    uint8_t *a = xcalloc((size_t)(m * k), 1), *b = xcalloc((size_t)(n * k), 1);
    char *c = xcalloc((size_t)(m * n), 4), *want = xcalloc((size_t)(m * n), 4), bias[4 * 512];
    double worst = 0, unit = out == F32 ? 1e-5 : 8e-3;
    for (int64_t i = 0; i < m * k; i++)
        a[i] = fp8_from_f32((float)normal(1, i), fa);
    for (int64_t i = 0; i < n * k; i++)
        b[i] = fp8_from_f32((float)normal(2, i), E4M3);
    for (int64_t i = 0; i < n; i++)
        put(bias, i, out, normal(3, i));
    for (int64_t i = 0; i < m * n; i++) {
        double sum = 0;
        put(c, i, out, acc ? normal(4, i) : NAN);
        for (int64_t l = 0; l < k; l++)
            sum += value(a[i / n * k + l], fa) * value(b[i % n * k + l], E4M3);
        put(want, i, out, sum * (inverse[0] * inverse[1]) + (acc ? get(c, i, out) : get(bias, i % n, out)));
    }
    d->fp8_matmul(d, mat(c, m, n, out), (Mat8){a, m, k, fa, &inverse[0]}, (Mat8){b, n, k, E4M3, &inverse[1]},
                  acc ? (Mat){.type = out} : mat(bias, 1, n, out), acc);
    for (int64_t i = 0; i < m * n; i++) {
        double e = fabs(get(c, i, out) - get(want, i, out)) / (1 + sqrt((double)k));
        worst = e > worst || isnan(e) ? e : worst;
    }
    CHECK(worst <= unit, "%s %ld x %ld x %ld to %s: off by %g", d->isa, m, n, k, dtype_name(out), worst);
    free(a);
    free(b);
    free(c);
    free(want);
}

int main(int argc, char **argv)
{
    static const float by[] = {1, 0x1p-9f, 3.7f, 0x1p20f};
    int few = test_few(), step = few ? 5 : 1, rows = few ? 130 : 300, cols = few ? 400 : 656;
    codes();
    for (int i = 0; i < ISAS; i++)
        for (int threads = 1; isa_wanted(i, argc, argv) && threads < (few ? 2 : 4); threads += 2) {
            Device d;
            cpu_open(&d, F32, isa_names[i], threads);
            for (int k = 0; k < 16; k += step)
                casts(&d, k & 1 ? F16 : BF16, formats[k >> 1 & 1], by[k >> 2]);
            for (int k = 0; k < 48; k += step)
                activations(&d, (ActKind)(k % 6), k % 4 < 2 ? BF16 : F16, scalings[k / 12]);
            for (int k = 0; k < 16; k += step)
                norms(&d, k & 1 ? NORM_RMS : NORM_LAYER, k & 2 ? F16 : BF16, k % 3,
                      scalings[(k + k / 4) % 4]);
            for (int k = 0; k < 32; k += step)
                blocks(&d, k & 16 ? rows : 77, k & 8 ? cols : 128, k & 1 ? F16 : BF16, formats[k >> 1 & 1],
                       k & 4 ? FP8_SQUARES : FP8_VECTORS, (k + k / 8) % 4);
            for (int k = 0; k < 16; k += step)
                blocks(&d, k & 8 ? rows : 77, k & 4 ? cols : 96, k & 1 ? F16 : BF16, formats[k >> 1 & 1],
                       FP8_MX, (k + k / 4) % 4);
            blocks_nan(&d);
            blocks_product(&d, 45, 272, 416, FP8_MX, F32, 0);
            blocks_product(&d, few ? 33 : 130, 144, few ? 544 : 1312, FP8_MX, F32, 1);
            blocks_product(&d, 33, 48, 2080, FP8_MX, BF16, 0);
            blocks_product(&d, 45, 272, 400, FP8_SQUARES, F32, 0);
            blocks_product(&d, few ? 33 : 130, 144, few ? 528 : 1296, FP8_VECTORS, F32, 1);
            blocks_product(&d, 33, 48, 2064, FP8_SQUARES, BF16, 0);
            scales(&d, 0);
            scales(&d, 1);
            for (int k = 0; k < 4; k++)
                small_scales(&d, formats[k & 1], scalings[k >> 1]);
            product(&d, 1, 16, 16, E4M3, F32, 0);
            product(&d, 45, 112, 80, E5M2, BF16, 0);
            product(&d, 112, 80, 48, E5M2, F32, 1);
            product(&d, 33, 48, 1040, E4M3, F16, 0);
            product(&d, 33, 48, few ? 1104 : 4112, E4M3, BF16, 1);
            cpu_close(&d);
        }
    return test_end();
}
