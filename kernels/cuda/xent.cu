/* xent -- cross-entropy of rows of logits, F32 or BF16, one block a row; all sums are F32.
 *
 * xent_stats and xent_grad read the logits once each. xent, for rows of the whole vocabulary, reads them
 * once for both where it can: two blocks of a multiprocessor, one of which reads while the other one writes,
 * keep at least half of their rows in shared memory and find the rest in L2. Longer rows are read twice, by
 * two launches: a slice of all rows (src/run/room.c) is more than an L2 keeps from one to the next.
 *
 * Each thread has a running maximum and the sum of exponentials relative to it (Milakov, Gimelshein
 * 2018, arXiv:1805.02867). Threads and warps are merged in a fixed order. */
#include "common.cuh"
#include <ptx.cuh>

enum { THREADS = 256, WARPS = THREADS / WARP };

extern __shared__ __align__(16) char shared[];

/* RowMap and mapped_row of device.h, for kernels. */
struct XentRows { int64_t n, first, stride; };
__device__ __forceinline__ int64_t whole_row(XentRows m, int64_t i)
{
    return i / m.n * m.stride + m.first + i % m.n;
}
static XentRows rows_of(RowMap m)
{
    XentRows r = {m.n, m.first, m.stride};
    BUG_ON(m.n < 1);
    return r;
}

struct XentJob {
    const void *logits;
    float *stats, *loss;
    void *dlogits;
    const int32_t *label;
    const float *mask;
    XentRows rows;
    int64_t ldlogits, ldstats, ldd, ldloss, v0, count;
    int valid, cols;
    double scale;
    int behind;                /* bool: dlogits overwrites logits: tiles are read before written */
};

/* Statistics of some logits: the largest, and the sum of exp(x - largest). While all logits are -inf the
 * sum is 0; 0 in place of `largest` then avoids -inf + inf. A NaN is in no maximum, but stays in the
 * sum. */
struct XentPart { float largest, sum; };
__device__ __forceinline__ XentPart merge(XentPart a, XentPart b)
{
    XentPart c = {fmaxf(a.largest, b.largest), 0};
    float base = c.largest == -INFINITY ? 0 : c.largest;
    c.sum = a.sum * expf(a.largest - base) + b.sum * expf(b.largest - base);
    return c;
}
__device__ __forceinline__ XentPart merge_warp(XentPart a)
{
    for (int o = WARP / 2; o; o >>= 1) {
        XentPart b = {__shfl_xor_sync(EVERY_LANE, a.largest, o), __shfl_xor_sync(EVERY_LANE, a.sum, o)};
        a = merge(a, b);
    }
    return a;
}

/* e^x of x <= 0 to some 2 (1 - x) units in the last place: with expf the kernels that read and write at once
 * are bound by its instructions. */
__device__ __forceinline__ float exp_of(float x) { return exp2_approx(x * 1.44269504088896340736f); }

/* Loads a thread's logits, of type L, of a tile: AHEAD chunks of N, BLOCK chunks apart; from `end` on they
 * are -inf. */
template <int N, int AHEAD, int BLOCK = THREADS, class L>
__device__ __forceinline__ void load_tile(float (&x)[AHEAD][N], const L *row, int first, int end)
{
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
        int c = first + k * BLOCK * N;
        if (c + N <= end) {
            get_floats<N>(x[k], row + c);
        } else {
#pragma unroll
            for (int i = 0; i < N; i++)
                x[k][i] = c + i < end ? to_float(row[c + i]) : -INFINITY;
        }
    }
}

template <int N, int AHEAD>
__device__ __forceinline__ void take_tile(XentPart &all, const float (&x)[AHEAD][N])
{
    float top = all.largest;
#pragma unroll
    for (int k = 0; k < AHEAD; k++)
#pragma unroll
        for (int i = 0; i < N; i++)
            top = fmaxf(top, x[k][i]);
    float base = top == -INFINITY ? 0 : top;
    if (top > all.largest) {
        all.sum *= expf(all.largest - base);
        all.largest = top;
    }
#pragma unroll
    for (int k = 0; k < AHEAD; k++)
#pragma unroll
        for (int i = 0; i < N; i++)
            all.sum += exp_of(x[k][i] - base);
}

template <class L, int N> __global__ void __launch_bounds__(THREADS) k_xent_stats(const XentJob j)
{
    enum { AHEAD = 16 / N };
    const L *row = (const L *)j.logits + (int64_t)blockIdx.x * j.ldlogits;
    XentPart all = {-INFINITY, 0}, *slot = (XentPart *)shared;
    float x[AHEAD][N];
    for (int first = (int)threadIdx.x * N; first < j.valid; first += AHEAD * THREADS * N) {
        load_tile<N, AHEAD>(x, row, first, j.valid);
        take_tile(all, x);
    }
    all = merge_warp(all);
    if (threadIdx.x % WARP == 0)
        slot[threadIdx.x / WARP] = all;
    __syncthreads();
    if (threadIdx.x)
        return;
    for (int w = 1; w < WARPS; w++)
        all = merge(all, slot[w]);
    int64_t v = j.label[whole_row(j.rows, blockIdx.x)] - j.v0;
    float *stats = j.stats + (int64_t)blockIdx.x * j.ldstats;
    stats[0] = all.largest;
    stats[1] = all.sum;
    stats[2] = v >= 0 && v < j.valid ? to_float(row[v]) : -INFINITY;
}

/* With one part the output has the bits of that part: its sum is added to 0 without a factor. */
__global__ void __launch_bounds__(THREADS) k_xent_combine(float *stats, int64_t ldstats, const float *part,
                                                          int64_t ldpart, int64_t rows, int parts)
{
    int64_t r = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    float largest = -INFINITY, label = -INFINITY, sum = 0;
    if (r >= rows)
        return;
    for (int p = 0; p < parts; p++) {
        const float *x = part + (p * rows + r) * ldpart;
        largest = x[0] > largest ? x[0] : largest;
        label = x[2] > label || x[2] != x[2] ? x[2] : label;
    }
    for (int p = 0; p < parts; p++) {
        const float *x = part + (p * rows + r) * ldpart;
        sum += x[0] == largest ? x[1] : x[1] * expf(x[0] - largest);
    }
    stats += r * ldstats;
    stats[0] = largest, stats[1] = sum, stats[2] = label;
}

/* A masked row gives zeros, even if its label or its logits are invalid. */
__device__ __forceinline__ void write_loss(const XentJob &j, const float *stats, int64_t whole)
{
    double mask = j.mask ? j.mask[whole] : 1;
    j.loss[whole * j.ldloss] =
        mask == 0 ? 0.0f : (float)(mask * (log((double)stats[1]) + ((double)stats[0] - (double)stats[2])));
}

__global__ void __launch_bounds__(THREADS) k_xent_loss(const XentJob j)
{
    int64_t r = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (r < j.count)
        write_loss(j, j.stats + r * j.ldstats, whole_row(j.rows, r));
}

/* The gradient of logit x of a row: exp(x - largest) norm, minus k at the label; 0 from column `in`
 * on. */
struct XentGrad { float largest, norm, k; int64_t label; int in; };

template <int N, int AHEAD, int BLOCK, class T>
__device__ __forceinline__ void write_tile(T *out, float (&x)[AHEAD][N], int first, int cols,
                                           const XentGrad &g)
{
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
        int c = first + k * BLOCK * N;
        if (c >= cols)
            continue;
#pragma unroll
        for (int i = 0; i < N; i++)
            x[k][i] = exp_of(x[k][i] - g.largest) * g.norm;
        if (c + N > g.in)
#pragma unroll
            for (int i = 0; i < N; i++)
                x[k][i] = c + i < g.in ? x[k][i] : 0;
        if ((uint64_t)(g.label - c) < N && g.label < g.in)
#pragma unroll
            for (int i = 0; i < N; i++)
                x[k][i] -= c + i == g.label ? g.k : 0;
        if (c + N <= cols) {
            put_floats<N>(out + c, x[k]);
        } else {
#pragma unroll
            for (int i = 0; i < N; i++)
                if (c + i < cols)
                    from_float(out + c + i, x[k][i]);
        }
    }
}

/* dlogits may start where the logits start. Tiles go left to right, and an element of dlogits is at most
 * as wide as a logit: once all threads have read their part of a tile, writing the tile overwrites no
 * logit that is still to be read. The next tile is loaded before that. */
template <class T, class L, int N>
__global__ void __launch_bounds__(THREADS) k_xent_grad(const XentJob j)
{
    enum { AHEAD = 8 / N, TILE = AHEAD * THREADS * N };
    int64_t whole = whole_row(j.rows, blockIdx.x), v = j.label[whole] - j.v0;
    const L *row = (const L *)j.logits + (int64_t)blockIdx.x * j.ldlogits;
    const float *stats = j.stats + (int64_t)blockIdx.x * j.ldstats;
    T *out = (T *)j.dlogits + (int64_t)blockIdx.x * j.ldd;
    double mask = j.mask ? j.mask[whole] : 1;
    float k0 = (float)(mask * j.scale), x[AHEAD][N], y[AHEAD][N];
    int in = mask == 0 ? 0 : j.valid, first = (int)threadIdx.x * N;
    XentGrad g = {stats[0], k0 / stats[1], k0, v, in};
    if (threadIdx.x == 0)
        write_loss(j, stats, whole);
    load_tile<N, AHEAD>(x, row, first, in);
    for (int tile = 0; tile < j.cols; tile += TILE) {
        load_tile<N, AHEAD>(y, row, tile + TILE + first, in);
        if (j.behind)
            __syncthreads();
        write_tile<N, AHEAD, THREADS>(out, x, tile + first, j.cols, g);
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
#pragma unroll
            for (int i = 0; i < N; i++)
                x[k][i] = y[k][i];
    }
}

/* Both steps of a row. The first `kept` columns, whole tiles, stay in shared memory behind SLOTS bytes.
 * dlogits may start where the logits start, as in k_xent_grad. */
enum { SLOTS = 512, PAIR = 512, PAIR_WARPS = PAIR / WARP, PAIR_TILE = 8 * PAIR };

template <class T, class L, int N>
__global__ void __launch_bounds__(PAIR, 2) k_xent(const XentJob j, int kept)
{
    enum { M = N > 1 ? Piece<L>::N : 1, AHEAD = 8 / N, FIRST = 16 / M };
    int64_t whole = whole_row(j.rows, blockIdx.x), v = j.label[whole] - j.v0;
    const L *row = (const L *)j.logits + (int64_t)blockIdx.x * j.ldlogits;
    XentPart all = {-INFINITY, 0}, *slot = (XentPart *)shared;
    L *own = (L *)(shared + SLOTS);
    float *stats = (float *)(slot + PAIR_WARPS), x[FIRST][M], y[AHEAD][N];
    double mask = j.mask ? j.mask[whole] : 1;
    int in = mask == 0 ? 0 : j.valid, first = (int)threadIdx.x * N;
    for (int c = (int)threadIdx.x * M; c < in; c += 2 * PAIR_TILE) {
        load_tile<M, FIRST, PAIR>(x, row, c, in);
#pragma unroll
        for (int k = 0; k < FIRST; k++)
            if (c + k * PAIR * M < kept)
                put_floats<M>(own + c + k * PAIR * M, x[k]);
        take_tile(all, x);
    }
    all = merge_warp(all);
    if (threadIdx.x % WARP == 0)
        slot[threadIdx.x / WARP] = all;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < PAIR_WARPS; w++)
            all = merge(all, slot[w]);
        stats[0] = all.largest;
        stats[1] = all.sum;
        stats[2] = v >= 0 && v < in ? to_float(row[v]) : -INFINITY;
        write_loss(j, stats, whole);
    }
    __syncthreads();
    if (!j.dlogits)
        return;
    float k0 = (float)(mask * j.scale);
    XentGrad g = {stats[0], k0 / stats[1], k0, v, in};
    T *out = (T *)j.dlogits + (int64_t)blockIdx.x * j.ldd;
    for (int tile = 0; tile < j.cols; tile += PAIR_TILE) {
        if (tile < kept)
            load_tile<N, AHEAD, PAIR>(y, own, tile + first, in);
        else
            load_tile<N, AHEAD, PAIR>(y, row, tile + first, in);
        if (j.behind && tile + PAIR_TILE > kept)
            __syncthreads();
        write_tile<N, AHEAD, PAIR>(out, y, tile + first, j.cols, g);
    }
}

static XentJob job_of(Mat stats, Mat logits, const int32_t *label, RowMap rows, int64_t v0, int64_t valid)
{
    BUG_ON(logits.type != F32 && logits.type != BF16);
    BUG_ON(stats.type != F32 || stats.cols != 3 || stats.rows != logits.rows);
    BUG_ON(valid < 0 || valid > logits.cols || logits.cols >= (int64_t)1 << 30);
    XentJob j = {};
    j.logits = logits.p, j.ldlogits = logits.ld;
    j.stats = (float *)stats.p, j.ldstats = stats.ld;
    j.label = label;
    j.rows = rows_of(rows);
    j.v0 = v0;
    j.valid = (int)valid;
    j.cols = (int)logits.cols;
    j.count = logits.rows;
    return j;
}

/* Calls run with a number of the logits' type. */
template <class Run> static void with_logits(Dtype type, Run run)
{
    if (type == BF16)
        run(Bf16());
    else
        run(float());
}

/* Calls run with numbers of the types of dlogits and of logits; BF16 logits have a BF16 gradient. */
template <class Run> static void with_types(Mat dlogits, Mat logits, Run run)
{
    BUG_ON(logits.type == BF16 && dlogits.p && dlogits.type != BF16);
    if (logits.type == BF16)
        run(Bf16(), Bf16());
    else
        with_type(dlogits.p ? dlogits.type : F32, [&](auto t) { run(t, float()); });
}

void cuda_xent_stats(Device *d, Mat stats, Mat logits, const int32_t *label, RowMap rows, int64_t v0,
                     int64_t valid)
{
    Cuda *c = cuda_of(d);
    if (!logits.rows)
        return;
    XentJob j = job_of(stats, logits, label, rows, v0, valid);
    with_logits(logits.type, [&](auto l) {
        typedef decltype(l) L;
        enum { N = Piece<L>::N };
        const size_t bytes = WARPS * sizeof(XentPart);
        if (aligned(logits))
            LAUNCH((k_xent_stats<L, N>), blocks_of(j.count), THREADS, bytes, c->compute, j);
        else
            LAUNCH((k_xent_stats<L, 1>), blocks_of(j.count), THREADS, bytes, c->compute, j);
    });
}

void cuda_xent_combine(Device *d, Mat stats, Mat parts)
{
    BUG_ON(stats.type != F32 || parts.type != F32 || stats.cols != 3 || parts.cols != 3);
    BUG_ON(stats.rows == 0 || parts.rows % stats.rows);
    LAUNCH(k_xent_combine, blocks_of(ceil_div(stats.rows, THREADS)), THREADS, 0, cuda_of(d)->compute,
           (float *)stats.p, stats.ld, (const float *)parts.p, parts.ld, stats.rows,
           (int)(parts.rows / stats.rows));
}

static int overlap(Mat a, Mat b)
{
    const char *p = (const char *)a.p, *q = (const char *)b.p;
    return p < (const char *)mat_at(b, b.rows - 1, b.cols) && q < (const char *)mat_at(a, a.rows - 1, a.cols);
}

/* Makes the job of xent_grad and xent. Returns 0 if there are no rows. */
static int grad_job(XentJob *j, Mat loss, Mat dlogits, Mat logits, Mat stats, const int32_t *label,
                    const float *mask, RowMap rows, int64_t v0, int64_t valid, double scale)
{
    BUG_ON(loss.type != F32 || (dlogits.p && (dlogits.rows != logits.rows || dlogits.cols != logits.cols)));
    if (!logits.rows)
        return 0;
    *j = job_of(stats, logits, label, rows, v0, valid);
    j->loss = (float *)loss.p, j->ldloss = loss.ld;
    j->mask = mask;
    j->scale = scale;
    if (!dlogits.p)
        return 1;
    j->dlogits = dlogits.p, j->ldd = dlogits.ld;
    j->behind = overlap(dlogits, logits);
    size_t wide = (size_t)dlogits.ld * dtype_size(dlogits.type);
    BUG_ON(j->behind && (dlogits.p != logits.p || wide != (size_t)logits.ld * dtype_size(logits.type)));
    return 1;
}

void cuda_xent_grad(Device *d, Mat loss, Mat dlogits, Mat logits, Mat stats, const int32_t *label,
                    const float *mask, RowMap rows, int64_t v0, int64_t valid, double scale)
{
    Cuda *c = cuda_of(d);
    XentJob j;
    if (!grad_job(&j, loss, dlogits, logits, stats, label, mask, rows, v0, valid, scale))
        return;
    if (!dlogits.p) {
        LAUNCH(k_xent_loss, blocks_of(ceil_div(j.count, THREADS)), THREADS, 0, c->compute, j);
        return;
    }
    with_types(dlogits, logits, [&](auto t, auto l) {
        typedef decltype(t) T;
        typedef decltype(l) L;
        if (aligned(logits) && aligned(dlogits))
            LAUNCH((k_xent_grad<T, L, 8>), blocks_of(j.count), THREADS, 0, c->compute, j);
        else
            LAUNCH((k_xent_grad<T, L, 1>), blocks_of(j.count), THREADS, 0, c->compute, j);
    });
}

/* Columns of type `type` that each of two blocks of a multiprocessor keeps: whole tiles, as many as fit in
 * its half of the shared memory, 1 KB of which a block leaves to CUDA. */
static int64_t kept_columns(const Cuda *c, Dtype type, int64_t valid)
{
    int64_t bytes = ((int64_t)c->shared + 1024) / 2 - 1024 - SLOTS;
    int64_t room = bytes / (int64_t)dtype_size(type) / PAIR_TILE * PAIR_TILE;
    return valid < room ? ceil_div(valid, PAIR_TILE) * PAIR_TILE : room;
}
static size_t kept_bytes(const Cuda *c, Dtype type, int64_t valid)
{
    return SLOTS + dtype_size(type) * (size_t)kept_columns(c, type, valid);
}

/* Lets a kernel of xent take as much shared memory as it may. */
template <class T, class L> static void open_kernels(const Cuda *c)
{
    int bytes = (int)kept_bytes(c, (Dtype)DtypeOf<L>::value, INT32_MAX);
    CUDA_OK(cudaFuncSetAttribute(k_xent<T, L, 8>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    CUDA_OK(cudaFuncSetAttribute(k_xent<T, L, 1>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}

void cuda_xent_open(const Cuda *c)
{
    open_kernels<float, float>(c);
    open_kernels<Bf16, float>(c);
    open_kernels<Half, float>(c);
    open_kernels<Bf16, Bf16>(c);
}

void cuda_xent(Device *d, Mat loss, Mat dlogits, Mat logits, Mat stats, const int32_t *label,
               const float *mask, RowMap rows, int64_t valid, double scale)
{
    Cuda *c = cuda_of(d);
    XentJob j;
    int kept = (int)kept_columns(c, logits.type, valid);
    const size_t bytes = kept_bytes(c, logits.type, valid);
    if (valid > 2 * kept) {
        cuda_xent_stats(d, stats, logits, label, rows, 0, valid);
        cuda_xent_grad(d, loss, dlogits, logits, stats, label, mask, rows, 0, valid, scale);
        return;
    }
    if (!grad_job(&j, loss, dlogits, logits, stats, label, mask, rows, 0, valid, scale))
        return;
    with_types(dlogits, logits, [&](auto t, auto l) {
        typedef decltype(t) T;
        typedef decltype(l) L;
        if (aligned(logits) && aligned(dlogits))
            LAUNCH((k_xent<T, L, 8>), blocks_of(j.count), PAIR, bytes, c->compute, j, kept);
        else
            LAUNCH((k_xent<T, L, 1>), blocks_of(j.count), PAIR, bytes, c->compute, j, kept);
    });
}
