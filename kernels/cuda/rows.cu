/* rows -- the ops on rows of tokens that travel to experts: gather_rows, sum_rows, scale_rows, row_dots. */
#include "common.cuh"

enum { THREADS = 256, WARPS = THREADS / WARP };

/* y from rows of x: `total` chunks, per_row of them in a row. */
struct Rows {
    void *y;
    const void *x;
    const int32_t *index;
    const float *w;
    int64_t ldy, ldx, ldw, rows;       /* rows: of x */
    uint32_t total;
    Divider per_row;
    int k;
};

/* Adds row `from` of x to sum. A row that x does not have is a bug of the caller and shows as NaN. */
template <class T, int N>
__device__ __forceinline__ void add_row(float *sum, const Rows &j, int64_t from, int64_t c)
{
    float f[N];
    if (from == -1)
        return;
    if (from >= 0 && from < j.rows)
        get_floats<N>(f, (const T *)j.x + from * j.ldx + c);
    for (int i = 0; i < N; i++)
        sum[i] += from >= 0 && from < j.rows ? f[i] : nanf("");
}

template <class T, int N> static __global__ void __launch_bounds__(THREADS) k_sum_rows(const Rows j)
{
    uint32_t i = blockIdx.x * THREADS + threadIdx.x, r = i / j.per_row;
    int64_t c = (int64_t)(i - r * j.per_row.d) * N;
    float sum[N];
    if (i >= j.total)
        return;
#pragma unroll
    for (int e = 0; e < N; e++)
        sum[e] = 0;
    for (int k = 0; k < j.k; k++)
        add_row<T, N>(sum, j, j.index[(int64_t)r * j.k + k], c);
    put_floats<N>((T *)j.y + (int64_t)r * j.ldy + c, sum);
}

/* Moves bits: T is as wide as an element, or half as wide. */
template <class T, int N> static __global__ void __launch_bounds__(THREADS) k_gather_rows(const Rows j)
{
    uint32_t i = blockIdx.x * THREADS + threadIdx.x, r = i / j.per_row;
    int64_t c = (int64_t)(i - r * j.per_row.d) * N;
    Chunk<T, N> v;
    if (i >= j.total)
        return;
    int64_t from = j.index[r];
    float f[N];
#pragma unroll
    for (int e = 0; e < N; e++)
        f[e] = from == -1 ? 0 : nanf("");
    v.set(f);
    if (from >= 0 && from < j.rows)
        v.load((const T *)j.x + from * j.ldx + c);
    v.store((T *)j.y + (int64_t)r * j.ldy + c);
}

template <class T, int N> static __global__ void __launch_bounds__(THREADS) k_scale_rows(const Rows j)
{
    uint32_t i = blockIdx.x * THREADS + threadIdx.x, r = i / j.per_row;
    int64_t c = (int64_t)(i - r * j.per_row.d) * N;
    float f[N];
    if (i >= j.total)
        return;
    get_floats<N>(f, (const T *)j.x + (int64_t)r * j.ldx + c);
    float w = j.w[(int64_t)r * j.ldw];
#pragma unroll
    for (int e = 0; e < N; e++)
        f[e] *= w;
    put_floats<N>((T *)j.y + (int64_t)r * j.ldy + c, f);
}

/* Returns the launch over y in chunks of n elements, 16 bytes or one; total is 0 where there is nothing. */
static Rows rows_of(Mat y, Mat x, int64_t *n)
{
    BUG_ON(y.cols != x.cols || y.type != x.type);
    *n = 16 / (int64_t)dtype_size(y.type);
    if (!aligned(y) || !aligned(x) || y.cols % *n)
        *n = 1;
    int64_t per_row = y.cols / *n;
    BUG_ON(y.rows * per_row >= (int64_t)1 << 31);
    Rows j = {y.p, x.p, NULL, NULL, y.ld, x.ld, 0, x.rows, (uint32_t)(y.rows * per_row),
              divider(per_row ? per_row : 1), 1};
    return j;
}

#define LAUNCH_ROWS(kernel, type, n, d, j)                                                                   \
    with_type(type, [&](auto t_) {                                                                           \
        typedef decltype(t_) T;                                                                              \
        unsigned grid_ = blocks_of(ceil_div((j).total, THREADS));                                            \
        if ((n) > 1)                                                                                         \
            LAUNCH((kernel<T, Piece<T>::N>), grid_, THREADS, 0, cuda_of(d)->compute, j);                     \
        else                                                                                                 \
            LAUNCH((kernel<T, 1>), grid_, THREADS, 0, cuda_of(d)->compute, j);                               \
    })

void cuda_gather_rows(Device *d, Mat y, Mat x, const int32_t *index)
{
    int64_t n, words = (int64_t)dtype_size(y.type) / 4;
    BUG_ON(y.type != x.type);
    if (words) {                       /* moved as words, I32, I64 and F64 too */
        y = (Mat){y.p, y.rows, y.cols * words, y.ld * words, F32};
        x = (Mat){x.p, x.rows, x.cols * words, x.ld * words, F32};
    }
    Rows j = rows_of(y, x, &n);
    j.index = index;
    if (j.total)
        LAUNCH_ROWS(k_gather_rows, y.type, n, d, j);
}

void cuda_sum_rows(Device *d, Mat y, Mat x, const int32_t *index, int k)
{
    int64_t n;
    BUG_ON(k < 0);
    Rows j = rows_of(y, x, &n);
    j.index = index;
    j.k = k;
    if (j.total)
        LAUNCH_ROWS(k_sum_rows, y.type, n, d, j);
}

void cuda_scale_rows(Device *d, Mat y, Mat x, Mat w)
{
    int64_t n;
    BUG_ON(y.rows != x.rows || w.rows != x.rows || w.cols != 1 || w.type != F32);
    Rows j = rows_of(y, x, &n);
    j.w = (const float *)w.p;
    j.ldw = w.ld;
    if (j.total)
        LAUNCH_ROWS(k_scale_rows, y.type, n, d, j);
}

/* A warp sums a row. */
struct Dots {
    float *out;
    const void *x, *y;
    int64_t ldout, ldx, ldy, rows, cols;
};

template <class T, int N> static __global__ void __launch_bounds__(THREADS) k_row_dots(const Dots j)
{
    int64_t r = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    float sum = 0, f[N], g[N];
    if (r >= j.rows)
        return;
    for (int64_t c = (int64_t)(threadIdx.x % WARP) * N; c < j.cols; c += WARP * N) {
        get_floats<N>(f, (const T *)j.x + r * j.ldx + c);
        get_floats<N>(g, (const T *)j.y + r * j.ldy + c);
#pragma unroll
        for (int e = 0; e < N; e++)
            sum += f[e] * g[e];
    }
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0)
        j.out[r * j.ldout] = sum;
}

void cuda_row_dots(Device *d, Mat dot, Mat x, Mat y)
{
    BUG_ON(y.rows != x.rows || y.cols != x.cols || y.type != x.type);
    BUG_ON(dot.rows != x.rows || dot.cols != 1 || dot.type != F32);
    if (!x.rows)
        return;
    Dots j = {(float *)dot.p, x.p, y.p, dot.ld, x.ld, y.ld, x.rows, x.cols};
    with_type(x.type, [&](auto t) {
        typedef decltype(t) T;
        unsigned grid = blocks_of(ceil_div(x.rows, WARPS));
        if (aligned(x) && aligned(y) && x.cols % Piece<T>::N == 0)
            LAUNCH((k_row_dots<T, Piece<T>::N>), grid, THREADS, 0, cuda_of(d)->compute, j);
        else
            LAUNCH((k_row_dots<T, 1>), grid, THREADS, 0, cuda_of(d)->compute, j);
    });
}
