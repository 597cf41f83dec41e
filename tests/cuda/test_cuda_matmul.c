/* test_cuda_matmul -- matrix products on the GPU against the CPU's, which test_gemm and test_ops check
 *
 * Thin and large, every transpose, odd leading dimensions and starts, accumulating and overwriting,
 * every epilogue, with and without the library's fused kernels. Memory beside a matrix must not
 * change. */
#include "linear.h"
#include "cuda.h"
#include "lt.h"
#include "products.h"
#include "ops.h"

static Device cpu, gpu;
static const Mat none;
static const Dtype storage[] = {F32, BF16, F16};

static uint64_t draw(uint64_t *s, uint64_t n)
{
    return philox(0x6d61746d, (*s)++, 0).v[0] % n;
}
static int64_t draw_size(uint64_t *s)
{
    static const int64_t some[] = {1, 2, 3, 8, 15, 16, 33, 64, 70, 129};
    return some[draw(s, sizeof some / sizeof *some)];
}

/* A matrix on CPU and GPU. It starts `skew` elements into its memory, and `pad` elements lie between its
 * rows; elements around the matrix hold 7. */
typedef struct { Mat host, dev; void *base, *dev_base; size_t bytes; } Pair;

static Pair pair_open(int64_t rows, int64_t cols, int64_t pad, int64_t skew, Dtype t, uint64_t stream,
                      double scale)
{
    int64_t ld = cols + pad, n = skew + rows * ld + 8;
    Pair p = {.bytes = (size_t)n * dtype_size(t)};
    p.base = xcalloc(1, p.bytes);
    p.dev_base = gpu.take(&gpu, p.bytes);
    for (int64_t i = 0; i < n; i++)
        put(p.base, i, t, 7);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            put(p.base, skew + r * ld + c, t, scale * normal(stream, r * cols + c));
    size_t at = (size_t)skew * dtype_size(t);
    p.host = (Mat){(char *)p.base + at, rows, cols, ld, t};
    p.dev = (Mat){(char *)p.dev_base + at, rows, cols, ld, t};
    gpu.put(&gpu, p.dev_base, p.base, p.bytes);
    return p;
}
static void pair_close(Pair *p)
{
    gpu.give(&gpu, p->dev_base, p->bytes);
    free(p->base);
}

/* Largest difference between GPU and CPU, divided by 1 + |the CPU's value|; infinite when an element
 * beside the matrix has changed. */
static double difference(const Pair *p)
{
    void *got = xcalloc(1, p->bytes);
    Dtype t = p->host.type;
    int64_t skew = ((char *)p->host.p - (char *)p->base) / (int64_t)dtype_size(t);
    int64_t n = (int64_t)(p->bytes / dtype_size(t));
    double worst = 0;
    gpu.get(&gpu, got, p->dev_base, p->bytes);
    for (int64_t i = 0; i < n; i++) {
        double x = get(p->base, i, t), y = get(got, i, t), e = fabs(x - y) / (1 + fabs(x));
        int64_t at = i - skew,
                inside = at >= 0 && at < p->host.rows * p->host.ld && at % p->host.ld < p->host.cols;
        if (!(e <= worst))
            worst = inside && !isnan(e) ? e : INFINITY;
        if (!inside && x != y)
            worst = INFINITY;
    }
    free(got);
    return worst;
}

/* Limit of difference: error of sums of k products of numbers around 1, added in another order, plus the
 * rounding of the output type. */
static double tolerance(Dtype out, int64_t k)
{
    double round = out == F32 ? 0 : out == BF16 ? 0x1p-7 : 0x1p-10;
    return round + 1e-6 * sqrt((double)k + 16);
}

static void test_products(void)
{
    uint64_t s = 1;
    for (int i = 0; i < 240; i++) {
        Dtype in = storage[i % 3], out = draw(&s, 2) ? F32 : in;
        int64_t m = draw_size(&s), n = draw_size(&s), k = draw_size(&s);
        int ta = (int)draw(&s, 2), tb = (int)draw(&s, 2), acc = (int)draw(&s, 2);
        int64_t pad[3], skew[3];
        for (int j = 0; j < 3; j++) {
            pad[j] = draw(&s, 2) ? (int64_t)draw(&s, 9) : 0;
            skew[j] = draw(&s, 2) ? (int64_t)draw(&s, 9) : 0;
        }
        Pair a = pair_open(ta ? k : m, ta ? m : k, pad[0], skew[0], in, 10 * s, 1);
        Pair b = pair_open(tb ? n : k, tb ? k : n, pad[1], skew[1], in, 10 * s + 1, 1);
        Pair c = pair_open(m, n, pad[2], skew[2], out, 10 * s + 2, acc ? 1 : NAN);
        cpu.matmul(&cpu, c.host, a.host, ta, b.host, tb, acc);
        gpu.matmul(&gpu, c.dev, a.dev, ta, b.dev, tb, acc);
        double e = difference(&c);
        CHECK(e <= tolerance(out, k), "%s %lld x %lld x %lld ta %d tb %d acc %d to %s: off by %g",
              dtype_name(in), (long long)m, (long long)n, (long long)k, ta, tb, acc, dtype_name(out), e);
        pair_close(&a);
        pair_close(&b);
        pair_close(&c);
    }
}

static void test_empty(void)
{
    Pair a = pair_open(5, 4, 0, 0, BF16, 1, 1), b = pair_open(6, 4, 0, 0, BF16, 2, 1);
    Pair c = pair_open(5, 6, 3, 0, F32, 3, 1);
    gpu.matmul(&gpu, mat_rows(c.dev, 0, 0), mat_rows(a.dev, 0, 0), 0, b.dev, 1, 0);
    gpu.matmul(&gpu, c.dev, mat_cols(a.dev, 0, 0), 0, mat_cols(b.dev, 0, 0), 1, 1);
    gpu.matmul(&gpu, c.dev, mat_rows(mat(a.dev.p, 4, 5, BF16), 0, 0), 1,
               mat_rows(mat(b.dev.p, 4, 6, BF16), 0, 0), 0, 1);
    CHECK(difference(&c) == 0, "a product without terms has changed what it is added to");
    gpu.matmul(&gpu, c.dev, mat_cols(a.dev, 0, 0), 0, mat_cols(b.dev, 0, 0), 1, 0);
    for (int r = 0; r < 5; r++)
        memset(mat_at(c.host, r, 0), 0, 6 * 4);
    CHECK(difference(&c) == 0, "a sum without terms is not 0");
    pair_close(&a);
    pair_close(&b);
    pair_close(&c);
}

static void test_linear(void)
{
    uint64_t s = 1000;
    for (int i = 0; i < 120; i++) {
        Dtype in = storage[i % 3], out = draw(&s, 3) ? in : F32;
        int64_t T = draw_size(&s), K = draw_size(&s), N = draw_size(&s);
        int with = (int)draw(&s, 4) > 0;
        int64_t pad_x = (int64_t)draw(&s, 3), pad_y = (int64_t)draw(&s, 3), skew = (int64_t)draw(&s, 2) * 8;
        Pair x = pair_open(T, K, pad_x, 0, in, 10 * s, 1), w = pair_open(N, K, 0, 0, in, 10 * s + 1, 1);
        Pair y = pair_open(T, N, pad_y, 0, out, 0, NAN), b = pair_open(1, N, 0, skew, in, 7, 3);
        cpu.linear(&cpu, y.host, x.host, w.host, with ? b.host : none);
        gpu.linear(&gpu, y.dev, x.dev, w.dev, with ? b.dev : none);
        double e = difference(&y);
        CHECK(e <= tolerance(out, K), "%s T %lld in %lld out %lld bias %d to %s: off by %g", dtype_name(in),
              (long long)T, (long long)K, (long long)N, with, dtype_name(out), e);
        pair_close(&x);
        pair_close(&w);
        pair_close(&y);
        pair_close(&b);
    }
}

static const ActKind kinds[] = {ACT_GELU_TANH, ACT_GELU, ACT_SWIGLU, ACT_GELU_TANH, ACT_RELU, ACT_GELU_TANH};

/* Feed-forward layers: the linear layer with its activation, then its gradients. Every second layer has
 * sizes for which the library has fused kernels. */
static void test_feed_forward(void)
{
    uint64_t s = 2000;
    for (int i = 0; i < 72; i++) {
        Dtype t = storage[i % 3];
        ActKind kind = kinds[draw(&s, sizeof kinds / sizeof *kinds)];
        int odd = i & 1, with = (int)draw(&s, 3) > 0, in_place = (int)draw(&s, 2) || act_gated(kind);
        int64_t T = draw_size(&s), K = odd ? draw_size(&s) : 64,
                F = odd ? draw_size(&s) : 8 + 8 * (int64_t)draw(&s, 9);
        int64_t H = act_gated(kind) ? 2 * F : F;
        Pair x = pair_open(T, K, 0, 0, t, 10 * s, 1), w = pair_open(H, K, 0, 0, t, 10 * s + 1, 0.2);
        Pair b = pair_open(1, H, 0, 0, t, 10 * s + 2, 1), h = pair_open(T, H, 0, 0, t, 0, NAN);
        Pair a = pair_open(T, F, odd ? 3 : 0, 0, t, 0, NAN);
        Mat hb = with ? b.host : none, db = with ? b.dev : none;
        cpu.linear_act_fwd(&cpu, a.host, h.host, x.host, w.host, hb, kind);
        gpu.linear_act_fwd(&gpu, a.dev, h.dev, x.dev, w.dev, db, kind);
        double eh = difference(&h), ea = difference(&a);
        CHECK(eh <= tolerance(t, K), "%s %d: h is off by %g", dtype_name(t), kind, eh);
        CHECK(ea <= 2 * tolerance(t, K), "%s %d T %lld in %lld F %lld: act(h) is off by %g", dtype_name(t),
              kind, (long long)T, (long long)K, (long long)F, ea);
        Pair dy = pair_open(T, K, 0, 0, t, 10 * s + 3, 1), w2 = pair_open(K, F, 0, 0, t, 10 * s + 4, 0.2);
        Pair da = pair_open(T, F, 0, 0, t, 0, NAN);
        gpu.put(&gpu, h.dev_base, h.base, h.bytes);
        cpu.linear_act_bwd_x(&cpu, in_place ? h.host : da.host, da.host, dy.host, w2.host, h.host, kind);
        gpu.linear_act_bwd_x(&gpu, in_place ? h.dev : da.dev, da.dev, dy.dev, w2.dev, h.dev, kind);
        double e = difference(in_place ? &h : &da);
        CHECK(e <= 2 * tolerance(t, K), "%s %d T %lld out %lld F %lld in place %d: dh is off by %g",
              dtype_name(t), kind, (long long)T, (long long)K, (long long)F, in_place, e);
        Pair *all[] = {&x, &w, &b, &h, &a, &dy, &w2, &da};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            pair_close(all[k]);
    }
}

/* Weight and bias gradients, which are added to the values before, or overwrite those of weights. */
static void test_weights(void)
{
    uint64_t s = 3000;
    for (int i = 0; i < 60; i++) {
        Dtype t = storage[i % 3];
        int64_t T = draw_size(&s), K = draw_size(&s), N = draw_size(&s);
        int with = (int)draw(&s, 3) > 0, acc = i % 4 > 0;
        Pair x = pair_open(T, K, 0, 0, t, 10 * s, 1), dy = pair_open(T, N, 0, 0, t, 10 * s + 1, 1);
        Dtype type = t == BF16 && i % 2 ? BF16 : F32;
        double most = tolerance(type, T);
        Pair dw = pair_open(N, K, 0, 0, type, 10 * s + 2, acc ? 1 : NAN);
        Pair db = pair_open(1, N, 0, 0, type, 10 * s + 3, 1);
        cpu.linear_bwd_w(&cpu, dw.host, with ? db.host : none, dy.host, x.host, acc);
        gpu.linear_bwd_w(&gpu, dw.dev, with ? db.dev : none, dy.dev, x.dev, acc);
        double ew = difference(&dw), eb = difference(&db);
        CHECK(ew <= most, "%s T %lld in %lld out %lld: dw is off by %g", dtype_name(t),
              (long long)T, (long long)K, (long long)N, ew);
        CHECK(eb <= 2 * most, "%s T %lld out %lld bias %d: db is off by %g", dtype_name(t),
              (long long)T, (long long)N, with, eb);
        pair_close(&x);
        pair_close(&dy);
        pair_close(&dw);
        pair_close(&db);
    }
}

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

static double cell(const Pair *p, int64_t i)
{
    return get(p->host.p, i / p->host.cols * p->host.ld + i % p->host.cols, p->host.type);
}
static double largest_of(const Pair *p)
{
    double largest = 0;
    for (int64_t i = 0; i < p->host.rows * p->host.cols; i++)
        largest = fmax(largest, fabs(cell(p, i)));
    return largest;
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
    Eight e = {.bytes = (size_t)(fp8_padded(rows) * cols)};
    e.x = pair_open(rows, cols, 8 * (int64_t)(stream % 3), 0, t, stream, size);
    e.want = xcalloc((size_t)(rows * cols), sizeof *e.want);
    e.inverse = round_all(&e, f, scale);
    e.scale = gpu.take(&gpu, sizeof *e.scale);
    e.rows = (Mat8){gpu.take(&gpu, e.bytes), rows, cols, f, &e.scale->inverse};
    e.cols = (Mat8){gpu.take(&gpu, e.bytes), cols, fp8_padded(rows), f, &e.scale->inverse};
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
        Eight a = eight_open(m, k, t, 10 * s, ldexp(1, (int)draw(&s, 9) - 6), fa, 0);
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
        CHECK(e <= tolerance(out, k), "FP8 %lld x %lld x %lld to %s: off by %g", (long long)m, (long long)n,
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
    CHECK(e[0] <= tolerance(BF16, IN) && e[1] <= tolerance(BF16, OUT), "y is off by %g, dx by %g", e[0],
          e[1]);
    CHECK(e[2] <= tolerance(F32, T) && e[3] <= tolerance(F32, T), "dw is off by %g, db by %g", e[2], e[3]);
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
static void test_layer_turned(int delayed)
{
    enum { T = 48, IN = 80, OUT = 112 };
    Arena scratch = {.name = "scratch", .size = 1 << 17};
    scratch.base = gpu.take(&gpu, scratch.size);
    Eight x = eight_open(T, IN, BF16, 80, 2, E4M3, 0), other = eight_open(T, IN, BF16, 81, 90, E4M3, 0);
    Eight w = eight_open(OUT, IN, BF16, 82, 0.5, E4M3, 0), dy = eight_open(T, OUT, BF16, 83, 3, E5M2, 0);
    Pair y = pair_open(T, OUT, 0, 0, BF16, 0, NAN), dx = pair_open(T, IN, 0, 0, BF16, 0, NAN);
    Pair dw[] = {pair_open(OUT, IN, 0, 0, F32, 84, 1), pair_open(OUT, IN, 0, 0, F32, 84, 1)};
    Mat none = {.type = BF16}, no_bias = {.type = F32}, gone = x.x.dev;
    gone.p = NULL;
    for (int turned = 0; turned < 2; turned++) {
        Fp8Turned xt = linear_turned(&scratch, T, IN), dyt = linear_turned(&scratch, T, OUT);
        Precision p = {x.scale, w.scale, dy.scale, .fp8 = 1, .delayed = delayed}, with = p;
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
    CHECK(!memcmp(got[0], got[1], sizeof got[0]), "delayed %d: dw from kept copies has other bits", delayed);
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
        Eight e = eight_open(rows, cols, t, 10 * s, ldexp(1, (int)draw(&s, 18) - 12), f, 1);
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

/* fp8_act gives the bytes and the scale of a matrix that act_fwd or act_bwd has stored. */
static void test_fp8_act(void)
{
    uint64_t s = 4600;
    for (int i = 0; i < 48; i++) {
        ActKind kind = (ActKind)(i % 6);
        Dtype t = draw(&s, 2) ? F16 : BF16;
        int64_t rows = 1 + (int)draw(&s, 150), f = 16 + 16 * (int)draw(&s, 12), wide = act_width(kind, f);
        int back = i / 6 % 2, delayed = i / 12 % 2;
        size_t bytes = (size_t)(fp8_padded(rows) * wide);
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
        gpu.fp8_cast(&gpu, y, y + bytes, out.dev, scale, back ? E5M2 : E4M3, delayed);
        gpu.fp8_act(&gpu, y + 2 * bytes, y + 3 * bytes, back ? da.dev : none, h.dev, kind, scale + 1,
                    delayed);
        gpu.get(&gpu, got, scale, sizeof got);
        gpu.get(&gpu, host, y, 4 * bytes);
        CHECK(!memcmp(host, host + 2 * bytes, 2 * bytes) && !memcmp(&got[0], &got[1], sizeof got[0]),
              "%d x %d %s, activation %d, backward %d, delayed %d: other bytes than stored", (int)rows,
              (int)f, dtype_name(t), kind, back, delayed);
        gpu.give(&gpu, y, 4 * bytes);
        gpu.give(&gpu, scale, 2 * sizeof *scale);
        free(host);
        pair_close(&h);
        pair_close(&da);
        pair_close(&out);
    }
}

/* A product has the same bits again after another product has left its numbers in the workspace. */
static void test_bits(void)
{
    Pair a = pair_open(70, 129, 0, 0, BF16, 1, 1), b = pair_open(64, 129, 0, 0, BF16, 2, 1);
    Pair c = pair_open(70, 64, 0, 0, F32, 3, 1), e = pair_open(70, 64, 0, 0, F32, 4, 1);
    float *x = xcalloc(70 * 64, 4), *y = xcalloc(70 * 64, 4);
    gpu.matmul(&gpu, c.dev, a.dev, 0, b.dev, 1, 0);
    gpu.matmul(&gpu, e.dev, a.dev, 0, b.dev, 1, 1);
    gpu.get(&gpu, x, c.dev.p, 70 * 64 * 4);
    gpu.matmul(&gpu, c.dev, a.dev, 0, b.dev, 1, 0);
    gpu.get(&gpu, y, c.dev.p, 70 * 64 * 4);
    CHECK(!memcmp(x, y, 70 * 64 * 4), "the same product has other bits the second time");
    free(x);
    free(y);
    pair_close(&a);
    pair_close(&b);
    pair_close(&c);
    pair_close(&e);
}

/* Algorithms of test_tune. A run records its products by shape before its first step and times each
 * once. The next run takes the found algorithms (known), unless the library refuses them (broken). */
static Algorithms known, broken;

/* 1: the list has an algorithm with this epilogue. */
static int has_epilogue(const Algorithms *a, int epilogue)
{
    char text[32];
    snprintf(text, sizeof text, " epilogue %d ", epilogue);
    for (int64_t i = 0; i < a->n; i++)
        if (strstr(a->list[i].key, text))
            return 1;
    return 0;
}

static void test_tune(void)
{
    Device counting, next;
    Products p = {0};
    size_t bytes = 1 << 20;
    char *memory = gpu.take(&gpu, bytes), *got = xcalloc(1, bytes);
    Mat a = mat(NULL, 37, 53, BF16), b = mat(NULL, 41, 53, BF16);
    Mat c = mat(NULL, 37, 41, F32), bias = mat(NULL, 1, 41, F32);
    null_open(&counting, F32);
    products_watch(&counting, &p);
    for (int i = 0; i < 3; i++) {
        counting.matmul(&counting, c, a, 0, b, 1, 1);
        counting.linear(&counting, c, a, b, i == 2 ? none : bias);
        counting.linear_bwd_w(&counting, mat(NULL, 41, 53, F32), bias, mat(NULL, 37, 41, BF16), a, 1);
    }
    CHECK(p.n == 4, "%lld products of 4 shapes", (long long)p.n);
    cuda_tune(&gpu, &p, &known, 8, memory, bytes);
    gpu.get(&gpu, got, memory, bytes);
    size_t dirty = 0;
    for (size_t i = 0; i < bytes; i++)
        dirty += got[i] != 0;
    int64_t all = 4 + has_epilogue(&known, 512);       /* the bias gradient: with its epilogue and without */
    CHECK(known.n == all && !dirty, "%lld algorithms, %zu bytes are not 0", (long long)known.n, dirty);
    cuda_tune(&gpu, &p, &known, 8, memory, bytes);
    CHECK(known.n == all, "what was known was timed again");
    for (int64_t i = 0; i < known.n; i++) {
        algorithms_add(&broken, &known.list[i]);
        broken.list[i].words[1] ^= 1;
    }
    cuda_open(&next, F32, 0);
    void *room = next.take(&next, bytes);
    cuda_tune(&next, &p, &broken, 1, room, bytes);
    CHECK(broken.n == all, "more candidates were timed than asked for");
    next.sync(&next);
    next.give(&next, room, bytes);
    cuda_close(&next);
    gpu.give(&gpu, memory, bytes);
    products_close(&p);
    free(got);
}

/* What the recorded calls of the library were given. */
enum { CALLS = 64 };
static struct { const char *a, *b, *c, *bias; } called[CALLS];
static int calls;
static const char *bias_now;

static cublasStatus_t record_set(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t which,
                                 const void *value, size_t bytes)
{
    if (which == CUBLASLT_MATMUL_DESC_BIAS_POINTER)
        memcpy(&bias_now, value, sizeof bias_now);
    return lt_api()->cublasLtMatmulDescSetAttribute(d, which, value, bytes);
}

static cublasStatus_t record_call(cublasLtHandle_t h, cublasLtMatmulDesc_t p, const void *alpha,
                                  const void *a, cublasLtMatrixLayout_t la, const void *b,
                                  cublasLtMatrixLayout_t lb, const void *beta, const void *c,
                                  cublasLtMatrixLayout_t lc, void *d, cublasLtMatrixLayout_t ld,
                                  const cublasLtMatmulAlgo_t *algo, void *workspace, size_t bytes,
                                  cudaStream_t s)
{
    if (calls < CALLS) {
        called[calls].a = b, called[calls].b = a, called[calls].c = d, called[calls].bias = bias_now;
        calls++;
    }
    return lt_api()->cublasLtMatmul(h, p, alpha, a, la, b, lb, beta, c, lc, d, ld, algo, workspace, bytes,
                                    s);
}

/* Timed calls take their operands from one set after the other, all operands of a call from the same set;
 * the product itself has its own operands. */
static void test_rotate(void)
{
    enum { M = 16, N = 24, K = 32, SETS = 3, WORK = 2 << 20 };
    const size_t at[] = {0, 1024, 3072, 6144}, stride = 8192;
    LtApi api = *lt_api();
    cudaStream_t s;
    Algorithms list = {0};
    char *work = gpu.take(&gpu, WORK), *base = gpu.take(&gpu, SETS * stride);
    api.cublasLtMatmul = record_call;
    api.cublasLtMatmulDescSetAttribute = record_set;
    CUDA_OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    gpu.sync(&gpu);
    Lt *lt = lt_open(&api, "a GPU", s, work, WORK);
    LtProduct q = {.a = {base + at[0], M, K, K, CUDA_R_16BF}, .b = {base + at[1], N, K, K, CUDA_R_16BF},
                   .tb = 1, .c = {base + at[2], M, N, N, CUDA_R_16BF}, .epilogue = CUBLASLT_EPILOGUE_BIAS,
                   .vector = base + at[3]};
    lt_tune(lt, &list, 8);
    lt_rotate(lt, base, stride, SETS);
    lt_multiply(lt, &q);
    CUDA_OK(cudaStreamSynchronize(s));
    CHECK(list.n == 1 && calls > 2 * SETS, "%d calls, %lld algorithms", calls, (long long)list.n);
    for (int i = 0; i < calls; i++) {
        const char *set = base + (i < calls - 1 ? (size_t)(i % SETS) * stride : 0);
        CHECK(called[i].a == set + at[0] && called[i].b == set + at[1] && called[i].c == set + at[2] &&
                  called[i].bias == set + at[3],
              "call %d of %d: operands at %td %td %td %td of set %d", i, calls, called[i].a - set,
              called[i].b - set, called[i].c - set, called[i].bias - set, i % SETS);
    }
    lt_close(lt);
    CUDA_OK(cudaStreamDestroy(s));
    gpu.give(&gpu, work, WORK);
    gpu.give(&gpu, base, SETS * stride);
    algorithms_close(&list);
}

/* Operands that cuda_tune has drawn, and their numbers. */
static int64_t drawn, numbers_drawn;
static void (*normals_op)(Device *d, Mat y, Mat rest, double mean, double std, uint64_t key, int64_t first,
                          int64_t step);
static void count_normals(Device *d, Mat y, Mat rest, double mean, double std, uint64_t key, int64_t first,
                          int64_t step)
{
    drawn++;
    numbers_drawn += y.rows * y.cols;
    normals_op(d, y, rest, mean, std, key, first, step);
}

static void test_random(void)
{
    Device counting;
    Products p = {0};
    Algorithms list = {0};
    size_t bytes = 1 << 20;
    void *room = gpu.take(&gpu, bytes);
    null_open(&counting, F32);
    products_watch(&counting, &p);
    counting.linear(&counting, mat(NULL, 64, 48, BF16), mat(NULL, 64, 32, BF16), mat(NULL, 48, 32, BF16),
                    mat(NULL, 1, 48, BF16));
    int64_t each = 64 * 48 + 64 * 32 + 48 * 32 + 48, sets = (int64_t)cuda_of(&gpu)->l2 * 4 / (2 * each);
    normals_op = gpu.normals;
    gpu.normals = count_normals;
    cuda_tune(&gpu, &p, &list, 1, room, bytes);
    CHECK(!drawn, "%lld operands were drawn for nothing", (long long)drawn);
    cuda_tune(&gpu, &p, &list, 8, room, bytes);
    CHECK(drawn >= 4 * sets && numbers_drawn == drawn / 4 * each,
          "%lld operands, %lld numbers; %lld of %lld sets", (long long)drawn, (long long)numbers_drawn,
          (long long)each, (long long)sets);
    gpu.normals = normals_op;
    gpu.sync(&gpu);
    gpu.give(&gpu, room, bytes);
    products_close(&p);
    algorithms_close(&list);
}

static int64_t passes,                     /* activations computed in a pass of their own */
    summed;                                /* rows whose bias gradient was computed in a pass of its own */
static void (*bias_bwd)(Device *d, Mat db, Mat dy), (*act_fwd)(Device *d, Mat a, Mat h, ActKind kind);
static void (*act_bwd)(Device *d, Mat dh, Mat da, Mat h, ActKind kind);
static void count_bias(Device *d, Mat db, Mat dy) { summed += dy.rows; bias_bwd(d, db, dy); }
static void count_fwd(Device *d, Mat a, Mat h, ActKind kind) { passes++; act_fwd(d, a, h, kind); }
static void count_bwd(Device *d, Mat dh, Mat da, Mat h, ActKind kind)
{
    passes++;
    act_bwd(d, dh, da, h, kind);
}

/* An epilogue is used unless it is slower than the plain product and the pass that it replaces. */
static void test_pays(void)
{
    enum { T = 48, IN = 64, OUT = 80 };
    Device counting, timed;
    Products p = {0};
    size_t bytes = 1 << 20;
    Mat x = mat(NULL, T, IN, BF16), w = mat(NULL, OUT, IN, BF16), b = mat(NULL, 1, OUT, BF16);
    Mat y = mat(NULL, T, OUT, BF16);
    null_open(&counting, F32);
    products_watch(&counting, &p);
    counting.linear_act_fwd(&counting, y, y, x, w, b, ACT_GELU_TANH);
    counting.linear_act_bwd_x(&counting, x, x, y, w, x, ACT_GELU_TANH);
    counting.linear_bwd_w(&counting, mat(NULL, OUT, IN, F32), mat(NULL, 1, OUT, F32), y, x, 1);
    for (int slow = 0; slow < 2; slow++) {
        Algorithms list = {0};
        cuda_open(&timed, F32, 0);
        void *room = timed.take(&timed, bytes);
        cuda_tune(&timed, &p, &list, 8, room, bytes);
        for (int64_t i = 0; i < list.n; i++) {
            int fused = !strstr(list.list[i].key, "epilogue 1 ") && !strstr(list.list[i].key, "epilogue 4 ");
            list.list[i].us = slow && fused ? 100 : 1;
        }
        int64_t n = list.n;
        timed.give(&timed, room, bytes);
        cuda_close(&timed);
        cuda_open(&timed, F32, 0);
        room = timed.take(&timed, bytes);
        bias_bwd = timed.bias_bwd, act_fwd = timed.act_fwd, act_bwd = timed.act_bwd;
        timed.bias_bwd = count_bias, timed.act_fwd = count_fwd, timed.act_bwd = count_bwd;
        passes = summed = 0;
        cuda_tune(&timed, &p, &list, 8, room, bytes);
        int fused = slow ? 0 : has_epilogue(&list, 164) + has_epilogue(&list, 192);
        CHECK(passes == 2 - fused && summed == (!slow && has_epilogue(&list, 512) ? 0 : T) && list.n == n,
              "epilogues %s: %lld activations apart, %lld rows of bias gradients, %lld algorithms of %lld",
              slow ? "slow" : "fast", (long long)passes, (long long)summed, (long long)n, (long long)list.n);
        timed.sync(&timed);
        timed.give(&timed, room, bytes);
        cuda_close(&timed);
        algorithms_close(&list);
    }
    products_close(&p);
}

int main(void)
{
    cpu_open(&cpu, F32, test_isa(), 2);
    cuda_open(&gpu, F32, 0);
    test_products();
    test_empty();
    test_linear();
    test_feed_forward();
    test_weights();
    test_fp8();
    test_layer_fp8();
    test_layer_turned(0);
    test_layer_turned(1);
    test_delayed();
    test_fp8_twin();
    test_fp8_act();
    test_bits();
    test_tune();
    test_pays();
    test_rotate();
    test_random();
    cuda_close(&gpu);
    cpu_close(&cpu);
    algorithms_close(&known);
    algorithms_close(&broken);
    return test_end();
}
