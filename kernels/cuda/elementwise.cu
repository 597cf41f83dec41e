/* elementwise -- the ops copy, zero, add and sum_parts, with 16-byte accesses where addresses allow; copies
 * of bytes. */
#include "common.cuh"

enum { THREADS = 256, EACH = 4 };  /* EACH: chunks of a thread, THREADS apart, loaded at the same time */

/* y from a and b: `total` chunks of N elements, per_row of them in a row. */
struct Elements {
    void *y;
    const void *a, *b;
    int64_t ldy, lda, ldb;
    uint32_t total;
    Divider per_row;
};

template <class To, class From, int N>
static __global__ void __launch_bounds__(THREADS) k_copy(const Elements e)
{
    uint32_t first = blockIdx.x * (THREADS * EACH) + threadIdx.x;
    float f[EACH][N];
#pragma unroll
    for (int u = 0; u < EACH; u++) {
        uint32_t i = first + u * THREADS, r = i / e.per_row;
        if (i < e.total)
            get_floats<N>(f[u], (const From *)e.a + (int64_t)r * e.lda + (int64_t)(i - r * e.per_row.d) * N);
    }
#pragma unroll
    for (int u = 0; u < EACH; u++) {
        uint32_t i = first + u * THREADS, r = i / e.per_row;
        if (i < e.total)
            put_floats<N>((To *)e.y + (int64_t)r * e.ldy + (int64_t)(i - r * e.per_row.d) * N, f[u]);
    }
}

template <class T, int N> static __global__ void __launch_bounds__(THREADS) k_add(const Elements e)
{
    uint32_t first = blockIdx.x * (THREADS * EACH) + threadIdx.x;
    Chunk<T, N> a[EACH], b[EACH];
    float f[N], g[N];
#pragma unroll
    for (int u = 0; u < EACH; u++) {
        uint32_t i = first + u * THREADS, r = i / e.per_row;
        int64_t c = (int64_t)(i - r * e.per_row.d) * N;
        if (i < e.total) {
            a[u].load((const T *)e.a + (int64_t)r * e.lda + c);
            b[u].load((const T *)e.b + (int64_t)r * e.ldb + c);
        }
    }
#pragma unroll
    for (int u = 0; u < EACH; u++) {
        uint32_t i = first + u * THREADS, r = i / e.per_row;
        if (i >= e.total)
            continue;
        a[u].get(f);
        b[u].get(g);
#pragma unroll
        for (int k = 0; k < N; k++)
            f[k] += g[k];
        put_floats<N>((T *)e.y + (int64_t)r * e.ldy + (int64_t)(i - r * e.per_row.d) * N, f);
    }
}

/* y = a + b, y and a F32, b BF16. */
template <int N> static __global__ void __launch_bounds__(THREADS) k_add_bf16(const Elements e)
{
    uint32_t first = blockIdx.x * (THREADS * EACH) + threadIdx.x;
    Chunk<Bf16, N> b[EACH];
    float f[EACH][N], g[N];
#pragma unroll
    for (int u = 0; u < EACH; u++) {
        uint32_t i = first + u * THREADS, r = i / e.per_row;
        int64_t c = (int64_t)(i - r * e.per_row.d) * N;
        if (i < e.total) {
            get_floats<N>(f[u], (const float *)e.a + (int64_t)r * e.lda + c);
            b[u].load((const Bf16 *)e.b + (int64_t)r * e.ldb + c);
        }
    }
#pragma unroll
    for (int u = 0; u < EACH; u++) {
        uint32_t i = first + u * THREADS, r = i / e.per_row;
        if (i >= e.total)
            continue;
        b[u].get(g);
#pragma unroll
        for (int k = 0; k < N; k++)
            f[u][k] += g[k];
        put_floats<N>((float *)e.y + (int64_t)r * e.ldy + (int64_t)(i - r * e.per_row.d) * N, f[u]);
    }
}

/* y = the sum of the `parts` parts of a, in order; the starts of two parts are `apart` elements apart. */
template <class T, int N>
static __global__ void __launch_bounds__(THREADS) k_sum_parts(const Elements e, int parts, int64_t apart)
{
    uint32_t i = blockIdx.x * THREADS + threadIdx.x, r = i / e.per_row;
    int64_t c = (int64_t)(i - r * e.per_row.d) * N;
    float sum[N], f[N];
    if (i >= e.total)
        return;
    get_floats<N>(sum, (const T *)e.a + (int64_t)r * e.lda + c);
    for (int p = 1; p < parts; p++) {
        get_floats<N>(f, (const T *)e.a + p * apart + (int64_t)r * e.lda + c);
#pragma unroll
        for (int k = 0; k < N; k++)
            sum[k] += f[k];
    }
    put_floats<N>((T *)e.y + (int64_t)r * e.ldy + c, sum);
}

/* Cuts the rows of e into chunks of n elements; rows without gaps between them count as one row. */
static void cut(Elements *e, int64_t rows, int64_t cols, int64_t n)
{
    if (e->ldy == cols && e->lda == cols && (!e->b || e->ldb == cols))
        cols *= rows, rows = 1;
    BUG_ON(rows * cols / n >= (int64_t)1 << 31);
    e->total = (uint32_t)(rows * cols / n);
    e->per_row = divider(cols / n);
}

template <class To, class From> static void copy(Cuda *c, Elements e, Mat dst, Mat src)
{
    enum { N = 16 / (sizeof(To) < sizeof(From) ? sizeof(To) : sizeof(From)) };
    int wide = aligned(dst) && aligned(src) && dst.cols % N == 0;
    cut(&e, dst.rows, dst.cols, wide ? N : 1);
    unsigned grid = blocks_of(ceil_div(e.total, THREADS * EACH));
    if (wide)
        LAUNCH((k_copy<To, From, N>), grid, THREADS, 0, c->compute, e);
    else
        LAUNCH((k_copy<To, From, 1>), grid, THREADS, 0, c->compute, e);
}

void cuda_copy(Device *d, Mat dst, Mat src)
{
    Cuda *c = cuda_of(d);
    BUG_ON(dst.rows != src.rows || dst.cols != src.cols);
    if (!dst.rows || !dst.cols)
        return;
    int here = !cuda_on_host(d, src.p) && !cuda_on_host(d, dst.p);
    if (here && dst.type == src.type && (dst.rows == 1 || (dst.ld == dst.cols && src.ld == src.cols))) {
        CUDA_OK(cudaMemcpyAsync(dst.p, src.p, mat_bytes(src), cudaMemcpyDeviceToDevice, c->compute));
        return;
    }
    if (dst.type == src.type && dtype_size(dst.type) % 4 == 0) {   /* copied as words, I32 and I64 too */
        int64_t words = (int64_t)dtype_size(dst.type) / 4;
        dst = (Mat){dst.p, dst.rows, dst.cols * words, dst.ld * words, F32};
        src = (Mat){src.p, src.rows, src.cols * words, src.ld * words, F32};
    }
    Elements e = {dst.p, src.p, NULL, dst.ld, src.ld, 0, 0, {}};
    with_type(dst.type, [&](auto to) {
        with_type(src.type, [&](auto from) { copy<decltype(to), decltype(from)>(c, e, dst, src); });
    });
}

template <class Word>
static __global__ void __launch_bounds__(THREADS) k_copy_words(Word *y, const Word *a, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (int64_t)gridDim.x * THREADS)
        y[i] = a[i];
}

template <class Word> static void copy_words(const Cuda *c, void *dst, const void *src, size_t bytes)
{
    int64_t n = (int64_t)(bytes / sizeof(Word)), blocks = cuda_few(c, ceil_div(n, THREADS));
    LAUNCH(k_copy_words<Word>, blocks_of(blocks), THREADS, 0, c->compute, (Word *)dst, (const Word *)src, n);
}

void cuda_copy_bytes(Device *d, void *dst, const void *src, size_t bytes)
{
    const Cuda *c = cuda_of(d);
    uintptr_t all = (uintptr_t)dst | (uintptr_t)src | bytes;
    if (!bytes)
        return;
    if (all % sizeof(uint4) == 0)
        copy_words<uint4>(c, dst, src, bytes);
    else if (all % sizeof(uint32_t) == 0)
        copy_words<uint32_t>(c, dst, src, bytes);
    else
        copy_words<uint8_t>(c, dst, src, bytes);
}

void cuda_zero(Device *d, void *p, size_t bytes)
{
    if (bytes)
        CUDA_OK(cudaMemsetAsync(p, 0, bytes, cuda_stream(d)));
}

void cuda_add(Device *d, Mat y, Mat a, Mat b)
{
    Cuda *c = cuda_of(d);
    int64_t n = 16 / (int64_t)dtype_size(b.type);
    BUG_ON(y.type != a.type || (y.type != b.type && (y.type != F32 || b.type != BF16)));
    BUG_ON(y.rows != a.rows || y.rows != b.rows || y.cols != a.cols || y.cols != b.cols);
    if (!y.rows || !y.cols)
        return;
    Elements e = {y.p, a.p, b.p, y.ld, a.ld, b.ld, 0, {}};
    if (!aligned(y) || !aligned(a) || !aligned(b) || y.cols % n)
        n = 1;
    cut(&e, y.rows, y.cols, n);
    unsigned grid = blocks_of(ceil_div(e.total, THREADS * EACH));
    if (y.type != b.type) {
        if (n > 1)
            LAUNCH((k_add_bf16<Piece<Bf16>::N>), grid, THREADS, 0, c->compute, e);
        else
            LAUNCH((k_add_bf16<1>), grid, THREADS, 0, c->compute, e);
        return;
    }
    with_type(y.type, [&](auto t) {
        typedef decltype(t) T;
        if (n > 1)
            LAUNCH((k_add<T, Piece<T>::N>), grid, THREADS, 0, c->compute, e);
        else
            LAUNCH((k_add<T, 1>), grid, THREADS, 0, c->compute, e);
    });
}

void cuda_sum_parts(Device *d, Mat y, Mat parts)
{
    Cuda *c = cuda_of(d);
    int64_t n = 16 / (int64_t)dtype_size(y.type), apart = y.rows * parts.ld;
    if (!y.rows || !y.cols)
        return;
    BUG_ON(y.cols != parts.cols || parts.rows % y.rows || y.type != parts.type);
    Elements e = {y.p, parts.p, NULL, y.ld, parts.ld, 0, 0, {}};
    int count = (int)(parts.rows / y.rows);
    if (!aligned(y) || !aligned(parts) || y.cols % n)
        n = 1;
    cut(&e, y.rows, y.cols, n);
    with_type(y.type, [&](auto t) {
        typedef decltype(t) T;
        unsigned grid = blocks_of(ceil_div(e.total, THREADS));
        if (n > 1)
            LAUNCH((k_sum_parts<T, Piece<T>::N>), grid, THREADS, 0, c->compute, e, count, apart);
        else
            LAUNCH((k_sum_parts<T, 1>), grid, THREADS, 0, c->compute, e, count, apart);
    });
}
