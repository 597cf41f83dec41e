/* test_gemm -- matrix products: every kernel, type and transposition against a sum in F64, on integers
 * small enough that every order of summation gives the same bytes. Threads, neighbouring rows and
 * alignment must not change a bit. */
#include "cpu.h"
#include "ops.h"
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __x86_64__
/* a second copy of amx.c, compiled for emulated tiles */
#include "amx_emulation.h"
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")
#define amx_kernel amx_emulated_kernel
#define amx_works amx_emulated_works
#include "amx.c"
#undef amx_kernel
#undef amx_works
#pragma GCC pop_options
#undef MR
#undef NR
#undef ROWS
#endif

#define GUARD 3                /* columns beyond each row that must stay as they are */

static double draw(void)       /* [0, 1); Knuth's MMIX generator: philox is slower than the products */
{
    static uint64_t x = 1;
    x = x * 6364136223846793005u + 1442695040888963407u;
    return (double)(x >> 40) / (1 << 24);
}

static double at(Mat m, int64_t r, int64_t c) { return get(mat_at(m, r, c), 0, m.type); }
static void set(Mat m, int64_t r, int64_t c, double x) { put(mat_at(m, r, c), 0, m.type, x); }

/* The memory of a matrix that starts `shift` elements into it, in whole pages and one more. */
static size_t memory_of(Mat m, int shift, size_t *used)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    *used = (size_t)(m.rows * m.ld + shift) * dtype_size(m.type);
    return (*used + page - 1) / page * page + page;
}

/* Allocates a matrix with GUARD columns behind each row, and behind the last a page that nobody may touch. It
 * starts `shift` elements into its memory; drop frees it. */
static Mat make(int64_t rows, int64_t cols, Dtype type, int shift)
{
    Mat m = {.rows = rows, .cols = cols, .ld = cols + GUARD, .type = type};
    size_t used, all = memory_of(m, shift, &used), page = (size_t)sysconf(_SC_PAGESIZE);
    char *p = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    BUG_ON(p == MAP_FAILED || mprotect(p + all - page, page, PROT_NONE));
    m.p = p + all - page - used + (size_t)shift * dtype_size(type);
    return m;
}
static void drop(Mat m, int shift)
{
    size_t used, all = memory_of(m, shift, &used), rest = all - (size_t)sysconf(_SC_PAGESIZE);
    munmap((char *)m.p - (size_t)shift * dtype_size(m.type) + used - rest, all);
}

static void fill(Mat m, int range)
{
    for (int64_t r = 0; r < m.rows; r++)
        for (int64_t c = 0; c < m.ld; c++)
            set(m, r, c, c >= m.cols ? 77 : range ? floor(draw() * (2 * range + 1)) - range : draw() - 0.5);
}

/* want [m][n] += op(a) op(b) in F64; size [m][n] += the sum of the products' magnitudes, for error
 * bounds. */
static void product(double *restrict want, double *restrict size, Mat a, int ta, Mat b, int tb, int64_t m,
                    int64_t n, int64_t k)
{
    double *x = xcalloc((size_t)(m * k + n * k), sizeof *x), *y = x + m * k;
    for (int64_t l = 0; l < k; l++) {
        for (int64_t i = 0; i < m; i++)
            x[i * k + l] = ta ? at(a, l, i) : at(a, i, l);
        for (int64_t j = 0; j < n; j++)
            y[l * n + j] = tb ? at(b, j, l) : at(b, l, j);
    }
    for (int64_t i = 0; i < m; i++)
        for (int64_t l = 0; l < k; l++)
            for (int64_t j = 0; j < n; j++) {
                double p = x[i * k + l] * y[l * n + j];
                want[i * n + j] += p;
                size[i * n + j] += fabs(p);
            }
    free(x);
}

typedef struct { int64_t m, n, k; } Size;
typedef struct { Dtype in, out; int ta, tb, acc, bias, shift; } Case;

/* Checks one product. exact: on small integers, where every byte must agree; otherwise on random
 * numbers, to within the types' rounding. */
static void check_case(Device *d, const char *name, Size s, Case t, int exact)
{
    Mat a = make(t.ta ? s.k : s.m, t.ta ? s.m : s.k, t.in, t.shift), bias = make(1, s.n, t.in, t.shift);
    Mat b = make(t.tb ? s.n : s.k, t.tb ? s.k : s.n, t.in, t.shift), c = make(s.m, s.n, t.out, t.shift);
    Mat w = make(1, 1, t.out, 0);
    double *want = xcalloc((size_t)(2 * s.m * s.n), sizeof *want), *size = want + s.m * s.n;
    fill(a, exact ? 2 : 0);
    fill(b, exact ? 2 : 0);
    fill(bias, exact ? 9 : 0);
    fill(c, exact ? 9 : 0);
    product(want, size, a, t.ta, b, t.tb, s.m, s.n, s.k);
    for (int64_t i = 0; i < s.m; i++)
        for (int64_t j = 0; j < s.n; j++) {
            want[i * s.n + j] += (t.acc ? at(c, i, j) : 0) + (t.bias ? at(bias, 0, j) : 0);
            size[i * s.n + j] += 1;
            if (!t.acc)
                set(c, i, j, NAN);
        }
    if (t.bias)
        d->linear(d, c, a, b, bias);
    else
        d->matmul(d, c, a, t.ta, b, t.tb, t.acc);
    /* eps_sum: rounding of the sums in the device's real type; eps_out: rounding of c's storage type */
    double eps_sum = d->real == F64 ? 1e-15 : 3e-7, eps_out = t.out == BF16 ? 0.004 : t.out == F16 ? 5e-4 : 0;
    int64_t wrong = 0, touched = 0;
    for (int64_t i = 0; i < s.m; i++)
        for (int64_t j = 0; j < c.ld; j++) {
            double x = at(c, i, j), y = j < s.n ? want[i * s.n + j] : 77;
            if (j >= s.n) {
                touched += x != 77;
            } else if (exact) {
                set(w, 0, 0, y);
                wrong += x != at(w, 0, 0);
            } else {
                wrong += !(fabs(x - y) <= eps_sum * size[i * s.n + j] + eps_out * fabs(y));
            }
        }
    CHECK(!wrong && !touched, "%s %s: [%ld,%ld,%ld] %s -> %s ta %d tb %d acc %d bias %d shift %d: %ld %ld",
          name, exact ? "exact" : "random", (long)s.m, (long)s.n, (long)s.k, dtype_name(t.in),
          dtype_name(t.out), t.ta, t.tb, t.acc, t.bias, t.shift, (long)wrong, (long)touched);
    drop(a, t.shift), drop(b, t.shift), drop(c, t.shift), drop(bias, t.shift), drop(w, 0);
    free(want);
}

static const Size sizes[] = {
    {1, 1, 1}, {3, 5, 7}, {14, 32, 256}, {15, 33, 257}, {1, 100, 70}, {100, 1, 65}, {8, 200, 513},
    {70, 131, 64}, {33, 65, 31}, {5, 40, 0}, {0, 5, 5}, {5, 0, 5}, {77, 129, 66}, {1, 61, 291},
};
#define SIZES ((int)(sizeof sizes / sizeof *sizes))
static const Size large[] = {{9, 1030, 1100}, {1120, 9, 1000}, {1100, 9, 1050}};   /* several blocks */

static void check_types(Device *d, const char *name, int only_bf16)
{
    static const Dtype types[][3] = {{F64, F64, F64}, {F32, F32, F32}, {F32, BF16, BF16}, {F32, BF16, F32},
                                     {F32, F16, F16}, {F32, F16, F32}};      /* real, in, out */
    for (int t = 0; t < 6; t++) {
        if (types[t][0] != d->real || (only_bf16 && types[t][1] != BF16) ||
            (test_few() && (types[t][1] == F16 || types[t][0] == F64)))
            continue;
        for (int f = 0; f < 8; f++) {
            Case c = {types[t][1], types[t][2], f & 1, f >> 1 & 1, f >> 2, 0, f % 3};
            for (int s = test_few() ? f % 4 : 0; s < SIZES; s += test_few() ? 4 : 1) {
                check_case(d, name, sizes[s], c, 1);
                if (s % 3 == f % 3)
                    check_case(d, name, sizes[s], c, 0);
            }
            if (!test_few() && (f < 3 || f == 7))
                check_case(d, name, large[f % 3], c, 1);
        }
        for (int s = 0; s < SIZES; s++)
            check_case(d, name, sizes[s], (Case){types[t][1], types[t][2], 0, 1, 0, 1, 1}, s & 1);
        check_case(d, name, large[0], (Case){types[t][1], types[t][2], 0, 1, 0, 1, 0}, 1);
    }
}

/* Threads, neighbouring rows and alignment change no bit: one thread against two, a row alone against
 * the same row among others, shifted memory against aligned. */
static void check_bits(Device *one, Device *two, const char *name, Dtype type)
{
    for (int f = 0; f < 4; f++) {
        int few = test_few();
        int64_t m = few ? 37 : 150, n = few ? 70 : 210, k = few ? 90 : 1300, row = few ? 17 : 61;
        int ta = f & 1, tb = f >> 1;
        Mat a = make(ta ? k : m, ta ? m : k, type, 0), b = make(tb ? n : k, tb ? k : n, type, 0);
        Mat a2 = make(a.rows, a.cols, type, 5), b2 = make(b.rows, b.cols, type, 5);
        Mat c[4] = {make(m, n, type, 0), make(m, n, type, 0), make(1, n, type, 0), make(m, n, type, 3)};
        fill(a, 0);
        fill(b, 0);
        for (int64_t r = 0; r < a.rows; r++)
            memcpy(mat_at(a2, r, 0), mat_at(a, r, 0), (size_t)a.cols * dtype_size(type));
        for (int64_t r = 0; r < b.rows; r++)
            memcpy(mat_at(b2, r, 0), mat_at(b, r, 0), (size_t)b.cols * dtype_size(type));
        one->matmul(one, c[0], a, ta, b, tb, 0);
        two->matmul(two, c[1], a, ta, b, tb, 0);
        one->matmul(one, c[2], ta ? mat_cols(a, row, 1) : mat_rows(a, row, 1), ta, b, tb, 0);
        two->matmul(two, c[3], a2, ta, b2, tb, 0);
        int differ[3] = {0};
        for (int64_t r = 0; r < m; r++) {
            differ[0] |= memcmp(mat_at(c[0], r, 0), mat_at(c[1], r, 0), (size_t)n * dtype_size(type));
            differ[2] |= memcmp(mat_at(c[0], r, 0), mat_at(c[3], r, 0), (size_t)n * dtype_size(type));
        }
        differ[1] = memcmp(mat_at(c[0], row, 0), c[2].p, (size_t)n * dtype_size(type));
        CHECK(!differ[0], "%s %s ta %d tb %d: threads change bits", name, dtype_name(type), ta, tb);
        CHECK(!differ[1], "%s %s ta %d tb %d: other rows change bits", name, dtype_name(type), ta, tb);
        CHECK(!differ[2], "%s %s ta %d tb %d: alignment changes bits", name, dtype_name(type), ta, tb);
        drop(a, 0), drop(b, 0), drop(a2, 5), drop(b2, 5);
        drop(c[0], 0), drop(c[1], 0), drop(c[2], 0), drop(c[3], 3);
    }
}

/* Exit code of a child process that runs cpu_open; -1: the child was killed. */
static int open_status(const char *isa)
{
    fflush(stdout);
    pid_t pid = fork();
    if (!pid) {
        Device d;
        if (!freopen("/dev/null", "w", stderr))
            _exit(99);
        cpu_open(&d, F32, isa, 1);
        cpu_close(&d);
        _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void check_isa(const char *isa)
{
    static const Dtype all[] = {F32, BF16, F16};
    for (int real = F64; real <= F32; real++) {
        Device one, two;
        cpu_open(&one, real, isa, 1);
        cpu_open(&two, real, isa, 2);
        CHECK(!strcmp(one.isa, isa) && one.real == (Dtype)real, "%s", one.isa);
        check_types(&two, isa, 0);
        for (int t = 0; t < (real == F64 ? 1 : test_few() ? 2 : 3); t++)
            check_bits(&one, &two, isa, real == F64 ? F64 : all[t]);
        cpu_close(&one);
        cpu_close(&two);
    }
}

static void check_amx_emulated(void)
{
#ifdef __x86_64__
    Device d[2];
    Arena arena[2];
    for (int i = 0; i < 2; i++) {
        cpu_open(&d[i], F32, "avx512", i + 1);
        Cpu *c = cpu_of(&d[i]);
        Arena count = {0};
        c->gemm_bf16 = &amx_emulated_kernel;
        gemm_buffers(&c->buffers, &count, F32, c->gemm, c->gemm_bf16, i + 1);
        arena_open(&arena[i], "emulated amx", count.peak);
        gemm_buffers(&c->buffers, &arena[i], F32, c->gemm, c->gemm_bf16, i + 1);
    }
    check_types(&d[1], "emulated amx", 1);
    check_bits(&d[0], &d[1], "emulated amx", BF16);
    for (int i = 0; i < 2; i++) {
        cpu_close(&d[i]);
        arena_close(&arena[i]);
    }
#endif
}

int main(void)
{
    static const char *const isas[] = {"generic", "avx2", "avx512", "amx", "sve256"};
    CHECK(open_status("auto") == 0, "auto");
    CHECK(open_status("sse9") == EXIT_CONFIG, "an unknown isa must be refused");
    for (int i = 0; i < 5; i++) {
        int status = open_status(isas[i]);
        CHECK(status == 0 || (i && status == EXIT_CONFIG), "%s: exit %d", isas[i], status);
        if (status) {
            printf("# %s: not on this CPU\n", isas[i]);
            continue;
        }
        check_isa(isas[i]);
        if (i == 2)
            check_amx_emulated();
    }
    return test_end();
}
