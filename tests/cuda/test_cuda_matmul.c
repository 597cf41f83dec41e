/* test_cuda_matmul -- matrix products on the GPU against the CPU's, which test_gemm and test_ops check
 *
 * Thin and large, every transpose, odd leading dimensions and starts, accumulating and overwriting,
 * every epilogue, with and without the library's fused kernels. Memory beside a matrix must not
 * change. */
#include "cuda_pairs.h"
#include "lt.h"
#include "products.h"

static const Dtype storage[] = {F32, BF16, F16};

static int64_t draw_size(uint64_t *s)
{
    static const int64_t some[] = {1, 2, 3, 8, 15, 16, 33, 64, 70, 129};
    return some[draw(s, sizeof some / sizeof *some)];
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
        /* the library may round a product of 16 bits before it adds the bias (13.1 on an H200 does) */
        cpu.linear(&cpu, y.host, x.host, w.host, none);
        double rounded = with && out != F32 ? tolerance(out, K) / 2 * largest_of(&y) : 0;
        cpu.linear(&cpu, y.host, x.host, w.host, with ? b.host : none);
        gpu.linear(&gpu, y.dev, x.dev, w.dev, with ? b.dev : none);
        double e = difference(&y);
        CHECK(e <= tolerance(out, K) + rounded, "%s T %lld in %lld out %lld bias %d to %s: off by %g",
              dtype_name(in), (long long)T, (long long)K, (long long)N, with, dtype_name(out), e);
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
    for (int i = 0; i < 61; i++) {
        Dtype t = storage[i % 3];
        int64_t T = draw_size(&s), K = draw_size(&s), N = draw_size(&s);
        int with = (int)draw(&s, 3) > 0, acc = i % 4 > 0;
        if (i == 60)               /* a bias that is too long for an epilogue */
            K = 2, N = LT_VECTOR / 4 + 8, with = 1;
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
    int64_t each = 64 * 48 + 64 * 32 + 48 * 32 + 48, most = 2 * each + 4 * 256;
    int64_t sets = (int64_t)cuda_of(&gpu)->l2 * 4 / most;
    size_t bytes = (size_t)(sets + 8) * (size_t)most;
    void *room = gpu.take(&gpu, bytes);
    null_open(&counting, F32);
    products_watch(&counting, &p);
    counting.linear(&counting, mat(NULL, 64, 48, BF16), mat(NULL, 64, 32, BF16), mat(NULL, 48, 32, BF16),
                    mat(NULL, 1, 48, BF16));
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
