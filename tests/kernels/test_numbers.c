/* test_numbers -- properties of the ops beside test_ops's table: every rounding of a conversion, the
 * accuracy of exp and erf, exact sums, bits that do not depend on where a shard is cut, the statistics
 * of dropout, odd logits
 *
 *   test_numbers [ISA]      only this instruction set */
#include "half.h"
#include "ops.h"
#include <sys/mman.h>

/* Conversions: every F16 and BF16 to F32 and back; F32 to F16 and BF16 near every rounding boundary, at the
 * ends of the range, and NaN. */
static void conversions(Device *d)
{
    static const Dtype half[] = {BF16, F16};
    enum { N = 65536 };
    uint16_t *h = xcalloc(N, 2), *back = xcalloc(N, 2);
    float *f = xcalloc(5 * N, 4);
    uint16_t *g = xcalloc(5 * N, 2);
    for (int t = 0; t < 2; t++) {
        for (int i = 0; i < N; i++)
            h[i] = (uint16_t)i;
        d->copy(d, mat(f, 1, N, F32), mat(h, 1, N, half[t]));
        d->copy(d, mat(back, 1, N, half[t]), mat(f, 1, N, F32));
        int wrong = 0, lost = 0;
        for (int i = 0; i < N; i++) {
            double x = get(h, i, half[t]);
            wrong += isnan(x) ? !isnan(f[i]) : (double)f[i] != x || !signbit(f[i]) != !signbit(x);
            lost += isnan(x) ? !isnan(get(back, i, half[t])) : back[i] != h[i];
        }
        CHECK(!wrong && !lost, "%s %s: %d wrong, %d lost on the way back", d->isa, dtype_name(half[t]), wrong,
              lost);
        /* each value, the middle to the next value and both neighbours of the middle, and a random
         * number */
        for (int i = 0; i < N; i++) {
            float x = (float)get(h, i, half[t]), next = (float)get(h, (i + 1) % N, half[t]);
            f[5 * i] = x;
            f[5 * i + 1] = nextafterf((x + next) / 2, -INFINITY);
            f[5 * i + 2] = (x + next) / 2;
            f[5 * i + 3] = nextafterf((x + next) / 2, INFINITY);
            f[5 * i + 4] = (float)ldexp(normal(1, i), i % 300 - 150);
        }
        f[1] = 65519.996f;
        f[3] = 65520.0f;
        d->copy(d, mat(g, 1, 5 * N, half[t]), mat(f, 1, 5 * N, F32));
        wrong = 0;
        for (int i = 0; i < 5 * N; i++) {
            double want = rounded(f[i], half[t]), got = get(g, i, half[t]);
            wrong += isnan(want) ? !isnan(got) : got != want || !signbit(got) != !signbit(want);
        }
        CHECK(!wrong, "%s %s: %d of %d roundings wrong", d->isa, dtype_name(half[t]), wrong, 5 * N);
    }
    free(h);
    free(back);
    free(f);
    free(g);
}

/* Accuracy of exp and erf in F32. xent_grad with statistics {0, 1, 0} gives dlogits = exp(x); gelu gives
 * x/2 (1 + erf(x / sqrt 2)). */
static void functions(Device *d)
{
    enum { N = 1 << 18 };
    float *x = xcalloc(N, 4), *y = xcalloc(N, 4), loss, stats[3] = {0, 1, 0};
    int32_t label = -1;
    for (int i = 0; i < N; i++)
        x[i] = -87.3f + 175.6f * (float)i / N;
    x[0] = -INFINITY, x[1] = NAN, x[2] = INFINITY, x[3] = 89, x[4] = -88, x[5] = 88.37f;
    Mat xm = mat(x, 1, N, F32), ym = mat(y, 1, N, F32);
    d->xent_grad(d, mat(&loss, 1, 1, F32), ym, xm, mat(stats, 1, 3, F32), &label, NULL, (RowMap){1, 0, 0}, 0,
                 N, 1);
    double worst = 0;
    for (int i = 5; i < N; i++) {
        double want = exp((double)x[i]);
        worst = worse(worst, fabs(y[i] - want) / ldexp(1, ilogb(want) - 23));
    }
    CHECK(worst < 2, "%s exp: %.2f units of the last place", d->isa, worst);
    CHECK(y[0] == 0 && isnan(y[1]) && y[2] == INFINITY && y[3] == INFINITY && y[4] == 0,
          "%s exp: ends %g %g %g %g %g", d->isa, y[0], y[1], y[2], y[3], y[4]);

    for (int i = 0; i < N; i++)
        x[i] = -8 + 16 * ((float)i + 0.5f) / N;
    d->act_fwd(d, ym, xm, ACT_GELU);
    worst = 0;
    for (int i = 0; i < N; i++)
        worst = worse(worst, fabs(y[i] / x[i] - 0.5 * erfc(-x[i] / sqrt(2))));
    CHECK(worst < 1.5e-7, "%s gelu: %g", d->isa, worst);
    free(x);
    free(y);
}

/* Every flipped bit changes the hash, so do two words that change places and a 0 that becomes -0; the number
 * of threads, and the instruction set, do not. */
static void hashes(Device *one, Device *two)
{
    enum { N = 300013 };
    uint64_t want = 0, again = 0, word;
    unsigned char *x = xcalloc(1, N);
    for (int64_t i = 0; i < N; i++)
        x[i] = (unsigned char)philox(3, (uint64_t)i, 0).v[0];
    for (int64_t k = 0; k < (N + 7) / 8; k++) {
        word = 0;
        memcpy(&word, x + 8 * k, k == N / 8 ? N % 8 : 8);
        want += HASH_WORD(k, word);
    }
    one->hash(one, &(Hashed){&again, x, N}, 1);
    CHECK(again == want, "%s hash", one->isa);
    two->hash(two, (Hashed[]){{&again, x, N}, {&again, x + 3, 5}, {&again, x + 3, 5}}, 3);
    word = 0;
    memcpy(&word, x + 3, 5);
    CHECK(again == 2 * (want + HASH_WORD(0, word)), "%s hash of a list", two->isa);
    int missed = 0;
    for (int64_t i = 0; i < 4000; i++) {
        int64_t bit = i < 2000 ? philox(4, (uint64_t)i, 0).v[0] % (8 * N) : 8 * N - 1 - (i - 2000);
        int64_t at = bit / 64 * 8, n = N - at < 64 ? N - at : 64;
        uint64_t before = again = 0;
        one->hash(one, &(Hashed){&before, x + at, n}, 1);
        x[bit / 8] ^= (unsigned char)(1 << bit % 8);
        one->hash(one, &(Hashed){&again, x + at, n}, 1);
        x[bit / 8] ^= (unsigned char)(1 << bit % 8);
        missed += again == before;
    }
    CHECK(!missed, "%s hash misses %d flipped bits", one->isa, missed);
    uint64_t two_words[] = {1, 2}, changed[] = {2, 1}, zero = 0, minus = 0;
    want = again = 0;
    one->hash(one, &(Hashed){&want, two_words, 16}, 1);
    one->hash(one, &(Hashed){&again, changed, 16}, 1);
    one->hash(one, &(Hashed){&zero, (float[]){0, 0}, 8}, 1);
    one->hash(one, &(Hashed){&minus, (float[]){0, -0.0f}, 8}, 1);
    CHECK(want != again && zero != minus, "%s hash of other words", one->isa);
    free(x);
}

static void sums(Device *one, Device *two, Dtype type)
{
    enum { N = 2 * SUMSQ_BLOCK + 777 };
    void *x = xcalloc(N, 8);
    double want[3] = {0}, total = 5;
    for (int64_t i = 0; i < N; i++) {
        put(x, i, type, normal(9, i));
        want[i / SUMSQ_BLOCK] += get(x, i, type) * get(x, i, type);
        total += i < 9 * 8 && i % 8 < 7 ? get(x, i, type) : 0;
    }
    /* one's sums of single blocks against F64; one's sum over two shards against two's sum of the whole */
    Exact whole = {0}, parts = {0};
    for (int k = 0; k < 3; k++) {
        int64_t at = k * SUMSQ_BLOCK, n = N - at < SUMSQ_BLOCK ? N - at : SUMSQ_BLOCK;
        Exact one_block = {0};
        one->squares(one, &(Squares){&one_block, (char *)x + (size_t)at * dtype_size(type), n}, 1, type);
        double got = exact_round(&one_block);
        CHECK(fabs(got - want[k]) < 1e-13 * want[k], "%s squares %s block %d: %g, want %g", one->isa,
              dtype_name(type), k, got, want[k]);
    }
    Squares cut[2] = {{&parts, (char *)x + SUMSQ_BLOCK * dtype_size(type), N - SUMSQ_BLOCK},
                      {&parts, x, SUMSQ_BLOCK}};
    two->squares(two, &(Squares){&whole, x, N}, 1, type);
    one->squares(one, cut, 2, type);
    one->carry(one, &parts, 1);
    two->carry(two, &whole, 1);
    CHECK(!memcmp(&whole, &parts, sizeof whole), "%s squares %s of shards", one->isa, dtype_name(type));
    double s = 5;
    one->sum(one, &s, (Mat){x, 9, 7, 8, type});
    double limit = one->real == F32 && type == F64 ? 1e-6 : 1e-12;
    CHECK(fabs(s - total) < limit * fabs(total), "%s sum %s: %g, want %g", one->isa, dtype_name(type), s,
          total);
    enum { WIDE = 200000 };            /* longer than the kernels' buffer of a row */
    void *wide = xcalloc(WIDE, 8);
    for (int64_t i = 0; i < WIDE; i++)
        put(wide, i, type, (double)(i % 3));
    s = 0;
    one->sum(one, &s, mat(wide, 1, WIDE, type));
    CHECK(s == WIDE - 1, "%s sum %s of one long row: %g", one->isa, dtype_name(type), s);
    free(wide);
    free(x);
}

/* Sums over rows of a tall and wide matrix. Its numbers are integers: the sums are exact in every order. */
static void column_sums(Device *d, int C)
{
    enum { R = 200 };
    float *x = xcalloc((size_t)R * (size_t)C, 4), *sum = xcalloc((size_t)C, 4);
    for (int i = 0; i < R * C; i++)
        x[i] = (float)(i % 7 + i % 11);
    d->bias_bwd(d, mat(sum, 1, C, F32), mat(x, R, C, F32));
    int wrong = 0;
    for (int c = 0; c < C; c++) {
        float want = 0;
        for (int r = 0; r < R; r++)
            want += x[r * C + c];
        wrong += sum[c] != want;
    }
    CHECK(!wrong, "%s bias_bwd: %d of %d columns wrong", d->isa, wrong, C);
    free(x);
    free(sum);
}

static void zeros(Device *d)
{
    size_t n = ((size_t)3 << 20) + 5;
    char *p = xcalloc(1, n + 2);
    memset(p, 1, n + 2);
    d->zero(d, p + 1, n);
    int left = 0;
    for (size_t i = 1; i <= n; i++)
        left += p[i] != 0;
    CHECK(!left && p[0] == 1 && p[n + 1] == 1, "%s zero: %d left", d->isa, left);
    d->zero(d, p, 0);
    CHECK(p[0] == 1, "zero of nothing");
    free(p);
}

/* The update of an element has the same bits wherever a shard is cut: F32, cuts at 1 to 39 elements. After a
 * verdict to stop nothing is updated. */
static void shards(Device *d)
{
    enum { N = 67 };
    float w[2][N], m[2][N], v[2][N], g[N];
    for (int cut = 1; cut < 40; cut++) {
        for (int i = 0; i < N; i++) {
            w[0][i] = w[1][i] = (float)normal(1, i);
            m[0][i] = m[1][i] = (float)normal(2, i);
            v[0][i] = v[1][i] = (float)fabs(normal(3, i));
            g[i] = (float)normal(4, i);
        }
        Updated whole = {.n = N, .w = w[0], .g = g, .m = m[0], .v = v[0], .wd = 0.1}, part[2] = {
            {.n = cut, .w = w[1], .g = g, .m = m[1], .v = v[1], .wd = 0.1},
            {.n = N - cut, .w = w[1] + cut, .g = g + cut, .m = m[1] + cut, .v = v[1] + cut, .wd = 0.1}};
        Update u = {.list = &whole, .count = 1, .verdict = &(Verdict){.multiplier = 0.3, .go = 1}, .lr = 0.01,
                    .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .bias1 = 0.1, .bias2 = 0.001}, p = u;
        p.list = part, p.count = 2;
        d->adam(d, &u);
        d->adam(d, &p);
        CHECK(!memcmp(w[0], w[1], sizeof w[0]) && !memcmp(m[0], m[1], sizeof m[0])
              && !memcmp(v[0], v[1], sizeof v[0]), "%s adam: a cut at %d changes bits", d->isa, cut);
        p.verdict = &(Verdict){.multiplier = 0.3, .go = 0};
        d->adam(d, &p);
        CHECK(!memcmp(w[0], w[1], sizeof w[0]) && !memcmp(m[0], m[1], sizeof m[0])
              && !memcmp(v[0], v[1], sizeof v[0]), "%s adam: updates after a verdict to stop", d->isa);
        u.verdict = &(Verdict){.multiplier = 0.3, .go = 1, .behind = 1};
        p.verdict = &(Verdict){.multiplier = 0.3, .go = 1};
        u.before1 = p.bias1 = 0.05, u.before2 = p.bias2 = 0.0005;
        d->adam(d, &u);
        d->adam(d, &p);
        CHECK(!memcmp(w[0], w[1], sizeof w[0]), "%s adam: t after a held step", d->isa);
    }
}

/* Masters in two halves: every bit comes back, and the weight is the nearest BF16, ties away from 0. Patterns
 * of bits over all of F32; the ends of ranges; NaN stays NaN. */
static void halves(void)
{
    static const uint32_t ends[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x3f808000, 0x3f818000, 0x7f7fffff,
                                    0x7f800000, 0x3f7fffff, 0x007fffff};
    int64_t wrong = 0, n = 0;
    for (uint64_t i = 0; i < 4u << 20; i++, n++) {
        uint32_t u = (uint32_t)(i * 0x9e3779b97f4a7c15ull >> 32), back;
        u = i < 24 ? ends[i / 2] | (uint32_t)i << 31 : u;
        float f, y, low, high;
        memcpy(&f, &u, 4);
        uint16_t w = master_weight(f);
        y = master_join(w, master_rest(f));
        memcpy(&back, &y, 4);
        if (isnan(f)) {
            wrong += !isnan(bf16_to_f32(w)) || !isnan(y);
            continue;
        }
        low = bf16_to_f32((uint16_t)(u >> 16)), high = bf16_to_f32((uint16_t)((u >> 16) + 1));
        int up = isinf(high) ? (u & 0xffff) >= 0x8000 : fabs((double)high - f) <= fabs((double)f - low);
        wrong += back != u || w != (uint16_t)((u >> 16) + (uint32_t)(up && !isinf(f)));
    }
    CHECK(!wrong, "%lld of %lld masters", (long long)wrong, (long long)n);
}

/* Every rule gives masters in two halves the bits of whole ones, at odd lengths and addresses; squares of
 * both are the same. */
static void updates_of_halves(Device *d)
{
    enum { N = 2100 };
    static float w[N], g[N], m[2][N], v[2][N], dir[2][N];
    static uint16_t weight[N + 1];
    static int16_t rest[N + 1];
    static const double trust = 1.3;
    for (int rule = 0; rule < 5; rule++) {
        int from = rule % 2;
        for (int i = 0; i < N; i++) {
            w[i] = (float)(normal(1, i) * (i % 3 ? 1 : 1e-3));
            weight[from + i] = master_weight(w[i]), rest[from + i] = master_rest(w[i]);
            g[i] = (float)normal(4, i);
            m[0][i] = m[1][i] = (float)normal(2, i);
            v[0][i] = v[1][i] = (float)fabs(normal(3, i));
        }
        Updated a = {.n = N, .w = w, .g = g, .m = m[0], .v = v[0], .dir = dir[0], .trust = &trust, .wd = 0.1},
                b = {.n = N, .rest = rest + from, .out = weight + from, .g = g, .m = m[1], .v = v[1],
                     .dir = dir[1], .trust = &trust, .wd = 0.1};
        Update u = {.list = &a, .count = 1, .out_type = BF16, .lr = 0.01, .beta1 = 0.9, .beta2 = 0.999,
                    .eps = 1e-8, .bias1 = 0.1, .bias2 = 0.001, .momentum = 0.9,
                    .verdict = &(Verdict){.multiplier = 0.3, .go = 1}};
        for (int k = 0; k < 2; k++, u.list = &b) {
            rule == 0   ? d->adam(d, &u)
            : rule == 1 ? d->sgd(d, &u)
            : rule == 2 ? d->lars(d, &u)
                        : d->lamb_direction(d, &u);
            if (rule == 4)
                d->lamb_apply(d, &u);
        }
        int64_t wrong = 0;
        for (int i = 0; i < N; i++) {
            float x = master_join(weight[from + i], rest[from + i]);
            wrong += memcmp(&x, &w[i], sizeof x) || weight[from + i] != master_weight(w[i]);
        }
        CHECK(!wrong && !memcmp(m[0], m[1], sizeof *m) && !memcmp(v[0], v[1], sizeof *v) &&
              !memcmp(dir[0], dir[1], sizeof *dir), "%s rule %d: %lld masters", d->isa, rule,
              (long long)wrong);
        Exact sum[2] = {{.bad = 0}, {.bad = 0}};
        d->squares(d, &(Squares){sum, w, N, NULL}, 1, F32);
        d->squares(d, &(Squares){sum + 1, weight + from, N, rest + from}, 1, F32);
        CHECK(!memcmp(sum, sum + 1, sizeof *sum), "%s rule %d: squares", d->isa, rule);
    }
}

/* Squares of a tensor that has more blocks than the kernels keep sums of at a time. The blocks before
 * the last two are zeros that nobody has written: their pages take no memory. */
static void squares_of_many(Device *d)
{
    const int64_t zeros = (int64_t)1 << 29, n = zeros + 2 * SUMSQ_BLOCK - 5;
    const int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    uint16_t *weight = mmap(NULL, 2 * (size_t)n, prot, flags, -1, 0);
    int16_t *rest = mmap(NULL, 2 * (size_t)n, prot, flags, -1, 0);
    Exact all = {0}, end = {0};
    if (weight != MAP_FAILED && rest != MAP_FAILED) {      /* else there is a limit on addresses */
        for (int64_t i = zeros; i < n; i++) {
            float w = (float)normal(6, i);
            weight[i] = master_weight(w), rest[i] = master_rest(w);
        }
        d->squares(d, &(Squares){&all, weight, n, rest}, 1, F32);
        d->squares(d, &(Squares){&end, weight + zeros, n - zeros, rest + zeros}, 1, F32);
        CHECK(!memcmp(&all, &end, sizeof all) && exact_round(&end) > 0, "%s: squares of %lld masters",
              d->isa, (long long)n);
    }
    munmap(weight, 2 * (size_t)n);
    munmap(rest, 2 * (size_t)n);
}

/* Dropout drops a share p of the elements; masks of different rows, columns and samples are independent. */
static void masks(Device *d)
{
    enum { R = 64, C = 1000 };
    int64_t two[] = {1, 2};
    Positions runs = positions_one(0, R / 2);
    Dropout s = {.p = 0.25, .key = 1, .sample = two, .runs = &runs};
    float *x = xcalloc(R * C, 4), *y = xcalloc(R * C, 4);
    for (int i = 0; i < R * C; i++)
        x[i] = 1;
    d->dropout_fwd(d, mat(y, R, C, F32), mat(x, R, C, F32), (Mat){0}, &s);
    double dropped = 0, rows = 0, columns = 0, samples = 0;
    int wrong = 0;
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) {
            int a = y[r * C + c] == 0;
            wrong += !a && y[r * C + c] != (float)(1 / 0.75);
            dropped += a;
            rows += a == (y[(r + 1) % R * C + c] == 0);
            columns += a == (y[r * C + (c + 1) % C] == 0);
            samples += a == (y[(r + R / 2) % R * C + c] == 0);
        }
    double n = R * C, e = 5 / sqrt(n) / 2, agree = 0.25 * 0.25 + 0.75 * 0.75;
    CHECK(!wrong, "%d values neither 0 nor 1 / (1 - p)", wrong);
    CHECK(fabs(dropped / n - 0.25) < e, "dropped %g", dropped / n);
    CHECK(fabs(rows / n - agree) < 2 * e && fabs(columns / n - agree) < 2 * e
          && fabs(samples / n - agree) < 2 * e, "agreement %g %g %g, want %g", rows / n, columns / n,
          samples / n, agree);
    /* a rank that holds the rows from the middle of a sample on has the same masks */
    Dropout rest = s;
    rest.row0 = R / 4 + 3;
    float *z = xcalloc(R * C, 4);
    d->dropout_fwd(d, mat(z, R - rest.row0, C, F32), mat(x, R - rest.row0, C, F32), (Mat){0}, &rest);
    CHECK(!memcmp(z, y + rest.row0 * C, (size_t)((R - rest.row0) * C) * 4), "rows from %lld on",
          (long long)rest.row0);
    free(z);
    free(x);
    free(y);
}

/* Odd logits: a NaN makes the loss NaN; logits of +-1e30 or -infinity give a finite loss and gradient. */
static void odd_logits(Device *d)
{
    enum { C = 5000 };
    float *x = xcalloc(3 * C, 4), stats[9], loss[3];
    int32_t label[] = {3, C - 3, C - 3};
    for (int i = 0; i < C; i++) {
        x[i] = i == 37 ? NAN : 1;
        x[C + i] = i == C - 3 ? 1e30f : -1e30f;
        x[2 * C + i] = i == C - 3 ? 0 : -INFINITY;
    }
    Mat xm = mat(x, 3, C, F32), sm = mat(stats, 3, 3, F32);
    d->xent_stats(d, sm, xm, label, (RowMap){3, 0, 0}, 0, C);
    d->xent_grad(d, mat(loss, 3, 1, F32), xm, xm, sm, label, NULL, (RowMap){3, 0, 0}, 0, C, 1);
    CHECK(isnan(loss[0]) && loss[1] == 0 && loss[2] == 0, "%s: losses %g %g %g", d->isa, loss[0], loss[1],
          loss[2]);
    int wrong = 0;
    for (int i = C; i < 3 * C; i++)
        wrong += x[i] != 0;
    CHECK(!wrong, "%s: %d gradients are not 0", d->isa, wrong);
    free(x);
}

/* A masked row has loss 0 and a gradient of zeros, whatever its logits and its label are. */
static void masked_logits(Device *d)
{
    enum { C = 5000 };
    static float x[2 * C], dx[2 * C];
    float stats[6], loss[2] = {NAN, NAN};
    const float mask[] = {0, 0};
    const int32_t label[] = {-100, C - 3};
    int wrong = 0;
    for (int i = 0; i < C; i++) {
        x[i] = i % 1000 == 37 ? NAN : 1;
        x[C + i] = i == C - 3 ? -INFINITY : 3e38f;
    }
    for (int part = 0; part < 2; part++) {
        Mat xm = mat(x, 2, C, F32), dm = mat(dx, 2, C, F32);
        Mat sm = mat(stats, 2, 3, F32), lm = mat(loss, 2, 1, F32);
        memset(dx, 0xff, sizeof dx);
        if (part) {
            d->xent_stats(d, sm, xm, label, (RowMap){2, 0, 0}, 0, C);
            d->xent_grad(d, lm, dm, xm, sm, label, mask, (RowMap){2, 0, 0}, 0, C, 1);
        } else {
            d->xent(d, lm, dm, xm, sm, label, mask, (RowMap){2, 0, 0}, C, 1);
        }
        for (int i = 0; i < 2 * C; i++)
            wrong += dx[i] != 0;
        CHECK(!wrong && loss[0] == 0 && loss[1] == 0, "%s: %d gradients are not 0, losses %g %g", d->isa,
              wrong, loss[0], loss[1]);
    }
}

int main(int argc, char **argv)
{
    halves();
    for (int i = 0; i < ISAS; i++)
        for (Dtype real = F64; real <= F32 && isa_wanted(i, argc, argv); real++) {
            Device one, two;
            cpu_open(&one, real, isa_names[i], 1);
            cpu_open(&two, real, isa_names[i], 2);
            for (Dtype t = F64; t <= F16; t++)
                sums(&one, &two, t);
            conversions(&one);
            hashes(&one, &two);
            zeros(&two);
            if (real == F32) {
                functions(&one);
                shards(&one);
                updates_of_halves(&two);
                masks(&two);
                column_sums(&two, 20001);
                column_sums(&two, 140001);     /* more than two of the kernels' buffers of a row */
                odd_logits(&one);
                masked_logits(&one);
            }
            cpu_close(&one);
            cpu_close(&two);
        }
    Device best;
    cpu_open(&best, F32, argc > 1 ? argv[1] : "auto", 2);
    if (!test_few())
        squares_of_many(&best);
    cpu_close(&best);
    return test_end();
}
